//! Many requests on one block.

use crate::desk::Desk;
use blkring_tracker::table::Statistics;

const MANY: usize = 64;

fn adds_up(statistics: &Statistics) {
    assert_eq!(
        statistics.at_once + statistics.waited,
        statistics.ended
            + statistics.cancelled
            + statistics.running
            + statistics.waiting
            + statistics.parked
    );
}

#[test]
fn schedule_14_serialising_requests_on_one_block_go_in_order() {
    let mut desk = Desk::default();
    let ids: Vec<_> = (0..MANY)
        .map(|_| {
            let id = desk.ser(0..1);
            adds_up(&desk.table.statistics());
            id
        })
        .collect();
    let statistics = desk.table.statistics();
    assert_eq!((statistics.at_once, statistics.waited), (1, MANY as u64 - 1));
    assert_eq!((statistics.running, statistics.waiting), (1, MANY as u64 - 1));
    for (i, id) in ids.iter().enumerate() {
        let next: Vec<_> = ids.get(i + 1).copied().into_iter().collect();
        assert_eq!(desk.end(*id), next, "each end wakes exactly the next");
        adds_up(&desk.table.statistics());
    }
    let statistics = desk.table.statistics();
    assert_eq!(statistics.ended, MANY as u64);
    assert_eq!(statistics.waits, MANY as u64 - 1);
    assert_eq!(statistics.longest_wait, MANY as u64 - 1, "the last saw all others end");
}

#[test]
fn schedule_14_one_end_wakes_all_shared_ones() {
    let mut desk = Desk::default();
    let first = desk.ser(0..1);
    let ids: Vec<_> = (0..MANY).map(|_| desk.sh(0..1)).collect();
    assert_eq!(desk.end(first), ids);
    let statistics = desk.table.statistics();
    assert_eq!((statistics.running, statistics.waited), (MANY as u64, MANY as u64));
    adds_up(&statistics);
    for id in ids {
        assert_eq!(desk.end(id), []);
        adds_up(&desk.table.statistics());
    }
    assert_eq!(desk.table.statistics().longest_wait, 1);
}

/// A withdrawn wait counts as a wait too.
#[test]
fn schedule_14_statistics_of_withdrawals() {
    let mut desk = Desk::default();
    let a = desk.ser(0..1);
    let b = desk.ser(1..2);
    let c = desk.ser(0..2);
    assert_eq!(desk.table.statistics().serialising, 3);
    assert_eq!(desk.end(b), []);
    assert_eq!(desk.end(c), []);
    let statistics = desk.table.statistics();
    assert_eq!((statistics.ended, statistics.cancelled), (1, 1));
    assert_eq!((statistics.longest_wait, statistics.serialising), (1, 1));
    adds_up(&statistics);
    assert_eq!(desk.end(a), []);
}
