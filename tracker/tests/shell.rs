//! The shell: who is woken, when, and what it costs.
#![cfg(not(any(blkring_loom, blkring_shuttle)))]

use blkring_tracker::table::{MAX_WIDENINGS, Statistics};
use blkring_tracker::{Begin, Busy, Class, Guard, Marked, Overtaken, Phase, Span, Tracker, Widen};
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

/// Counts its wakes.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Bell {
    fn rung(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

fn poll<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

fn ready<F: Future + Unpin>(mut future: F) -> F::Output {
    match poll(&mut future, Waker::noop()) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("should be ready"),
    }
}

#[test]
fn futures_and_guards_cross_threads() {
    fn send<T: Send + Unpin + 'static>() {}
    send::<Begin>();
    send::<Widen>();
    send::<Marked>();
    send::<Guard>();
    fn shared<T: Send + Sync>() {}
    shared::<Tracker>();
}

#[test]
fn exactly_the_admitted_are_woken() {
    let tracker = Tracker::new();
    let bells: Vec<_> = (0..40).map(|_| Arc::new(Bell::default())).collect();
    let first = ready(tracker.begin(Span::new(0, 40), Class::Serialising));
    // 20 shared ones on one unit each, then 20 that wait for those.
    let mut waiting: Vec<_> = (0..40)
        .map(|i| {
            let class = if i < 20 { Class::Shared } else { Class::Serialising };
            tracker.begin(Span::at(i % 20, 1), class)
        })
        .collect();
    for (begin, bell) in waiting.iter_mut().zip(&bells) {
        assert!(poll(begin, &Waker::from(Arc::clone(bell))).is_pending());
    }
    drop(first);
    for (i, bell) in bells.iter().enumerate() {
        assert_eq!(bell.rung(), usize::from(i < 20), "bell {i}");
    }
    let seventh = ready(waiting.remove(7));
    drop(seventh);
    assert_eq!(bells[27].rung(), 1);
    assert_eq!(bells.iter().map(|bell| bell.rung()).sum::<usize>(), 21);
    drop(waiting);
    assert_eq!(tracker.statistics().in_flight(), 0);
}

#[test]
fn the_last_waker_counts() {
    let tracker = Tracker::new();
    let [old, new] = [Arc::new(Bell::default()), Arc::new(Bell::default())];
    let first = ready(tracker.begin(Span::new(0, 1), Class::Serialising));
    let mut second = tracker.begin(Span::new(0, 1), Class::Serialising);
    assert!(poll(&mut second, &Waker::from(Arc::clone(&old))).is_pending());
    assert!(poll(&mut second, &Waker::from(Arc::clone(&new))).is_pending());
    drop(first);
    assert_eq!((old.rung(), new.rung()), (0, 1));
    assert_eq!(Arc::strong_count(&new), 1, "a fired waker is not kept");
    assert!(poll(&mut second, &Waker::from(old)).is_ready());
}

#[test]
fn a_withdrawn_request_is_not_woken_and_leaves_no_waker() {
    let tracker = Tracker::new();
    let bell = Arc::new(Bell::default());
    let first = ready(tracker.begin(Span::new(0, 1), Class::Serialising));
    let mut second = tracker.begin(Span::new(0, 1), Class::Serialising);
    assert!(poll(&mut second, &Waker::from(Arc::clone(&bell))).is_pending());
    drop(second);
    assert_eq!(Arc::strong_count(&bell), 1, "its waker goes with it");
    let mut third = tracker.begin(Span::new(0, 1), Class::Serialising);
    drop(first);
    assert_eq!(bell.rung(), 0);
    assert!(poll(&mut third, Waker::noop()).is_ready());
}

/// A waker that uses the tracker when woken and when dropped, as one that owns a task full of guards would.
struct Nosy {
    tracker: Arc<Tracker>,
    holds: Mutex<Option<Guard>>,
}

impl Wake for Nosy {
    fn wake(self: Arc<Self>) {
        assert!(self.tracker.statistics().requests() > 0);
        drop(self.holds.lock().expect("not poisoned").take());
    }
}

impl Drop for Nosy {
    fn drop(&mut self) {
        assert!(self.tracker.statistics().requests() > 0);
    }
}

/// Deadlocks if a waker is fired or dropped under the lock, hence on a thread of its own.
#[test]
fn wakers_run_outside_the_lock() {
    let (done, finished) = mpsc::channel();
    let run = thread::spawn(move || {
        nosy_wakers();
        done.send(()).expect("the test waits");
    });
    match finished.recv_timeout(Duration::from_secs(20)) {
        Ok(()) => run.join().expect("it has finished"),
        Err(RecvTimeoutError::Timeout) => panic!("a waker ran under the lock"),
        Err(RecvTimeoutError::Disconnected) => run.join().expect("the wakers' checks hold"),
    }
}

fn nosy_wakers() {
    let tracker = Tracker::new();
    let nosy = |at: u64| {
        let holds = ready(tracker.begin(Span::at(at, 1), Class::Shared));
        let holds = Mutex::new(Some(holds));
        Waker::from(Arc::new(Nosy { tracker: Arc::clone(&tracker), holds }))
    };
    let first = ready(tracker.begin(Span::new(0, 1), Class::Serialising));
    let mut second = tracker.begin(Span::new(0, 1), Class::Serialising);
    let mut withdrawn = tracker.begin(Span::new(0, 1), Class::Serialising);
    let mut last = tracker.begin(Span::new(100, 102), Class::Serialising);
    assert!(poll(&mut last, Waker::noop()).is_ready());
    assert!(poll(&mut second, &nosy(200)).is_pending());
    assert!(poll(&mut second, &nosy(201)).is_pending(), "drops the first waker");
    assert!(poll(&mut withdrawn, &nosy(202)).is_pending());
    drop(withdrawn);
    drop(first);
    assert!(poll(&mut second, Waker::noop()).is_ready());
    tracker.self_check();
    assert_eq!(tracker.statistics().in_flight(), 0, "every waker let go of its guard");
}

#[test]
fn busy_gives_the_guard_back() {
    let tracker = Tracker::new();
    let a = tracker.try_begin(Span::new(0, 1), Class::Shared).expect("nothing there");
    let b = tracker.try_begin(Span::new(1, 2), Class::Shared).expect("nothing there");
    assert!(matches!(tracker.try_begin(Span::new(0, 2), Class::Serialising), Err(Busy)));
    let Err((a, Busy)) = a.try_widen(Span::new(0, 2)) else { panic!("B is in the way") };
    assert_eq!((a.span(), a.class()), (Span::new(0, 1), Class::Shared));
    drop(b);
    let Ok(a) = a.try_widen(Span::new(0, 2)) else { panic!("nothing is in the way") };
    assert_eq!((a.span(), a.class()), (Span::new(0, 2), Class::Serialising));
    assert_eq!(tracker.statistics().busy, 2);
    assert_eq!(Busy.to_string(), "an overlapping request is in flight or waits");
}

#[test]
fn marking_keeps_others_off_before_the_wait() {
    let tracker = Tracker::new();
    let a = tracker.try_begin(Span::new(0, 1), Class::Shared).expect("nothing there");
    let b = tracker.try_begin(Span::new(1, 2), Class::Shared).expect("nothing there");
    let marked = a.mark_serialising(Span::to_infinity(0));
    assert!(!marked.is_granted());
    assert!(tracker.try_begin(Span::new(7, 8), Class::Shared).is_err());
    let phases: Vec<_> = tracker.requests().iter().map(|request| request.phase).collect();
    assert_eq!(phases, [Phase::Parked, Phase::Running]);
    drop(b);
    let grant = ready(marked.wait());
    assert_eq!(grant.overtaken, Overtaken::No);
    assert_eq!(grant.guard.span(), Span::to_infinity(0));
    let again = grant.guard.mark_serialising(Span::new(3, 4));
    assert!(again.is_granted());
}

#[test]
#[should_panic(expected = "lies outside the grant")]
fn an_inner_request_outside_the_grant_is_a_bug() {
    let tracker = Tracker::new();
    let guard = tracker.try_begin(Span::new(0, 4), Class::Serialising).expect("nothing there");
    guard.assert_covers(Span::new(1, 4));
    guard.assert_covers(Span::new(3, 5));
}

#[test]
fn widenings_are_bounded() {
    let tracker = Tracker::new();
    let mut guard = tracker.try_begin(Span::new(0, 1), Class::Shared).expect("nothing there");
    for i in 0..u64::from(MAX_WIDENINGS) {
        guard = ready(guard.widen(Span::new(0, 2 + i))).guard;
        guard = ready(guard.widen(Span::new(0, 1))).guard;
    }
    let one_more = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        ready(guard.widen(Span::to_infinity(0))).guard
    }));
    assert!(one_more.is_err());
    tracker.self_check();
    assert_eq!(tracker.statistics().in_flight(), 0);
}

/// The warm path: one request among others, nothing serialising, then one serialising elsewhere.
#[test]
fn a_warm_tracker_allocates_nothing() {
    let tracker = Tracker::new();
    let round = |tracker: &Arc<Tracker>| {
        for i in 0..100 {
            drop(ready(tracker.begin(Span::at(i * 8, 8), Class::Shared)));
            drop(ready(tracker.begin(Span::at(i * 8, 8), Class::Serialising)));
        }
    };
    let others: Vec<_> =
        (0..64).map(|i| ready(tracker.begin(Span::at(10_000 + i, 1), Class::Shared))).collect();
    let far = ready(tracker.begin(Span::at(20_000, 1), Class::Serialising));
    round(&tracker);
    let measured = allocation_counter::measure(|| round(&tracker));
    assert_eq!(measured.count_total, 0, "{measured:?}");

    // Waiting, being woken and widening neither, once warm.
    let bell = Waker::from(Arc::new(Bell::default()));
    let wait = |tracker: &Arc<Tracker>| {
        let first = ready(tracker.begin(Span::new(0, 8), Class::Shared));
        let first = ready(first.widen(Span::new(0, 16))).guard;
        let mut second = tracker.begin(Span::new(0, 8), Class::Shared);
        assert!(poll(&mut second, &bell).is_pending());
        drop(first);
        assert!(poll(&mut second, &bell).is_ready());
    };
    wait(&tracker);
    let measured = allocation_counter::measure(|| wait(&tracker));
    assert_eq!(measured.count_total, 0, "{measured:?}");
    drop((others, far));
    assert_eq!(tracker.statistics(), Statistics { longest_wait: 1, ..tracker.statistics() });
}
