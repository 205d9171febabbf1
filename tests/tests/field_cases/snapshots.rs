//! F60: a snapshot, writes over what it shares, and the bytes of the snapshot afterwards.

use std::path::Path;
use std::process::Command;

use blkring_engine::{Cache, Flags, IoMem, Request};
use blkring_qcow2::{CreateOptions, Version};
use blkring_tests::crowd::same;
use blkring_tests::fs::Fs;
use blkring_tests::images::{Opened, create};
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::report::or_skip;
use blkring_tests::tools::{missing, run_ok};

/// Guest clusters of the image.
const CLUSTERS: u64 = 40;

fn img(args: &[&str], path: &Path) {
    run_ok(Command::new("qemu-img").args(args).arg(path));
}

/// What the guest does to each cluster in turn, and what it leaves of old bytes `old`.
fn changes(at: u64, size: u64, old: &mut [u8]) -> Request {
    let (start, half) = (at * size, size / 2);
    let cluster = &mut old[start as usize..(start + size) as usize];
    let write = |from: u64, len: u64| {
        Request::write(start + from, IoMem::aligned(&vec![0x22; len as usize]))
    };
    match at % 5 {
        0 => {
            cluster.fill(0x22);
            write(0, size)
        }
        1 => {
            cluster[half as usize..][..7].fill(0x22);
            write(half, 7).with(Flags::FUA)
        }
        2 => {
            cluster.fill(0);
            Request::write_zeroes(start, size)
        }
        3 => {
            cluster[1..half as usize].fill(0);
            Request::write_zeroes(start + 1, half - 1)
        }
        _ => {
            cluster.fill(0);
            Request::discard(start, size)
        }
    }
}

fn f60(fs: Fs, version: Version) {
    if missing("qemu-img") {
        return;
    }
    let Some(mount) = or_skip(Mount::new(fs, SectorSize::S512, 512)) else { return };
    for cluster_size in [512, 65536, 2 << 20] {
        let path = mount.path().join("image.qcow2");
        let size = CLUSTERS * cluster_size;
        create(&path, &CreateOptions::new(size).cluster_size(cluster_size).version(version));
        let mut opened = Opened::writable(&path, Cache::Direct);
        let old: Vec<u8> = (0..size).map(|at| (at / 512 % 251) as u8 | 1).collect();
        let disk = opened.disk.clone();
        opened.run(disk.write(0, IoMem::aligned(&old), Flags::empty())).unwrap();
        opened.close();
        img(&["snapshot", "-c", "before"], &path);
        let mut now = old.clone();
        // The second round finds clusters of its own.
        for _ in 0..2 {
            let mut opened = Opened::writable(&path, Cache::Direct);
            for cluster in 0..CLUSTERS {
                let request = changes(cluster, cluster_size, &mut now);
                let disk = opened.disk.clone();
                opened.run(disk.request(request)).unwrap();
            }
            let found = opened.read(0, size as usize);
            same(&found, &now, 0).unwrap_or_else(|error| panic!("the guest: {error}"));
            opened.close();
            img(&["check", "-q", "-f", "qcow2"], &path);
        }
        let raw = mount.path().join("before.raw");
        let mut convert = Command::new("qemu-img");
        convert.args(["convert", "-f", "qcow2", "-O", "raw", "-l", "before"]);
        run_ok(convert.args([&path, &raw]));
        let found = std::fs::read(&raw).unwrap();
        same(&found, &old, 0).unwrap_or_else(|error| panic!("the snapshot: {error}"));
        std::fs::remove_file(&raw).unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn f60_a_snapshot_keeps_its_bytes_on_xfs() {
    f60(Fs::Xfs, Version::V3);
}

#[test]
fn f60_a_snapshot_keeps_its_bytes_on_ext4() {
    f60(Fs::Ext4, Version::V3);
}

#[test]
fn f60_a_snapshot_of_version_2_keeps_its_bytes() {
    f60(Fs::Ext4, Version::V2);
}
