//! F21: what an embedder tells its guest of a disk, and what a guest that trims by it gets back.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use blkring_engine::{
    Access, Cache, Flags, IoMem, OpenOptions, RawDisk, Request, Storage, Topology,
};
use blkring_qcow2::{CreateOptions, Freed, ImageOptions};
use blkring_tests::fs::Fs;
use blkring_tests::images::{Opened, create, queue};
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::report::or_skip;
use blkring_tests::tools;

const GIB: u64 = 1 << 30;

fn space(path: &Path) -> u64 {
    path.metadata().unwrap().blocks() * 512
}

/// A guest that trims from `offset` on asks for whole units of the granularity, each request no longer than the limit.
fn trims(told: Topology, offset: u64, len: u64) -> Vec<Request> {
    let limits = told.discard.expect("the host can give space back");
    let unit = limits.granularity;
    let (mut at, end) = (offset.next_multiple_of(unit), (offset + len) / unit * unit);
    let mut requests = Vec::new();
    while at < end {
        let part = (end - at).min(limits.max);
        requests.push(Request::discard(at, part));
        at += part;
    }
    requests
}

fn raw_file(fs: Fs) {
    let Some(mount) = or_skip(Mount::new(fs, SectorSize::S512, 1600)) else { return };
    let path = mount.path().join("image");
    std::fs::File::create(&path).unwrap();
    let options = OpenOptions::new().access(Access::ReadWrite).cache(Cache::Direct);
    let raw = RawDisk::new(Storage::open(&path, &options).unwrap());
    let mut queue = queue();
    let disk = queue.attach(&raw).unwrap();
    let lane = queue.lane();
    // All of it has its space, without 1 GiB of writing.
    queue.block_on(raw.storage().grow(&lane, GIB)).unwrap().unwrap();
    queue.block_on(raw.refresh_size()).unwrap().unwrap();
    let mem = IoMem::aligned_zeroed(1 << 20);
    mem.fill(0..1 << 20, 7);
    for at in [0, GIB / 2, GIB - (1 << 20)] {
        queue.block_on(disk.write(at, mem.clone(), Flags::empty())).unwrap().unwrap();
    }
    let before = space(&path);
    assert!(before >= GIB, "{fs}: {before}");
    let told = disk.topology();
    assert_eq!(told, raw.storage().topology());
    assert!(told.logical_block >= 512 && told.physical_block >= told.logical_block, "{told:?}");
    assert!(told.memory_alignment.is_power_of_two(), "{told:?}");
    let requests = trims(told, 0, GIB);
    assert_eq!(requests.len(), 1, "{fs}: one request says it all");
    for request in requests {
        queue.block_on(disk.request(request)).unwrap().unwrap();
    }
    queue.block_on(disk.flush()).unwrap().unwrap();
    assert!(space(&path) <= before / 100, "{fs}: {} of {before} are left", space(&path));
    assert_eq!(path.metadata().unwrap().len(), GIB, "{fs}");
}

#[test]
fn f21_a_trimmed_raw_disk_gives_its_blocks_back_on_xfs() {
    raw_file(Fs::Xfs);
}

#[test]
fn f21_a_trimmed_raw_disk_gives_its_blocks_back_on_ext4() {
    raw_file(Fs::Ext4);
}

/// What is smaller than a cluster gives nothing back, and a guest is told so.
#[test]
fn f21_the_granularity_of_an_image_is_its_cluster() {
    let directory = tempfile::tempdir().unwrap();
    for cluster_size in [512, 4096, 65536, 2 << 20] {
        let path = directory.path().join(format!("{cluster_size}.qcow2"));
        create(&path, &CreateOptions::new(8 << 20).cluster_size(cluster_size));
        let mut opened = Opened::writable(&path, Cache::Cached);
        let told = opened.disk.topology();
        for limits in [told.discard.unwrap(), told.zero.unwrap()] {
            assert_eq!((limits.granularity, limits.alignment), (cluster_size, 0));
            assert!(limits.max >= 8 << 20 && limits.max % cluster_size == 0);
        }
        assert_eq!(told.memory_alignment, 1, "through the page cache any memory will do");
        for request in trims(told, 0, 8 << 20) {
            let disk = opened.disk.clone();
            opened.run(disk.request(request)).unwrap();
        }
        opened.close();
    }
}

/// A guest fills its disk and trims it: while the image is open the host gets the space, and the image goes on.
#[test]
fn f21_a_trimmed_image_gives_its_clusters_back() {
    const SIZE: u64 = GIB / 4;
    const MIB: usize = 1 << 20;
    if tools::missing("qemu-img") {
        return;
    }
    let Some(mount) = or_skip(Mount::new(Fs::Xfs, SectorSize::S512, 600)) else { return };
    for freed in [Freed::GivenBack, Freed::Kept] {
        let path = mount.path().join("image");
        create(&path, &CreateOptions::new(SIZE));
        let options = ImageOptions::new().writable().freed(freed).reserve_bytes(1 << 20);
        let mut opened = Opened::new(&path, Cache::Direct, options);
        let mem = IoMem::aligned_zeroed(MIB);
        mem.fill(0..MIB, 7);
        let disk = opened.disk.clone();
        for at in (0..SIZE).step_by(MIB) {
            opened.run(disk.write(at, mem.clone(), Flags::empty())).unwrap();
        }
        opened.run(disk.flush()).unwrap();
        let before = space(&path);
        assert!(before >= SIZE);
        for request in trims(disk.topology(), 0, SIZE - MIB as u64) {
            opened.run(disk.request(request)).unwrap();
        }
        // The first flush makes the removal durable, the second lowers the counts.
        opened.run(disk.flush()).unwrap();
        opened.run(disk.flush()).unwrap();
        let after = space(&path) - MIB as u64;
        match freed {
            Freed::GivenBack => assert!(after <= before / 100, "{after} of {before} are left"),
            Freed::Kept => assert!(after >= before / 2, "{after} of {before} are left"),
            other => panic!("{other:?} is not tried"),
        }
        for at in (0..SIZE).step_by(32 * MIB) {
            opened.run(disk.write(at, mem.clone(), Flags::empty())).unwrap();
        }
        let last = opened.read(SIZE - MIB as u64, MIB);
        assert!(last.iter().all(|&byte| byte == 7), "what was not trimmed is there");
        for at in (0..SIZE - MIB as u64).step_by(16 * MIB) {
            let expected = if at % (32 * MIB as u64) == 0 { 7 } else { 0 };
            assert!(opened.read(at, MIB).iter().all(|&byte| byte == expected), "{freed:?} at {at}");
        }
        drop(disk);
        opened.close();
        tools::qemu_img(&["check", "-q", path.to_str().unwrap()]).unwrap();
    }
}
