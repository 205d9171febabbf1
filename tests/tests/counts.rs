//! What an allocating write and a flush cost between two refills, counted by the driver and by the kernel.
//!
//! Without backing: one data write, one write of an L2 slice, one fdatasync; no fallocate, no refcount, no read. Over a
//! backing file with other bytes than zero a second fdatasync comes first: the data must not come after its link.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

use blkring_qcow2::CreateOptions;
use blkring_tests::counted::{BEGIN, END, PAIRS, Ready, between, opcode};
use blkring_tests::fs::Fs;
use blkring_tests::images::{backing, create};
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::report::{Skip, or_skip};
use blkring_tests::ring_trace::{Opcodes, RingTrace};
use blkring_tests::tools;

/// What lies under the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Below {
    Nothing,
    Bytes,
}

impl Below {
    fn image(self, directory: &Path) -> PathBuf {
        let size = 1 << 30;
        let path = directory.join("image.qcow2");
        let backing = match self {
            Below::Nothing => None,
            Below::Bytes => {
                std::fs::write(directory.join("base.raw"), vec![0xAA; 32 << 20]).unwrap();
                backing("base.raw", "raw")
            }
        };
        create(&path, &CreateOptions::new(size).backing(backing));
        path
    }
}

/// One pair, by the driver's own counters.
fn assert_one_pair(below: Below, own: &Opcodes, shared: &Opcodes) {
    let all = ["READ", "WRITE", "FSYNC", "FALLOCATE", "FTRUNCATE"];
    let [own, shared] = [own, shared].map(|counts| all.map(|name| opcode(counts, name)));
    match below {
        Below::Nothing => {
            assert_eq!(own, [0, 1, 0, 0, 0], "the data");
            assert_eq!(shared, [0, 1, 1, 0, 0], "the slice and its sync");
        }
        Below::Bytes => {
            assert_eq!(own, [0; 5], "the cluster is written whole by shared work");
            assert_eq!(shared, [2, 2, 2, 0, 0], "around the data, both writes, both syncs");
        }
    }
}

fn by_our_counters(fs: Fs, below: Below) {
    let Some(mount) = or_skip(Mount::new(fs, SectorSize::S512, 1024)) else { return };
    let mut ready = Ready::new(&below.image(mount.path()));
    for _ in 0..PAIRS {
        let before = ready.counts();
        ready.pair();
        let after = ready.counts();
        assert_one_pair(below, &between(before.0, after.0), &between(before.1, after.1));
    }
    ready.close();
}

fn strace() -> Result<(), Skip> {
    let works = tools::run("strace", &["-f", "-e", "trace=none", "true"]);
    works.map_err(|error| Skip::new(format!("strace cannot follow a process: {error}")))?;
    RingTrace::new().map(drop)
}

/// System calls in the window that name a file of the directory, which `-y` shows for descriptors too.
fn calls_on(directory: &Path, calls: &str) -> Vec<String> {
    let (_, after) = calls.split_once(BEGIN).expect("the window begins");
    let (window, _) = after.split_once(END).expect("the window ends");
    assert!(window.contains("io_uring_enter"), "the ring was entered in the window");
    let directory = directory.to_str().unwrap();
    window.lines().filter(|line| line.contains(directory)).map(str::to_owned).collect()
}

fn by_the_kernel(fs: Fs, below: Below) {
    if or_skip(strace()).is_none() {
        return;
    }
    let Some(mount) = or_skip(Mount::new(fs, SectorSize::S512, 1024)) else { return };
    let image = below.image(mount.path());
    let scratch = tempfile::tempdir().unwrap();
    let calls = scratch.path().join("calls");
    let mut command = Command::new(tools::find("strace").unwrap());
    command.args(["-f", "-y", "-o"]).arg(&calls).arg("-etrace=!mmap,munmap,futex");
    command.arg(env!("CARGO_BIN_EXE_child")).arg("count").arg(image);
    let table = tools::run_ok(&mut command);
    let calls = calls_on(mount.path(), &std::fs::read_to_string(&calls).unwrap());
    assert!(calls.is_empty(), "system calls beside the ring: {calls:#?}");
    println!(
        "{PAIRS} writes and flushes on {fs}, below: {below:?}; no other system call on a file\n{table}"
    );
    let sums = |name: &str| -> u64 {
        let row = table.lines().find(|row| row.split_whitespace().next() == Some(name));
        row.map_or(0, |row| row.split_whitespace().nth(1).unwrap().parse().unwrap())
    };
    let found = ["WRITE", "FSYNC", "READ", "FALLOCATE", "FTRUNCATE"].map(sums);
    match below {
        Below::Nothing => assert_eq!(found, [2 * PAIRS, PAIRS, 0, 0, 0]),
        Below::Bytes => assert_eq!(found, [2 * PAIRS, 2 * PAIRS, 2 * PAIRS, 0, 0]),
    }
}

#[test]
fn a_new_cluster_on_xfs_by_our_counters() {
    by_our_counters(Fs::Xfs, Below::Nothing);
}

#[test]
fn a_new_cluster_on_ext4_by_our_counters() {
    by_our_counters(Fs::Ext4, Below::Nothing);
}

#[test]
fn a_new_cluster_on_btrfs_by_our_counters() {
    by_our_counters(Fs::Btrfs, Below::Nothing);
}

#[test]
fn a_copied_cluster_on_xfs_by_our_counters() {
    by_our_counters(Fs::Xfs, Below::Bytes);
}

#[test]
fn a_new_cluster_on_xfs_by_the_kernel() {
    by_the_kernel(Fs::Xfs, Below::Nothing);
}

#[test]
fn a_new_cluster_on_ext4_by_the_kernel() {
    by_the_kernel(Fs::Ext4, Below::Nothing);
}

#[test]
fn a_copied_cluster_on_xfs_by_the_kernel() {
    by_the_kernel(Fs::Xfs, Below::Bytes);
}
