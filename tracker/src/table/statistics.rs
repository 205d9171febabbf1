//! Counters and gauges of a table.

/// What a table has done, and what is in it. `at_once + waited = ended + cancelled + running + waiting + parked` at
/// every moment, and the four gauges (`running`, `waiting`, `parked`, `serialising`) are zero when nothing is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests admitted by the call that began them.
    pub at_once: u64,
    /// Requests that waited first.
    pub waited: u64,
    /// Requests that ended while running.
    pub ended: u64,
    /// Requests withdrawn while waiting or parked.
    pub cancelled: u64,
    /// Gauge: requests running now.
    pub running: u64,
    /// Gauge: requests waiting now, never admitted so far.
    pub waiting: u64,
    /// Gauge: late wideners waiting now.
    pub parked: u64,
    /// Gauge: serialising requests now, in any phase.
    pub serialising: u64,
    /// Times `begin` or `widen` was asked not to wait and would have had to. Such a call changes nothing else.
    pub busy: u64,
    /// Times a request began to wait, be it new (`waited`) or a late widener that parked.
    pub waits: u64,
    /// The longest wait so far, counted in requests that ended (`ended`) from its begin to its end.
    pub longest_wait: u64,
}

impl Statistics {
    /// Requests taken in so far.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.at_once + self.waited
    }

    /// Requests in flight in any phase.
    #[must_use]
    pub const fn in_flight(&self) -> u64 {
        self.running + self.waiting + self.parked
    }
}
