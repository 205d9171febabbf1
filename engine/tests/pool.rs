//! The pool of threads: the same results as a ring, threads that are named, counted, bounded and joined.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a failed step fails the test")]

use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use blkring_engine::{
    Access, BackendError, Cache, Choice, Flags, InUse, IoMem, OpenOptions, PoolOptions, Queue,
    QueueOptions, QueueSeed, RawDisk, Request, Segment, Service, Storage, ThreadPool, Turn,
};

fn pool(name: &str, threads: usize) -> ThreadPool {
    ThreadPool::new(PoolOptions::default().name(name).threads(threads))
}

fn queue(pool: &ThreadPool, requests: usize) -> Queue {
    let options = QueueOptions::with_requests(requests).backend(Choice::Pool(pool.clone()));
    QueueSeed::new(options).unwrap().start().unwrap()
}

fn raw(path: &Path, cache: Cache) -> Arc<RawDisk> {
    let options = OpenOptions::new().access(Access::ReadWrite).cache(cache);
    RawDisk::new(Storage::open(path, &options).unwrap())
}

fn file(size: u64) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(size).unwrap();
    file
}

/// The threads of this process whose names begin so, with what the kernel says of each.
fn threads(name: &str) -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let status = tasks.filter_map(|task| {
        // A thread may end meanwhile.
        std::fs::read_to_string(task.ok()?.path().join("status")).ok()
    });
    status.filter(|text| text.starts_with(&format!("Name:\t{name}"))).collect()
}

/// As many threads of this name as are to be there. A thread gives itself its name soon after it was started.
fn named(name: &str, count: usize) -> Vec<String> {
    for _ in 0..2000 {
        let found = threads(name);
        if found.len() == count {
            return found;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("{} threads are called {name}, not {count}", threads(name).len());
}

#[test]
fn the_pool_does_every_operation() {
    for cache in [Cache::Cached, Cache::Direct] {
        let file = file(1 << 20);
        let disk = raw(file.path(), cache);
        let pool = pool("every", 3);
        let mut queue = queue(&pool, 8);
        assert_eq!(queue.backend(), InUse::Pool { instead: None });
        assert_eq!(queue.ring_flags(), None);
        let handle = queue.attach(&disk).unwrap();
        let lane = queue.lane();
        queue
            .block_on(async {
                let bytes = |byte: u8, len| IoMem::from(vec![byte; len]);
                handle.write(4096, bytes(1, 65536), Flags::empty()).await.unwrap();
                handle.write(8192, bytes(2, 4096), Flags::FUA).await.unwrap();
                handle.write_zeroes(16384, 8192, Flags::empty()).await.unwrap();
                handle.discard(32768, 4096).await.unwrap();
                handle.flush().await.unwrap();
                let back = bytes(9, 65536);
                handle.read(4096, back.clone()).await.unwrap();
                let mut expected = vec![1; 65536];
                expected[4096..8192].fill(2);
                expected[12288..20480].fill(0);
                let back = back.to_vec();
                let discarded = 28672..32768;
                assert!(back[..28672] == expected[..28672] && back[32768..] == expected[32768..]);
                let zeroed = back[discarded.clone()].iter().all(|&byte| byte == 0);
                assert!(zeroed || back[discarded].iter().all(|&byte| byte == 1));
                disk.resize(&lane, 2 << 20).await.unwrap();
            })
            .unwrap();
        assert_eq!(file.path().metadata().unwrap().len(), 2 << 20);
        let counts = queue.counts();
        assert_eq!((counts.writes, counts.durable_writes, counts.syncs), (2, 1, 1));
        let done = pool.counts();
        assert_eq!((done.threads, done.waiting, done.running), (3, 0, 0));
        let sent =
            counts.reads + counts.writes + counts.syncs + counts.allocates + counts.truncates;
        assert_eq!(done.done, sent);
    }
}

/// A page that nobody may touch.
fn guarded() -> IoMem {
    // SAFETY: a new mapping, which is never unmapped; the test would fail if there was none.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_NONE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(page, libc::MAP_FAILED);
    let segment = Segment { address: page.expose_provenance(), len: 4096 };
    // SAFETY: mapped for good. It is not writable, which only the kernel finds out, and says.
    unsafe { IoMem::from_segments(&[segment], Arc::new(())) }
}

#[test]
fn errors_are_those_of_the_kernel() {
    let file = file(4096);
    let storage = Arc::new(
        Storage::open(file.path(), &OpenOptions::new().access(Access::ReadWrite)).unwrap(),
    );
    let pool = pool("errors", 1);
    let mut queue = queue(&pool, 8);
    let lane = queue.lane();
    let error = queue.block_on(storage.read(&lane, 0, &guarded())).unwrap().unwrap_err();
    assert_eq!(error.errno, libc::EFAULT, "{error}");
    let limited = queue.block_on(storage.resize(&lane, u64::MAX / 2)).unwrap().unwrap_err();
    assert!(matches!(limited.errno, libc::EFBIG | libc::EINVAL), "{limited}");
}

#[test]
fn more_segments_than_one_call_takes_are_moved_whole() {
    let file = file(1 << 20);
    let disk = raw(file.path(), Cache::Cached);
    let pool = pool("segments", 2);
    let mut queue = queue(&pool, 8);
    let handle = queue.attach(&disk).unwrap();
    let parts: Vec<IoMem> = (0..3000).map(|i| IoMem::from(vec![i as u8; 10])).collect();
    let back: Vec<IoMem> = (0..3000).map(|_| IoMem::from(vec![0; 10])).collect();
    queue
        .block_on(async {
            handle.write(512, IoMem::concat(&parts), Flags::empty()).await.unwrap();
            handle.read(512, IoMem::concat(&back)).await.unwrap();
        })
        .unwrap();
    assert!(parts.iter().zip(&back).all(|(a, b)| a.to_vec() == b.to_vec()));
    assert_eq!((queue.counts().writes, queue.counts().reads), (3, 3), "1024 segments at a time");
}

#[test]
fn threads_are_started_when_needed_named_counted_and_joined() {
    let pool = pool("counted", 4);
    assert_eq!((threads("counted").len(), pool.counts().threads), (0, 0), "nobody asked yet");
    let seed = QueueSeed::new(QueueOptions::default().backend(Choice::Pool(pool.clone()))).unwrap();
    assert_eq!(pool.counts().threads, 4, "all at set-up");
    named("counted-", 4);
    let first = seed.start().unwrap();
    let second = queue(&pool, 8);
    let service = Service::new(&Choice::Pool(pool.clone())).unwrap();
    assert_eq!(service.backend(), InUse::Pool { instead: None });
    assert_eq!(threads("counted-").len(), 4, "shared by all");
    drop((pool, first));
    assert_eq!(threads("counted-").len(), 4, "somebody is left");
    drop((service, second));
    assert_eq!(threads("counted-").len(), 0, "joined");
}

#[test]
fn no_more_is_done_at_a_time_than_there_are_threads() {
    let file = file(64 << 20);
    let disk = raw(file.path(), Cache::Direct);
    let pool = pool("bounded", 2);
    let mut queue = queue(&pool, 128);
    let handle = queue.attach(&disk).unwrap();
    for piece in 0..64u64 {
        handle.queue(Request::write(piece << 20, IoMem::from(vec![1; 1 << 20])), piece).unwrap();
    }
    queue.drain().unwrap();
    assert!(queue.completions().all(|completion| completion.code() == 0));
    let counts = pool.counts();
    assert!((1..=2).contains(&counts.most_running), "{counts:?}");
    assert_eq!(counts.done, queue.counts().writes);
}

#[test]
fn threads_of_the_pool_take_no_signals() {
    let pool = pool("masked", 1);
    let _queue = queue(&pool, 1);
    let status = named("masked-", 1).pop().unwrap();
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
    let blocked = u64::from_str_radix(blocked, 16).unwrap();
    let has = |signal: i32| blocked >> (signal - 1) & 1 == 1;
    assert!([libc::SIGALRM, libc::SIGTERM, libc::SIGUSR1, libc::SIGINT].into_iter().all(has));
    assert!(![libc::SIGSEGV, libc::SIGBUS, libc::SIGSYS].into_iter().any(has));
    let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    assert!(own.contains("SigBlk:\t0000000000000000"), "those of the caller are as before");
}

#[test]
fn a_queue_on_the_pool_sleeps_and_wakes() {
    let file = file(1 << 20);
    let disk = raw(file.path(), Cache::Cached);
    let pool = pool("sleeps", 2);
    let mut queue = queue(&pool, 8);
    let handle = queue.attach(&disk).unwrap();
    // By completions, many times.
    for round in 0..2000u64 {
        let request = Request::write(round % 8 * 4096, IoMem::from(vec![round as u8; 4096]));
        queue.block_on(handle.request(request)).unwrap().unwrap();
    }
    assert_eq!(queue.counts().writes, 2000);
    // By another thread.
    let (send, receive) = std::sync::mpsc::channel::<std::task::Waker>();
    let waker = std::thread::spawn(move || {
        for waker in receive {
            std::thread::sleep(Duration::from_micros(100));
            waker.wake();
        }
    });
    let mut rounds = 0;
    let before = queue.enters();
    queue
        .block_on(std::future::poll_fn(move |cx| {
            rounds += 1;
            if rounds > 200 {
                return std::task::Poll::Ready(());
            }
            send.send(cx.waker().clone()).unwrap();
            std::task::Poll::Pending
        }))
        .unwrap();
    waker.join().unwrap();
    assert!(queue.enters() - before <= 2 * 200 + 10, "it sleeps, and does not spin");
}

#[test]
fn a_dropped_queue_waits_for_its_threads() {
    let file = file(64 << 20);
    for _ in 0..20 {
        let disk = raw(file.path(), Cache::Direct);
        let pool = pool("dropped", 2);
        let mut queue = queue(&pool, 64);
        let handle = queue.attach(&disk).unwrap();
        let mut receipts: Vec<_> = (0..16u64)
            .map(|piece| {
                let bytes = IoMem::from(vec![3; 1 << 20]);
                handle.submit(Request::write(piece << 20, bytes)).unwrap()
            })
            .collect();
        queue.turn().unwrap();
        drop(receipts.split_off(8));
        drop(queue);
        let counts = pool.counts();
        assert_eq!((counts.waiting, counts.running), (0, 0));
        assert_eq!(disk.storage().statistics().running, 0);
    }
}

#[test]
fn one_pool_serves_queues_of_many_threads() {
    let file = file(4 << 20);
    let disk = raw(file.path(), Cache::Direct);
    let pool = pool("many", 3);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let (disk, pool) = (&disk, &pool);
            scope.spawn(move || {
                let mut queue = queue(pool, 32);
                let handle = queue.attach(disk).unwrap();
                // Neighbouring 100-byte pieces of different threads share blocks.
                for i in 0..200u64 {
                    let at = (i * 4 + u64::from(thread)) * 100;
                    let write = Request::write(at, IoMem::from(vec![thread + 1; 100]));
                    if let Err(full) = handle.queue(write, i) {
                        queue.drain().unwrap();
                        handle.queue(full.0, i).unwrap();
                    }
                }
                queue.drain().unwrap();
                assert_eq!(queue.completions().filter(|one| one.code() == 0).count(), 200);
            });
        }
    });
    let bytes = std::fs::read(file.path()).unwrap();
    for (i, piece) in bytes[..80_000].chunks(100).enumerate() {
        assert_eq!(piece, vec![(i % 4) as u8 + 1; 100], "piece {i}");
    }
}

#[test]
fn shared_work_on_a_pool_is_done_by_whoever_turns() {
    let file = file(1 << 20);
    std::fs::write(file.path(), vec![7; 1 << 20]).unwrap();
    let storage = Arc::new(
        Storage::open(file.path(), &OpenOptions::new().access(Access::ReadWrite)).unwrap(),
    );
    let pool = pool("shared", 2);
    let service = Service::new(&Choice::Pool(pool.clone())).unwrap();
    let jobs: Vec<_> = (0..64u64)
        .map(|piece| {
            let (storage, service) = (storage.clone(), service.clone());
            service.clone().start(async move {
                let mem = IoMem::from(vec![0; 4096]);
                storage.read(service.lane(), piece * 4096, &mem).await?;
                Ok::<_, blkring_engine::IoError>(mem.to_vec() == [7; 4096])
            })
        })
        .collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut queue = queue(&pool, 8);
            queue.watch_service(&service).unwrap();
            queue.turn().unwrap();
        });
    });
    let mut queue = queue(&pool, 8);
    queue.watch_service(&service).unwrap();
    for job in jobs {
        assert!(queue.block_on(job.join()).unwrap().unwrap());
    }
}

#[test]
fn the_event_descriptor_of_a_queue_on_a_pool_tells_of_completions() {
    let file = file(65536);
    let disk = raw(file.path(), Cache::Cached);
    let pool = pool("event", 1);
    let mut queue = queue(&pool, 4);
    let handle = queue.attach(&disk).unwrap();
    let fd = queue.event_fd().unwrap().as_raw_fd();
    for round in 0..500u64 {
        handle.queue(Request::write(0, IoMem::from(vec![1; 4096])), round).unwrap();
        let mut answered = 0;
        while answered == 0 {
            while queue.turn().unwrap() == Turn::Busy {}
            answered += queue.completions().count();
            if answered == 0 {
                let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                // SAFETY: one pollfd on the stack.
                let told = unsafe { libc::poll(&raw mut poll, 1, 10_000) };
                assert_eq!(told, 1, "the completion of round {round} was not told");
            }
        }
    }
}

#[test]
fn where_there_is_a_ring_the_pool_of_auto_has_no_threads() {
    let pool = pool("auto", 2);
    let choice = Choice::Auto(pool.clone());
    let queue = QueueSeed::new(QueueOptions::default().backend(choice)).unwrap().start().unwrap();
    match queue.backend() {
        InUse::Ring { flags } => {
            assert_eq!(queue.ring_flags(), Some(flags));
            assert_eq!((pool.counts().threads, threads("auto-").len()), (0, 0));
        }
        InUse::Pool { instead } => {
            assert!(instead.is_some());
            named("auto-", 2);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_depth_that_no_ring_has_is_a_mistake_and_not_a_reason_to_fall_back() {
    let pool = pool("deep", 1);
    let depth = blkring_engine::MAX_DEPTH + 1;
    let options = QueueOptions::default().depth(depth).backend(Choice::Auto(pool.clone()));
    let Err(BackendError::Ring(error)) = QueueSeed::new(options) else { panic!() };
    assert_eq!(error.obstacle, blkring_engine::Obstacle::Depth(depth));
    assert_eq!(pool.counts().threads, 0);
}
