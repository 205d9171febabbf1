//! Space made ready for a new disk, and for the new part of one that grows.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use blkring_engine::{Cache, Flags, IoMem};
use blkring_qcow2::{
    CheckLimits, CheckReport, CreateOptions, ImageOptions, Preallocation, Version, check,
};
use blkring_tests::crowd::same;
use blkring_tests::images::{Opened, backing, create};
use blkring_tests::tools::{missing, qemu_img};

const MODES: [Preallocation; 3] =
    [Preallocation::Metadata, Preallocation::Falloc, Preallocation::Full];

fn checked(path: &Path) -> CheckReport {
    let file = std::fs::read(path).unwrap();
    let report = check(&file, CheckLimits::default(), &mut |finding| panic!("{finding}")).unwrap();
    qemu_img(&["check", "-fqcow2", path.to_str().unwrap()]).unwrap_or_else(|e| panic!("{e}"));
    report
}

/// Bytes that a file takes on its disk.
fn stored(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn a_new_disk_has_all_its_clusters() {
    if missing("qemu-img") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.qcow2");
    for version in [Version::V2, Version::V3] {
        for (cluster_size, size) in [(512, (2 << 20) + 512), (65536, 40 << 20), (2 << 20, 9 << 20)]
        {
            for mode in MODES {
                let plain = CreateOptions::new(size).cluster_size(cluster_size);
                create(&path, &plain.clone().version(version));
                let mut opened = Opened::writable(&path, Cache::Cached);
                let image = opened.image.clone();
                opened.run(async move { image.preallocate(mode).await }).unwrap();
                assert_eq!(opened.read(0, size as usize), vec![0; size as usize]);
                opened.close();
                let report = checked(&path);
                assert_eq!(report.allocated_clusters, size.div_ceil(cluster_size), "{mode:?}");
                let (has, len) = (stored(&path), std::fs::metadata(&path).unwrap().len());
                assert!(len >= size, "{mode:?}: {len} bytes");
                if cluster_size > 512 {
                    // Tables are small beside the data.
                    assert_eq!(has > size / 2, mode != Preallocation::Metadata, "{mode:?}: {has}");
                }
            }
        }
    }
}

#[test]
fn what_is_new_of_a_growing_disk_has_its_clusters() {
    if missing("qemu-img") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.qcow2");
    std::fs::write(directory.path().join("base.raw"), vec![0xAA; 4 << 20]).unwrap();
    for mode in MODES {
        for below in [None, backing("base.raw", "raw")] {
            // Sizes that end within clusters, and beyond an L2 table.
            for (cluster_size, sizes) in
                [(65536, [60 << 10, 80 << 10, 3 << 20]), (512, [1536, 40 << 10, 300 << 10])]
            {
                let filled = if below.is_some() { 0xAA } else { 0 };
                let mut contents = vec![filled; sizes[0] as usize];
                let backing = below.clone();
                create(
                    &path,
                    &CreateOptions::new(sizes[0]).cluster_size(cluster_size).backing(backing),
                );
                let mut opened = Opened::writable(&path, Cache::Cached);
                for size in &sizes[1..] {
                    let (image, size) = (opened.image.clone(), *size);
                    opened.run(async move { image.resize_with(size, mode).await }).unwrap();
                    contents.resize(size as usize, 0);
                    same(&opened.read(0, contents.len()), &contents, 0).unwrap();
                    let disk = opened.disk.clone();
                    let mem = IoMem::from(vec![7; 700]);
                    opened.run(disk.write(size - 700, mem, Flags::empty())).unwrap();
                    contents[size as usize - 700..].fill(7);
                }
                opened.close();
                let report = checked(&path);
                let new = sizes[2].div_ceil(cluster_size) - sizes[0] / cluster_size;
                assert!(report.allocated_clusters >= new, "{mode:?}: {report:?}");
                let mut opened = Opened::new(&path, Cache::Cached, ImageOptions::new());
                same(&opened.read(0, contents.len()), &contents, 0).unwrap();
            }
        }
    }
}

#[test]
fn a_backing_file_is_not_hidden() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.qcow2");
    std::fs::write(directory.path().join("base.raw"), vec![0xAA; 4096]).unwrap();
    let backing = backing("base.raw", "raw");
    create(&path, &CreateOptions::new(1 << 20).backing(backing));
    let mut opened = Opened::writable(&path, Cache::Cached);
    let image = opened.image.clone();
    let error = opened.run(async move { image.preallocate(Preallocation::Metadata).await });
    assert_eq!(error.unwrap_err().errno, libc::ENOTSUP);
    assert_eq!(opened.read(0, 4096), [0xAA; 4096]);
}
