//! How a queue is made.

use std::time::Duration;

use super::{PATIENCE, Polling};
use crate::backend::Choice;
use crate::statistics::Latencies;
use crate::variant::Variants;

/// How large a queue is, and what does its work.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct QueueOptions {
    /// Requests accepted and not answered at most; one more is refused with would-block.
    pub requests: usize,
    /// Operations in the ring at most, 1 to [`MAX_DEPTH`](crate::MAX_DEPTH) (a power of two); requests wait for a slot.
    pub depth: u32,
    /// Whether the queue looks for completions for a while before it sleeps. By default it does not.
    pub polling: Polling,
    /// Whether [`Queue::statistics`](crate::Queue::statistics) tells how long requests took. By default it does not.
    pub latencies: Latencies,
    /// How long a queue that is dropped waits for operations in the kernel. What is left then is leaked, memory and
    /// all, since the kernel may still use it.
    pub patience: Duration,
    /// What the operations are done by.
    pub backend: Choice,
    pub(super) variants: Variants,
}

impl Default for QueueOptions {
    fn default() -> Self {
        QueueOptions {
            requests: 256,
            depth: 128,
            polling: Polling::Off,
            latencies: Latencies::Off,
            patience: PATIENCE,
            backend: Choice::default(),
            variants: Variants::default(),
        }
    }
}

impl QueueOptions {
    /// Options with room for `requests` requests and as many operations (rounded up to a power of two).
    pub fn with_requests(requests: usize) -> Self {
        let depth = u32::try_from(requests.clamp(1, 4096).next_power_of_two()).unwrap_or(4096);
        QueueOptions { requests: requests.max(1), depth, ..QueueOptions::default() }
    }

    /// The same with `depth` slots in the ring.
    #[must_use]
    pub fn depth(mut self, depth: u32) -> Self {
        self.depth = depth;
        self
    }

    /// The same with this behaviour when there is nothing to do.
    #[must_use]
    pub fn polling(mut self, polling: Polling) -> Self {
        self.polling = polling;
        self
    }

    /// The same with times counted or not.
    #[must_use]
    pub fn latencies(mut self, latencies: Latencies) -> Self {
        self.latencies = latencies;
        self
    }

    /// The same with this patience.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The same with rules broken, for tests.
    #[cfg(feature = "variants")]
    #[must_use]
    pub fn variants(mut self, variants: Variants) -> Self {
        self.variants = variants;
        self
    }

    /// The same with operations done by this.
    #[must_use]
    pub fn backend(mut self, backend: Choice) -> Self {
        self.backend = backend;
        self
    }
}
