//! Operations that change the size against writes beyond the end, on a kernel that computes the new size too early
//! (F27), and on any kernel where growth has to fall back to ftruncate.

use blkring_engine::sim::{Fault, Matcher, OpKind, Point, Rule};
use blkring_engine::{Flags, Variant, Variants};

use super::setup::{Bench, FILE, Setup, mem};

const END: u64 = 16384;
const SEEDS: u64 = 400;

#[derive(Clone, Copy, Debug)]
enum Growth {
    ZeroWrite,
    Grow,
}

/// Grows the file to END + 4096 on one queue while another writes around and beyond that. Gives whether everything
/// that was written is there and the size is what we think it is, and how many requests had to wait.
fn written_survives(mut bench: Bench, growth: Growth) -> (bool, u64) {
    _ = bench.start(0, move |storage, lane| async move {
        match growth {
            Growth::ZeroWrite => {
                storage.write_zeroes(&lane, END, 4096, Flags::NO_FALLBACK).await.unwrap();
            }
            Growth::Grow => storage.grow(&lane, END + 4096).await.unwrap(),
        }
    });
    for (offset, byte) in [(END + 8192, 1), (END + 16384, 2), (END - 4096, 3)] {
        _ = bench.start(1, move |storage, lane| async move {
            storage.write(&lane, offset, &mem(4096, byte), Flags::empty()).await.unwrap();
        });
    }
    bench.world.settle();
    bench.assert_idle();
    let content = bench.disk.contents(FILE);
    let holds = |offset: u64, byte: u8| {
        let at = usize::try_from(offset).unwrap();
        content.get(at..at + 4096).is_some_and(|part| part == [byte; 4096])
    };
    let survives = holds(END + 8192, 1) && holds(END + 16384, 2) && holds(END - 4096, 3);
    let size_is_known = bench.storage.size() == content.len() as u64;
    (survives && size_is_known, bench.storage.statistics().waited)
}

fn old_xfs(seed: u64, variants: Variants) -> Bench {
    Setup::new(seed, &[0x11; END as usize]).queues(2).old_xfs().variants(variants).build()
}

fn losses(build: impl Fn(u64, Variants) -> Bench, growth: Growth, variants: Variants) -> u64 {
    (0..SEEDS).filter(|&seed| !written_survives(build(seed, variants), growth).0).count() as u64
}

fn assert_some_lose(build: impl Fn(u64, Variants) -> Bench, growth: Growth, variant: Variant) {
    let lost = losses(build, growth, Variants::only(variant));
    println!("{variant:?}, {growth:?}: {lost} of {SEEDS} seeds lose data");
    assert!(0 < lost && lost < SEEDS, "{variant:?}, {growth:?}: {lost} of {SEEDS}");
}

fn assert_none_loses(build: impl Fn(u64, Variants) -> Bench, growth: Growth) {
    let mut waited = 0;
    for seed in 0..SEEDS {
        let (survives, waits) = written_survives(build(seed, Variants::default()), growth);
        assert!(survives, "{growth:?}, seed {seed}");
        waited += waits;
    }
    assert!(waited > 0, "{growth:?}: nobody was held back");
}

#[test]
fn f27_zero_write_beyond_the_end_on_the_old_kernel() {
    assert_some_lose(old_xfs, Growth::ZeroWrite, Variant::GrowthNotSerialised);
    assert_some_lose(old_xfs, Growth::ZeroWrite, Variant::ZeroWriteWidensToOwnRange);
    assert_none_loses(old_xfs, Growth::ZeroWrite);
}

#[test]
fn f27_growth_on_the_old_kernel() {
    assert_some_lose(old_xfs, Growth::Grow, Variant::GrowthNotSerialised);
    assert_none_loses(old_xfs, Growth::Grow);
}

#[test]
fn growth_by_truncation_cuts_nothing_off() {
    let build = |seed, variants| {
        let setup = Setup::new(seed, &[0x11; END as usize]).queues(2).variants(variants);
        let bench = setup.build();
        let unsupported = Fault::Error(libc::EOPNOTSUPP);
        bench.disk.inject(Rule::new(Matcher::kind(OpKind::Grow), unsupported).always());
        bench
    };
    assert_some_lose(build, Growth::Grow, Variant::GrowthNotSerialised);
    assert_none_loses(build, Growth::Grow);
}

#[test]
fn what_is_wholly_below_a_growth_does_not_wait_for_it() {
    let mut bench = old_xfs(1, Variants::default());
    bench.disk.hold("grow", Matcher::kind(OpKind::ZeroRange), Point::Land);
    let grown = bench.start(0, |storage, lane| async move {
        storage.write_zeroes(&lane, END + 4096, 4096, Flags::empty()).await
    });
    bench.world.settle();
    let below = bench.start(1, |storage, lane| async move {
        storage.write(&lane, END - 4096, &mem(4096, 1), Flags::empty()).await
    });
    // Beyond the old end, below the zero-write's own range: the size is at stake there too.
    let between = bench.start(1, |storage, lane| async move {
        storage.write(&lane, END, &mem(4096, 2), Flags::empty()).await
    });
    bench.world.settle();
    below.take().expect("nothing is in its way").unwrap();
    assert!(between.borrow().is_none());
    bench.disk.release("grow");
    bench.world.settle();
    grown.take().unwrap().unwrap();
    between.take().unwrap().unwrap();
    bench.assert_idle();
}

#[test]
fn growth_keeps_everybody_off_from_the_end_of_the_file() {
    let mut bench = old_xfs(1, Variants::default());
    let end = 4 * END;
    bench.disk.hold("cut", Matcher::kind(OpKind::Truncate), Point::Land);
    bench.disk.hold("grow", Matcher::kind(OpKind::Grow), Point::Land);
    let cut = bench.start(0, |storage, lane| async move { storage.resize(&lane, 4096).await });
    bench.world.settle();
    // Arrives when the file ends at END, runs when it ends at 4096.
    let grown = bench.start(0, move |storage, lane| async move { storage.grow(&lane, end).await });
    bench.world.settle();
    bench.disk.release("cut");
    bench.world.settle();
    cut.take().unwrap().unwrap();
    assert_eq!(bench.disk.held("grow"), 1);
    let write = |bench: &mut Bench, offset: u64| {
        bench.start(1, move |storage, lane| async move {
            storage.write(&lane, offset, &mem(512, 1), Flags::empty()).await
        })
    };
    let below = write(&mut bench, 4096 - 512);
    let waiting: Vec<_> = [4096, END, 2 * END, end, 8 * END].map(|at| write(&mut bench, at)).into();
    bench.world.settle();
    below.take().expect("nothing is in its way").unwrap();
    assert_eq!(bench.storage.statistics().waiting, waiting.len() as u64);
    bench.disk.release("grow");
    bench.world.settle();
    grown.take().unwrap().unwrap();
    waiting.iter().for_each(|written| written.take().unwrap().unwrap());
    bench.assert_idle();
}

#[test]
fn sizes_change_in_any_order() {
    for seed in 0..SEEDS {
        let mut bench = Setup::new(seed, &[0x11; END as usize]).queues(3).build();
        _ = bench.start(0, |storage, lane| async move {
            storage.grow(&lane, 30_000).await.unwrap();
            storage.resize(&lane, 10_000).await.unwrap();
            storage.resize(&lane, 20_000).await.unwrap();
        });
        _ = bench.start(1, |storage, lane| async move {
            storage.resize(&lane, 5000).await.unwrap();
            storage.write_zeroes(&lane, 7000, 20_000, Flags::empty()).await.unwrap();
        });
        _ = bench.start(2, |storage, lane| async move {
            storage.resize(&lane, 2000).await.unwrap();
            storage.write_zeroes(&lane, 40_000, 100, Flags::empty()).await.unwrap();
            storage.write(&lane, 50_000, &mem(10, 5), Flags::empty()).await.unwrap();
        });
        bench.world.settle();
        bench.assert_idle();
        let content = bench.disk.contents(FILE);
        assert_eq!(bench.storage.size(), content.len() as u64, "seed {seed}");
        assert!(content[..2000].iter().all(|&byte| byte == 0x11));
    }
}
