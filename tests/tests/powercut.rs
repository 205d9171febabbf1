//! The power-cut enumerator: the driver as it is breaks no rule, and each broken variant of it is found.

use blkring_engine::sim::Kernel;
use blkring_engine::{Variant, Variants};
use blkring_qcow2::AllocPolicy;
use blkring_qcow2::Version;
use blkring_tests::powercut::{
    Base, Config, Errors, FreeSpace, Growth, Hunt, Packed, Past, hunt, repeat,
};

/// States that are judged, unless `BLKRING_STATES` says otherwise.
const STATES: u64 = 50_000;

/// A number from the environment.
fn asked(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn as_drawn(_: &mut Config) {}

#[test]
fn no_power_cut_breaks_a_rule() {
    let states = asked("BLKRING_STATES").unwrap_or(STATES);
    let first = asked("BLKRING_FIRST_SEED").unwrap_or(0);
    let all = Hunt { seeds: first..u64::MAX, every: 12, states, adjust: &as_drawn };
    match hunt(&all) {
        Ok(tally) => {
            println!("{} states of {} cases judged", tally.states, tally.cases);
            assert!(tally.states >= states);
        }
        Err(found) => panic!("{found}"),
    }
}

/// Judges some states of one kind of image.
fn passes(focus: Focus) {
    let states = asked("BLKRING_STATES").unwrap_or(STATES) / 8;
    let first = asked("BLKRING_FIRST_SEED").unwrap_or(0);
    let all = Hunt { seeds: first..u64::MAX, every: 6, states, adjust: &focus };
    match hunt(&all) {
        Ok(tally) => println!("{} states of {} cases judged", tally.states, tally.cases),
        Err(found) => panic!("{found}"),
    }
}

#[test]
fn no_power_cut_breaks_a_rule_in_version_2() {
    passes(|config| {
        config.version = Version::V2;
        config.base = Base::ShortRaw;
    });
}

#[test]
fn no_power_cut_breaks_a_rule_with_refcounts_of_1_bit() {
    passes(|config| {
        config.version = Version::V3;
        config.refcount_bits = 1;
    });
}

/// Refcount blocks of 64 counts: the disk needs several, and a larger table now and then.
#[test]
fn no_power_cut_breaks_a_rule_with_refcounts_of_64_bits() {
    passes(|config| {
        config.version = Version::V3;
        (config.cluster, config.refcount_bits) = (512, 64);
    });
}

/// The disk grows by and by; its L1 table moves.
#[test]
fn no_power_cut_breaks_a_rule_while_the_disk_grows() {
    passes(growing);
}

/// A change to what a seed draws.
type Focus = fn(&mut Config);

/// Seeds that have found something once: which, how many steps of the disk per state, and what it was.
const FOUND: &[(u64, u64, Focus, &str)] = &[
    (4, 12, as_drawn, "an entry beyond a file whose growth was not durable"),
    (
        42,
        6,
        failing_cuts,
        "a cluster whose decrement had failed was given away, then decremented again",
    ),
    (4, 6, growing_tables, "a refcount block was used whose table entry had not been written"),
];

/// The seeds that have found something once, and the one that `BLKRING_SEED` asks for.
#[test]
fn regressions() {
    if let Some(seed) = asked("BLKRING_SEED") {
        let every = asked("BLKRING_EVERY").unwrap_or(2);
        if let Err(found) = repeat(seed, every, &as_drawn) {
            panic!("{found}");
        }
    }
    for (seed, every, focus, what) in FOUND {
        if let Err(found) = repeat(*seed, *every, focus) {
            panic!("{what}, again: {found}");
        }
    }
}

fn without_errors(config: &mut Config) {
    config.errors = Errors::None;
}

fn with_errors(config: &mut Config) {
    config.errors = Errors::Some;
}

fn over_bytes(config: &mut Config) {
    without_errors(config);
    config.base = Base::Raw;
}

fn over_garbage(config: &mut Config) {
    without_errors(config);
    config.free_space = FreeSpace::Garbage;
}

fn reserving_one(config: &mut Config) {
    without_errors(config);
    config.reserve = 1;
}

fn per_allocation(config: &mut Config) {
    without_errors(config);
    config.policy = AllocPolicy::PerAllocation;
}

fn on_an_old_kernel(config: &mut Config) {
    per_allocation(config);
    config.kernel = Kernel::OldXfs;
    // Many writes in flight, into new space far and near.
    config.base = Base::None;
    config.free_space = FreeSpace::None;
    (config.reserve, config.requests, config.queues) = (16, 6, 2);
    (config.depth, config.queue_depth) = (8, 8);
}

/// Many requests at once in few clusters, none of which has anything below it.
fn writing_together(config: &mut Config) {
    without_errors(config);
    config.base = Base::None;
    (config.cluster, config.clusters) = (4096, 6);
    (config.requests, config.queues) = (6, 2);
}

fn padding(config: &mut Config) {
    without_errors(config);
    config.cluster = 512;
    config.alignment = 4096;
}

fn failing_cuts(config: &mut Config) {
    with_errors(config);
    config.policy = AllocPolicy::Ahead;
    config.base = Base::None;
    (config.cluster, config.clusters) = (512, 12);
    (config.reserve, config.held_back, config.requests) = (1, 1, 3);
    config.length = 70;
}

fn growing(config: &mut Config) {
    if config.growth == Growth::None {
        config.growth = Growth::From(1 + config.sectors() / 4);
    }
}

/// The tables that are replaced are small, and cuts with counts follow at once.
fn growing_without_errors(config: &mut Config) {
    without_errors(config);
    config.growth = Growth::From(20);
    (config.cluster, config.clusters) = (512, 160);
    config.length = 60;
}

fn growing_tables(config: &mut Config) {
    with_errors(config);
    config.cluster = 512;
    config.free_space = FreeSpace::TableNearlyFull;
}

fn packed(config: &mut Config) {
    config.packed = Packed::Most;
    // Full refcount blocks are made by hand, around what is in use at first.
    if !matches!(config.free_space, FreeSpace::None | FreeSpace::Garbage) {
        config.free_space = FreeSpace::Garbage;
    }
}

fn packed_without_errors(config: &mut Config) {
    without_errors(config);
    packed(config);
}

/// Many are compressed at once in small clusters: several share a host cluster, and some lie in two.
fn packing(config: &mut Config) {
    packed(config);
    config.packed = Packed::Later;
    config.requests = 6;
}

fn packing_without_errors(config: &mut Config) {
    without_errors(config);
    packing(config);
    config.cluster = 512;
}

fn packing_with_errors(config: &mut Config) {
    with_errors(config);
    packing(config);
}

/// States that are judged of images with compressed clusters.
const PACKED_STATES: u64 = 10_000;

fn passes_packed(focus: Focus) {
    let first = asked("BLKRING_FIRST_SEED").unwrap_or(0);
    let states = asked("BLKRING_STATES").unwrap_or(PACKED_STATES);
    let all = Hunt { seeds: first..u64::MAX, every: 12, states, adjust: &focus };
    match hunt(&all) {
        Ok(tally) => {
            println!("{} states of {} cases judged", tally.states, tally.cases);
            assert!(tally.states >= states);
        }
        Err(found) => panic!("{found}"),
    }
}

#[test]
fn no_power_cut_breaks_a_rule_over_compressed_clusters() {
    passes_packed(packed);
}

#[test]
fn no_power_cut_breaks_a_rule_while_clusters_are_compressed() {
    passes_packed(packing);
}

/// Data and counts of compressed clusters fail to be written, among others.
#[test]
fn no_failure_breaks_a_rule_while_clusters_are_compressed() {
    passes_packed(packing_with_errors);
}

fn with_snapshots(config: &mut Config) {
    without_errors(config);
    config.free_space = FreeSpace::None;
    if config.past == Past::None {
        config.past = Past::Snapshots(1);
    }
}

fn without_claims(config: &mut Config) {
    without_errors(config);
    config.free_space = FreeSpace::None;
    config.past = Past::ClaimsCleared;
}

/// Images without a past: more of their L2 tables are new. (And garbage that is taken for a table is not copied: it may
/// name any place, which the simulated file would have to reach.)
fn on_new_images(config: &mut Config) {
    without_errors(config);
    config.past = Past::None;
}

fn with_snapshots_and_errors(config: &mut Config) {
    with_snapshots(config);
    config.errors = Errors::Some;
}

/// Images in which an entry gives up a count and not a cluster, more often than they are drawn.
#[test]
fn shared_clusters_and_tables_keep_their_counts() {
    for focus in [with_snapshots, with_snapshots_and_errors, without_claims] {
        let focus: Focus = focus;
        let shared = Hunt { seeds: 0..u64::MAX, every: 12, states: 6000, adjust: &focus };
        if let Err(found) = hunt(&shared) {
            panic!("{found}");
        }
    }
}

/// Seeds that a variant must be found in.
const SEEDS: u64 = 3000;

/// The variant is found within so many seeds, and the driver as it is passes all that were tried.
fn finds(variant: Variant, focus: Focus) {
    let broken = |config: &mut Config| {
        focus(config);
        config.variants = Variants::only(variant);
    };
    let wide = Hunt { seeds: 0..SEEDS, every: 4, states: u64::MAX, adjust: &broken };
    let found = hunt(&wide).expect_err("the variant breaks a rule");
    println!("{variant:?}: seed {}, {:?}", found.seed, found.tally);
    println!("{}", found.violation.report.lines().next().unwrap_or_default());
    let sound = Hunt { seeds: 0..found.seed + 1, adjust: &focus, ..wide };
    if let Err(found) = hunt(&sound) {
        panic!("the driver as it is: {found}");
    }
}

/// Tests that find one variant each.
macro_rules! variants {
    ($($test:ident: $variant:ident, $focus:ident;)*) => {
        $(
            #[test]
            fn $test() {
                finds(Variant::$variant, $focus);
            }
        )*
    };
}

variants! {
    finds_payload_after_entry: PayloadAfterEntry, over_bytes;
    finds_entry_before_refcount: EntryBeforeRefcount, without_errors;
    finds_reuse_before_durable: ReuseBeforeDurable, reserving_one;
    finds_allocation_taken_for_zero: AllocationTakenForZero, over_garbage;
    finds_growth_not_serialised: GrowthNotSerialised, on_an_old_kernel;
    finds_zero_write_widens_to_own_range: ZeroWriteWidensToOwnRange, on_an_old_kernel;
    finds_fua_without_mapping: FuaWithoutMapping, without_errors;
    finds_flush_joins_frozen_cut: FlushJoinsFrozenCut, without_errors;
    finds_pending_link_without_sync: PendingLinkWithoutSync, without_errors;
    finds_pending_table_without_sync: PendingTableWithoutSync, on_new_images;
    finds_decrement_in_own_cut: DecrementInOwnCut, without_errors;
    finds_failed_cluster_stays_clean: FailedClusterStaysClean, with_errors;
    finds_failed_cluster_back_with_joiners: FailedClusterBackWithJoiners, with_errors;
    finds_failed_decrement_recycled: FailedDecrementRecycled, failing_cuts;
    finds_joiner_does_not_wait: JoinerDoesNotWait, over_bytes;
    finds_eviction_promotes: EvictionPromotes, without_errors;
    finds_flush_counts_at_submission: FlushCountsAtSubmission, without_errors;
    finds_slot_freed_before_landing: SlotFreedBeforeLanding, without_errors;
    finds_refill_without_slot: RefillWithoutSlot, reserving_one;
    finds_frozen_slices_read_live: FrozenSlicesReadLive, without_errors;
    finds_zero_allocated_taken_for_clean: ZeroAllocatedTakenForClean, without_errors;
    finds_table_in_dirty_cluster: TableInDirtyCluster, on_new_images;
    finds_sync_cleans_later: SyncCleansLater, on_new_images;
    finds_sync_cleans_at_begin: SyncCleansAtBegin, without_errors;
    finds_unlink_marks_lost_on_error: UnlinkMarksLostOnError, with_errors;
    finds_dirty_marks_lost_on_error: DirtyMarksLostOnError, with_errors;
    finds_discard_shared: DiscardShared, without_errors;
    finds_zero_part_not_looked_at_again: ZeroPartNotLookedAtAgain, writing_together;
    finds_link_taken_for_plain: LinkTakenForPlain, per_allocation;
    finds_payload_before_zero_write: PayloadBeforeZeroWrite, per_allocation;
    finds_table_copy_without_sync: TableCopyWithoutSync, with_snapshots;
    finds_shared_written_in_place: SharedWrittenInPlace, with_snapshots;
    finds_rmw_not_serialised: RmwNotSerialised, padding;
    finds_compressed_cluster_freed_with_others: CompressedClusterFreedWithOthers, packed_without_errors;
    finds_payload_after_entry_over_compressed: PayloadAfterEntry, packed_without_errors;
    finds_compressed_entry_before_data: CompressedEntryBeforeData, packing_without_errors;
    finds_compressed_entry_before_count: CompressedEntryBeforeCount, packing_without_errors;
    finds_compressed_link_taken_for_plain: CompressedLinkTakenForPlain, packing_without_errors;
    finds_table_switched_before_sync: TableSwitchedBeforeSync, growing_without_errors;
    finds_old_table_freed_before_switch: OldTableFreedBeforeSwitch, growing_without_errors;
}
