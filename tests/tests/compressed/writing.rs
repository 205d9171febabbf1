//! What we have compressed is read by qemu-img, and found to be sound.

use std::path::Path;

use blkring_engine::{Access, Cache, Disk, Flags, IoMem};
use blkring_qcow2::{
    AllocPolicy, CheckLimits, CheckReport, Compression, Compressor, CreateOptions, Image,
    ImageOptions, check,
};
use blkring_tests::crowd::{Crowd, join_all};
use blkring_tests::fs::Fs;
use blkring_tests::images::{Opened, backing, create};
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::report::or_skip;

use crate::{BOTH, SIZES, assert_reads, contents, judge, no_peers};

/// Writes every cluster of `contents` in compressed form if that is smaller, `depth` of them at once.
fn fill(opened: &mut Opened, contents: &[u8], depth: usize) {
    let image = opened.image.clone();
    let cluster = image.info().cluster_size as usize;
    let mut compressor = Compressor::new(image.compression(), cluster).unwrap();
    let clusters: Vec<_> = contents.chunks(cluster).enumerate().collect();
    for some in clusters.chunks(depth) {
        let writes = some.iter().filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0));
        let writes = writes.map(|(number, bytes)| {
            let offset = (number * cluster) as u64;
            let (image, disk) = (image.clone(), opened.disk.clone());
            let packed = compressor.compress(bytes);
            let plain = IoMem::from(bytes.to_vec());
            async move {
                match packed {
                    Some(packed) => image.write_compressed(offset, packed).await,
                    None => disk.write(offset, plain, Flags::empty()).await,
                }
            }
        });
        let writes = join_all(writes.collect());
        opened.run(writes).into_iter().for_each(|result| result.unwrap());
    }
}

/// What our own check says of an image, which is sound.
fn checked(path: &Path) -> CheckReport {
    let bytes = std::fs::read(path).unwrap();
    let report = check(&bytes, CheckLimits::default(), &mut |finding| panic!("{finding}"));
    report.unwrap()
}

fn options(compression: Compression, (cluster_size, size): (u64, u64)) -> CreateOptions {
    CreateOptions::new(size).cluster_size(cluster_size).compression(compression)
}

#[test]
fn qemu_reads_what_we_compress() {
    if no_peers() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ours.qcow2");
    for compression in BOTH {
        for (seed, sizes) in (20..).zip(SIZES) {
            let expected = contents(sizes.1, seed);
            create(&path, &options(compression, sizes));
            let policy =
                if seed % 2 == 0 { AllocPolicy::Ahead } else { AllocPolicy::PerAllocation };
            let how = ImageOptions::new().writable().policy(policy);
            let mut opened = Opened::new(&path, Cache::Cached, how);
            fill(&mut opened, &expected, 8);
            assert_reads(&mut opened, &expected, "before closing");
            opened.close();
            judge(&path, &expected);
            let report = checked(&path);
            let all = sizes.1.div_ceil(sizes.0);
            assert!(report.compressed_clusters > all / 4, "{report:?}");
            // The file is smaller than the disk: clusters share host clusters.
            let stored = std::fs::metadata(&path).unwrap().len();
            println!("{compression}, clusters of {}: {stored} bytes for {}", sizes.0, sizes.1);
            assert!(sizes.0 == 512 || stored < sizes.1 * 8 / 10, "{stored} of {}", sizes.1);
        }
    }
}

/// Around the page cache, with blocks of 4096 bytes: data shares blocks. Then the image is used as any other.
#[test]
fn a_crowd_on_what_we_compress() {
    if no_peers() {
        return;
    }
    let Some(mount) = or_skip(Mount::new(Fs::Xfs, SectorSize::S4096, 1024)) else { return };
    let path = mount.path().join("ours.qcow2");
    for (seed, sizes) in (30..).zip(SIZES) {
        let expected = contents(sizes.1, seed);
        create(&path, &options(BOTH[seed as usize % 2], sizes));
        let how = ImageOptions::new().writable().cache_bytes(1).reserve_bytes(4 * sizes.0);
        let mut opened = Opened::new(&path, Cache::Direct, how);
        fill(&mut opened, &expected, 32);
        let crowd = Crowd {
            queues: 3,
            lanes: 2,
            rounds: 60,
            fine: 4096,
            coarse: (2 * sizes.0).clamp(4096, 2 << 20),
            seed,
        };
        let ended = crowd.run(&opened.image, expected);
        assert!(ended.together > 0, "no two queues were in the driver at once");
        opened.close();
        judge(&path, &ended.contents);
    }
}

/// Counts of one bit cannot be shared, counts of two bits by two entries and the one who fills the cluster.
#[test]
fn narrow_refcounts() {
    if no_peers() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ours.qcow2");
    for refcount_bits in [1, 2, 4, 8, 64] {
        for cluster_size in [512, 65536] {
            let size = 100 * cluster_size;
            let expected: Vec<u8> = (0..size).map(|at| (at / cluster_size) as u8 + 1).collect();
            let plain = options(Compression::Zlib, (cluster_size, size));
            create(&path, &plain.clone().refcount_bits(refcount_bits));
            let mut opened = Opened::writable(&path, Cache::Cached);
            fill(&mut opened, &expected, 16);
            opened.close();
            judge(&path, &expected);
            assert_eq!(checked(&path).compressed_clusters, 100, "{refcount_bits} bits");
        }
    }
}

/// Data of one cluster begins where that of the one before ends, over the border of host clusters too.
#[test]
fn data_is_packed_without_gaps() {
    if no_peers() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ours.qcow2");
    let (cluster, size) = (65536, 4 << 20);
    let mut rng = blkring_engine::sim::Rng::new(5);
    // Half of each cluster is noise: two do not fit into one.
    let expected: Vec<u8> =
        (0..size).map(|at| if at % cluster < 40000 { rng.below(256) as u8 } else { 7 }).collect();
    create(&path, &options(Compression::Zlib, (cluster, size)));
    let mut opened = Opened::writable(&path, Cache::Cached);
    fill(&mut opened, &expected, 1);
    opened.close();
    judge(&path, &expected);
    let stored = std::fs::metadata(&path).unwrap().len();
    assert!(stored < 64 * 41000 + 6 * cluster, "{stored} bytes");
}

/// An image is filled in several sessions, over a backing file, with flushes and discards in between.
#[test]
fn in_several_sessions() {
    if no_peers() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ours.qcow2");
    let (cluster, size) = (4096, 1 << 20);
    let mut expected = contents(size, 50);
    std::fs::write(dir.path().join("base.raw"), &expected).unwrap();
    let plain = options(Compression::Zstd, (cluster, size));
    create(&path, &plain.clone().backing(backing("base.raw", "raw")));
    let mut compressor = Compressor::new(Compression::Zstd, cluster as usize).unwrap();
    for session in 0..4u64 {
        let mut opened = Opened::writable(&path, Cache::Cached);
        let (image, disk) = (opened.image.clone(), opened.disk.clone());
        for number in (session..size / cluster).step_by(8) {
            let at = number * cluster;
            let range = at as usize..(at + cluster) as usize;
            let bytes = vec![0x80 | number as u8; cluster as usize];
            let packed = compressor.compress(&bytes).unwrap();
            opened.run(image.write_compressed(at, packed.clone())).unwrap();
            expected[range.clone()].copy_from_slice(&bytes);
            if number % 5 == 0 {
                opened.run(disk.flush()).unwrap();
            }
            if number % 7 == 0 {
                opened.run(disk.discard(at, cluster)).unwrap();
                expected[range.clone()].fill(0);
                if number % 3 == 0 {
                    // A cluster without data may be written so again.
                    opened.run(image.write_compressed(at, packed)).unwrap();
                    expected[range].copy_from_slice(&bytes);
                }
            }
        }
        assert_reads(&mut opened, &expected, "before closing");
        opened.close();
        judge(&path, &expected);
    }
}

async fn errno(
    image: &std::sync::Arc<Image>,
    offset: u64,
    packed: blkring_qcow2::CompressedCluster,
) -> i32 {
    image.write_compressed(offset, packed).await.unwrap_err().errno
}

#[test]
fn what_cannot_be_compressed_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ours.qcow2");
    let (cluster, size) = (4096u64, 10 * 4096 - 512);
    create(&path, &options(Compression::Zlib, (cluster, size)));
    let packed = |compression, size: u64| {
        let mut compressor = Compressor::new(compression, size as usize).unwrap();
        compressor.compress(&vec![1; size as usize]).unwrap()
    };
    let good = packed(Compression::Zlib, cluster);
    let mut opened = Opened::writable(&path, Cache::Cached);
    let (image, disk): (_, Disk) = (opened.image.clone(), opened.disk.clone());
    opened.run(async {
        disk.write(0, IoMem::from(vec![3; 10]), Flags::empty()).await.unwrap();
        image.write_compressed(cluster, good.clone()).await.unwrap();
        // The last cluster of the disk is not whole.
        image.write_compressed(9 * cluster, good.clone()).await.unwrap();
        for over in [0, cluster] {
            let error = image.write_compressed(over, good.clone()).await.unwrap_err();
            assert_eq!(error.errno, libc::EIO);
            assert!(error.to_string().contains("has data"), "{error}");
        }
        assert_eq!(errno(&image, 512, good.clone()).await, libc::EINVAL);
        assert_eq!(errno(&image, 10 * cluster, good.clone()).await, libc::EINVAL);
        assert_eq!(errno(&image, 0, packed(Compression::Zstd, cluster)).await, libc::EINVAL);
        assert_eq!(errno(&image, 0, packed(Compression::Zlib, 512)).await, libc::EINVAL);
    });
    assert_eq!(opened.read(9 * cluster, 3584), [1; 3584]);
    opened.run(image.close()).unwrap();
    assert_eq!(opened.run(errno(&image, 5 * cluster, good.clone())), libc::ESHUTDOWN);
    drop((image, disk, opened));
    let mut reading = Opened::new(&path, Cache::Cached, ImageOptions::new());
    assert_eq!(reading.image.storage().access(), Access::ReadOnly);
    let image = reading.image.clone();
    assert_eq!(reading.run(errno(&image, 5 * cluster, good)), libc::EPERM);
    assert!(checked(&path).is_clean());
}
