//! Failed writes of a cut (X, Y04) and of a first writer (W02).

use blkring_engine::Variant;
use blkring_tests::image_world::{Answer, ImageWorld, Setup, Verdict, fails_only_with};

use crate::broken;

/// A flush whose write of an L2 table fails after `landed` bytes.
fn failed_cut(w: &mut ImageWorld, landed: u64) -> Answer {
    let flushed = w.flush(0);
    let slice = w.catch(w.is_table());
    w.fail(&slice, landed);
    w.release(&slice);
    assert!(w.runs_until(&flushed));
    assert!(flushed.result().is_err(), "the flush says so");
    flushed
}

/// X01x: what a failed cut should have written is written by the next one, whatever of it landed.
#[test]
fn x01x_slices_are_written_again() {
    for landed in [0, 512, 4096] {
        // What landed whole needs no second write.
        let rules =
            if landed == 4096 { vec![] } else { vec![broken(Variant::DirtyMarksLostOnError)] };
        fails_only_with(&Setup::new(600), &rules, |w| {
            w.prepare(0..1, 0x11);
            // In the second sector of the table.
            w.prepare(100..101, 0x11);
            let gone = w.discard(0, 100);
            w.finish(&gone);
            failed_cut(w, landed);
            w.crash(|_| true).is_sound()?;
            let again = w.flush(0);
            w.finish(&again);
            let after = w.crash(|_| false);
            after.is_sound()?;
            after.reads_as(100, 0..8, &[0])
        });
    }
}

/// X01y: clusters that a failed cut should have removed are not due.
#[test]
fn x01y_unlinked_clusters_are_not_due() {
    fails_only_with(&Setup::new(16), &[broken(Variant::UnlinkMarksLostOnError)], |w| {
        w.prepare(0..2, 0x11);
        let gone = w.discard(0, 0);
        w.finish(&gone);
        failed_cut(w, 0);
        for cluster in 5..8 {
            let written = w.fill(0, cluster, 0x33);
            w.finish(&written);
        }
        w.crash(|_| true).reads_as(0, 0..8, &[0, 0x11])
    });
}

/// X01z: what was linked while the cut was on its way stays.
#[test]
fn x01z_the_live_slice_stays() {
    fails_only_with(&Setup::new(16).reserve(8), &[], |w| {
        w.prepare(0..6, 0x11);
        let gone = w.discard(0, 0);
        w.finish(&gone);
        let flushed = w.flush(0);
        let slice = w.catch(w.is_table());
        let written = w.fill(0, 8, 0x22);
        w.finish(&written);
        w.fail(&slice, 0);
        w.release(&slice);
        assert!(w.runs_until(&flushed));
        assert!(flushed.result().is_err());
        w.reads_as(8, 0..8, &[0x22])?;
        let again = w.flush(0);
        w.finish(&again);
        let after = w.crash(|_| false);
        after.reads_as(8, 0..8, &[0x22])?;
        after.reads_as(0, 0..8, &[0])
    });
}

/// A flush whose write of refcounts lands and is told to have failed.
fn failed_decrement(w: &mut ImageWorld) {
    let flushed = w.flush(0);
    let count = w.catch(w.is_count());
    w.fail(&count, count.len);
    w.release(&count);
    assert!(w.runs_until(&flushed));
    assert!(flushed.result().is_err());
}

/// Discards three guest clusters; a first flush recycles one of their clusters, a second one is to free two.
fn until_decrement(w: &mut ImageWorld, clusters: std::ops::Range<u64>) {
    for cluster in clusters {
        let gone = w.discard(0, cluster);
        w.finish(&gone);
    }
    let removed = w.flush(0);
    w.finish(&removed);
    w.settle();
}

/// Uses a few clusters, flushes, and looks whether all that is referenced is counted.
fn use_and_check(w: &mut ImageWorld) -> Verdict {
    for cluster in 8..14 {
        let written = w.fill(0, cluster, 0x33);
        w.finish(&written);
    }
    let flushed = w.flush(0);
    let slice = w.catch(w.is_table());
    w.crash(|_| true).is_sound()?;
    w.release(&slice);
    w.finish(&flushed);
    w.crash(|_| true).is_sound()?;
    w.flush_twice();
    w.crash(|_| true).is_sound()?;
    for cluster in 8..14 {
        w.reads_as(cluster, 0..8, &[0x33])?;
    }
    Ok(())
}

/// X03x, X03y, Y08: a decrement that failed may be on the disk. Its cluster is not used with the count untouched.
#[test]
fn x03x_x03y_y08_failed_decrement() {
    fails_only_with(&Setup::new(16), &[broken(Variant::FailedDecrementRecycled)], |w| {
        w.prepare(0..4, 0x11);
        until_decrement(w, 0..3);
        failed_decrement(w);
        use_and_check(w)
    });
}

/// The same: its cluster is not taken for free by a refill that reads the block again, since its decrement is still to
/// come.
#[test]
fn x03_failed_decrement_is_not_free() {
    fails_only_with(&Setup::new(16), &[], |w| {
        w.prepare(0..7, 0x11);
        // Free clusters before those of the failed decrement: the search for space begins there.
        w.give_up(0..3);
        until_decrement(w, 3..6);
        failed_decrement(w);
        use_and_check(w)
    });
}

/// Y04x: a cut that has failed keeps the slot until its other writes are done.
#[test]
fn y04x_slot_of_a_failed_cut() {
    let setup = Setup::new(256).cluster(512).reserve(8);
    fails_only_with(&setup, &[broken(Variant::FailedCutDoesNotWait)], |w| {
        w.prepare(0..6, 0x11);
        w.prepare(64..66, 0x11);
        for cluster in [8, 70] {
            let written = w.fill(0, cluster, 0x22);
            w.finish(&written);
        }
        let first = w.flush(0);
        let older = w.catch(w.is_table());
        let other = w.catch(w.is_table());
        w.fail(&other, 0);
        w.release(&other);
        w.settle();
        // The slice that is still on its way changes once more.
        let cluster = if w.places().tables[0].start == older.offset { 9 } else { 71 };
        let written = w.fill(0, cluster, 0x33);
        w.finish(&written);
        let second = w.flush(0);
        w.settle();
        if second.given() {
            w.crash(|op| op.op == older.op).reads_as(cluster, 0..1, &[0x33])?;
        }
        w.release(&older);
        assert!(w.runs_until(&first));
        assert!(first.result().is_err());
        w.finish(&second);
        w.crash(|_| false).reads_as(cluster, 0..1, &[0x33])
    });
}

/// W02x: the cluster of a failed first writer stays in flight while a joiner writes into it.
#[test]
fn w02x_failed_first_writer_with_a_joiner() {
    fails_only_with(&Setup::new(16), &[broken(Variant::FailedClusterBackWithJoiners)], |w| {
        w.prepare(0..2, 0x11);
        let first = w.write(0, 8, 0..1, 0x22);
        let one = w.catch(w.is_data());
        let second = w.write(0, 8, 1..2, 0x33);
        let two = w.catch(w.is_data());
        w.fail(&one, 0);
        w.release(&one);
        assert!(w.runs_until(&first));
        assert!(first.result().is_err());
        let other = w.write(0, 9, 0..1, 0x44);
        w.settle();
        w.release(&two);
        w.finish(&second);
        w.finish(&other);
        w.reads_as(8, 1..2, &[0x33])?;
        w.reads_as(9, 0..1, &[0x44])?;
        w.reads_as(9, 1..8, &[0])
    });
}

/// A refill that finds no space takes nothing: when there is space again the file grows by what is used.
#[test]
fn a_refill_without_space_takes_nothing() {
    fails_only_with(&Setup::new(64), &[], |w| {
        w.prepare(0..2, 0x11);
        let before = w.disk.used();
        w.disk.set_capacity(before);
        for cluster in 10..30 {
            let written = w.fill(0, cluster, 0x22);
            assert!(w.runs_until(&written));
            assert!(written.result().expect_err("there is no space").is_no_space());
        }
        w.disk.set_capacity(before + 4096);
        let written = w.fill(0, 5, 0x33);
        w.finish(&written);
        w.flush_twice();
        assert_eq!(w.disk.used(), before + 4096);
        let after = w.crash(|_| false);
        after.is_sound()?;
        after.reads_as(5, 0..8, &[0x33])
    });
}
