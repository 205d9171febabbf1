//! A half-open range of bytes.

use std::fmt;

/// Half-open byte range `[start, end)`. An `end` of [`Span::INFINITY`] means "to the end of the address space,
/// however far the file grows".
///
/// A span whose `end` is not above its `start` is empty: it overlaps nothing, wherever it lies, and every span
/// contains it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// First byte.
    pub start: u64,
    /// First byte after the range.
    pub end: u64,
}

impl Span {
    /// The `end` of a span without an end.
    pub const INFINITY: u64 = u64::MAX;

    /// The bytes from `start` up to, not including, `end`; empty if `end <= start`.
    #[must_use]
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// `len` bytes at `offset`. A sum beyond the address space reaches to infinity.
    #[must_use]
    pub const fn at(offset: u64, len: u64) -> Self {
        Self { start: offset, end: offset.saturating_add(len) }
    }

    /// Everything from `start` on.
    #[must_use]
    pub const fn to_infinity(start: u64) -> Self {
        Self { start, end: Self::INFINITY }
    }

    /// Whether the span has no byte.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// Whether the span reaches to infinity.
    #[must_use]
    pub const fn is_infinite(self) -> bool {
        self.end == Self::INFINITY && !self.is_empty()
    }

    /// Length in bytes; 0 if empty. Of an infinite span: the distance to [`Span::INFINITY`].
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the two spans share a byte. An empty span shares none, even strictly inside another: the usual
    /// two comparisons alone would say otherwise.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        !self.is_empty() && !other.is_empty() && self.start < other.end && other.start < self.end
    }

    /// The smallest span that contains both. An empty one adds nothing to the other.
    #[must_use]
    pub fn hull(self, other: Self) -> Self {
        if other.is_empty() {
            return self;
        }
        if self.is_empty() {
            return other;
        }
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// Whether every byte of `other` lies in this span; always true of an empty `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        other.is_empty() || (self.start <= other.start && other.end <= self.end)
    }
}

impl fmt::Debug for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.end {
            Self::INFINITY => write!(f, "[{:#x}, inf)", self.start),
            end => write!(f, "[{:#x}, {end:#x})", self.start),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_needs_a_shared_byte() {
        let span = Span::new(10, 20);
        assert!(span.overlaps(Span::new(19, 20)));
        assert!(!span.overlaps(Span::new(20, 30)));
        assert!(!span.overlaps(Span::new(0, 10)));
        assert!(span.overlaps(Span::to_infinity(0)));
        assert!(!Span::at(15, 0).overlaps(span));
        assert!(!span.overlaps(Span::at(15, 0)));
        assert!(!Span::new(16, 14).overlaps(span));
    }

    #[test]
    fn hull_ignores_an_empty_side() {
        let span = Span::new(10, 20);
        assert_eq!(span.hull(Span::new(30, 40)), Span::new(10, 40));
        assert_eq!(span.hull(Span::new(12, 14)), span);
        assert_eq!(span.hull(Span::at(0, 0)), span);
        assert_eq!(Span::at(0, 0).hull(span), span);
        assert_eq!(span.hull(Span::to_infinity(5)), Span::to_infinity(5));
    }

    #[test]
    fn containing() {
        let span = Span::new(10, 20);
        assert!(span.contains(span));
        assert!(span.contains(Span::new(11, 19)));
        assert!(!span.contains(Span::new(9, 11)));
        assert!(!span.contains(Span::new(19, 21)));
        assert!(span.contains(Span::at(50, 0)));
        assert!(Span::to_infinity(10).contains(Span::to_infinity(11)));
    }

    #[test]
    fn lengths_saturate() {
        assert_eq!(Span::at(u64::MAX - 1, 10), Span::to_infinity(u64::MAX - 1));
        assert_eq!(Span::new(5, 3).len(), 0);
        assert_eq!(Span::at(3, 4).len(), 4);
        assert!(Span::to_infinity(0).is_infinite());
        assert!(!Span::at(u64::MAX, 0).is_infinite());
        assert_eq!(
            format!("{:?} {:?}", Span::at(0x10, 0x10), Span::to_infinity(0)),
            "[0x10, 0x20) [0x0, inf)"
        );
    }
}
