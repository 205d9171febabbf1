//! Images on real files: made, opened and closed as an embedder does it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use blkring_engine::{
    Cache, Disk, IoMem, OpenOptions, Queue, QueueOptions, QueueSeed, Result, Storage,
};
use blkring_qcow2::{Backing, CreateOptions, FileOpener, Image, ImageOptions, Layout, OpenError};

use crate::backend;

/// Requests that the queues made here take at once.
const REQUESTS: usize = 32;

/// Makes a new image file.
///
/// # Panics
/// If the options are impossible, or the file cannot be written.
pub fn create(path: &Path, options: &CreateOptions) {
    let layout = Layout::plan(options).expect("tests ask for what is possible");
    let write = || -> io::Result<()> {
        let file = File::create(path)?;
        for write in &layout.writes {
            file.write_all_at(&write.bytes, write.offset.get())?;
        }
        file.set_len(layout.file_length)
    };
    write().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

/// A backing file in the directory of the image that names it.
pub fn backing(name: &str, format: &str) -> Option<Backing> {
    Some(Backing::new(name, format))
}

/// A queue of the calling thread, on what the environment says ([`backend::choice`]).
///
/// # Panics
/// If there is none.
pub fn queue() -> Queue {
    let options = QueueOptions::with_requests(REQUESTS).backend(backend::choice());
    let seed = QueueSeed::new(options).expect("tests need io_uring, unless told otherwise");
    seed.start().expect("the ring has no other issuer")
}

/// Opens the image at `path`.
///
/// # Errors
/// As [`Image::open`].
///
/// # Panics
/// If the ring of the queue fails.
pub fn try_open(
    queue: &mut Queue,
    path: &Path,
    cache: Cache,
    options: ImageOptions,
) -> std::result::Result<Arc<Image>, OpenError> {
    let storage = Storage::open(path, &OpenOptions::new().access(options.access).cache(cache))?;
    let lane = queue.lane();
    let opener = FileOpener::new(OpenOptions::new().cache(cache));
    queue.block_on(Image::open(&lane, storage, &opener, options)).expect("the ring works")
}

/// An image on a queue of its own.
pub struct Opened {
    /// The queue. Dropped after the disk of the image.
    pub queue: Queue,
    /// The image.
    pub image: Arc<Image>,
    /// The image as seen from the queue.
    pub disk: Disk,
}

impl Opened {
    /// Opens the image at `path`.
    ///
    /// # Panics
    /// If that fails.
    pub fn new(path: &Path, cache: Cache, options: ImageOptions) -> Self {
        let mut queue = queue();
        let image = try_open(&mut queue, path, cache, options)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self::on(queue, image)
    }

    /// Another queue of an image that is open.
    ///
    /// # Panics
    /// Without io_uring.
    pub fn beside(image: &Arc<Image>) -> Self {
        Self::on(queue(), image.clone())
    }

    fn on(mut queue: Queue, image: Arc<Image>) -> Self {
        let disk = queue.attach(&image).expect("the service of the image can be watched");
        Self { queue, image, disk }
    }

    /// For reading and writing, around the page cache or not.
    ///
    /// # Panics
    /// If that fails.
    pub fn writable(path: &Path, cache: Cache) -> Self {
        Self::new(path, cache, ImageOptions::new().writable())
    }

    /// Runs the queue until `future` is ready.
    ///
    /// # Panics
    /// If the ring fails.
    pub fn run<F: Future>(&mut self, future: F) -> F::Output {
        self.queue.block_on(future).expect("the ring works")
    }

    /// The bytes of a range.
    ///
    /// # Panics
    /// If they cannot be read.
    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let mem = IoMem::from(vec![0xEE; len]);
        let disk = self.disk.clone();
        let read = self.run(disk.read(offset, mem.clone()));
        read.unwrap_or_else(|error| panic!("{error}"));
        mem.to_vec()
    }

    /// Closes the image.
    ///
    /// # Errors
    /// As [`Image::close`].
    pub fn try_close(mut self) -> Result<()> {
        let image = self.image.clone();
        self.run(image.close())
    }

    /// Closes the image.
    ///
    /// # Panics
    /// If that fails.
    pub fn close(self) {
        let access = self.image.storage().access();
        self.try_close().unwrap_or_else(|error| panic!("closing ({access:?}): {error}"));
    }
}
