//! What qemu-img has compressed is read.

use blkring_engine::sim::Rng;
use blkring_engine::{Cache, IoMem};
use blkring_qcow2::{CheckLimits, CreateOptions, GuestBytes, ImageOptions, check};
use blkring_tests::crowd::{join_all, same};
use blkring_tests::fs::Fs;
use blkring_tests::images::{Opened, backing, create};
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::report::or_skip;

use crate::{BOTH, SIZES, assert_reads, contents, convert, no_peers};

#[test]
fn all_of_it_and_any_piece() {
    if no_peers() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for compression in BOTH {
        for (seed, (cluster, size)) in (1..).zip(SIZES) {
            let what = format!("{compression}, clusters of {cluster}");
            let expected = contents(size, seed);
            let path = convert(dir.path(), &expected, cluster, compression);
            let report =
                check(&std::fs::read(&path).unwrap(), CheckLimits::default(), &mut |finding| {
                    panic!("{what}: {finding}")
                });
            assert!(report.unwrap().compressed_clusters > 0, "{what}");
            let mut opened = Opened::new(&path, Cache::Cached, ImageOptions::new());
            assert_reads(&mut opened, &expected, &what);
            let mut rng = Rng::new(seed);
            for _ in 0..200 {
                let start = rng.below(size - 1);
                let len = 1 + rng.below((size - start).min(3 * cluster));
                let found = opened.read(start, len as usize);
                let range = start as usize..(start + len) as usize;
                same(&found, &expected[range], start)
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
            }
        }
    }
}

/// Direct I/O of 4096 bytes, clusters of 512, one buffer for everything, many reads at once.
#[test]
fn around_the_page_cache_with_one_buffer() {
    if no_peers() {
        return;
    }
    let Some(mount) = or_skip(Mount::new(Fs::Xfs, SectorSize::S4096, 512)) else { return };
    for (compression, (cluster, size)) in
        BOTH.into_iter().flat_map(|one| SIZES.map(|two| (one, two)))
    {
        let expected = contents(size, cluster);
        let path = convert(mount.path(), &expected, cluster, compression);
        let options = ImageOptions::new().buffer_bytes(1).cache_bytes(1);
        let mut opened = Opened::new(&path, Cache::Direct, options);
        let reads = (0..24).map(|number| {
            let start = number * (size / 30);
            let len = (size / 20).min(700_000);
            let (disk, mem) = (opened.disk.clone(), IoMem::from(vec![0; len as usize]));
            let range = start as usize..(start + len) as usize;
            let expected = &expected;
            async move {
                disk.read(start, mem.clone()).await.unwrap();
                same(&mem.to_vec(), &expected[range], start)
            }
        });
        let reads = join_all(reads.collect());
        for result in opened.run(reads) {
            result.unwrap_or_else(|error| panic!("{compression}, {cluster}: {error}"));
        }
    }
}

/// A backing file that is compressed, below an image with other clusters.
#[test]
fn below_another_image() {
    if no_peers() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for compression in BOTH {
        let size = (4 << 20) + 512;
        let mut expected = contents(size, 3);
        convert(dir.path(), &expected, 65536, compression);
        let path = dir.path().join("top.qcow2");
        let below = backing("packed.qcow2", "qcow2");
        let options = CreateOptions::new(size).cluster_size(4096).backing(below);
        create(&path, &options);
        let options = ImageOptions::new().writable().buffer_bytes(1);
        let mut opened = Opened::new(&path, Cache::Cached, options);
        for at in (5..size - 100).step_by(100_001) {
            let disk = opened.disk.clone();
            opened.run(disk.write(at, IoMem::from(vec![0xb7; 90]), Default::default())).unwrap();
            expected[at as usize..at as usize + 90].fill(0xb7);
        }
        assert_reads(&mut opened, &expected, "written over a compressed image");
        opened.close();
        crate::judge(&path, &expected);
    }
}

/// Small reads one after the other decompress each cluster once.
#[test]
fn a_cluster_is_decompressed_once_for_many_small_reads() {
    if no_peers() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (cluster, size) = (65536, 4 << 20);
    let expected = vec![0x37; size];
    let path = convert(dir.path(), &expected, cluster, BOTH[0]);
    let mut opened = Opened::new(&path, Cache::Cached, ImageOptions::new());
    for at in (0..size as u64).step_by(4096) {
        assert_eq!(opened.read(at, 4096), [0x37; 4096]);
    }
    let clusters = size as u64 / cluster;
    assert_eq!(opened.image.statistics().decompressed_clusters, clusters);
    // Back and forth among a few of them, at any size of the pieces.
    for at in (0..8 * cluster).step_by(1234).chain((0..8 * cluster).step_by(777)) {
        opened.read(at, 100);
    }
    assert_eq!(opened.image.statistics().decompressed_clusters, clusters + 8);
}

#[test]
fn the_map_names_what_is_compressed() {
    if no_peers() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut expected = vec![0x37; 1 << 20];
    expected[1 << 18..1 << 19].fill(0);
    let path = convert(dir.path(), &expected, 65536, BOTH[0]);
    let mut opened = Opened::new(&path, Cache::Cached, ImageOptions::new());
    let mut found = Vec::new();
    let mut offset = 0;
    while offset < 1 << 20 {
        let image = opened.image.clone();
        let run = opened.run(image.extent(offset, 1 << 20)).unwrap();
        found.push((run.len, run.bytes));
        offset += run.len;
    }
    assert_eq!(
        found,
        [
            (1 << 18, GuestBytes::Compressed),
            (1 << 18, GuestBytes::Absent),
            (1 << 19, GuestBytes::Compressed)
        ]
    );
}
