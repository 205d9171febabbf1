//! Rules: which operations are struck, when, and by what.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use bitflags::bitflags;

use super::Event;
use crate::op::{Allocate, Verb};
use crate::sys::device::Change;

bitflags! {
    /// Kinds of operations on a file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Ops: u32 {
        /// Reads.
        const READ = 1;
        /// Writes that are not durable when they end.
        const WRITE = 2;
        /// Writes that are durable when they end.
        const DURABLE_WRITE = 4;
        /// fdatasync.
        const FLUSH = 8;
        /// fallocate that gives room and lets the file grow.
        const GROW = 16;
        /// fallocate that makes zeros (ZERO_RANGE).
        const ZERO_RANGE = 32;
        /// fallocate that makes zeros and gives the room back (PUNCH_HOLE).
        const PUNCH_HOLE = 64;
        /// The same call where only the room is to be given back.
        const DISCARD = 128;
        /// ftruncate.
        const TRUNCATE = 256;
        /// Writes, durable or not.
        const WRITES = 2 | 4;
        /// Whatever a zero-write may call.
        const ZEROES = 16 | 32 | 64;
        /// Reads and writes.
        const TRANSFERS = 1 | 2 | 4;
    }
}

impl Ops {
    pub(crate) fn of(verb: Verb) -> Ops {
        match verb {
            Verb::Read => Ops::READ,
            Verb::Write => Ops::WRITE,
            Verb::WriteDurable => Ops::DURABLE_WRITE,
            Verb::Sync => Ops::FLUSH,
            Verb::Allocate(Allocate::Grow) => Ops::GROW,
            Verb::Allocate(Allocate::ZeroRange) => Ops::ZERO_RANGE,
            Verb::Allocate(Allocate::PunchHole) => Ops::PUNCH_HOLE,
            Verb::Allocate(Allocate::Discard) | Verb::Discard | Verb::Call(Change::Discard) => {
                Ops::DISCARD
            }
            Verb::Call(Change::ZeroOut) => Ops::ZERO_RANGE,
            Verb::Truncate => Ops::TRUNCATE,
        }
    }
}

/// An operation that is about to be sent, as a rule sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Seen {
    /// Its kind, one flag.
    pub op: Ops,
    /// Where it begins, in bytes; of a truncation the new size.
    pub offset: u64,
    /// Bytes; 0 of a flush and a truncation.
    pub len: u64,
}

/// What befalls an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// It ends with this error number and does nothing. EINTR, EAGAIN and ECANCELED are met by sending it again.
    Error(i32),
    /// It moves this many bytes and says so: at least one block of the file, and at most what it has. Reads and writes
    /// only; others pass.
    Short(u64),
    /// It is sent this much later. The first such rule starts a thread, `blkring-delay`, which ends with the faults.
    Delay(Duration),
    /// It is kept until this tag is released. If its queue or image ends before, it ends with ECANCELED.
    Hold(String),
}

impl Seen {
    /// An operation of one kind.
    pub fn new(op: Ops, offset: u64, len: u64) -> Self {
        Seen { op, offset, len }
    }
}

type Chooser = Box<dyn FnMut(&Seen) -> Option<Effect> + Send>;

/// What a rule does to what it strikes.
pub(super) enum Action {
    Fixed(Effect),
    Chosen(Chooser),
    /// Points only: another state.
    SetState(u32),
    /// Points only: whoever passes waits until the tag is released.
    Suspend(String),
}

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Fixed(effect) => effect.fmt(f),
            Action::Chosen(_) => f.write_str("Chosen"),
            Action::SetState(state) => write!(f, "SetState({state})"),
            Action::Suspend(tag) => write!(f, "Suspend({tag})"),
        }
    }
}

/// An effect and when it strikes: by default the first operation that matches, once.
#[derive(Debug)]
pub struct Rule {
    pub(super) ops: Ops,
    pub(super) range: Option<Range<u64>>,
    pub(super) at: Option<Event>,
    pub(super) state: Option<u32>,
    pub(super) skip: u64,
    pub(super) times: Option<u64>,
    pub(super) action: Action,
}

impl Rule {
    /// The first of these operations meets `effect`.
    pub fn new(ops: Ops, effect: Effect) -> Self {
        Rule::acting(ops, Action::Fixed(effect))
    }

    /// `choose` is asked for each of these operations, and spares it with `None`. It is called on the thread that sends
    /// the operation, and must not use the faults it belongs to.
    pub fn chosen(ops: Ops, choose: impl FnMut(&Seen) -> Option<Effect> + Send + 'static) -> Self {
        Rule::acting(ops, Action::Chosen(Box::new(choose))).always()
    }

    /// Whoever passes this point next waits there until `tag` is released.
    pub fn suspend(at: Event, tag: &str) -> Self {
        Rule { at: Some(at), ..Rule::acting(Ops::empty(), Action::Suspend(tag.to_owned())) }
    }

    /// Each time somebody passes this point the state becomes `new`.
    pub fn set_state(at: Event, new: u32) -> Self {
        Rule { at: Some(at), ..Rule::acting(Ops::empty(), Action::SetState(new)) }.always()
    }

    fn acting(ops: Ops, action: Action) -> Self {
        Rule { ops, range: None, at: None, state: None, skip: 0, times: Some(1), action }
    }

    /// Only operations that touch this range of bytes. Flushes have none and are not bound by it.
    #[must_use]
    pub fn within(mut self, range: Range<u64>) -> Self {
        self.range = Some(range);
        self
    }

    /// Only once somebody has passed this point, and until rules of another point take over. It is not looked at who:
    /// with several requests under way the next operation of any of them may be struck.
    #[must_use]
    pub fn after_point(mut self, event: Event) -> Self {
        self.at = Some(event).filter(|event| *event != Event::Unnamed);
        self
    }

    /// The point counts only while the state is `state` (1 in the beginning).
    #[must_use]
    pub fn in_state(mut self, state: u32) -> Self {
        self.state = Some(state);
        self
    }

    /// The first `count` that match are spared.
    #[must_use]
    pub fn after(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// So many are struck.
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

    fn matches(&self, seen: &Seen) -> bool {
        self.ops.contains(seen.op)
            && self.range.as_ref().is_none_or(|range| {
                seen.op == Ops::FLUSH
                    || seen.offset < range.end
                        && range.start < seen.offset.saturating_add(seen.len.max(1))
            })
    }

    /// What an operation meets; counts it.
    pub(super) fn strike(&mut self, seen: &Seen) -> Option<Effect> {
        if !self.matches(seen) || self.times == Some(0) {
            return None;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return None;
        }
        let effect = match &mut self.action {
            Action::Fixed(effect) => Some(effect.clone()),
            Action::Chosen(choose) => choose(seen),
            Action::SetState(_) | Action::Suspend(_) => None,
        }?;
        if matches!(effect, Effect::Short(_)) && !Ops::TRANSFERS.contains(seen.op) {
            return None;
        }
        self.spend();
        Some(effect)
    }

    /// Whether a rule for points is due at this one; counts it.
    pub(super) fn is_passed(&mut self, event: Event, state: u32) -> bool {
        if self.at != Some(event) || self.times == Some(0) || self.state.is_some_and(|s| s != state)
        {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        self.spend();
        true
    }

    /// Whether a rule for operations is armed by this point.
    pub(super) fn arms_at(&self, event: Event, state: u32) -> bool {
        self.at == Some(event) && self.state.is_none_or(|s| s == state)
    }

    /// Whether it would stop somebody under this tag.
    pub(super) fn is_of(&self, tag: &str) -> bool {
        match &self.action {
            Action::Suspend(own) | Action::Fixed(Effect::Hold(own)) => own == tag,
            _ => false,
        }
    }

    fn spend(&mut self) {
        if let Some(times) = &mut self.times {
            *times -= 1;
        }
    }

    /// Whether it can strike no more.
    pub(super) fn is_spent(&self) -> bool {
        self.times == Some(0)
    }
}
