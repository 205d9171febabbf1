//! Disks of the smallest and the largest sizes, with the smallest and the largest clusters, on every file system:
//! written by several queues at once, compared with a model, and by the installed programs.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::thread;

use blkring_engine::sim::Rng;
use blkring_engine::{Cache, Flags, IoMem};
use blkring_qcow2::{CreateOptions, ImageOptions, Layout};
use blkring_tests::crowd::{noise, same};
use blkring_tests::fs::Fs;
use blkring_tests::images::{Opened, create};
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::report::or_skip;
use blkring_tests::tools::{missing, qemu_img, qemu_io};

const SMALLEST: u64 = 512;
const LARGEST: u64 = 2 << 20;

/// The largest disk that the format allows with each of the two.
const LIMITS: [(u64, u64); 2] = [(SMALLEST, 128 << 30), (LARGEST, 2 << 60)];

/// How contents are compared by the installed programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Judge {
    /// The whole disk, with a raw file.
    Compare,
    /// What was written: no file is that long, or looking at all of it takes too long.
    Read,
}

/// Sizes of clusters and disks.
const DISKS: [(u64, u64, Judge); 10] = [
    (SMALLEST, 0, Judge::Compare),
    (SMALLEST, 511, Judge::Compare),
    (SMALLEST, 512, Judge::Compare),
    (SMALLEST, 513, Judge::Compare),
    (SMALLEST, 128 << 30, Judge::Read),
    (LARGEST, 0, Judge::Compare),
    (LARGEST, 512, Judge::Compare),
    (LARGEST, LARGEST - 1, Judge::Compare),
    (LARGEST, (1 << 40) + 1536, Judge::Compare),
    (LARGEST, 2 << 60, Judge::Read),
];

/// Queues that write at once, each its own part of every window.
const QUEUES: u64 = 3;

/// Requests of each queue.
const REQUESTS: u64 = 60;

/// Bytes of a window, of which a disk has a few. What lies outside is never written.
const WINDOW: u64 = 96 << 10;

fn windows(size: u64, rng: &mut Rng) -> Vec<Range<u64>> {
    let len = WINDOW.min(size);
    let mut starts = vec![0, size - len];
    if size > 100 * WINDOW {
        let rest = size / 4;
        starts.extend((1..4).map(|part| part * rest + rng.below(rest - 2 * WINDOW) / 512 * 512));
    }
    starts.sort_unstable();
    starts.dedup();
    let mut windows: Vec<_> = starts.into_iter().map(|start| start..start + len).collect();
    windows.retain(|window| !window.is_empty());
    // The first and the last of a disk that is no longer than two.
    windows.dedup_by(|next, before| next.start < before.end);
    windows
}

/// What a window holds.
type Window = (u64, Vec<u8>);

/// One queue's requests in its own parts of the windows; what these hold then.
fn drive(mut own: Opened, mut parts: Vec<Window>, seed: u64) -> Vec<Window> {
    let mut rng = Rng::new(seed);
    let disk = own.disk.clone();
    for round in 0..REQUESTS {
        let which = rng.index(parts.len());
        let (start, bytes) = &mut parts[which];
        let from = rng.index(bytes.len());
        let len = 1 + rng.index((bytes.len() - from).min(20_000));
        let (at, part) = (*start + from as u64, &mut bytes[from..from + len]);
        let flags = if rng.one_in(8) { Flags::FUA } else { Flags::empty() };
        match rng.below(6) {
            0 => {
                part.fill(0);
                own.run(disk.write_zeroes(at, len as u64, flags)).unwrap();
            }
            1 => same(&own.read(at, len), part, at).unwrap(),
            2 if rng.one_in(4) => own.run(disk.flush()).unwrap(),
            _ => {
                part.iter_mut().zip(at..).for_each(|(byte, at)| *byte = noise(round + seed, at));
                own.run(disk.write(at, IoMem::from(part.to_vec()), flags)).unwrap();
            }
        }
    }
    parts
}

/// Writes the disk with several queues; its windows then.
fn crowd(opened: &Opened, windows: &[Range<u64>], seed: u64) -> Vec<Window> {
    let share = |queue: u64| -> Vec<Window> {
        let part = |window: &Range<u64>| {
            let len = window.end - window.start;
            let (from, to) = (queue * len / QUEUES, (queue + 1) * len / QUEUES);
            (window.start + from, vec![0; (to - from) as usize])
        };
        windows.iter().map(part).collect()
    };
    let image = &opened.image;
    let mut parts: Vec<Window> = thread::scope(|scope| {
        let start = |queue| {
            let own = share(queue);
            scope.spawn(move || drive(Opened::beside(image), own, seed * QUEUES + queue))
        };
        let threads: Vec<_> = (0..QUEUES).map(start).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    parts.sort();
    parts
}

fn judge(directory: &Path, path: &Path, size: u64, parts: &[Window], judge: Judge) {
    let image = path.to_str().unwrap();
    let checked = qemu_img(&["check", "-fqcow2", image]);
    checked.unwrap_or_else(|error| panic!("{error}"));
    match judge {
        Judge::Compare => {
            let raw = directory.join("expected.raw");
            let file = File::create(&raw).unwrap();
            file.set_len(size).unwrap();
            for (start, bytes) in parts {
                file.write_all_at(bytes, *start).unwrap();
            }
            let args = ["compare", "-fraw", "-Fqcow2", raw.to_str().unwrap(), image];
            qemu_img(&args).unwrap_or_else(|error| panic!("{error}"));
        }
        Judge::Read => {
            let mut args = vec!["-r".to_owned(), "-fqcow2".to_owned()];
            for (start, bytes) in parts {
                // Some sectors of each part, by their runs of one byte.
                for at in (0..bytes.len()).step_by(bytes.len() / 40 + 1) {
                    let run = bytes[at..].iter().take_while(|byte| **byte == bytes[at]).count();
                    let read = format!("read -q -P {} {} {run}", bytes[at], start + at as u64);
                    args.extend(["-c".to_owned(), read]);
                }
            }
            args.push(image.to_owned());
            let output = qemu_io(&args).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(output.stdout, "", "a pattern is another");
        }
    }
}

fn sizes(fs: Fs, sector: SectorSize, cache: Cache) {
    if missing("qemu-img") || missing("qemu-io") {
        return;
    }
    let Some(mount) = or_skip(Mount::new(fs, sector, 1024)) else { return };
    let path = mount.path().join("image.qcow2");
    for (seed, (cluster_size, size, by)) in (0..).zip(DISKS) {
        create(&path, &CreateOptions::new(size).cluster_size(cluster_size));
        let opened = Opened::new(&path, cache, ImageOptions::new().writable());
        let size = size.next_multiple_of(512);
        assert_eq!(opened.image.info().virtual_size, size);
        let windows = windows(size, &mut Rng::new(seed));
        let parts = if windows.is_empty() { Vec::new() } else { crowd(&opened, &windows, seed) };
        let beyond = opened.disk.clone();
        let mut opened = opened;
        let refused = opened.run(beyond.write(size, IoMem::from(vec![1; 512]), Flags::empty()));
        assert!(refused.is_err(), "a write beyond {size} bytes");
        drop(beyond);
        opened.close();
        println!(
            "{fs} {cache:?}, clusters of {cluster_size}, {size} bytes: {} windows",
            windows.len()
        );
        let mut again = Opened::new(&path, cache, ImageOptions::new());
        for (start, bytes) in &parts {
            same(&again.read(*start, bytes.len()), bytes, *start).unwrap();
        }
        again.close();
        judge(mount.path(), &path, size, &parts, by);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn sizes_on_xfs() {
    sizes(Fs::Xfs, SectorSize::S512, Cache::Direct);
}

#[test]
fn sizes_on_ext4_4096() {
    sizes(Fs::Ext4, SectorSize::S4096, Cache::Direct);
}

#[test]
fn sizes_on_btrfs() {
    sizes(Fs::Btrfs, SectorSize::S512, Cache::Cached);
}

/// A direct write may go through the page cache there; the bytes are right all the same.
#[test]
fn sizes_on_btrfs_4096_direct() {
    sizes(Fs::Btrfs, SectorSize::S4096, Cache::Direct);
}

#[test]
fn sizes_on_tmpfs() {
    sizes(Fs::Tmpfs, SectorSize::S512, Cache::Cached);
}

#[test]
fn a_disk_beyond_the_limit_of_the_format_is_refused_by_both() {
    let directory = tempfile::tempdir().unwrap();
    for (cluster_size, most) in LIMITS {
        for (size, possible) in
            [(most, true), (most + 1, false), (most + 512, false), (u64::MAX, false)]
        {
            let options = CreateOptions::new(size).cluster_size(cluster_size);
            let planned = Layout::plan(&options);
            assert_eq!(planned.is_ok(), possible, "{size} bytes, clusters of {cluster_size}");
            // More than that is no number for qemu-img.
            if missing("qemu-img") || size > i64::MAX as u64 {
                continue;
            }
            let path = directory.path().join("theirs.qcow2").display().to_string();
            let option = format!("cluster_size={cluster_size}");
            let theirs =
                qemu_img(&["create", "-q", "-fqcow2", "-o", &option, &path, &size.to_string()]);
            assert_eq!(theirs.is_ok(), possible, "{size} bytes, clusters of {cluster_size}");
        }
    }
}
