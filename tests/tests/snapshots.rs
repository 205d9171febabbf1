//! Images with snapshots that other programs took, written by several queues: the guest's disk is as the model says,
//! each snapshot as it was, and the image clean.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::process::Command;

use blkring_engine::sim::Rng;
use blkring_engine::{Cache, Flags, IoMem};
use blkring_qcow2::{AllocPolicy, CreateOptions, ImageOptions};
use blkring_tests::crowd::{Crowd, same};
use blkring_tests::images::{Opened, create};
use blkring_tests::tools::{missing, run_ok};

fn img(args: &[&str], path: &Path) {
    run_ok(Command::new("qemu-img").args(args).arg(path));
}

/// What a snapshot holds, by a program that knows nothing of this one.
fn snapshot_contents(path: &Path, name: &str) -> Vec<u8> {
    let raw = path.with_extension("raw");
    run_ok(
        Command::new("qemu-img")
            .args(["convert", "-f", "qcow2", "-O", "raw", "-l", name])
            .args([path, &raw]),
    );
    std::fs::read(raw).unwrap()
}

/// The same by going back to it in a copy of the image.
fn applied_contents(path: &Path, name: &str) -> Vec<u8> {
    let copy = path.with_extension("copy");
    std::fs::copy(path, &copy).unwrap();
    img(&["snapshot", "-a", name], &copy);
    img(&["check", "-q", "-f", "qcow2"], &copy);
    let mut opened = Opened::new(&copy, Cache::Cached, ImageOptions::new());
    let size = opened.image.info().virtual_size as usize;
    opened.read(0, size)
}

/// Random writes to an image that holds `contents`.
fn scatter(path: &Path, contents: &mut [u8], rng: &mut Rng) {
    let mut opened = Opened::writable(path, Cache::Cached);
    for _ in 0..40 {
        let at = rng.below(contents.len() as u64 - 1) as usize;
        let len = (1 + rng.below(100_000) as usize).min(contents.len() - at);
        let byte = 1 + rng.below(250) as u8;
        contents[at..at + len].fill(byte);
        let disk = opened.disk.clone();
        opened.run(disk.write(at as u64, IoMem::from(vec![byte; len]), Flags::empty())).unwrap();
    }
    opened.close();
}

fn written_over_snapshots((cluster_size, size): (u64, u64), policy: AllocPolicy, seed: u64) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image.qcow2");
    create(&path, &CreateOptions::new(size).cluster_size(cluster_size));
    let mut rng = Rng::new(seed);
    let mut contents = vec![0; size as usize];
    let mut snapshots = Vec::new();
    for round in 0..3 {
        scatter(&path, &mut contents, &mut rng);
        let name = format!("after-{round}");
        img(&["snapshot", "-c", &name], &path);
        snapshots.push((name, contents.clone()));
    }
    let mut options = ImageOptions::new().writable().policy(policy);
    if seed.is_multiple_of(2) {
        // One slice, reservations of a few clusters, one buffer.
        options = options.cache_bytes(1).reserve_bytes(4 * cluster_size).buffer_bytes(1);
    }
    let opened = Opened::new(&path, Cache::Cached, options);
    let crowd = Crowd {
        queues: 3,
        lanes: 4,
        rounds: 60,
        fine: 512 << (seed % 6),
        coarse: (2 * cluster_size).clamp(4096, 2 << 20),
        seed,
    };
    let ended = crowd.run(&opened.image, contents);
    opened.close();
    img(&["check", "-q", "-f", "qcow2"], &path);
    let mut again = Opened::new(&path, Cache::Cached, ImageOptions::new());
    let found = again.read(0, size as usize);
    same(&found, &ended.contents, 0).unwrap_or_else(|error| panic!("the guest: {error}"));
    drop(again);
    for (name, contents) in &snapshots {
        let found = snapshot_contents(&path, name);
        same(&found, contents, 0).unwrap_or_else(|error| panic!("{name}: {error}"));
        let found = applied_contents(&path, name);
        same(&found, contents, 0).unwrap_or_else(|error| panic!("{name}, applied: {error}"));
    }
    // What other programs free is free for us, and the other way round.
    for (name, _) in &snapshots {
        img(&["snapshot", "-d", name], &path);
    }
    let mut contents = ended.contents;
    scatter(&path, &mut contents, &mut rng);
    img(&["check", "-q", "-f", "qcow2"], &path);
}

/// Sizes of clusters, with the size of the disk.
const SIZES: [(u64, u64); 4] = [
    (512, (3 << 20) + 512),
    (4096, (12 << 20) + 1536),
    (65536, 48 << 20),
    (2 << 20, (60 << 20) + 512),
];

#[test]
fn reserving_ahead() {
    if missing("qemu-img") {
        return;
    }
    for (seed, sizes) in (0..).zip(SIZES) {
        written_over_snapshots(sizes, AllocPolicy::Ahead, seed);
        written_over_snapshots(sizes, AllocPolicy::Ahead, seed + 1);
    }
}

#[test]
fn zeroing_with_each_allocation() {
    if missing("qemu-img") {
        return;
    }
    for (seed, sizes) in (10..).zip(SIZES) {
        written_over_snapshots(sizes, AllocPolicy::PerAllocation, seed);
    }
}
