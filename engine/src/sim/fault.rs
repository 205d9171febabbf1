//! What is made to go wrong, and what is made to wait.

use std::ops::Range;

use super::log::OpKind;
use super::pending::{Pending, Step};

/// Which ops are meant.
#[derive(Debug, Clone, Default)]
pub struct Matcher {
    kinds: Vec<OpKind>,
    file: Option<String>,
    range: Option<Range<u64>>,
}

impl Matcher {
    /// Every op.
    pub fn any() -> Self {
        Matcher::default()
    }

    /// Ops of this kind.
    pub fn kind(kind: OpKind) -> Self {
        Matcher::any().or(kind)
    }

    /// Writes, durable or not.
    pub fn writes() -> Self {
        Matcher::kind(OpKind::Write).or(OpKind::WriteDurable)
    }

    /// Those of this kind as well.
    #[must_use]
    pub fn or(mut self, kind: OpKind) -> Self {
        self.kinds.push(kind);
        self
    }

    /// Only on this file.
    #[must_use]
    pub fn file(mut self, name: &str) -> Self {
        self.file = Some(name.to_owned());
        self
    }

    /// Only those that touch this range of bytes. A sync has no range and is not bound by it.
    #[must_use]
    pub fn within(mut self, range: Range<u64>) -> Self {
        self.range = Some(range);
        self
    }

    pub(super) fn matches(&self, file: &str, op: &Pending) -> bool {
        (self.kinds.is_empty() || self.kinds.contains(&op.kind))
            && self.file.as_deref().is_none_or(|name| name == file)
            && self.range.as_ref().is_none_or(|range| {
                op.kind == OpKind::Sync
                    || op.offset() < range.end && range.start < op.offset() + op.len().max(1)
            })
    }
}

/// What happens instead. Decided when the op would land.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Fails with this error number and changes nothing. A sync that fails other than by an interruption (EINTR,
    /// EAGAIN, ECANCELED) loses what it should have made durable: no later sync covers that again.
    Error(i32),
    /// Moves at most so many bytes (rounded down to the alignment of the file) and says so. Reads and writes only.
    Short(u64),
    /// Moves so many bytes as above, then fails with the error number.
    Partial(u64, i32),
}

/// A fault and when it strikes: by default the first op that matches, once.
#[derive(Debug, Clone)]
pub struct Rule {
    what: Matcher,
    pub(super) fault: Fault,
    skip: u64,
    times: Option<u64>,
}

impl Rule {
    /// The first op that matches meets `fault`.
    pub fn new(what: Matcher, fault: Fault) -> Self {
        Rule { what, fault, skip: 0, times: Some(1) }
    }

    /// The first `count` ops that match are spared.
    #[must_use]
    pub fn after(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// So many ops are struck.
    #[must_use]
    pub fn times(mut self, count: u64) -> Self {
        self.times = Some(count);
        self
    }

    /// All that match are struck.
    #[must_use]
    pub fn always(mut self) -> Self {
        self.times = None;
        self
    }

    /// Whether the op is struck; counts it.
    pub(super) fn strikes(&mut self, file: &str, op: &Pending) -> bool {
        if !self.what.matches(file, op) || self.times == Some(0) {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if let Some(times) = &mut self.times {
            *times -= 1;
        }
        true
    }
}

/// Before which step a held op stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// Before anything.
    Begin,
    /// Before its effect is there (a sync has begun by then, see [`Stage::Begun`](super::Stage::Begun)).
    Land,
    /// After its effect, before its issuer is told.
    Complete,
}

/// Ops kept from a step until released by name.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) name: String,
    what: Matcher,
    point: Point,
    /// Only ops up to this one.
    latest: u64,
}

impl Hold {
    pub(super) fn new(name: &str, what: Matcher, point: Point) -> Self {
        Hold { name: name.to_owned(), what, point, latest: u64::MAX }
    }

    /// Lets go every op after `latest`.
    pub(super) fn only_until(&mut self, latest: u64) {
        self.latest = latest;
    }

    pub(super) fn stops(&self, file: &str, op: &Pending) -> bool {
        let here = match (self.point, op.next) {
            (Point::Begin, next) => !op.begun && next != Step::Complete,
            (Point::Land, next) => next == Step::Land,
            (Point::Complete, next) => next == Step::Complete,
        };
        here && op.id <= self.latest && self.what.matches(file, op)
    }
}
