//! Futures and receipts dropped at every point: what they began goes on, and nobody gets in its way.

use std::sync::Arc;

use blkring_engine::sim::{Event, Matcher, OpKind, Point, Stage};
use blkring_engine::{Action, Flags, Lane, Request, Storage};

use super::setup::{Bench, Droppable, Setup, all_requests, attached, mem};

const BLOCK: u64 = 4096;

/// A request, done directly on a storage.
async fn perform(storage: Arc<Storage>, lane: Lane, request: Request) {
    let (offset, flags) = (request.offset, request.flags);
    match request.action {
        Action::Read(mem) => storage.read(&lane, offset, &mem).await.unwrap(),
        Action::Write(mem) => storage.write(&lane, offset, &mem, flags).await.unwrap(),
        Action::WriteZeroes(len) => {
            storage.write_zeroes(&lane, offset, len, flags).await.unwrap();
        }
        Action::Discard(len) => storage.discard(&lane, offset, len).await.unwrap(),
        _ => unreachable!("not among those tested"),
    }
}

fn bench(seed: u64) -> Bench {
    Setup::new(seed, &[0x11; 4 * BLOCK as usize]).aligned(BLOCK).queues(2).build()
}

/// Drops the future of `request` after its poll number `polls`, with whatever op it has in flight held at `point`,
/// and then has a read-modify-write of the same block wait for that op. Gives how many ops were in flight, or `None`
/// if the request was over before.
fn dropped_after(polls: usize, request: &Request, point: Point) -> Option<usize> {
    let mut bench = bench(polls as u64);
    let (storage, lane) = (bench.storage.clone(), bench.lanes[0].clone());
    let first = Droppable::start(&mut bench.world, 0, perform(storage, lane, request.clone()));
    let reached = || first.polls.get() == polls || first.is_over();
    bench.world.run(reached, 1000).done();
    if first.is_over() {
        return None;
    }
    bench.disk.hold("first", Matcher::any(), point);
    bench.world.settle();
    if first.is_over() {
        return None;
    }
    // The sync of a durable zero-write holds no range.
    let holding = |op: &Event| (op.kind != OpKind::Sync).then_some(op.op);
    let in_flight: Vec<u64> = bench.disk.pending().iter().filter_map(holding).collect();
    let before = bench.disk.steps();
    first.drop_now();
    let second = bench.start(1, |storage, lane| async move {
        storage.write(&lane, BLOCK + 700, &mem(100, 0x77), Flags::empty()).await
    });
    bench.world.settle();
    assert!(second.borrow().is_none(), "the second cannot be over: everything is held");
    let news = bench.disk.log_since(before);
    let accepted: Vec<u64> =
        news.iter().filter(|e| e.stage == Stage::Accepted).map(|e| e.op).collect();
    if !in_flight.is_empty() {
        assert_eq!(accepted, [], "{request:?} dropped after poll {polls} at {point:?}: {news:#?}");
        assert_eq!(bench.storage.statistics().waiting, 1);
    }
    bench.disk.release("first");
    bench.world.settle();
    second.take().unwrap().unwrap();
    let log = bench.disk.log();
    let completed = log.iter().rposition(|e| in_flight.contains(&e.op));
    let began = log.iter().position(|e| e.op > *in_flight.last().unwrap_or(&u64::MAX));
    assert!(in_flight.is_empty() || completed < began);
    let content = bench.disk.contents(super::setup::FILE);
    let at = BLOCK as usize + 700;
    assert_eq!(content[at..at + 100], [0x77; 100]);
    assert_eq!(content[..BLOCK as usize], [0x11; BLOCK as usize]);
    bench.assert_idle();
    Some(in_flight.len())
}

#[test]
fn schedule_12() {
    for request in all_requests(BLOCK) {
        let mut in_flight = 0;
        for point in [Point::Begin, Point::Land, Point::Complete] {
            for polls in 0.. {
                match dropped_after(polls, &request, point) {
                    Some(ops) => in_flight += ops,
                    None => break,
                }
            }
        }
        assert!(in_flight >= 2, "{request:?} was never dropped with an op in flight");
    }
}

#[test]
fn a_receipt_dropped_at_any_step_cancels_nothing() {
    let mut dropped = 0;
    for step in 0..40 {
        let content = vec![0x11; 4 * BLOCK as usize];
        let (mut world, handles, raw) =
            attached(Setup::new(step, &content).aligned(BLOCK).queues(2));
        let receipt = handles[0].submit(Request::write(BLOCK + 5, mem(5000, 1))).unwrap();
        let other = handles[1].submit(Request::write(BLOCK + 5005, mem(50, 2))).unwrap();
        let mut steps = 0;
        let until = || {
            steps += 1;
            steps > step
        };
        assert!(!matches!(world.run(until, 100), blkring_engine::sim::Outcome::OutOfSteps));
        dropped += usize::from(world.queue(0).unfinished() > 0);
        drop((receipt, other));
        world.drain().done();
        let content = world.disk().contents(super::setup::FILE);
        let at = BLOCK as usize + 5;
        assert_eq!(content[at..at + 5000], [1; 5000]);
        assert_eq!(content[at + 5000..at + 5050], [2; 50]);
        assert_eq!((content[at - 1], content[at + 5050]), (0x11, 0x11));
        assert_eq!(raw.storage().statistics().running, 0);
        assert_eq!(raw.storage().buffers().taken(), 0);
    }
    assert!(dropped >= 10, "only {dropped} receipts were dropped before their answer");
}

#[test]
fn a_removed_queue_leaves_its_ops_their_range() {
    let mut bench = bench(1);
    bench.disk.hold("first", Matcher::any(), Point::Land);
    let first = bench.start(0, |storage, lane| async move {
        storage.write(&lane, BLOCK + 5, &mem(100, 1), Flags::empty()).await
    });
    bench.world.settle();
    assert_eq!(bench.disk.held("first"), 1);
    drop(bench.world.remove(0));
    let second = bench.start(1, |storage, lane| async move {
        storage.write(&lane, BLOCK + 5, &mem(10, 2), Flags::empty()).await
    });
    bench.world.settle();
    assert!(second.borrow().is_none());
    assert_eq!(bench.disk.pending().len(), 1, "the range is still the first one's");
    bench.disk.release("first");
    bench.world.settle();
    second.take().unwrap().unwrap();
    assert!(first.borrow().is_none());
    bench.lanes.clear();
    bench.assert_idle();
}
