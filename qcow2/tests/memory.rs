//! Images in memory, driven by several threads: whoever sleeps is woken for shared work that another has left.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod backend;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use blkring_engine::{Flags, IoMem, Queue, QueueOptions, Storage};
use blkring_qcow2::{CreateOptions, FileOpener, Image, ImageOptions, Layout};

/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

const CLUSTER: u64 = 4096;

fn queue() -> Queue {
    backend::started(QueueOptions::default())
}

fn image(size: u64) -> Arc<Image> {
    let options = CreateOptions::new(size).cluster_size(CLUSTER);
    let layout = Layout::plan(&options).unwrap();
    let mut bytes = vec![0; usize::try_from(layout.file_length).unwrap()];
    for write in &layout.writes {
        let at = usize::try_from(write.offset.get()).unwrap();
        bytes[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
    }
    let storage = Storage::in_memory("memory", bytes, 1 << 30);
    let mut queue = queue();
    let (lane, opener) = (queue.lane(), FileOpener::default());
    // Refills are small, so that there are many.
    let options = ImageOptions::new().writable().reserve_bytes(4 * CLUSTER);
    queue.block_on(Image::open(&lane, storage, &opener, options)).unwrap().unwrap()
}

/// The results of `count` threads, unless one hangs.
fn all<T>(results: &Receiver<T>, count: usize) -> Vec<T> {
    (0..count).map(|_| results.recv_timeout(PATIENCE).expect("a thread hangs")).collect()
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on a thread that has no queue.
fn without_queue<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        thread::park();
    }
}

#[test]
fn a_queue_that_sleeps_does_what_a_thread_without_queue_waits_for() {
    let image = image(1 << 20);
    let (attached, ready) = channel();
    let (done, results) = channel();
    let driver = image.clone();
    thread::spawn(move || {
        let mut queue = queue();
        let _disk = queue.attach(&driver).unwrap();
        attached.send(()).unwrap();
        loop {
            queue.wait().unwrap();
        }
    });
    all(&ready, 1);
    // Asleep by then, most likely. If not, the test says less.
    thread::sleep(Duration::from_millis(200));
    thread::spawn(move || done.send(without_queue(image.close())).unwrap());
    all(&results, 1).pop().unwrap().unwrap();
}

#[test]
fn threads_that_share_an_image_in_memory_never_wait_for_ever() {
    const THREADS: u64 = 3;
    const WRITES: u64 = 400;
    let image = image(THREADS * WRITES * CLUSTER);
    let (done, results) = channel();
    for number in 0..THREADS {
        let (image, done) = (image.clone(), done.clone());
        thread::spawn(move || {
            let mut queue = queue();
            let disk = queue.attach(&image).unwrap();
            let writes = async {
                for write in 0..WRITES {
                    // Neighbours in one slice, so that they share loads, refills and cuts.
                    let offset = (write * THREADS + number) * CLUSTER;
                    disk.write(offset, IoMem::from(vec![7; 512]), Flags::empty()).await?;
                    if write % 3 == number {
                        disk.flush().await?;
                    }
                }
                Ok::<_, blkring_engine::IoError>(())
            };
            done.send(queue.block_on(writes).unwrap()).unwrap();
            // The thread ends, and with it whatever its queue had promised to look at.
        });
    }
    for result in all(&results, usize::try_from(THREADS).unwrap()) {
        result.unwrap();
    }
}
