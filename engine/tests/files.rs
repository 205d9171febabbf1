//! Files of the kernel: where they end, and where they have holes.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a failed step fails the test")]

mod backend;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use blkring_engine::{
    Access, Cache, ExtentKind, Flags, Flushing, IoMem, LockError, LockMode, OpenError, OpenOptions,
    QueueOptions, RawDisk, Request, Service, Storage,
};

fn open(path: &Path, cache: Cache) -> Arc<Storage> {
    let options = OpenOptions::new().access(Access::ReadWrite).cache(cache);
    Arc::new(Storage::open(path, &options).unwrap())
}

#[test]
fn a_file_that_ends_within_a_block_reads_as_zeros_beyond() {
    for cache in [Cache::Cached, Cache::Direct] {
        for size in [1usize, 1000, 4096, 5000] {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), vec![7; size]).unwrap();
            let storage = open(file.path(), cache);
            let mut queue = backend::started(QueueOptions::default());
            let lane = queue.lane();
            let mem = IoMem::from(vec![0xff; 8192]);
            queue.block_on(storage.read(&lane, 0, &mem)).unwrap().unwrap();
            let mut expected = vec![7; size];
            expected.resize(8192, 0);
            assert!(mem.to_vec() == expected, "{size} bytes, {cache:?}");
            // The last block is read, changed and written; the file may only grow to its end.
            let tail = IoMem::from(vec![9; 3]);
            queue.block_on(storage.write(&lane, 5001, &tail, Flags::empty())).unwrap().unwrap();
            expected[5001..5004].fill(9);
            let written = std::fs::read(file.path()).unwrap();
            assert_eq!(written.len() as u64, storage.size());
            assert!((5004..=8192).contains(&written.len()));
            assert!(written == expected[..written.len()], "{size} bytes, {cache:?}");
        }
    }
}

#[test]
fn flushes_are_left_out_where_they_are_to_be_ignored() {
    for (flushing, syncs) in [(Flushing::Done, 1), (Flushing::Ignored, 0)] {
        let file = tempfile::NamedTempFile::new().unwrap();
        let options = OpenOptions::new().access(Access::ReadWrite).flushing(flushing);
        let storage = Storage::open(file.path(), &options).unwrap();
        let mut queue = backend::started(QueueOptions::default());
        let lane = queue.lane();
        let mem = IoMem::from(vec![5; 4096]);
        queue.block_on(storage.write(&lane, 0, &mem, Flags::FUA)).unwrap().unwrap();
        queue.block_on(storage.flush(&lane)).unwrap().unwrap();
        assert_eq!(queue.counts().syncs, syncs, "{flushing:?}");
        assert_eq!(std::fs::read(file.path()).unwrap(), [5; 4096]);
    }
}

#[test]
fn holes_of_a_sparse_file_are_told() {
    const MIB: u64 = 1 << 20;
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(4 * MIB).unwrap();
    file.as_file().write_all_at(&vec![1; MIB as usize], MIB).unwrap();
    let storage = open(file.path(), Cache::Cached);
    let mut found = Vec::new();
    let mut at = 0;
    while at < 5 * MIB {
        let extent = storage.extent(at, 5 * MIB).unwrap();
        assert_eq!(extent.offset, at);
        assert!(extent.len > 0);
        match found.last_mut() {
            Some((kind, end)) if *kind == extent.kind => *end = at + extent.len,
            _ => found.push((extent.kind, at + extent.len)),
        }
        at += extent.len;
    }
    let holes =
        vec![(ExtentKind::Zero, MIB), (ExtentKind::Data, 2 * MIB), (ExtentKind::Zero, 5 * MIB)];
    // A file system without holes tells of none.
    let solid = vec![(ExtentKind::Data, 4 * MIB), (ExtentKind::Zero, 5 * MIB)];
    assert!(found == holes || found == solid, "{found:?}");
}

/// A thread that ends while the kernel has its submissions: what would have been tried again in its name fails.
#[test]
fn shared_work_outlives_the_thread_that_submitted_it() {
    const PIECES: u64 = 64;
    const PIECE: u64 = 128 << 10;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![7; (PIECES * PIECE) as usize]).unwrap();
    file.as_file().sync_all().unwrap();
    for _ in 0..10 {
        // Out of the page cache, so that reads have to wait for the disk.
        let mut dd = std::process::Command::new("dd");
        dd.arg(format!("if={}", file.path().display())).args(["iflag=nocache", "count=0"]);
        assert!(dd.stderr(std::process::Stdio::null()).status().unwrap().success());
        let storage = open(file.path(), Cache::Cached);
        let service = Service::new(&backend::choice()).unwrap();
        let jobs: Vec<_> = (0..PIECES)
            .map(|piece| {
                let (storage, service) = (storage.clone(), service.clone());
                service.clone().start(async move {
                    let mem = IoMem::from(vec![0; 4096]);
                    storage.read(service.lane(), piece * PIECE, &mem).await?;
                    Ok::<_, blkring_engine::IoError>(mem.to_vec() == [7; 4096])
                })
            })
            .collect();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut queue = backend::started(QueueOptions::default());
                queue.watch_service(&service).unwrap();
                queue.turn().unwrap();
            });
        });
        let mut queue = backend::started(QueueOptions::default());
        queue.watch_service(&service).unwrap();
        for job in jobs {
            assert!(queue.block_on(job.join()).unwrap().unwrap());
        }
    }
}

#[test]
fn a_pipe_is_refused_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(Storage::open(&pipe, &OpenOptions::new()).is_err()));
    let refused = receive.recv_timeout(std::time::Duration::from_secs(10));
    assert!(refused.expect("it does not wait for a writer"));
    // Files are not opened in the mode that pipes are: ops on them may wait.
    let file = tempfile::NamedTempFile::new().unwrap();
    let storage = open(file.path(), Cache::Cached);
    let flags = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| {
        let fd = fd.unwrap();
        let same = std::fs::read_link(fd.path()).is_ok_and(|target| target == file.path());
        let info = std::path::Path::new("/proc/self/fdinfo").join(fd.file_name());
        same.then(|| std::fs::read_to_string(info).unwrap())
    });
    let flags: Vec<u32> = flags
        .map(|info| {
            let line = info.lines().find(|line| line.starts_with("flags:")).unwrap();
            u32::from_str_radix(line["flags:".len()..].trim(), 8).unwrap()
        })
        .collect();
    assert!(flags.len() >= 2, "the storage is open: {flags:?}");
    assert!(flags.iter().all(|flags| flags & libc::O_NONBLOCK as u32 == 0), "{flags:?}");
    drop(storage);
}

fn open_exclusively(path: &Path) -> Result<Storage, OpenError> {
    Storage::open(path, &OpenOptions::new().access(Access::ReadWrite).lock(LockMode::On))
}

#[test]
fn the_locks_of_a_storage_last_as_long_as_it_does() {
    let file = tempfile::NamedTempFile::new().unwrap();
    for _ in 0..3 {
        let storage = open_exclusively(file.path()).unwrap();
        assert!(storage.is_locked());
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let error = Storage::open(file.path(), &OpenOptions::new().access(access)).err();
            let Some(OpenError::Lock(LockError::Conflict { holder, file, .. })) = error else {
                panic!("{access:?}: {error:?}");
            };
            assert_eq!(holder.unwrap().pid, std::process::id());
            assert_eq!(file, storage.identity());
        }
        // Who shares by force may look, and who takes no locks does as they like.
        let sharing = Storage::open(file.path(), &OpenOptions::new().force_share()).unwrap();
        let without = OpenOptions::new().access(Access::ReadWrite).lock(LockMode::Off);
        assert!(!Storage::open(file.path(), &without).unwrap().is_locked());
        drop(storage);
        // Two readers go together, and keep writers off until both are gone.
        let readers = [(); 2].map(|()| Storage::open(file.path(), &OpenOptions::new()).unwrap());
        for reader in readers {
            assert!(matches!(open_exclusively(file.path()), Err(OpenError::Lock(_))));
            drop(reader);
        }
        drop(sharing);
    }
    assert!(!Storage::in_memory("memory", vec![0; 512], 512).is_locked());
}

#[test]
fn force_share_is_for_reading() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = OpenOptions::new().access(Access::ReadWrite).force_share();
    let error = Storage::open(file.path(), &options).err().unwrap();
    assert!(matches!(error, OpenError::SharedWriter { .. }), "{error}");
}

#[test]
fn the_locks_outlive_the_storage_while_a_request_is_in_flight() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let mut queue = backend::started(QueueOptions::default());
    let lane = queue.lane();
    let storage = open_exclusively(file.path()).unwrap();
    let bytes = IoMem::from(vec![7; 1 << 20]);
    let mut write = Box::pin(storage.write(&lane, 0, &bytes, Flags::empty()));
    // The first look at the future hands its operation to the ring; nobody reaps before the next turn.
    queue
        .block_on(std::future::poll_fn(|cx| {
            assert!(write.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        }))
        .unwrap();
    drop(write);
    drop(storage);
    assert!(matches!(open_exclusively(file.path()), Err(OpenError::Lock(_))));
    while open_exclusively(file.path()).is_err() {
        queue.wait().unwrap();
    }
    assert_eq!(lane.counts().writes, 1);
    assert!(std::fs::read(file.path()).unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn the_locks_of_a_dropped_disk_end_with_its_last_request() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    let mut queue = backend::started(QueueOptions::default());
    let raw = RawDisk::new(open_exclusively(file.path()).unwrap());
    let disk = queue.attach(&raw).unwrap();
    disk.queue(Request::write(0, IoMem::from(vec![7; 4096])), 1).unwrap();
    drop((disk, raw));
    assert!(matches!(open_exclusively(file.path()), Err(OpenError::Lock(_))));
    queue.drain().unwrap();
    assert!(queue.completions().all(|completion| completion.result.is_ok()));
    let again = RawDisk::new(open_exclusively(file.path()).unwrap());
    // The number of the port is used again.
    let disk = queue.attach(&again).unwrap();
    let bytes = IoMem::from(vec![0; 4096]);
    queue.block_on(disk.read(0, bytes.clone())).unwrap().unwrap();
    assert_eq!(bytes.to_vec(), [7; 4096]);
}
