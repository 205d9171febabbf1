//! Calls that will not wait, and what they may not change.

use crate::desk::{Desk, span};
use blkring_tracker::Span;
use blkring_tracker::table::{Begun, Class, Patience, Request, Statistics, Table, Widened};

fn everything(table: &Table) -> (Vec<Request>, Statistics) {
    (table.requests().copied().collect(), table.statistics())
}

/// Asserts that nothing differs from `before` but one more busy answer.
fn only_busy_changed(before: &(Vec<Request>, Statistics), table: &Table) {
    let (requests, statistics) = everything(table);
    assert_eq!(requests, before.0);
    assert_eq!(statistics, Statistics { busy: before.1.busy + 1, ..before.1 });
}

/// Who will not wait does not pass one that waits, and leaves no trace; who will, queues behind it.
#[test]
fn schedule_07_no_wait_does_not_pass_a_waiting_request() {
    let mut desk = Desk::default();
    let a = desk.sh(0..1);
    let x = desk.ser(0..1);
    let before = everything(&desk.table);
    let begun = desk.table.begin(span(0..1), Class::Shared, Patience::NoWait);
    assert_eq!(begun, Begun::Busy);
    desk.table.self_check();
    only_busy_changed(&before, &desk.table);

    let ordinary = desk.sh(0..1);
    assert_eq!(ordinary.ticket(), x.ticket() + 1, "the busy one drew no ticket");
    assert!(!desk.runs(ordinary));
    assert_eq!(desk.end(a), [x]);
    assert_eq!(desk.end(x), [ordinary]);
    let beside = desk.table.begin(span(0..1), Class::Shared, Patience::NoWait);
    let Begun::Admitted(beside) = beside else { panic!("nothing in the way: {beside:?}") };
    assert_eq!(desk.end(ordinary), []);
    assert_eq!(desk.end(beside), []);
}

/// Asking for what is held is granted at once although others wait for it; asking for more is not.
#[test]
fn schedule_09_asking_for_what_is_held() {
    let mut desk = Desk::default();
    let a = desk.ser(0..1);
    let b = desk.ser(0..1);
    let c = desk.sh(7..8);
    assert_eq!(desk.widen(a, 0..1), []);
    assert!(desk.runs(a) && !desk.runs(b));
    assert_eq!(desk.widen_span(a, Span::to_infinity(0)), []);
    assert!(!desk.runs(a), "parked for C");
    assert!(!desk.runs(b), "a parked lower ticket keeps its place");
    assert_eq!(desk.end(c), [a]);
    assert!(!desk.overtaken(a));
    assert_eq!(desk.end(a), [b]);
    assert_eq!(desk.end(b), []);
}

/// A given smaller range does not shrink the grant.
#[test]
fn schedule_09_asking_for_less_keeps_what_is_held() {
    let mut desk = Desk::default();
    let a = desk.ser(0..4);
    assert_eq!(desk.widen(a, 1..2), []);
    let b = desk.ser(3..4);
    assert!(!desk.runs(b));
    assert_eq!(desk.end(a), [b]);
    assert_eq!(desk.end(b), []);
}

/// A widening that will not wait meets a running request and, separately, a waiting lower ticket.
#[test]
fn schedule_10_widening_without_waiting() {
    let mut desk = Desk::default();
    let blocker = desk.sh(10..11);
    let lower = desk.ser(10..12);
    let a = desk.sh(0..1);
    let running = desk.sh(1..2);
    let waiting = desk.ser(0..1);
    for asked in [span(0..2), span(0..1).hull(span(11..12))] {
        let before = everything(&desk.table);
        assert_eq!(desk.table.widen(a, asked, Patience::NoWait), Widened::Busy);
        assert_eq!(desk.table.woken().count(), 0);
        desk.table.self_check();
        only_busy_changed(&before, &desk.table);
        assert!(desk.runs(a));
    }
    // The waiting lower ticket alone is enough.
    assert_eq!(desk.end(running), []);
    let before = everything(&desk.table);
    assert_eq!(desk.table.widen(a, span(0..12), Patience::NoWait), Widened::Busy);
    only_busy_changed(&before, &desk.table);
    // Nothing in the way: granted, and the higher ticket still waits.
    assert_eq!(desk.table.widen(a, span(0..2), Patience::NoWait), Widened::AtOnce);
    desk.table.self_check();
    assert!(!desk.runs(waiting));
    assert_eq!(desk.end(a), [waiting]);
    assert_eq!(desk.end(waiting), []);
    assert_eq!(desk.end(blocker), [lower]);
    assert_eq!(desk.end(lower), []);
}
