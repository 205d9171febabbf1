//! A queue on a device that never answers, for a process of its own: what it leaves behind keeps the device busy.

use std::path::Path;
use std::time::Duration;

use blkring_engine::{
    Access, BufferPool, IoMem, OpenOptions, QueueOptions, QueueSeed, RawDisk, Request, Storage,
};

use crate::deadline::within;

/// Requests on their way.
pub const REQUESTS: usize = 128;

/// Bytes of each.
pub const BLOCK: usize = 4096;

/// How long the queue waits, and what is too long.
const PATIENCE: Duration = Duration::from_millis(200);
const LIMIT: Duration = Duration::from_secs(60);

/// Writes blocks of their numbers to a file that answers nothing, drops the queue, and says how many bytes of the
/// requests are still in memory.
///
/// # Panics
/// If the queue cannot be made, or is not dropped in time.
pub fn left_of(path: &Path) -> usize {
    let storage = Storage::open(path, &OpenOptions::new().access(Access::ReadWrite));
    let disk = RawDisk::new(storage.expect("the file is there"));
    let options = QueueOptions::with_requests(REQUESTS).patience(PATIENCE);
    let seed = QueueSeed::new(options).expect("tests need io_uring");
    let mut queue = seed.start().expect("the ring has no other issuer");
    let handle = queue.attach(&disk).expect("a raw disk has nothing to watch");
    let pool = BufferPool::new(REQUESTS * BLOCK);
    for number in 0..REQUESTS {
        let mem: IoMem = pool.try_take(BLOCK).expect("there is room for all").mem();
        mem.fill(0..BLOCK, number as u8);
        let write = Request::write((number * BLOCK) as u64, mem);
        handle.queue(write, number as u64).expect("the queue has room");
    }
    queue.turn().expect("the ring works");
    within(LIMIT, "to leave a device that never answers", || drop(queue));
    let statistics = disk.storage().statistics();
    assert!(statistics.running > 0, "ranges of what the kernel has are not given to others");
    pool.taken()
}
