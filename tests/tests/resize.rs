//! Virtual disks that grow: over backing files of all lengths, with tables that must move, while others write.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::thread;

use blkring_engine::sim::Rng;
use blkring_engine::{Cache, Flags, IoMem};
use blkring_qcow2::{CreateOptions, GuestBytes, ImageOptions, Version};
use blkring_tests::crowd::{Crowd, noise, same};
use blkring_tests::image_world::Setup;
use blkring_tests::images::{Opened, backing, create};
use blkring_tests::tools::{missing, qemu_img};

const BELOW: u8 = 0xAA;

/// An image that grows, and what the guest must see of it.
struct Growing {
    path: PathBuf,
    opened: Opened,
    contents: Vec<u8>,
}

impl Growing {
    /// An image over a backing file of `below` bytes; without one if that is 0.
    fn new(directory: &Path, options: CreateOptions, below: u64) -> Self {
        let path = directory.join("top.qcow2");
        let backing = (below > 0).then(|| {
            std::fs::write(directory.join("base.raw"), vec![BELOW; below as usize]).unwrap();
            backing("base.raw", "raw").unwrap()
        });
        let mut contents = vec![BELOW; below.min(options.size) as usize];
        contents.resize(options.size as usize, 0);
        create(&path, &options.clone().backing(backing));
        let opened = Opened::writable(&path, Cache::Cached);
        Growing { path, opened, contents }
    }

    fn grow(&mut self, size: u64) {
        let image = self.opened.image.clone();
        self.opened.run(async move { image.resize(size).await }).unwrap();
        self.contents.resize(size as usize, 0);
        assert_eq!(self.opened.image.info().virtual_size, size);
        self.see();
    }

    fn write(&mut self, offset: u64, len: usize, byte: u8) {
        let disk = self.opened.disk.clone();
        let mem = IoMem::from(vec![byte; len]);
        self.opened.run(disk.write(offset, mem, Flags::empty())).unwrap();
        self.contents[offset as usize..][..len].fill(byte);
    }

    fn see(&mut self) {
        same(&self.opened.read(0, self.contents.len()), &self.contents, 0).unwrap();
    }

    /// Closes it: it is clean, and qemu sees the same.
    fn end(self) {
        self.opened.close();
        judge(&self.path, &self.contents);
    }
}

fn judge(path: &Path, contents: &[u8]) {
    let name = path.to_str().unwrap();
    qemu_img(&["check", "-fqcow2", name]).unwrap_or_else(|error| panic!("{error}"));
    let raw = path.with_extension("raw");
    std::fs::write(&raw, contents).unwrap();
    let args = ["compare", "-fraw", "-Fqcow2", raw.to_str().unwrap(), name];
    qemu_img(&args).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn what_is_new_reads_as_zeros_whatever_lies_below() {
    if missing("qemu-img") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for version in [Version::V2, Version::V3] {
        for (cluster_size, old) in [(512, 100 * 512), (4096, 1 << 20), (65536, 1_000_448)] {
            for below in [0, old / 2 + 100, old, old + 1000, 2 * old + 77, 8 * old] {
                let options = CreateOptions::new(old).cluster_size(cluster_size).version(version);
                let mut image = Growing::new(directory.path(), options, below);
                if below % 3 != 1 {
                    // The cluster that the old end is in.
                    image.write(old - 700, 500, 1);
                }
                image.grow(old + 512);
                image.write(old - 100, 300, 2);
                image.grow(3 * old);
                image.write(2 * old + 100, 5000, 3);
                image.grow(5 * old + 512);
                image.write(5 * old, 512, 4);
                image.end();
            }
        }
    }
}

/// Tables of one cluster become tables of many; the refcount table too.
#[test]
fn tables_of_any_length_move() {
    if missing("qemu-img") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for refcount_bits in [1, 16, 64] {
        for old in [0, 512, 40 << 10, 3 << 20] {
            let size = old;
            let plain = CreateOptions::new(size).cluster_size(512);
            let options = plain.clone().refcount_bits(refcount_bits);
            let mut image = Growing::new(directory.path(), options, 0);
            for (step, size) in [4 << 20, 5 << 20, 64 << 20].into_iter().enumerate() {
                image.grow(size);
                image.write(size - 1000, 1000, step as u8);
                image.write(size / 2, 70_000, step as u8 + 10);
            }
            image.end();
        }
        // Far larger than what is in it.
        let path = directory.path().join("top.qcow2");
        for size in [30u64 << 30, 60 << 30] {
            let mut opened = Opened::writable(&path, Cache::Cached);
            let image = opened.image.clone();
            opened.run(async move { image.resize(size).await }).unwrap();
            let disk = opened.disk.clone();
            let mem = IoMem::from(vec![7; 1000]);
            opened.run(disk.write(size - 1000, mem, Flags::empty())).unwrap();
            opened.close();
            let name = path.to_str().unwrap();
            qemu_img(&["check", "-fqcow2", name]).unwrap_or_else(|error| panic!("{error}"));
            let mut opened = Opened::new(&path, Cache::Cached, ImageOptions::new());
            assert_eq!(opened.read(size - 1000, 1000), [7; 1000]);
            assert_eq!(opened.image.info().virtual_size, size);
        }
    }
}

/// Images that qemu-img has made and grown grow on, and the other way round.
#[test]
fn ours_and_qemu_grow_an_image_in_turns() {
    if missing("qemu-img") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.qcow2");
    let name = path.to_str().unwrap();
    for compat in ["compat=0.10", "compat=1.1"] {
        let options = format!("{compat},cluster_size=4096");
        qemu_img(&["create", "-q", "-fqcow2", "-o", &options, name, "1M"]).unwrap();
        let mut contents = vec![0; 1 << 20];
        for (step, size) in [3 << 20, 7 << 20, 40 << 20, 90 << 20].into_iter().enumerate() {
            if step % 2 == 0 {
                qemu_img(&["resize", "-q", "-fqcow2", name, &size.to_string()]).unwrap();
            }
            let mut opened = Opened::writable(&path, Cache::Cached);
            let image = opened.image.clone();
            opened.run(async move { image.resize(size).await }).unwrap();
            let disk = opened.disk.clone();
            let mem = IoMem::from(vec![step as u8 + 1; 9000]);
            opened.run(disk.write(size - 9000, mem, Flags::empty())).unwrap();
            opened.close();
            contents.resize(size as usize, 0);
            contents[size as usize - 9000..].fill(step as u8 + 1);
            judge(&path, &contents);
        }
    }
}

/// Many write the old part, discards at its end included, while it grows again and again; then the new one.
#[test]
fn a_disk_grows_while_others_write() {
    if missing("qemu-img") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    for (seed, cluster_size) in [(1, 512), (2, 4096), (3, 65536)] {
        let old = (3 << 20) + 1536;
        let below = vec![noise(1, 1); 8 << 20];
        std::fs::write(directory.path().join("base.raw"), &below).unwrap();
        let path = directory.path().join("top.qcow2");
        let backing = backing("base.raw", "raw");
        create(&path, &CreateOptions::new(old).cluster_size(cluster_size).backing(backing));
        let opened = Opened::writable(&path, Cache::Cached);
        let (fine, coarse) = (4096, (2 * cluster_size).max(4096));
        let crowd = Crowd { queues: 2, lanes: 4, rounds: 60, fine, coarse, seed };
        let image = opened.image.clone();
        let grower = thread::spawn(move || {
            // The new part is written as soon as it is there, from its very beginning.
            let mut opened = Opened::beside(&image);
            let (mut end, mut rng) = (old, Rng::new(seed));
            for step in 1..=40u8 {
                let size = end + (1 + rng.below(200)) * 512;
                let image = opened.image.clone();
                opened.run(async move { image.resize(size).await }).unwrap();
                let bytes = vec![step; (size - end) as usize];
                let disk = opened.disk.clone();
                let found = opened.read(end, bytes.len());
                same(&found, &vec![0; bytes.len()], end).unwrap();
                opened.run(disk.write(end, bytes.into(), Flags::empty())).unwrap();
                end = size;
            }
            end
        });
        let ended = crowd.run_within(&opened.image, below[..old as usize].to_vec());
        let size = grower.join().unwrap();
        assert!(ended.together > 0, "no two queues were in the driver at once");
        let mut contents = ended.contents;
        let (mut end, mut rng) = (old, Rng::new(seed));
        for step in 1..=40u8 {
            end += (1 + rng.below(200)) * 512;
            contents.resize(end as usize, step);
        }
        assert_eq!(end, size);
        opened.close();
        judge(&path, &contents);
    }
}

#[test]
fn sizes_that_cannot_be_are_refused_and_change_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let options = CreateOptions::new(1 << 20).cluster_size(512);
    let mut image = Growing::new(directory.path(), options, 0);
    for (size, errno) in [
        (1000, libc::EINVAL),
        ((1 << 20) - 512, libc::ENOTSUP),
        (1 << 50, libc::EFBIG),
        (u64::MAX - 511, libc::EFBIG),
    ] {
        let resized = image.opened.image.clone();
        let error = image.opened.run(async move { resized.resize(size).await }).unwrap_err();
        assert_eq!(error.errno, errno, "{error}");
    }
    image.grow(1 << 20);
    let disk = image.opened.disk.clone();
    let mem = IoMem::from(vec![1; 512]);
    assert_eq!(
        image.opened.run(disk.write(1 << 20, mem, Flags::empty())).unwrap_err().errno,
        libc::EIO
    );
    let Growing { path, opened, .. } = image;
    opened.close();
    let mut reading = Opened::new(&path, Cache::Cached, ImageOptions::new());
    let image = reading.image.clone();
    let error = reading.run(async move { image.resize(2 << 20).await }).unwrap_err();
    assert_eq!(error.errno, libc::EPERM);
}

/// The last cluster of a disk is compressed, and the disk ends within it: what it has behind the end is not shown, and it
/// stays compressed if that is zeros.
#[test]
fn nothing_shows_behind_a_compressed_last_cluster() {
    const CLUSTER: usize = 64 << 10;
    if missing("qemu-img") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    for (tail, stays) in [(0, true), (9, false)] {
        let mut contents = vec![7; 2 * CLUSTER];
        contents[CLUSTER + 1024..].fill(tail);
        std::fs::write(file("source"), &contents).unwrap();
        let args = ["convert", "-c", "-fraw", "-Oqcow2", &file("source"), &file("top")];
        qemu_img(&args).unwrap();
        let path = PathBuf::from(file("top"));
        let shorter = CLUSTER + 1024;
        let mut image = std::fs::read(&path).unwrap();
        image[24..32].copy_from_slice(&(shorter as u64).to_be_bytes());
        std::fs::write(&path, image).unwrap();
        contents.truncate(shorter);
        let opened = Opened::writable(&path, Cache::Cached);
        let mut image = Growing { path, opened, contents };
        image.grow(3 * CLUSTER as u64);
        let asked = image.opened.image.clone();
        let offset = CLUSTER as u64;
        let extent = image.opened.run(async move { asked.extent(offset, 2 * offset).await });
        assert_eq!(extent.unwrap().bytes == GuestBytes::Compressed, stays, "{tail}");
        image.end();
    }
}

/// The tables of snapshots stay where they are, and so does what they show.
#[test]
fn a_disk_with_snapshots_grows() {
    if missing("qemu-img") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let options = CreateOptions::new(1 << 20).cluster_size(4096);
    let mut image = Growing::new(directory.path(), options.clone(), 0);
    image.write(0, 900_000, 1);
    let Growing { path, opened, contents } = image;
    opened.close();
    let name = path.to_str().unwrap();
    qemu_img(&["snapshot", "-c", "before", name]).unwrap();
    let opened = Opened::writable(&path, Cache::Cached);
    let before = contents.clone();
    let mut image = Growing { path: path.clone(), opened, contents };
    image.write(4096, 5000, 2);
    image.grow(40 << 20);
    image.write(30 << 20, 100_000, 3);
    image.write(800_000, 200_000, 4);
    image.end();
    qemu_img(&["snapshot", "-a", "before", name]).unwrap();
    judge(&path, &before);
    // In version 2 nothing says how long the disk of a snapshot is.
    let image = Growing::new(directory.path(), options.clone().version(Version::V2), 0);
    image.end();
    qemu_img(&["snapshot", "-c", "before", name]).unwrap();
    let mut opened = Opened::writable(&path, Cache::Cached);
    let grown = opened.image.clone();
    let error = opened.run(async move { grown.resize(2 << 20).await }).unwrap_err();
    assert_eq!(error.errno, libc::ENOTSUP);
    assert!(error.to_string().contains("snapshots"), "{error}");
    opened.close();
}

/// Whichever queue makes it larger, all who watch hear of it, and all handles know.
#[test]
fn a_new_size_is_told_to_all_who_watch() {
    let mut w = Setup::new(16).queues(2).make();
    let (old, new) = (16 * 4096, 64 * 4096);
    let watches = [(); 2].map(|()| w.image.watch_size().unwrap());
    assert_eq!((w.handle(1).size(), watches[0].take()), (old, None));
    for size in [old, new] {
        let image = w.image.clone();
        let resized = w.world.start(0, async move { image.resize(size).await });
        w.settle();
        resized.take().expect("it is over").expect("there is room");
    }
    assert_eq!([w.handle(0).size(), w.handle(1).size()], [new; 2]);
    assert_eq!(watches.each_ref().map(|watch| watch.take()), [Some(new); 2]);
    assert_eq!(watches[1].take(), None, "once");
    let late = w.image.watch_size().unwrap();
    assert_eq!(late.take(), None);
}
