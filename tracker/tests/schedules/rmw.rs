//! Two read-modify-writes over each other's blocks, down to the bytes.

use blkring_tracker::{Class, Grant, Overtaken, Span, Tracker};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

const UNIT: usize = 8;

/// Whether a widener that was overtaken reads again.
#[derive(Clone, Copy, PartialEq)]
enum Reader {
    Heeds,
    Ignores,
}

fn units(range: std::ops::Range<u64>) -> Span {
    Span::new(range.start * UNIT as u64, range.end * UNIT as u64)
}

fn poll(future: Pin<&mut impl Future<Output = Grant>>) -> Poll<Grant> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A writes the first byte of unit 1 and B the last, each by reading the unit, changing it and writing it whole. B
/// has read when it finds that it needs unit 2 as well. Returns unit 1 and what B was told.
fn two_writers(reader: Reader) -> ([u8; UNIT], Overtaken) {
    let tracker = Tracker::new();
    let mut unit = [0u8; UNIT];
    let a = tracker.try_begin(units(0..1), Class::Serialising).expect("nothing there");
    let b = tracker.try_begin(units(1..2), Class::Serialising).expect("another unit");

    let mut a = Box::pin(a.widen(units(0..2)));
    assert!(poll(a.as_mut()).is_pending(), "B runs there");
    let mut bounce_of_b = unit;

    let mut b = Box::pin(b.widen(units(1..3)));
    assert!(poll(b.as_mut()).is_pending(), "A has the lower ticket");
    let Poll::Ready(granted) = poll(a.as_mut()) else { panic!("B's call admits A") };
    assert_eq!(granted.overtaken, Overtaken::No);
    let mut bounce_of_a = unit;
    bounce_of_a[0] = 0xA;
    unit = bounce_of_a;
    drop(granted);

    let Poll::Ready(granted) = poll(b.as_mut()) else { panic!("A has ended") };
    if granted.overtaken == Overtaken::Yes && reader == Reader::Heeds {
        bounce_of_b = unit;
    }
    bounce_of_b[UNIT - 1] = 0xB;
    unit = bounce_of_b;
    assert_eq!(granted.guard.span(), units(1..3));
    (unit, granted.overtaken)
}

#[test]
fn schedule_08_overtaken_reads_again() {
    let (unit, overtaken) = two_writers(Reader::Heeds);
    assert_eq!(overtaken, Overtaken::Yes);
    assert_eq!((unit[0], unit[UNIT - 1]), (0xA, 0xB), "the bytes of both survive");
}

/// The same run without heeding it loses A's byte: the schedule can fail.
#[test]
fn schedule_08_ignoring_it_loses_bytes() {
    let (unit, _) = two_writers(Reader::Ignores);
    assert_eq!((unit[0], unit[UNIT - 1]), (0, 0xB));
}
