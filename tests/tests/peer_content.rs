//! Real content: a file system full of files, as qemu-img packs it in many ways, unpacked by ours and the reverse.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::Path;
use std::process::Command;

use blkring_tests::report::{Skip, or_skip};
use blkring_tests::tools::{self, run_ok};
use blkring_tests::twins::Twins;

/// Bytes of files that go into the file system, about.
const CONTENT: u64 = 180 << 20;

/// Copies files of this machine, down to so many bytes, into a directory.
fn gather(from: &Path, to: &Path, left: &mut u64) {
    let Ok(entries) = fs::read_dir(from) else { return };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let Ok(metadata) = path.symlink_metadata() else { continue };
        let target = to.join(path.file_name().unwrap());
        if *left == 0 {
            return;
        }
        if metadata.is_dir() {
            if fs::create_dir(&target).is_ok() {
                gather(&path, &target, left);
            }
        } else if metadata.is_file()
            && metadata.len() < 32 << 20
            && fs::copy(&path, &target).is_ok()
        {
            *left = left.saturating_sub(metadata.len());
        }
    }
}

fn file_system(twins: &Twins) -> Result<(), Skip> {
    let mkfs = tools::find("mkfs.ext4")?;
    let files = twins.path("files");
    fs::create_dir(&files).unwrap();
    let mut left = CONTENT;
    for place in ["/usr/bin", "/usr/include", "/usr/share", "/usr/lib"] {
        let target = files.join(place.replace('/', "_"));
        fs::create_dir(&target).unwrap();
        gather(Path::new(place), &target, &mut left);
    }
    if left > CONTENT / 2 {
        return Err(Skip::new("this machine has not enough files"));
    }
    let size = format!("{}k", (CONTENT >> 10) * 3 / 2);
    run_ok(
        Command::new(mkfs).args(["-q", "-F", "-d"]).args([&files, &twins.path("fs.raw")]).arg(size),
    );
    fs::remove_dir_all(files).unwrap();
    Ok(())
}

#[test]
fn a_file_system_survives_every_way() {
    let Some(twins) = Twins::new() else { return };
    if or_skip(file_system(&twins)).is_none() {
        return;
    }
    let original = fs::read(twins.path("fs.raw")).unwrap();
    let check = || {
        let e2fsck = tools::find("e2fsck").expect("it comes with mkfs.ext4");
        run_ok(Command::new(e2fsck).arg("-fn").arg(twins.path("back.raw")));
        assert!(fs::read(twins.path("back.raw")).unwrap() == original);
    };
    for options in [
        "",
        "-c",
        "-c -o compression_type=zstd",
        "-o compat=0.10",
        "-o cluster_size=512",
        "-o cluster_size=2M",
        "-c -o cluster_size=2M",
    ] {
        twins.theirs(&format!("convert -f raw -O qcow2 {options} fs.raw theirs"));
        twins.ours("convert -O raw theirs back.raw");
        check();
        fs::remove_file(twins.path("theirs")).unwrap();
    }
    for options in [
        "",
        "-W -m 16",
        "-o cluster_size=4k",
        "-o cluster_size=2M",
        "-c",
        "-c -o compression_type=zstd",
        "-c -W -m 16 -o cluster_size=4k",
        "-c -o cluster_size=2M,compression_type=zstd",
    ] {
        twins.ours(&format!("convert -f raw -O qcow2 {options} fs.raw ours"));
        twins.theirs("check -q ours");
        twins.theirs("compare fs.raw ours");
        twins.ours("convert -O raw ours back.raw");
        check();
    }
    split(&twins, original.len() as u64);
    twins.ours("convert -O raw top.q back.raw");
    check();
    twins.ours("convert -O qcow2 -B middle.q -F qcow2 top.q over.q");
    twins.theirs("compare fs.raw over.q");
    twins.theirs("check -q over.q");
}

/// Spreads the file system over a chain of three: each has its own parts, and other bytes where the next one covers.
fn split(twins: &Twins, size: u64) {
    twins.theirs(&format!("create -q -f qcow2 base.q {size}"));
    twins.theirs("create -q -f qcow2 -o cluster_size=4k -b base.q -F qcow2 middle.q");
    twins.theirs("create -q -f qcow2 -b middle.q -F qcow2 top.q");
    let third = ((size / 3) >> 20) << 20;
    for (name, start, end) in
        [("base.q", 0, size), ("middle.q", third, size), ("top.q", 2 * third, size)]
    {
        let part = twins.path("part.raw");
        let mut bytes = fs::read(twins.path("fs.raw")).unwrap();
        bytes[..start as usize].fill(0);
        fs::write(&part, &bytes[start as usize..end as usize]).unwrap();
        let shift = format!("write -q -s {} {start} {}", part.display(), end - start);
        if name != "top.q" {
            // What the next one covers is wrong here.
            let covered = start + third;
            let wrong = format!("write -q -P 9 {covered} {}", size - covered);
            twins.io("", name, &[&shift, &wrong]);
        } else {
            twins.io("", name, &[&shift]);
        }
    }
}
