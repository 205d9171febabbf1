//! The frozen set (F, V03), refcount blocks in flight (K), and the class of discards (T).

use blkring_engine::Variant;
use blkring_engine::sim::Stage;
use blkring_qcow2::AllocPolicy;
use blkring_tests::image_world::{ImageWorld, Setup, fails_only_with};

use crate::{BELOW, broken, is_sync};

/// F01x, Y02: a link made after the freeze, whose data no sync of the cut has covered, does not ride along.
#[test]
fn f01x_y02_changes_after_the_freeze() {
    let setup = Setup::new(16).backing(BELOW).reserve(8);
    fails_only_with(&setup, &[broken(Variant::FrozenSlicesReadLive)], |w| {
        w.prepare(0..6, 0x11);
        let written = w.write(0, 8, 0..1, 0x22);
        w.finish(&written);
        let late = w.write(0, 9, 0..1, 0x33);
        let data = w.catch(w.is_data());
        let flushed = w.flush(0);
        let presync = w.catch(is_sync);
        w.advance(&presync, Stage::Begun);
        w.release(&data);
        w.finish(&late);
        w.release(&presync);
        let slice = w.catch(w.is_table());
        let after = w.crash(|op| op.op == slice.op);
        after.reads_as(8, 0..1, &[BELOW, 0x22])?;
        after.reads_as(9, 0..1, &[BELOW, 0x33])?;
        after.reads_as(9, 1..8, &[BELOW])?;
        // F01y: not after the slice was submitted either. What changes now is in the next cut.
        let later = w.write(0, 10, 0..1, 0x44);
        w.finish(&later);
        w.advance(&slice, Stage::Landed);
        let after = w.crash(|op| op.op == slice.op);
        after.reads_as(10, 0..1, &[BELOW, 0x44])?;
        after.reads_as(10, 1..8, &[BELOW])?;
        w.release(&slice);
        w.finish(&flushed);
        Ok(())
    });
}

/// V03: the mark of a careful link belongs to the cut that carries it: one made while another cut is on its way is
/// not lost.
#[test]
fn v03_careful_mark_of_the_next_cut() {
    let setup = Setup::new(16).backing(BELOW).reserve(8);
    fails_only_with(&setup, &[broken(Variant::PayloadAfterEntry)], |w| {
        w.prepare(0..6, 0x11);
        let early = w.fill(0, 0, 0x21);
        w.finish(&early);
        let first = w.flush(0);
        let sync = w.catch(is_sync);
        w.advance(&sync, Stage::Begun);
        let written = w.write(0, 8, 0..1, 0x22);
        w.finish(&written);
        let second = w.flush(0);
        let slice = w.catch_behind_syncs(w.is_table());
        let after = w.crash(|op| op.op == slice.op);
        after.reads_as(8, 0..1, &[BELOW, 0x22])?;
        after.reads_as(8, 1..8, &[BELOW])?;
        w.release_all();
        w.finish(&first);
        w.finish(&second);
        Ok(())
    });
}

/// K01x, K01y: a refill writes no refcount block while a cut has one in flight.
#[test]
fn k01x_k01y_one_block_twice_in_flight() {
    fails_only_with(&Setup::new(16), &[broken(Variant::RefillWithoutSlot)], |w| {
        w.prepare(0..4, 0x11);
        for cluster in 0..3 {
            let gone = w.discard(0, cluster);
            w.finish(&gone);
        }
        let removal = w.flush(0);
        w.finish(&removal);
        w.settle();
        let decrement = w.flush(0);
        let older = w.catch(w.is_count());
        // The first takes what was recycled, the second is counted anew.
        let first = w.fill(0, 5, 0x22);
        w.settle();
        let second = w.fill(0, 6, 0x33);
        w.settle();
        w.release(&older);
        w.finish(&decrement);
        w.finish(&first);
        w.finish(&second);
        let flushed = w.flush(0);
        w.finish(&flushed);
        w.crash(|_| true).is_sound()
    });
}

/// T01x, T01y: a discard of a backed cluster, which is not allocated, waits for a write that is copying into it.
#[test]
fn t01x_t01y_discard_beside_a_copy() {
    let setup = Setup::new(16).backing(BELOW);
    fails_only_with(&setup, &[broken(Variant::DiscardShared)], |w| {
        w.prepare(0..2, 0x11);
        let written = w.write(0, 5, 0..1, 0x22);
        let data = w.catch(w.is_data());
        let gone = w.discard(0, 5);
        w.settle();
        w.release(&data);
        w.finish(&written);
        w.finish(&gone);
        w.reads_as(5, 1..8, &[0])
    });
}

/// A zero-write of a part of a cluster that is not allocated finds it empty, waits for a write into another part that is
/// on its way, and has to look again.
#[test]
fn t02x_zeros_over_a_part_beside_a_write() {
    let setup = Setup::new(16).policy(AllocPolicy::PerAllocation);
    fails_only_with(&setup, &[broken(Variant::ZeroPartNotLookedAtAgain)], |w| {
        w.prepare(0..2, 0x11);
        let written = w.write(0, 5, 0..1, 0x22);
        let data = w.catch(w.is_data());
        let zeroed = w.zero_part(0, 5, 4..6);
        w.settle();
        assert!(!zeroed.given());
        w.release(&data);
        w.finish(&written);
        w.finish(&zeroed);
        let flushed = w.flush(0);
        w.finish(&flushed);
        let after = w.crash(|_| false);
        after.is_sound()?;
        after.reads_as(5, 1..8, &[0])?;
        after.reads_as(5, 0..1, &[0x22])
    });
}

/// Zeros over a part of a cluster that is nowhere write no data.
#[test]
fn t02y_zeros_over_a_part_of_nothing() {
    let mut w = Setup::new(16).policy(AllocPolicy::PerAllocation).make();
    w.prepare(0..2, 0x11);
    let is_data = w.is_data();
    let data = |w: &ImageWorld| w.accepted_since(0).iter().filter(|op| is_data(op)).count();
    let before = data(&w);
    assert!(before >= 2);
    let zeroed = w.zero_part(0, 5, 4..6);
    w.finish(&zeroed);
    let flushed = w.flush(0);
    w.finish(&flushed);
    assert_eq!(data(&w), before);
    let after = w.crash(|_| false);
    assert_eq!(after.is_sound(), Ok(()));
    assert_eq!(after.reads_as(5, 0..8, &[0]), Ok(()));
}
