//! The table: who is in flight, who waits for whom, who is admitted. No I/O, no clock, no wakers.
//!
//! Requests live in a slab. Where the others look for them depends on class and phase: running shared requests sit
//! in dense arrays that only a serialising newcomer or a widener passes over; serialising requests and waiting
//! shared ones sit in two ordered indexes. There are no lists of edges: who waits for whom follows from ranges,
//! classes, phases and tickets, and each request that waits has one countdown of its blockers.

mod check;
mod index;
mod running;
mod statistics;

pub use self::statistics::Statistics;
pub use crate::request::{Class, Id, Overtaken, Patience, Phase, Request};

use self::index::Index;
use self::running::Running;
use crate::Span;
use slab::Slab;
use std::mem;

/// How often one request may be widened. The bound on every wait grows with it; two are needed (to an alignment,
/// then to infinity), the rest is room.
pub const MAX_WIDENINGS: u32 = 8;

/// Answer of [`Table::begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Runs now.
    Admitted(Id),
    /// Waits; named by [`Table::woken`] when it is admitted.
    Waiting(Id),
    /// Would have to wait, was told not to, and left no trace.
    Busy,
}

/// Answer of [`Table::widen`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Widened {
    /// Runs on, on the wider range.
    AtOnce,
    /// Waits for the wider range and holds nothing; named by [`Table::woken`] when it is admitted.
    Parked,
    /// Would have to wait, was told not to, and runs on as before.
    Busy,
}

/// Requests in flight over one address space.
#[derive(Debug, Default)]
pub struct Table {
    requests: Slab<Request>,
    /// Shared requests that run.
    running: Running,
    /// Serialising requests in any phase.
    serialising: Index,
    /// Shared requests that wait.
    waiting: Index,
    next_ticket: u64,
    statistics: Statistics,
    /// Admitted by the last call, by ticket.
    woken: Vec<Id>,
    /// Scratch for searches, kept for its capacity.
    found: Vec<u32>,
}

impl Table {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in a request. With [`Patience::NoWait`] and anything in its way, waiting requests included, it is
    /// refused and nothing but the busy counter changes.
    pub fn begin(&mut self, span: Span, class: Class, patience: Patience) -> Begun {
        self.woken.clear();
        // Every other ticket is lower, so everything in conflict is waited for.
        let mut blockers = self.serialising.count(span);
        if class == Class::Serialising {
            blockers += self.waiting.count(span) + self.running.count(span);
        }
        if blockers > 0 && patience == Patience::NoWait {
            self.statistics.busy += 1;
            return Begun::Busy;
        }
        let id = self.insert(span, class, blockers);
        self.enlist(id.slot);
        self.statistics.serialising += u64::from(class == Class::Serialising);
        if blockers > 0 {
            self.statistics.waited += 1;
            self.statistics.waiting += 1;
            self.statistics.waits += 1;
            Begun::Waiting(id)
        } else {
            self.statistics.at_once += 1;
            self.statistics.running += 1;
            Begun::Admitted(id)
        }
    }

    /// Widens a running request to the hull of what it has and `asked`, and makes it serialising; neither is ever
    /// taken back. None of its I/O may be in flight. Asking for what is held returns at once.
    ///
    /// A request that parks gives up its grant, so the call may admit others. With [`Patience::NoWait`] it runs on
    /// as before instead, and nothing but the busy counter changes.
    ///
    /// # Panics
    /// If `id` has ended or does not run, or has been widened [`MAX_WIDENINGS`] times: errors of the caller.
    pub fn widen(&mut self, id: Id, asked: Span, patience: Patience) -> Widened {
        self.woken.clear();
        let before = *self.live(id);
        assert_eq!(before.phase, Phase::Running, "only a running request may be widened");
        let after = Request { span: before.span.hull(asked), class: Class::Serialising, ..before };
        if after.span == before.span && after.class == before.class {
            return Widened::AtOnce;
        }
        assert!(
            before.widenings < MAX_WIDENINGS,
            "request widened more than {MAX_WIDENINGS} times"
        );

        let mut found = mem::take(&mut self.found);
        self.find(after.span, after.class, &mut found);
        found.retain(|&slot| slot != id.slot);
        let blockers = self.running_shared_beside(&before, after.span)
            + count(&found, |slot| {
                let other = &self.requests[slot as usize];
                other.phase == Phase::Running || other.id.ticket < id.ticket
            });
        let answer = match (blockers, patience) {
            (0, _) => Widened::AtOnce,
            (_, Patience::Wait) => Widened::Parked,
            (_, Patience::NoWait) => Widened::Busy,
        };
        if answer == Widened::Busy {
            self.statistics.busy += 1;
        } else {
            self.turn_edges(&before, &found);
            self.grow(after, blockers);
            self.admit_woken();
        }
        found.clear();
        self.found = found;
        answer
    }

    /// Takes out a request in any phase and admits whoever that frees.
    ///
    /// # Panics
    /// If `id` has ended before: an error of the caller.
    pub fn end(&mut self, id: Id) {
        self.woken.clear();
        let ended = *self.live(id);
        self.delist(&ended);
        self.requests.remove(id.slot as usize);
        self.statistics.serialising -= u64::from(ended.class == Class::Serialising);
        match ended.phase {
            Phase::Running => {
                self.statistics.running -= 1;
                self.statistics.ended += 1;
            }
            Phase::Waiting => self.statistics.waiting -= 1,
            Phase::Parked => self.statistics.parked -= 1,
        }
        if ended.phase != Phase::Running {
            self.statistics.cancelled += 1;
            self.note_wait(ended.since);
        }
        if self.statistics.waiting + self.statistics.parked > 0 {
            self.release(&ended);
            self.admit_woken();
        }
    }

    /// The requests that the last call admitted, lowest ticket first.
    pub fn woken(&mut self) -> impl Iterator<Item = Id> + '_ {
        self.woken.drain(..)
    }

    /// Whether a request in conflict with what `id` held before it was last parked was admitted meanwhile. Final
    /// once `id` runs again.
    ///
    /// # Panics
    /// If `id` has ended: an error of the caller.
    #[must_use]
    pub fn overtaken(&self, id: Id) -> Overtaken {
        self.live(id).overtaken
    }

    /// Where `id` is in its life.
    ///
    /// # Panics
    /// If `id` has ended: an error of the caller.
    #[must_use]
    pub fn phase(&self, id: Id) -> Phase {
        self.live(id).phase
    }

    /// All requests in flight, in no order.
    pub fn requests(&self) -> impl Iterator<Item = &Request> + '_ {
        self.requests.iter().map(|(_, request)| request)
    }

    /// Counters and gauges as of now.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.statistics
    }

    fn live(&self, id: Id) -> &Request {
        match self.requests.get(id.slot as usize) {
            Some(request) if request.id == id => request,
            _ => panic!("{id:?} is not in flight"),
        }
    }

    fn insert(&mut self, span: Span, class: Class, blockers: u32) -> Id {
        let vacant = self.requests.vacant_entry();
        let slot = u32::try_from(vacant.key()).expect("2^32 requests do not fit in memory");
        let id = Id { slot, ticket: self.next_ticket };
        self.next_ticket += 1;
        let runs = blockers == 0;
        vacant.insert(Request {
            id,
            span,
            class,
            phase: if runs { Phase::Running } else { Phase::Waiting },
            blockers,
            granted: if runs { span } else { Span::at(span.start, 0) },
            granted_class: class,
            overtaken: Overtaken::No,
            widenings: 0,
            since: self.statistics.ended,
            position: u32::MAX,
        });
        id
    }

    /// Puts a request where the others look for it. An empty one is nowhere: it conflicts with nothing.
    fn enlist(&mut self, slot: u32) {
        let request = &mut self.requests[slot as usize];
        if request.span.is_empty() {
            return;
        }
        match (request.class, request.phase) {
            (Class::Shared, Phase::Running) => {
                request.position = self.running.push(request.span, slot);
            }
            (Class::Shared, _) => self.waiting.insert(request.span, request.id.ticket, slot),
            (Class::Serialising, _) => {
                self.serialising.insert(request.span, request.id.ticket, slot);
            }
        }
    }

    /// Undoes [`Self::enlist`]; `request` is as it was then.
    fn delist(&mut self, request: &Request) {
        if request.span.is_empty() {
            return;
        }
        match (request.class, request.phase) {
            (Class::Shared, Phase::Running) => {
                if let Some(moved) = self.running.remove(request.position) {
                    self.requests[moved as usize].position = request.position;
                }
            }
            (Class::Shared, _) => self.waiting.remove(request.span.start, request.id.ticket),
            (Class::Serialising, _) => {
                self.serialising.remove(request.span.start, request.id.ticket);
            }
        }
    }

    /// All in conflict with a request of this span and class, except running shared ones.
    fn find(&self, span: Span, class: Class, found: &mut Vec<u32>) {
        self.serialising.find(span, found);
        if class == Class::Serialising {
            self.waiting.find(span, found);
        }
    }

    /// How many running shared requests, `request` itself left out, share a byte with `span`, which contains its.
    fn running_shared_beside(&self, request: &Request, span: Span) -> u32 {
        let itself = request.class == Class::Shared && !request.span.is_empty();
        self.running.count(span) - u32::from(itself)
    }

    /// Adjusts the countdowns of those in `found` (all in conflict with what `before` is about to become).
    ///
    /// A higher ticket that did not wait for the widener does now. A lower one that did wait for it, because it
    /// ran, no longer does: the widener parks behind it. (If the widener goes on there is no lower one that waits.)
    fn turn_edges(&mut self, before: &Request, found: &[u32]) {
        for &slot in found {
            let other = &mut self.requests[slot as usize];
            if other.phase == Phase::Running {
                continue;
            }
            match (other.id.ticket > before.id.ticket, other.conflicts(before)) {
                (true, false) => other.blockers += 1,
                (false, true) => {
                    other.blockers -= 1;
                    if other.blockers == 0 {
                        self.woken.push(other.id);
                    }
                }
                (true, true) | (false, false) => {}
            }
        }
    }

    /// Gives a running request its wider range, parked if there are blockers.
    fn grow(&mut self, after: Request, blockers: u32) {
        let before = *self.live(after.id);
        self.delist(&before);
        self.statistics.serialising += u64::from(before.class == Class::Shared);
        let mut grown = Request {
            widenings: before.widenings + 1,
            overtaken: Overtaken::No,
            blockers,
            ..after
        };
        if blockers > 0 {
            grown.phase = Phase::Parked;
            grown.since = self.statistics.ended;
            self.statistics.waits += 1;
            self.statistics.running -= 1;
            self.statistics.parked += 1;
        } else {
            grown.granted = grown.span;
            grown.granted_class = grown.class;
        }
        self.requests[after.id.slot as usize] = grown;
        self.enlist(after.id.slot);
    }

    /// Counts `ended` off the countdowns of those that waited for it.
    ///
    /// This is also where a parked request learns that it was overtaken. Whoever was admitted over its old grant
    /// has a lower ticket and conflicts with what it asks for, hence blocks it until it ends: so looking at the end
    /// is in time, and costs no search of its own.
    fn release(&mut self, ended: &Request) {
        let mut found = mem::take(&mut self.found);
        self.find(ended.span, ended.class, &mut found);
        for slot in found.drain(..) {
            let other = &mut self.requests[slot as usize];
            let runs = other.phase == Phase::Running;
            let waited_for_it = ended.phase == Phase::Running || ended.id.ticket < other.id.ticket;
            if runs || !waited_for_it {
                continue;
            }
            if ended.granted_class.conflicts(other.granted_class)
                && ended.granted.overlaps(other.granted)
            {
                other.overtaken = Overtaken::Yes;
            }
            other.blockers -= 1;
            if other.blockers == 0 {
                self.woken.push(other.id);
            }
        }
        self.found = found;
    }

    /// Admits those whose countdown reached zero. An admission adds no edge and removes none, so one pass is all.
    fn admit_woken(&mut self) {
        let mut woken = mem::take(&mut self.woken);
        woken.sort_unstable_by_key(|id| id.ticket);
        for id in &woken {
            let request = *self.live(*id);
            debug_assert_ne!(request.phase, Phase::Running);
            self.delist(&request);
            match request.phase {
                Phase::Parked => self.statistics.parked -= 1,
                _ => self.statistics.waiting -= 1,
            }
            self.statistics.running += 1;
            self.note_wait(request.since);
            let admitted = Request {
                phase: Phase::Running,
                granted: request.span,
                granted_class: request.class,
                ..request
            };
            self.requests[id.slot as usize] = admitted;
            self.enlist(id.slot);
        }
        self.woken = woken;
    }

    fn note_wait(&mut self, since: u64) {
        let seen = self.statistics.ended - since;
        self.statistics.longest_wait = self.statistics.longest_wait.max(seen);
    }
}

fn count(slots: &[u32], mut wanted: impl FnMut(u32) -> bool) -> u32 {
    slots.iter().map(|&slot| u32::from(wanted(slot))).sum()
}
