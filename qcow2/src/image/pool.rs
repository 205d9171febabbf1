//! Host clusters that are counted already and wait for a guest cluster.

use std::collections::VecDeque;

use super::clock::{Clock, Stamp};
use crate::address::HostCluster;

/// What a cluster holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// Zeros.
    Zero,
    /// Nothing: its range has never held bytes and lies beyond the end of the file, or in a hole.
    Fresh,
    /// Anything.
    Unknown,
}

/// Consecutive clusters of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    /// The first.
    pub(crate) start: HostCluster,
    /// How many.
    pub(crate) len: u64,
    /// When what prepared them had landed.
    pub(crate) stamp: Stamp,
    pub(crate) content: Content,
}

impl Run {
    /// The first `count` clusters, and what is left.
    fn split(self, count: u64) -> (Run, Option<Run>) {
        let first = Run { len: count.min(self.len), ..self };
        let rest = (self.len > first.len).then(|| Run {
            start: HostCluster::new(self.start.get() + first.len),
            len: self.len - first.len,
            ..self
        });
        (first, rest)
    }

    /// The clusters one by one.
    pub(crate) fn clusters(self) -> impl Iterator<Item = HostCluster> {
        (self.start.get()..self.start.get() + self.len).map(HostCluster::new)
    }
}

/// Clusters that are kept apart by what they hold: ready ones (zero, or fresh where the policy zeroes later), and
/// those of unknown contents.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    runs: VecDeque<Run>,
    clusters: u64,
}

impl Pool {
    /// How many clusters it holds.
    pub(crate) fn len(&self) -> u64 {
        self.clusters
    }

    /// Puts clusters in, next to their neighbours where those are the last.
    pub(crate) fn put(&mut self, run: Run) {
        self.clusters += run.len;
        if let Some(last) = self.runs.back_mut() {
            let adjoins = last.start.get() + last.len == run.start.get();
            if adjoins && last.stamp == run.stamp && last.content == run.content {
                last.len += run.len;
                return;
            }
        }
        self.runs.push_back(run);
    }

    /// Takes up to `count` consecutive clusters.
    pub(crate) fn take(&mut self, count: u64) -> Option<Run> {
        let run = self.runs.pop_front()?;
        let (taken, rest) = run.split(count);
        if let Some(rest) = rest {
            self.runs.push_front(rest);
        }
        self.clusters -= taken.len;
        Some(taken)
    }

    /// Takes one cluster if it holds zeros and what prepared it is durable.
    pub(crate) fn take_clean(&mut self, clock: &Clock) -> Option<HostCluster> {
        let first = self.runs.front()?;
        let clean = first.content == Content::Zero && clock.is_durable(first.stamp);
        if clean { self.take(1).map(|run| run.start) } else { None }
    }

    /// Takes everything.
    pub(crate) fn drain(&mut self) -> Vec<Run> {
        self.clusters = 0;
        std::mem::take(&mut self.runs).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, len: u64) -> Run {
        Run { start: HostCluster::new(start), len, stamp: Stamp::default(), content: Content::Zero }
    }

    #[test]
    fn runs_join_and_split() {
        let mut pool = Pool::default();
        pool.put(run(10, 2));
        pool.put(run(12, 3));
        pool.put(run(20, 1));
        assert_eq!(pool.len(), 6);
        assert_eq!(pool.take(4), Some(run(10, 4)));
        assert_eq!(pool.take(4), Some(run(14, 1)));
        assert_eq!(pool.take(4), Some(run(20, 1)));
        assert_eq!(pool.take(1), None);
    }

    #[test]
    fn clean_means_zero_and_synced() {
        let (mut pool, mut clock) = (Pool::default(), Clock::default());
        let pending = Run { stamp: clock.landed(), ..run(10, 1) };
        pool.put(pending);
        assert_eq!(pool.take_clean(&clock), None);
        clock.synced(clock.sync_begins());
        assert_eq!(pool.take_clean(&clock), Some(pending.start));
        pool.put(Run { content: Content::Unknown, ..run(12, 1) });
        assert_eq!(pool.take_clean(&clock), None);
        assert_eq!(pool.len(), 1);
    }
}
