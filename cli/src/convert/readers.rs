//! Reading what is compressed, on several threads: it is decompressed on the thread that reads it.

use std::io;
use std::ops::Range;
use std::thread::available_parallelism;

use blkring_engine::{IoError, IoMem, Operation, Queue, QueueOptions, QueueSeed};
use crossbeam::channel::Receiver;

use super::source::Sources;
use super::team::{Answer, Team, answer};
use crate::backend;
use crate::disk::AnyDisk;
use crate::status::{Holes, Survey};

/// Requests of a reader at once: it reads one piece at a time, of several images at worst.
const REQUESTS: usize = 16;

/// One decompresses while the other waits for the disk.
const PER_CORE: usize = 2;

struct Job {
    offset: u64,
    mem: IoMem,
    answer: Answer<Result<(), IoError>>,
}

/// Threads that read, each with a queue of its own.
pub struct Readers(Team<Job>);

impl Readers {
    /// As many as `pieces` at once keep busy, for these images. They decompress, so more than a few for each core only
    /// take memory.
    ///
    /// # Errors
    /// If there can be no such threads.
    pub fn start(images: &[AnyDisk], window: &Range<u64>, pieces: usize) -> io::Result<Self> {
        let threads = pieces.min(PER_CORE * available_parallelism()?.get());
        let (images, window) = (images.to_vec(), window.clone());
        let work = move |jobs: Receiver<Job>| work(&images, &window, jobs);
        Team::start("reader", (threads, pieces), work).map(Readers)
    }

    /// Fills `mem` from `offset` on, as [`Sources::read`] does.
    pub async fn read(&self, offset: u64, mem: &IoMem) -> Result<(), IoError> {
        let (answer, awaited) = answer();
        self.0.send(Job { offset, mem: mem.clone(), answer });
        awaited.await
    }
}

struct Reader {
    queue: Queue,
    sources: Sources,
}

impl Reader {
    fn start(images: &[AnyDisk], window: &Range<u64>) -> io::Result<Self> {
        let seed = QueueSeed::new(QueueOptions::with_requests(REQUESTS).backend(backend::choice()));
        let mut queue = seed.map_err(io::Error::other)?.start()?;
        let images = images.iter().map(|image| (image, Survey::new(image, Holes::Wanted)));
        let sources = Sources::new(&mut queue, images)?.window(window.clone());
        Ok(Reader { queue, sources })
    }

    fn read(&mut self, offset: u64, mem: &IoMem) -> io::Result<Result<(), IoError>> {
        self.queue.block_on(self.sources.read(offset, mem))
    }
}

fn work(images: &[AnyDisk], window: &Range<u64>, jobs: Receiver<Job>) {
    let mut reader = None;
    let mut bytes = 0;
    for Job { offset, mem, answer } in jobs {
        let started = match reader.take() {
            Some(reader) => Ok(reader),
            None => Reader::start(images, window),
        };
        let read = started.and_then(|one| reader.insert(one).read(offset, &mem));
        bytes += mem.len();
        answer.give(read.unwrap_or_else(|error| {
            let path =
                images.first().map_or_else(|| "".into(), |image| image.storage().path().clone());
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            Err(IoError::new(&path, Operation::Read, offset, errno)
                .because("a reader has no queue"))
        }));
    }
    tracing::debug!(bytes, "a reader ends");
}
