//! What happened, as a number.

use std::hash::{DefaultHasher, Hash, Hasher};

use blkring_engine::sim::{Event, Stage};

/// A world that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trace {
    /// Of every step of the disk and every answer, in order.
    pub hash: u64,
    /// Steps of the world.
    pub steps: u64,
    /// Requests.
    pub requests: u64,
    /// Requests that were given up before they did anything.
    pub withdrawn: u64,
    /// Requests that failed.
    pub failed: u64,
    /// Ops that were made late.
    pub delays: u64,
    /// Queues that came after the start.
    pub came: u64,
    /// Queues that went before the end.
    pub gone: u64,
}

/// Makes the hash.
#[derive(Default)]
pub(super) struct Recorder {
    hasher: DefaultHasher,
    pub(super) trace: Trace,
}

impl Recorder {
    /// A step of the disk.
    pub(super) fn event(&mut self, event: &Event) {
        let (stage, result) = match event.stage {
            Stage::Accepted => (0, 0),
            Stage::Begun => (1, 0),
            Stage::Landed => (2, 0),
            Stage::Completed(result) => (3, result),
        };
        self.note(&(event.op, event.kind, event.offset, event.len, stage, result));
    }

    /// Anything else.
    pub(super) fn note(&mut self, what: &impl Hash) {
        what.hash(&mut self.hasher);
    }

    pub(super) fn end(&self, steps: u64) -> Trace {
        Trace { hash: self.hasher.finish(), steps, ..self.trace }
    }
}
