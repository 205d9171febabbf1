//! The ladder of zeroing calls: which error number leads where, and what is never tried again.

use blkring_engine::sim::{Fault, Matcher, OpKind, Rule};
use blkring_engine::{Flags, Result};

use super::setup::{Bench, FILE, Setup};

const UNSUPPORTED: [i32; 4] = [libc::EOPNOTSUPP, libc::ENOSYS, libc::ENODEV, libc::ENOTTY];

/// A call and how it always fails.
type Failing = (OpKind, i32);

/// A file of ones in which the given calls always fail.
fn bench(failing: &[Failing]) -> Bench {
    let bench = Setup::new(1, &[0x11; 65536]).aligned(512).build();
    for &(kind, errno) in failing {
        bench.disk.inject(Rule::new(Matcher::kind(kind), Fault::Error(errno)).always());
    }
    bench
}

fn zero(bench: &mut Bench, offset: u64, flags: Flags) -> Result<()> {
    bench.run(
        move |storage, lane| async move { storage.write_zeroes(&lane, offset, 8192, flags).await },
    )
}

/// Calls so far: punches, zero-ranges, allocations, writes.
fn calls(bench: &Bench) -> [u64; 4] {
    [OpKind::PunchHole, OpKind::ZeroRange, OpKind::Grow, OpKind::Write]
        .map(|kind| bench.disk.count(kind))
}

fn is_zeroed(bench: &Bench, offset: usize) -> bool {
    let content = bench.disk.contents(FILE);
    let rest_is_kept = content[..offset.min(65536)].iter().all(|&byte| byte == 0x11);
    rest_is_kept && content[offset..offset + 8192] == [0; 8192]
}

/// Two zero-writes in a row, the first of which finds out, with the calls after each.
fn twice(failing: &[Failing], offset: u64, flags: Flags, expected: [[u64; 4]; 2]) {
    let mut bench = bench(failing);
    for (round, calls_then) in expected.into_iter().enumerate() {
        let context = format!("{failing:?} at {offset} with {flags:?}, round {round}");
        zero(&mut bench, offset, flags).unwrap_or_else(|error| panic!("{context}: {error}"));
        assert_eq!(calls(&bench), calls_then, "{context}");
        assert!(is_zeroed(&bench, offset as usize), "{context}");
    }
    bench.assert_idle();
}

#[test]
fn each_call_is_given_up_for_good_when_it_is_not_there() {
    use OpKind::{Grow, PunchHole, ZeroRange};
    let (none, unmap) = (Flags::empty(), Flags::MAY_UNMAP);
    twice(&[], 8192, none, [[0, 1, 0, 0], [0, 2, 0, 0]]);
    twice(&[], 8192, unmap, [[1, 0, 0, 0], [2, 0, 0, 0]]);
    for errno in UNSUPPORTED {
        let (zeroing, punch, grow) = ((ZeroRange, errno), (PunchHole, errno), (Grow, errno));
        twice(&[zeroing], 8192, none, [[1, 1, 1, 0], [2, 1, 2, 0]]);
        twice(&[punch], 8192, unmap, [[1, 1, 0, 0], [1, 2, 0, 0]]);
        twice(&[zeroing, punch], 8192, none, [[1, 1, 0, 1], [1, 1, 0, 2]]);
        twice(&[zeroing, punch], 8192, unmap, [[1, 1, 0, 1], [1, 1, 0, 2]]);
        twice(&[zeroing, grow], 8192, none, [[1, 1, 1, 1], [1, 1, 1, 2]]);
        // Beyond the end plain space reads as zeros; the second one is within the file by then.
        twice(&[zeroing, punch], 65536, none, [[1, 1, 1, 0], [1, 1, 1, 1]]);
    }
}

#[test]
fn an_invalid_range_is_no_reason_to_give_a_call_up() {
    use OpKind::{PunchHole, ZeroRange};
    let (none, unmap) = (Flags::empty(), Flags::MAY_UNMAP);
    let (zeroing, punch) = ((ZeroRange, libc::EINVAL), (PunchHole, libc::EINVAL));
    twice(&[zeroing], 8192, none, [[1, 1, 1, 0], [2, 2, 2, 0]]);
    twice(&[punch], 8192, unmap, [[1, 1, 0, 0], [2, 2, 0, 0]]);
    twice(&[(PunchHole, libc::EBUSY)], 8192, unmap, [[1, 1, 0, 0], [2, 2, 0, 0]]);
    twice(&[zeroing, punch], 8192, none, [[1, 1, 0, 1], [2, 2, 0, 2]]);
}

#[test]
fn any_other_error_is_the_answer() {
    use OpKind::{Grow, PunchHole, ZeroRange};
    let cases: [(&[Failing], Flags, [u64; 4]); 5] = [
        (&[(ZeroRange, libc::EIO)], Flags::empty(), [0, 1, 0, 0]),
        (&[(ZeroRange, libc::ENOSPC)], Flags::empty(), [0, 1, 0, 0]),
        (&[(PunchHole, libc::EIO)], Flags::MAY_UNMAP, [1, 0, 0, 0]),
        (&[(ZeroRange, libc::EINVAL), (PunchHole, libc::EIO)], Flags::empty(), [1, 1, 0, 0]),
        (&[(ZeroRange, libc::EINVAL), (Grow, libc::ENOSPC)], Flags::empty(), [1, 1, 1, 0]),
    ];
    for (failing, flags, expected) in cases {
        let mut bench = bench(failing);
        let error = zero(&mut bench, 8192, flags).unwrap_err();
        assert_eq!(error.errno, failing.last().unwrap().1, "{failing:?}");
        assert_eq!(error.offset, 8192);
        assert_eq!(calls(&bench), expected, "{failing:?}");
        bench.assert_idle();
    }
}

#[test]
fn without_fallback_no_zero_is_ever_written() {
    use OpKind::{Grow, PunchHole, ZeroRange};
    for errno in UNSUPPORTED.into_iter().chain([libc::EINVAL]) {
        let failing = [(ZeroRange, errno), (PunchHole, errno), (Grow, errno)];
        let mut bench = bench(&failing);
        assert!(bench.storage.supported_flags().contains(Flags::NO_FALLBACK));
        for (offset, flags) in
            [(8192, Flags::NO_FALLBACK), (8192, Flags::all()), (100, Flags::all())]
        {
            let error = zero(&mut bench, offset, flags).unwrap_err();
            assert_eq!(error.errno, libc::ENOTSUP, "errno {errno} at {offset}");
        }
        let told = bench.storage.supported_flags().contains(Flags::NO_FALLBACK);
        assert_eq!(told, errno == libc::EINVAL, "what will not work is not promised");
        assert_eq!(bench.disk.count(OpKind::Write), 0);
        assert_eq!(bench.disk.contents(FILE), [0x11; 65536]);
        bench.assert_idle();
    }
}

#[test]
fn the_fallback_writes_zeros_of_any_length_and_alignment() {
    use OpKind::{Grow, PunchHole, ZeroRange};
    for (offset, len) in [
        (0u64, 512u64),
        (512, 65024),
        (100, 3),
        (100, 9000),
        (65000, 1000),
        (65536, 512),
        (66000, 200_000),
    ] {
        let errno = libc::EOPNOTSUPP;
        let mut setup = Setup::new(1, &[0x11; 65536]).aligned(512);
        setup.options.buffer_budget = 4096;
        let mut bench = setup.build();
        for kind in [ZeroRange, PunchHole, Grow] {
            bench.disk.inject(Rule::new(Matcher::kind(kind), Fault::Error(errno)).always());
        }
        bench
            .run(move |s, lane| async move { s.write_zeroes(&lane, offset, len, Flags::FUA).await })
            .unwrap();
        let (from, to) = (offset as usize, (offset + len) as usize);
        let content = bench.disk.crash_keeping_nothing().contents(FILE);
        assert!(content.len() >= to && content.len() <= to.next_multiple_of(512).max(65536));
        for (at, byte) in content.iter().enumerate() {
            let expected = if at < 65536 && !(from..to).contains(&at) { 0x11 } else { 0 };
            assert_eq!(*byte, expected, "{offset}+{len} at {at}");
        }
        bench.assert_idle();
    }
}

#[test]
fn a_discard_that_is_not_there_succeeds_and_is_not_asked_again() {
    for errno in UNSUPPORTED {
        let mut bench = bench(&[(OpKind::PunchHole, errno)]);
        for _ in 0..2 {
            bench.run(|s, lane| async move { s.discard(&lane, 0, 65536).await }).unwrap();
        }
        assert_eq!(bench.disk.count(OpKind::PunchHole), 1);
    }
    let mut bench = bench(&[(OpKind::PunchHole, libc::EIO)]);
    let error = bench.run(|s, lane| async move { s.discard(&lane, 0, 65536).await });
    assert_eq!(error.unwrap_err().errno, libc::EIO);
}
