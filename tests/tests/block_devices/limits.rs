//! The limits of a device's queue bound what the kernel sends to it, not what is asked of the kernel: a request is one
//! entry of the ring, whatever they are.

use std::fs;

use blkring_engine::{Cache, Flags, IoMem};
use blkring_tests::loop_device::LoopDevice;
use blkring_tests::mounts::SectorSize;
use blkring_tests::report::or_skip;
use blkring_tests::ring_trace::RingTrace;

use super::setup::{MIB, Opened, device};

/// Reads and writes that the device was sent so far.
fn sent(device: &LoopDevice) -> [u64; 2] {
    let text = fs::read_to_string(format!("/sys/block/{}/stat", device.name())).unwrap();
    let numbers: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    [numbers[0], numbers[4]]
}

#[test]
fn a_request_is_one_entry_whatever_the_limits_of_the_queue() {
    let Some(device) = device(SectorSize::S512) else { return };
    let Some(trace) = or_skip(RingTrace::new()) else { return };
    for kib in [512, 128, 32, 4] {
        let Some(()) = or_skip(device.set_limit("max_sectors_kb", kib)) else { return };
        let mut opened = Opened::new(device.path(), Cache::Direct);
        let mem = IoMem::aligned_zeroed(1 << 20);
        for (number, name) in ["READ", "WRITE"].into_iter().enumerate() {
            let before = sent(&device)[number];
            trace.begin().unwrap();
            let bytes = mem.clone();
            opened
                .run(|s, lane| async move {
                    match name {
                        "READ" => s.read(&lane, MIB, &bytes).await,
                        _ => s.write(&lane, MIB, &bytes, Flags::empty()).await,
                    }
                })
                .unwrap();
            let submitted = trace.end().unwrap();
            // The wake-up of a queue may be watched again in between.
            let transfers: Vec<_> = submitted.iter().filter(|(op, _)| op.contains(name)).collect();
            assert_eq!(transfers, [(&name.to_owned(), &1)], "max_sectors_kb {kib}: {submitted:?}");
            let split = sent(&device)[number] - before;
            assert!(split >= 1024 / kib, "max_sectors_kb {kib} bounds nothing: {split} sent");
        }
    }
}

/// The limits of a call are kept: 1024 segments, and 2 GiB less a page.
#[test]
fn more_segments_than_a_call_takes_are_moved_whole() {
    let Some(device) = device(SectorSize::S512) else { return };
    for cache in [Cache::Cached, Cache::Direct] {
        let mut opened = Opened::new(device.path(), cache);
        let len = 3000 * 512;
        let bytes: Vec<u8> =
            (0..len).map(|at: usize| (at / 512 % 251) as u8 ^ (at % 13) as u8).collect();
        let parts: Vec<IoMem> = bytes
            .chunks(512)
            .map(|chunk| {
                let part = IoMem::aligned_zeroed(512);
                part.copy_in(0, chunk);
                part
            })
            .collect();
        let scattered = IoMem::concat(&parts);
        opened
            .run(|s, lane| async move { s.write(&lane, MIB, &scattered, Flags::empty()).await })
            .unwrap();
        assert!(opened.read(MIB, len) == bytes, "{cache:?}");
        assert!(opened.queue.counts().writes >= 3, "{cache:?}");
    }
}

/// The most that one call moves: 2 GiB less a page.
const CALL: usize = 0x7fff_f000;

/// Most of the memory is one piece of 64 MiB again and again; what lies around the end of the first call is its own.
#[test]
fn more_bytes_than_a_call_takes_are_moved_whole() {
    let Some(device) = or_skip(LoopDevice::new(SectorSize::S512, 2100)) else { return };
    const PIECE: usize = 64 << 20;
    const SHARED: usize = 31 * PIECE;
    const OWN: usize = 80 << 20;
    let mut opened = Opened::new(device.path(), Cache::Direct);
    let own: Vec<u8> = (0..OWN).map(|at| (at / 4096 % 251) as u8 ^ (at % 17) as u8).collect();
    opened.write(SHARED as u64, own.clone()).unwrap();
    let piece = IoMem::aligned_zeroed(PIECE);
    let last = IoMem::aligned_zeroed(OWN);
    let mut parts = vec![piece.clone(); 31];
    parts.push(last.clone());
    let mem = IoMem::concat(&parts);
    assert!((SHARED..SHARED + OWN).contains(&CALL) && mem.len() == SHARED + OWN);
    let before = opened.queue.counts().reads;
    opened.run(|s, lane| async move { s.read(&lane, 0, &mem).await }).unwrap();
    assert_eq!(opened.queue.counts().reads - before, 2, "two calls");
    assert!(last.to_vec() == own, "the bytes around the end of the first call");
    assert!(piece.to_vec().iter().all(|&byte| byte == 0));
}
