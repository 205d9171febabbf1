//! What the table knows of one request.

use crate::Span;

/// Whether a request may run beside others of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Conflicts with overlapping serialising requests only. Reads and plain writes.
    Shared,
    /// Conflicts with every overlapping request. Read-modify-write, discard, whatever changes the file's size.
    Serialising,
}

impl Class {
    /// Whether two requests of these classes conflict where they overlap.
    #[must_use]
    pub const fn conflicts(self, other: Self) -> bool {
        matches!(self, Self::Serialising) || matches!(other, Self::Serialising)
    }
}

/// What to do where a request cannot go on at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Patience {
    /// Take a place in the order and wait.
    Wait,
    /// Change nothing and say so.
    NoWait,
}

/// Where a request is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Never admitted so far.
    Waiting,
    /// Admitted. Only a running request has I/O in the kernel.
    Running,
    /// Was running, asked for more, and waits for that; what it held is given up meanwhile.
    Parked,
}

/// Whether others used what a widener held while it was parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overtaken {
    /// What was learned under the old grant (size, mapping, bytes read) still holds.
    No,
    /// A request in conflict with the old grant ran meanwhile: learn everything again.
    Yes,
}

/// Names one request of one table. Never reused: a stale one is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Id {
    pub(crate) slot: u32,
    pub(crate) ticket: u64,
}

impl Id {
    /// Place in the order of arrival, drawn at begin and kept for life.
    #[must_use]
    pub const fn ticket(self) -> u64 {
        self.ticket
    }
}

/// One request as the table sees it, for checks and diagnostics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its name; the ticket is part of it.
    pub id: Id,
    /// What it runs on, or asks for while it waits or is parked.
    pub span: Span,
    /// The class that goes with `span`.
    pub class: Class,
    /// Where it is in its life.
    pub phase: Phase,
    /// How many requests it waits for; 0 exactly while running.
    pub blockers: u32,
    /// What it was last admitted for: `span` while running, the given-up grant while parked, empty before the
    /// first admission.
    pub granted: Span,
    /// The class that goes with `granted`.
    pub granted_class: Class,
    /// Of the last time it was parked; final once it runs again.
    pub overtaken: Overtaken,
    /// How often it was widened.
    pub widenings: u32,
    /// Completions the table had counted when the present wait began.
    pub(crate) since: u64,
    /// Position among the running shared requests, if it is one of them.
    pub(crate) position: u32,
}

impl Request {
    /// Whether the two conflict, each judged by the range and class it runs on or asks for.
    #[must_use]
    pub const fn conflicts(&self, other: &Self) -> bool {
        self.class.conflicts(other.class) && self.span.overlaps(other.span)
    }

    /// The waiting rule: whether this request waits for `other`.
    ///
    /// A request that does not run waits for every conflicting one that runs, whatever its ticket, and for every
    /// conflicting one that does not run and has the lower ticket.
    #[must_use]
    pub fn waits_for(&self, other: &Self) -> bool {
        self.phase != Phase::Running
            && self.id != other.id
            && self.conflicts(other)
            && (other.phase == Phase::Running || other.id.ticket < self.id.ticket)
    }
}
