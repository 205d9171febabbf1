//! What is opened, what is refused, and what an open device tells of itself.

use std::path::Path;

use blkring_engine::{
    Access, Cache, ExtentKind, LockError, LockMode, OpenError, OpenOptions, Storage,
};
use blkring_tests::holder::Holder;
use blkring_tests::loop_device::ReadOnly;
use blkring_tests::mounts::SectorSize;
use blkring_tests::report::or_skip;
use blkring_tests::tools;

use super::setup::{MIB, Opened, device, open, writable};

#[test]
fn a_block_device_tells_its_geometry() {
    for sector in [SectorSize::S512, SectorSize::S4096] {
        let Some(device) = device(sector) else { return };
        for cache in [Cache::Cached, Cache::Direct] {
            let storage = open(device.path(), cache);
            assert_eq!(storage.size(), 16 * MIB);
            assert!(storage.is_block_device());
            let told = storage.topology();
            assert_eq!(told.logical_block, sector.bytes());
            assert!(told.physical_block >= told.logical_block);
            let discard = told.discard.expect("a loop device over a file punches holes");
            assert!(discard.granularity >= u64::from(sector.bytes()));
            assert_eq!(discard.max % discard.granularity, 0);
            assert_eq!(told.zero.unwrap().granularity, u64::from(sector.bytes()));
            let alignment = if cache == Cache::Direct { u64::from(sector.bytes()) } else { 1 };
            assert_eq!(storage.alignment(), alignment, "{cache:?}");
            let extent = storage.extent(4096, 64 * MIB).unwrap();
            assert_eq!((extent.kind, extent.len), (ExtentKind::Data, 16 * MIB - 4096));
            assert_eq!(storage.extent(16 * MIB, 17 * MIB).unwrap().kind, ExtentKind::Zero);
        }
    }
}

#[test]
fn bytes_of_any_alignment_come_back() {
    for sector in [SectorSize::S512, SectorSize::S4096] {
        let Some(device) = device(sector) else { return };
        for (byte, cache) in [(1u8, Cache::Cached), (100, Cache::Direct)] {
            let mut opened = Opened::new(device.path(), cache);
            let mut expected = opened.read(0, 64 << 10);
            let places =
                [(0usize, 512usize), (512, 4096), (1, 3), (511, 2), (4095, 5000), (20_000, 1)];
            for (number, (at, len)) in places.into_iter().enumerate() {
                let bytes = vec![byte + u8::try_from(number).unwrap(); len];
                expected[at..at + len].copy_from_slice(&bytes);
                opened.write(at as u64, bytes).unwrap();
            }
            assert!(opened.read(0, 64 << 10) == expected, "{sector:?}, {cache:?}");
            assert!(opened.read(511, 5000) == expected[511..5511]);
            opened.flush().unwrap();
            drop(opened);
            assert!(Opened::new(device.path(), Cache::Cached).read(0, 64 << 10) == expected);
        }
    }
}

#[test]
fn the_end_of_a_device_is_an_answer() {
    let Some(device) = device(SectorSize::S512) else { return };
    for cache in [Cache::Cached, Cache::Direct] {
        let mut opened = Opened::new(device.path(), cache);
        opened.write(16 * MIB - 512, vec![7; 512]).unwrap();
        let error = opened.write(16 * MIB - 512, vec![8; 1024]).unwrap_err();
        assert!(error.is_no_space(), "{error}");
        let error = opened.write(17 * MIB, vec![8; 512]).unwrap_err();
        assert!(error.is_no_space(), "{error}");
        let tail = opened.read(16 * MIB - 1024, 2048);
        assert!(tail[1024..] == [0; 1024], "beyond the end are zeros");
        assert_eq!(opened.storage.size(), 16 * MIB);
    }
}

#[test]
fn a_read_only_device_is_refused_by_name() {
    let Some(device) = device(SectorSize::S512) else { return };
    let Some(()) = or_skip(device.set_read_only(ReadOnly::Yes)) else { return };
    for cache in [Cache::Cached, Cache::Direct] {
        let error = Storage::open(device.path(), &writable(cache)).err().unwrap();
        assert!(matches!(error, OpenError::ReadOnlyDevice { .. }), "{error}");
        assert_eq!(error.errno(), libc::EACCES);
        let path = device.path().display();
        assert_eq!(error.to_string(), format!("{path}: the block device is read-only"));
        Storage::open(device.path(), &OpenOptions::new().cache(cache)).unwrap();
    }
    let Some(()) = or_skip(device.set_read_only(ReadOnly::No)) else { return };
    Storage::open(device.path(), &writable(Cache::Cached)).unwrap();
}

#[test]
fn what_has_no_bytes_at_offsets_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    let Some(_) = or_skip(tools::run("mkfifo", &[&pipe]).map_err(Into::into)) else { return };
    let null = Path::new("/dev/null");
    for (path, what) in [
        (directory.path(), "a directory"),
        (null, "a character device"),
        (Path::new("/dev/zero"), "a character device"),
        (&pipe, "a pipe or socket"),
    ] {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            for cache in [Cache::Cached, Cache::Direct] {
                let options = OpenOptions::new().access(access).cache(cache);
                let error = Storage::open(path, &options).err().unwrap();
                let text = format!(
                    "{}: is {what}, and only regular files and block devices can be opened",
                    path.display()
                );
                assert_eq!(error.to_string(), text, "{access:?}, {cache:?}");
                assert_eq!(error.errno(), libc::ENOTSUP);
            }
        }
    }
}

#[test]
fn locks_hold_under_every_name_of_a_device() {
    let Some(device) = device(SectorSize::S512) else { return };
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(device.path(), &link).unwrap();
    let writer = Storage::open(device.path(), &writable(Cache::Direct).lock(LockMode::On)).unwrap();
    assert!(writer.is_locked());
    let error = Storage::open(&link, &OpenOptions::new()).err().unwrap();
    let OpenError::Lock(LockError::Conflict { holder, file, .. }) = error else {
        panic!("{error}");
    };
    assert_eq!(holder.unwrap().pid, std::process::id());
    assert_eq!(file, writer.identity());
    let sharing = Storage::open(&link, &OpenOptions::new().force_share()).unwrap();
    assert_eq!(sharing.identity(), writer.identity());
}

/// The installed program and this library keep each other out of a device as of a file.
#[test]
fn the_installed_qemu_io_keeps_off_and_keeps_us_off() {
    if tools::missing("qemu-io") {
        return;
    }
    let Some(device) = device(SectorSize::S512) else { return };
    let qcow2 = device.path().display().to_string();
    tools::qemu_img(&["create", "-q", "-f", "qcow2", &qcow2, "8M"]).unwrap();
    let ours = Storage::open(device.path(), &writable(Cache::Cached)).unwrap();
    let refused = tools::qemu_io(&["-f", "qcow2", "-c", "read 0 512", &qcow2]).unwrap_err();
    assert!(refused.to_string().contains("Failed to get"), "{refused}");
    let shared = tools::qemu_io(&["-U", "-r", "-f", "qcow2", "-c", "read 0 512", &qcow2]).unwrap();
    assert!(shared.stdout.contains("read 512/512"), "{shared:?}");
    drop(ours);
    let program = tools::find("qemu-io").unwrap();
    let arguments = ["-f", "qcow2", &qcow2];
    let theirs = Holder::start(&program, Path::new("/"), &arguments, &[100, 101, 103, 201, 203]);
    let error = Storage::open(device.path(), &writable(Cache::Cached)).err().unwrap();
    assert!(matches!(error, OpenError::Lock(LockError::Conflict { .. })), "{error}");
    drop(theirs);
    Storage::open(device.path(), &writable(Cache::Cached)).unwrap();
}
