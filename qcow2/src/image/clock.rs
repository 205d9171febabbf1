//! What an fdatasync covers, told by numbers.
//!
//! Whatever reaches the file (a refill, the writes of a cut) takes a *stamp* when it has landed. An fdatasync
//! remembers the latest stamp when it begins; when it has succeeded, everything up to that stamp is durable. A
//! cluster that is refilled again takes a new stamp, so an older sync that is still running cannot clean it by
//! mistake: a generation, not a bit.

/// When something landed. Stamp zero is durable from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Stamp(u64);

/// The stamps of one file.
#[derive(Debug, Default)]
pub(crate) struct Clock {
    landed: u64,
    synced: u64,
}

impl Clock {
    /// A new stamp, for what has just landed.
    pub(crate) fn landed(&mut self) -> Stamp {
        self.landed += 1;
        Stamp(self.landed)
    }

    /// To be called when an fdatasync is about to begin, and kept for [`Clock::synced`].
    pub(crate) fn sync_begins(&self) -> Stamp {
        Stamp(self.landed)
    }

    /// The fdatasync that began at `begin` has succeeded.
    pub(crate) fn synced(&mut self, begin: Stamp) {
        self.synced = self.synced.max(begin.0);
    }

    /// Whether what took `stamp` is durable.
    pub(crate) fn is_durable(&self, stamp: Stamp) -> bool {
        stamp.0 <= self.synced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_covers_what_had_landed_when_it_began() {
        let mut clock = Clock::default();
        assert!(clock.is_durable(Stamp::default()));
        let first = clock.landed();
        let begin = clock.sync_begins();
        let second = clock.landed();
        clock.synced(begin);
        assert!(clock.is_durable(first));
        assert!(!clock.is_durable(second));
        // An older sync that ends late takes nothing back.
        let later = clock.sync_begins();
        clock.synced(later);
        clock.synced(begin);
        assert!(clock.is_durable(second));
    }
}
