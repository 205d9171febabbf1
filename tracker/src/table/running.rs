//! The running shared requests: dense arrays, passed over in one sweep when a serialising request arrives.

use crate::Span;

/// Spans of the running shared requests, none of them empty, in no order. Adding and removing is constant work;
/// shared requests never look here.
#[derive(Debug, Default)]
pub(super) struct Running {
    starts: Vec<u64>,
    ends: Vec<u64>,
    slots: Vec<u32>,
}

impl Running {
    /// Adds the request in `slot` and returns its position.
    pub(super) fn push(&mut self, span: Span, slot: u32) -> u32 {
        debug_assert!(!span.is_empty());
        let position = u32::try_from(self.slots.len()).expect("as many as slots, which are u32");
        self.starts.push(span.start);
        self.ends.push(span.end);
        self.slots.push(slot);
        position
    }

    /// Removes what is at `position`; returns the slot of the request that moved there, if one did.
    pub(super) fn remove(&mut self, position: u32) -> Option<u32> {
        let position = position as usize;
        self.starts.swap_remove(position);
        self.ends.swap_remove(position);
        self.slots.swap_remove(position);
        self.slots.get(position).copied()
    }

    /// How many share a byte with `span`.
    pub(super) fn count(&self, span: Span) -> u32 {
        if span.is_empty() {
            return 0;
        }
        // Counting without a branch lets the compiler use vector instructions.
        let overlaps = |(&start, &end)| u32::from((start < span.end) & (span.start < end));
        self.starts.iter().zip(&self.ends).map(overlaps).sum()
    }

    /// What is kept at `position`, for the self-check.
    pub(super) fn get(&self, position: u32) -> Option<(Span, u32)> {
        let at = position as usize;
        Some((Span::new(*self.starts.get(at)?, *self.ends.get(at)?), *self.slots.get(at)?))
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
}
