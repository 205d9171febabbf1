//! An op that the disk has accepted and not completed.

use crate::lane::Lane;
use crate::op::Op;
use crate::uring::MAX_SEGMENTS;

use super::log::OpKind;

/// What an op does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Begin,
    Land,
    Complete,
}

pub(super) struct Pending {
    pub(super) id: u64,
    /// Index among the files of the disk.
    pub(super) file: usize,
    pub(super) kind: OpKind,
    /// Of the open file that it came through, in bytes.
    pub(super) alignment: u64,
    pub(super) memory_alignment: usize,
    pub(super) next: Step,
    /// Whether it has made the step `Begin`; few kinds have one.
    pub(super) begun: bool,
    /// For a sync: the landings that it covers.
    pub(super) covers: u64,
    /// For a fallocate of the old kernel that will change the size: to what.
    pub(super) target: Option<u64>,
    /// When it landed.
    pub(super) stamp: u64,
    /// What its issuer will be told.
    pub(super) result: i32,
    /// Where it came from, and by which key it is known there.
    pub(super) issuer: (Lane, u64),
    pub(super) op: Op,
}

impl Pending {
    pub(super) fn offset(&self) -> u64 {
        self.op.offset
    }

    pub(super) fn len(&self) -> u64 {
        self.op.len
    }

    pub(super) fn end(&self) -> u64 {
        self.op.offset.saturating_add(self.op.len)
    }

    /// Whether direct I/O of this alignment would take `len` bytes of it.
    pub(super) fn is_aligned(&self, len: u64) -> bool {
        let Some(mem) = &self.op.mem else { return true };
        (self.offset() | len) & (self.alignment - 1) == 0 && mem.is_aligned(self.memory_alignment)
    }

    /// Bytes that one call can move: of its memory only so many segments are looked at.
    pub(super) fn transferable(&self) -> u64 {
        let Some(mem) = &self.op.mem else { return self.len() };
        mem.segments().take(MAX_SEGMENTS).map(|segment| segment.len as u64).sum()
    }
}
