//! Clusters and tables that a snapshot shares.

use blkring_engine::sim::OpKind;
use blkring_engine::{IoMem, Request, Variant};
use blkring_tests::image_world::{Claims, IMAGE, ImageWorld, Setup, Verdict, fails_only_with};

use crate::{broken, is_sync};

const CLUSTER: u64 = 4096;

/// What the guest had written when the snapshot was taken.
const OLD: u8 = 0x11;

/// Six clusters of old bytes, and a snapshot of them.
fn setup() -> Setup {
    Setup::new(16).with_snapshot(6, OLD)
}

/// The guest has a table of its own, and what that gave up is settled.
fn own_table(w: &mut ImageWorld) {
    w.prepare(5..6, 0x55);
}

/// What the snapshot holds has not changed, as far as the disk says after a power cut.
fn snapshot_is_whole(w: &ImageWorld) -> Verdict {
    let after = w.crash(|_| true);
    after.is_sound()?;
    after.snapshot_reads_as(0, 0..6, &[OLD])
}

/// Of a cut that unlinks shared clusters only what it writes to refcount blocks survives.
#[test]
fn trace_09_s3_decrement_of_a_shared_cluster_with_its_removal() {
    fails_only_with(&setup(), &[broken(Variant::DecrementInOwnCut)], |w| {
        own_table(w);
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
        w.crash(|_| false).is_sound()?;
        assert_eq!(w.image.statistics().dirty_clusters, 0, "they are the snapshot's");
        snapshot_is_whole(w)
    });
}

/// The L1 entry that names the copy of a shared table survives, the copy does not.
#[test]
fn trace_13_s4_copied_table_after_its_entry() {
    fails_only_with(&setup(), &[broken(Variant::TableCopyWithoutSync)], |w| {
        // No link over bytes: nothing else asks for a sync before the entry.
        let gone = w.discard(0, 0);
        w.finish(&gone);
        // Idle queues sync what a refill has made, which would make the copy durable by the way.
        w.try_catch(is_sync);
        let flushed = w.flush(0);
        let entry = w.catch(w.is_l1());
        let after = w.crash(|op| op.op == entry.op);
        after.is_sound()?;
        after.reads_as(0, 0..8, &[0, OLD])?;
        after.reads_as(1, 0..8, &[OLD])?;
        w.release_all();
        w.finish(&flushed);
        let after = w.crash(|_| false);
        after.reads_as(0, 0..8, &[0])?;
        after.reads_as(5, 0..8, &[OLD])?;
        snapshot_is_whole(w)
    });
}

/// A read is in flight on a cluster that has no other reference but does not claim so; a write replaces it, the count
/// goes to zero, and the cluster is given to another one.
#[test]
fn trace_11_n5_read_of_a_replaced_cluster() {
    let setup = Setup::new(16).filled(2, OLD, Claims::Cleared);
    fails_only_with(&setup, &[broken(Variant::PoolWithoutLeaseCheck)], |w| {
        // The table is in memory then.
        w.reads_as(1, 0..1, &[OLD])?;
        let mem = IoMem::from(vec![0x5a; 4096]);
        let read = w.submit(0, Request::read(0, mem.clone()));
        let held = w.catch(|op| op.kind == OpKind::Read && &*op.file == IMAGE);
        let written = w.fill(0, 0, 0x22);
        w.finish(&written);
        w.flush_twice();
        let mut reused = false;
        for cluster in 5..9 {
            let seen = w.disk.steps();
            let written = w.fill(0, cluster, 0x33);
            w.finish(&written);
            let is_there = |op: &blkring_engine::sim::Event| {
                op.kind == OpKind::Write && op.offset == held.offset && op.file == held.file
            };
            reused |= w.accepted_since(seen).iter().any(is_there);
        }
        w.release(&held);
        w.finish(&read);
        let bytes = mem.to_vec();
        if bytes.iter().any(|byte| *byte != OLD) {
            return Err(format!("the read shows {:#x}, {reused}", bytes[0]));
        }
        assert!(!reused, "not while the read was in flight");
        w.reads_as(0, 0..8, &[0x22])
    });
}

/// A whole shared cluster is overwritten; the entry survives, the bytes do not.
#[test]
fn s2_whole_cluster_over_a_shared_one() {
    fails_only_with(&setup(), &[broken(Variant::PayloadAfterEntry)], |w| {
        own_table(w);
        let written = w.fill(0, 0, 0x22);
        w.finish(&written);
        w.settle();
        let flushed = w.flush(0);
        let entry = w.catch(w.is_table());
        let is_data = w.is_data();
        let after = w.crash(|op| op.op == entry.op || !is_data(op));
        after.reads_as(0, 0..8, &[OLD, 0x22])?;
        after.is_sound()?;
        w.release(&entry);
        w.finish(&flushed);
        w.crash(|_| false).reads_as(0, 0..8, &[0x22])?;
        snapshot_is_whole(w)
    });
}

/// Every way to change what a snapshot shares leaves the snapshot as it was.
#[test]
fn what_a_snapshot_shares_is_not_written_in_place() {
    fails_only_with(&setup(), &[broken(Variant::SharedWrittenInPlace)], |w| {
        let written = w.write(0, 0, 2..3, 0x22);
        w.finish(&written);
        w.reads_as(0, 0..2, &[OLD])?;
        w.reads_as(0, 2..3, &[0x22])?;
        w.reads_as(0, 3..8, &[OLD])?;
        let zeroed = w.zero(0, 1);
        w.finish(&zeroed);
        let written = w.write(0, 1, 4..5, 0x33);
        w.finish(&written);
        let gone = w.discard(0, 2);
        w.finish(&gone);
        let over = Request::write(3 * CLUSTER - 512, IoMem::from(vec![0x44; 4096]));
        let over = w.submit(0, over);
        w.finish(&over);
        w.flush_twice();
        snapshot_is_whole(w)?;
        let closed = w.close(0);
        w.finish(&closed);
        assert!(w.crash(|_| false).check().is_clean());
        snapshot_is_whole(w)
    });
}
