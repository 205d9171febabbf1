//! Images on real files, through real queues: what is written is read back, and the checker agrees.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod backend;

use std::path::Path;
use std::sync::Arc;

use blkring_engine::{Access, Flags, IoMem, OpenOptions, Queue, QueueOptions, Storage};
use blkring_qcow2::{
    Access as HeaderAccess, AllocPolicy, Backing, CheckLimits, CreateOptions, FileOpener, Header,
    Image, ImageOptions, Layout, OpenError, check,
};

fn create(path: &Path, options: &CreateOptions) {
    use std::os::unix::fs::FileExt;
    let layout = Layout::plan(options).unwrap();
    let file = std::fs::File::create(path).unwrap();
    for write in &layout.writes {
        file.write_all_at(&write.bytes, write.offset.get()).unwrap();
    }
    file.set_len(layout.file_length).unwrap();
}

fn queue() -> Queue {
    backend::started(QueueOptions::with_requests(32))
}

fn open(queue: &mut Queue, path: &Path, options: ImageOptions) -> Arc<Image> {
    let storage = Storage::open(path, &OpenOptions::new().access(options.access)).unwrap();
    let lane = queue.lane();
    queue.block_on(Image::open(&lane, storage, &FileOpener::default(), options)).unwrap().unwrap()
}

fn assert_clean(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    let mut findings = Vec::new();
    let report =
        check(&bytes, CheckLimits::default(), &mut |finding| findings.push(finding.to_string()))
            .unwrap();
    assert!(findings.is_empty(), "{findings:?} {report:?}");
}

#[test]
fn what_is_written_is_read_back_and_the_image_is_clean() {
    let directory = tempfile::tempdir().unwrap();
    for cluster_size in [512, 4096, 65536, 2 << 20] {
        let path = directory.path().join(format!("image-{cluster_size}"));
        let size = 8 << 20;
        create(&path, &CreateOptions::new(size).cluster_size(cluster_size));
        let mut queue = queue();
        let image = open(&mut queue, &path, ImageOptions::new().writable());
        let disk = queue.attach(&image).unwrap();
        let mut model = vec![0u8; size as usize];
        let mut seed = 1u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        queue
            .block_on(async {
                for round in 0..300u64 {
                    let offset = random(size);
                    let len = (random(3 * cluster_size.min(65536)) + 1).min(size - offset);
                    let range = offset as usize..(offset + len) as usize;
                    match random(8) {
                        0 => {
                            disk.write_zeroes(offset, len, Flags::empty()).await.unwrap();
                            model[range].fill(0);
                        }
                        1 => {
                            disk.write_zeroes(offset, len, Flags::MAY_UNMAP).await.unwrap();
                            model[range].fill(0);
                        }
                        2 => {
                            disk.discard(offset, len).await.unwrap();
                            let first = offset.div_ceil(cluster_size) * cluster_size;
                            let end = offset + len;
                            let last =
                                if end == size { size } else { end / cluster_size * cluster_size };
                            if first < last {
                                model[first as usize..last as usize].fill(0);
                            }
                        }
                        3 => disk.flush().await.unwrap(),
                        _ => {
                            let flags = if random(4) == 0 { Flags::FUA } else { Flags::empty() };
                            let bytes = vec![(round % 255) as u8 + 1; len as usize];
                            disk.write(offset, IoMem::from(bytes.clone()), flags).await.unwrap();
                            model[range].copy_from_slice(&bytes);
                        }
                    }
                    let back = IoMem::from(vec![0xff; len as usize]);
                    disk.read(offset, back.clone()).await.unwrap();
                    let back = back.to_vec();
                    assert!(
                        back == model[offset as usize..(offset + len) as usize],
                        "round {round}"
                    );
                }
                image.close().await.unwrap();
            })
            .unwrap();
        drop(image);
        assert_clean(&path);
        let mut queue = self::queue();
        let image = open(&mut queue, &path, ImageOptions::new());
        let disk = queue.attach(&image).unwrap();
        let all = IoMem::from(vec![0xff; size as usize]);
        queue.block_on(disk.read(0, all.clone())).unwrap().unwrap();
        assert!(all.to_vec() == model, "cluster size {cluster_size}");
    }
}

#[test]
fn a_write_over_a_backing_file_keeps_what_is_around_it() {
    let directory = tempfile::tempdir().unwrap();
    let base = directory.path().join("base.raw");
    std::fs::write(&base, vec![0xaa; 200_000]).unwrap();
    let path = directory.path().join("top.qcow2");
    let backing = Backing::new(b"base.raw", b"raw");
    create(&path, &CreateOptions::new(1 << 20).backing(Some(backing)));
    let mut queue = queue();
    let image = open(&mut queue, &path, ImageOptions::new().writable());
    let disk = queue.attach(&image).unwrap();
    queue
        .block_on(async {
            disk.write(70_000, IoMem::from(vec![1; 100]), Flags::empty()).await.unwrap();
            disk.write(199_900, IoMem::from(vec![2; 200]), Flags::empty()).await.unwrap();
            disk.discard(0, 65536).await.unwrap();
            disk.flush().await.unwrap();
            let all = IoMem::from(vec![0xff; 1 << 20]);
            disk.read(0, all.clone()).await.unwrap();
            let all = all.to_vec();
            assert_eq!(all[..65536], [0; 65536]);
            assert_eq!(all[69_999..70_101], [[0xaa].as_slice(), &[1; 100], &[0xaa]].concat());
            assert_eq!(all[199_899..200_101], [[0xaa].as_slice(), &[2; 200], &[0]].concat());
            assert!(all[200_100..].iter().all(|&b| b == 0));
            image.close().await.unwrap();
        })
        .unwrap();
    drop(image);
    assert_clean(&path);
    assert_eq!(std::fs::read(&base).unwrap(), vec![0xaa; 200_000]);
}

#[test]
fn read_only_means_read_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    create(&path, &CreateOptions::new(1 << 20));
    let before = std::fs::read(&path).unwrap();
    let mut queue = queue();
    let image = open(&mut queue, &path, ImageOptions::new());
    assert_eq!(image.storage().access(), Access::ReadOnly);
    let disk = queue.attach(&image).unwrap();
    let error = queue
        .block_on(disk.write(0, IoMem::from(vec![1; 512]), Flags::empty()))
        .unwrap()
        .unwrap_err();
    assert_eq!(error.errno, libc::EPERM);
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn what_a_crash_left_reserved_is_used_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    create(&path, &CreateOptions::new(64 << 20));
    let mut sizes = Vec::new();
    for round in 0..6u64 {
        let mut queue = queue();
        let image = open(&mut queue, &path, ImageOptions::new().writable());
        let disk = queue.attach(&image).unwrap();
        queue
            .block_on(async {
                for i in 0..20 {
                    let offset = (round * 20 + i) * 65536;
                    disk.write(offset, IoMem::from(vec![7; 512]), Flags::empty()).await.unwrap();
                }
                disk.flush().await.unwrap();
            })
            .unwrap();
        // Gone without a close: the reservation stays counted.
        drop(image);
        drop(queue);
        sizes.push(std::fs::metadata(&path).unwrap().len() / 65536);
    }
    let used = 6 * 20 + 6;
    assert!(sizes[5] <= used + 2 * 64, "clusters in the file after each crash: {sizes:?}");
    let mut queue = queue();
    let image = open(&mut queue, &path, ImageOptions::new().writable());
    queue.attach(&image).unwrap();
    queue.block_on(image.close()).unwrap().unwrap();
    drop(image);
    assert_clean(&path);
    assert!(std::fs::metadata(&path).unwrap().len() / 65536 <= used);
}

#[test]
fn an_image_that_counts_its_own_tables_as_free_is_not_destroyed() {
    use std::os::unix::fs::FileExt;
    let directory = tempfile::tempdir().unwrap();
    for policy in [AllocPolicy::Ahead, AllocPolicy::PerAllocation] {
        for cluster in 0..4 {
            let path = directory.path().join(format!("image-{policy:?}-{cluster}"));
            create(&path, &CreateOptions::new(1 << 20));
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.write_all_at(&[0, 0], 2 * 65536 + 2 * cluster).unwrap();
            let before = std::fs::read(&path).unwrap();
            let mut queue = queue();
            let image = open(&mut queue, &path, ImageOptions::new().writable().policy(policy));
            let disk = queue.attach(&image).unwrap();
            let written = queue.block_on(disk.write(0, IoMem::from(vec![1; 512]), Flags::empty()));
            assert_eq!(written.unwrap().unwrap_err().errno, 5);
            drop(image);
            drop(queue);
            let after = std::fs::read(&path).unwrap();
            assert!(after[80..] == before[80..], "nothing but the header has changed");
            assert_eq!(after[79], before[79] | 2, "the corrupt bit is set");
            assert!(after[..79] == before[..79]);
        }
    }
}

/// Where L1 table, refcount table and first refcount block of a new image are.
fn places(path: &Path) -> [u64; 3] {
    let bytes = std::fs::read(path).unwrap();
    let header = Header::parse(&bytes, HeaderAccess::Read).unwrap();
    let reftable = header.reftable().offset.get();
    let entry = &bytes[reftable as usize..reftable as usize + 8];
    [header.l1().offset.get(), reftable, u64::from_be_bytes(entry.try_into().unwrap())]
}

fn try_open(path: &Path, options: ImageOptions) -> Result<Arc<Image>, OpenError> {
    let mut queue = queue();
    let storage = Storage::open(path, &OpenOptions::new().access(options.access)).unwrap();
    let lane = queue.lane();
    queue.block_on(Image::open(&lane, storage, &FileOpener::default(), options)).unwrap()
}

#[test]
fn an_l2_table_in_the_place_of_another_structure_is_not_written() {
    use std::os::unix::fs::FileExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    create(&path, &CreateOptions::new(64 << 20));
    let [l1, reftable, block] = places(&path);
    for target in [l1, reftable, block] {
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&(target | 1 << 63).to_be_bytes(), l1).unwrap();
        let error = try_open(&path, ImageOptions::new().writable()).err().unwrap();
        assert!(matches!(error, OpenError::Overlap { at, .. } if at.get() == target), "{error}");
        assert!(try_open(&path, ImageOptions::new()).is_ok(), "it may be read");
    }
}

#[test]
fn counts_without_end_are_not_taken_for_a_reservation() {
    use std::os::unix::fs::FileExt;
    const BLOCKS: u64 = 64;
    const CLUSTER: u64 = 65536;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    create(&path, &CreateOptions::new(64 << 20));
    let [_, reftable, _] = places(&path);
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // Every other cluster is counted and not in use.
    let counts: Vec<u8> = (0..CLUSTER).map(|at| u8::from(at % 4 == 1)).collect();
    for number in 1..BLOCKS {
        let place = (16 + number) * CLUSTER;
        file.write_all_at(&counts, place).unwrap();
        file.write_all_at(&place.to_be_bytes(), reftable + 8 * number).unwrap();
    }
    file.set_len(BLOCKS * CLUSTER / 2 * CLUSTER).unwrap();
    let image = try_open(&path, ImageOptions::new().writable()).unwrap();
    let found = image.statistics().dirty_clusters;
    assert!(found > 0 && found <= (1 << 18) + CLUSTER / 2, "{found} clusters in memory");
}

#[test]
fn a_zero_write_without_fallback_writes_no_zeros() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    create(&path, &CreateOptions::new(1 << 20));
    let mut queue = queue();
    let image = open(&mut queue, &path, ImageOptions::new().writable());
    let disk = queue.attach(&image).unwrap();
    queue
        .block_on(async {
            disk.write(0, IoMem::from(vec![1; 3 << 16]), Flags::empty()).await.unwrap();
            for (offset, len) in [(512, 1 << 16), (0, 512), (1 << 16, (1 << 16) + 512)] {
                let result = disk.write_zeroes(offset, len, Flags::NO_FALLBACK).await;
                assert_eq!(result.unwrap_err().errno, libc::ENOTSUP, "{len} at {offset}");
            }
            disk.write_zeroes(1 << 16, 1 << 16, Flags::NO_FALLBACK).await.unwrap();
            let back = IoMem::from(vec![7; 3 << 16]);
            disk.read(0, back.clone()).await.unwrap();
            let back = back.to_vec();
            assert!(back[..1 << 16].iter().chain(&back[2 << 16..]).all(|&b| b == 1));
            assert!(back[1 << 16..2 << 16].iter().all(|&b| b == 0));
            image.close().await.unwrap();
        })
        .unwrap();
}
