//! Many threads over few units: nobody runs beside a request in conflict, everybody ends, nothing is left.
#![cfg(not(any(blkring_loom, blkring_shuttle)))]

use blkring_tracker::{Class, Guard, Span, Tracker};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

const UNITS: u64 = 16;
const THREADS: u64 = 6;
const ROUNDS: u64 = 4_000;
/// Longer than any wait in a run that works, by far.
const PATIENCE: Duration = Duration::from_secs(20);

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => {
                let since = Instant::now();
                thread::park_timeout(PATIENCE);
                assert!(since.elapsed() < PATIENCE, "nobody woke it");
            }
        }
    }
}

/// Per unit: the number of shared holders, or -1 for a serialising one.
struct Units(Vec<AtomicI32>);

impl Units {
    fn held(&self, guard: &Guard) -> impl Iterator<Item = &AtomicI32> {
        let span = guard.span();
        (0..UNITS)
            .filter(move |&unit| span.overlaps(Span::at(unit, 1)))
            .map(|unit| &self.0[unit as usize])
    }

    /// Touches all units that the guard stands for, and checks that nobody in conflict does.
    fn touch(&self, guard: &Guard) {
        let by = if guard.class() == Class::Shared { 1 } else { -1 };
        for unit in self.held(guard) {
            let before = unit.fetch_add(by, Ordering::Relaxed);
            assert!(if by == 1 { before >= 0 } else { before == 0 }, "{guard:?} beside {before}");
        }
        thread::yield_now();
        for unit in self.held(guard) {
            unit.fetch_sub(by, Ordering::Relaxed);
        }
    }
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    fn span(&mut self) -> Span {
        let start = self.below(UNITS);
        if self.below(20) == 0 { Span::to_infinity(start) } else { Span::at(start, self.below(4)) }
    }
}

fn work(tracker: &Arc<Tracker>, units: &Units, seed: u64) {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1);
    for _ in 0..ROUNDS {
        let class = if dice.below(4) == 0 { Class::Serialising } else { Class::Shared };
        let begin = tracker.begin(dice.span(), class);
        if dice.below(10) == 0 {
            drop(begin);
            continue;
        }
        let guard = block_on(begin);
        units.touch(&guard);
        match dice.below(8) {
            0 => units.touch(&block_on(guard.widen(dice.span())).guard),
            1 => drop(guard.widen(dice.span())),
            2 => {
                let (Ok(guard) | Err((guard, _))) = guard.try_widen(dice.span());
                units.touch(&guard);
            }
            _ => {}
        }
    }
}

#[test]
fn nobody_runs_beside_a_request_in_conflict() {
    let tracker = Tracker::new();
    let units = Units((0..UNITS).map(|_| AtomicI32::new(0)).collect());
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let (tracker, units) = (&tracker, &units);
            scope.spawn(move || work(tracker, units, seed));
        }
    });
    tracker.self_check();
    let statistics = tracker.statistics();
    println!("{statistics:?}");
    assert_eq!((statistics.in_flight(), statistics.serialising), (0, 0));
    assert!(statistics.waits > 0, "the threads never met: this run shows nothing");
}
