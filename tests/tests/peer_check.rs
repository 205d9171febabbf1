//! Our checker and the installed qemu-img find the same in intact and damaged images.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use blkring_qcow2::{Access, CheckLimits, CheckReport, Header, L1Table, Snapshot, check};
use blkring_tests::tools;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

const CLUSTER: u64 = 65536;
const COPIED: u64 = 1 << 63;
const COMPRESSED: u64 = 1 << 62;

/// Places in the image that [`base`] makes.
const REFTABLE: u64 = CLUSTER;
const REFBLOCK: u64 = 2 * CLUSTER;
const L1: u64 = 3 * CLUSTER;
const L2: u64 = 4 * CLUSTER;
const DATA: u64 = 5 * CLUSTER;
const END: u64 = 10 * CLUSTER;
/// An entry of the first L2 table that maps nothing.
const FREE_ENTRY: u64 = L2 + 80;

struct Scratch {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Scratch {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("image");
        Self { _dir: dir, path }
    }

    fn create(&self, options: &str, size: &str) {
        let mut command = Command::new("qemu-img");
        command.args(["create", "-q", "-f", "qcow2", "-o", options]).arg(&self.path).arg(size);
        tools::run_ok(&mut command);
    }

    fn io(&self, commands: &[&str]) {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "qcow2"]);
        command.args(commands.iter().flat_map(|text| ["-c", text]));
        tools::run_ok(command.arg(&self.path));
    }
}

/// Two L2 tables, four allocated clusters one of which reads as zeros, one plain zero cluster.
fn base() -> Vec<u8> {
    let scratch = Scratch::new();
    scratch.create("cluster_size=64k", "1G");
    scratch.io(&["write 0 192k", "write 600M 64k", "write -z 1M 64k", "write -z 64k 64k"]);
    let bytes = fs::read(&scratch.path).expect("the image");
    assert_eq!(bytes.len() as u64, END);
    assert_eq!(get(&bytes, L1), L2 | COPIED);
    assert_eq!(get(&bytes, L2), DATA | COPIED);
    bytes
}

fn get(bytes: &[u8], offset: u64) -> u64 {
    let start = offset as usize;
    u64::from_be_bytes(bytes[start..start + 8].try_into().expect("eight bytes"))
}

fn ours(bytes: &[u8]) -> (CheckReport, Vec<String>) {
    let mut found = Vec::new();
    let report = check(&bytes.to_vec(), CheckLimits::default(), &mut |finding| {
        found.push(finding.to_string());
    });
    (report.expect("a result"), found)
}

fn theirs(path: &Path) -> (CheckReport, String) {
    let mut command = Command::new("qemu-img");
    command.args(["check", "-f", "qcow2", "--output=json"]).arg(path);
    let output = command.output().expect("the program was found before");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let fields: HashMap<String, serde_json::Value> =
        serde_json::from_slice(&output.stdout).expect("JSON");
    let number = |name: &str| fields.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0);
    let mut report = CheckReport::default();
    report.check_errors = number("check-errors");
    report.image_end_offset = number("image-end-offset");
    report.corruptions = number("corruptions");
    report.leaks = number("leaks");
    report.total_clusters = number("total-clusters");
    report.allocated_clusters = number("allocated-clusters");
    report.fragmented_clusters = number("fragmented-clusters");
    report.compressed_clusters = number("compressed-clusters");
    (report, stderr)
}

fn both(label: &str, bytes: &[u8]) -> (CheckReport, CheckReport) {
    let scratch = Scratch::new();
    fs::write(&scratch.path, bytes).expect("room for it");
    let ((ours, found), (theirs, stderr)) = (ours(bytes), theirs(&scratch.path));
    println!("{label}: {ours:?}\n  {}\n{theirs:?}\n  {stderr}", found.join("\n  "));
    (ours, theirs)
}

fn same(label: &str, bytes: &[u8]) -> CheckReport {
    let (ours, theirs) = both(label, bytes);
    assert_eq!(ours, theirs, "{label}");
    ours
}

fn be64(value: u64) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

fn poked(base: &[u8], pokes: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = base.to_vec();
    for (offset, data) in pokes {
        let start = *offset as usize;
        bytes[start..start + data.len()].copy_from_slice(data);
    }
    bytes
}

/// The refcount of `cluster` as a poke.
fn refcount(cluster: u64, count: u16) -> (u64, Vec<u8>) {
    (REFBLOCK + 2 * cluster, count.to_be_bytes().to_vec())
}

type Damage = (&'static str, Vec<(u64, Vec<u8>)>);

fn refcount_damage() -> Vec<Damage> {
    let data = DATA / CLUSTER;
    vec![
        ("a count of a cluster behind the end", vec![refcount(20, 1)]),
        ("a count too high", vec![refcount(data, 2)]),
        ("a count of zero", vec![refcount(data, 0)]),
        ("header uncounted", vec![refcount(0, 0)]),
        ("refcount table uncounted", vec![refcount(1, 0)]),
        ("refcount block uncounted", vec![refcount(2, 0)]),
        ("L1 uncounted", vec![refcount(3, 0)]),
        ("L2 uncounted", vec![refcount(4, 0)]),
        ("L2 counted twice", vec![refcount(4, 2)]),
        ("block entry with reserved bits", vec![(REFTABLE, be64(REFBLOCK | 1))]),
        ("block entry unaligned", vec![(REFTABLE, be64(REFBLOCK + 512))]),
        ("further block entry unaligned", vec![(REFTABLE + 8, be64(REFBLOCK + 512))]),
        ("block far behind the end", vec![(REFTABLE + 8, be64(1 << 40))]),
        ("block right behind the end", vec![(REFTABLE + 8, be64(END))]),
        ("block beyond every offset", vec![(REFTABLE + 8, be64(1 << 60))]),
        ("no block", vec![(REFTABLE, be64(0))]),
        ("one block twice", vec![(REFTABLE + 8, be64(REFBLOCK))]),
        ("the table as its block", vec![(REFTABLE, be64(REFTABLE))]),
        ("data as a block", vec![(REFTABLE, be64(DATA))]),
        ("no refcount table", vec![(56, vec![0; 4])]),
        ("refcount table behind the end", vec![(48, be64(1 << 40))]),
        ("marked corrupt", vec![(72, be64(2))]),
        ("marked dirty, with a count of zero", vec![(72, be64(1)), refcount(data, 0)]),
    ]
}

fn entry_damage() -> Vec<Damage> {
    let data = DATA / CLUSTER;
    let free = |raw: u64| vec![(FREE_ENTRY, be64(raw))];
    let twice = [(FREE_ENTRY, be64(DATA)), (L2, be64(DATA)), refcount(data, 2)];
    vec![
        ("L2 entry without COPIED", vec![(L2, be64(DATA))]),
        ("L1 entry without COPIED", vec![(L1, be64(L2))]),
        ("L2 entry with reserved bit 1", vec![(L2, be64(DATA | COPIED | 2))]),
        ("L2 entry with reserved bit 61", vec![(L2, be64(DATA | COPIED | 1 << 61))]),
        ("reserved bits alone", free(2)),
        ("reserved bits and unaligned", free((DATA + 512) | COPIED | 2)),
        ("L1 entry with reserved bit 0", vec![(L1, be64(L2 | COPIED | 1))]),
        ("L1 entry with reserved bit 60", vec![(L1, be64(L2 | COPIED | 1 << 60))]),
        ("data unaligned", vec![(L2, be64((DATA + 512) | COPIED))]),
        ("kept zeros unaligned", vec![(L2, be64((DATA + 512) | COPIED | 1))]),
        ("one cluster twice", free(DATA | COPIED)),
        ("one cluster twice, so counted", twice.to_vec()),
        ("data right behind the end", free(END | COPIED)),
        ("data a cluster behind the end", free((END + CLUSTER) | COPIED)),
        ("data far behind the end", free(1 << 50 | COPIED)),
        ("data at the last offset", free(((1 << 56) - CLUSTER) | COPIED)),
        ("kept zeros far behind the end", free(1 << 50 | COPIED | 1)),
        ("L2 far behind the end", vec![(L1 + 8, be64(1 << 50 | COPIED))]),
        ("L2 right behind the end", vec![(L1 + 8, be64(END | COPIED))]),
        ("compressed", free(COMPRESSED | DATA)),
        ("compressed over two clusters", free(COMPRESSED | 1 << 54 | (DATA + CLUSTER - 100))),
        ("compressed, 100 sectors", free(COMPRESSED | 99 << 54 | (DATA + CLUSTER - 100))),
        ("compressed with COPIED", free(COMPRESSED | COPIED | DATA)),
        ("compressed behind the end", free(COMPRESSED | 1 << 40)),
        ("data over the refcount table", free(COPIED | REFTABLE)),
        ("data over a refcount block", free(COPIED | REFBLOCK)),
        ("data over L1", free(COPIED | L1)),
        ("data over L2", free(COPIED | L2)),
        ("L1 as L2", vec![(L1, be64(L1 | COPIED))]),
        ("L2 twice", vec![(L1 + 8, be64(L2 | COPIED))]),
        ("L1 behind the end", vec![(40, be64(1 << 40))]),
    ]
}

#[test]
fn damaged_images() {
    if tools::missing("qemu-img") {
        return;
    }
    let base = base();
    assert!(same("intact", &base).is_clean());
    for (label, pokes) in refcount_damage().into_iter().chain(entry_damage()) {
        same(label, &poked(&base, &pokes));
    }
}

#[test]
fn truncated_images() {
    if tools::missing("qemu-img") {
        return;
    }
    let base = base();
    for length in [
        END - 1,
        END - 512,
        END - CLUSTER / 2,
        END - CLUSTER + 1,
        END - CLUSTER,
        END - CLUSTER - 1,
        DATA,
        L2 + 100,
        L2,
        L1 + 8,
        L1,
        L1 - 1,
        REFBLOCK + 4,
        REFBLOCK,
        REFBLOCK - 1,
    ] {
        same(&format!("{length} bytes"), &base[..length as usize]);
    }
}

/// Where we are stricter on purpose: both must say that something is wrong, or we alone.
#[test]
fn differences() {
    if tools::missing("qemu-img") {
        return;
    }
    let base = base();
    let (ours, theirs) = both("L2 unaligned", &poked(&base, &[(L1, be64((L2 + 512) | COPIED))]));
    assert!(ours.corruptions > 0 && theirs.corruptions > 0);
    let (ours, theirs) = both("L1 over the header", &poked(&base, &[(40, be64(0))]));
    assert!(ours.corruptions > 0 && theirs.corruptions > 0);
    let (ours, theirs) = both("COPIED without an L2", &poked(&base, &[(L1, be64(COPIED))]));
    assert!(ours.corruptions > 0 && theirs.corruptions > 0);
    let (ours, theirs) = both("COPIED alone", &poked(&base, &[(FREE_ENTRY, be64(COPIED))]));
    assert_eq!((ours.corruptions, theirs.corruptions), (1, 0));
    let shared = [(FREE_ENTRY, be64(L1)), refcount(L1 / CLUSTER, 2)];
    let (ours, theirs) = both("data over L1, so counted", &poked(&base, &shared));
    assert_eq!((ours.corruptions, theirs.corruptions), (1, 0));
}

#[test]
fn images_of_all_cluster_sizes() {
    if tools::missing("qemu-img") {
        return;
    }
    for bits in 9..=21 {
        let scratch = Scratch::new();
        scratch.create(&format!("cluster_size={}", 1u64 << bits), "3G");
        scratch.io(&[
            "write 0 300k",
            "write 2M 1k",
            "write 1G 700k",
            "write -z 1G 64k",
            "discard 256k 4M",
            "write 3071M 1M",
            "write 5M 513",
            "write -z -u 2G 16M",
        ]);
        let report = same(&format!("2^{bits}"), &fs::read(&scratch.path).expect("the image"));
        assert!(report.is_clean(), "{report:?}");
    }
}

#[test]
fn compressed_images() {
    if tools::missing("qemu-img") {
        return;
    }
    for bits in [9, 12, 16, 21] {
        let (plain, packed) = (Scratch::new(), Scratch::new());
        plain.create(&format!("cluster_size={}", 1u64 << bits), "8M");
        plain.io(&[
            "write -P 1 0 300k",
            "write -P 2 2M 1M",
            "write -z 4M 64k",
            "write -P 5 6M 64k",
        ]);
        let mut command = Command::new("qemu-img");
        command.args(["convert", "-c", "-O", "qcow2", "-o"]);
        command.arg(format!("cluster_size={}", 1u64 << bits)).arg(&plain.path).arg(&packed.path);
        tools::run_ok(&mut command);
        packed.io(&["write -P 3 100k 1k", "write -P 4 2M 512"]);
        let report = same(&format!("2^{bits}"), &fs::read(&packed.path).expect("the image"));
        assert!(report.is_clean() && report.compressed_clusters > 0, "{report:?}");
    }
}

/// One damaged place: an entry of a table or a count, with a value that could be right.
fn damage() -> impl Strategy<Value = (u64, Vec<u8>)> {
    let flags = prop_oneof![
        4 => Just(COPIED),
        2 => Just(0),
        1 => Just(COPIED | 1),
        1 => Just(COMPRESSED),
        1 => Just(COPIED | COMPRESSED | 3 << 54),
        1 => Just(1 << 57),
        1 => Just(COPIED | 512),
    ];
    let entry = (0u64..13, flags).prop_map(|(cluster, flags)| be64((cluster * CLUSTER) | flags));
    let l1 = (0u64..2, 1u64..13, prop_oneof![Just(COPIED), Just(0), Just(COPIED | 1 << 57)])
        .prop_map(|(index, cluster, flags)| (L1 + index * 8, be64((cluster * CLUSTER) | flags)));
    let l2 = (prop_oneof![Just(L2), Just(L2 + 4 * CLUSTER)], 0u64..20, entry)
        .prop_map(|(table, index, entry)| (table + index * 8, entry));
    let counts = (0u64..13, 0u16..3).prop_map(|(cluster, count)| refcount(cluster, count));
    let reftable = (0u64..3, 0u64..12, prop_oneof![4 => Just(0), 1 => Just(1), 1 => Just(512)])
        .prop_map(|(index, cluster, flags)| {
            (REFTABLE + index * 8, be64((cluster * CLUSTER) | flags))
        });
    prop_oneof![3 => l1, 6 => l2, 6 => counts, 1 => reftable]
}

#[test]
fn random_damage() {
    if tools::missing("qemu-img") {
        return;
    }
    let base = base();
    let scratch = Scratch::new();
    let compared = std::cell::Cell::new(0);
    let mut runner = TestRunner::new(ProptestConfig { cases: 150, ..ProptestConfig::default() });
    let result = runner.run(&prop::collection::vec(damage(), 1..5), |pokes| {
        let bytes = poked(&base, &pokes);
        let (ours, found) = ours(&bytes);
        // Known differences; see `differences`.
        if found.iter().any(|text| text.contains("holds metadata") || text.contains("names no")) {
            return Ok(());
        }
        fs::write(&scratch.path, &bytes).expect("room for it");
        let (theirs, stderr) = theirs(&scratch.path);
        prop_assert_eq!(ours, theirs, "{:#?}\n{}", found, stderr);
        compared.set(compared.get() + 1);
        Ok(())
    });
    result.expect("the same numbers");
    assert!(compared.get() > 75, "{}", compared.get());
}

/// Two snapshots, with data and tables that each of them shares with the guest or has alone.
fn with_snapshots() -> Vec<u8> {
    let scratch = Scratch::new();
    scratch.create("cluster_size=64k", "2G");
    let snapshot = |name: &str| {
        let mut command = Command::new("qemu-img");
        tools::run_ok(command.args(["snapshot", "-c", name]).arg(&scratch.path));
    };
    scratch.io(&["write 0 256k", "write 600M 64k", "write 1200M 128k", "write -z 64k 64k"]);
    snapshot("first");
    scratch.io(&["write 0 64k", "write -z 128k 64k", "discard 600M 64k"]);
    snapshot("second");
    scratch.io(&["write 0 64k", "write 192k 64k", "write 1800M 64k"]);
    fs::read(&scratch.path).expect("the image")
}

#[test]
fn images_with_snapshots() {
    if tools::missing("qemu-img") {
        return;
    }
    let base = with_snapshots();
    assert!(same("intact", &base).is_clean());
    let header = Header::parse(&base, Access::Check).expect("an image");
    let snapshots = Snapshot::list(&base, &header).expect("the table is sound");
    let tables = |l1: L1Table| {
        let entry = move |index| l1.offset.get() + index * 8;
        (0..u64::from(l1.entries)).map(entry).filter(|at| get(&base, *at) != 0).collect::<Vec<_>>()
    };
    let mut entries: Vec<(String, u64)> = Vec::new();
    let active = tables(header.l1());
    entries.extend(active.iter().map(|at| ("active L1".to_owned(), *at)));
    for snapshot in &snapshots {
        entries.extend(tables(snapshot.l1).into_iter().map(|at| (snapshot.name.clone(), at)));
    }
    for at in active {
        let table = get(&base, at) & ((1 << 56) - 512);
        let used = (0..CLUSTER / 8).map(|index| table + index * 8).filter(|at| get(&base, *at) > 1);
        entries.extend(used.map(|at| ("active L2".to_owned(), at)));
    }
    assert!(entries.len() > 15, "{entries:?}");
    for (label, at) in entries {
        let raw = get(&base, at);
        for (change, damaged) in [("COPIED", raw ^ COPIED), ("nothing", 0), ("behind", 1 << 40)] {
            same(&format!("{label} at {at:#x}: {change}"), &poked(&base, &[(at, be64(damaged))]));
        }
    }
    for cluster in 0..base.len() as u64 / CLUSTER {
        for count in 0..4 {
            same(
                &format!("count {count} of cluster {cluster}"),
                &poked(&base, &[refcount(cluster, count)]),
            );
        }
    }
}
