//! What an owner's own loop polls to learn that a queue has something to do.
//!
//! Three things can tell: a completion (by the eventfd that is registered for it), a wake-up from another
//! thread, and shared work of a target. The last two are watched by the ring as well, but the kernel signals no
//! eventfd from within the signal of another, and then none for completions either until the ring is entered. So
//! each is polled by itself.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use crate::backend::Backend;
use crate::sys::{Epoll, EventFd, Trigger};

/// One descriptor for all that a queue waits for.
pub(crate) struct Notify {
    epoll: Epoll,
    completions: Arc<EventFd>,
}

impl Notify {
    /// For a queue with this backend and this event of wake-ups.
    pub(crate) fn new(backend: &Backend, wake: &EventFd) -> io::Result<Self> {
        let (epoll, completions) = (Epoll::new()?, Arc::new(EventFd::new()?));
        backend.signal_to(&completions)?;
        epoll.add(completions.as_raw_fd(), Trigger::Level)?;
        epoll.add(wake.as_raw_fd(), Trigger::Level)?;
        // Whatever happened before.
        completions.signal();
        Ok(Notify { epoll, completions })
    }

    /// Shared work tells by an event that belongs to all queues, so nobody takes it.
    pub(crate) fn watch(&self, service: &EventFd) -> io::Result<()> {
        self.epoll.add(service.as_raw_fd(), Trigger::Edge)
    }

    /// Takes what was told so far: the turn that begins will look at it all.
    pub(crate) fn take(&self, wake: Option<&EventFd>) {
        self.epoll.clear();
        self.completions.take();
        if let Some(wake) = wake {
            wake.take();
        }
    }
}

impl AsFd for Notify {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
