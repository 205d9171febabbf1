//! Compressed clusters are overwritten, zeroed and given up, by several queues.

use blkring_engine::{Cache, Flags, IoMem};
use blkring_qcow2::{AllocPolicy, CheckLimits, Compression, ImageOptions, check};
use blkring_tests::crowd::Crowd;
use blkring_tests::fs::Fs;
use blkring_tests::images::Opened;
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::report::or_skip;

use crate::{BOTH, SIZES, assert_reads, contents, convert, judge, no_peers};

/// Random requests of three queues on what qemu-img has compressed.
fn crowd(fs: Fs, sector: SectorSize, cache: Cache, compression: Compression) {
    if no_peers() {
        return;
    }
    let Some(mount) = or_skip(Mount::new(fs, sector, 1024)) else { return };
    for (seed, (cluster, size)) in (1..).zip(SIZES) {
        let before = contents(size, seed);
        let path = convert(mount.path(), &before, cluster, compression);
        let policy =
            if seed.is_multiple_of(2) { AllocPolicy::PerAllocation } else { AllocPolicy::Ahead };
        let mut options = ImageOptions::new().writable().policy(policy);
        if seed > 2 {
            options = options.cache_bytes(1).reserve_bytes(4 * cluster).buffer_bytes(1);
        }
        let opened = Opened::new(&path, cache, options);
        let crowd = Crowd {
            queues: 3,
            lanes: 2,
            rounds: 80,
            fine: 512 << seed,
            coarse: (2 * cluster).clamp(4096, 2 << 20),
            seed,
        };
        let ended = crowd.run(&opened.image, before);
        let statistics = opened.image.statistics();
        println!(
            "{compression}, clusters of {cluster}, {policy:?}: {} requests, {} met one of another queue, {} decompressed",
            ended.requests, ended.together, statistics.decompressed_clusters,
        );
        assert!(ended.together > 0, "no two queues were in the driver at once");
        assert!(statistics.decompressed_clusters > 0);
        opened.close();
        judge(&path, &ended.contents);
        let mut again = Opened::new(&path, cache, ImageOptions::new());
        assert_reads(&mut again, &ended.contents, "after closing");
    }
}

#[test]
fn crowds_on_xfs_4096_direct() {
    crowd(Fs::Xfs, SectorSize::S4096, Cache::Direct, BOTH[0]);
}

#[test]
fn crowds_on_ext4_direct() {
    crowd(Fs::Ext4, SectorSize::S512, Cache::Direct, BOTH[1]);
}

#[test]
fn crowds_on_ext4_cached() {
    crowd(Fs::Ext4, SectorSize::S512, Cache::Cached, BOTH[0]);
}

/// Every way to give up a compressed cluster, until none is left: no host cluster is lost, and none is given away
/// while another's data is in it.
#[test]
fn what_shares_a_host_cluster_survives_its_neighbours() {
    if no_peers() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for (cluster, size) in SIZES {
        let clusters = (size / cluster).min(64);
        let mut expected = contents(clusters * cluster, 11);
        let path = convert(dir.path(), &expected, cluster, BOTH[0]);
        let mut left = clusters;
        for round in 0..4u64 {
            let mut opened = Opened::writable(&path, Cache::Cached);
            let disk = opened.disk.clone();
            for number in (round..clusters).step_by(4) {
                let at = number * cluster;
                let range = at as usize..(at + cluster) as usize;
                let write = |byte: u8, len: u64| IoMem::from(vec![byte; len as usize]);
                opened
                    .run(async {
                        match (number / 4 + round) % 5 {
                            0 => disk.write(at, write(0xe1, cluster), Flags::empty()).await,
                            1 => disk.write(at + 7, write(0xe2, 100), Flags::FUA).await,
                            2 => disk.write_zeroes(at, cluster, Flags::empty()).await,
                            3 => disk.write_zeroes(at, cluster, Flags::MAY_UNMAP).await,
                            _ => disk.discard(at, cluster).await,
                        }
                    })
                    .unwrap();
                match (number / 4 + round) % 5 {
                    0 => expected[range].fill(0xe1),
                    1 => expected[at as usize + 7..at as usize + 107].fill(0xe2),
                    _ => expected[range].fill(0),
                }
                left -= 1;
            }
            opened.close();
            judge(&path, &expected);
        }
        assert_eq!(left, 0);
        let bytes = std::fs::read(&path).unwrap();
        let report = check(&bytes, CheckLimits::default(), &mut |_| ()).unwrap();
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(report.compressed_clusters, 0);
    }
}
