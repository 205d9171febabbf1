//! Worlds with several queues: see `blkring_tests::worlds`.
//!
//! `BLKRING_WORLDS_SEED=N` plays the world of one seed, `BLKRING_WORLDS_COUNT=N` as many as that from seed 0 on (or from
//! `BLKRING_WORLDS_FIRST`), and `BLKRING_WORLDS_FOCUS` says of which kind. A seed that has found something goes into
//! `tests/seeds/worlds.txt`, with a word on what it was.

use blkring_engine::sim::Kernel;
use blkring_engine::{Variant, Variants};
use blkring_qcow2::AllocPolicy;
use blkring_tests::powercut::{Base, Errors, FreeSpace, Past};
use blkring_tests::worlds::{Config, Found, Mix, parse, play, search};

/// Worlds of a usual run.
const COUNT: u64 = 2000;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// A change to what a seed draws.
type Focus = fn(&mut Config);

fn as_drawn(_: &mut Config) {}

/// Everything fails now and then.
fn failing(config: &mut Config) {
    config.image.errors = Errors::Some;
}

/// No failures, which may excuse what a broken rule does.
fn sound(config: &mut Config) {
    config.image.errors = Errors::None;
}

/// Several tables, whose slices are written side by side, some of them late, some in vain.
fn failing_cuts(config: &mut Config) {
    failing(config);
    (config.image.cluster, config.image.clusters) = (512, 140);
    (config.image.base, config.image.past) = (Base::None, Past::None);
    (config.image.policy, config.image.depth, config.image.reserve) = (AllocPolicy::Ahead, 8, 16);
    (config.delay_every, config.raw_every) = (20, 0);
    config.length = 120;
}

/// Clusters that have one reference and do not say so: what is written is written elsewhere, beside late reads.
fn unclaimed(config: &mut Config) {
    sound(config);
    config.image.past = Past::ClaimsCleared;
    config.image.base = Base::None;
    (config.image.clusters, config.image.requests) = (6, 8);
    config.image.queue_depth = 8;
    (config.delay_every, config.raw_every, config.length) = (20, 0, 120);
    config.mix = Mix { writes: 8, durable: 0, zeroes: 0, discards: 0, reads: 8, flushes: 4 };
}

fn over_bytes(config: &mut Config) {
    sound(config);
    config.image.base = Base::Raw;
    config.image.past = Past::None;
}

fn per_allocation(config: &mut Config) {
    sound(config);
    config.image.policy = AllocPolicy::PerAllocation;
}

fn snapshots(config: &mut Config) {
    sound(config);
    config.image.free_space = FreeSpace::None;
    config.image.past = Past::Snapshots(1);
}

/// A kernel that cuts off what is written behind a growing file.
fn old_kernel(config: &mut Config) {
    sound(config);
    config.image.kernel = Kernel::OldXfs;
    config.image.policy = AllocPolicy::PerAllocation;
    (config.image.base, config.image.free_space) = (Base::None, FreeSpace::None);
    (config.image.requests, config.image.depth, config.image.queue_depth) = (8, 8, 8);
    config.image.past = Past::None;
}

/// Everything is padded, and many requests share a block.
fn padded(config: &mut Config) {
    sound(config);
    (config.image.cluster, config.image.alignment) = (512, 4096);
}

/// Free space full of old bytes.
fn over_garbage(config: &mut Config) {
    sound(config);
    config.image.free_space = FreeSpace::Garbage;
    config.image.past = Past::None;
    config.image.reserve = 1;
}

const KINDS: &[(&str, Focus)] = &[
    ("drawn", as_drawn),
    ("failing", failing),
    ("failing-cuts", failing_cuts),
    ("unclaimed", unclaimed),
    ("over-bytes", over_bytes),
    ("per-allocation", per_allocation),
    ("snapshots", snapshots),
    ("old-kernel", old_kernel),
    ("padded", padded),
    ("over-garbage", over_garbage),
];

fn kind(name: &str) -> Focus {
    let known = KINDS.iter().find(|(known, _)| *known == name);
    known.unwrap_or_else(|| panic!("no kind of world is named {name}")).1
}

#[test]
fn seeds_that_have_found_something_find_nothing_more() {
    let seeds = parse(include_str!("../seeds/worlds.txt")).expect("lines as the file says");
    for one in seeds {
        if let Err(violation) = play(one.seed, &kind(&one.focus)) {
            panic!("{}, again: {}", one.what, violation.report);
        }
    }
}

#[test]
fn no_world_breaks_a_rule() {
    let focus = std::env::var("BLKRING_WORLDS_FOCUS").map_or(as_drawn as Focus, |name| kind(&name));
    let first = number("BLKRING_WORLDS_FIRST").unwrap_or(0);
    let seeds = match number("BLKRING_WORLDS_SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + number("BLKRING_WORLDS_COUNT").unwrap_or(COUNT),
    };
    match search(seeds, &focus) {
        Ok(tally) => println!("{tally:?}"),
        Err(found) => panic!("{found}"),
    }
}

#[test]
fn the_same_seed_makes_the_same_world() {
    for seed in 0..60 {
        let [first, second] = [(); 2].map(|()| play(seed, &as_drawn).map_err(|v| v.report));
        let first = first.expect("it breaks no rule");
        assert_eq!(Ok(first), second, "seed {seed}");
        let other = play(seed + 1000, &as_drawn).map_err(|v| v.report).expect("it breaks no rule");
        assert_ne!(first.hash, other.hash, "the hash says what happened");
    }
}

/// Seeds that a variant must be found in.
const SEEDS: u64 = 300;

/// Variants that such worlds find, and in which kind. The others break what only a power cut in the middle shows, or what
/// is not done here.
const FOUND: &[(Variant, &str)] = &[
    (Variant::GrowthNotSerialised, "old-kernel"),
    (Variant::ZeroWriteWidensToOwnRange, "old-kernel"),
    (Variant::RmwNotSerialised, "padded"),
    (Variant::EntryBeforeRefcount, "drawn"),
    (Variant::AllocationTakenForZero, "over-garbage"),
    (Variant::FuaWithoutMapping, "drawn"),
    (Variant::DecrementInOwnCut, "unclaimed"),
    (Variant::DecrementAtUnlink, "drawn"),
    (Variant::FailedClusterStaysClean, "failing-cuts"),
    (Variant::FailedClusterBackWithJoiners, "failing"),
    (Variant::FailedDecrementRecycled, "drawn"),
    (Variant::DirtyMarksLostOnError, "failing-cuts"),
    (Variant::JoinerDoesNotWait, "over-bytes"),
    (Variant::FlushCountsAtSubmission, "unclaimed"),
    (Variant::SlotFreedBeforeLanding, "failing-cuts"),
    (Variant::ZeroAllocatedTakenForClean, "drawn"),
    (Variant::PoolWithoutLeaseCheck, "unclaimed"),
    (Variant::DiscardShared, "failing-cuts"),
    (Variant::TableInDirtyCluster, "over-garbage"),
    (Variant::PayloadBeforeZeroWrite, "per-allocation"),
    (Variant::CompressedClusterFreedWithOthers, "snapshots"),
];

#[test]
fn broken_variants_are_found() {
    let mut missed = Vec::new();
    for (variant, name) in FOUND {
        let focus = kind(name);
        let broken = |config: &mut Config| {
            focus(config);
            config.image.variants = Variants::only(*variant);
        };
        let Err(found) = search(0..SEEDS, &broken) else {
            missed.push(variant);
            continue;
        };
        let Found { seed, violation } = *found;
        println!("{variant:?}: {}", violation.report.lines().next().unwrap_or_default());
        if let Err(violation) = play(seed, &focus) {
            panic!("the driver as it is: {}", violation.report);
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
