//! Where the results of a lane's work wait to be reaped.

use std::sync::Arc;

use blkring_tracker::sync::Mutex;

use crate::sys::EventFd;
use crate::uring::Completed;

/// The completions of one queue or service. The lock *mailbox* is held for a few instructions, and to signal an event:
/// so no thread of the pool touches the events of a queue that is gone, or keeps their descriptors open.
#[derive(Default)]
pub(super) struct Mailbox(Mutex<State>);

#[derive(Default)]
struct State {
    completed: Vec<Completed>,
    /// Ends the sleep of the owner. Here while it sleeps, or is about to.
    asleep: Option<Arc<EventFd>>,
    /// Signalled whenever the first completion comes into the empty list.
    signal: Option<Arc<EventFd>>,
}

/// What the owner of a mailbox finds before it sleeps.
pub(super) enum Found {
    /// Something to reap.
    Completions,
    /// Nothing: the first completion from here on signals the event.
    Nothing,
}

impl Mailbox {
    /// Signals `event` from here on when there is something to reap.
    pub(super) fn signal_to(&self, event: Option<Arc<EventFd>>) {
        let former = std::mem::replace(&mut self.0.lock().signal, event);
        drop(former);
    }

    /// Adds a completion. Called by the threads of the pool.
    pub(super) fn put(&self, key: u64, result: i32) {
        let mut state = self.0.lock();
        let first = state.completed.is_empty();
        state.completed.push(Completed { key, result, more: false });
        if let Some(event) = state.asleep.take() {
            event.signal();
        }
        if let Some(event) = state.signal.as_ref().filter(|_| first) {
            event.signal();
        }
    }

    /// Takes what has completed. The owner is awake.
    pub(super) fn take(&self, into: &mut Vec<Completed>) {
        let mut state = self.0.lock();
        state.asleep = None;
        into.append(&mut state.completed);
    }

    /// Asks for a signal to `event`, unless something is there already.
    pub(super) fn lie_down(&self, event: &Arc<EventFd>) -> Found {
        let mut state = self.0.lock();
        if !state.completed.is_empty() {
            return Found::Completions;
        }
        state.asleep = Some(event.clone());
        Found::Nothing
    }
}
