//! What a queue does when it has nothing to do: what the last refill made is synced, once, so that the next flush
//! costs one fdatasync.

use blkring_engine::Flags;
use blkring_engine::sim::{Event, Fault, Matcher, OpKind, Rule};
use blkring_qcow2::AllocPolicy;
use blkring_tests::image_world::{EIO, ImageWorld, Setup};

/// Writes into new clusters, many at a time and without a flush, so that all are answered before a queue is idle.
fn burst(w: &mut ImageWorld, clusters: std::ops::Range<u64>) {
    let answers: Vec<_> = clusters.map(|cluster| w.write(0, cluster, 0..1, 0x11)).collect();
    for answer in &answers {
        w.finish(answer);
    }
}

fn syncs(w: &ImageWorld) -> u64 {
    w.image.service_counts().syncs
}

fn is_sync(op: &Event) -> bool {
    op.kind == OpKind::Sync
}

#[test]
fn a_flush_after_a_burst_and_a_pause_costs_one_sync() {
    for seed in 0..8 {
        let mut w = Setup::new(256).seed(seed).queues(2).reserve(64).make();
        burst(&mut w, 0..40);
        w.settle();
        let before = syncs(&w);
        assert_eq!(before, 1, "seed {seed}: the pause has one, the burst none");
        let written = w.write(1, 100, 0..1, 0x22);
        w.finish(&written);
        let flushed = w.flush(1);
        w.finish(&flushed);
        assert_eq!(syncs(&w) - before, 1, "seed {seed}: that of the flush");
        w.crash(|_| false).reads_as(100, 0..1, &[0x22]).expect("it was flushed");
        w.crash(|_| false).reads_as(39, 0..1, &[0x11]).expect("this as well");
    }
}

#[test]
fn a_pause_without_new_clusters_syncs_nothing() {
    let mut w = Setup::new(256).queues(2).reserve(64).make();
    w.settle();
    assert_eq!(syncs(&w), 0, "nothing was made ready");
    burst(&mut w, 0..40);
    w.settle();
    let before = syncs(&w);
    for round in 0..20 {
        // Overwrites and reads, with pauses.
        let written = w.write(round % 2, 3, 0..1, 0x22);
        w.finish(&written);
        w.settle();
        w.read(1, 0, 4096);
        w.settle();
    }
    assert_eq!(syncs(&w), before);
}

/// A queue with an unanswered request, of any queue, is no pause.
#[test]
fn nothing_is_synced_while_a_request_is_on_its_way() {
    let mut w = Setup::new(256).queues(2).reserve(64).make();
    let held = w.write(0, 9, 0..1, 0x11);
    let data = w.catch(w.is_data());
    burst(&mut w, 0..8);
    w.settle();
    assert_eq!(syncs(&w), 0, "one request is in the driver, of the other queue");
    w.release(&data);
    w.finish(&held);
    w.settle();
    assert_eq!(syncs(&w), 1);
}

/// The sync is nobody's: requests go on beside it, on every queue, and its own queue may be gone.
#[test]
fn nobody_waits_for_the_sync_of_a_pause() {
    let mut w = Setup::new(256).queues(2).reserve(64).make();
    burst(&mut w, 0..40);
    let sync = w.catch(is_sync);
    w.abandon(0);
    let written = w.write(1, 100, 0..1, 0x22);
    w.finish(&written);
    w.read(1, 0, 4096);
    assert_eq!(syncs(&w), 1, "and no second one begins beside it");
    w.release(&sync);
    w.settle();
    let flushed = w.flush(1);
    w.finish(&flushed);
    assert_eq!(syncs(&w), 2, "the flush has one");
}

/// A flush that comes while it runs is not spared its own: what is running has covered nothing yet.
#[test]
fn a_flush_beside_the_sync_of_a_pause_keeps_its_order() {
    let mut w = Setup::new(256).queues(2).reserve(64).make();
    burst(&mut w, 0..40);
    let sync = w.catch(is_sync);
    let flushed = w.flush(1);
    w.settle();
    assert!(!flushed.given(), "syncs that run side by side are answered together");
    let linked = w.crash(|op| op.kind == OpKind::Write);
    linked.is_sound().expect("no entry is written before what it points at");
    w.release(&sync);
    w.finish(&flushed);
    w.crash(|_| false).reads_as(39, 0..1, &[0x11]).expect("it was flushed");
}

/// A failed sync of a pause is a failed sync: what it should have covered may be lost.
#[test]
fn a_sync_of_a_pause_that_fails_ends_writing() {
    let mut w = Setup::new(256).reserve(64).make();
    w.disk.inject(Rule::new(Matcher::kind(OpKind::Sync), Fault::Error(EIO)));
    burst(&mut w, 0..40);
    w.settle();
    assert_eq!(syncs(&w), 1);
    let written = w.write_with(0, 3, 0..1, 0x22, Flags::empty());
    assert!(w.runs_until(&written));
    assert_eq!(written.result().unwrap_err().errno, EIO);
    let closed = w.close(0);
    assert!(w.runs_until(&closed));
    assert!(closed.result().is_err());
    w.settle();
    assert_eq!(syncs(&w), 1, "it is not tried again");
}

/// A policy that zeroes with each allocation syncs its counts ahead, so there is nothing left to do.
#[test]
fn what_is_synced_ahead_is_not_synced_again() {
    let mut w = Setup::new(256).policy(AllocPolicy::PerAllocation).reserve(64).make();
    burst(&mut w, 0..40);
    assert_eq!(w.try_catch(is_sync), None);
}
