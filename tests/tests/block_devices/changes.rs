//! Zero-writes, discards and flushes on devices of the kernel: contents, space, and which calls are made.

use std::os::unix::fs::MetadataExt;

use blkring_engine::{Cache, Discarding, Flags, LaneCounts, Storage};
use blkring_tests::loop_device::LoopDevice;
use blkring_tests::mounts::SectorSize;

use super::setup::{MIB, Opened, device, queue, writable};

/// Bytes that the backing file takes.
fn space(device: &LoopDevice) -> u64 {
    device.backing().metadata().unwrap().blocks() * 512
}

/// A device full of sevens, which are on the disk.
fn filled(device: &LoopDevice, cache: Cache) -> Opened {
    let mut opened = Opened::new(device.path(), cache);
    opened.write(0, vec![7; 16 << 20]).unwrap();
    opened.flush().unwrap();
    assert!(space(device) >= 16 * MIB);
    opened
}

fn counts(opened: &Opened) -> LaneCounts {
    opened.queue.counts()
}

#[test]
fn zeros_are_the_kernels_own_and_space_goes_where_it_may() {
    for sector in [SectorSize::S512, SectorSize::S4096] {
        let Some(device) = device(sector) else { return };
        for cache in [Cache::Cached, Cache::Direct] {
            for (flags, freed) in [
                (Flags::empty(), false),
                (Flags::MAY_UNMAP, true),
                (Flags::NO_FALLBACK | Flags::MAY_UNMAP, true),
                (Flags::NO_FALLBACK, true),
            ] {
                let mut opened = filled(&device, cache);
                let before = counts(&opened);
                opened.zero(MIB, 8 * MIB, flags).unwrap();
                let after = counts(&opened);
                let context = format!("{sector:?}, {cache:?}, {flags:?}");
                assert_eq!(after.allocates - before.allocates, 1, "{context}");
                assert_eq!((after.writes, after.calls), (before.writes, before.calls), "{context}");
                let content = opened.read(0, 16 << 20);
                assert!(content[..1 << 20].iter().all(|&byte| byte == 7), "{context}");
                assert!(content[1 << 20..9 << 20].iter().all(|&byte| byte == 0), "{context}");
                assert!(content[9 << 20..].iter().all(|&byte| byte == 7), "{context}");
                assert_eq!(space(&device) < 9 * MIB, freed, "{context}: {}", space(&device));
            }
        }
    }
}

/// What is left of a range at its ends is written: through a buffer where the device takes whole blocks only.
#[test]
fn the_ends_of_a_zero_write_are_written() {
    for sector in [SectorSize::S512, SectorSize::S4096] {
        let Some(device) = device(sector) else { return };
        for cache in [Cache::Cached, Cache::Direct] {
            let mut opened = filled(&device, cache);
            let block = u64::from(sector.bytes());
            for (offset, len) in
                [(100, 20), (block - 3, 6), (block + 1, 2 * block), (3 * block, 10_000), (5, 1)]
            {
                let error = opened.zero(offset, len, Flags::NO_FALLBACK).unwrap_err();
                assert_eq!(error.errno, libc::ENOTSUP, "{offset}+{len}");
                let mut expected = opened.read(0, 64 << 10);
                opened.zero(offset, len, Flags::FUA).unwrap();
                expected[offset as usize..(offset + len) as usize].fill(0);
                assert!(
                    opened.read(0, 64 << 10) == expected,
                    "{sector:?}, {cache:?}, {offset}+{len}"
                );
            }
        }
    }
}

#[test]
fn a_discard_is_one_command_of_the_ring_and_gives_space_back() {
    let Some(device) = device(SectorSize::S512) else { return };
    for cache in [Cache::Cached, Cache::Direct] {
        let mut opened = filled(&device, cache);
        opened.discard(MIB, 8 * MIB).unwrap();
        let made = counts(&opened);
        // Before Linux 6.12 a ring has no such command, and the call is made.
        assert_eq!((made.discards, made.allocates), (1, 0), "{cache:?}");
        assert!(made.calls <= 1);
        assert!(space(&device) < 9 * MIB, "{}", space(&device));
        let content = opened.read(0, 16 << 20);
        assert!(content[..1 << 20].iter().all(|&byte| byte == 7));
        assert!(content[9 << 20..].iter().all(|&byte| byte == 7));
        // Ends within a block stay.
        opened.discard(100, 300).unwrap();
        opened.discard(511, 2).unwrap();
        assert!(opened.read(0, 4096).iter().all(|&byte| byte == 7));
        assert_eq!(counts(&opened).discards, 1);
    }
}

/// With the calls that a ring has refused, those that block do the same.
#[test]
fn a_device_without_ring_commands_is_changed_by_calls() {
    let Some(device) = device(SectorSize::S512) else { return };
    drop(filled(&device, Cache::Direct));
    let storage = Storage::open(device.path(), &writable(Cache::Direct)).unwrap();
    let storage = storage.without_ring_commands();
    let mut opened = Opened { storage: storage.into(), queue: queue() };
    opened.zero(0, MIB, Flags::empty()).unwrap();
    assert!(opened.read(0, 1 << 20).iter().all(|&byte| byte == 0));
    opened.discard(MIB, 8 * MIB).unwrap();
    let made = counts(&opened);
    assert_eq!((made.calls, made.discards, made.allocates, made.writes), (2, 0, 0, 0));
    assert!(space(&device) < 9 * MIB, "{}", space(&device));
    assert!(opened.read(9 << 20, 7 << 20).iter().all(|&byte| byte == 7));
}

#[test]
fn discards_are_left_out_where_they_are_to_be_ignored() {
    let Some(device) = device(SectorSize::S512) else { return };
    drop(filled(&device, Cache::Direct));
    let options = writable(Cache::Direct).discarding(Discarding::Ignored);
    let storage = Storage::open(device.path(), &options).unwrap();
    assert_eq!(storage.topology().discard, None);
    let mut opened = Opened { storage: storage.into(), queue: queue() };
    opened.discard(0, 16 * MIB).unwrap();
    assert!(opened.read(0, 16 << 20).iter().all(|&byte| byte == 7));
    assert_eq!(counts(&opened).discards, 0);
    assert!(!opened.storage.supported_flags().contains(Flags::NO_FALLBACK));
    let refused = opened.zero(0, 8 * MIB, Flags::NO_FALLBACK | Flags::MAY_UNMAP).unwrap_err();
    assert_eq!(refused.errno, libc::ENOTSUP, "it could only be done by giving space back");
    opened.zero(0, 8 * MIB, Flags::MAY_UNMAP).unwrap();
    assert!(opened.read(0, 8 << 20).iter().all(|&byte| byte == 0));
    assert!(space(&device) >= 16 * MIB, "space was given back: {}", space(&device));
}

#[test]
fn a_flush_of_a_device_is_left_out_when_nothing_has_changed() {
    let Some(device) = device(SectorSize::S512) else { return };
    for cache in [Cache::Cached, Cache::Direct] {
        let mut opened = Opened::new(device.path(), cache);
        for (number, change) in ["write", "zero", "discard"].into_iter().enumerate() {
            match change {
                "write" => opened.write(4096, vec![7; 4096]),
                "zero" => opened.zero(4096, 4096, Flags::empty()),
                _ => opened.discard(4096, 4096),
            }
            .unwrap();
            for _ in 0..3 {
                opened.flush().unwrap();
                assert_eq!(counts(&opened).syncs, number as u64 + 1, "{change}, {cache:?}");
            }
        }
    }
}
