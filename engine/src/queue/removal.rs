//! The end of a queue: what only waits is given up, what the kernel has is waited for, everybody is answered.

use super::Queue;
use crate::inbox::Incoming;
use crate::tasks::Body;

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
        if let Some(canceled) = self.ports.withdraw(pool, place) {
            self.tasks.remove(key);
            self.inbox.answer(receipt, Err(canceled));
        }
    }

    /// Waits for the operations in the kernel: their memory and grants are released no earlier.
    fn settle(&mut self) {
        while self.uring.is_some() && self.lane.unfinished() > 0 {
            let settled = self.send().and_then(|_| self.enter(1)).and_then(|()| self.reap());
            if let Err(error) = settled {
                tracing::error!(%error, "a queue's operations could not be waited for; their memory is leaked");
                std::mem::forget(self.lane.clone());
                return;
            }
        }
    }
}

impl Drop for Queue {
    /// Waits for the operations in the kernel, then gives up what is left. Requests that were not answered are answered
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
