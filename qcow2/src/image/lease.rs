//! Leases: which I/O may still be in a host cluster that no table names any more.
//!
//! An I/O takes a lease when it learns a host address and gives it back when it is done. Leases are counted by
//! *epoch*, not by cluster: a cluster that is unlinked in epoch e may be used again when no lease of an epoch up to e
//! is left. That holds more clusters back than need be, for as long as one I/O lasts, and costs the hot path one
//! increment and one decrement.

use std::collections::VecDeque;

/// When a lease was taken or a cluster unlinked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Epoch(u64);

#[derive(Debug)]
pub(crate) struct Leases {
    /// The epoch of the first count.
    first: u64,
    /// Leases of each epoch that has any, and of the current one.
    counts: VecDeque<u64>,
}

impl Default for Leases {
    fn default() -> Self {
        // There is an epoch before the first, for what is unlinked before any lease.
        Leases { first: 1, counts: VecDeque::from([0]) }
    }
}

impl Leases {
    /// Takes a lease in the current epoch.
    pub(crate) fn take(&mut self) -> Epoch {
        let current = self.counts.back_mut().expect("the current epoch is always there");
        *current += 1;
        self.current()
    }

    /// Gives a lease back.
    pub(crate) fn give_back(&mut self, epoch: Epoch) {
        let index = usize::try_from(epoch.0 - self.first).expect("an epoch in the list");
        let count = self.counts.get_mut(index).expect("epochs with leases are in the list");
        *count -= 1;
        while self.counts.len() > 1 && self.counts.front() == Some(&0) {
            self.counts.pop_front();
            self.first += 1;
        }
    }

    /// The latest epoch whose leases may know a cluster that is unlinked now.
    pub(crate) fn unlink(&mut self) -> Epoch {
        let current = self.current();
        if self.counts.back() == Some(&0) {
            // No lease has been taken in the current epoch yet.
            return Epoch(current.0 - 1);
        }
        self.counts.push_back(0);
        current
    }

    /// Whether no I/O that may know a cluster unlinked in `epoch` is left.
    pub(crate) fn is_over(&self, epoch: Epoch) -> bool {
        epoch.0 < self.first
    }

    /// Leases held.
    #[cfg(test)]
    fn held(&self) -> u64 {
        self.counts.iter().sum()
    }

    fn current(&self) -> Epoch {
        Epoch(self.first + self.counts.len() as u64 - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_is_held_by_leases_taken_before_its_unlinking() {
        let mut leases = Leases::default();
        let before = leases.take();
        let unlinked = leases.unlink();
        assert!(!leases.is_over(unlinked));
        let after = leases.take();
        leases.give_back(before);
        assert!(leases.is_over(unlinked), "a later lease cannot know the cluster");
        leases.give_back(after);
        assert_eq!(leases.held(), 0);
    }

    #[test]
    fn with_no_lease_at_all_it_is_free_at_once() {
        let mut leases = Leases::default();
        let unlinked = leases.unlink();
        assert!(leases.is_over(unlinked));
    }

    #[test]
    fn an_empty_epoch_behind_a_held_one_waits_for_it() {
        let mut leases = Leases::default();
        let held = leases.take();
        let first = leases.unlink();
        let second = leases.unlink();
        assert!(!leases.is_over(first) && !leases.is_over(second));
        leases.give_back(held);
        assert!(leases.is_over(first));
        assert!(leases.is_over(second));
    }
}
