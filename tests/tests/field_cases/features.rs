//! F71: an encrypted image is refused. So is every other feature that cannot be handled, by its name; and what may be
//! ignored is ignored, as the format says.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use blkring_engine::{Cache, Flags, IoMem};
use blkring_qcow2::{Access, Header, HeaderError, ImageOptions, OpenError};
use blkring_tests::images::{Opened, queue, try_open};
use blkring_tests::tools::{find, missing, qemu_img, qemu_io};

/// Why an image is not opened.
fn refusal(path: &Path, options: ImageOptions) -> HeaderError {
    match try_open(&mut queue(), path, Cache::Cached, options) {
        Err(OpenError::Header { path: named, source }) => {
            assert_eq!(&*named, path.to_str().unwrap());
            source
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("{} was opened", path.display()),
    }
}

fn made(directory: &Path, options: &[&str]) -> std::path::PathBuf {
    let path = directory.join("disk.qcow2");
    let name = path.to_str().unwrap();
    qemu_img(&[&["create", "-q", "-fqcow2"], options, &[name, "4M"]].concat()).unwrap();
    path
}

fn header(path: &Path) -> Header {
    Header::parse(&std::fs::read(path).unwrap(), Access::Read).unwrap()
}

fn write(path: &Path) {
    let mut opened = Opened::writable(path, Cache::Cached);
    let disk = opened.disk.clone();
    let mem = IoMem::from(vec![9; 100_000]);
    opened.run(disk.write(1 << 20, mem, Flags::empty())).unwrap();
    opened.close();
}

fn poke(path: &Path, offset: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

#[test]
fn f71_what_cannot_be_handled_is_refused_by_name() {
    if missing("qemu-img") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let data = format!("data_file={}", directory.path().join("data").display());
    let secret = ["--object", "secret,id=s,data=abc"];
    let luks = "encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10";
    let images: [(&[&str], HeaderError); 3] = [
        (&[secret[0], secret[1], "-o", luks], HeaderError::Encrypted { method: 2 }),
        (&["-o", "extended_l2=on"], HeaderError::ExtendedL2),
        (&["-o", &data], HeaderError::ExternalData),
    ];
    for (options, expected) in images {
        let path = made(directory.path(), options);
        for options in [ImageOptions::new(), ImageOptions::new().writable()] {
            let error = refusal(&path, options);
            assert_eq!((error.errno(), error), (libc::ENOTSUP, expected.clone()));
        }
    }
    // The older method, which no qemu makes any more.
    let path = made(directory.path(), &[]);
    poke(&path, 32, &1u32.to_be_bytes());
    assert_eq!(refusal(&path, ImageOptions::new()), HeaderError::Encrypted { method: 1 });
    // A bit that nobody knows.
    let path = made(directory.path(), &[]);
    poke(&path, 72, &(1u64 << 40).to_be_bytes());
    let error = refusal(&path, ImageOptions::new()).to_string();
    assert!(error.contains("bit 40"), "{error}");
}

#[test]
fn unknown_bits_that_may_be_ignored_are_kept_or_cleared() {
    if missing("qemu-img") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = made(directory.path(), &[]);
    poke(&path, 80, &(1u64 << 41).to_be_bytes());
    poke(&path, 88, &(1u64 << 42).to_be_bytes());
    drop(Opened::new(&path, Cache::Cached, ImageOptions::new()));
    assert_eq!(header(&path).autoclear().bits(), 1 << 42, "a reader clears nothing");
    write(&path);
    assert_eq!(header(&path).autoclear().bits(), 0, "whoever writes does not maintain it");
    assert_eq!(header(&path).compatible().bits(), 1 << 41);
    qemu_img(&["check", "-fqcow2", path.to_str().unwrap()]).unwrap();
}

/// Bitmaps are not maintained, so they count no more, and qemu agrees.
#[test]
fn bitmaps_are_out_of_date_once_the_image_is_written() {
    if missing("qemu-img") || missing("qemu-io") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = made(directory.path(), &[]);
    let name = path.to_str().unwrap();
    qemu_img(&["bitmap", "-fqcow2", "--add", name, "changes"]).unwrap();
    qemu_io(&["-fqcow2", "-c", "write -P 3 0 64k", name]).unwrap();
    assert_eq!(header(&path).autoclear().bits(), 1);
    write(&path);
    assert_eq!(header(&path).autoclear().bits(), 0);
    assert!(!qemu_img(&["info", name]).unwrap().stdout.contains("changes"));
    let reads = ["-c", "read -P 3 0 64k", "-c", "read -P 9 1M 100000"];
    qemu_io(&[&["-fqcow2", "-r"], &reads[..], &[name]].concat()).unwrap();
    qemu_img(&["check", "-q", "-fqcow2", "-r", "leaks", name]).unwrap();
    write(&path);
    qemu_img(&["check", "-fqcow2", name]).unwrap();
}

/// Lazy refcounts: an image that was closed is written, with exact refcounts; one that was not is only read.
#[test]
fn an_image_marked_dirty_is_only_read_until_it_is_repaired() {
    if missing("qemu-img") || missing("qemu-io") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = made(directory.path(), &["-o", "lazy_refcounts=on"]);
    let name = path.to_str().unwrap();
    write(&path);
    assert_eq!(header(&path).incompatible().bits(), 0);
    assert_eq!(header(&path).compatible().bits(), 1, "others may go on to be lazy");
    qemu_img(&["check", "-fqcow2", name]).unwrap();
    // qemu is lazy, and is killed.
    let mut killed = Command::new(find("qemu-io").unwrap());
    killed.args(["-fqcow2", "-c", "write -P 5 0 64k", "-c", "flush", "-c", "sigraise 9", name]);
    assert!(!killed.output().unwrap().status.success());
    assert_eq!(header(&path).incompatible().bits(), 1);
    let error = refusal(&path, ImageOptions::new().writable());
    assert_eq!(error, HeaderError::Dirty);
    assert!(error.to_string().contains("repair"), "{error}");
    let mut opened = Opened::new(&path, Cache::Cached, ImageOptions::new());
    assert_eq!(opened.read(0, 65536), [5; 65536]);
    assert_eq!(opened.read(1 << 20, 100_000), [9; 100_000]);
    opened.close();
    qemu_img(&["check", "-q", "-fqcow2", "-r", "all", name]).unwrap();
    write(&path);
    qemu_img(&["check", "-fqcow2", name]).unwrap();
}
