//! Interruptions, short transfers, full disks: exact bytes or an error, never half an answer.

use blkring_engine::sim::{Fault, Matcher, OpKind, Rng, Rule, SimOptions};
use blkring_engine::{Flags, IoMem, Service};

use super::setup::{Bench, FILE, Setup, mem};

const INTERRUPTIONS: [i32; 3] = [libc::EINTR, libc::EAGAIN, libc::ECANCELED];

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 ^ seed).collect()
}

fn scattered(bytes: &[u8], pieces: usize) -> IoMem {
    let parts: Vec<IoMem> =
        bytes.chunks(bytes.len().div_ceil(pieces)).map(|part| IoMem::from(part.to_vec())).collect();
    IoMem::concat(&parts)
}

/// Short transfers and interruptions at random places.
fn disturb(bench: &Bench, rng: &mut Rng) {
    for _ in 0..12 {
        let fault = match rng.below(2) {
            0 => Fault::Error(INTERRUPTIONS[rng.index(3)]),
            // Not shorter than a block: 0 bytes would be the end of the file.
            _ => Fault::Short(512 + rng.below(9000)),
        };
        let what = Matcher::writes().or(OpKind::Read);
        bench.disk.inject(Rule::new(what, fault).after(rng.below(10)));
    }
}

#[test]
fn bytes_are_exact_whatever_interrupts_and_splits() {
    let mut extra = 0;
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        let alignment = [1, 512][rng.index(2)];
        let before = pattern(40_000usize.next_multiple_of(512), 0x11);
        let mut bench = Setup::new(seed, &before).aligned(alignment).build();
        disturb(&bench, &mut rng);
        let at = rng.below(20_000);
        let len = 1 + rng.index(18_000);
        let written = pattern(len, 0xee);
        let mem = scattered(&written, 1 + rng.index(5));
        let flags = [Flags::empty(), Flags::FUA][rng.index(2)];
        bench.run(move |s, lane| async move { s.write(&lane, at, &mem, flags).await }).unwrap();
        let mut expected = before;
        let start = usize::try_from(at).unwrap();
        expected[start..start + len].copy_from_slice(&written);
        assert!(bench.disk.contents(FILE) == expected, "seed {seed}");
        if flags == Flags::FUA {
            let durable = bench.disk.crash_keeping_nothing().contents(FILE);
            assert!(durable == expected, "seed {seed}: a part of a durable write is not");
        }
        let back = scattered(&vec![0; len + 10], 1 + rng.index(5));
        let into = back.clone();
        bench.run(move |s, lane| async move { s.read(&lane, at, &into).await }).unwrap();
        assert!(back.to_vec() == expected[start..start + len + 10], "seed {seed}");
        extra += bench.disk.count(OpKind::Read) + bench.disk.count(OpKind::Write);
        bench.assert_idle();
    }
    assert!(extra > 300 * 3, "the faults made no difference: {extra} operations");
}

#[test]
fn every_verb_is_asked_again_when_interrupted() {
    for errno in INTERRUPTIONS {
        let mut bench = Setup::new(1, &[0x11; 8192]).build();
        bench.disk.inject(Rule::new(Matcher::any(), Fault::Error(errno)).times(2));
        let rearm = |bench: &Bench| {
            bench.disk.inject(Rule::new(Matcher::any(), Fault::Error(errno)).times(2));
        };
        bench
            .run(|s, lane| async move { s.write(&lane, 0, &mem(512, 1), Flags::FUA).await })
            .unwrap();
        rearm(&bench);
        bench
            .run(|s, lane| async move { s.write_zeroes(&lane, 512, 512, Flags::empty()).await })
            .unwrap();
        rearm(&bench);
        bench.run(|s, lane| async move { s.discard(&lane, 4096, 4096).await }).unwrap();
        rearm(&bench);
        bench.run(|s, lane| async move { s.grow(&lane, 20_000).await }).unwrap();
        rearm(&bench);
        bench.run(|s, lane| async move { s.resize(&lane, 12_000).await }).unwrap();
        rearm(&bench);
        bench.run(|s, lane| async move { s.flush(&lane).await }).unwrap();
        let content = bench.disk.crash_keeping_nothing().contents(FILE);
        assert_eq!(content.len(), 12_000);
        assert_eq!((content[0], content[512], content[1024]), (1, 0, 0x11));
        assert!(content[4096..].iter().all(|&byte| byte == 0));
        bench.assert_idle();
    }
}

#[test]
fn interrupted_for_ever_is_an_error_and_no_hang() {
    let mut bench = Setup::new(1, &[0; 8192]).build();
    bench.disk.inject(Rule::new(Matcher::any(), Fault::Error(libc::EAGAIN)).always());
    let error =
        bench.run(|s, lane| async move { s.write(&lane, 0, &mem(512, 1), Flags::empty()).await });
    assert_eq!(error.unwrap_err().errno, libc::EAGAIN);
    bench.assert_idle();
}

/// On the ring of a queue EFAULT is told of the memory of a request; on that of shared work, of a thread that has
/// ended, and then the next try may succeed.
#[test]
fn bad_memory_is_told_at_once_and_a_thread_that_has_ended_is_not() {
    let mut bench = Setup::new(1, &[0; 8192]).build();
    let bad = || Rule::new(Matcher::writes(), Fault::Error(libc::EFAULT)).times(3);
    bench.disk.inject(bad());
    let error =
        bench.run(|s, lane| async move { s.write(&lane, 0, &mem(512, 1), Flags::FUA).await });
    assert_eq!(error.unwrap_err().errno, libc::EFAULT);
    assert_eq!(bench.disk.count(OpKind::WriteDurable), 1);
    // Nothing was to become durable, so nothing is in doubt.
    bench.run(|s, lane| async move { s.flush(&lane).await }).unwrap();
    let service = Service::without_ring(4).unwrap();
    bench.world.queue(0).watch_service(&service).unwrap();
    let lane = service.lane().clone();
    bench.run(|s, _| async move { s.write(&lane, 0, &mem(512, 1), Flags::empty()).await }).unwrap();
    assert_eq!(bench.disk.count(OpKind::Write), 3, "two more strikes, then it is written");
    bench.assert_idle();
}

#[test]
fn a_full_disk_is_an_answer() {
    let mut bench = Setup::new(1, &[0x11; 8192]).build();
    bench.disk.set_capacity(8192);
    let grown = bench.run(|s, lane| async move { s.grow(&lane, 8193).await }).unwrap_err();
    assert!(grown.is_no_space());
    let zeroed = bench
        .run(|s, lane| async move { s.write_zeroes(&lane, 8192, 1, Flags::NO_FALLBACK).await })
        .unwrap_err();
    assert!(zeroed.is_no_space(), "no space is not a reason to try another way");
    let written = bench
        .run(|s, lane| async move { s.write(&lane, 8000, &mem(1000, 1), Flags::empty()).await })
        .unwrap_err();
    assert!(written.is_no_space());
    assert_eq!((written.offset, bench.storage.size()), (8000, 8192));
    assert_eq!(bench.disk.contents(FILE), [0x11; 8192]);
    bench
        .run(|s, lane| async move { s.write(&lane, 0, &mem(8192, 2), Flags::empty()).await })
        .unwrap();
    // A device that takes nothing and reports no error would be asked for ever.
    bench.disk.inject(Rule::new(Matcher::writes(), Fault::Short(0)));
    let nothing = bench
        .run(|s, lane| async move { s.write(&lane, 0, &mem(100, 1), Flags::empty()).await })
        .unwrap_err();
    assert!(nothing.is_no_space());
    bench.assert_idle();
}

#[test]
fn beyond_the_end_are_zeros_wherever_the_end_is() {
    for alignment in [1, 512, 4096] {
        for size in [0usize, 1, 511, 512, 1000, 4096, 5000] {
            for (offset, len) in
                [(0u64, 8192usize), (512, 600), (4096, 4096), (5, 20), (12_288, 512)]
            {
                let before = pattern(size, 0x11);
                let mut bench = Setup::new(1, &before).aligned(alignment).build();
                let back = mem(len, 0xff);
                let into = back.clone();
                bench
                    .run(move |s, lane| async move { s.read(&lane, offset, &into).await })
                    .unwrap_or_else(|error| panic!("{size} bytes, {alignment}: {error}"));
                let mut expected = before.clone();
                expected.resize(1 << 16, 0);
                let start = usize::try_from(offset).unwrap();
                assert!(
                    back.to_vec() == expected[start..start + len],
                    "{offset}+{len} of {size} bytes, aligned to {alignment}"
                );
                bench.assert_idle();
            }
        }
    }
}

#[test]
fn more_segments_than_one_call_takes() {
    for (alignment, piece) in [(1, 100), (512, 64), (512, 100), (512, 512)] {
        let mut setup = Setup::new(1, &[0x11; 1 << 21]);
        setup.options = SimOptions {
            memory_alignment: 4.min(alignment as usize),
            ..SimOptions::aligned(alignment)
        };
        let mut bench = setup.build();
        // The first segment is longer and the last one shorter, so that no block ends where a call does.
        let bytes = pattern(2560 * piece, 0xee);
        let cuts = |i: usize| if i == 0 || i == 2560 { i * piece } else { i * piece + 4 };
        let ranges = || (0..2560).map(|i| cuts(i)..cuts(i + 1));
        let parts: Vec<IoMem> = ranges().map(|part| IoMem::from(bytes[part].to_vec())).collect();
        let (written, back) = (IoMem::concat(&parts), mem(bytes.len(), 0));
        let into: Vec<IoMem> = ranges().map(|part| back.slice(part)).collect();
        let into = IoMem::concat(&into);
        bench
            .run(|s, lane| async move {
                s.write(&lane, 4096, &written, Flags::empty()).await?;
                s.read(&lane, 4096, &into).await
            })
            .unwrap();
        assert!(back.to_vec() == bytes, "pieces of {piece}, aligned to {alignment}");
        assert!(bench.disk.contents(FILE)[4096..4096 + bytes.len()] == bytes);
        bench.assert_idle();
    }
}
