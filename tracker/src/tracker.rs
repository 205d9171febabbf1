//! The shell: one table behind one lock, and the wakers of those that wait.

use crate::request::{Class, Id, Overtaken, Patience, Phase, Request};
use crate::sync::{Arc, Mutex, MutexGuard};
use crate::table::{Begun, Statistics, Table, Widened};
use crate::{Begin, Busy, Guard, Span};
use std::array;
use std::collections::VecDeque;
use std::fmt;
use std::task::Waker;

/// Wakers fired per lock hold. An end seldom frees more, and this many fit on the stack.
const BATCH: usize = 8;

/// Requests in flight over one address space, shared by any number of threads.
///
/// Each call is one short hold of one lock; wakers run outside it.
pub struct Tracker {
    /// The only lock here. Held for one call of the table, never across an await or a waker.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    table: Table,
    /// Wakers of requests that do not run and have been polled, by slot.
    seats: Vec<Option<Waker>>,
    /// Wakers of admitted requests, on their way out of the lock.
    ready: VecDeque<Waker>,
}

/// What a poll of one that waits finds.
pub(crate) enum Turn {
    Admitted(Overtaken),
    Waits,
}

impl Tracker {
    /// A tracker with nothing in flight.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State::default()) })
    }

    /// Takes in a request: it has its place in the order when this returns. The future only waits, and dropping it
    /// withdraws the request. If nothing is in the way it is ready at its first poll, and once the tracker is warm
    /// nothing is allocated.
    pub fn begin(self: &Arc<Self>, span: Span, class: Class) -> Begin {
        let begun = self.state.lock().table.begin(span, class, Patience::Wait);
        match begun {
            Begun::Admitted(id) => Begin::admitted(Guard::new(Arc::clone(self), id, span, class)),
            Begun::Waiting(id) => Begin::waiting(Guard::new(Arc::clone(self), id, span, class)),
            Begun::Busy => unreachable!("only a call that does not wait is told so"),
        }
    }

    /// Takes in a request if nothing is in its way.
    ///
    /// # Errors
    /// [`Busy`] if it would have to wait, be it for one that itself waits; nothing has changed then.
    pub fn try_begin(self: &Arc<Self>, span: Span, class: Class) -> Result<Guard, Busy> {
        let begun = self.state.lock().table.begin(span, class, Patience::NoWait);
        match begun {
            Begun::Admitted(id) => Ok(Guard::new(Arc::clone(self), id, span, class)),
            Begun::Busy => Err(Busy),
            Begun::Waiting(_) => unreachable!("told not to wait"),
        }
    }

    /// Counters and gauges as of now.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.state.lock().table.statistics()
    }

    /// All requests in flight, by ticket: who holds what and who waits. For diagnostics; it copies everything.
    #[must_use]
    pub fn requests(&self) -> Vec<Request> {
        let mut requests: Vec<_> = self.state.lock().table.requests().copied().collect();
        requests.sort_unstable_by_key(|request| request.id.ticket());
        requests
    }

    /// Checks the table against the rules, in time quadratic in the requests in flight; for tests.
    ///
    /// # Panics
    /// If anything is wrong.
    pub fn self_check(&self) {
        self.state.lock().table.self_check();
    }

    pub(crate) fn widen(&self, id: Id, span: Span, patience: Patience) -> Widened {
        let mut state = self.state.lock();
        let widened = state.table.widen(id, span, patience);
        state.collect_wakers();
        self.fire(state);
        widened
    }

    pub(crate) fn end(&self, id: Id) {
        let mut state = self.state.lock();
        state.table.end(id);
        // Its own waker, if it was withdrawn. Dropping one may run anything, even drop another guard of this
        // tracker, so that happens after the lock is gone.
        let own = state.leave_seat(id);
        state.collect_wakers();
        self.fire(state);
        drop(own);
    }

    /// Whether `id` was admitted; if not, `waker` is called when it is.
    pub(crate) fn poll(&self, id: Id, waker: &Waker) -> Turn {
        // Cloning and dropping a waker may run anything: both happen outside the lock.
        let waker = waker.clone();
        let mut state = self.state.lock();
        if state.table.phase(id) == Phase::Running {
            let overtaken = state.table.overtaken(id);
            drop(state);
            return Turn::Admitted(overtaken);
        }
        let former = state.take_seat(id, waker);
        drop(state);
        drop(former);
        Turn::Waits
    }

    /// Calls the wakers that are ready, outside the lock.
    fn fire<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        while !state.ready.is_empty() {
            let batch: [Option<Waker>; BATCH] = array::from_fn(|_| state.ready.pop_front());
            drop(state);
            batch.into_iter().flatten().for_each(Waker::wake);
            state = self.state.lock();
        }
    }
}

impl fmt::Debug for Tracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracker").field("requests", &self.requests()).finish()
    }
}

impl State {
    fn take_seat(&mut self, id: Id, waker: Waker) -> Option<Waker> {
        let slot = id.slot as usize;
        if self.seats.len() <= slot {
            self.seats.resize_with(slot + 1, || None);
        }
        self.seats[slot].replace(waker)
    }

    fn leave_seat(&mut self, id: Id) -> Option<Waker> {
        self.seats.get_mut(id.slot as usize)?.take()
    }

    fn collect_wakers(&mut self) {
        let Self { table, seats, ready } = self;
        let polled = table.woken().filter_map(|id| seats.get_mut(id.slot as usize)?.take());
        ready.extend(polled);
    }
}
