//! Images of version 2, which has no zero flag. F23: a discard over a backing file never shows what it held before.
//! F32: a zero-write over a backing file, then a small write into the same cluster.

use std::path::Path;

use blkring_engine::{Cache, Flags, IoMem};
use blkring_qcow2::{AllocPolicy, CheckLimits, CreateOptions, ImageOptions, Version, check};
use blkring_tests::crowd::{Crowd, same};
use blkring_tests::images::{Opened, backing, create};
use blkring_tests::tools::{missing, qemu_img, qemu_io};

const CLUSTER: u64 = 65536;
const SIZE: u64 = 16 * CLUSTER;

/// Every byte of the backing file.
const BELOW: u8 = 0xAA;

/// An image over a backing file that ends within its tenth cluster.
fn over_bytes(directory: &Path, version: Version) -> (std::path::PathBuf, Vec<u8>) {
    let below = (9 * CLUSTER + 1000) as usize;
    std::fs::write(directory.join("base.raw"), vec![BELOW; below]).unwrap();
    let path = directory.join("top.qcow2");
    let backing = backing("base.raw", "raw");
    create(&path, &CreateOptions::new(SIZE).version(version).backing(backing));
    let mut contents = vec![BELOW; below];
    contents.resize(SIZE as usize, 0);
    (path, contents)
}

/// What the guest did, and what it must see.
struct Guest {
    opened: Opened,
    contents: Vec<u8>,
}

impl Guest {
    fn new(path: &Path, contents: Vec<u8>, policy: AllocPolicy) -> Self {
        let options = ImageOptions::new().writable().policy(policy);
        Guest { opened: Opened::new(path, Cache::Cached, options), contents }
    }

    fn see(&mut self) {
        let found = self.opened.read(0, self.contents.len());
        same(&found, &self.contents, 0).unwrap();
    }

    fn fill(&mut self, offset: u64, len: u64, byte: u8) {
        self.contents[offset as usize..(offset + len) as usize].fill(byte);
    }

    fn write(&mut self, offset: u64, len: u64, byte: u8) {
        let mem = IoMem::from(vec![byte; len as usize]);
        let disk = self.opened.disk.clone();
        self.opened.run(disk.write(offset, mem, Flags::empty())).unwrap();
        self.fill(offset, len, byte);
        self.see();
    }

    fn zero(&mut self, offset: u64, len: u64, flags: Flags) {
        let disk = self.opened.disk.clone();
        self.opened.run(disk.write_zeroes(offset, len, flags)).unwrap();
        self.fill(offset, len, 0);
        self.see();
    }

    /// A discard that shows zeros, or changes nothing.
    fn discard(&mut self, offset: u64, len: u64) {
        let disk = self.opened.disk.clone();
        self.opened.run(disk.discard(offset, len)).unwrap();
        let found = self.opened.read(offset, len as usize);
        let before = &self.contents[offset as usize..(offset + len) as usize];
        for ((at, found), before) in (offset..).zip(&found).zip(before) {
            assert!(found == before || *found == 0, "byte {at} was {before:#x}, is {found:#x}");
        }
        self.contents[offset as usize..(offset + len) as usize].copy_from_slice(&found);
        self.see();
    }

    /// Closes the image; qemu finds nothing wrong with it, and sees the same.
    fn end(self, path: &Path) {
        self.opened.close();
        let name = path.to_str().unwrap();
        qemu_img(&["check", "-fqcow2", name]).unwrap_or_else(|error| panic!("{error}"));
        let raw = path.with_extension("raw");
        std::fs::write(&raw, &self.contents).unwrap();
        let raw = raw.to_str().unwrap();
        qemu_img(&["compare", "-fraw", "-Fqcow2", raw, name]).unwrap_or_else(|e| panic!("{e}"));
    }
}

fn each(case: fn(&mut Guest)) {
    if missing("qemu-img") {
        return;
    }
    for version in [Version::V2, Version::V3] {
        for policy in [AllocPolicy::Ahead, AllocPolicy::PerAllocation] {
            let directory = tempfile::tempdir().unwrap();
            let (path, contents) = over_bytes(directory.path(), version);
            let mut guest = Guest::new(&path, contents, policy);
            case(&mut guest);
            guest.end(&path);
        }
    }
}

#[test]
fn f23_a_discard_never_shows_the_backing_file() {
    each(|guest| {
        // Written clusters over the backing file, at its end and beyond; a part of one; some never written.
        for cluster in [1, 2, 9, 10, 12] {
            guest.write(cluster * CLUSTER, CLUSTER, cluster as u8);
        }
        guest.write(5 * CLUSTER + 100, 1000, 5);
        for (offset, len) in [
            (CLUSTER, CLUSTER),
            (5 * CLUSTER, CLUSTER),
            (7 * CLUSTER, CLUSTER),
            (9 * CLUSTER, 2 * CLUSTER),
            (2 * CLUSTER + 17, 12 * CLUSTER),
            (0, SIZE),
        ] {
            guest.discard(offset, len);
        }
        guest.write(2 * CLUSTER + 5, 7, 9);
    });
}

#[test]
fn f32_zeros_over_the_backing_file_stay_zeros() {
    each(|guest| {
        for flags in [Flags::empty(), Flags::MAY_UNMAP] {
            for cluster in [1, 8, 9, 10] {
                guest.zero(cluster * CLUSTER, CLUSTER, flags);
                guest.write(cluster * CLUSTER + 512, 512, 3);
            }
            // Over what is written, and over clusters of all kinds at once.
            guest.zero(3 * CLUSTER, CLUSTER, flags);
            guest.write(3 * CLUSTER, CLUSTER, 4);
            guest.zero(3 * CLUSTER, CLUSTER, flags);
            guest.zero(CLUSTER + 700, 11 * CLUSTER, flags);
            guest.write(4 * CLUSTER + 512, 512, 3);
            guest.zero(0, SIZE, flags);
        }
    });
}

#[test]
fn a_zero_write_without_fallback_writes_no_zeros_over_a_backing_file() {
    let directory = tempfile::tempdir().unwrap();
    let (path, contents) = over_bytes(directory.path(), Version::V2);
    let mut guest = Guest::new(&path, contents, AllocPolicy::Ahead);
    let disk = guest.opened.disk.clone();
    let flags = Flags::NO_FALLBACK | Flags::MAY_UNMAP;
    let refused = guest.opened.run(disk.write_zeroes(CLUSTER, CLUSTER, flags)).unwrap_err();
    assert_eq!(refused.errno, libc::ENOTSUP);
    guest.see();
    guest.write(12 * CLUSTER, CLUSTER, 1);
    guest.zero(12 * CLUSTER, CLUSTER, flags);
    guest.opened.close();
}

/// Without a backing file: what is given back is given back, and used again.
#[test]
fn version_2_is_written_by_many() {
    if missing("qemu-img") || missing("qemu-io") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.qcow2");
    let name = path.to_str().unwrap();
    for (cluster_size, size) in [(512, 3 << 20), (65536, 24 << 20)] {
        let plain = CreateOptions::new(size).cluster_size(cluster_size);
        create(&path, &plain.clone().version(Version::V2));
        let opened = Opened::writable(&path, Cache::Cached);
        let (fine, coarse) = (4096, (2 * cluster_size).max(4096));
        let crowd = Crowd { queues: 2, lanes: 4, rounds: 60, fine, coarse, seed: cluster_size };
        let ended = crowd.run(&opened.image, vec![0; size as usize]);
        opened.close();
        qemu_img(&["check", "-fqcow2", name]).unwrap_or_else(|error| panic!("{error}"));
        qemu_io(&["-fqcow2", "-c", "write -P 7 1M 1M", "-c", "write -z 2M 64k", name]).unwrap();
        let mut contents = ended.contents;
        contents[1 << 20..2 << 20].fill(7);
        contents[2 << 20..(2 << 20) + 65536].fill(0);
        let mut reading = Opened::new(&path, Cache::Cached, ImageOptions::new());
        same(&reading.read(0, contents.len()), &contents, 0).unwrap();
    }
}

/// The zero flag is a reserved bit here: qemu refuses such an entry as well.
#[test]
fn an_entry_with_the_zero_flag_is_damaged_in_version_2() {
    if missing("qemu-img") || missing("qemu-io") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.qcow2");
    let name = path.to_str().unwrap();
    create(&path, &CreateOptions::new(SIZE).version(Version::V2));
    qemu_io(&["-fqcow2", "-c", "write -P 7 0 128k", name]).unwrap();
    let mut file = std::fs::read(&path).unwrap();
    let number = |file: &[u8], at: usize| u64::from_be_bytes(file[at..at + 8].try_into().unwrap());
    let l1 = number(&file, 40) as usize;
    let l2 = (number(&file, l1) & !(1 << 63)) as usize;
    file[l2 + 7] |= 1;
    std::fs::write(&path, file).unwrap();
    let theirs = qemu_io(&["-fqcow2", "-r", "-c", "read 0 4k", name]).unwrap_err();
    assert!(theirs.to_string().contains("Input/output error"), "{theirs}");
    let mut opened = Opened::new(&path, Cache::Cached, ImageOptions::new());
    let (disk, mem) = (opened.disk.clone(), IoMem::from(vec![0; 512]));
    assert_eq!(opened.run(disk.read(0, mem)).unwrap_err().errno, libc::EIO);
    assert_eq!(opened.read(CLUSTER, 512), [7; 512]);
    let mut found = 0;
    let file = std::fs::read(&path).unwrap();
    check(&file, CheckLimits::default(), &mut |_| found += 1).unwrap();
    assert_eq!(found, 1);
}
