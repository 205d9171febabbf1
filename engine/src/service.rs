//! The ring of an image's shared work.
//!
//! A completion is only seen by who reaps its ring, and a queue's own ring belongs to one thread. Were the ops of
//! shared work on the ring of the queue that started it, a queue that its owner no longer polls would keep them from
//! everybody. So each image has a ring of its own, without a single issuer and without deferred task work: the kernel
//! posts its completions whatever the submitting thread does, and every attached queue sends and reaps. Its eventfd
//! wakes the queues that sleep.
//!
//! The lock *service* guards the ring. It is held to submit without waiting and to collect completions; they are
//! handed on after it is released.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use blkring_tracker::sync::Mutex;

use crate::lane::{Lane, LaneCounts, Sent};
use crate::sys::{self, EventFd};
use crate::uring::{Completed, Issuer, RingUnavailable, Uring};

/// Ops of shared work in flight at most.
const DEPTH: u32 = 64;

/// How long `settle` sleeps before it looks again, in milliseconds.
const SETTLE_POLL_MS: i32 = 20;

/// The lane of shared work, with its ring unless all devices are simulated or in memory.
pub struct Service {
    lane: Lane,
    ring: Option<Mutex<Uring>>,
    event: Option<EventFd>,
}

impl Service {
    /// A service with a ring of the kernel.
    pub fn new() -> Result<Arc<Self>, RingUnavailable> {
        let ring = Uring::new(DEPTH, Issuer::Many)?;
        let event = EventFd::new().map_err(RingUnavailable::from)?;
        ring.signal_to(event.as_raw_fd()).map_err(RingUnavailable::from)?;
        Ok(Arc::new(Service {
            lane: Lane::new(DEPTH as usize),
            ring: Some(Mutex::new(ring)),
            event: Some(event),
        }))
    }

    /// A service without a ring, for devices in memory and simulated ones.
    pub fn without_ring(depth: usize) -> Arc<Self> {
        Arc::new(Service { lane: Lane::new(depth), ring: None, event: None })
    }

    /// Where shared work issues its ops.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// What went through so far.
    pub fn counts(&self) -> LaneCounts {
        self.lane.counts()
    }

    pub(crate) fn event(&self) -> Option<&EventFd> {
        self.event.as_ref()
    }

    /// Sends what is unsent and hands on what has completed. Never waits.
    pub(crate) fn turn(&self) -> io::Result<bool> {
        let Some(ring) = &self.ring else {
            return Ok(self.lane.send(|_, _, _| Sent::Done(-libc::EBADF)) > 0);
        };
        let mut completed = Vec::new();
        let filled = {
            let mut ring = ring.lock();
            let filled = ring.fill(&self.lane)?;
            if filled > 0 || ring.has_work() {
                ring.enter(0)?;
            }
            ring.reap(&mut completed);
            filled
        };
        self.hand_on(&completed);
        Ok(filled > 0 || !completed.is_empty())
    }

    fn hand_on(&self, completed: &[Completed]) {
        for one in completed {
            self.lane.complete(one.key, one.result, None);
        }
    }

    /// Waits until no op is in flight. For the end of an image whose queues are gone.
    pub fn settle(&self) -> io::Result<()> {
        while self.lane.unfinished() > 0 {
            let progress = self.turn()?;
            match &self.event {
                // A queue may reap in between, so the wait is bounded and the count looked at again.
                Some(event) if !progress => {
                    sys::wait_readable(event.as_raw_fd(), SETTLE_POLL_MS);
                    event.take();
                }
                Some(_) => (),
                None if !progress => return Ok(()),
                None => (),
            }
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
