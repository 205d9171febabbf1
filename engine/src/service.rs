//! The ring of an image's shared work.
//!
//! A completion is only seen by who reaps its ring, and a queue's own ring belongs to one thread. Were the ops of
//! shared work on the ring of the queue that started it, a queue that its owner no longer polls would keep them from
//! everybody. So each image has a ring of its own, without a single issuer and without deferred task work: the kernel
//! posts its completions whatever the submitting thread does, and every attached queue sends and reaps. Its eventfd
//! wakes the queues that sleep. The jobs themselves are driven the same way: any queue polls those that are ready.
//!
//! A pool of threads in the place of the ring is driven in the same steps, by the same callers.
//!
//! The lock *service* guards the ring. It is held to submit without waiting and to collect completions; they are
//! handed on after it is released.

use std::future::Future;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use blkring_tracker::sync::Mutex;

use crate::backend::{Backend, BackendError, Choice, InUse};
use crate::clock;
use crate::faults::EnterFaults;
use crate::job::{Job, Jobs};
use crate::lane::{Delayed, Lane, LaneCounts, LaneKind, Sent};
use crate::queue::PATIENCE;
use crate::sys::{self, EventFd};
use crate::uring::{Completed, Issuer};

/// Ops of shared work in flight at most.
const DEPTH: u32 = 64;

/// How long `settle` sleeps before it looks again, in milliseconds.
const SETTLE_POLL_MS: i32 = 20;

/// The lane of shared work, with its ring or pool unless all devices are simulated or in memory.
pub struct Service {
    lane: Lane,
    jobs: Arc<Jobs>,
    backend: Option<Mutex<Backend>>,
    /// Wakes the queues that sleep.
    event: Arc<EventFd>,
}

impl Service {
    /// A service with a ring of the kernel, or the threads of a pool.
    ///
    /// # Errors
    /// If there is neither, as far as `choice` allows it.
    pub fn new(choice: &Choice) -> Result<Arc<Self>, BackendError> {
        let backend = Backend::new(choice, DEPTH, Issuer::Many)?;
        let event = Arc::new(EventFd::new()?);
        backend.signal_to(&event)?;
        let jobs = Jobs::new(Some(event.clone()));
        let kick = Jobs::kicker(&jobs);
        Ok(Arc::new(Service {
            lane: Lane::new(DEPTH as usize, LaneKind::Service, kick, choice),
            jobs,
            backend: Some(Mutex::new(backend)),
            event,
        }))
    }

    /// A service without a ring, for devices in memory and simulated ones. It has an event all the same: a job may be
    /// woken by a thread that takes no turn of a queue.
    ///
    /// # Errors
    /// If there is no descriptor for the event.
    pub fn without_ring(depth: usize) -> Result<Arc<Self>, BackendError> {
        let event = Arc::new(EventFd::new()?);
        let jobs = Jobs::new(Some(event.clone()));
        let kick = Jobs::kicker(&jobs);
        let lane = Lane::new(depth, LaneKind::Service, kick, &Choice::default());
        Ok(Arc::new(Service { lane, jobs, backend: None, event }))
    }

    /// Where shared work issues its ops.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// What its ops are done by.
    pub fn backend(&self) -> InUse {
        self.backend.as_ref().map_or(InUse::Caller, |backend| backend.lock().in_use())
    }

    /// What went through so far.
    pub fn counts(&self) -> LaneCounts {
        self.lane.counts()
    }

    /// Has calls that submit to its ring fail, for tests. Nothing without a ring.
    pub fn fail_enters(&self, faults: &Arc<EnterFaults>) {
        if let Some(backend) = &self.backend
            && let Backend::Ring(ring) = &mut *backend.lock()
        {
            ring.set_faults(faults);
        }
    }

    /// Starts a job: the queues that are attached drive it to its end.
    pub fn start<T: Clone + Send + 'static>(
        &self,
        body: impl Future<Output = T> + Send + 'static,
    ) -> Arc<Job<T>> {
        self.jobs.start(body)
    }

    /// Drops all jobs where they stand. For the end of an image, after [`Service::settle`].
    pub fn abandon_jobs(&self) {
        self.jobs.abandon();
    }

    pub(crate) fn event(&self) -> &EventFd {
        &self.event
    }

    pub(crate) fn begin_turn(&self) {
        self.jobs.begin_turn();
    }

    /// Ends a turn. Says whether nothing is left to do until something completes or is woken.
    pub(crate) fn end_turn(&self) -> bool {
        let (rest, unsent) = (self.jobs.end_turn(), self.lane.has_unsent());
        if unsent {
            // As of a job that is ready: this queue may take no other turn.
            self.event.signal();
        }
        rest && !unsent
    }

    /// Jobs that have not ended.
    #[cfg(feature = "sim")]
    pub(crate) fn jobs(&self) -> usize {
        self.jobs.len()
    }

    #[cfg(feature = "sim")]
    pub(crate) fn has_work(&self) -> bool {
        self.jobs.has_ready() || self.lane.has_unsent()
    }

    /// Polls the jobs that are ready, sends what they issued and hands on what has completed. Never waits. Says
    /// whether there was anything to do.
    pub(crate) fn turn(&self) -> io::Result<bool> {
        let ran = self.jobs.run();
        Ok(self.exchange()? | ran)
    }

    /// Sends what is unsent and hands on what has completed.
    fn exchange(&self) -> io::Result<bool> {
        let Some(backend) = &self.backend else {
            return Ok(self.lane.send(|_, _, _| Sent::Done(-libc::EBADF)) > 0);
        };
        let mut completed = Vec::new();
        let busy = {
            let mut backend = backend.lock();
            let filled = backend.fill(&self.lane)?;
            if filled > 0 || backend.holds_entries() || backend.holds_completions() {
                backend.enter(0)?;
            }
            backend.reap(&mut completed);
            // What the kernel has refused for the moment is to be submitted again before anybody rests.
            filled > 0 || backend.holds_entries()
        };
        self.hand_on(&completed);
        Ok(busy || !completed.is_empty())
    }

    fn hand_on(&self, completed: &[Completed]) {
        for one in completed {
            self.lane.complete(one.key, one.result, None);
        }
    }

    /// Waits until no op is in flight, for a minute at most. For the end of an image whose queues are gone.
    pub fn settle(&self) -> io::Result<()> {
        self.lane.close(if self.backend.is_some() { Delayed::Wait } else { Delayed::End });
        let end = clock::now() + PATIENCE;
        while self.lane.unfinished() > 0 {
            let exchanged = self.exchange();
            if clock::now() >= end {
                let late = io::Error::from_raw_os_error(libc::ETIMEDOUT);
                return exchanged.and(Err(late));
            }
            if let Ok(true) = exchanged {
                continue;
            }
            if self.backend.is_none() {
                return Ok(());
            }
            // A queue may reap in between, so the wait is bounded and the count looked at again.
            sys::wait_readable(self.event.as_raw_fd(), SETTLE_POLL_MS);
            self.event.take();
        }
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Err(error) = self.settle() {
            tracing::error!(%error, "shared operations could not be waited for; their memory is leaked");
            std::mem::forget(self.lane.clone());
        }
    }
}
