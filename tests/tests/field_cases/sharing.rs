//! F7: two writers of one new cluster over a backing file. F20: a write whose caller has gone, and the cluster that it
//! was for.

use std::path::Path;

use blkring_engine::sim::OpKind;
use blkring_engine::{Cache, Flags, IoMem, Request};
use blkring_qcow2::{AllocPolicy, CreateOptions, ImageOptions};
use blkring_tests::crowd::same;
use blkring_tests::duo::duo;
use blkring_tests::fs::Fs;
use blkring_tests::image_world::Setup;
use blkring_tests::images::{Opened, backing, create};
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::report::or_skip;

/// Bytes that each of the two writes.
const HALF: u64 = 512;

fn f7(fs: Fs, policy: AllocPolicy) {
    let Some(mount) = or_skip(Mount::new(fs, SectorSize::S512, 1024)) else { return };
    for (cluster_size, rounds) in [(4096, 1000), (65536, 500)] {
        let size = cluster_size * rounds;
        std::fs::write(mount.path().join("base.raw"), vec![0xAA; size as usize]).unwrap();
        let path = mount.path().join("top.qcow2");
        let backing = backing("base.raw", "raw");
        create(&path, &CreateOptions::new(size).cluster_size(cluster_size).backing(backing));
        two_halves(&path, policy, cluster_size, rounds);
    }
}

/// One round for each cluster: both write at once, one before the other half of the cluster and one behind it.
fn two_halves(path: &Path, policy: AllocPolicy, cluster_size: u64, rounds: u64) {
    let opened = Opened::new(path, Cache::Direct, ImageOptions::new().writable().policy(policy));
    let place = |round: u64, side: u64| round * cluster_size + cluster_size / 2 - HALF * side;
    let byte = |round: u64, side: u64| (2 * (round % 80) + side) as u8;
    let image = &opened.image;
    let side = |side: u64| {
        move |mut gate: blkring_tests::duo::Gate<'_>| {
            let mut own = Opened::beside(image);
            for round in 0..rounds {
                gate.pass();
                let mem = IoMem::aligned(&[byte(round, side); HALF as usize]);
                let disk = own.disk.clone();
                own.run(disk.write(place(round, side), mem, Flags::empty())).unwrap();
            }
        }
    };
    duo(side(0), side(1));
    let together = image.statistics().together;
    println!("F7: {rounds} rounds, clusters of {cluster_size}: {together} requests met another");
    assert!(together > 0, "no two writes were in the driver at once");
    let mut contents = vec![0xAA; (cluster_size * rounds) as usize];
    for (round, side) in (0..rounds).flat_map(|round| [(round, 0), (round, 1)]) {
        let at = place(round, side) as usize;
        contents[at..at + HALF as usize].fill(byte(round, side));
    }
    let mut opened = opened;
    let found = opened.read(0, contents.len());
    same(&found, &contents, 0).unwrap_or_else(|error| panic!("{error}"));
    opened.close();
    let mut again = Opened::new(path, Cache::Direct, ImageOptions::new());
    let found = again.read(0, contents.len());
    same(&found, &contents, 0).unwrap_or_else(|error| panic!("after closing: {error}"));
}

#[test]
fn f7_two_writers_of_one_new_cluster_on_xfs() {
    f7(Fs::Xfs, AllocPolicy::Ahead);
}

#[test]
fn f7_two_writers_of_one_new_cluster_on_ext4() {
    f7(Fs::Ext4, AllocPolicy::PerAllocation);
}

/// The write is held by the disk and its caller has dropped the receipt. The discard of its cluster waits for it, and
/// nobody is given the host cluster before it has landed.
#[test]
fn f20_the_cluster_of_a_dropped_write_is_not_used_again_under_it() {
    for seed in 0..20 {
        let mut w = Setup::new(16).queues(2).seed(seed).make();
        w.prepare(0..1, 0x11);
        let is_data = w.is_data();
        let old = w.handle(0).submit(Request::write(0, IoMem::from(vec![0x22; 4096]))).unwrap();
        let held = w.catch(|op| is_data(op));
        drop(old);
        let gone = w.discard(1, 0);
        for cluster in 1..4 {
            let new = w.fill(1, cluster, 0x30 + cluster as u8);
            w.finish(&new);
            let flushed = w.flush(1);
            w.finish(&flushed);
        }
        assert!(!gone.given(), "the discard waits for the write");
        w.release(&held);
        w.finish(&gone);
        w.flush_twice();
        // Now the cluster is free for others: the file need not grow any more for one of them.
        let mut reused = false;
        for cluster in 4..8 {
            let seen = w.disk.log().len() as u64;
            let new = w.fill(1, cluster, 0x30 + cluster as u8);
            w.finish(&new);
            reused |= w.accepted_since(seen).iter().any(|op| {
                op.kind == OpKind::Write && op.offset == held.offset && op.file == held.file
            });
        }
        assert!(reused, "seed {seed}: the cluster that was given up is used again");
        w.reads_as(0, 0..8, &[0]).unwrap();
        for cluster in 1..8 {
            w.reads_as(cluster, 0..8, &[0x30 + cluster as u8]).unwrap();
        }
    }
}

/// The same order of events on a real file, where nobody holds anything: whatever the interleaving, the new bytes win.
#[test]
fn f20_on_xfs() {
    const CLUSTER: u64 = 65536;
    let Some(mount) = or_skip(Mount::new(Fs::Xfs, SectorSize::S512, 512)) else { return };
    let path = mount.path().join("image.qcow2");
    let size = 16 * CLUSTER;
    create(&path, &CreateOptions::new(size));
    let options = ImageOptions::new().writable().reserve_bytes(2 * CLUSTER);
    let mut opened = Opened::new(&path, Cache::Direct, options);
    let disk = opened.disk.clone();
    let fill = |byte: u8| IoMem::aligned(&vec![byte; CLUSTER as usize]);
    for round in 0..300u64 {
        let (x, y) = (round % 16, (round + 1 + round % 7) % 16);
        let done = opened.run(async {
            drop(disk.submit(Request::write(x * CLUSTER, fill(0xEE))));
            disk.discard(x * CLUSTER, CLUSTER).await?;
            disk.flush().await?;
            disk.write(y * CLUSTER, fill(round as u8), Flags::empty()).await?;
            disk.flush().await
        });
        done.unwrap();
        let found = opened.read(y * CLUSTER, CLUSTER as usize);
        same(&found, &vec![round as u8; CLUSTER as usize], y * CLUSTER).unwrap();
        let found = opened.read(x * CLUSTER, CLUSTER as usize);
        same(&found, &vec![0; CLUSTER as usize], x * CLUSTER).unwrap();
    }
    let end = opened.image.storage().size();
    assert!(end < 40 * CLUSTER, "clusters are used again: the file has {end} bytes");
    opened.close();
}
