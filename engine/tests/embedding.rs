//! What an embedder asks of a queue beyond requests: batches, busy polling, numbers.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a failed step fails the test")]

mod backend;

use std::future::poll_fn;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use blkring_engine::{
    Access, Disk, Flags, IoMem, Latencies, OpenOptions, Polling, Queue, QueueOptions,
    QueueStatistics, RawDisk, Request, RequestCounts, RequestKind, Storage, Turn,
};

fn queue(options: QueueOptions) -> Queue {
    backend::started(options)
}

fn file_disk(path: &Path) -> Arc<RawDisk> {
    let options = OpenOptions::new().access(Access::ReadWrite);
    RawDisk::new(Storage::open(path, &options).unwrap())
}

fn rest(queue: &mut Queue) {
    while queue.turn().unwrap() == Turn::Busy {}
}

#[test]
fn a_batch_is_one_system_call() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let raw = file_disk(file.path());
    let other = RawDisk::new(Storage::in_memory("memory", vec![0; 4096], 4096));
    let mut queue = queue(QueueOptions::with_requests(64));
    let (disk, memory) = (queue.attach(&raw).unwrap(), queue.attach(&other).unwrap());
    rest(&mut queue);
    let before = queue.enters();
    for number in 0..32 {
        disk.queue(Request::write(number * 4096, IoMem::from(vec![7; 4096])), number).unwrap();
    }
    memory.queue(Request::flush(), 32).unwrap();
    assert_eq!(queue.enters(), before, "nothing is asked of the kernel yet");
    queue.turn().unwrap();
    assert_eq!(queue.enters(), before + 1);
    assert_eq!(queue.counts().writes, 32);
    queue.drain().unwrap();
    assert_eq!(queue.completions().filter(|one| one.result.is_ok()).count(), 33);
}

/// Requests of a queue, one after the other, each of which is waited for.
fn one_by_one(polling: Polling) -> Queue {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let raw = file_disk(file.path());
    let mut queue = queue(QueueOptions::with_requests(8).polling(polling));
    let disk = queue.attach(&raw).unwrap();
    for number in 0..50 {
        let write = disk.write(number * 4096, IoMem::from(vec![1; 4096]), Flags::FUA);
        queue.block_on(write).unwrap().unwrap();
    }
    queue
}

#[test]
fn a_queue_sleeps_as_it_is_told() {
    assert!(one_by_one(Polling::Off).sleeps() > 0);
    assert_eq!(one_by_one(Polling::Always).sleeps(), 0);
    assert_eq!(one_by_one(Polling::For(Duration::from_secs(60))).sleeps(), 0);
}

/// Has a queue wait for another thread, which comes 100 ms later.
fn woken(polling: Polling) -> Queue {
    let mut queue = queue(QueueOptions::with_requests(8).polling(polling));
    let (called, mut started) = (Arc::new(AtomicBool::new(false)), false);
    let woken = poll_fn(|cx| {
        if called.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        if !std::mem::replace(&mut started, true) {
            let (waker, called) = (cx.waker().clone(), called.clone());
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(100));
                called.store(true, Ordering::SeqCst);
                waker.wake();
            });
        }
        Poll::Pending
    });
    queue.block_on(woken).unwrap();
    queue
}

#[test]
fn a_queue_that_looks_for_work_is_woken_by_other_threads() {
    assert_eq!(woken(Polling::Always).sleeps(), 0);
    assert_eq!(woken(Polling::For(Duration::from_secs(60))).sleeps(), 0);
    assert!(woken(Polling::For(Duration::from_millis(1))).sleeps() > 0, "its time was over");
}

/// Two of everything, one of which fails.
fn two_of_each(disk: &Disk, queue: &mut Queue) {
    for offset in [512, u64::MAX] {
        for request in [
            Request::read(offset, IoMem::from(vec![0; 512])),
            Request::write(offset, IoMem::from(vec![0; 1024])),
            Request::write_zeroes(offset, 2048),
            Request::discard(offset, 512),
            Request::flush(),
        ] {
            disk.queue(request, 0).unwrap();
        }
    }
    queue.drain().unwrap();
}

#[test]
fn requests_are_counted_by_kind() {
    let raw = RawDisk::new(Storage::in_memory("memory", vec![0; 8192], 8192));
    let mut all = QueueStatistics::default();
    for latencies in [Latencies::Off, Latencies::Counted] {
        let mut queue = queue(QueueOptions::with_requests(16).latencies(latencies));
        let disk = queue.attach(&raw).unwrap();
        two_of_each(&disk, &mut queue);
        let counted = queue.statistics();
        for (kind, bytes) in RequestKind::ALL.iter().copied().zip([512, 1024, 2048, 512, 0]) {
            let failed = u64::from(kind != RequestKind::Flush);
            let RequestCounts { answered, failed: errors, bytes: moved, .. } = counted.counts(kind);
            assert_eq!((answered, errors, moved), (2, failed, bytes), "{kind:?}");
            let times = counted.latencies(kind).map(|histogram| histogram.count());
            assert_eq!(times, (latencies == Latencies::Counted).then_some(2), "{kind:?}");
        }
        all.merge(&counted);
    }
    assert_eq!(all.counts(RequestKind::Write).answered, 4);
    assert_eq!(all.latencies(RequestKind::Write).map(|times| times.count()), Some(2));
}

#[test]
fn the_time_of_a_request_is_all_that_passes_until_its_answer() {
    let raw = RawDisk::new(Storage::in_memory("memory", vec![0; 8192], 8192));
    let mut queue = queue(QueueOptions::with_requests(16).latencies(Latencies::Counted));
    let disk = queue.attach(&raw).unwrap();
    let held = queue.block_on(raw.quiesce(&queue.lane())).unwrap().unwrap();
    disk.queue(Request::write(0, IoMem::from(vec![1; 512])), 0).unwrap();
    rest(&mut queue);
    std::thread::sleep(Duration::from_millis(30));
    held.resume();
    queue.drain().unwrap();
    let counted = queue.statistics();
    let median = counted.latencies(RequestKind::Write).unwrap().quantile(0.5);
    assert!(median >= Duration::from_millis(30), "{median:?}");
}
