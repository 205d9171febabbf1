//! The clock of the suite.

use std::time::{Duration, Instant};

/// Tells how long it is since it was started.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// Starts now.
    pub fn start() -> Self {
        Clock(Instant::now())
    }

    /// Since the start.
    pub fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
