//! The policy that zeroes with each allocation (L).

use blkring_engine::Variant;
use blkring_engine::sim::{OpKind, Stage};
use blkring_qcow2::AllocPolicy;
use blkring_tests::image_world::{ImageWorld, Setup, fails_only_with};

use crate::{BELOW, broken, is_sync};

fn setup() -> Setup {
    Setup::new(16).policy(AllocPolicy::PerAllocation)
}

fn recycle_one(w: &mut ImageWorld) {
    w.prepare(0..2, 0x11);
    w.give_up(0..1);
    let statistics = w.image.statistics();
    assert_eq!(statistics.dirty_clusters, 1);
}

/// L01x: a recycled cluster, zeroed by its own allocation, is no plain link.
#[test]
fn l01x_link_of_a_recycled_cluster() {
    fails_only_with(&setup(), &[broken(Variant::LinkTakenForPlain)], |w| {
        recycle_one(w);
        let written = w.write(0, 5, 0..1, 0x22);
        w.finish(&written);
        let flushed = w.flush(0);
        let slice = w.catch(w.is_table());
        let after = w.crash(|op| op.op == slice.op);
        after.reads_as(5, 0..1, &[0, 0x22])?;
        after.reads_as(5, 1..8, &[0])?;
        w.release(&slice);
        w.finish(&flushed);
        w.crash(|_| false).reads_as(5, 0..1, &[0x22])
    });
}

/// L01y: a joiner waits for the zero-write.
#[test]
fn l01y_joiner_of_a_zero_write() {
    fails_only_with(&setup(), &[broken(Variant::JoinerDoesNotWait)], |w| {
        recycle_one(w);
        let first = w.write(0, 5, 0..1, 0x22);
        let zeroing = w.catch(|op| op.kind == OpKind::ZeroRange);
        let second = w.write(0, 5, 1..2, 0x33);
        w.settle();
        w.reads_as(5, 2..8, &[0])?;
        w.release(&zeroing);
        w.finish(&first);
        w.finish(&second);
        w.reads_as(5, 1..2, &[0x33])
    });
}

/// L01z: the payload goes out when the zero-write is done.
#[test]
fn l01z_payload_beside_the_zero_write() {
    fails_only_with(&setup(), &[broken(Variant::PayloadBeforeZeroWrite)], |w| {
        recycle_one(w);
        let written = w.write(0, 5, 0..1, 0x22);
        let zeroing = w.catch(|op| op.kind == OpKind::ZeroRange);
        w.settle();
        w.release(&zeroing);
        w.finish(&written);
        w.reads_as(5, 0..1, &[0x22])
    });
}

/// L02x: a link needs a count that is durable. It is before the cluster is to be had. The growth of the file is not: it
/// comes with the write, so the cut syncs before it writes the entry, or that might lead behind the end of the file.
#[test]
fn l02x_count_before_the_cluster() {
    fails_only_with(&setup(), &[], |w| {
        w.prepare(0..2, 0x11);
        let mark = w.disk.steps();
        let written = w.write(0, 5, 0..1, 0x22);
        w.finish(&written);
        let log = w.disk.log_since(mark);
        let is_count = w.is_count();
        let counted =
            log.iter().position(|e| is_count(e) && matches!(e.stage, Stage::Completed(_)));
        let zeroed = log.iter().position(|e| e.kind == OpKind::ZeroRange);
        let (counted, zeroed) = (counted.expect("a count"), zeroed.expect("a zero-write"));
        let between = log.get(counted..zeroed).expect("the count comes first");
        let begun = between.iter().position(|e| e.stage == Stage::Begun).expect("a sync");
        let ended = between.iter().position(|e| is_sync(e) && e.stage == Stage::Completed(0));
        assert!(begun < ended.expect("the sync ends"), "{between:?}");
        w.settle();
        let mark = w.disk.steps();
        let flushed = w.flush(0);
        let slice = w.catch(w.is_table());
        assert!(w.accepted_since(mark).iter().any(is_sync), "the growth is durable first");
        let after = w.crash(|op| op.op == slice.op);
        after.is_sound()?;
        after.reads_as(5, 0..1, &[0, 0x22])?;
        after.reads_as(5, 1..8, &[0])?;
        w.release(&slice);
        w.finish(&flushed);
        Ok(())
    });
}

/// L02z, P07z: a cluster that a failed write was in has held bytes.
#[test]
fn l02z_p07z_after_a_failed_write() {
    fails_only_with(&setup(), &[broken(Variant::LinkTakenForPlain)], |w| {
        w.prepare(0..2, 0x11);
        let failing = w.write(0, 5, 0..4, 0x22);
        let data = w.catch(w.is_data());
        w.fail(&data, 1024);
        w.release(&data);
        assert!(w.runs_until(&failing));
        assert!(failing.result().is_err());
        // What it left becomes durable.
        w.flush_twice();
        let written = w.write(0, 6, 3..4, 0x33);
        w.finish(&written);
        let flushed = w.flush(0);
        let slice = w.catch(w.is_table());
        let after = w.crash(|op| op.op == slice.op);
        after.is_sound()?;
        after.reads_as(6, 0..3, &[0])?;
        after.reads_as(6, 3..4, &[0, 0x33])?;
        w.release(&slice);
        w.finish(&flushed);
        Ok(())
    });
}

/// L03x: over backing a joiner waits for more than a zero-write: for the copy.
#[test]
fn l03x_joiner_over_backing() {
    fails_only_with(&setup().backing(BELOW), &[broken(Variant::JoinerDoesNotWait)], |w| {
        recycle_one(w);
        let first = w.write(0, 5, 0..1, 0x22);
        let data = w.catch(w.is_data());
        let second = w.write(0, 5, 1..2, 0x33);
        w.settle();
        w.reads_as(5, 2..8, &[BELOW])?;
        w.release(&data);
        w.finish(&first);
        w.finish(&second);
        w.reads_as(5, 2..8, &[BELOW])
    });
}
