//! Queues under a kernel that refuses for the moment, moves less than asked, takes its time, or never answers.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use blkring_engine::faults::{Effect, EnterFaults, Faults, Ops, Rule};
use blkring_engine::sim::Rng;
use blkring_engine::{
    Access, BufferPool, Cache, Disk, Flags, IoMem, OpenOptions, Queue, QueueOptions, QueueSeed,
    RawDisk, Request, Storage, Target, Turn,
};
use blkring_qcow2::CreateOptions;
use blkring_tests::abandoned::{BLOCK, REQUESTS};
use blkring_tests::deadline::within;
use blkring_tests::fs::Fs;
use blkring_tests::images::{self, Opened};
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::report::or_skip;
use blkring_tests::tools;
use tempfile::NamedTempFile;

/// What is slow hangs.
const PATIENCE: Duration = Duration::from_secs(60);

fn file_of(blocks: usize) -> NamedTempFile {
    let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.as_file().set_len((blocks * BLOCK) as u64).unwrap();
    file
}

fn disk(path: &Path, cache: Cache, faults: &Arc<Faults>) -> Arc<RawDisk> {
    let options = OpenOptions::new().access(Access::ReadWrite).cache(cache).faults(faults);
    RawDisk::new(Storage::open(path, &options).unwrap())
}

fn queue(options: QueueOptions) -> Queue {
    QueueSeed::new(options).unwrap().start().unwrap()
}

fn is_idle(disk: &RawDisk) -> bool {
    let statistics = disk.storage().statistics();
    statistics.running + statistics.waiting + statistics.parked == 0
}

/// Memory of a block, which the pool counts until nobody has it any more.
fn block(pool: &Arc<BufferPool>, byte: u8) -> IoMem {
    let mem = pool.try_take(BLOCK).unwrap().mem();
    mem.fill(0..BLOCK, byte);
    mem
}

fn write_block(disk: &Disk, pool: &Arc<BufferPool>, number: usize) {
    let write = Request::write((number * BLOCK) as u64, block(pool, number as u8));
    disk.queue(write, number as u64).unwrap();
}

fn has_blocks(path: &Path, blocks: usize) -> bool {
    let bytes = std::fs::read(path).unwrap();
    (0..blocks).all(|number| {
        bytes.get(number * BLOCK..(number + 1) * BLOCK).unwrap().iter().all(|b| *b == number as u8)
    })
}

/// F50: 64 requests under way that end in any order; `drain` comes back when none is left, and each was answered once.
#[test]
fn f50_a_drained_queue_has_answered_everything_once() {
    let file = file_of(64);
    for round in 0..10 {
        let faults = Faults::new();
        let raw = disk(file.path(), Cache::Direct, &faults);
        let mut rng = Rng::new(round);
        faults.add(Rule::chosen(Ops::WRITES, move |_| {
            (rng.below(3) > 0).then(|| Effect::Delay(Duration::from_millis(rng.below(20))))
        }));
        let mut queue = queue(QueueOptions::with_requests(64).depth(64));
        let handle = queue.attach(&raw).unwrap();
        let pool = BufferPool::new(64 * BLOCK);
        (0..64).for_each(|number| write_block(&handle, &pool, number));
        queue.turn().unwrap();
        assert!(queue.unfinished() > 0, "some of them are delayed");
        queue.drain().unwrap();
        assert!(queue.unfinished() == 0 && is_idle(&raw) && pool.taken() == 0);
        let mut ended: Vec<u64> = queue.completions().map(|one| one.user_data).collect();
        ended.sort_unstable();
        assert_eq!(ended, (0..64).collect::<Vec<_>>(), "round {round}");
        queue.drain().unwrap();
        assert_eq!(queue.completions().count(), 0);
        assert!(has_blocks(file.path(), 64));
    }
}

/// F81: the call that submits fails for the moment after entries were pushed. They stay, with their memory, until
/// they complete; requests whose receipts are dropped too.
#[test]
fn f81_what_was_pushed_keeps_its_memory_while_the_kernel_refuses() {
    const REFUSALS: [i32; 4] = [0, libc::EAGAIN, libc::EBUSY, libc::EINTR];
    let file = file_of(256);
    for (depth, cache) in [(1, Cache::Direct), (4, Cache::Cached), (64, Cache::Direct)] {
        let raw = disk(file.path(), cache, &Faults::new());
        let mut queue = queue(QueueOptions::with_requests(256).depth(depth));
        let handle = queue.attach(&raw).unwrap();
        let mut rng = Rng::new(u64::from(depth));
        let refusals: Vec<i32> = (0..2000).map(|_| REFUSALS[rng.index(4)]).collect();
        let enters = EnterFaults::new(&refusals);
        queue.fail_enters(&enters);
        let pool = BufferPool::new(256 * BLOCK);
        for number in 0..256 {
            if number % 2 == 0 {
                write_block(&handle, &pool, number);
            } else {
                let mem = block(&pool, number as u8);
                drop(handle.submit(Request::write((number * BLOCK) as u64, mem)).unwrap());
            }
        }
        assert_eq!(pool.taken(), 256 * BLOCK);
        while queue.unfinished() > 0 {
            let unfinished = queue.unfinished();
            queue.turn().unwrap();
            assert!(pool.taken() / BLOCK >= queue.unfinished(), "{unfinished} were unanswered");
        }
        assert!(enters.left() < 2000, "the kernel was never refused");
        assert_eq!(queue.completions().filter(|one| one.code() == 0).count(), 128);
        assert!(pool.taken() == 0 && is_idle(&raw) && has_blocks(file.path(), 256));
        // Waits in the kernel that are interrupted, in `block_on` and in `drain`.
        enters.add(&[libc::EINTR; 50]);
        let back = block(&pool, 0);
        queue.block_on(handle.read(BLOCK as u64, back.clone())).unwrap().unwrap();
        assert_eq!(back.to_vec(), vec![1; BLOCK]);
    }
}

/// A queue, or the shared work of an image, whose entries the kernel has refused is not told to rest: its owner would wait for
/// completions of what was never submitted.
#[test]
fn f81_a_queue_does_not_rest_on_what_was_refused() {
    let file = file_of(64);
    let raw = disk(file.path(), Cache::Direct, &Faults::new());
    let mut queue = queue(QueueOptions::with_requests(64).depth(16));
    let handle = queue.attach(&raw).unwrap();
    let pool = BufferPool::new(64 * BLOCK);
    let enters = EnterFaults::new(&[libc::EAGAIN; 6]);
    queue.fail_enters(&enters);
    write_block(&handle, &pool, 0);
    while enters.left() > 0 {
        assert_eq!(queue.turn().unwrap(), Turn::Busy, "{} refusals are left", enters.left());
    }
    queue.drain().unwrap();
    let path = file.path().with_extension("qcow2");
    images::create(&path, &CreateOptions::new(1 << 20));
    let mut opened = Opened::writable(&path, Cache::Cached);
    for errno in [libc::EAGAIN, libc::EBUSY, libc::EINTR] {
        let enters = EnterFaults::new(&[errno; 6]);
        opened.image.service().unwrap().fail_enters(&enters);
        let disk = opened.disk.clone();
        disk.queue(Request::write(0, block(&pool, 1)), 0).unwrap();
        disk.queue(Request::flush(), 1).unwrap();
        while enters.left() > 0 && opened.queue.unfinished() > 0 {
            let turn = opened.queue.turn().unwrap();
            let refused = enters.left() > 0 && enters.left() < 6;
            assert!(turn == Turn::Busy || !refused, "{} refusals are left", enters.left());
        }
        opened.queue.drain().unwrap();
        assert_eq!(opened.queue.completions().filter(|one| one.code() == 0).count(), 2);
    }
    opened.close();
    std::fs::remove_file(&path).unwrap();
}

/// The same with an error that is none of the moment: the owner is told, and may go on.
#[test]
fn f81_a_ring_that_failed_once_goes_on_with_what_was_pushed() {
    let file = file_of(64);
    let raw = disk(file.path(), Cache::Direct, &Faults::new());
    let mut queue = queue(QueueOptions::with_requests(64).depth(16));
    let handle = queue.attach(&raw).unwrap();
    queue.fail_enters(&EnterFaults::new(&[libc::ENOMEM, 0, libc::ENXIO]));
    let pool = BufferPool::new(64 * BLOCK);
    (0..64).for_each(|number| write_block(&handle, &pool, number));
    let mut failures = Vec::new();
    while queue.unfinished() > 0 {
        if let Err(error) = queue.wait() {
            failures.push(error.raw_os_error().unwrap());
        }
    }
    assert_eq!(failures, [libc::ENOMEM, libc::ENXIO]);
    assert_eq!(queue.completions().filter(|one| one.code() == 0).count(), 64);
    assert!(pool.taken() == 0 && is_idle(&raw) && has_blocks(file.path(), 64));
}

/// A ring that fails for good: the queue is given up in time, and what the kernel may have is not freed.
#[test]
fn f81_a_ring_that_fails_for_good_is_left_in_time() {
    let file = file_of(64);
    let raw = disk(file.path(), Cache::Direct, &Faults::new());
    let patience = Duration::from_millis(100);
    let mut queue = queue(QueueOptions::with_requests(64).depth(64).patience(patience));
    let handle = queue.attach(&raw).unwrap();
    queue.fail_enters(&EnterFaults::new(&[libc::EBADF; 100_000]));
    let pool = BufferPool::new(64 * BLOCK);
    (0..64).for_each(|number| write_block(&handle, &pool, number));
    assert_eq!(queue.turn().unwrap_err().raw_os_error(), Some(libc::EBADF));
    within(PATIENCE, "to drop a queue without its kernel", || drop(queue));
    assert_eq!(pool.taken(), 64 * BLOCK, "nobody knows whether the kernel has it");
}

/// F82: an engine is dropped with 128 operations on a slow device. Memory is free when they have ended, not before.
#[test]
fn f82_a_dropped_queue_waits_for_a_slow_device() {
    let file = file_of(128);
    let faults = Faults::new();
    let raw = disk(file.path(), Cache::Direct, &faults);
    faults.add(Rule::new(Ops::WRITES, Effect::Delay(Duration::from_millis(80))).always());
    let mut queue = queue(QueueOptions::with_requests(128).depth(128));
    let handle = queue.attach(&raw).unwrap();
    let pool = BufferPool::new(128 * BLOCK);
    (0..128).for_each(|number| write_block(&handle, &pool, number));
    queue.turn().unwrap();
    assert_eq!((queue.unfinished(), pool.taken()), (128, 128 * BLOCK));
    let watch = {
        let pool = pool.clone();
        let path = file.path().to_owned();
        move || {
            // As long as the memory is there nothing of it was freed; when it is gone, all is in the file.
            while pool.taken() > 0 {
                std::thread::yield_now();
            }
            has_blocks(&path, 128)
        }
    };
    let watcher = std::thread::spawn(watch);
    within(PATIENCE, "to drop a queue on a slow device", || drop(queue));
    assert!(pool.taken() == 0 && is_idle(&raw));
    assert!(watcher.join().unwrap(), "memory was freed before it was written");
}

/// A file system that answers nothing until it is thawed.
struct Frozen<'a>(&'a Mount);

impl<'a> Frozen<'a> {
    fn new(mount: &'a Mount) -> Self {
        tools::run_ok(Command::new("fsfreeze").arg("-f").arg(mount.path()));
        Frozen(mount)
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        tools::run_ok(Command::new("fsfreeze").arg("-u").arg(self.0.path()));
    }
}

/// F82 with a device that is slow in the kernel: what is thawed in time is waited for.
#[test]
fn f82_a_dropped_queue_waits_for_the_kernel() {
    let Some(mount) = or_skip(Mount::new(Fs::Ext4, SectorSize::S512, 64)) else { return };
    let path = mount.path().join("disk");
    File::create(&path).unwrap().write_all_at(&vec![0xff; 128 * BLOCK], 0).unwrap();
    let frozen = Frozen::new(&mount);
    let raw = disk(&path, Cache::Cached, &Faults::new());
    let mut queue = queue(QueueOptions::with_requests(128).depth(128));
    let handle = queue.attach(&raw).unwrap();
    let pool = BufferPool::new(128 * BLOCK);
    (0..128).for_each(|number| write_block(&handle, &pool, number));
    queue.turn().unwrap();
    assert!(queue.unfinished() > 0, "the file system is frozen");
    drop(handle);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(frozen);
        });
        drop(queue);
    });
    assert!(pool.taken() == 0 && is_idle(&raw) && has_blocks(&path, 128));
}

/// F82 with a device that never answers: it is left in time, and the memory stays where it is, so that whatever the
/// kernel does later is harmless.
#[test]
fn f82_a_device_that_never_answers_is_left_with_its_memory() {
    let Some(mount) = or_skip(Mount::new(Fs::Ext4, SectorSize::S512, 64)) else { return };
    let path = mount.path().join("disk");
    File::create(&path).unwrap().write_all_at(&vec![0xff; REQUESTS * BLOCK], 0).unwrap();
    let frozen = Frozen::new(&mount);
    let mut child = Command::new(env!("CARGO_BIN_EXE_child"));
    let mut child = child.arg("abandon").arg(&path).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    // The process can end when the kernel answers.
    drop(frozen);
    assert!(child.wait().unwrap().success());
    let left: usize = line.trim().parse().unwrap();
    assert!(left >= BLOCK && left.is_multiple_of(BLOCK), "{left} bytes are left");
    // What the kernel wrote after all is what it was given: the memory was not used for anything else.
    let bytes = std::fs::read(&path).unwrap();
    for (number, block) in bytes.chunks(BLOCK).enumerate() {
        let whole = |byte: u8| block.iter().all(|one| *one == byte);
        assert!(whole(number as u8) || whole(0xff), "block {number}");
    }
}

/// F88: random short counts, EAGAIN and EINTR: bytes are exact.
#[test]
fn f88_bytes_are_exact_whatever_the_file_does() {
    const SIZE: usize = 64 * BLOCK;
    for seed in 0..40 {
        let mut rng = Rng::new(seed);
        let faults = Faults::new();
        let mut dice = Rng::new(!seed);
        let struck = Arc::new(AtomicUsize::new(0));
        let count = struck.clone();
        faults.add(Rule::chosen(Ops::TRANSFERS, move |seen| {
            let effect = match dice.below(4) {
                0 => Effect::Error([libc::EINTR, libc::EAGAIN][dice.index(2)]),
                1 | 2 => Effect::Short(dice.below(seen.len.max(1))),
                _ => return None,
            };
            count.fetch_add(1, Ordering::Relaxed);
            Some(effect)
        }));
        let file = file_of(SIZE / BLOCK);
        let cache = [Cache::Cached, Cache::Direct][rng.index(2)];
        let in_memory = rng.below(3) == 0;
        let raw = if in_memory {
            RawDisk::new(Storage::in_memory("memory", vec![0; SIZE], SIZE).with_faults(&faults))
        } else {
            disk(file.path(), cache, &faults)
        };
        let mut queue = queue(QueueOptions::with_requests(8).depth(4));
        let handle = queue.attach(&raw).unwrap();
        let mut model = vec![0; SIZE];
        for step in 0..60 {
            let at = rng.index(SIZE - 1);
            let len = 1 + rng.index((SIZE - at).min(50_000));
            let mem = scattered(len, 1 + rng.index(4), step as u8 ^ seed as u8);
            let range = model.get_mut(at..at + len).unwrap();
            if rng.below(2) == 0 {
                let flags = [Flags::empty(), Flags::FUA][rng.index(2)];
                range.copy_from_slice(&mem.to_vec());
                queue.block_on(handle.write(at as u64, mem, flags)).unwrap().unwrap();
            } else {
                queue.block_on(handle.read(at as u64, mem.clone())).unwrap().unwrap();
                assert!(mem.to_vec() == range, "seed {seed}, step {step}: {len} bytes at {at}");
            }
        }
        assert!(struck.load(Ordering::Relaxed) > 30, "seed {seed}: hardly anything happened");
        if !in_memory {
            assert!(std::fs::read(file.path()).unwrap() == model, "seed {seed}");
        }
    }
}

/// Memory in pieces, with a pattern.
fn scattered(len: usize, pieces: usize, seed: u8) -> IoMem {
    let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8 ^ seed).collect();
    let parts = bytes.chunks(len.div_ceil(pieces)).map(|part| IoMem::from(part.to_vec()));
    IoMem::concat(&parts.collect::<Vec<_>>())
}

/// A thread that panics in a turn with 32 operations on their way: its memory and its ranges are free when they have
/// ended, and others go on.
#[test]
fn a_queue_whose_thread_panics_ends_what_it_began() {
    let file = file_of(64);
    let faults = Faults::new();
    let raw = disk(file.path(), Cache::Direct, &faults);
    faults.add(Rule::new(Ops::WRITES, Effect::Delay(Duration::from_millis(50))).times(32));
    let pool = BufferPool::new(64 * BLOCK);
    let thread = {
        let (raw, pool) = (raw.clone(), pool.clone());
        std::thread::spawn(move || {
            let mut queue = queue(QueueOptions::with_requests(64));
            let handle = queue.attach(&raw).unwrap();
            (0..32).for_each(|number| write_block(&handle, &pool, number));
            queue.turn().unwrap();
            queue.spawn(async { panic!("on purpose") });
            queue.turn().unwrap();
        })
    };
    assert!(thread.join().is_err());
    assert!(pool.taken() == 0 && is_idle(&raw) && has_blocks(file.path(), 32));
    let mut queue = queue(QueueOptions::with_requests(64));
    let handle = queue.attach(&raw).unwrap();
    (0..64).for_each(|number| write_block(&handle, &pool, number));
    queue.drain().unwrap();
    assert!(has_blocks(file.path(), 64));
}

/// A thread that ends while its queue lives on without an owner: nothing is freed that the kernel may have.
#[test]
fn a_queue_that_nobody_drops_keeps_its_memory() {
    let file = file_of(32);
    let raw = disk(file.path(), Cache::Cached, &Faults::new());
    let pool = BufferPool::new(64 * BLOCK);
    let thread = {
        let (raw, pool) = (raw.clone(), pool.clone());
        std::thread::spawn(move || {
            let mut queue = queue(QueueOptions::with_requests(64));
            let handle = queue.attach(&raw).unwrap();
            (0..32).for_each(|number| write_block(&handle, &pool, number));
            // Pushed, and of some the kernel knows already.
            queue.turn().unwrap();
            std::mem::forget((queue, handle));
        })
    };
    thread.join().unwrap();
    let left = pool.taken();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(pool.taken(), left, "who would have freed it?");
    // Ranges of operations that nobody reaped stay taken; all others are free.
    let mut queue = queue(QueueOptions::default());
    let handle = queue.attach(&raw).unwrap();
    queue.block_on(handle.flush()).unwrap().unwrap();
}
