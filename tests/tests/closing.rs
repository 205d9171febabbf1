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
