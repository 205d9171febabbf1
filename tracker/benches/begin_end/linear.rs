//! What the tracker is measured against: one list behind one lock, scanned whole whenever anything serialises, every
//! waiter woken when a request ends. Ranges are fixed, there is no late widening and no fairness.

use blkring_tracker::sync::Mutex;
use blkring_tracker::{Class, Span};
use slab::Slab;
use std::task::Waker;

#[derive(Default)]
pub struct Linear {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// A slab serves as the list: dense to scan, and removal needs no search.
    requests: Slab<Request>,
    serialising: usize,
    sleepers: Vec<(usize, Waker)>,
}

struct Request {
    span: Span,
    class: Class,
    runs: Runs,
}

#[derive(Clone, Copy, PartialEq)]
enum Runs {
    Yes,
    NotYet,
}

impl State {
    fn blocked(&self, id: usize) -> bool {
        let request = &self.requests[id];
        self.serialising > 0
            && self.requests.iter().any(|(other_id, other)| {
                other_id != id
                    && other.runs == Runs::Yes
                    && other.span.overlaps(request.span)
                    && other.class.conflicts(request.class)
            })
    }

    /// Lets a request run, or puts it to sleep.
    fn look(&mut self, id: usize, waker: Waker) {
        if self.blocked(id) {
            self.sleepers.push((id, waker));
        } else {
            self.requests[id].runs = Runs::Yes;
        }
    }
}

impl Linear {
    /// Enters a request; it runs if nothing that runs is in its way, else it sleeps.
    pub fn begin(&self, span: Span, class: Class) -> usize {
        let mut state = self.state.lock();
        state.serialising += usize::from(class == Class::Serialising);
        let id = state.requests.insert(Request { span, class, runs: Runs::NotYet });
        state.look(id, Waker::noop().clone());
        id
    }

    /// Removes a request; everybody who sleeps is woken and looks again.
    pub fn end(&self, id: usize) {
        let mut state = self.state.lock();
        let ended = state.requests.remove(id);
        state.serialising -= usize::from(ended.class == Class::Serialising);
        let sleepers = std::mem::take(&mut state.sleepers);
        drop(state);
        for (id, waker) in sleepers {
            waker.wake_by_ref();
            self.state.lock().look(id, waker);
        }
    }
}
