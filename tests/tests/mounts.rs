//! The mounts that all tests on real file systems stand on, and the truth of the table of what is lacking.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a failed step fails the test")]

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use blkring_engine::{
    Access, Cache, Flags, IoMem, OpenError, OpenOptions as Options, QueueOptions, QueueSeed,
    Storage,
};
use blkring_tests::fs::{Feature, Fs, applicable, lacks};
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::report::or_skip;
use blkring_tests::tools;

const MIB: u64 = 64;

fn write_and_read(fs: Fs, sector: SectorSize) {
    let Some(mount) = or_skip(Mount::new(fs, sector, MIB)) else { return };
    let file = mount.path().join("file");
    fs::write(&file, b"content").unwrap();
    OpenOptions::new().append(true).open(&file).unwrap().write_all(b"!").unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"content!");
    assert_eq!(mounted_as(mount.path()).as_deref(), Some(fs.name()));
    if let Some(device) = mount.device() {
        let queue = format!("/sys/block/{device}/queue/logical_block_size");
        assert_eq!(fs::read_to_string(queue).unwrap().trim(), sector.bytes().to_string());
        let dio = format!("/sys/block/{device}/loop/dio");
        assert_eq!(fs::read_to_string(dio).unwrap().trim(), "1");
    }
}

/// The file system mounted at `point`, as the kernel says.
fn mounted_as(point: &Path) -> Option<String> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let mut fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let row =
        fields.find(|row| row.get(1).is_some_and(|at| OsStr::new(at) == point.as_os_str()))?;
    row.get(2).map(|name| (*name).to_owned())
}

/// Loop devices, attached to something whose name contains `part`.
fn attached(part: &str) -> bool {
    tools::run("losetup", &["--all"]).unwrap().stdout.contains(part)
}

#[test]
fn xfs_512() {
    write_and_read(Fs::Xfs, SectorSize::S512);
}

#[test]
fn xfs_4096() {
    write_and_read(Fs::Xfs, SectorSize::S4096);
}

#[test]
fn ext4_512() {
    write_and_read(Fs::Ext4, SectorSize::S512);
}

#[test]
fn ext4_4096() {
    write_and_read(Fs::Ext4, SectorSize::S4096);
}

#[test]
fn btrfs_512() {
    write_and_read(Fs::Btrfs, SectorSize::S512);
}

#[test]
fn btrfs_4096() {
    write_and_read(Fs::Btrfs, SectorSize::S4096);
}

#[test]
fn tmpfs_512() {
    write_and_read(Fs::Tmpfs, SectorSize::S512);
}

#[test]
fn tmpfs_4096() {
    if applicable(Fs::Tmpfs, Feature::SectorSize) {
        write_and_read(Fs::Tmpfs, SectorSize::S4096);
    }
}

/// The mount's directory: what must be gone when it is.
fn directory(mount: &Mount) -> PathBuf {
    mount.path().parent().unwrap().to_owned()
}

#[test]
fn a_drop_leaves_nothing() {
    let Some(mount) = or_skip(Mount::new(Fs::Ext4, SectorSize::S512, MIB)) else { return };
    let (directory, point) = (directory(&mount), mount.path().to_owned());
    let name = directory.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(attached(&name), "the backing file is attached while mounted");
    drop(mount);
    assert_eq!(mounted_as(&point), None);
    assert!(!directory.exists());
    assert!(!attached(&name), "a loop device stays attached");
}

#[test]
fn a_panic_leaves_nothing() {
    let Some(mount) = or_skip(Mount::new(Fs::Ext4, SectorSize::S512, MIB)) else { return };
    let (directory, point) = (directory(&mount), mount.path().to_owned());
    let panicked = std::thread::spawn(move || {
        let _mount = mount;
        panic!("on purpose");
    });
    assert!(panicked.join().is_err());
    assert_eq!(mounted_as(&point), None);
    assert!(!directory.exists());
}

#[test]
fn a_busy_mount_is_waited_for() {
    let Some(mount) = or_skip(Mount::new(Fs::Ext4, SectorSize::S512, MIB)) else { return };
    let point = mount.path().to_owned();
    let held = fs::File::create(point.join("held")).unwrap();
    let holder = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(400));
        drop(held);
    });
    drop(mount);
    assert_eq!(mounted_as(&point), None);
    holder.join().unwrap();
}

#[test]
fn parallel_mounts_do_not_meet() {
    let make = || Mount::new(Fs::Ext4, SectorSize::S512, MIB);
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(make)).collect();
    let mounts: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    let mut points = Vec::new();
    for mount in &mounts {
        match mount {
            Ok(mount) => points.push(mount.path()),
            Err(skip) => return skip.report(),
        }
    }
    for (i, point) in points.iter().enumerate() {
        fs::write(point.join("who"), i.to_string()).unwrap();
    }
    for (i, point) in points.iter().enumerate() {
        assert_eq!(fs::read_to_string(point.join("who")).unwrap(), i.to_string());
    }
}

/// Tries what the table speaks of with the util-linux program of the same name.
fn fallocate_agrees(fs: Fs) {
    let Some(mount) = or_skip(Mount::new(fs, SectorSize::S512, MIB)) else { return };
    let file = mount.path().join("file");
    fs::write(&file, vec![0xAA; 1 << 20]).unwrap();
    for (feature, option) in [(Feature::ZeroRange, "-z"), (Feature::PunchHole, "-p")] {
        let args = [option, "-o", "4096", "-l", "8192", file.to_str().unwrap()];
        let works = tools::run("fallocate", &args).is_ok();
        assert_eq!(works, lacks(fs, feature).is_none(), "{fs}: {feature}");
    }
}

/// What has a device below it can be opened for direct I/O. tmpfs can since Linux 6.6, and says so by name if not.
fn direct_io_works_or_is_refused(fs: Fs, sector: SectorSize) {
    let Some(mount) = or_skip(Mount::new(fs, sector, MIB)) else { return };
    let file = mount.path().join("file");
    fs::write(&file, vec![0xAA; 1 << 20]).unwrap();
    let options = Options::new().access(Access::ReadWrite).cache(Cache::Direct);
    let storage = match Storage::open(&file, &options) {
        Ok(storage) => storage,
        Err(OpenError::NoDirectIo { .. }) if lacks(fs, Feature::DirectIo).is_some() => return,
        Err(error) => panic!("{fs}: {error}"),
    };
    let alignment = storage.alignment();
    assert!(alignment.is_power_of_two() && alignment <= 4096, "{fs}: {alignment}");
    if lacks(fs, Feature::SectorSize).is_none() {
        assert!(alignment >= sector.bytes().into(), "{fs}: {alignment}");
    }
    let mut queue = QueueSeed::new(QueueOptions::default()).unwrap().start().unwrap();
    let lane = queue.lane();
    let bytes = IoMem::from(vec![0x55; 5000]);
    queue.block_on(storage.write(&lane, 4099, &bytes, Flags::empty())).unwrap().unwrap();
    queue.block_on(storage.flush(&lane)).unwrap().unwrap();
    drop(storage);
    let mut expected = vec![0xAA; 1 << 20];
    expected[4099..9099].fill(0x55);
    assert!(fs::read(&file).unwrap() == expected, "{fs}: other bytes");
}

#[test]
fn direct_io_on_every_file_system() {
    for fs in Fs::ALL {
        direct_io_works_or_is_refused(fs, SectorSize::S512);
    }
    for fs in Fs::ALL.into_iter().filter(|fs| lacks(*fs, Feature::SectorSize).is_none()) {
        direct_io_works_or_is_refused(fs, SectorSize::S4096);
    }
}

#[test]
fn the_table_is_true_of_xfs() {
    fallocate_agrees(Fs::Xfs);
}

#[test]
fn the_table_is_true_of_ext4() {
    fallocate_agrees(Fs::Ext4);
}

#[test]
fn the_table_is_true_of_btrfs() {
    fallocate_agrees(Fs::Btrfs);
}

#[test]
fn the_table_is_true_of_tmpfs() {
    fallocate_agrees(Fs::Tmpfs);
}
