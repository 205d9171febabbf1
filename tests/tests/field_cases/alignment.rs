//! F28: two direct writes of 512 bytes into one block of the file system, at once. F92: requests of 512 bytes on devices
//! whose blocks are of 4096.

use std::path::Path;
use std::sync::{Arc, Barrier};

use blkring_engine::{Access, Cache, Flags, IoMem, OpenOptions, RawDisk, Request, Storage};
use blkring_tests::fs::{Feature, Fs, applicable};
use blkring_tests::images::queue;
use blkring_tests::loop_device::LoopDevice;
use blkring_tests::mounts::{Mount, SectorSize};
use blkring_tests::report::or_skip;

const BLOCK: u64 = 4096;
const HALF: u64 = 512;

/// Rounds: `BLKRING_F28_ROUNDS`.
fn rounds() -> u64 {
    std::env::var("BLKRING_F28_ROUNDS").map_or(2000, |text| text.parse().unwrap())
}

fn open(path: &Path) -> Arc<Storage> {
    let options = OpenOptions::new().access(Access::ReadWrite).cache(Cache::Direct);
    Arc::new(Storage::open(path, &options).unwrap())
}

/// Two threads write 512 bytes each into the same block, block after block, each round at the same moment.
fn halves(storage: &Arc<Storage>, blocks: u64) {
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        for side in 0..2u64 {
            let barrier = &barrier;
            scope.spawn(move || {
                let mut queue = queue();
                let lane = queue.lane();
                for round in 0..rounds() {
                    let offset = round % blocks * BLOCK + side * 7 * HALF;
                    let byte = u8::try_from(1 + (round + side) % 255).unwrap();
                    let mem = IoMem::aligned_zeroed(HALF as usize);
                    mem.fill(0..HALF as usize, byte);
                    barrier.wait();
                    let write = storage.write(&lane, offset, &mem, Flags::empty());
                    queue.block_on(write).unwrap().unwrap();
                    barrier.wait();
                    if side == 0 {
                        check(&mut queue, storage, round, blocks);
                    }
                }
            });
        }
    });
}

/// The block of a round: both writes, and zeros between them.
fn check(queue: &mut blkring_engine::Queue, storage: &Arc<Storage>, round: u64, blocks: u64) {
    let mem = IoMem::aligned_zeroed(BLOCK as usize);
    let lane = queue.lane();
    queue.block_on(storage.read(&lane, round % blocks * BLOCK, &mem)).unwrap().unwrap();
    let content = mem.to_vec();
    let mut expected = vec![0; BLOCK as usize];
    for side in 0..2 {
        let at = (side * 7 * HALF) as usize;
        expected[at..at + HALF as usize].fill(u8::try_from(1 + (round + side) % 255).unwrap());
    }
    assert!(content == expected, "round {round}: one write has undone the other");
}

/// A sparse file: each block gets its space from one of two writes that come at once. On a device of 512-byte sectors
/// the file system sees both; on one of 4096 the storage reads, changes and writes.
fn f28(fs: Fs) {
    if !applicable(fs, Feature::DirectIo) {
        return;
    }
    for sector in [SectorSize::S512, SectorSize::S4096] {
        let Some(mount) = or_skip(Mount::new(fs, sector, 64)) else { return };
        let path = mount.path().join("image");
        let blocks = rounds();
        std::fs::File::create(&path).unwrap().set_len(blocks * BLOCK).unwrap();
        let storage = open(&path);
        assert_eq!(storage.alignment(), u64::from(sector.bytes()), "{fs}");
        halves(&storage, blocks);
        assert_eq!(path.metadata().unwrap().len(), blocks * BLOCK, "{fs}");
    }
}

#[test]
fn f28_two_halves_of_a_block_survive_on_xfs() {
    f28(Fs::Xfs);
}

#[test]
fn f28_two_halves_of_a_block_survive_on_ext4() {
    f28(Fs::Ext4);
}

#[test]
fn f28_two_halves_of_a_block_survive_on_btrfs() {
    f28(Fs::Btrfs);
}

#[test]
fn f28_two_halves_of_a_block_survive_on_a_device() {
    for sector in [SectorSize::S512, SectorSize::S4096] {
        let Some(device) = or_skip(LoopDevice::new(sector, 16)) else { return };
        halves(&open(device.path()), 16 << 20 >> 12);
    }
}

/// Requests in sectors of 512 bytes, on what takes blocks of 4096.
fn sectors(path: &Path) {
    let storage = open(path);
    assert_eq!(storage.alignment(), BLOCK, "the alignment that the kernel tells is used");
    let raw = RawDisk::new(Arc::into_inner(storage).unwrap());
    assert_eq!(raw.storage().topology().logical_block, 4096);
    let mut queue = queue();
    let disk = queue.attach(&raw).unwrap();
    let mut expected = vec![0u8; 64 << 10];
    queue.block_on(disk.write(0, IoMem::from(expected.clone()), Flags::empty())).unwrap().unwrap();
    for sector in (0..128u64).rev().step_by(3) {
        let byte = u8::try_from(sector + 1).unwrap();
        let (at, bytes) = (sector * HALF, vec![byte; HALF as usize]);
        expected[at as usize..(at + HALF) as usize].copy_from_slice(&bytes);
        let flags = if sector % 2 == 0 { Flags::FUA } else { Flags::empty() };
        queue.block_on(disk.write(at, IoMem::from(bytes), flags)).unwrap().unwrap();
    }
    let zero = Request::write_zeroes(5 * HALF, 20 * HALF);
    queue.block_on(disk.request(zero)).unwrap().unwrap();
    expected[5 * 512..25 * 512].fill(0);
    for sector in 0..128u64 {
        let mem = IoMem::from(vec![0; HALF as usize]);
        queue.block_on(disk.read(sector * HALF, mem.clone())).unwrap().unwrap();
        let at = (sector * HALF) as usize;
        assert!(mem.to_vec() == expected[at..at + HALF as usize], "sector {sector}");
    }
    assert_eq!(raw.storage().buffers().taken(), 0);
}

#[test]
fn f92_sectors_of_512_bytes_go_through_buffers_on_blocks_of_4096() {
    let Some(device) = or_skip(LoopDevice::new(SectorSize::S4096, 16)) else { return };
    sectors(device.path());
    for fs in [Fs::Xfs, Fs::Ext4] {
        let Some(mount) = or_skip(Mount::new(fs, SectorSize::S4096, 64)) else { return };
        let path = mount.path().join("image");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        sectors(&path);
    }
}
