//! New images are, byte for byte, those of the installed qemu-img.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use blkring_qcow2::{Backing, Compatible, Compression, CreateOptions, Layout, Version};
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
    let compat = if options.version == Version::V2 { "0.10" } else { "1.1" };
    let compression = if options.compression == Compression::Zstd { "zstd" } else { "zlib" };
    command.arg(format!("-ocompat={compat}"));
    command.arg(format!("-orefcount_bits={}", options.refcount_bits));
    command.arg(format!("-ocompression_type={compression}"));
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
    CreateOptions::new(size).cluster_size(cluster_size)
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
            let backing = Backing::new(vec![b'x'; name], format);
            let compatible = Compatible::LAZY_REFCOUNTS;
            compare(&options(1 << bits, GIB).backing(Some(backing)).compatible(compatible));
        }
    }
}

/// Cluster sizes by the virtual sizes that are tried with them.
const SIZES: &[(u32, &[u64])] = &[
    (9, &[0, 1000, MIB, 100 * MIB, 510 * MIB, GIB]),
    (12, &[MIB, 10 * GIB]),
    (16, &[0, MIB + 512, GIB, 100 * TIB]),
    (21, &[0, GIB, 100 * TIB]),
];

#[test]
fn images_of_all_refcount_widths() {
    if tools::missing("qemu-img") {
        return;
    }
    for refcount_bits in [1, 2, 4, 8, 32, 64] {
        for (bits, sizes) in SIZES {
            for &size in *sizes {
                compare(&options(1 << bits, size).refcount_bits(refcount_bits));
            }
        }
    }
}

#[test]
fn images_of_version_2_and_of_zstd() {
    if tools::missing("qemu-img") {
        return;
    }
    for (bits, sizes) in SIZES {
        for &size in *sizes {
            let backing = Backing::new(b"a base", "qcow2");
            for backing in [None, Some(backing)] {
                let plain = options(1 << bits, size).backing(backing);
                compare(&plain.clone().version(Version::V2));
                compare(&plain.clone().compression(Compression::Zstd));
            }
        }
    }
}

#[test]
fn what_an_image_cannot_be_is_refused_as_qemu_img_does() {
    let old = || options(65536, MIB).version(Version::V2);
    let lazy = Compatible::LAZY_REFCOUNTS;
    let refused = [
        old().refcount_bits(8),
        old().compression(Compression::Zstd),
        old().compatible(lazy),
        options(65536, MIB).refcount_bits(0),
        options(65536, MIB).refcount_bits(3),
        options(65536, MIB).refcount_bits(128),
    ];
    for options in refused {
        let error = Layout::plan(&options).expect_err("no such image");
        assert_eq!(error.errno(), libc::EINVAL, "{error}");
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
