//! New images are, byte for byte, those of the installed qemu-img.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use blkring_qcow2::{Backing, Compatible, CreateOptions, Layout};
use blkring_tests::tools;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

fn create(path: &Path, options: &CreateOptions) -> Layout {
    let layout = Layout::plan(options).expect("valid options");
    let file = File::create(path).expect("a new file");
    file.set_len(layout.file_length).expect("room for it");
    for write in &layout.writes {
        file.write_all_at(&write.bytes, write.offset.get()).expect("room for it");
    }
    layout
}

fn compare(options: &CreateOptions) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    let mut command = Command::new("qemu-img");
    command.args(["create", "-q", "-u", "-f", "qcow2"]);
    command.arg(format!("-ocluster_size={}", options.cluster_size));
    if options.compatible.contains(Compatible::LAZY_REFCOUNTS) {
        command.arg("-olazy_refcounts=on");
    }
    if let Some(backing) = &options.backing {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        command.args(["-b", &text(&backing.name), "-F", &text(&backing.format)]);
    }
    command.arg(&theirs).arg(options.size.to_string());
    tools::run_ok(&mut command);
    create(&ours, options);
    let (ours, theirs) = (fs::read(ours).expect("ours"), fs::read(theirs).expect("theirs"));
    assert_eq!(ours.len(), theirs.len(), "{options:?}");
    if ours != theirs {
        let difference = ours.iter().zip(&theirs).position(|(a, b)| a != b);
        panic!("{options:?}: the first difference is at {difference:?}");
    }
}

fn options(cluster_size: u64, size: u64) -> CreateOptions {
    CreateOptions { cluster_size, size, ..CreateOptions::default() }
}

#[test]
fn images_without_backing() {
    if tools::missing("qemu-img") {
        return;
    }
    for bits in 9..=21 {
        for size in [0, 512, 1000, MIB, MIB + 512, 100 * MIB, GIB, 10 * GIB] {
            compare(&options(1 << bits, size));
        }
    }
    for (bits, size) in [(9, 510 * MIB), (9, 512 * MIB), (9, 2 * GIB), (9, 31 * GIB)] {
        compare(&options(1 << bits, size));
    }
    for (bits, size) in
        [(10, 64 * GIB), (11, TIB), (12, 8 * TIB), (16, 2048 * TIB), (21, TIB << 21)]
    {
        compare(&options(1 << bits, size));
    }
}

#[test]
fn images_with_backing_and_lazy_refcounts() {
    if tools::missing("qemu-img") {
        return;
    }
    for bits in 9..=21 {
        for (name, format) in [(1, "raw"), (8, "qcow2"), (376, "raw")] {
            let backing = Backing { name: vec![b'x'; name], format: format.into() };
            let compatible = Compatible::LAZY_REFCOUNTS;
            compare(&CreateOptions {
                backing: Some(backing),
                compatible,
                ..options(1 << bits, GIB)
            });
        }
    }
}

/// The one layout that differs: the refcount table is made large enough at once.
#[test]
fn images_whose_refcount_table_needs_more_than_one_cluster_check_clean() {
    if tools::missing("qemu-img") {
        return;
    }
    for gib in [32, 33, 128] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("ours");
        let layout = create(&path, &options(512, gib * GIB));
        assert!(layout.header.reftable().clusters > 1);
        let output =
            tools::run_ok(Command::new("qemu-img").args(["check", "-f", "qcow2"]).arg(path));
        assert!(output.contains("No errors were found"), "{output}");
    }
}
