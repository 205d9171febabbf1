//! The fifteen worst.

use blkring_engine::sim::{OpKind, Stage};
use blkring_engine::{Flags, Variant};
use blkring_tests::image_world::{ImageWorld, Setup, Verdict, fails_only_with};

use crate::{BELOW, broken, is_sync};

/// A guest write covers a whole cluster over backing data, and the flush's entry survives the cut where its data does
/// not: the guest must see the backing, not zeros.
#[test]
fn trace_01_b2_whole_cluster_over_backing() {
    let setup = Setup::new(16).backing(BELOW);
    fails_only_with(&setup, &[broken(Variant::PayloadAfterEntry)], |w| {
        w.prepare(0..2, 0x11);
        let written = w.fill(0, 5, 0x22);
        w.finish(&written);
        w.settle();
        let flushed = w.flush(0);
        let entry = w.catch(w.is_table());
        assert!(!flushed.given());
        let is_data = w.is_data();
        let after = w.crash(|op| op.op == entry.op || !is_data(op));
        after.reads_as(5, 0..8, &[BELOW, 0x22])?;
        after.is_sound()?;
        w.release(&entry);
        w.finish(&flushed);
        w.crash(|_| false).reads_as(5, 0..8, &[0x22])
    });
}

/// A first writer of the whole of a cluster is held, a second one of one sector comes: what the second does not write
/// is not there yet, so it must not link.
fn joiner(w: &mut ImageWorld, cluster: u64, first: std::ops::Range<u64>, old: u8) -> Verdict {
    let one = w.write(0, cluster, first.clone(), 0x22);
    let data = w.catch(w.is_data());
    let two = w.write(0, cluster, 0..1, 0x33);
    w.settle();
    w.reads_as(cluster, 1..8, &[old, 0x22])?;
    w.release(&data);
    w.finish(&one);
    w.finish(&two);
    w.reads_as(cluster, 0..1, &[0x22, 0x33])?;
    let rest = if first.end == 8 { 0x22 } else { old };
    w.reads_as(cluster, 1..8, &[rest])
}

#[test]
fn trace_02_j1_joiner_of_a_whole_write_over_backing() {
    let setup = Setup::new(16).backing(BELOW);
    fails_only_with(&setup, &[broken(Variant::JoinerDoesNotWait)], |w| {
        w.prepare(0..2, 0x11);
        joiner(w, 5, 0..8, BELOW)
    });
}

/// The same where the cluster holds old bytes under a zero flag.
#[test]
fn trace_02_j2_joiner_of_a_whole_write_over_old_bytes() {
    fails_only_with(&Setup::new(16), &[broken(Variant::JoinerDoesNotWait)], |w| {
        w.prepare(0..2, 0x11);
        let zeroed = w.zero(0, 1);
        w.finish(&zeroed);
        w.flush_twice();
        joiner(w, 1, 0..8, 0)
    });
}

/// The same where the first writer copies what it does not write.
#[test]
fn trace_02_b4_joiner_of_a_copy() {
    let setup = Setup::new(16).backing(BELOW);
    fails_only_with(&setup, &[broken(Variant::JoinerDoesNotWait)], |w| {
        w.prepare(0..2, 0x11);
        joiner(w, 5, 0..1, BELOW)
    });
}

/// A flush that comes after a cut was frozen is not answered by it.
#[test]
fn trace_03_d2_late_flush() {
    let setup = Setup::new(16).reserve(8);
    fails_only_with(&setup, &[broken(Variant::FlushJoinsFrozenCut)], |w| {
        w.prepare(0..6, 0x11);
        let written = w.fill(0, 8, 0x22);
        w.finish(&written);
        w.settle();
        let early = w.flush(0);
        let sync = w.catch(is_sync);
        w.advance(&sync, Stage::Begun);
        let written = w.fill(0, 9, 0x33);
        w.finish(&written);
        let late = w.flush(0);
        w.settle();
        w.release(&sync);
        w.finish(&late);
        w.crash(|_| false).reads_as(9, 0..8, &[0x33])?;
        w.finish(&early);
        w.crash(|_| false).reads_as(8, 0..8, &[0x22])
    });
}

/// A cut's slice write is held while the slice changes and another flush comes: the older contents must not land, or
/// survive, after the newer.
#[test]
fn trace_04_d6_one_slice_twice_in_flight() {
    let setup = Setup::new(16).reserve(8);
    fails_only_with(&setup, &[broken(Variant::SlotFreedBeforeLanding)], |w| {
        w.prepare(0..6, 0x11);
        let written = w.fill(0, 8, 0x22);
        w.finish(&written);
        let first = w.flush(0);
        let older = w.catch(w.is_table());
        let written = w.fill(0, 9, 0x33);
        w.finish(&written);
        let second = w.flush(0);
        w.settle();
        if second.given() {
            w.crash(|op| op.op == older.op).reads_as(9, 0..8, &[0x33])?;
        }
        w.release(&older);
        w.finish(&first);
        w.finish(&second);
        w.crash(|_| false).reads_as(9, 0..8, &[0x33])
    });
}

/// A write completes while an fdatasync runs that began before: the next flush needs one of its own.
#[test]
fn trace_05_n3_sync_skipped() {
    fails_only_with(&Setup::new(16), &[broken(Variant::FlushCountsAtSubmission)], |w| {
        w.prepare(0..2, 0x11);
        let early = w.fill(0, 0, 0x21);
        w.finish(&early);
        let written = w.fill(0, 1, 0x22);
        let data = w.catch(w.is_data());
        let first = w.flush(0);
        let sync = w.catch(is_sync);
        w.advance(&sync, Stage::Begun);
        w.release(&data);
        w.finish(&written);
        w.release(&sync);
        w.finish(&first);
        let second = w.flush(0);
        w.finish(&second);
        w.crash(|_| false).reads_as(1, 0..8, &[0x22])
    });
}

/// A cache of one slice, over two L2 tables of 64 entries.
fn two_tables() -> Setup {
    Setup::new(256).cluster(512).options(|options| options.cache_bytes(512))
}

/// A slice is evicted without a sync. A durable write in place that follows must not take the mapping for durable.
#[test]
fn trace_06_q2_eviction_then_durable_write() {
    let setup = two_tables().reserve(8);
    fails_only_with(&setup, &[broken(Variant::EvictionPromotes)], |w| {
        w.prepare(0..6, 0x11);
        w.prepare(64..66, 0x11);
        let written = w.fill(0, 8, 0x22);
        w.finish(&written);
        w.settle();
        let mark = w.disk.steps();
        w.read(0, 64 * 512, 512);
        w.settle();
        let evicted = w.accepted_since(mark);
        assert!(evicted.iter().any(w.is_table()), "the slice was written: {evicted:?}");
        assert!(!evicted.iter().any(is_sync), "and not synced");
        let durable = w.write_with(0, 8, 0..1, 0x33, Flags::FUA);
        w.finish(&durable);
        w.crash(|_| false).reads_as(8, 0..1, &[0x33])
    });
}

/// Of two writers of one new cluster the other one links, and a cut freezes the slice: it is not dirty any more, and
/// not durable either, when the durable one is done.
#[test]
fn trace_07_h2_durable_joiner_of_a_frozen_slice() {
    let setup = Setup::new(16).reserve(8);
    fails_only_with(&setup, &[broken(Variant::FuaWithoutMapping)], |w| {
        w.prepare(0..6, 0x11);
        let durable = w.write_with(0, 8, 0..1, 0x22, Flags::FUA);
        let data = w.catch(w.is_data());
        w.advance(&data, Stage::Landed);
        let other = w.write(0, 8, 1..2, 0x33);
        w.finish(&other);
        let flushed = w.flush(0);
        let slice = w.catch(w.is_table());
        w.release(&data);
        w.settle();
        if durable.given() {
            w.crash(|_| false).reads_as(8, 0..1, &[0x22])?;
        }
        w.release(&slice);
        w.finish(&flushed);
        w.finish(&durable);
        w.crash(|_| false).reads_as(8, 0..1, &[0x22])
    });
}

/// A cluster is unlinked in memory; a refill that writes its refcount block before any cut must not carry the
/// decrement.
#[test]
fn trace_08_q4_refill_after_unlink() {
    fails_only_with(&Setup::new(16), &[broken(Variant::DecrementAtUnlink)], |w| {
        w.prepare(0..3, 0x11);
        let gone = w.discard(0, 0);
        w.finish(&gone);
        let written = w.fill(0, 5, 0x22);
        w.catch(w.is_count());
        w.crash(|_| true).is_sound()?;
        w.release_all();
        w.finish(&written);
        w.crash(|_| true).is_sound()
    });
}

/// Of a cut that unlinks a cluster only what it writes to refcount blocks survives.
#[test]
fn trace_09_c1_decrement_with_its_removal() {
    fails_only_with(&Setup::new(16), &[broken(Variant::DecrementInOwnCut)], |w| {
        w.prepare(0..5, 0x11);
        for cluster in 0..3 {
            let gone = w.discard(0, cluster);
            w.finish(&gone);
        }
        let removal = w.flush(0);
        let slice = w.catch(w.is_table());
        let is_count = w.is_count();
        w.crash(&is_count).is_sound()?;
        w.release(&slice);
        w.finish(&removal);
        let decrement = w.flush(0);
        w.catch(&is_count);
        w.crash(&is_count).is_sound()?;
        w.crash(|_| false).is_sound()?;
        w.release_all();
        w.finish(&decrement);
        w.crash(|_| false).is_sound()
    });
}

/// The host cluster of a discarded guest cluster is written whole for another one, over backing: its old bytes must
/// not show up there.
#[test]
fn trace_10_r2b_recycled_and_written_whole() {
    let setup = Setup::new(16).backing(BELOW);
    fails_only_with(&setup, &[broken(Variant::PayloadAfterEntry)], |w| {
        w.prepare(0..2, 0x11);
        w.give_up(0..1);
        assert_eq!(w.image.statistics().dirty_clusters, 1);
        let written = w.fill(0, 5, 0x22);
        w.finish(&written);
        w.settle();
        let flushed = w.flush(0);
        let slice = w.catch(w.is_table());
        w.crash(|op| op.op == slice.op).reads_as(5, 0..8, &[BELOW, 0x22])?;
        w.release(&slice);
        w.finish(&flushed);
        w.crash(|_| false).reads_as(5, 0..8, &[0x22])
    });
}

/// The same where it was zeroed, and that is not durable when the entry is. Nothing is ever given back to the host
/// (C6), so no cluster of a pool can lose its zeros that way.
#[test]
fn trace_10_r1_recycled_and_zeroed() {
    let rules = [broken(Variant::PendingLinkWithoutSync)];
    fails_only_with(&Setup::new(16), &rules, |w| {
        w.prepare(0..2, 0x11);
        w.give_up(0..1);
        assert_eq!(w.image.statistics().dirty_clusters, 1);
        w.refill_without_sync(6);
        let written = w.write(0, 5, 0..1, 0x22);
        w.finish(&written);
        w.reads_as(5, 1..8, &[0])?;
        let flushed = w.flush(0);
        let slice = w.catch_behind_syncs(w.is_table());
        let after = w.crash(|op| op.op == slice.op);
        after.reads_as(5, 0..1, &[0, 0x22])?;
        after.reads_as(5, 1..8, &[0])?;
        w.release_all();
        w.finish(&flushed);
        assert_eq!(w.disk.count(OpKind::PunchHole), 0);
        w.crash(|_| false).reads_as(5, 0..1, &[0x22])
    });
}

/// The same, live: what allocates space is no zeroing.
#[test]
fn trace_10_r1_recycled_and_not_zeroed() {
    fails_only_with(&Setup::new(16), &[broken(Variant::AllocationTakenForZero)], |w| {
        w.prepare(0..2, 0x11);
        w.give_up(0..1);
        let written = w.write(0, 5, 0..1, 0x22);
        w.finish(&written);
        w.reads_as(5, 1..8, &[0])
    });
}

/// A write in place is held; its cluster is discarded, recycled and written for another guest cluster; then the held
/// write lands.
fn late_write(w: &mut ImageWorld) -> Verdict {
    w.prepare(0..2, 0x11);
    let late = w.write(0, 0, 0..1, 0x22);
    let data = w.catch(w.is_data());
    let gone = w.discard(0, 0);
    w.settle();
    let reuse = |w: &mut ImageWorld| {
        w.flush_twice();
        let written = w.write(0, 5, 1..2, 0x33);
        w.finish(&written);
    };
    let early = gone.given();
    if early {
        reuse(w);
    }
    w.release(&data);
    w.finish(&late);
    w.finish(&gone);
    if !early {
        reuse(w);
    }
    // The late discard of a recycled cluster (N1) cannot be: nothing is given back to the host.
    assert_eq!(w.disk.count(OpKind::PunchHole), 0);
    w.reads_as(5, 0..1, &[0])?;
    w.reads_as(5, 1..2, &[0x33])?;
    w.reads_as(5, 2..8, &[0])
}

#[test]
fn trace_12_e1_late_write_into_a_recycled_cluster() {
    let both = broken(Variant::DiscardShared).and(Variant::PoolWithoutLeaseCheck);
    fails_only_with(&Setup::new(16), &[both], late_write);
}

/// Either of the two rules alone keeps the bytes apart.
#[test]
fn trace_12_c4_exclusion_or_lease() {
    for rule in [Variant::DiscardShared, Variant::PoolWithoutLeaseCheck] {
        fails_only_with(&Setup::new(16).variants(broken(rule)), &[], late_write);
    }
}

/// The L1 entry of a new table survives alone.
#[test]
fn trace_13_t1_table_in_a_recycled_cluster() {
    fails_only_with(&two_tables(), &[broken(Variant::TableInDirtyCluster)], |w| {
        w.prepare(0..2, 0x11);
        w.give_up(0..1);
        assert_eq!(w.image.statistics().dirty_clusters, 1);
        let written = w.fill(0, 100, 0x22);
        w.finish(&written);
        w.settle();
        let flushed = w.flush(0);
        let entry = w.catch(w.is_l1());
        let after = w.crash(|op| op.op == entry.op);
        after.is_sound()?;
        after.reads_as(101, 0..1, &[0])?;
        w.release(&entry);
        w.finish(&flushed);
        w.crash(|_| false).reads_as(100, 0..1, &[0x22])
    });
}

/// A cluster is freed, its count goes to zero for good, and it is counted again: only the old zero survives.
#[test]
fn trace_14_r3a_counted_again_without_sync() {
    fails_only_with(&Setup::new(16), &[broken(Variant::PendingLinkWithoutSync)], |w| {
        w.prepare(0..4, 0x11);
        w.give_up(0..3);
        let statistics = w.image.statistics();
        assert_eq!((statistics.dirty_clusters, statistics.held_back_clusters), (1, 0));
        // Takes the one that was recycled.
        let other = w.fill(0, 5, 0x22);
        w.finish(&other);
        let end = w.disk.contents(blkring_tests::image_world::IMAGE).len();
        let written = w.fill(0, 6, 0x33);
        w.finish(&written);
        assert_eq!(w.disk.contents(blkring_tests::image_world::IMAGE).len(), end, "no new space");
        let flushed = w.flush(0);
        let slice = w.catch(w.is_table());
        let is_data = w.is_data();
        w.crash(|op| op.op == slice.op || is_data(op)).is_sound()?;
        w.release(&slice);
        w.finish(&flushed);
        w.crash(|_| false).reads_as(6, 0..8, &[0x33])
    });
}

/// An allocating write fails after some of its bytes landed: they must not show up in the next owner of the cluster.
#[test]
fn trace_15_e4_failed_write() {
    fails_only_with(&Setup::new(16), &[broken(Variant::FailedClusterStaysClean)], |w| {
        w.prepare(0..2, 0x11);
        let failing = w.write(0, 5, 0..4, 0x22);
        let data = w.catch(w.is_data());
        w.fail(&data, 1024);
        w.release(&data);
        assert!(w.runs_until(&failing));
        assert!(failing.result().is_err());
        let next = w.write(0, 6, 3..4, 0x33);
        w.finish(&next);
        w.reads_as(6, 0..3, &[0])?;
        w.reads_as(6, 3..4, &[0x33])
    });
}

/// A write into a cluster that is kept under a zero flag: its old bytes must not show up, live or after a crash.
#[test]
fn trace_15_z2_zero_allocated() {
    let rules = [Variant::ZeroAllocatedTakenForClean, Variant::PayloadAfterEntry].map(broken);
    fails_only_with(&Setup::new(16), &rules, |w| {
        w.prepare(0..2, 0x11);
        let zeroed = w.zero(0, 1);
        w.finish(&zeroed);
        w.flush_twice();
        let written = w.write(0, 1, 0..1, 0x22);
        w.finish(&written);
        w.reads_as(1, 1..8, &[0])?;
        let flushed = w.flush(0);
        let slice = w.catch(w.is_table());
        let after = w.crash(|op| op.op == slice.op);
        after.reads_as(1, 0..1, &[0, 0x22])?;
        after.reads_as(1, 1..8, &[0])?;
        w.release(&slice);
        w.finish(&flushed);
        Ok(())
    });
}

/// A joiner that is done after its cluster was linked by another and discarded must not link it again.
fn joiner_after_discard(w: &mut ImageWorld) -> Verdict {
    w.prepare(0..6, 0x11);
    let first = w.write(0, 8, 0..1, 0x22);
    let one = w.catch(w.is_data());
    let second = w.write(0, 8, 1..2, 0x33);
    let two = w.catch(w.is_data());
    w.release(&one);
    w.finish(&first);
    let gone = w.discard(0, 8);
    w.settle();
    w.release(&two);
    w.finish(&second);
    w.finish(&gone);
    w.reads_as(8, 0..8, &[0])
}

#[test]
fn trace_15_e3_joiner_after_discard() {
    let setup = Setup::new(16).reserve(8);
    let both = broken(Variant::DiscardShared).and(Variant::EveryWriterLinks);
    fails_only_with(&setup, &[both], joiner_after_discard);
    for rule in [Variant::DiscardShared, Variant::EveryWriterLinks] {
        fails_only_with(&setup.clone().variants(broken(rule)), &[], joiner_after_discard);
    }
}
