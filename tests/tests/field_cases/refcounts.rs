//! F15: every width of refcounts with small, usual and large clusters, written at random.

use blkring_engine::Cache;
use blkring_qcow2::{AllocPolicy, CreateOptions, ImageOptions};
use blkring_tests::crowd::{Crowd, same};
use blkring_tests::images::{Opened, create};
use blkring_tests::tools::{missing, qemu_img, qemu_io};

/// Sizes of clusters, with the size of the disk.
const SIZES: [(u64, u64); 3] = [(512, (3 << 20) + 512), (65536, 24 << 20), (2 << 20, 60 << 20)];

/// A disk that many write at once; qemu finds nothing wrong with it, writes it too, and ours reads that.
fn f15(refcount_bits: u32) {
    if missing("qemu-img") || missing("qemu-io") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for (cluster_size, size) in SIZES {
        for (seed, policy) in [(0, AllocPolicy::Ahead), (1, AllocPolicy::PerAllocation)] {
            let path = directory.path().join("disk.qcow2");
            let plain = CreateOptions::new(size).cluster_size(cluster_size);
            create(&path, &plain.clone().refcount_bits(refcount_bits));
            let mut options = ImageOptions::new().writable().policy(policy);
            if refcount_bits > 8 {
                options = options.cache_bytes(1).reserve_bytes(4 * cluster_size).buffer_bytes(1);
            }
            let opened = Opened::new(&path, Cache::Cached, options);
            let (fine, coarse) = (4096, (2 * cluster_size).clamp(4096, 2 << 20));
            let seed = u64::from(refcount_bits) * 2 + seed;
            let crowd = Crowd { queues: 2, lanes: 4, rounds: 40, fine, coarse, seed };
            let ended = crowd.run(&opened.image, vec![0; size as usize]);
            opened.close();
            let name = path.to_str().unwrap();
            qemu_img(&["check", "-fqcow2", name]).unwrap_or_else(|error| panic!("{error}"));
            let mut contents = ended.contents;
            qemu_io(&["-fqcow2", "-c", "write -P 7 1M 1M", "-c", "discard 2M 512k", name]).unwrap();
            contents[1 << 20..2 << 20].fill(7);
            if cluster_size < 2 << 20 {
                contents[2 << 20..(2 << 20) + (512 << 10)].fill(0);
            }
            let mut reading = Opened::new(&path, Cache::Cached, ImageOptions::new());
            let found = reading.read(0, contents.len());
            same(&found, &contents, 0).unwrap_or_else(|error| panic!("{refcount_bits}: {error}"));
            qemu_img(&["check", "-fqcow2", name]).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

/// One test for each width.
macro_rules! widths {
    ($($test:ident: $bits:literal;)*) => {
        $(
            #[test]
            fn $test() {
                f15($bits);
            }
        )*
    };
}

widths! {
    f15_with_1_bit: 1;
    f15_with_2_bits: 2;
    f15_with_4_bits: 4;
    f15_with_8_bits: 8;
    f15_with_16_bits: 16;
    f15_with_32_bits: 32;
    f15_with_64_bits: 64;
}
