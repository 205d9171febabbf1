//! Queues on memory and on real files: the submission contract, alignment, wake-ups, removal.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a failed step fails the test")]

mod backend;

use std::future::Future;
use std::os::fd::AsRawFd as _;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use blkring_engine::{
    Access, Cache, Flags, IoMem, OpenOptions, Queue, QueueOptions, RawDisk, Request, Storage, Turn,
};

fn queue(requests: usize) -> Queue {
    backend::started(QueueOptions::with_requests(requests))
}

fn memory_disk(size: usize) -> Arc<RawDisk> {
    RawDisk::new(Storage::in_memory("memory", vec![0; size], size))
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| seed.wrapping_add(i as u8)).collect()
}

#[test]
fn a_write_is_read_back_from_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    for cache in [Cache::Cached, Cache::Direct] {
        let options = OpenOptions::new().access(Access::ReadWrite).cache(cache);
        let disk = RawDisk::new(Storage::open(file.path(), &options).unwrap());
        let mut queue = queue(8);
        let handle = queue.attach(&disk).unwrap();
        queue
            .block_on(async {
                // Neither offset nor length nor memory is aligned: a read-modify-write under O_DIRECT.
                handle.write(4093, IoMem::from(pattern(9001, 3)), Flags::empty()).await.unwrap();
                let back = IoMem::from(vec![0xff; 9003]);
                handle.read(4092, back.clone()).await.unwrap();
                let back = back.to_vec();
                assert_eq!(back[1..9002], pattern(9001, 3));
                assert_eq!((back[0], back[9002]), (0, 0));
                handle.write_zeroes(5000, 100, Flags::empty()).await.unwrap();
                let zeros = IoMem::from(vec![0xff; 102]);
                handle.read(4999, zeros.clone()).await.unwrap();
                assert_eq!(zeros.to_vec()[1..101], [0; 100]);
                assert_ne!(zeros.to_vec()[0], 0);
                handle.flush().await.unwrap();
            })
            .unwrap();
        assert_eq!(queue.counts().syncs, 1);
        let statistics = disk.storage().statistics();
        assert_eq!(statistics.running + statistics.waiting + statistics.parked, 0);
    }
}

#[test]
fn a_full_queue_refuses_and_accepts_nothing() {
    let disk = memory_disk(4096);
    let mut queue = queue(2);
    let handle = queue.attach(&disk).unwrap();
    for user_data in 0..2 {
        handle.queue(Request::write(0, IoMem::from(vec![1; 512])), user_data).unwrap();
    }
    let refused = handle.queue(Request::write(0, IoMem::from(vec![2; 512])), 2).unwrap_err();
    assert_eq!(refused.0.len(), 512);
    queue.drain().unwrap();
    let mut answered: Vec<_> = queue.completions().map(|c| (c.user_data, c.code())).collect();
    answered.sort_unstable();
    assert_eq!(answered, [(0, 0), (1, 0)]);
    handle.queue(refused.0, 2).unwrap();
    queue.drain().unwrap();
    assert_eq!(queue.completions().count(), 1);
    assert_eq!(disk.storage().memory_contents().unwrap()[..512], [2; 512]);
}

#[test]
fn a_dropped_receipt_cancels_nothing() {
    let disk = memory_disk(4096);
    let mut queue = queue(2);
    let handle = queue.attach(&disk).unwrap();
    drop(handle.submit(Request::write(0, IoMem::from(vec![9; 4096]))).unwrap());
    queue.drain().unwrap();
    assert_eq!(disk.storage().memory_contents().unwrap(), vec![9; 4096]);
}

#[test]
fn beyond_the_end_is_an_error_and_not_a_panic() {
    let disk = memory_disk(4096);
    let mut queue = queue(4);
    let handle = queue.attach(&disk).unwrap();
    for request in [
        Request::write(4000, IoMem::from(vec![0; 97])),
        Request::write(u64::MAX - 3, IoMem::from(vec![0; 97])),
        Request::write_zeroes(u64::MAX / 512 * 512, u64::from(u32::MAX)),
        Request::discard(1, u64::MAX),
    ] {
        handle.queue(request, 0).unwrap();
    }
    queue.drain().unwrap();
    assert!(queue.completions().all(|c| c.code() == -libc::EIO));
}

#[test]
fn a_queue_is_woken_by_another_thread() {
    let disk = memory_disk(4096);
    let (send, receive) = std::sync::mpsc::channel();
    let sleeper = std::thread::spawn({
        let disk = disk.clone();
        move || {
            let mut queue = queue(2);
            let _handle = queue.attach(&disk).unwrap();
            let mut told = false;
            queue
                .block_on(std::future::poll_fn(|cx| {
                    if told {
                        return std::task::Poll::Ready(());
                    }
                    told = true;
                    send.send(cx.waker().clone()).unwrap();
                    std::task::Poll::Pending
                }))
                .unwrap();
        }
    });
    let waker: std::task::Waker = receive.recv().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    waker.wake();
    sleeper.join().unwrap();
}

/// Whether a descriptor becomes readable within so many milliseconds. As in an owner's loop, EINTR is tried again.
fn readable(fd: std::os::fd::RawFd, milliseconds: i32) -> bool {
    loop {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd on the stack.
        match unsafe { libc::poll(&raw mut poll, 1, milliseconds) } {
            1 => return true,
            0 => return false,
            _ => assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EINTR)),
        }
    }
}

#[test]
fn every_wake_up_makes_the_event_descriptor_readable() {
    let (send, receive) = std::sync::mpsc::channel::<std::task::Waker>();
    let waker = std::thread::spawn(move || {
        for waker in receive {
            std::thread::sleep(std::time::Duration::from_micros(200));
            waker.wake();
        }
    });
    let mut queue = queue(4);
    let fd = queue.event_fd().unwrap().as_raw_fd();
    let rounds = std::rc::Rc::new(std::cell::Cell::new(0));
    let counted = rounds.clone();
    queue.spawn(std::future::poll_fn(move |cx| {
        counted.set(counted.get() + 1);
        if counted.get() > 100 {
            return std::task::Poll::Ready(());
        }
        send.send(cx.waker().clone()).unwrap();
        std::task::Poll::Pending
    }));
    while rounds.get() <= 100 {
        let before = rounds.get();
        while queue.turn().unwrap() == Turn::Busy {}
        if rounds.get() == before {
            assert!(readable(fd, 10_000), "wake-up {before} was not told");
        }
    }
    waker.join().unwrap();
}

#[test]
fn the_event_descriptor_tells_of_completions() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(65536).unwrap();
    let options = OpenOptions::new().access(Access::ReadWrite);
    let disk = RawDisk::new(Storage::open(file.path(), &options).unwrap());
    let mut queue = queue(4);
    let handle = queue.attach(&disk).unwrap();
    let fd = queue.event_fd().unwrap().as_raw_fd();
    handle.queue(Request::write(0, IoMem::from(vec![1; 4096])), 7).unwrap();
    handle.queue(Request::flush(), 8).unwrap();
    let mut answered = Vec::new();
    while answered.len() < 2 {
        while queue.turn().unwrap() == Turn::Busy {}
        answered.extend(queue.completions().map(|c| c.user_data));
        if answered.len() < 2 {
            assert!(readable(fd, 10_000), "a completion must make the descriptor readable");
        }
    }
    answered.sort_unstable();
    assert_eq!(answered, [7, 8]);
}

#[test]
fn many_threads_share_a_storage() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(4 << 20).unwrap();
    let options = OpenOptions::new().access(Access::ReadWrite).cache(Cache::Direct);
    let disk = RawDisk::new(Storage::open(file.path(), &options).unwrap());
    let threads: Vec<_> = (0..4u8)
        .map(|thread| {
            let disk = disk.clone();
            std::thread::spawn(move || {
                let mut queue = queue(32);
                let handle = queue.attach(&disk).unwrap();
                // Neighbouring 100-byte pieces of different threads share blocks.
                for i in 0..200u64 {
                    let at = (i * 4 + u64::from(thread)) * 100;
                    let receipt =
                        handle.submit(Request::write(at, IoMem::from(vec![thread + 1; 100])));
                    match receipt {
                        Ok(receipt) => drop(receipt),
                        Err(full) => {
                            queue.drain().unwrap();
                            drop(handle.submit(full.0).unwrap());
                        }
                    }
                }
                queue.drain().unwrap();
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let bytes = std::fs::read(file.path()).unwrap();
    for (i, piece) in bytes[..80_000].chunks(100).enumerate() {
        assert_eq!(piece, vec![(i % 4) as u8 + 1; 100], "piece {i}");
    }
    assert!(disk.storage().statistics().waited > 0, "neighbours in one block must have met");
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_dropped_queue_answers_what_it_had_accepted() {
    let disk = memory_disk(4096);
    let mut queue = queue(2);
    let handle = queue.attach(&disk).unwrap();
    let held = disk.storage().clone();
    let mut started = handle.submit(Request::write(0, IoMem::from(vec![5; 512]))).unwrap();
    queue.turn().unwrap();
    let mut waits = handle.submit(Request::write(512, IoMem::from(vec![6; 512]))).unwrap();
    drop(queue);
    assert!(poll_once(&mut started).is_ready());
    let Poll::Ready(result) = poll_once(&mut waits) else { panic!("nobody will answer it") };
    let error = result.unwrap_err();
    assert_eq!(error.errno, libc::ECANCELED);
    assert!(error.to_string().starts_with("memory: write at offset 512: "), "{error}");
    assert!(handle.submit(Request::flush()).is_err(), "nobody would ever do it");
    assert_eq!(held.statistics().running, 0);
}

#[test]
fn a_raw_disk_is_whole_sectors_and_may_be_given_another_size() {
    use blkring_engine::Target as _;

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), [7; 100]).unwrap();
    let options = OpenOptions::new().access(Access::ReadWrite);
    let raw = RawDisk::new(Storage::open(file.path(), &options).unwrap());
    let mut queue = backend::started(QueueOptions::default());
    let (lane, disk) = (queue.lane(), queue.attach(&raw).unwrap());
    assert_eq!(raw.size(), 512);
    let read = |queue: &mut Queue, offset, len| {
        let bytes = IoMem::from(vec![1; len]);
        queue.block_on(disk.read(offset, bytes.clone())).unwrap().map(|()| bytes.to_vec())
    };
    let bytes = read(&mut queue, 90, 422).unwrap();
    assert!(bytes.starts_with(&[7; 10]) && bytes.ends_with(&[0; 412]), "zeros behind the end");
    queue.block_on(raw.resize(&lane, 1000)).unwrap().unwrap();
    assert_eq!((raw.size(), file.path().metadata().unwrap().len()), (1024, 1024));
    assert_eq!(read(&mut queue, 1000, 24).unwrap(), [0; 24]);
    queue.block_on(raw.resize(&lane, 0)).unwrap().unwrap();
    assert!(read(&mut queue, 0, 1).is_err(), "nothing is left");
}

thread_local! {
    /// What the waker below calls.
    static CALLED: std::cell::RefCell<Option<blkring_engine::Disk>> = const { std::cell::RefCell::new(None) };
}

/// A waker that submits a request when it is called and when it is dropped, as the end of somebody's task may.
struct Submits;

impl Submits {
    fn submit() {
        CALLED.with_borrow(|disk| {
            if let Some(disk) = disk {
                disk.queue(Request::flush(), 0).unwrap();
            }
        });
    }
}

impl std::task::Wake for Submits {
    fn wake(self: Arc<Self>) {
        Submits::submit();
    }
}

impl Drop for Submits {
    fn drop(&mut self) {
        Submits::submit();
    }
}

#[test]
fn a_waker_may_submit_when_it_is_called_or_dropped() {
    let disk = memory_disk(4096);
    let mut queue = queue(16);
    let handle = queue.attach(&disk).unwrap();
    CALLED.set(Some(handle.clone()));
    let poll = |receipt: &mut blkring_engine::Receipt| {
        Pin::new(receipt).poll(&mut Context::from_waker(&Waker::from(Arc::new(Submits))))
    };
    let mut replaced = handle.submit(Request::flush()).unwrap();
    assert!(poll(&mut replaced).is_pending());
    assert!(poll(&mut replaced).is_pending());
    assert_eq!(queue.unfinished(), 2, "by the former waker, which is dropped");
    drop(replaced);
    assert_eq!(queue.unfinished(), 3, "by that of a receipt that is dropped");
    let mut answered = handle.submit(Request::flush()).unwrap();
    assert!(poll(&mut answered).is_pending());
    queue.drain().unwrap();
    assert!(poll(&mut answered).is_ready());
    queue.drain().unwrap();
    assert_eq!(queue.completions().count(), 5, "called once, dropped four times");
    CALLED.set(None);
}

/// A job in memory that is woken by a thread without a queue, while the queue that drives it sleeps.
#[test]
fn shared_work_in_memory_wakes_a_queue_that_sleeps() {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(60);
    let service = blkring_engine::Service::without_ring(4).unwrap();
    let (polled, polls) = channel();
    let mut told = false;
    let job = service.start(std::future::poll_fn(move |cx| {
        polled.send(cx.waker().clone()).unwrap();
        if std::mem::replace(&mut told, true) { Poll::Ready(()) } else { Poll::Pending }
    }));
    let (done, ended) = channel();
    std::thread::spawn(move || {
        let mut queue = queue(4);
        queue.watch_service(&service).unwrap();
        queue.block_on(job.join()).unwrap();
        done.send(()).unwrap();
    });
    let waker = polls.recv_timeout(PATIENCE).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    waker.wake();
    ended.recv_timeout(PATIENCE).expect("nobody told the queue");
}
