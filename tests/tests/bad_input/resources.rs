//! Large claims, made cheaply: sparse files whose headers and tables are as large as they may be. Measured in a process
//! of its own.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use blkring_qcow2::CreateOptions;
use blkring_tests::deadline::at_best_within;
use blkring_tests::hostile::sample;
use blkring_tests::images::{backing, create};
use blkring_tests::tools::run_ok;

use crate::{AT_ONCE, put, put_u32};

/// What one image may take, in KiB.
const MEMORY: u64 = 64 << 10;

const MIB: u64 = 1 << 20;

/// The flag of entries whose cluster is theirs alone.
const COPIED: u64 = 1 << 63;

/// Where the tables of these images are; what they name lies behind.
const L1: u64 = 64 * MIB;
const REFTABLE: u64 = 128 * MIB;
const BEHIND: u64 = 256 * MIB;

/// An image with tables of its own choice.
struct Claim {
    cluster_bits: u32,
    /// Numbers of the L1 table, by index, and how many there are.
    l1: (fn(u64) -> u64, u64),
    /// The same of the refcount table.
    reftable: (fn(u64) -> u64, u64),
    /// Bytes of the file, nearly all of them a hole.
    length: u64,
}

impl Claim {
    fn write(&self, directory: &Path) -> PathBuf {
        let path = directory.join("claim");
        let cluster = 1 << self.cluster_bits;
        let mut header = sample(512)[..512].to_vec();
        put_u32(&mut header, 20, self.cluster_bits);
        put(&mut header, 24, cluster * cluster / 8 * self.l1.1.min(1000));
        put_u32(&mut header, 36, self.l1.1 as u32);
        put(&mut header, 40, L1);
        put(&mut header, 48, REFTABLE);
        put_u32(&mut header, 56, (self.reftable.1 * 8).div_ceil(cluster) as u32);
        let file = File::create(&path).unwrap();
        file.set_len(self.length).unwrap();
        file.write_all_at(&header, 0).unwrap();
        for (at, (entry, count)) in [(L1, self.l1), (REFTABLE, self.reftable)] {
            let table: Vec<u8> = (0..count).flat_map(|i| entry(i).to_be_bytes()).collect();
            if table.iter().any(|byte| *byte != 0) {
                file.write_all_at(&table, at).unwrap();
            }
        }
        path
    }
}

/// Opens it, asks everything of it, and measures.
fn measure(what: &str, path: &Path) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_child"));
    child.arg("hostile").arg(path);
    let printed = at_best_within(AT_ONCE, what, || run_ok(&mut child));
    println!("{what}: {printed}");
    let kib: u64 = printed.split(' ').next().unwrap().parse().unwrap();
    assert!(kib <= MEMORY, "{what} took {kib} KiB");
    printed
}

fn claims(what: &str, claim: &Claim) {
    let directory = tempfile::tempdir().unwrap();
    measure(what, &claim.write(directory.path()));
}

const EMPTY: fn(u64) -> u64 = |_| 0;

#[test]
fn a_sound_image() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sample");
    std::fs::write(&path, sample(65536)).unwrap();
    let printed = measure("a sound image", &path);
    assert!(printed.ends_with("opened\n[]\n"), "{printed}");
}

#[test]
fn an_l1_table_of_32_mib_that_is_empty() {
    let claim =
        Claim { cluster_bits: 16, l1: (EMPTY, 4 * MIB), reftable: (EMPTY, 8192), length: BEHIND };
    claims("an empty L1 table of 32 MiB", &claim);
}

#[test]
fn an_l1_table_of_32_mib_that_is_full() {
    let entry = |i| (BEHIND + i * 512) | COPIED;
    let claim =
        Claim { cluster_bits: 9, l1: (entry, 4 * MIB), reftable: (EMPTY, 64), length: 8 << 30 };
    claims("a full L1 table of 32 MiB", &claim);
}

#[test]
fn tables_as_large_and_as_many_as_may_be() {
    let entry = |i| if i < 1_450_000 { (BEHIND + i * 512) | COPIED } else { 0 };
    let claim =
        Claim { cluster_bits: 9, l1: (entry, 4 * MIB), reftable: (EMPTY, MIB), length: 8 << 30 };
    claims("as many tables as may be", &claim);
}

/// Each of the two is within bounds; both are too much.
#[test]
fn a_chain_of_large_tables() {
    let directory = tempfile::tempdir().unwrap();
    for (name, below) in [("top", backing("base", "qcow2")), ("base", None)] {
        let options = CreateOptions::new(127 << 30).cluster_size(512).backing(below);
        create(&directory.path().join(name), &options);
    }
    let printed = measure("a chain of large tables", &directory.path().join("top"));
    assert!(printed.contains("bytes of tables in the image and its chain"), "{printed}");
}

#[test]
fn a_refcount_table_of_8_mib_that_is_full() {
    let block = |i| BEHIND + i * 65536;
    let claim =
        Claim { cluster_bits: 16, l1: (EMPTY, 16), reftable: (block, MIB), length: 1 << 43 };
    claims("a full refcount table of 8 MiB", &claim);
}

#[test]
fn a_refcount_table_whose_blocks_are_all_the_same() {
    let claim =
        Claim { cluster_bits: 16, l1: (EMPTY, 16), reftable: (|_| BEHIND, MIB), length: 1 << 43 };
    claims("a refcount table of one block", &claim);
}

#[test]
fn vast_l2_tables() {
    let entry = |i| (BEHIND + i * 2 * MIB) | COPIED;
    let claim =
        Claim { cluster_bits: 21, l1: (entry, 4000), reftable: (EMPTY, 64), length: 1 << 43 };
    claims("4000 L2 tables of 2 MiB", &claim);
    let claim = Claim { l1: (entry, 60), ..claim };
    claims("60 L2 tables of 2 MiB", &claim);
}

#[test]
fn a_long_chain() {
    let directory = tempfile::tempdir().unwrap();
    for number in 0..150 {
        let below = (number + 1).to_string();
        let options = CreateOptions::new(1 << 40)
            .backing(backing(&below, if number == 149 { "raw" } else { "qcow2" }));
        create(&directory.path().join(number.to_string()), &options);
    }
    std::fs::write(directory.path().join("150"), [1; 100]).unwrap();
    let printed = measure("a chain of 150 images", &directory.path().join("0"));
    assert!(printed.ends_with("opened\n[]\n"), "{printed}");
}
