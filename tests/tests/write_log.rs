//! The write log: what is in it, and power cuts by replaying it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::{self, File, OpenOptions as FileOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blkring_engine::faults::{Effect, Faults, Ops, Rule};
use blkring_engine::sim::Rng;
use blkring_engine::{
    Access, Cache, Disk, Flags, IoMem, OpenOptions, Queue, QueueOptions, QueueSeed, RawDisk,
    Request, Storage, WriteLog,
};
use blkring_qcow2::{AllocPolicy, CreateOptions, FileOpener, Image, ImageOptions};
use blkring_tests::images::{self, Opened};
use blkring_tests::tools::{self, ToolError};
use blkring_tests::write_log::{self, DISCARD, Entry, FLUSH, FUA, MARK};
use tempfile::TempDir;

fn queue() -> Queue {
    QueueSeed::new(QueueOptions::with_requests(32)).unwrap().start().unwrap()
}

fn log_at(path: &Path, sector: u32) -> Arc<WriteLog> {
    let file = FileOptions::new().read(true).write(true).create(true).truncate(true).open(path);
    WriteLog::create(file.unwrap(), sector).unwrap()
}

fn run(queue: &mut Queue, disk: &Disk, request: Request) {
    queue.block_on(disk.request(request)).unwrap().unwrap();
}

fn entry(offset: u64, len: u64, flags: u64, byte: u8) -> Entry {
    let bytes = if flags & DISCARD != 0 { 0 } else { usize::try_from(len).unwrap() };
    Entry { offset, len, flags, data: vec![byte; bytes] }
}

fn in_places(directory: &Path) -> Vec<(&'static str, Storage)> {
    let path = directory.join("disk");
    File::create(&path).unwrap().set_len(1 << 20).unwrap();
    let options = OpenOptions::new().access(Access::ReadWrite);
    let memory = Storage::in_memory("memory", vec![0; 1 << 20], 1 << 21);
    vec![("file", Storage::open(&path, &options).unwrap()), ("memory", memory)]
}

#[test]
fn every_change_is_an_entry() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("log");
    for (name, storage) in in_places(directory.path()) {
        let log = log_at(&path, 512);
        let storage = storage.with_write_log(&log);
        assert_eq!(storage.alignment(), 512);
        let disk = RawDisk::new(storage);
        let mut queue = queue();
        let handle = queue.attach(&disk).unwrap();
        let mut run = |request| run(&mut queue, &handle, request);
        run(Request::write(4096, IoMem::from(vec![1; 1024])));
        run(Request::write(8192, IoMem::from(vec![2; 512])).with(Flags::FUA));
        log.mark("half way");
        run(Request::flush());
        run(Request::flush());
        run(Request::write_zeroes(0, 200_704));
        run(Request::discard(65536, 4096));
        // A part of a sector: the whole of it is written.
        run(Request::write(515, IoMem::from(vec![3; 10])));
        let lane = queue.lane();
        queue.block_on(disk.resize(&lane, 512 << 10)).unwrap().unwrap();
        queue.block_on(disk.resize(&lane, 1 << 20)).unwrap().unwrap();
        log.finish().unwrap();
        let mut sector = vec![0; 512];
        sector[3..13].fill(3);
        let mark = Entry { offset: 0, len: 0, flags: MARK, data: b"half way".to_vec() };
        let expected = [
            entry(4096, 1024, 0, 1),
            entry(8192, 512, FUA, 2),
            mark,
            entry(0, 0, FLUSH, 0),
            entry(0, 200_704, 0, 0),
            entry(65536, 4096, DISCARD, 0),
            Entry { offset: 512, len: 512, flags: 0, data: sector },
            entry(512 << 10, 512 << 10, DISCARD, 0),
        ];
        let found = write_log::read(&path);
        assert_eq!(found.sector, 512);
        assert_eq!(found.entries, expected, "{name}");
        assert_eq!(log.entries(), 8);
    }
}

#[test]
fn short_writes_and_failures_are_logged_as_they_ended() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("log");
    let log = log_at(&path, 4096);
    let faults = Faults::new();
    faults.add(Rule::new(Ops::WRITE, Effect::Short(4096)));
    faults.add(Rule::new(Ops::WRITE, Effect::Error(libc::EINTR)));
    let storage = Storage::in_memory("memory", vec![0; 1 << 20], 1 << 20);
    let disk = RawDisk::new(storage.with_write_log(&log).with_faults(&faults));
    let mut queue = queue();
    let handle = queue.attach(&disk).unwrap();
    run(&mut queue, &handle, Request::write(0, IoMem::from(vec![1; 12288])));
    faults.add(Rule::new(Ops::FLUSH, Effect::Error(libc::EINTR)));
    run(&mut queue, &handle, Request::flush());
    faults.add(Rule::new(Ops::WRITE, Effect::Error(libc::EIO)));
    let failed = queue.block_on(handle.write(0, IoMem::from(vec![2; 4096]), Flags::empty()));
    assert_eq!(failed.unwrap().unwrap_err().errno, libc::EIO);
    drop((queue, handle, disk, faults));
    // The last one to use the log finishes it.
    drop(log);
    let expected = [entry(0, 4096, 0, 1), entry(4096, 8192, 0, 1), entry(0, 0, FLUSH, 0)];
    assert_eq!(write_log::read(&path).entries, expected);
    // Another one goes on behind it.
    let file = FileOptions::new().read(true).write(true).open(&path).unwrap();
    let log = WriteLog::append(file).unwrap();
    assert_eq!((log.sector(), log.entries()), (4096, 3));
    log.mark("again");
    drop(log);
    assert_eq!(write_log::read(&path).entries.last().and_then(Entry::mark).unwrap(), "again");
    let nothing = File::open(directory.path().join("log")).unwrap();
    assert!(WriteLog::create(nothing.try_clone().unwrap(), 1000).is_err(), "no size of a sector");
    fs::write(&path, vec![7; 8192]).unwrap();
    assert!(WriteLog::append(nothing).is_err(), "no log");
}

const CLUSTER: u64 = 4096;
const CLUSTERS: u64 = 48;

/// What the clusters of the disk may read as: what each had at the last mark, and what was written to it since.
#[derive(Clone)]
struct Legal(Vec<Vec<u8>>);

/// A real image with its log: the file before, the log, and for each mark what was legal from there on.
struct Session {
    before: PathBuf,
    log: PathBuf,
    legal: Vec<Legal>,
}

/// Writes, zero-writes, discards and flushes of several requests at once; a mark behind each flush.
fn session(directory: &Path, policy: AllocPolicy, cache: Cache, seed: u64) -> Session {
    let (path, before, log_path) =
        (directory.join("image"), directory.join("before"), directory.join("log"));
    let options = CreateOptions::new(CLUSTERS * CLUSTER).cluster_size(CLUSTER);
    images::create(&path, &options);
    fs::copy(&path, &before).unwrap();
    let log = log_at(&log_path, 512);
    let options = OpenOptions::new().access(Access::ReadWrite).cache(cache).write_log(&log);
    let storage = Storage::open(&path, &options).unwrap();
    let mut queue = queue();
    let lane = queue.lane();
    let options = ImageOptions::new().writable().policy(policy).reserve_bytes(6 * CLUSTER);
    let opener = FileOpener::new(OpenOptions::new());
    let opening = Image::open(&lane, storage, &opener, options);
    let image = queue.block_on(opening).unwrap().unwrap();
    let disk = queue.attach(&image).unwrap();
    let mut rng = Rng::new(seed);
    let mut now = vec![vec![0]; CLUSTERS as usize];
    let mut legal = vec![Legal(now.clone())];
    for round in 0..40u8 {
        // One of each cluster in a round: which of two would be the last is not known.
        let start = rng.below(CLUSTERS);
        for cluster in (0..6).map(|step| (start + step * 7) % CLUSTERS) {
            let (request, byte) = match rng.below(6) {
                0 => (Request::discard(cluster * CLUSTER, CLUSTER), 0),
                1 => (Request::write_zeroes(cluster * CLUSTER, CLUSTER), 0),
                _ => {
                    let mem = IoMem::from(vec![round + 1; CLUSTER as usize]);
                    (Request::write(cluster * CLUSTER, mem), round + 1)
                }
            };
            now[cluster as usize].push(byte);
            drop(disk.submit(request).unwrap());
        }
        // Anything of this round may be seen at any prefix since the last mark.
        *legal.last_mut().unwrap() = Legal(now.clone());
        queue.drain().unwrap();
        if rng.one_in(3) {
            queue.block_on(disk.flush()).unwrap().unwrap();
            log.mark("flushed");
            now.iter_mut().for_each(|bytes| drop(bytes.drain(..bytes.len() - 1)));
            legal.push(Legal(now.clone()));
        }
    }
    queue.block_on(image.close()).unwrap().unwrap();
    drop((queue, disk, image));
    log.finish().unwrap();
    Session { before, log: log_path, legal }
}

fn judge(path: &Path, legal: &Legal, what: &str) {
    match tools::qemu_img(&[
        "check".as_ref(),
        "-q".as_ref(),
        "-f".as_ref(),
        "qcow2".as_ref(),
        path.as_os_str(),
    ]) {
        // Clusters may leak.
        Ok(_) | Err(ToolError::Failed { code: Some(3), .. }) => (),
        Err(error) => panic!("{what}: {error}"),
    }
    let mut opened = Opened::new(path, Cache::Cached, ImageOptions::new());
    let bytes = opened.read(0, (CLUSTERS * CLUSTER) as usize);
    for (number, (cluster, legal)) in bytes.chunks(CLUSTER as usize).zip(&legal.0).enumerate() {
        for sector in cluster.chunks(512) {
            let byte = sector[0];
            let whole = sector.iter().all(|one| *one == byte);
            assert!(
                whole && legal.contains(&byte),
                "{what}: cluster {number} has {byte}, legal is {legal:?}"
            );
        }
    }
}

/// How many entries apart the states are that are judged, unless this variable says so: 1 for every prefix.
const EVERY_ENV: &str = "BLKRING_LOG_EVERY";

#[test]
fn an_image_is_whole_at_every_prefix_of_its_log() {
    if tools::missing("qemu-img") {
        return;
    }
    let every = std::env::var(EVERY_ENV).map_or(12, |every| every.parse().expect("a number"));
    let mut judged = 0;
    for (seed, policy, cache) in
        [(1, AllocPolicy::Ahead, Cache::Cached), (2, AllocPolicy::PerAllocation, Cache::Cached)]
    {
        let directory = TempDir::new().unwrap();
        let session = session(directory.path(), policy, cache, seed);
        let log = write_log::read(&session.log);
        let replayed = directory.path().join("replayed");
        let file = write_log::copy_of(&session.before, &replayed);
        let mut rng = Rng::new(seed);
        let mut marks = 0;
        let mut since_flush: Vec<&Entry> = Vec::new();
        let durable = write_log::copy_of(&session.before, &directory.path().join("durable"));
        for (number, entry) in log.entries.iter().enumerate() {
            write_log::apply(&file, entry);
            marks += usize::from(entry.flags & MARK != 0);
            if entry.is_change() {
                since_flush.push(entry);
            }
            if entry.flags & FLUSH != 0 {
                since_flush.drain(..).for_each(|entry| write_log::apply(&durable, entry));
            }
            if !number.is_multiple_of(every) {
                continue;
            }
            let legal = &session.legal[marks];
            judge(&replayed, legal, &format!("seed {seed}, {number} entries"));
            // Of what was not flushed any part may be missing.
            let cut = directory.path().join("cut");
            let lossy = write_log::copy_of(&directory.path().join("durable"), &cut);
            for entry in &since_flush {
                if entry.flags & FUA != 0 || rng.below(2) == 0 {
                    write_log::apply(&lossy, entry);
                }
            }
            judge(&cut, legal, &format!("seed {seed}, some of {number} entries"));
            judged += 2;
        }
        assert!(marks > 5 && log.entries.len() > 200, "{} entries", log.entries.len());
    }
    println!("{judged} states");
    assert!(judged > 50);
}

/// The replay finds what is wrong: a log that lacks data loses what was promised.
#[test]
fn a_log_without_its_data_is_noticed() {
    if tools::missing("qemu-img") {
        return;
    }
    let directory = TempDir::new().unwrap();
    let session = session(directory.path(), AllocPolicy::Ahead, Cache::Cached, 3);
    let log = write_log::read(&session.log);
    let replayed = directory.path().join("replayed");
    let file = write_log::copy_of(&session.before, &replayed);
    // Data is lost, metadata is not.
    let data = |entry: &&Entry| entry.data.iter().all(|byte| *byte == entry.data[0] && *byte != 0);
    let kept = log
        .entries
        .iter()
        .filter(|entry| !(entry.is_change() && !entry.data.is_empty() && data(entry)));
    kept.for_each(|entry| write_log::apply(&file, entry));
    let last = session.legal.last().unwrap().clone();
    let judged = std::panic::catch_unwind(|| judge(&replayed, &last, "without data"));
    assert!(judged.is_err(), "lost data is not noticed");
}
