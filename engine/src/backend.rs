//! What does the ops of a lane: a ring of the kernel or the threads of a pool, with the same results.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::lane::Lane;
use crate::pool::{Pooled, ThreadPool};
use crate::sys::EventFd;
use crate::uring::{Completed, Issuer, Obstacle, RingUnavailable, Uring};

/// What a queue or the shared work of an image is to be done by.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub enum Choice {
    /// io_uring. If there is none, setting up fails and says why.
    #[default]
    Ring,
    /// The threads of this pool.
    Pool(ThreadPool),
    /// io_uring; if there is none, the threads of this pool. One line for each pool tells why, at level `warn`.
    Auto(ThreadPool),
}

/// What a queue or the shared work of an image is done by.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InUse {
    /// io_uring.
    Ring {
        /// The set-up flags that the kernel took, without their prefix.
        flags: &'static str,
    },
    /// The threads of a pool.
    Pool {
        /// Why there is no ring; `None` if the pool was asked for.
        instead: Option<RingUnavailable>,
    },
    /// Nothing but the calling thread: memory and simulated disks need no more.
    Caller,
}

/// Why a queue or an image has nothing that does its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// There is no ring, and nothing else was allowed.
    #[error(transparent)]
    Ring(#[from] RingUnavailable),
    /// The kernel has no thread or no descriptor left.
    #[error("no thread or descriptor for I/O: {}", io::Error::from_raw_os_error(*.errno))]
    System {
        /// What the kernel says.
        errno: i32,
    },
}

impl BackendError {
    /// The error number that a program would report.
    pub fn errno(&self) -> i32 {
        match self {
            BackendError::Ring(_) => libc::ENOTSUP,
            BackendError::System { errno } => *errno,
        }
    }
}

impl From<io::Error> for BackendError {
    fn from(error: io::Error) -> Self {
        BackendError::System { errno: error.raw_os_error().unwrap_or(libc::EIO) }
    }
}

/// One of them, set up for one lane.
pub(crate) enum Backend {
    Ring(Box<Uring>),
    Pool(Pooled, Option<RingUnavailable>),
}

impl Backend {
    /// Sets up what `choice` says, with room for `entries` ops.
    pub(crate) fn new(choice: &Choice, entries: u32, issuer: Issuer) -> Result<Self, BackendError> {
        match choice {
            Choice::Ring => Ok(Backend::Ring(Box::new(Uring::new(entries, issuer)?))),
            Choice::Pool(pool) => Ok(Backend::Pool(Pooled::new(pool, issuer)?, None)),
            Choice::Auto(pool) => match Uring::new(entries, issuer) {
                Ok(ring) => Ok(Backend::Ring(Box::new(ring))),
                // A mistake of the caller.
                Err(unavailable) if matches!(unavailable.obstacle, Obstacle::Depth(_)) => {
                    Err(unavailable.into())
                }
                Err(unavailable) => {
                    let pooled = Pooled::new(pool, issuer)?;
                    pool.tell(&unavailable);
                    Ok(Backend::Pool(pooled, Some(unavailable)))
                }
            },
        }
    }

    pub(crate) fn in_use(&self) -> InUse {
        match self {
            Backend::Ring(ring) => InUse::Ring { flags: ring.setup() },
            Backend::Pool(_, instead) => InUse::Pool { instead: *instead },
        }
    }

    /// Makes the calling thread the only one that enters.
    pub(crate) fn enable(&self) -> io::Result<()> {
        match self {
            Backend::Ring(ring) => ring.enable(),
            Backend::Pool(..) => Ok(()),
        }
    }

    /// Signals `event` when something can be reaped that could not before.
    pub(crate) fn signal_to(&self, event: &Arc<EventFd>) -> io::Result<()> {
        match self {
            Backend::Ring(ring) => ring.signal_to(event.as_raw_fd()),
            Backend::Pool(pooled, _) => {
                pooled.signal_to(event);
                Ok(())
            }
        }
    }

    /// Watches an event: it ends a sleep. A ring tells of it by a completion with `key`.
    pub(crate) fn watch(&mut self, event: &EventFd, key: u64) -> io::Result<()> {
        match self {
            Backend::Ring(ring) => ring.watch(event.as_raw_fd(), key),
            Backend::Pool(pooled, _) => pooled.watch(event),
        }
    }

    /// Ends the watch with `key`, of an event that may be gone. A pool has forgotten it with its last descriptor.
    pub(crate) fn unwatch(&mut self, key: u64) -> io::Result<()> {
        match self {
            Backend::Ring(ring) => ring.unwatch(key),
            Backend::Pool(..) => Ok(()),
        }
    }

    /// Takes the unsent ops of `lane`, and says how many.
    pub(crate) fn fill(&mut self, lane: &Lane) -> io::Result<usize> {
        match self {
            Backend::Ring(ring) => ring.fill(lane),
            Backend::Pool(pooled, _) => Ok(pooled.fill(lane)),
        }
    }

    /// Whether anything was taken that is not submitted.
    pub(crate) fn holds_entries(&mut self) -> bool {
        match self {
            Backend::Ring(ring) => ring.holds_entries(),
            Backend::Pool(pooled, _) => pooled.holds_entries(),
        }
    }

    /// Whether completions are ready that only a call makes visible.
    pub(crate) fn holds_completions(&mut self) -> bool {
        match self {
            Backend::Ring(ring) => ring.holds_completions(),
            Backend::Pool(..) => false,
        }
    }

    /// Submits everything and waits for `want` completions or events, 0 or 1.
    pub(crate) fn enter(&mut self, want: u32) -> io::Result<()> {
        match self {
            Backend::Ring(ring) => ring.enter(want),
            Backend::Pool(pooled, _) if want == 0 => {
                pooled.submit();
                Ok(())
            }
            Backend::Pool(pooled, _) => pooled.enter_for(None),
        }
    }

    /// The same, waiting for one of them for so long at most.
    pub(crate) fn enter_for(&mut self, limit: Duration) -> io::Result<()> {
        match self {
            Backend::Ring(ring) => ring.enter_for(1, limit),
            Backend::Pool(pooled, _) => pooled.enter_for(Some(limit)),
        }
    }

    /// Collects completions.
    pub(crate) fn reap(&mut self, into: &mut Vec<Completed>) {
        match self {
            Backend::Ring(ring) => ring.reap(into),
            Backend::Pool(pooled, _) => pooled.reap(into),
        }
    }
}
