//! Pending clusters (P, Y06, W01): counted, zeroed, and not synced yet.

use blkring_engine::sim::{OpKind, Stage};
use blkring_engine::{Flags, Variant};
use blkring_tests::image_world::{ImageWorld, Setup, Verdict, fails_only_with};

use crate::{BELOW, broken, is_sync};

/// A cache of one slice, over two L2 tables of 64 entries.
fn two_tables() -> Setup {
    Setup::new(256).cluster(512).options(|options| options.cache_bytes(512))
}

/// Flushes, and cuts the power when the entry is on its way: it survives, and what no sync has covered does not.
/// Counts must hold, and of guest cluster 5 only what was written since may differ from zeros.
fn entry_survives_alone(w: &mut ImageWorld) -> Verdict {
    let flushed = w.flush(0);
    let slice = w.catch_behind_syncs(w.is_table());
    let after = w.crash(|op| op.op == slice.op);
    after.is_sound()?;
    after.reads_as(5, 0..1, &[0, 0x22])?;
    after.reads_as(5, 1..8, &[0])?;
    w.release_all();
    w.finish(&flushed);
    w.crash(|_| false).reads_as(5, 0..1, &[0x22])
}

/// Guest cluster 5 is written into a pending cluster.
fn pending_link(w: &mut ImageWorld) {
    w.refill_without_sync(6);
    let written = w.write(0, 5, 0..1, 0x22);
    w.finish(&written);
}

/// P01x: the cluster held old bytes. P06x is the same with the old bytes from a recycled cluster, P09y with a sync in
/// the background that has not ended.
#[test]
fn p01x_p06x_p09y_link_into_old_bytes() {
    fails_only_with(&Setup::new(16), &[broken(Variant::PendingLinkWithoutSync)], |w| {
        w.prepare(0..2, 0x11);
        w.give_up(0..1);
        pending_link(w);
        entry_survives_alone(w)
    });
}

/// P01y: the cluster is new, so its count is at stake.
#[test]
fn p01y_link_into_a_hole() {
    fails_only_with(&Setup::new(16), &[broken(Variant::PendingLinkWithoutSync)], |w| {
        w.prepare(0..2, 0x11);
        pending_link(w);
        entry_survives_alone(w)
    });
}

/// A discard over backing data makes a table in a pending cluster: an L1 entry, and no link.
fn pending_table(w: &mut ImageWorld) {
    w.discard(0, 150);
    w.catch(is_sync);
    let gone = w.discard(0, 100);
    w.finish(&gone);
}

/// P02x, P02y: the L1 entry alone points to something pending, that held old bytes or is a hole.
#[test]
fn p02x_p02y_l1_entry_alone() {
    for recycled in [0..0, 0..1] {
        let setup = two_tables().backing(BELOW);
        fails_only_with(&setup, &[broken(Variant::PendingTableWithoutSync)], |w| {
            w.prepare(0..2, 0x11);
            w.give_up(recycled.clone());
            pending_table(w);
            let flushed = w.flush(0);
            let entry = w.catch_behind_syncs(w.is_l1());
            let after = w.crash(|op| op.op == entry.op);
            after.is_sound()?;
            after.reads_as(101, 0..1, &[BELOW])?;
            w.release_all();
            w.finish(&flushed);
            w.crash(|_| false).reads_as(100, 0..1, &[0])
        });
    }
}

/// Reads in another table until the changed slice is written, and stops its write.
fn evict(
    w: &mut ImageWorld,
    what: impl Fn(&blkring_engine::sim::Event) -> bool,
) -> blkring_engine::sim::Event {
    let other = blkring_engine::IoMem::from(vec![0; 512]);
    w.submit(0, blkring_engine::Request::read(200 * 512, other));
    w.catch_behind_syncs(what)
}

/// P03x, Y06z: an eviction is a cut, with its first sync.
#[test]
fn p03x_y06z_eviction_of_a_pending_link() {
    fails_only_with(&two_tables(), &[broken(Variant::PendingLinkWithoutSync)], |w| {
        w.prepare(0..2, 0x11);
        w.prepare(200..201, 0x11);
        // Make the slice of cluster 5 the cached one.
        w.read(0, 0, 512);
        pending_link(w);
        let slice = evict(w, w.is_table());
        let after = w.crash(|op| op.op == slice.op);
        after.is_sound()
    });
}

/// W01x: the same with a pending table.
#[test]
fn w01x_eviction_of_a_pending_table() {
    let setup = two_tables().backing(BELOW);
    fails_only_with(&setup, &[broken(Variant::PendingTableWithoutSync)], |w| {
        w.prepare(0..2, 0x11);
        w.prepare(200..201, 0x11);
        w.give_up(0..1);
        pending_table(w);
        let entry = evict(w, w.is_l1());
        let after = w.crash(|op| op.op == entry.op);
        after.is_sound()?;
        after.reads_as(101, 0..1, &[BELOW])
    });
}

/// P04x: a sync cleans what was pending when it began, not what came while it ran. It cannot come to that: syncs that
/// run side by side are answered together, since the kernel tells of a failure once, so the older one is not
/// answered before the refill's own, which has begun behind it.
#[test]
fn p04x_sync_that_began_before() {
    fails_only_with(&Setup::new(16), &[], |w| {
        w.prepare(0..2, 0x11);
        let early = w.fill(0, 0, 0x21);
        w.finish(&early);
        let flushed = w.flush(0);
        let sync = w.catch(is_sync);
        w.advance(&sync, Stage::Begun);
        pending_link(w);
        w.release(&sync);
        w.settle();
        assert!(!flushed.given(), "answered beside a sync that may take its bytes with it");
        entry_survives_alone(w)?;
        w.finish(&flushed);
        Ok(())
    });
}

/// P09x: nor does it clean anything before it ends.
#[test]
fn p09x_sync_that_has_not_ended() {
    fails_only_with(&Setup::new(16), &[broken(Variant::SyncCleansAtBegin)], |w| {
        w.prepare(0..2, 0x11);
        pending_link(w);
        entry_survives_alone(w)
    });
}

/// P05x: a cluster is claimed while it is zeroed. The late zeros go over the payload.
#[test]
fn p05x_claimed_while_it_is_zeroed() {
    fails_only_with(&Setup::new(16), &[broken(Variant::EntryBeforeRefcount)], |w| {
        w.prepare(0..4, 0x11);
        w.give_up(0..3);
        // Takes the recycled one; the next are free ones that held bytes.
        let other = w.fill(0, 5, 0x22);
        w.finish(&other);
        let waits = w.write(0, 6, 0..1, 0x77);
        let zeroing = w.catch(|op| op.kind == OpKind::ZeroRange);
        let written = w.write(0, 7, 0..1, 0x33);
        w.settle();
        w.release(&zeroing);
        w.finish(&written);
        w.finish(&waits);
        w.reads_as(7, 0..1, &[0x33])
    });
}

/// P05y: a cluster is claimed while its count is written.
#[test]
fn p05y_claimed_while_it_is_counted() {
    fails_only_with(&Setup::new(16), &[broken(Variant::EntryBeforeRefcount)], |w| {
        w.prepare(0..2, 0x11);
        let waits = w.write(0, 6, 0..1, 0x77);
        let count = w.catch(w.is_count());
        let written = w.write(0, 5, 0..1, 0x22);
        w.settle();
        w.release(&count);
        // The sync behind the refill does not come.
        let sync = w.try_catch(is_sync);
        w.settle();
        if !written.given() {
            // Nothing was to be had but what the refill made; let it be synced and go on.
            w.release(&sync.expect("the refill syncs"));
            w.finish(&waits);
        }
        w.finish(&written);
        entry_survives_alone(w)
    });
}

/// P07x: a write into a pending cluster fails. P07y, P07z: the cluster goes back dirty, and is still pending.
#[test]
fn p07x_p07y_p07z_failed_write_into_a_pending_cluster() {
    let failed = |w: &mut ImageWorld| {
        w.refill_without_sync(6);
        let failing = w.write(0, 5, 0..4, 0x44);
        let data = w.catch(w.is_data());
        w.fail(&data, 1024);
        w.release(&data);
        assert!(w.runs_until(&failing));
        assert!(failing.result().is_err());
    };
    fails_only_with(&Setup::new(16), &[broken(Variant::FailedClusterStaysClean)], |w| {
        w.prepare(0..2, 0x11);
        failed(w);
        w.release_all();
        let next = w.write(0, 7, 3..4, 0x33);
        w.finish(&next);
        w.settle();
        w.reads_as(7, 0..3, &[0])
    });
    // Over backing it is used as it is. Each of the two reasons for a sync is enough.
    let both = broken(Variant::PayloadAfterEntry).and(Variant::PendingLinkWithoutSync);
    fails_only_with(&Setup::new(16), &[broken(Variant::PendingLinkWithoutSync)], |w| {
        w.prepare(0..2, 0x11);
        failed(w);
        w.release_all();
        w.settle();
        let written = w.write(0, 5, 0..1, 0x22);
        w.finish(&written);
        entry_survives_alone(w)
    });
    let setup = Setup::new(16).backing(BELOW);
    for (setup, broken) in [
        (setup.clone(), vec![both]),
        (setup.clone().variants(broken(Variant::PayloadAfterEntry)), vec![]),
        (setup.variants(broken(Variant::PendingLinkWithoutSync)), vec![]),
    ] {
        fails_only_with(&setup, &broken, |w| {
            w.prepare(0..2, 0x11);
            w.refill_without_sync(6);
            let failing = w.write(0, 5, 0..4, 0x44);
            let data = w.catch(w.is_data());
            w.fail(&data, 1024);
            w.release(&data);
            assert!(w.runs_until(&failing));
            let next = w.fill(0, 7, 0x33);
            w.finish(&next);
            let flushed = w.flush(0);
            let slice = w.catch_behind_syncs(w.is_table());
            w.crash(|op| op.op == slice.op).is_sound()?;
            w.release_all();
            w.finish(&flushed);
            Ok(())
        });
    }
}

/// P08x: a durable write into a pending cluster waits for a cut, and that one for the count.
#[test]
fn p08x_durable_write_into_a_pending_cluster() {
    fails_only_with(&Setup::new(16), &[broken(Variant::PendingLinkWithoutSync)], |w| {
        w.prepare(0..2, 0x11);
        w.refill_without_sync(6);
        let durable = w.write_with(0, 5, 0..1, 0x22, Flags::FUA);
        let slice = w.catch_behind_syncs(w.is_table());
        w.crash(|op| op.op == slice.op || op.kind == OpKind::WriteDurable).is_sound()?;
        w.release_all();
        w.finish(&durable);
        w.crash(|_| false).reads_as(5, 0..1, &[0x22])
    });
}

/// P10x, C2: a cluster is unlinked and used again before its removal is durable; P10x where it was linked while it
/// was pending.
#[test]
fn p10x_c2_used_again_at_once() {
    fails_only_with(&Setup::new(16), &[broken(Variant::ReuseBeforeDurable)], |w| {
        w.prepare(0..2, 0x11);
        let gone = w.discard(0, 0);
        w.finish(&gone);
        // The sync of the first one's refill covers no removal.
        for cluster in 5..8 {
            let written = w.fill(0, cluster, 0x33);
            w.finish(&written);
        }
        w.crash(|_| true).reads_as(0, 0..8, &[0, 0x11])
    });
    let setup = Setup::new(16).backing(BELOW);
    fails_only_with(&setup, &[broken(Variant::ReuseBeforeDurable)], |w| {
        w.prepare(0..2, 0x11);
        pending_link(w);
        let flushed = w.flush(0);
        let presync = w.catch(is_sync);
        w.advance(&presync, Stage::Begun);
        let gone = w.discard(0, 5);
        w.finish(&gone);
        w.release(&presync);
        let slice = w.catch_behind_syncs(w.is_table());
        // Over backing a recycled cluster is used as it is.
        let written = w.fill(0, 8, 0x33);
        w.settle();
        w.crash(|_| true).reads_as(5, 0..8, &[0, BELOW, 0x22])?;
        w.release(&slice);
        w.finish(&flushed);
        w.release_all();
        w.finish(&written);
        Ok(())
    });
}

/// P10y: nor is its count taken back before.
#[test]
fn p10y_decrement_of_what_was_pending() {
    fails_only_with(&Setup::new(16), &[broken(Variant::DecrementInOwnCut)], |w| {
        w.prepare(0..2, 0x11);
        pending_link(w);
        w.release_all();
        let first = w.flush(0);
        let slice = w.catch_behind_syncs(w.is_table());
        let gone = w.discard(0, 5);
        w.finish(&gone);
        w.release(&slice);
        w.finish(&first);
        let second = w.flush(0);
        let slice = w.catch_behind_syncs(w.is_table());
        w.crash(w.is_count()).is_sound()?;
        w.release(&slice);
        w.finish(&second);
        w.crash(|_| false).is_sound()
    });
}

/// P12x: a cluster is recycled, zeroed and pending again while an older sync still runs, which does not clean it. It
/// cannot come to that either: nothing is due before that sync is answered too.
#[test]
fn p12x_pending_again_under_an_older_sync() {
    fails_only_with(&Setup::new(16), &[], |w| {
        w.prepare(0..2, 0x11);
        let gone = w.discard(0, 0);
        w.finish(&gone);
        let first = w.flush(0);
        let removal = w.catch(is_sync);
        w.advance(&removal, Stage::Begun);
        let second = w.flush(0);
        let older = w.catch(is_sync);
        w.advance(&older, Stage::Begun);
        w.release(&removal);
        w.settle();
        let statistics = w.image.statistics();
        assert!(!first.given());
        assert_eq!((statistics.dirty_clusters, statistics.held_back_clusters), (0, 1));
        w.release(&older);
        w.finish(&first);
        w.finish(&second);
        assert_eq!(w.image.statistics().dirty_clusters, 1);
        pending_link(w);
        entry_survives_alone(w)
    });
}

/// Y06x: an eviction is not durable by a sync that began before it.
#[test]
fn y06x_eviction_under_an_older_sync() {
    let setup = two_tables().reserve(8);
    fails_only_with(&setup, &[broken(Variant::SyncCleansLater)], |w| {
        w.prepare(0..6, 0x11);
        w.prepare(200..202, 0x11);
        // Enough in the pool, so that no refill comes in between.
        let mut next = 10..60;
        while w.image.statistics().ready_clusters < 5 {
            let cluster = next.next().expect("a refill brings eight");
            w.prepare(cluster..cluster + 1, 0x11);
        }
        let early = w.fill(0, 0, 0x21);
        w.finish(&early);
        let flushed = w.flush(0);
        let sync = w.catch(is_sync);
        w.advance(&sync, Stage::Begun);
        let mark = w.disk.steps();
        let written = w.fill(0, 8, 0x22);
        w.finish(&written);
        w.read(0, 200 * 512, 512);
        w.settle();
        let since = w.accepted_since(mark);
        assert!(since.iter().any(w.is_table()), "the slice was evicted: {since:?}");
        assert!(!since.iter().any(is_sync), "and not synced: {since:?}");
        w.release(&sync);
        w.finish(&flushed);
        let durable = w.write_with(0, 8, 0..1, 0x33, Flags::FUA);
        w.finish(&durable);
        w.crash(|_| false).reads_as(8, 0..1, &[0x33])
    });
}
