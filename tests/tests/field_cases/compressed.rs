//! F32 with compressed clusters: a zero-write over one, then a small write into it. Neither the compressed bytes nor
//! those of the backing file come back.

use blkring_engine::{Cache, Flags, IoMem};
use blkring_qcow2::{AllocPolicy, Compression, Compressor, CreateOptions, ImageOptions, Version};
use blkring_tests::crowd::same;
use blkring_tests::images::{Opened, backing, create};
use blkring_tests::tools::{missing, qemu_img};

const CLUSTER: u64 = 65536;
const CLUSTERS: u64 = 8;

#[test]
fn f32_zeros_over_compressed_clusters_stay_zeros() {
    if missing("qemu-img") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("top.qcow2");
    let size = CLUSTERS * CLUSTER;
    std::fs::write(directory.path().join("base.raw"), vec![0xAA; size as usize]).unwrap();
    for version in [Version::V2, Version::V3] {
        for policy in [AllocPolicy::Ahead, AllocPolicy::PerAllocation] {
            for flags in [Flags::empty(), Flags::MAY_UNMAP] {
                let backing = backing("base.raw", "raw");
                create(&path, &CreateOptions::new(size).version(version).backing(backing));
                let options = ImageOptions::new().writable().policy(policy);
                let mut opened = Opened::new(&path, Cache::Cached, options);
                let mut compressor = Compressor::new(Compression::Zlib, CLUSTER as usize).unwrap();
                let packed = compressor.compress(&[0xBB; CLUSTER as usize]).unwrap();
                let (image, disk) = (opened.image.clone(), opened.disk.clone());
                opened.run(async {
                    for cluster in 0..CLUSTERS {
                        image.write_compressed(cluster * CLUSTER, packed.clone()).await.unwrap();
                    }
                    // Whole ones, and a range that begins and ends within one.
                    disk.write_zeroes(CLUSTER, CLUSTER, flags).await.unwrap();
                    disk.write_zeroes(3 * CLUSTER + 700, 2 * CLUSTER, flags).await.unwrap();
                });
                let mut expected = vec![0xBB; size as usize];
                expected[CLUSTER as usize..2 * CLUSTER as usize].fill(0);
                expected[3 * CLUSTER as usize + 700..5 * CLUSTER as usize + 700].fill(0);
                same(&opened.read(0, size as usize), &expected, 0).unwrap();
                opened.run(async {
                    for at in [CLUSTER + 512, 4 * CLUSTER, 7 * CLUSTER + 512] {
                        let mem = IoMem::from(vec![3; 512]);
                        disk.write(at, mem, Flags::empty()).await.unwrap();
                        expected[at as usize..at as usize + 512].fill(3);
                    }
                });
                same(&opened.read(0, size as usize), &expected, 0).unwrap();
                drop((image, disk));
                opened.close();
                qemu_img(&["check", "-f", "qcow2", path.to_str().unwrap()]).unwrap();
                let mut again = Opened::new(&path, Cache::Cached, ImageOptions::new());
                let what = format!("{version:?}, {policy:?}, {flags:?}");
                same(&again.read(0, size as usize), &expected, 0)
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
            }
        }
    }
}
