//! The schedules that broke earlier wordings of the rules, by number. One unit is one byte; tickets in the order of
//! the letters; "sh" is shared, "ser" serialising. Numbers 12 and 15 need a disk and live with the simulator.
#![cfg(not(any(blkring_loom, blkring_shuttle)))]

mod cancel;
mod desk;
mod edges;
mod hot_spot;
mod no_wait;
mod rmw;

use desk::Desk;

/// A snapshot of the wait set is unsafe: the set grows when another widens.
#[test]
fn schedule_01_a_wait_set_is_not_a_snapshot() {
    let mut desk = Desk::default();
    let a = desk.sh(0..1);
    let b = desk.ser(0..1);
    let c = desk.sh(0..1);
    assert!(!desk.runs(b) && !desk.runs(c));
    assert_eq!(desk.widen(a, 0..1), []);
    assert!(desk.runs(a), "nobody else runs there");
    assert_eq!(desk.end(b), [], "C now waits for A");
    assert_eq!(desk.end(a), [c]);
    assert_eq!(desk.end(c), []);
}

/// A widener waits for lower tickets that wait, not only for those that run.
#[test]
fn schedule_02_a_widener_waits_for_lower_waiting_tickets() {
    let mut desk = Desk::default();
    let a = desk.sh(0..1);
    let l = desk.ser(0..2);
    let b = desk.sh(2..3);
    assert!(desk.runs(b) && !desk.runs(l));
    assert_eq!(desk.widen(b, 1..3), []);
    assert!(!desk.runs(b), "parked behind L, which waits");
    assert_eq!(desk.end(a), [l]);
    assert_eq!(desk.end(l), [b]);
    assert!(!desk.overtaken(b), "L did not touch what B held");
    assert_eq!(desk.end(b), []);
}

/// Newcomers that slip in beside a waiting request and widen over it must not keep it from running.
#[test]
fn schedule_03_newcomers_that_widen_do_not_starve() {
    const NEWCOMERS: usize = 10_000;
    let mut desk = Desk::default();
    let old = desk.ser(1..2);
    let x = desk.sh(0..2);
    let first = desk.sh(0..1);
    assert!(desk.runs(first), "does not conflict with X");
    assert_eq!(desk.widen(first, 0..1), []);
    assert!(!desk.runs(first), "parks behind X");
    let table = &mut desk.table;
    let rest: Vec<_> = (1..NEWCOMERS)
        .map(|_| {
            let class = blkring_tracker::Class::Shared;
            let patience = blkring_tracker::table::Patience::Wait;
            match table.begin(desk::span(0..1), class, patience) {
                blkring_tracker::table::Begun::Waiting(id) => id,
                other => panic!("{other:?} although the first newcomer is parked there"),
            }
        })
        .collect();
    table.end(old);
    assert_eq!(table.woken().collect::<Vec<_>>(), [x], "X runs after the first end");
    table.end(x);
    assert_eq!(table.woken().collect::<Vec<_>>(), [first]);
    table.end(first);
    assert_eq!(table.woken().collect::<Vec<_>>(), rest);
    for id in rest {
        table.end(id);
    }
}

/// Three wideners, each in the way of the next, in every order: no deadlock, the lowest ticket first.
#[test]
fn schedule_04_three_wideners_in_a_ring() {
    for order in cancel::ORDERS {
        let mut desk = Desk::default();
        let ids = [desk.sh(0..1), desk.sh(0..2), desk.sh(1..2)];
        let asked = [0..2, 0..2, 1..2];
        let [a, b, c] = ids;
        for (step, i) in order.into_iter().enumerate() {
            let woken = desk.widen(ids[i], asked[i].clone());
            // The last call admits A, unless it is A's own, which then goes on at once.
            let admits = step == 2 && i != 0;
            assert_eq!(woken, if admits { vec![a] } else { vec![] }, "order {order:?}");
        }
        assert!(desk.runs(a) && !desk.runs(b) && !desk.runs(c));
        assert_eq!(desk.end(a), [b]);
        assert_eq!(desk.end(b), [c]);
        assert_eq!(desk.end(c), []);
    }
}

/// Of two wideners over each other the lower ticket goes first, whoever asks first.
#[test]
fn schedule_05_two_wideners_over_each_other() {
    let mut desk = Desk::default();
    let a = desk.sh(0..1);
    let b = desk.sh(0..1);
    assert_eq!(desk.widen(a, 0..1), []);
    assert!(!desk.runs(a), "B runs");
    assert_eq!(desk.widen(b, 0..1), [a], "B's own call admits A");
    assert!(!desk.runs(b));
    assert!(!desk.overtaken(a));
    assert_eq!(desk.end(a), [b]);
    assert!(desk.overtaken(b), "A ran on what B held");
    assert_eq!(desk.end(b), []);
}

/// Through a lower ticket that widens, a request may wait for one that came later.
#[test]
fn schedule_06_waiting_through_another_for_a_later_one() {
    let mut desk = Desk::default();
    let a = desk.sh(0..1);
    let x = desk.ser(0..1);
    let b = desk.sh(1..2);
    assert_eq!(desk.widen(a, 0..2), []);
    assert!(!desk.runs(a), "parked for B");
    assert!(!desk.runs(x));
    let newcomer = desk.sh(1..2);
    assert!(!desk.runs(newcomer), "waits for A");
    assert_eq!(desk.end(b), [a]);
    assert!(!desk.overtaken(a));
    assert_eq!(desk.end(a), [x, newcomer]);
    assert_eq!(desk.end(x), []);
    assert_eq!(desk.end(newcomer), []);
}
