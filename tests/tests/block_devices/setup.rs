//! What the tests share: a queue, and an open device.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use blkring_engine::{
    Access, Cache, Flags, IoMem, Lane, OpenOptions, Queue, QueueOptions, QueueSeed, Result, Storage,
};
use blkring_tests::loop_device::LoopDevice;
use blkring_tests::mounts::SectorSize;
use blkring_tests::report::or_skip;

pub const MIB: u64 = 1 << 20;

pub fn queue() -> Queue {
    QueueSeed::new(QueueOptions::default()).unwrap().start().unwrap()
}

pub fn writable(cache: Cache) -> OpenOptions {
    OpenOptions::new().access(Access::ReadWrite).cache(cache)
}

pub fn open(path: &Path, cache: Cache) -> Arc<Storage> {
    Arc::new(Storage::open(path, &writable(cache)).unwrap())
}

/// A device of 16 MiB; `None` after the skip was reported.
#[track_caller]
pub fn device(sector: SectorSize) -> Option<LoopDevice> {
    or_skip(LoopDevice::new(sector, 16))
}

/// A storage with a queue of its own.
pub struct Opened {
    pub storage: Arc<Storage>,
    pub queue: Queue,
}

impl Opened {
    pub fn new(path: &Path, cache: Cache) -> Self {
        Opened { storage: open(path, cache), queue: queue() }
    }

    pub fn run<T, F: Future<Output = T>>(
        &mut self,
        operation: impl FnOnce(Arc<Storage>, Lane) -> F,
    ) -> T {
        let future = operation(self.storage.clone(), self.queue.lane());
        self.queue.block_on(future).unwrap()
    }

    pub fn write(&mut self, offset: u64, bytes: Vec<u8>) -> Result<()> {
        self.run(|s, lane| async move {
            s.write(&lane, offset, &IoMem::from(bytes), Flags::empty()).await
        })
    }

    pub fn zero(&mut self, offset: u64, len: u64, flags: Flags) -> Result<()> {
        self.run(|s, lane| async move { s.write_zeroes(&lane, offset, len, flags).await })
    }

    pub fn discard(&mut self, offset: u64, len: u64) -> Result<()> {
        self.run(|s, lane| async move { s.discard(&lane, offset, len).await })
    }

    pub fn flush(&mut self) -> Result<()> {
        self.run(|s, lane| async move { s.flush(&lane).await })
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let mem = IoMem::from(vec![0xee; len]);
        let into = mem.clone();
        self.run(|s, lane| async move { s.read(&lane, offset, &into).await }).unwrap();
        mem.to_vec()
    }
}
