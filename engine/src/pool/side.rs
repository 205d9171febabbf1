//! The pool as a queue or a service sees it: the same steps as those of a ring.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use super::call::Call;
use super::mailbox::{Found, Mailbox};
use super::{ThreadPool, Work};
use crate::lane::{Lane, Sent};
use crate::sys::{Epoll, EventFd, Trigger};
use crate::uring::{Completed, Issuer};

/// One lane's way to a pool.
pub(crate) struct Pooled {
    pool: ThreadPool,
    mailbox: Arc<Mailbox>,
    /// `None` for a service, where nobody sleeps.
    bed: Option<Bed>,
    /// Filled and not handed over yet: a lane is locked while it gives its ops away, so no system call is made then.
    filled: Vec<(u64, Call)>,
}

/// Where a queue sleeps. Everything in it is edge-triggered: nothing is taken out of the events, and a signal from
/// before costs one look at an empty list at most.
struct Bed {
    epoll: Epoll,
    completions: Arc<EventFd>,
}

impl Bed {
    fn new() -> io::Result<Self> {
        let (epoll, completions) = (Epoll::new()?, Arc::new(EventFd::new()?));
        epoll.add(completions.as_raw_fd(), Trigger::Edge)?;
        Ok(Bed { epoll, completions })
    }
}

impl Pooled {
    /// A way to `pool`, whose threads run from here on.
    pub(crate) fn new(pool: &ThreadPool, issuer: Issuer) -> io::Result<Self> {
        pool.start()?;
        let bed = match issuer {
            Issuer::One => Some(Bed::new()?),
            Issuer::Many => None,
        };
        Ok(Pooled { pool: pool.clone(), mailbox: Arc::default(), bed, filled: Vec::new() })
    }

    /// Signals `event` from here on when there is something to reap.
    pub(crate) fn signal_to(&self, event: &Arc<EventFd>) {
        self.mailbox.signal_to(Some(event.clone()));
    }

    /// Watches another event, which ends sleeps from here on.
    pub(crate) fn watch(&self, event: &EventFd) -> io::Result<()> {
        self.bed.as_ref().map_or(Ok(()), |bed| bed.epoll.add(event.as_raw_fd(), Trigger::Edge))
    }

    /// Takes the unsent ops of `lane`.
    pub(crate) fn fill(&mut self, lane: &Lane) -> usize {
        let filled = &mut self.filled;
        lane.send(|key, op, iovecs| {
            filled.push((key, Call::new(op, iovecs)));
            Sent::Taken
        })
    }

    pub(crate) fn holds_entries(&self) -> bool {
        !self.filled.is_empty()
    }

    /// Hands over what was filled.
    pub(crate) fn submit(&mut self) {
        if !self.filled.is_empty() {
            let mailbox = &self.mailbox;
            let work = |(key, call)| Work { call, key, mailbox: mailbox.clone() };
            self.pool.submit(self.filled.drain(..).map(work));
        }
    }

    /// Hands over what was filled, and waits for a completion or an event, for so long at most.
    pub(crate) fn enter_for(&mut self, limit: Option<Duration>) -> io::Result<()> {
        self.submit();
        let bed = self.bed.as_ref().expect("only queues sleep");
        match self.mailbox.lie_down(&bed.completions) {
            Found::Completions => Ok(()),
            Found::Nothing => bed.epoll.wait(limit),
        }
    }

    pub(crate) fn reap(&self, into: &mut Vec<Completed>) {
        self.mailbox.take(into);
    }
}

impl Drop for Pooled {
    /// Nothing is on its way any more but, perhaps, a thread that leaves the mailbox.
    fn drop(&mut self) {
        self.mailbox.signal_to(None);
        self.mailbox.take(&mut Vec::new());
    }
}
