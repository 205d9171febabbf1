//! What happened on the disk, in order.

use std::fmt;
use std::sync::Arc;

use crate::op::{Allocate, Verb};
use crate::sys::device::Change;

/// What an op of the disk does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OpKind {
    /// Reads bytes.
    Read,
    /// Writes bytes into the volatile cache.
    Write,
    /// Writes bytes that are durable at completion.
    WriteDurable,
    /// fdatasync.
    Sync,
    /// Plain fallocate.
    Grow,
    /// fallocate with ZERO_RANGE.
    ZeroRange,
    /// fallocate with PUNCH_HOLE and KEEP_SIZE.
    PunchHole,
    /// ftruncate; `offset` is the new size.
    Truncate,
    /// A discard of a block device by a command of the ring: the range reads as anything.
    Discard,
    /// The same by a call (BLKDISCARD).
    DiscardCall,
    /// Zeroing of a block device by a call (BLKZEROOUT).
    ZeroOutCall,
}

impl OpKind {
    pub(super) fn of(verb: Verb) -> Self {
        match verb {
            Verb::Read => OpKind::Read,
            Verb::Write => OpKind::Write,
            Verb::WriteDurable => OpKind::WriteDurable,
            Verb::Sync => OpKind::Sync,
            Verb::Allocate(Allocate::Grow) => OpKind::Grow,
            Verb::Allocate(Allocate::ZeroRange) => OpKind::ZeroRange,
            Verb::Allocate(Allocate::PunchHole | Allocate::Discard) => OpKind::PunchHole,
            Verb::Truncate => OpKind::Truncate,
            Verb::Discard => OpKind::Discard,
            Verb::Call(Change::Discard) => OpKind::DiscardCall,
            Verb::Call(Change::ZeroOut) => OpKind::ZeroOutCall,
        }
    }
}

/// How far an op has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The disk has it. From here on a crash may leave any part of it.
    Accepted,
    /// An fdatasync knows what it covers; a fallocate of the old kernel knows its target size.
    Begun,
    /// Its effect is there for everybody to see; its issuer does not know yet.
    Landed,
    /// Its issuer was told, with this result.
    Completed(i32),
}

/// One step of one op.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The op's number, in order of acceptance.
    pub op: u64,
    /// The step that it made.
    pub stage: Stage,
    /// What it does.
    pub kind: OpKind,
    /// To which file.
    pub file: Arc<str>,
    /// Where, in bytes; the new size for a truncation.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

impl Event {
    /// Whether its range shares a byte with [start, end).
    pub fn touches(&self, start: u64, end: u64) -> bool {
        self.offset < end && start < self.offset + self.len
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { op, stage, kind, file, offset, len } = self;
        write!(f, "#{op} {kind:?} {file} {offset}+{len}: {stage:?}")
    }
}
