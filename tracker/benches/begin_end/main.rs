//! One begin and one end with others in flight, lock and waker included, beside a linear list in the same run.
//!
//! `cargo bench -p blkring-tracker`
#![allow(missing_docs, reason = "criterion's macros generate undocumented functions")]

mod linear;

use blkring_tracker::sync::Arc;
use blkring_tracker::{Begin, Class, Guard, Span, Tracker};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main};
use linear::Linear;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

const BLOCK: u64 = 4096;
const IN_FLIGHT: [usize; 4] = [0, 64, 1024, 16_384];
const CONFLICTS: [usize; 3] = [8, 64, 1024];

/// Which of the requests in flight serialise. None of them ever conflicts.
#[derive(Clone, Copy)]
enum Mix {
    None,
    /// A single one, far away, in flight all the time.
    OneElsewhere,
    OnePercent,
}

impl Mix {
    const ALL: [(&str, Self); 3] = [
        ("none serialising", Self::None),
        ("one elsewhere", Self::OneElsewhere),
        ("one percent", Self::OnePercent),
    ];

    fn class(self, turn: u64) -> Class {
        match self {
            Self::OnePercent if turn.is_multiple_of(100) => Class::Serialising,
            _ => Class::Shared,
        }
    }
}

/// Blocks of a scattered permutation, so that those in flight together are distinct and in no order.
fn block(turn: u64) -> Span {
    const SLOTS: u64 = 1 << 20;
    Span::at(turn.wrapping_mul(0x9E37_79B1) % SLOTS * BLOCK, BLOCK)
}

const FAR: Span = Span::at(1 << 50, BLOCK);

fn poll(begin: &mut Begin) -> Poll<Guard> {
    Pin::new(begin).poll(&mut Context::from_waker(Waker::noop()))
}

fn admitted(mut begin: Begin) -> Guard {
    match poll(&mut begin) {
        Poll::Ready(guard) => guard,
        Poll::Pending => panic!("nothing is in its way"),
    }
}

/// Steady state: the oldest ends, a new one begins.
fn tracker_steady(group: &mut BenchmarkGroup<'_, WallTime>, mix: Mix, in_flight: usize) {
    let tracker = Tracker::new();
    let begin = |turn: u64| admitted(tracker.begin(block(turn), mix.class(turn)));
    let far =
        matches!(mix, Mix::OneElsewhere).then(|| admitted(tracker.begin(FAR, Class::Serialising)));
    let mut turn = 0;
    let mut guards: VecDeque<Guard> = VecDeque::new();
    while guards.len() < in_flight {
        guards.push_back(begin(turn));
        turn += 1;
    }
    group.bench_function(BenchmarkId::new("tracker", in_flight), |b| {
        b.iter(|| {
            guards.push_back(begin(turn));
            drop(guards.pop_front());
            turn += 1;
        });
    });
    drop(far);
}

fn linear_steady(group: &mut BenchmarkGroup<'_, WallTime>, mix: Mix, in_flight: usize) {
    let linear = Linear::default();
    if matches!(mix, Mix::OneElsewhere) {
        linear.begin(FAR, Class::Serialising);
    }
    let mut turn = 0;
    let mut ids = VecDeque::new();
    while ids.len() < in_flight {
        ids.push_back(linear.begin(block(turn), mix.class(turn)));
        turn += 1;
    }
    group.bench_function(BenchmarkId::new("linear", in_flight), |b| {
        b.iter(|| {
            ids.push_back(linear.begin(block(turn), mix.class(turn)));
            linear.end(ids.pop_front().expect("just pushed"));
            turn += 1;
        });
    });
}

fn steady(c: &mut Criterion) {
    for (name, mix) in Mix::ALL {
        let mut group = c.benchmark_group(name);
        for in_flight in IN_FLIGHT {
            tracker_steady(&mut group, mix, in_flight);
            linear_steady(&mut group, mix, in_flight);
        }
        group.finish();
    }
}

/// `k` serialising requests on one block: the one that runs ends, the next is woken and polled, a new one queues.
fn hot_spot(c: &mut Criterion) {
    let mut group = c.benchmark_group("hot spot");
    for k in CONFLICTS {
        group.bench_function(BenchmarkId::new("tracker", k), |b| {
            let tracker = Tracker::new();
            let mut queue: VecDeque<Begin> = VecDeque::new();
            let enter = |tracker: &Arc<Tracker>| {
                let mut begin = tracker.begin(block(0), Class::Serialising);
                assert!(poll(&mut begin).is_pending());
                begin
            };
            let mut runs = Some(admitted(tracker.begin(block(0), Class::Serialising)));
            while queue.len() < k - 1 {
                queue.push_back(enter(&tracker));
            }
            b.iter(|| {
                queue.push_back(enter(&tracker));
                let next = queue.pop_front().expect("just pushed");
                // The end of the old one admits the next.
                drop(runs.take());
                runs = Some(admitted(next));
            });
        });
        group.bench_function(BenchmarkId::new("linear", k), |b| {
            let linear = Linear::default();
            let mut ids: VecDeque<_> =
                (0..k).map(|_| linear.begin(block(0), Class::Serialising)).collect();
            b.iter(|| {
                ids.push_back(linear.begin(block(0), Class::Serialising));
                linear.end(ids.pop_front().expect("just pushed"));
            });
        });
    }
    group.finish();
}

/// Widening to infinity over `n` running requests, parked, then withdrawn.
fn widen(c: &mut Criterion) {
    let mut group = c.benchmark_group("widen to infinity and withdraw");
    for n in IN_FLIGHT {
        let tracker = Tracker::new();
        let _running: Vec<_> =
            (0..n).map(|i| admitted(tracker.begin(block(i as u64), Class::Shared))).collect();
        group.bench_function(BenchmarkId::new("tracker", n), |b| {
            b.iter(|| {
                let guard = admitted(tracker.begin(FAR, Class::Shared));
                drop(guard.widen(Span::to_infinity(0)));
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(700))
        .sample_size(20);
    targets = steady, hot_spot, widen
}
criterion_main!(benches);
