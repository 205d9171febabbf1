//! What a queue has done, in numbers: how many requests of each kind, how many bytes, how long they took.

use std::time::{Duration, Instant};

use crate::clock;
use crate::histogram::Histogram;
use crate::request::{Action, Request};

/// A kind of request, for statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RequestKind {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Zero-writes.
    WriteZeroes,
    /// Discards.
    Discard,
    /// Flushes.
    Flush,
}

impl RequestKind {
    /// All kinds.
    pub const ALL: &'static [RequestKind] = &[
        RequestKind::Read,
        RequestKind::Write,
        RequestKind::WriteZeroes,
        RequestKind::Discard,
        RequestKind::Flush,
    ];

    fn of(request: &Request) -> Self {
        match request.action {
            Action::Read(_) => RequestKind::Read,
            Action::Write(_) => RequestKind::Write,
            Action::WriteZeroes(_) => RequestKind::WriteZeroes,
            Action::Discard(_) => RequestKind::Discard,
            Action::Flush => RequestKind::Flush,
        }
    }
}

/// Whether the time that requests take is counted. It costs two looks at the clock for each request, and a few buckets
/// of memory (15 KiB) for each kind of request that a queue has met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Latencies {
    /// Nobody looks at the clock.
    #[default]
    Off,
    /// From the moment a request is accepted until it is answered.
    Counted,
}

/// How many requests of one kind were answered, and with what.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestCounts {
    /// Requests answered.
    pub answered: u64,
    /// Those of them that ended with an error, being withdrawn included.
    pub failed: u64,
    /// Bytes that those without an error asked for.
    pub bytes: u64,
}

/// What a queue has done, of all its disks together; see [`Queue::statistics`](crate::Queue::statistics).
#[derive(Clone, Default)]
pub struct QueueStatistics {
    kinds: [Kind; RequestKind::ALL.len()],
}

#[derive(Clone, Default)]
struct Kind {
    counts: RequestCounts,
    latencies: Option<Histogram>,
}

impl QueueStatistics {
    /// How many requests of a kind were answered.
    pub fn counts(&self, kind: RequestKind) -> RequestCounts {
        self.kinds[kind as usize].counts
    }

    /// How long requests of a kind took, failed ones included; `None` if none was answered, or nobody counts.
    pub fn latencies(&self, kind: RequestKind) -> Option<&Histogram> {
        self.kinds[kind as usize].latencies.as_ref()
    }

    /// Adds what another queue has done.
    pub fn merge(&mut self, other: &QueueStatistics) {
        for (mine, theirs) in self.kinds.iter_mut().zip(&other.kinds) {
            mine.counts.answered += theirs.counts.answered;
            mine.counts.failed += theirs.counts.failed;
            mine.counts.bytes += theirs.counts.bytes;
            if let Some(theirs) = &theirs.latencies {
                mine.latencies.get_or_insert_default().merge(theirs);
            }
        }
    }

    pub(crate) fn note(&mut self, asked: &Asked, failed: bool) {
        let kind = &mut self.kinds[asked.kind as usize];
        kind.counts.answered += 1;
        kind.counts.failed += u64::from(failed);
        kind.counts.bytes += if failed { 0 } else { asked.bytes };
        if let Some(begin) = asked.begin {
            let time: Duration = clock::now().saturating_duration_since(begin);
            kind.latencies.get_or_insert_default().record(time);
        }
    }
}

/// What is remembered of a request until it is answered.
pub(crate) struct Asked {
    kind: RequestKind,
    bytes: u64,
    begin: Option<Instant>,
}

impl Asked {
    pub(crate) fn now(request: &Request, latencies: Latencies) -> Self {
        let begin = (latencies == Latencies::Counted).then(clock::now);
        Asked { kind: RequestKind::of(request), bytes: request.len(), begin }
    }
}
