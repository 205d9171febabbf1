//! What a test sees of operations: each as it is handed to the kernel and as it comes back.
//!
//! A judge of the order of operations that knows nothing of the tracker can tell that two ran side by side which must
//! not, whether or not the kernel at hand did any harm with them.

use std::fmt;
use std::sync::Arc;

use crate::op::{Allocate, Op, Verb};

/// Somebody who sees every operation of a storage.
///
/// Both functions are called while the engine holds a lock of its own. They must not call the engine.
pub trait Watch: Send + Sync {
    /// The operation may reach the kernel from now on. Gives the number that its end is told with.
    fn begins(&self, op: &Watched) -> u64;

    /// The kernel has answered, and nobody was told of it yet: a count or zero, or a negative error number.
    fn ends(&self, number: u64, result: i32);
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchedKind {
    /// Reads bytes.
    Read,
    /// Writes bytes.
    Write,
    /// Writes bytes that are durable when it ends.
    WriteDurable,
    /// fdatasync.
    Sync,
    /// fallocate that makes the file longer if it ends beyond its end.
    Allocate,
    /// Calls that make a range read as zeros or give it back, and never change the size.
    Punch,
    /// ftruncate to `offset`.
    Truncate,
}

/// An operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watched {
    /// What it does.
    pub kind: WatchedKind,
    /// First byte.
    pub offset: u64,
    /// Bytes; 0 where there is no range.
    pub len: u64,
}

impl fmt::Display for Watched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Watched { kind, offset, len } = self;
        match kind {
            WatchedKind::Sync => f.write_str("fdatasync"),
            WatchedKind::Truncate => write!(f, "ftruncate to {offset}"),
            _ => write!(f, "{kind:?} [{offset}, {})", offset + len),
        }
    }
}

impl Watched {
    fn of(op: &Op) -> Self {
        let kind = match op.verb {
            Verb::Read => WatchedKind::Read,
            Verb::Write => WatchedKind::Write,
            Verb::WriteDurable => WatchedKind::WriteDurable,
            Verb::Sync => WatchedKind::Sync,
            Verb::Allocate(Allocate::Grow | Allocate::ZeroRange) => WatchedKind::Allocate,
            Verb::Allocate(Allocate::PunchHole | Allocate::Discard)
            | Verb::Discard
            | Verb::Call(_) => WatchedKind::Punch,
            Verb::Truncate => WatchedKind::Truncate,
        };
        Watched { kind, offset: op.offset, len: op.len }
    }
}

/// The watch of a device, if there is one.
#[derive(Default)]
pub(crate) struct Watcher(Option<Arc<dyn Watch>>);

impl Watcher {
    pub(crate) fn new(watch: Arc<dyn Watch>) -> Self {
        Watcher(Some(watch))
    }

    pub(crate) fn begins(&self, op: &Op) -> u64 {
        self.0.as_ref().map_or(0, |watch| watch.begins(&Watched::of(op)))
    }

    pub(crate) fn ends(&self, op: &Op, result: i32) {
        if let Some(watch) = &self.0 {
            watch.ends(op.watched, result);
        }
    }
}
