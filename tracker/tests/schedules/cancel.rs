//! Withdrawal at every point of the ring of three wideners.

use crate::desk::Desk;
use blkring_tracker::table::Id;
use blkring_tracker::{Class, Span, Tracker};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

/// The six orders of three wideners.
pub const ORDERS: [[usize; 3]; 6] =
    [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// Runs the ring with a fourth request that waits from the start, withdrawing `victim` before step `point`. That
/// exactly the freed are woken is what the desk's self-check says after every step: who has no blocker runs.
fn ring(order: [usize; 3], victim: usize, point: usize) {
    let mut desk = Desk::default();
    let asked = [0..2, 0..2, 1..2];
    let mut ids: [Option<Id>; 4] =
        [Some(desk.sh(0..1)), Some(desk.sh(0..2)), Some(desk.sh(1..2)), Some(desk.ser(0..2))];
    let mut step = 0;
    let mut withdraw = |desk: &mut Desk, ids: &mut [Option<Id>; 4]| {
        if step == point
            && let Some(id) = ids[victim].take()
        {
            desk.end(id);
        }
        step += 1;
    };
    for i in order {
        withdraw(&mut desk, &mut ids);
        if let Some(id) = ids[i] {
            desk.widen(id, asked[i].clone());
        }
    }
    let mut ended = Vec::new();
    loop {
        withdraw(&mut desk, &mut ids);
        let Some(next) = (0..4).find(|&i| ids[i].is_some_and(|id| desk.runs(id))) else { break };
        let id = ids[next].take().expect("just found");
        ended.push(next);
        desk.end(id);
    }
    assert!(ids.iter().all(Option::is_none), "{ids:?} never ran, order {order:?}");
    if ended.len() == 4 {
        assert!(ended.is_sorted(), "the lowest ticket first: {ended:?}, order {order:?}");
    }
}

#[test]
fn schedule_11_cancel_at_every_point() {
    for order in ORDERS {
        for victim in 0..4 {
            for point in 0..8 {
                ring(order, victim, point);
            }
        }
    }
}

/// Admitted but never polled is running: dropping the future then frees the next.
#[test]
fn schedule_11_cancel_admitted_but_not_polled() {
    let tracker = Tracker::new();
    let mut cx = Context::from_waker(Waker::noop());
    let first = tracker.try_begin(Span::new(0, 1), Class::Serialising).expect("nothing there");
    let mut second = Box::pin(tracker.begin(Span::new(0, 1), Class::Serialising));
    assert!(second.as_mut().poll(&mut cx).is_pending());
    let mut third = pin!(tracker.begin(Span::new(0, 1), Class::Serialising));
    assert!(third.as_mut().poll(&mut cx).is_pending());
    drop(first);
    assert_eq!(tracker.statistics().running, 1);
    drop(second);
    tracker.self_check();
    assert_eq!(tracker.statistics().cancelled, 0, "it ran");
    assert!(third.as_mut().poll(&mut cx).is_ready());
    assert_eq!(tracker.statistics().in_flight(), 0);
}

/// Dropping the future of a parked widening drops the request.
#[test]
fn schedule_11_cancel_a_parked_widening() {
    let tracker = Tracker::new();
    let mut cx = Context::from_waker(Waker::noop());
    let a = tracker.try_begin(Span::new(0, 1), Class::Shared).expect("nothing there");
    let b = tracker.try_begin(Span::new(1, 2), Class::Shared).expect("nothing there");
    let mut widen = Box::pin(a.widen(Span::new(0, 2)));
    assert!(widen.as_mut().poll(&mut cx).is_pending());
    let mut waits = pin!(tracker.begin(Span::new(0, 1), Class::Shared));
    assert!(waits.as_mut().poll(&mut cx).is_pending());
    drop(widen);
    tracker.self_check();
    assert!(waits.as_mut().poll(&mut cx).is_ready());
    drop(b);
    let statistics = tracker.statistics();
    assert_eq!((statistics.cancelled, statistics.in_flight()), (1, 0));
}
