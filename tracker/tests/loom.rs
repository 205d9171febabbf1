//! The shell under loom: every interleaving of its lock with the wakers, up to loom's bounds.
//!
//! `RUSTFLAGS="--cfg blkring_loom" cargo test -p blkring-tracker --test loom --release`
#![cfg(blkring_loom)]

use blkring_tracker::sync::atomic::{AtomicUsize, Ordering};
use blkring_tracker::sync::{Arc, thread};
use blkring_tracker::{Begin, Class, Guard, Overtaken, Span, Tracker, Widen};
use loom::future::block_on;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A place that only one may be in.
#[derive(Clone)]
struct Alone(Arc<AtomicUsize>);

impl Alone {
    fn new() -> Self {
        Self(Arc::new(AtomicUsize::new(0)))
    }

    fn visit(&self, _guard: &Guard) {
        assert_eq!(self.0.fetch_add(1, Ordering::Relaxed), 0, "two in conflict run");
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn begin(tracker: &Arc<Tracker>, start: u64, end: u64, class: Class) -> Begin {
    tracker.begin(Span::new(start, end), class)
}

fn idle(tracker: &Tracker) {
    tracker.self_check();
    let statistics = tracker.statistics();
    assert_eq!((statistics.in_flight(), statistics.serialising), (0, 0));
}

/// Like `loom::model`, with at most so many switches away from a thread that could go on: three threads without a
/// bound take minutes.
fn bounded(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(run);
}

/// Polls once, then lets go of the future whatever came of it.
async fn poll_once_and_drop<F: Future + Unpin>(future: F) {
    let mut future = Some(future);
    poll_fn(|cx: &mut Context<'_>| {
        if let Some(future) = &mut future {
            drop(Pin::new(future).poll(cx));
        }
        future = None;
        Poll::Ready(())
    })
    .await;
}

/// A begin races an end: the waker is never lost between the check and the wait.
#[test]
fn an_end_wakes_the_one_that_is_about_to_wait() {
    loom::model(|| {
        let tracker = Tracker::new();
        let alone = Alone::new();
        let (t, a) = (Arc::clone(&tracker), alone.clone());
        let other = thread::spawn(move || {
            let guard = block_on(begin(&t, 0, 2, Class::Serialising));
            a.visit(&guard);
        });
        let guard = block_on(begin(&tracker, 1, 3, Class::Serialising));
        alone.visit(&guard);
        drop(guard);
        other.join().expect("other");
        idle(&tracker);
    });
}

/// Three threads in a queue, one of them shared.
#[test]
fn three_in_a_queue() {
    bounded(3, || {
        let tracker = Tracker::new();
        let alone = Alone::new();
        let others: Vec<_> = [Class::Serialising, Class::Shared]
            .into_iter()
            .map(|class| {
                let (tracker, alone) = (Arc::clone(&tracker), alone.clone());
                thread::spawn(move || alone.visit(&block_on(begin(&tracker, 0, 1, class))))
            })
            .collect();
        alone.visit(&block_on(begin(&tracker, 0, 1, Class::Serialising)));
        for other in others {
            other.join().expect("other");
        }
        idle(&tracker);
    });
}

/// The one in the middle of a queue is withdrawn while the first ends: the last still runs.
#[test]
fn a_withdrawal_races_the_admission() {
    bounded(3, || {
        let tracker = Tracker::new();
        let first = block_on(begin(&tracker, 0, 1, Class::Serialising));
        let middle = begin(&tracker, 0, 1, Class::Serialising);
        let last = begin(&tracker, 0, 1, Class::Shared);
        let withdrawer = thread::spawn(move || block_on(poll_once_and_drop(middle)));
        let ender = thread::spawn(move || drop(first));
        drop(block_on(last));
        withdrawer.join().expect("withdrawer");
        ender.join().expect("ender");
        idle(&tracker);
    });
}

/// Polled by one task, then by another: the second is woken.
#[test]
fn a_future_moves_between_tasks() {
    loom::model(|| {
        let tracker = Tracker::new();
        let first = block_on(begin(&tracker, 0, 1, Class::Serialising));
        let mut waits = begin(&tracker, 0, 1, Class::Serialising);
        let ender = thread::spawn(move || drop(first));
        // `block_on` makes a new waker each time.
        let early = block_on(poll_fn(|cx| Poll::Ready(Pin::new(&mut waits).poll(cx))));
        match early {
            Poll::Ready(guard) => drop(guard),
            Poll::Pending => drop(block_on(waits)),
        }
        ender.join().expect("ender");
        idle(&tracker);
    });
}

async fn granted(widen: Widen, alone: &Alone) -> Overtaken {
    let grant = widen.await;
    alone.visit(&grant.guard);
    grant.overtaken
}

/// Two that run widen over each other: the lower ticket is never overtaken, the higher one is exactly if it parked
/// and gave up its grant to the lower one.
#[test]
fn two_widen_over_each_other() {
    loom::model(|| {
        let tracker = Tracker::new();
        let alone = Alone::new();
        let low = block_on(begin(&tracker, 0, 1, Class::Shared));
        let high = block_on(begin(&tracker, 0, 1, Class::Shared));
        let beside = alone.clone();
        let other =
            thread::spawn(move || block_on(granted(high.widen(Span::to_infinity(0)), &beside)));
        let low = block_on(granted(low.widen(Span::new(0, 1)), &alone));
        let high = other.join().expect("other");
        // Whichever asked first, both were in each other's way when they did.
        assert_eq!((low, high), (Overtaken::No, Overtaken::Yes));
        idle(&tracker);
    });
}

/// A parked widening is dropped while its blocker ends and a newcomer waits for both.
#[test]
fn a_parked_widening_is_dropped() {
    bounded(3, || {
        let tracker = Tracker::new();
        let a = block_on(begin(&tracker, 0, 1, Class::Shared));
        let b = block_on(begin(&tracker, 1, 2, Class::Shared));
        let parked = a.widen(Span::new(0, 2));
        let newcomer = begin(&tracker, 0, 2, Class::Serialising);
        let dropper = thread::spawn(move || block_on(poll_once_and_drop(parked)));
        let ender = thread::spawn(move || drop(b));
        drop(block_on(newcomer));
        dropper.join().expect("dropper");
        ender.join().expect("ender");
        idle(&tracker);
    });
}

/// More are freed at once than fit in one batch of wakers; two enders fire them between them. Loom bounds the number
/// of threads, so the waiting futures are polled by one.
#[test]
fn many_are_freed_while_another_ends() {
    bounded(2, || {
        let tracker = Tracker::new();
        let first = block_on(begin(&tracker, 0, 10, Class::Serialising));
        let apart = block_on(begin(&tracker, 20, 21, Class::Serialising));
        let mut waits: Vec<_> = (0..10).map(|i| begin(&tracker, i, i + 1, Class::Shared)).collect();
        waits.push(begin(&tracker, 20, 21, Class::Shared));
        let enders = [thread::spawn(move || drop(first)), thread::spawn(move || drop(apart))];
        block_on(poll_fn(|cx| {
            waits.retain_mut(|begin| Pin::new(begin).poll(cx).is_pending());
            if waits.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        }));
        for ender in enders {
            ender.join().expect("ender");
        }
        idle(&tracker);
    });
}
