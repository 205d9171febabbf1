//! Two virtqueues on one qcow2 image, each served by a thread with an epoll loop of its own.
//!
//! A virtqueue is played by two channels and an eventfd: the guest puts requests in and signals the event. The thread
//! that serves it sleeps in epoll, for the guest and for its queue, and takes all that is there in one go.

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;

use blkring_engine::{
    Access, Completion, Disk, IoMem, OpenOptions, Queue, QueueOptions, QueueSeed, Request, Storage,
    Turn, WouldBlock,
};
use blkring_qcow2::{CreateOptions, FileOpener, Image, ImageOptions, Layout};
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::{Errno, retry_on_intr};

type Failure = Box<dyn Error + Send + Sync>;

/// Bytes of a request of the guest.
const BLOCK: u64 = 16384;

/// Requests that the guest has under way at once, on each virtqueue.
const DEPTH: u64 = 64;

/// What is added to an eventfd to make it readable: any number will do.
const KICK: [u8; 8] = 1u64.to_le_bytes();

/// The guest's side of a virtqueue.
struct Driver {
    requests: Sender<(u64, Request)>,
    answers: Receiver<Completion>,
    kick: Arc<OwnedFd>,
}

/// The side of who serves it.
struct Device {
    requests: Receiver<(u64, Request)>,
    answers: Sender<Completion>,
    kick: Arc<OwnedFd>,
}

fn virtqueue() -> io::Result<(Driver, Device)> {
    let (requests, taken) = channel();
    let (given, answers) = channel();
    let kick = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
    let driver = Driver { requests, answers, kick: kick.clone() };
    Ok((driver, Device { requests: taken, answers: given, kick }))
}

/// Serves a virtqueue until the guest has closed it and everything is answered.
fn serve(seed: QueueSeed, image: &Arc<Image>, device: &Device) -> Result<(), Failure> {
    // From here on the ring belongs to this thread.
    let mut queue = seed.start()?;
    let disk = queue.attach(image)?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let (unused, readable) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    epoll::add(&poll, &device.kick, unused, readable)?;
    epoll::add(&poll, queue.event_fd()?, unused, readable)?;
    let mut events = Vec::with_capacity(2);
    let mut open = true;
    while open || queue.unfinished() > 0 {
        open = take_in(&disk, device)?;
        // One call for all that was taken in; then on, until there is nothing left to do.
        while queue.turn()? == Turn::Busy {}
        answer(&mut queue, device)?;
        if open || queue.unfinished() > 0 {
            // Shared work of an image interrupts calls that wait.
            retry_on_intr(|| epoll::wait(&poll, spare_capacity(&mut events), None))?;
            events.clear();
        }
    }
    Ok(())
}

/// Hands everything that the guest has put in to the queue. Answers whether there may be more.
fn take_in(disk: &Disk, device: &Device) -> Result<bool, Failure> {
    match rustix::io::read(&device.kick, &mut [0; 8]) {
        Ok(_) | Err(Errno::AGAIN) => {}
        Err(error) => return Err(error.into()),
    }
    loop {
        match device.requests.try_recv() {
            // The queue has room for all that the guest may have under way.
            Ok((tag, request)) => match disk.queue(request, tag) {
                Ok(_ticket) => {}
                Err(WouldBlock(_)) => return Err("the guest has more under way than it may".into()),
            },
            Err(TryRecvError::Empty) => return Ok(true),
            Err(TryRecvError::Disconnected) => return Ok(false),
        }
    }
}

fn answer(queue: &mut Queue, device: &Device) -> Result<(), Failure> {
    queue.completions().try_for_each(|done| Ok(device.answers.send(done)?))
}

impl Driver {
    /// Puts requests in, kicks once, and waits for all answers.
    fn all(&self, requests: impl Iterator<Item = Request>) -> Result<u64, Failure> {
        let mut count = 0;
        for request in requests {
            self.requests.send((count, request))?;
            count += 1;
        }
        rustix::io::write(&self.kick, &KICK)?;
        for _ in 0..count {
            self.answers.recv()?.result?;
        }
        Ok(count)
    }

    /// No more requests come.
    fn close(self) -> Result<(), Failure> {
        let Driver { requests, kick, .. } = self;
        drop(requests);
        rustix::io::write(&kick, &KICK)?;
        Ok(())
    }
}

/// What the guest does with its virtqueue: it writes, flushes, and reads back what it wrote.
fn guest(driver: Driver, first: u64) -> Result<u64, Failure> {
    let places = (first..first + DEPTH).map(|block| block * BLOCK);
    let bytes = |at: u64| vec![(at / BLOCK % 255) as u8 + 1; BLOCK as usize];
    let mut count = driver.all(places.clone().map(|at| Request::write(at, bytes(at).into())))?;
    count += driver.all(std::iter::once(Request::flush()))?;
    let found: Vec<IoMem> = places.clone().map(|_| IoMem::aligned_zeroed(BLOCK as usize)).collect();
    let reads = places.clone().zip(&found).map(|(at, mem)| Request::read(at, mem.clone()));
    count += driver.all(reads)?;
    for (at, mem) in places.zip(&found) {
        assert_eq!(mem.to_vec(), bytes(at), "the block at {at}");
    }
    driver.close()?;
    Ok(count)
}

/// A new image is a few writes to an empty file.
fn create(path: &Path, size: u64) -> Result<(), Failure> {
    let layout = Layout::plan(&CreateOptions::new(size))?;
    let file = File::create_new(path)?;
    file.set_len(layout.file_length)?;
    for write in &layout.writes {
        file.write_all_at(&write.bytes, write.offset.get())?;
    }
    Ok(file.sync_all()?)
}

fn main() -> Result<(), Failure> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("disk.qcow2");
    create(&path, 2 * DEPTH * BLOCK)?;

    // The main thread opens and closes the image, on a queue of its own.
    let mut queue = QueueSeed::new(QueueOptions::default())?.start()?;
    let storage = Storage::open(&path, &OpenOptions::new().access(Access::ReadWrite))?;
    let (lane, opener) = (queue.lane(), FileOpener::default());
    let options = ImageOptions::new().writable();
    let image = queue.block_on(Image::open(&lane, storage, &opener, options))??;
    let _disk = queue.attach(&image)?;

    let mut count = 0;
    thread::scope(|scope| {
        let mut guests = Vec::new();
        for number in 0..2 {
            let (driver, device) = virtqueue()?;
            // Made here, before a sandbox is entered for instance, and started by the thread that it is for.
            let seed = QueueSeed::new(QueueOptions::with_requests(DEPTH as usize))?;
            let image = &image;
            scope.spawn(move || serve(seed, image, &device).expect("the virtqueue is served"));
            guests.push(scope.spawn(move || guest(driver, number * DEPTH)));
        }
        for guest in guests {
            count += guest.join().expect("a guest that is content")?;
        }
        Ok::<_, Failure>(())
    })?;
    queue.block_on(image.close())??;
    println!(
        "{count} requests of two virtqueues answered, and their data found in {}",
        path.display()
    );
    Ok(())
}
