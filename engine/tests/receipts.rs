//! Receipts that nobody waits for: whatever they leave would be seen after many of them.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a failed step fails the test")]

mod backend;

use std::sync::Arc;

use blkring_engine::tracker::Statistics;
use blkring_engine::{
    Access, BufferPool, Cache, IoMem, OpenOptions, Queue, QueueOptions, RawDisk, Request, Storage,
};

/// How many receipts are dropped for each storage, unless this variable says so.
const COUNT_ENV: &str = "BLKRING_RECEIPTS";
const COUNT: u64 = 40_000;

const SIZE: usize = 1 << 20;

/// What must stay as it is.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    descriptors: usize,
    /// Bytes of buffers, of the storage and of the requests.
    buffers: (usize, usize),
    /// Requests in the tracker.
    tracked: u64,
    /// Requests in the queue.
    unfinished: usize,
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn tracked(statistics: Statistics) -> u64 {
    statistics.running + statistics.waiting + statistics.parked
}

fn left(disk: &RawDisk, pool: &BufferPool, queue: &Queue) -> Left {
    Left {
        descriptors: descriptors(),
        buffers: (disk.storage().buffers().taken(), pool.taken()),
        tracked: tracked(disk.storage().statistics()),
        unfinished: queue.unfinished(),
    }
}

/// Aligned and unaligned reads and writes, zero-writes, discards, flushes; every receipt is dropped, at once or
/// after some turns, and some requests are withdrawn before.
fn drop_receipts(disk: &Arc<RawDisk>, count: u64) {
    let pool = BufferPool::new(1 << 20);
    let mut queue = backend::started(QueueOptions::with_requests(64).depth(32));
    let handle = queue.attach(disk).unwrap();
    // So that nothing is new any more.
    queue.turn().unwrap();
    let before = left(disk, &pool, &queue);
    let mut kept = Vec::new();
    let mut accepted = 0;
    for number in 0..count {
        let unaligned = u64::from(number % 7 == 0) * 100;
        let offset = number * 4096 % (SIZE as u64 - 8192) + unaligned;
        let mem = |len: usize| -> IoMem { pool.try_take(4096).unwrap().mem().slice(0..len) };
        let request = match number % 16 {
            0..8 => Request::read(offset, mem(4096)),
            8..12 => Request::write(offset, mem(4096)),
            12 => Request::write(offset, mem(100)),
            13 => Request::write_zeroes(offset, 4096),
            14 => Request::discard(offset, 4096),
            _ => Request::flush(),
        };
        match handle.submit(request) {
            Ok(receipt) if number % 3 == 0 => kept.push(receipt),
            Ok(receipt) => {
                if number % 5 == 0 {
                    receipt.withdraw();
                }
                drop(receipt);
            }
            Err(_) => {
                while queue.unfinished() >= 64 {
                    queue.wait().unwrap();
                }
                continue;
            }
        }
        accepted += 1;
        if number % 64 == 0 {
            kept.clear();
            queue.turn().unwrap();
        }
    }
    drop(kept);
    queue.drain().unwrap();
    while queue.turn().unwrap() == blkring_engine::Turn::Busy {}
    assert_eq!(left(disk, &pool, &queue), before);
    assert!(accepted > count / 2, "most of them were accepted: {accepted} of {count}");
    assert_eq!(queue.completions().count(), 0, "nobody is told of a dropped receipt");
    drop((queue, handle));
    assert_eq!((tracked(disk.storage().statistics()), pool.taken()), (0, 0));
}

fn count() -> u64 {
    let wanted = std::env::var(COUNT_ENV).ok();
    wanted.map_or(COUNT, |count| count.parse().expect("a number of receipts"))
}

/// One test: the descriptors of the process are counted.
#[test]
fn dropped_receipts_leave_nothing() {
    let disk = RawDisk::new(Storage::in_memory("memory", vec![0; SIZE], SIZE));
    drop_receipts(&disk, count());
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len(SIZE as u64).unwrap();
    for cache in [Cache::Cached, Cache::Direct] {
        let options = OpenOptions::new().access(Access::ReadWrite).cache(cache);
        let disk = RawDisk::new(Storage::open(file.path(), &options).unwrap());
        drop_receipts(&disk, count() / 2);
    }
}
