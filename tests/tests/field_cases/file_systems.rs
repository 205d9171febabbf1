//! F31: the file systems that images lie on, cached and around the cache, with a file system in the image as the judge.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use blkring_engine::sim::Rng;
use blkring_engine::{
    Access, Cache, Flags, IoMem, OpenError, OpenOptions, Queue, QueueOptions, QueueSeed, RawDisk,
    Request, Storage,
};
use blkring_qcow2::CreateOptions;
use blkring_tests::fs::Fs;
use blkring_tests::images::{self, Opened};
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::report::{Skip, or_skip};
use blkring_tests::tools;
use tempfile::TempDir;

/// Bytes of the file system in the image.
const SIZE: usize = 8 << 20;

/// A small file system with a few files in it.
fn guest(directory: &Path) -> PathBuf {
    let (path, tree) = (directory.join("guest"), directory.join("tree"));
    fs::create_dir(&tree).unwrap();
    for number in 0..40usize {
        let bytes: Vec<u8> = (0..number * 3001).map(|at| (at % 249) as u8 ^ number as u8).collect();
        fs::write(tree.join(format!("file{number}")), bytes).unwrap();
    }
    let mut make = Command::new("mkfs.ext4");
    make.args(["-q", "-F", "-b", "1024", "-d"])
        .arg(&tree)
        .arg(&path)
        .arg(format!("{}k", SIZE >> 10));
    tools::run_ok(&mut make);
    path
}

/// What its own checker says.
fn check(path: &Path) {
    tools::run_ok(Command::new("e2fsck").args(["-f", "-n"]).arg(path));
}

/// Pieces of the disk in a random order, of any alignment, some of them zeros.
fn pieces(rng: &mut Rng) -> Vec<(usize, usize)> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < SIZE {
        let len = (1 + rng.index(200_000)).min(SIZE - at);
        all.push((at, len));
        at += len;
    }
    for last in (1..all.len()).rev() {
        all.swap(last, rng.index(last + 1));
    }
    all
}

fn queue() -> Queue {
    QueueSeed::new(QueueOptions::with_requests(32)).unwrap().start().unwrap()
}

/// Many requests at once, then a flush, then everything is read back.
fn fill(queue: &mut Queue, disk: &blkring_engine::Disk, bytes: &[u8], seed: u64) {
    let mut rng = Rng::new(seed);
    for (at, len) in pieces(&mut rng) {
        let part = &bytes[at..at + len];
        let mut request = match part.iter().all(|byte| *byte == 0) {
            true => Request::write_zeroes(at as u64, len as u64),
            false => Request::write(at as u64, IoMem::from(part.to_vec())),
        };
        if rng.one_in(20) {
            request = request.with(Flags::FUA);
        }
        let mut next = Some(request);
        while let Some(request) = next.take() {
            if let Err(full) = disk.queue(request, at as u64) {
                next = Some(full.0);
                queue.wait().unwrap();
            }
        }
    }
    queue.drain().unwrap();
    assert!(queue.completions().all(|one| one.code() == 0));
    queue.block_on(disk.flush()).unwrap().unwrap();
    let back = IoMem::from(vec![0xEE; bytes.len()]);
    queue.block_on(disk.read(0, back.clone())).unwrap().unwrap();
    assert!(back.to_vec() == bytes, "what is read is not what was written");
}

/// A raw image and a qcow2 one in this directory, both ways.
fn images_in(directory: &Path, guest: &Path, name: &str) {
    let bytes = fs::read(guest).unwrap();
    for (seed, cache) in [(1, Cache::Cached), (2, Cache::Direct)] {
        let raw = directory.join("raw");
        fs::File::create(&raw).unwrap().set_len(SIZE as u64).unwrap();
        let options = OpenOptions::new().access(Access::ReadWrite).cache(cache);
        let storage = match Storage::open(&raw, &options) {
            Err(OpenError::NoDirectIo { .. }) => {
                println!("{name}: no direct I/O");
                continue;
            }
            opened => opened.unwrap(),
        };
        let mut one = queue();
        let disk = one.attach(&RawDisk::new(storage)).unwrap();
        fill(&mut one, &disk, &bytes, seed);
        drop((one, disk));
        assert!(fs::read(&raw).unwrap() == bytes, "{name}, {cache:?}");
        check(&raw);
        fs::remove_file(&raw).unwrap();
        let image = directory.join("image");
        images::create(&image, &CreateOptions::new(SIZE as u64));
        let mut opened = Opened::writable(&image, cache);
        let disk = opened.disk.clone();
        fill(&mut opened.queue, &disk, &bytes, seed);
        drop(disk);
        opened.close();
        let qemu_img = tools::find("qemu-img").unwrap();
        tools::run_ok(Command::new(&qemu_img).args(["check", "-q", "-f", "qcow2"]).arg(&image));
        let out = directory.join("out");
        let convert = ["convert", "-f", "qcow2", "-O", "raw"];
        tools::run_ok(Command::new(&qemu_img).args(convert).arg(&image).arg(&out));
        assert!(fs::read(&out).unwrap() == bytes, "{name}, {cache:?}");
        check(&out);
        [image, out].iter().for_each(|path| fs::remove_file(path).unwrap());
    }
}

fn on(fs: Fs) {
    if tools::missing("mkfs.ext4") || tools::missing("qemu-img") {
        return;
    }
    let Some(mount) = or_skip(Mount::new(fs, SectorSize::S512, 64)) else { return };
    let directory = TempDir::new().unwrap();
    images_in(mount.path(), &guest(directory.path()), fs.name());
}

#[test]
fn f31_images_on_ext4() {
    on(Fs::Ext4);
}

#[test]
fn f31_images_on_xfs() {
    on(Fs::Xfs);
}

#[test]
fn f31_images_on_btrfs() {
    on(Fs::Btrfs);
}

#[test]
fn f31_images_on_tmpfs() {
    on(Fs::Tmpfs);
}

/// An overlay over an ext4, gone when it is dropped.
struct Overlay(PathBuf);

impl Overlay {
    fn over(mount: &Mount) -> Result<Overlay, Skip> {
        let [lower, upper, work, point] =
            ["lower", "upper", "work", "point"].map(|name| mount.path().join(name));
        for directory in [&lower, &upper, &work, &point] {
            fs::create_dir(directory).unwrap();
        }
        let (lower, upper, work) = (lower.display(), upper.display(), work.display());
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let mounted = Command::new("mount")
            .args(["-t", "overlay", "overlay", "-o", &options])
            .arg(&point)
            .output()
            .map_err(|error| Skip::new(format!("mount: {error}")))?;
        if !mounted.status.success() {
            let why = String::from_utf8_lossy(&mounted.stderr).into_owned();
            return Err(Skip::new(format!("no overlayfs: {why}")));
        }
        Ok(Overlay(point))
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        tools::run_ok(Command::new("umount").arg(&self.0));
    }
}

#[test]
fn f31_images_on_overlayfs() {
    if tools::missing("mkfs.ext4") || tools::missing("qemu-img") {
        return;
    }
    let Some(mount) = or_skip(Mount::new(Fs::Ext4, SectorSize::S512, 64)) else { return };
    let Some(overlay) = or_skip(Overlay::over(&mount)) else { return };
    let directory = TempDir::new().unwrap();
    images_in(&overlay.0, &guest(directory.path()), "overlayfs");
}
