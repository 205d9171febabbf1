//! What an allocating write and a flush cost between two refills, counted by the driver and by the kernel.
//!
//! Without backing: one data write, one write of an L2 slice, one fdatasync; no fallocate, no refcount, no read. Over a
//! backing file with other bytes than zero a second fdatasync comes first: the data must not come after its link.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::process::Command;

use blkring_engine::{Cache, Flags, IoMem, LaneCounts};
use blkring_qcow2::{CreateOptions, ImageOptions};
use blkring_tests::fs::Fs;
use blkring_tests::images::{Opened, backing, create};
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::report::{Skip, or_skip};
use blkring_tests::ring_trace::{Opcodes, RingTrace};
use blkring_tests::tools;

const CLUSTER: u64 = 65536;

/// Pairs of a write and a flush that are counted.
const PAIRS: u64 = 16;

/// Environment variable: the image of [`counted_in_a_process_of_its_own`].
const IMAGE_ENV: &str = "BLKRING_COUNTS_IMAGE";

/// File names that a look at marks the window with, in a list of system calls.
const BEGIN: &str = "/blkring-counts-begin";
const END: &str = "/blkring-counts-end";

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
        create(&path, &CreateOptions { size, backing, ..CreateOptions::default() });
        path
    }
}

/// An image with a reservation that lasts, synced, at rest.
struct Ready {
    opened: Opened,
    /// The next guest cluster that was never written.
    next: u64,
}

impl Ready {
    fn new(path: &Path) -> Self {
        let opened = Opened::new(path, Cache::Direct, ImageOptions::new().writable());
        let mut ready = Self { opened, next: 0 };
        // A refill begins when half of what the last one brought is gone: go on until one has just been.
        let mut before = 0;
        loop {
            ready.pair();
            let now = ready.opened.image.statistics().ready_clusters;
            if now > before && now > 4 * PAIRS {
                break;
            }
            before = now;
        }
        // What the refill left to be synced, and the flush that may have been beside it.
        for _ in 0..2 {
            ready.pair();
        }
        ready
    }

    /// Writes 4 KiB into a new cluster and flushes.
    fn pair(&mut self) {
        let disk = self.opened.disk.clone();
        let offset = self.next * CLUSTER + 8192;
        self.next += 1;
        assert!(self.next < 512, "all of it lies in one L2 slice");
        let mem = IoMem::aligned(&[0x5C; 4096]);
        let done = self.opened.run(async {
            disk.write(offset, mem, Flags::empty()).await?;
            disk.flush().await
        });
        done.unwrap();
    }

    /// Requests of the queue and shared work.
    fn counts(&self) -> (LaneCounts, LaneCounts) {
        (self.opened.queue.counts(), self.opened.image.service_counts())
    }
}

/// What was sent in between, by name.
fn between(before: LaneCounts, after: LaneCounts) -> Opcodes {
    let counts = [
        ("READ", after.reads - before.reads),
        ("WRITE", after.writes - before.writes),
        ("FSYNC", after.syncs - before.syncs),
        ("FALLOCATE", after.allocates - before.allocates),
        ("FTRUNCATE", after.truncates - before.truncates),
    ];
    counts.map(|(name, count)| (name.to_owned(), count)).into_iter().collect()
}

fn opcode(counts: &Opcodes, name: &str) -> u64 {
    counts.get(name).copied().unwrap_or(0)
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
    ready.opened.close();
}

/// The window, with the kernel's tracing on: run by [`by_the_kernel`] under strace.
#[test]
#[ignore = "needs an image, named by the test that runs it in a process of its own"]
fn counted_in_a_process_of_its_own() {
    let Some(path) = std::env::var_os(IMAGE_ENV) else { return };
    let mut ready = Ready::new(Path::new(&path));
    let trace = RingTrace::new().unwrap_or_else(|skip| panic!("{skip}"));
    let before = ready.counts();
    trace.begin().unwrap();
    assert!(!Path::new(BEGIN).exists());
    for _ in 0..PAIRS {
        ready.pair();
    }
    assert!(!Path::new(END).exists());
    let mut kernel = Opcodes::new();
    for (name, count) in trace.end().unwrap() {
        // One vector or many: a read is a read.
        *kernel.entry(name.trim_end_matches('V').to_owned()).or_default() += count;
    }
    let after = ready.counts();
    let (own, shared) = (between(before.0, after.0), between(before.1, after.1));
    let mut table = format!("{:12}{:>8}{:>8}{:>8}\n", "opcode", "kernel", "queue", "shared");
    for name in kernel.keys().chain(own.keys().filter(|name| !kernel.contains_key(*name))) {
        let [kernel, own, shared] = [&kernel, &own, &shared].map(|counts| opcode(counts, name));
        table += &format!("{name:12}{kernel:>8}{own:>8}{shared:>8}\n");
        // Polls of events are the engine's own: they touch no file.
        assert!(name == "POLL_ADD" || kernel == own + shared, "{table}");
    }
    println!("RING\n{table}");
    ready.opened.close();
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
    command.arg(std::env::current_exe().unwrap());
    command.args(["--exact", "counted_in_a_process_of_its_own", "--ignored", "--nocapture"]);
    let printed = tools::run_ok(command.env(IMAGE_ENV, &image));
    assert!(printed.contains("1 passed"), "{printed}");
    let calls = calls_on(mount.path(), &std::fs::read_to_string(&calls).unwrap());
    assert!(calls.is_empty(), "system calls beside the ring: {calls:#?}");
    let (_, table) = printed.split_once("RING\n").expect("the table is printed");
    let table = table.split("\n\n").next().unwrap();
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
