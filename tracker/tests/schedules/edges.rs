//! Empty ranges, the far end of the address space.

use crate::desk::{Desk, span};
use blkring_tracker::{Class, Span};

/// An empty range conflicts with nothing, even strictly inside another; widened to infinity it does.
#[test]
fn schedule_13_an_empty_range_waits_for_nothing() {
    let mut desk = Desk::default();
    let a = desk.ser(5..5);
    let b = desk.ser(0..10);
    assert!(desk.runs(a) && desk.runs(b));
    let c = desk.sh(5..5);
    assert!(desk.runs(c));
    assert_eq!(desk.widen_span(a, Span::to_infinity(5)), []);
    assert!(!desk.runs(a));
    assert_eq!(desk.end(b), [a]);
    assert!(!desk.overtaken(a), "an empty grant teaches nothing");
    assert_eq!(desk.end(c), []);
    assert_eq!(desk.end(a), []);
}

#[test]
fn schedule_13_far_offsets() {
    const TOP: u64 = 1 << 63;
    const GIB: u64 = 1 << 30;
    let mut desk = Desk::default();
    let last = desk.begin(Span::new(TOP - 2, TOP - 1), Class::Serialising);
    let to_end = desk.begin(Span::to_infinity(TOP - 1), Class::Serialising);
    assert!(desk.runs(last) && desk.runs(to_end), "they only touch");
    let beyond = desk.begin(Span::at(u64::MAX - 2, 1), Class::Shared);
    assert!(!desk.runs(beyond));

    let low = desk.begin(Span::at(GIB, 4096), Class::Serialising);
    let same_low_bits = desk.begin(Span::at((4 << 30) + GIB, 4096), Class::Serialising);
    assert!(desk.runs(low) && desk.runs(same_low_bits), "equal in their low 32 bits only");
    let across = desk.begin(Span::at((4 << 30) - 1, 2), Class::Serialising);
    let meets = desk.begin(Span::at(4 << 30, 1), Class::Shared);
    assert!(desk.runs(across) && !desk.runs(meets));

    assert_eq!(desk.widen_span(last, Span::to_infinity(TOP - 2)), []);
    assert!(!desk.runs(last));
    assert_eq!(desk.end(to_end), [last]);
    assert_eq!(desk.end(last), [beyond]);
    assert_eq!(desk.end(across), [meets]);
    for id in [beyond, low, same_low_bits, meets] {
        assert_eq!(desk.end(id), []);
    }
}

/// The hull bridges the gap between what is held and what is asked for.
#[test]
fn schedule_13_the_hull_covers_the_gap() {
    let mut desk = Desk::default();
    let a = desk.sh(0..1);
    let b = desk.sh(5..6);
    assert_eq!(desk.widen(a, 9..10), []);
    assert!(!desk.runs(a), "B lies in the gap");
    assert_eq!(desk.end(b), [a]);
    let request = *desk.table.requests().next().expect("A");
    assert_eq!((request.span, request.class), (span(0..10), Class::Serialising));
    assert_eq!(desk.end(a), []);
}

/// A request that has ended is not mistaken for the one that has its slot now.
#[test]
#[should_panic(expected = "is not in flight")]
fn a_stale_id_is_recognised() {
    let mut desk = Desk::default();
    let gone = desk.sh(0..1);
    desk.end(gone);
    desk.sh(0..1);
    desk.end(gone);
}
