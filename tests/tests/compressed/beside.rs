//! Compressed writes into images with snapshots, and while the disk grows.

use std::path::Path;
use std::pin::Pin;

use blkring_engine::sim::Rng;
use blkring_engine::{Cache, Flags, IoMem, Result};
use blkring_qcow2::{AllocPolicy, Compression, Compressor, CreateOptions, ImageOptions};
use blkring_tests::crowd::{join_all, same};
use blkring_tests::images::{Opened, create};
use blkring_tests::tools::qemu_img;

use crate::{BOTH, SIZES, assert_reads, contents, judge, no_peers};

type Work = Pin<Box<dyn Future<Output = Result<()>>>>;

/// Writes of these clusters of `contents`, in compressed form where that is smaller.
fn packed(opened: &Opened, contents: &[u8], clusters: impl Iterator<Item = usize>) -> Vec<Work> {
    let cluster = opened.image.info().cluster_size as usize;
    let mut compressor = Compressor::new(opened.image.compression(), cluster).unwrap();
    let write = |number: usize| -> Work {
        let (image, disk) = (opened.image.clone(), opened.disk.clone());
        let offset = (number * cluster) as u64;
        let bytes = &contents[number * cluster..contents.len().min((number + 1) * cluster)];
        let (packed, plain) = (compressor.compress(bytes), IoMem::from(bytes.to_vec()));
        Box::pin(async move {
            match packed {
                Some(packed) => image.write_compressed(offset, packed).await,
                None => disk.write(offset, plain, Flags::empty()).await,
            }
        })
    };
    clusters.map(write).collect()
}

fn run_all(opened: &mut Opened, mut work: Vec<Work>) {
    while !work.is_empty() {
        let some = work.split_off(work.len().saturating_sub(24));
        opened.run(join_all(some)).into_iter().for_each(|result| result.unwrap());
    }
}

fn open(path: &Path, seed: u64) -> Opened {
    let policy =
        if seed.is_multiple_of(2) { AllocPolicy::Ahead } else { AllocPolicy::PerAllocation };
    let mut how = ImageOptions::new().writable().policy(policy);
    if seed.is_multiple_of(3) {
        // One slice, reservations of a few clusters.
        how = how.cache_bytes(1).reserve_bytes(1);
    }
    Opened::new(path, Cache::Cached, how)
}

fn snapshot(args: &[&str], path: &Path) {
    let path = path.to_str().unwrap();
    qemu_img(&[&["snapshot"], args, &[path]].concat()).unwrap_or_else(|error| panic!("{error}"));
}

/// What a snapshot holds, by a program that knows nothing of this one.
fn judge_snapshot(path: &Path, name: &str, contents: &[u8]) {
    let raw = path.with_extension("raw");
    let (from, to) = (path.to_str().unwrap(), raw.to_str().unwrap());
    qemu_img(&["convert", "-f", "qcow2", "-O", "raw", "-l", name, from, to])
        .unwrap_or_else(|error| panic!("{error}"));
    same(&std::fs::read(raw).unwrap(), contents, 0).unwrap_or_else(|error| panic!("{error}"));
}

/// Half of the disk, a snapshot, the rest of it; a snapshot, and other data in place of half of all. Neither what a
/// snapshot shares with the disk changes, nor what shares a host cluster with it.
#[test]
fn into_an_image_with_snapshots() {
    if no_peers() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ours.qcow2");
    for (seed, (cluster_size, size)) in (70..).zip(SIZES) {
        let compression = BOTH[seed as usize % 2];
        create(
            &path,
            &CreateOptions::new(size).cluster_size(cluster_size).compression(compression),
        );
        let cluster = cluster_size as usize;
        let count = size.div_ceil(cluster_size) as usize;
        let (first, second) = (contents(size, seed), contents(size, seed + 100));
        let mut half = vec![0; size as usize];
        let mut last = first.clone();
        for number in 0..count {
            let range = number * cluster..first.len().min((number + 1) * cluster);
            if number % 2 == 0 {
                half[range.clone()].copy_from_slice(&first[range.clone()]);
            }
            if number % 4 < 2 {
                last[range.clone()].copy_from_slice(&second[range]);
            }
        }

        let mut opened = open(&path, seed);
        let work = packed(&opened, &first, (0..count).step_by(2));
        run_all(&mut opened, work);
        opened.close();
        snapshot(&["-c", "half"], &path);

        let mut opened = open(&path, seed + 1);
        let work = packed(&opened, &first, (1..count).step_by(2));
        run_all(&mut opened, work);
        opened.close();
        judge(&path, &first);
        snapshot(&["-c", "first"], &path);

        let mut opened = open(&path, seed + 2);
        let disk = opened.disk.clone();
        opened.run(async {
            for number in (0..count as u64).filter(|number| number % 4 < 2) {
                let at = number * cluster_size;
                let len = cluster_size.min(size - at);
                disk.write_zeroes(at, len, Flags::MAY_UNMAP).await.unwrap();
            }
        });
        let work = packed(&opened, &second, (0..count).filter(|number| number % 4 < 2));
        run_all(&mut opened, work);
        assert_reads(&mut opened, &last, "before closing");
        drop(disk);
        opened.close();
        judge(&path, &last);
        judge_snapshot(&path, "half", &half);
        judge_snapshot(&path, "first", &first);
        snapshot(&["-d", "half"], &path);
        judge(&path, &last);
        judge_snapshot(&path, "first", &first);
        snapshot(&["-d", "first"], &path);
        judge(&path, &last);
    }
}

/// The disk grows in steps, and while it does what it has already is filled.
#[test]
fn while_the_disk_grows() {
    if no_peers() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ours.qcow2");
    let mut rng = Rng::new(5);
    for (seed, cluster_size) in (80..).zip([512, 4096, 65536]) {
        // L1 tables of several clusters, where those are small.
        let (steps, per_step) = (6, if cluster_size == 512 { 1500 } else { 60 });
        let size = steps * per_step * cluster_size;
        let expected = contents(size, seed);
        let mut now = per_step * cluster_size;
        let compression = Compression::Zlib;
        create(&path, &CreateOptions::new(now).cluster_size(cluster_size).compression(compression));
        let mut opened = open(&path, seed);
        for step in 1..=steps {
            let first = (step - 1) * per_step;
            let clusters = first as usize..(step * per_step) as usize;
            let mut work = packed(&opened, &expected, clusters);
            if step < steps {
                now += per_step * cluster_size;
                let (image, size) = (opened.image.clone(), now);
                let grow = async move { image.resize(size).await };
                work.insert(rng.index(work.len()), Box::pin(grow));
            }
            run_all(&mut opened, work);
        }
        assert_reads(&mut opened, &expected, "before closing");
        opened.close();
        judge(&path, &expected);
    }
}
