//! The ladders of block devices: which error number leads where, what is never tried again, and what is done about the
//! ends of a range that are no whole blocks.

use blkring_engine::sim::{Event, Fault, Matcher, OpKind, Rule, Stage};
use blkring_engine::{Flags, Result};

use super::setup::{Bench, FILE, Setup};

use OpKind::{Discard, DiscardCall, PunchHole, Write, ZeroOutCall, ZeroRange};

const UNSUPPORTED: [i32; 4] = [libc::EOPNOTSUPP, libc::ENOSYS, libc::ENODEV, libc::ENOTTY];
const SIZE: usize = 65536;

/// A call and how it always fails.
type Failing = (OpKind, i32);

/// A device of ones, on which the given calls always fail.
fn bench(alignment: u64, failing: &[Failing]) -> Bench {
    let mut setup = Setup::new(1, &[0x11; SIZE]).aligned(alignment);
    setup.options = setup.options.block_device();
    let bench = setup.build();
    for &(kind, errno) in failing {
        bench.disk.inject(Rule::new(Matcher::kind(kind), Fault::Error(errno)).always());
    }
    bench
}

fn zero(bench: &mut Bench, (offset, len): (u64, u64), flags: Flags) -> Result<()> {
    bench.run(
        move |storage, lane| async move { storage.write_zeroes(&lane, offset, len, flags).await },
    )
}

fn discard(bench: &mut Bench, (offset, len): (u64, u64)) -> Result<()> {
    bench.run(move |storage, lane| async move { storage.discard(&lane, offset, len).await })
}

/// Calls so far: punches, zero-ranges, BLKZEROOUTs, writes.
fn calls(bench: &Bench) -> [u64; 4] {
    [PunchHole, ZeroRange, ZeroOutCall, Write].map(|kind| bench.disk.count(kind))
}

/// Discards so far: commands, calls.
fn discards(bench: &Bench) -> [u64; 2] {
    [Discard, DiscardCall].map(|kind| bench.disk.count(kind))
}

fn assert_content(bench: &Bench, changed: std::ops::Range<usize>, byte: u8, context: &str) {
    let content = bench.disk.contents(FILE);
    assert_eq!(content.len(), SIZE, "{context}: a device has its size");
    for (at, found) in content.iter().enumerate() {
        let expected = if changed.contains(&at) { byte } else { 0x11 };
        assert_eq!(*found, expected, "{context} at {at}");
    }
}

/// Two zero-writes in a row, the first of which finds out, with the calls after each.
fn twice(failing: &[Failing], flags: Flags, expected: [[u64; 4]; 2]) {
    let mut bench = bench(512, failing);
    for (round, calls_then) in expected.into_iter().enumerate() {
        let context = format!("{failing:?} with {flags:?}, round {round}");
        zero(&mut bench, (8192, 8192), flags).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_eq!(calls(&bench), calls_then, "{context}");
        assert_content(&bench, 8192..16384, 0, &context);
    }
    bench.assert_idle();
}

#[test]
fn each_call_is_given_up_for_good_when_it_is_not_there() {
    let (none, unmap) = (Flags::empty(), Flags::MAY_UNMAP);
    twice(&[], none, [[0, 1, 0, 0], [0, 2, 0, 0]]);
    twice(&[], unmap, [[1, 0, 0, 0], [2, 0, 0, 0]]);
    twice(&[], Flags::NO_FALLBACK, [[1, 0, 0, 0], [2, 0, 0, 0]]);
    for errno in UNSUPPORTED {
        let (range, punch, out) = ((ZeroRange, errno), (PunchHole, errno), (ZeroOutCall, errno));
        twice(&[range], none, [[0, 1, 1, 0], [0, 1, 2, 0]]);
        twice(&[punch], unmap, [[1, 1, 0, 0], [1, 2, 0, 0]]);
        twice(&[range, punch], unmap, [[1, 1, 1, 0], [1, 1, 2, 0]]);
        twice(&[range, out], none, [[0, 1, 1, 1], [0, 1, 1, 2]]);
        twice(&[range, punch, out], unmap, [[1, 1, 1, 1], [1, 1, 1, 2]]);
    }
}

#[test]
fn an_invalid_range_is_no_reason_to_give_a_call_up() {
    let (none, unmap) = (Flags::empty(), Flags::MAY_UNMAP);
    let invalid = |kind| (kind, libc::EINVAL);
    twice(&[invalid(ZeroRange)], none, [[0, 1, 1, 0], [0, 2, 2, 0]]);
    twice(&[invalid(PunchHole)], unmap, [[1, 1, 0, 0], [2, 2, 0, 0]]);
    twice(&[(PunchHole, libc::EBUSY)], unmap, [[1, 1, 0, 0], [2, 2, 0, 0]]);
    twice(&[invalid(ZeroRange), invalid(ZeroOutCall)], none, [[0, 1, 1, 1], [0, 2, 2, 2]]);
}

#[test]
fn any_other_error_is_the_answer() {
    let none = Flags::empty();
    let cases: [(&[Failing], Flags, [u64; 4]); 6] = [
        (&[(ZeroRange, libc::EIO)], none, [0, 1, 0, 0]),
        (&[(ZeroRange, libc::EBUSY)], none, [0, 1, 0, 0]),
        (&[(PunchHole, libc::EIO)], Flags::MAY_UNMAP, [1, 0, 0, 0]),
        (&[(PunchHole, libc::EIO)], Flags::NO_FALLBACK, [1, 0, 0, 0]),
        (&[(ZeroRange, libc::ENOTTY), (ZeroOutCall, libc::EIO)], none, [0, 1, 1, 0]),
        (&[(ZeroRange, libc::EINVAL), (ZeroOutCall, libc::EREMOTEIO)], none, [0, 1, 1, 0]),
    ];
    for (failing, flags, expected) in cases {
        let mut bench = bench(512, failing);
        let error = zero(&mut bench, (8192, 8192), flags).unwrap_err();
        assert_eq!(error.errno, failing.last().unwrap().1, "{failing:?}");
        assert_eq!(error.offset, 8192);
        assert_eq!(calls(&bench), expected, "{failing:?}");
        assert_content(&bench, 0..0, 0, "a zero-write that failed");
        bench.assert_idle();
    }
}

/// The kernel may write zeros for ZERO_RANGE and BLKZEROOUT: neither is asked for then, and a refusal says nothing
/// about them.
#[test]
fn without_fallback_only_the_call_that_never_writes_is_made() {
    for errno in UNSUPPORTED.into_iter().chain([libc::EINVAL, libc::EBUSY]) {
        let mut bench = bench(512, &[(PunchHole, errno)]);
        assert!(bench.storage.supported_flags().contains(Flags::NO_FALLBACK));
        for flags in [Flags::NO_FALLBACK, Flags::NO_FALLBACK | Flags::MAY_UNMAP] {
            let error = zero(&mut bench, (8192, 8192), flags).unwrap_err();
            assert_eq!(error.errno, libc::ENOTSUP, "errno {errno}");
        }
        let for_good = UNSUPPORTED.contains(&errno);
        assert_eq!(calls(&bench), [if for_good { 1 } else { 2 }, 0, 0, 0]);
        let told = bench.storage.supported_flags().contains(Flags::NO_FALLBACK);
        assert_eq!(told, !for_good, "what will not work is not promised");
        zero(&mut bench, (8192, 8192), Flags::empty()).unwrap();
        assert_eq!(bench.disk.count(ZeroRange), 1, "the mode is there as before");
        bench.assert_idle();
    }
}

/// What operations of a kind were asked for: offset and length.
fn asked(bench: &Bench, kind: OpKind) -> Vec<(u64, u64)> {
    let of_kind = |event: &Event| event.kind == kind && event.stage == Stage::Accepted;
    bench.disk.log().iter().filter(|e| of_kind(e)).map(|e| (e.offset, e.len)).collect()
}

#[test]
fn only_whole_blocks_are_zeroed_without_writing() {
    // Direct, every write is whole blocks as well; through the page cache it is the bytes that are left.
    for (alignment, unit) in [(1, 512u64), (512, 512), (4096, 4096)] {
        for (offset, len) in [
            (0, SIZE as u64),
            (unit, 3 * unit),
            (unit - 1, 2),
            (100, 300),
            (100, unit - 100),
            (100, unit),
            (100, 5 * unit),
            (2 * unit, unit + 1),
            (3 * unit - 7, 3 * unit),
            (SIZE as u64 - 3, 3),
        ] {
            let context = format!("{offset}+{len}, alignment {alignment}");
            let mut bench = bench(alignment, &[]);
            let (first, last) = (offset.next_multiple_of(unit), (offset + len) / unit * unit);
            let whole = (first, last) == (offset, offset + len);
            let refused = zero(&mut bench, (offset, len), Flags::NO_FALLBACK);
            assert_eq!(refused.is_ok(), whole, "{context}");
            if !whole {
                assert_eq!(refused.unwrap_err().errno, libc::ENOTSUP);
                assert_eq!(calls(&bench), [0; 4], "{context}: nothing is done");
                zero(&mut bench, (offset, len), Flags::MAY_UNMAP).unwrap();
            }
            let punched = if first < last { vec![(first, last - first)] } else { Vec::new() };
            assert_eq!(asked(&bench, PunchHole), punched, "{context}");
            for (at, len) in asked(&bench, Write) {
                let within_block = at / unit == (at + len - 1) / unit;
                assert!(within_block || first >= last, "{context}: {at}+{len} is written");
            }
            let changed = offset as usize..(offset + len) as usize;
            assert_content(&bench, changed, 0, &context);
            bench.assert_idle();
        }
    }
}

#[test]
fn a_durable_zero_write_is_durable_with_its_ends() {
    let mut bench = bench(512, &[]);
    zero(&mut bench, (100, 2000), Flags::FUA).unwrap();
    let content = bench.disk.crash_keeping_nothing().contents(FILE);
    assert!(content[100..2100].iter().all(|&byte| byte == 0));
    assert_eq!((content[99], content[2100]), (0x11, 0x11));
}

#[test]
fn nothing_is_asked_for_beyond_the_end() {
    let mut bench = bench(512, &[]);
    let end = SIZE as u64;
    for (offset, len) in [(end, 512), (end - 512, 1024), (end + 4096, 1), (0, end + 1)] {
        let error = zero(&mut bench, (offset, len), Flags::empty()).unwrap_err();
        assert_eq!((error.errno, error.offset), (libc::ENOSPC, offset));
    }
    discard(&mut bench, (end, 512)).unwrap();
    assert_eq!((calls(&bench), discards(&bench)), ([0; 4], [0, 0]));
    discard(&mut bench, (end - 512, 4096)).unwrap();
    assert_eq!(asked(&bench, Discard), [(end - 512, 512)]);
    // It grows by nothing that the engine does.
    for by_hole in [false, true] {
        let grown = bench.run(move |s, lane| async move {
            if by_hole {
                s.grow_by_hole(&lane, end + 1).await
            } else {
                s.grow(&lane, end + 1).await
            }
        });
        assert!(grown.unwrap_err().is_no_space());
    }
    let shorter = bench.run(move |s, lane| async move { s.resize(&lane, end - 512).await });
    let error = shorter.unwrap_err();
    assert_eq!(error.errno, libc::ENOTSUP);
    assert!(error.to_string().ends_with("(a block device)"), "{error}");
    bench.run(move |s, lane| async move { s.resize(&lane, end).await }).unwrap();
    assert_content(&bench, SIZE - 512..SIZE, 0xd5, "discarded");
    bench.assert_idle();
}

#[test]
fn a_discard_is_a_command_then_a_call_then_nothing() {
    for errno in UNSUPPORTED {
        for (failing, expected) in [
            (vec![], [[1, 0], [2, 0]]),
            (vec![(Discard, errno)], [[1, 1], [1, 2]]),
            (vec![(Discard, errno), (DiscardCall, errno)], [[1, 1], [1, 1]]),
        ] {
            let mut bench = bench(512, &failing);
            for calls_then in expected {
                discard(&mut bench, (0, 8192)).unwrap();
                assert_eq!(discards(&bench), calls_then, "{failing:?}");
            }
            assert_eq!(calls(&bench), [0; 4]);
            bench.assert_idle();
        }
    }
    for failing in [
        vec![(Discard, libc::EIO)],
        vec![(Discard, libc::EINVAL)],
        vec![(Discard, libc::EOPNOTSUPP), (DiscardCall, libc::EIO)],
    ] {
        let mut bench = bench(512, &failing);
        for round in 0..2 {
            let error = discard(&mut bench, (1024, 8192)).unwrap_err();
            assert_eq!((error.errno, error.offset), (failing.last().unwrap().1, 1024));
            let last = discards(&bench)[failing.len() - 1];
            assert_eq!(last, round + 1, "an error is no reason to give it up: {failing:?}");
        }
        bench.assert_idle();
    }
}

#[test]
fn only_whole_blocks_are_discarded() {
    let mut bench = bench(1, &[]);
    discard(&mut bench, (100, 300)).unwrap();
    discard(&mut bench, (100, 600)).unwrap();
    assert_eq!(discards(&bench), [0, 0], "there is no whole block in these");
    discard(&mut bench, (100, 2000)).unwrap();
    assert_eq!(asked(&bench, Discard), [(512, 1536)]);
    assert_content(&bench, 512..2048, 0xd5, "the blocks within");
}

#[test]
fn a_flush_covers_what_the_calls_changed() {
    let failing = [(Discard, libc::EOPNOTSUPP), (ZeroRange, libc::EOPNOTSUPP)];
    let mut bench = bench(512, &failing);
    let syncs = |bench: &Bench| bench.disk.count(OpKind::Sync);
    bench.run(|s, lane| async move { s.flush(&lane).await }).unwrap();
    let before = syncs(&bench);
    bench.run(|s, lane| async move { s.flush(&lane).await }).unwrap();
    assert_eq!(syncs(&bench), before, "nothing has changed");
    discard(&mut bench, (0, 4096)).unwrap();
    bench.run(|s, lane| async move { s.flush(&lane).await }).unwrap();
    assert_eq!(syncs(&bench), before + 1);
    zero(&mut bench, (0, 4096), Flags::empty()).unwrap();
    bench.run(|s, lane| async move { s.flush(&lane).await }).unwrap();
    assert_eq!(syncs(&bench), before + 2);
    assert_eq!(bench.disk.crash_keeping_nothing().contents(FILE)[..4096], [0; 4096]);
    // A failed one poisons a device as it does a file.
    bench.disk.inject(Rule::new(Matcher::kind(OpKind::Sync), Fault::Error(libc::EIO)));
    discard(&mut bench, (0, 4096)).unwrap();
    for _ in 0..2 {
        let failed = bench.run(|s, lane| async move { s.flush(&lane).await });
        assert_eq!(failed.unwrap_err().errno, libc::EIO);
    }
    bench.assert_idle();
}
