//! Closing an image while others use it, twice, and not at all.

use std::sync::Arc;

use blkring_engine::sim::{Event, OpKind};
use blkring_engine::{Flags, Request};
use blkring_qcow2::AllocPolicy;
use blkring_tests::image_world::{ImageWorld, Setup};

/// A zero-write is admitted part by part. Closing waits for all of it.
#[test]
fn a_zero_write_of_several_parts_is_over_before_the_end() {
    for seed in 0..8 {
        let mut w = Setup::new(16).seed(seed).queues(2).make();
        w.prepare(0..4, 0x11);
        let zeroed = w.submit(0, Request::write_zeroes(512, 3 * 4096).with(Flags::FUA));
        let head = w.catch(w.is_data());
        let closed = w.close(1);
        w.settle();
        assert!(!closed.given(), "the head is on its way");
        w.release(&head);
        w.finish(&closed);
        assert!(zeroed.given(), "seed {seed}: closed before the rest was written");
        zeroed.result().expect("it was there first");
        let left = w.crash(|_| false);
        assert!(left.check().is_clean(), "seed {seed}: {:?}", left.check());
        left.reads_as(3, 0..1, &[0]).expect("the tail is written");
    }
}

#[test]
fn closing_twice_waits_for_the_same() {
    let mut w = Setup::new(16).queues(2).make();
    let written = w.fill(0, 3, 0x11);
    w.finish(&written);
    let first = w.close(0);
    let sync = w.catch(|op| op.kind == OpKind::Sync);
    let second = w.close(1);
    w.settle();
    assert!(!first.given() && !second.given(), "nothing is durable yet");
    w.release(&sync);
    w.finish(&first);
    w.finish(&second);
    w.crash(|_| false).reads_as(3, 0..8, &[0x11]).expect("it is durable");
}

/// Whether an op is the one to be held.
type Held<'a> = dyn Fn(&ImageWorld, &Event) -> bool + 'a;

/// An image whose queues are gone goes with its last user, whatever work was left half done: what the disk still does
/// for it is waited for, and nothing comes later.
#[test]
fn shared_work_keeps_no_image() {
    let is_kind = |kind| move |_: &ImageWorld, op: &Event| op.kind == kind;
    let is_data = |w: &ImageWorld, op: &Event| w.is_data()(op);
    let shared: [(Setup, &Held<'_>); 3] = [
        (Setup::new(16).backing(0xaa), &is_data),
        (Setup::new(16).policy(AllocPolicy::PerAllocation), &is_kind(OpKind::ZeroRange)),
        (Setup::new(16), &is_kind(OpKind::Sync)),
    ];
    for (number, (setup, held)) in shared.into_iter().enumerate() {
        let mut w = setup.make();
        w.prepare(0..1, 0x11);
        w.write(0, 5, 0..1, 0x22);
        let mut op = w.catch(|_| true);
        while !held(&w, &op) {
            w.release(&op);
            w.advance_to_end(&op);
            op = w.catch(|_| true);
        }
        let image = Arc::downgrade(&w.image);
        drop(w);
        assert!(image.upgrade().is_none(), "kept by the work of case {number}");
    }
}

/// What a process that was killed had written may be in the page cache alone. An image that is opened after it must
/// not take that for durable: a durable write in place trusts the mapping.
#[test]
fn what_a_killed_process_left_is_synced_before_it_is_trusted() {
    let other = 600;
    let setup = Setup::new(1024).reserve(8).options(|options| options.cache_bytes(0));
    let mut w = setup.clone().make();
    w.prepare(0..1, 0x11);
    w.prepare(other..other + 5, 0x11);
    assert!(w.image.statistics().ready_clusters > 4, "the next write needs no refill");
    let before = w.image.service_counts().syncs;
    let written = w.fill(0, 1, 0x22);
    w.finish(&written);
    // The slice is pushed out, with the link, and nothing syncs it.
    for cluster in [other, 0, other] {
        w.read(0, cluster * 4096, 512);
    }
    w.settle();
    assert_eq!(w.image.service_counts().syncs, before, "the link is not durable");
    let disk = w.disk.clone();
    drop(w);
    let mut w = setup.open(&disk);
    let durable = w.write_with(0, 1, 0..1, 0x33, Flags::FUA);
    w.finish(&durable);
    w.crash(|_| false).reads_as(1, 0..1, &[0x33]).expect("it was answered as durable");
}
