//! The end of a queue: what only waits is given up, what the kernel has is waited for, everybody is answered.

use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::Queue;
use crate::clock;
use crate::inbox::Incoming;
use crate::lane::Delayed;
use crate::sys;
use crate::tasks::Body;
use crate::variant::Variant;

/// How long a queue that is being dropped rests after a failure of its ring, in milliseconds.
const PAUSE_MS: i32 = 10;

const LEAKED: &str =
    "operations of a queue have not ended in time; their memory and files are leaked";

impl Queue {
    /// Begins the removal of the queue: nothing more is accepted, what only waits is answered with ECANCELED, the
    /// rest runs to its end. The queue may be dropped when [`Queue::unfinished`] is 0.
    pub fn retire(&mut self) {
        self.inbox.close();
        self.take_in();
        for key in self.tasks.keys() {
            self.withdraw(key);
        }
    }

    pub(super) fn withdraw(&mut self, key: usize) {
        let Some(Body::Request { pool, place, receipt }) = self.tasks.get_mut(key) else { return };
        let (pool, place, receipt) = (*pool, *place, *receipt);
        let canceled = if self.wakeups.variants.has(Variant::DroppedReceiptReleasesRange) {
            Some(self.ports.cancel(pool, place))
        } else {
            self.ports.withdraw(pool, place)
        };
        if let Some(canceled) = canceled {
            self.tasks.remove(key);
            self.inbox.answer(receipt, Err(canceled));
        }
    }

    /// Waits for the operations in the kernel: their memory and grants are released no earlier, or never.
    fn settle(&mut self) {
        self.lane.close(if self.backend.is_some() { Delayed::Wait } else { Delayed::End });
        let end = clock::now() + self.patience;
        let mut failure = None;
        while self.backend.is_some() && self.lane.unfinished() > 0 {
            let left = end.saturating_duration_since(clock::now());
            if left.is_zero() {
                let (count, patience) = (self.lane.unfinished(), self.patience);
                tracing::error!(count, ?patience, ?failure, "{LEAKED}");
                std::mem::forget(self.lane.clone());
                return;
            }
            // What is let go from here on signals the event, and what was let go before is sent.
            self.wakeups.lie_down();
            let settled = self.send().and_then(|_| self.enter_for(left)).and_then(|()| self.reap());
            if let Err(error) = settled {
                failure = Some(error);
                // What was let go signals this.
                let event = self.wakeups.event().expect("a queue with a ring has an event");
                sys::wait_readable(event.as_raw_fd(), PAUSE_MS);
            }
        }
    }

    fn enter_for(&mut self, limit: Duration) -> io::Result<()> {
        self.enters += 1;
        self.backend.as_mut().map_or(Ok(()), |backend| backend.enter_for(limit))
    }
}

impl Drop for Queue {
    /// Waits for the operations in the kernel, for as long as [`QueueOptions::patience`](super::QueueOptions) says, then gives up what is left. Requests that were not answered are answered
    /// with ECANCELED: they may have been done in part.
    fn drop(&mut self) {
        if self.turning {
            // A task has panicked; the queues of other threads are not to wait for this one.
            self.end_turn();
        }
        self.settle();
        self.inbox.close();
        for Incoming { port, request, receipt } in self.inbox.incoming.take() {
            let canceled = self.ports.error(port, &request, libc::ECANCELED);
            self.inbox.answer(receipt, Err(canceled));
        }
        for key in self.tasks.keys() {
            if let Some(Body::Request { pool, place, receipt, .. }) = self.tasks.get_mut(key) {
                let (pool, place, receipt) = (*pool, *place, *receipt);
                let canceled = self.ports.cancel(pool, place);
                self.tasks.remove(key);
                self.inbox.answer(receipt, Err(canceled));
            }
        }
    }
}
