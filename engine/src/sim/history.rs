//! The values that one cell of the disk (a sector, a size) has been given and that no sync has covered yet.

/// When and by which op a value landed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Landing {
    /// Counts landings on the whole disk.
    pub(super) stamp: u64,
    /// The op's number.
    pub(super) op: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Version<T> {
    landing: Landing,
    pub(super) value: T,
    /// A failed sync covered it: the cache still shows it, but no later sync will write it out.
    lost: bool,
}

impl<T> Version<T> {
    pub(super) fn op(&self) -> u64 {
        self.landing.op
    }
}

/// Landed and volatile values, oldest first.
#[derive(Debug, Clone)]
pub(super) struct History<T>(Vec<Version<T>>);

impl<T> Default for History<T> {
    fn default() -> Self {
        History(Vec::new())
    }
}

impl<T: Clone + PartialEq> History<T> {
    pub(super) fn last(&self) -> Option<&T> {
        self.0.last().map(|version| &version.value)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn versions(&self) -> &[Version<T>] {
        &self.0
    }

    /// A value that equals the one before adds nothing to what a crash may leave, whichever sync comes when, unless
    /// that one is lost.
    pub(super) fn push(&mut self, landing: Landing, value: T) {
        if self.0.last().is_none_or(|last| last.value != value || last.lost) {
            self.0.push(Version { landing, value, lost: false });
        }
    }

    /// What becomes durable when everything up to `stamp` does.
    pub(super) fn settle(&mut self, stamp: u64) -> Option<T> {
        let covered = |v: &Version<T>| v.landing.stamp <= stamp && !v.lost;
        let last = self.0.iter().rposition(covered)?;
        self.0.drain(..=last).next_back().map(|version| version.value)
    }

    /// A sync over everything up to `stamp` has failed.
    pub(super) fn lose(&mut self, stamp: u64) {
        for version in self.0.iter_mut().filter(|v| v.landing.stamp <= stamp) {
            version.lost = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(values: &[(u64, u32)]) -> History<u32> {
        let mut history = History::default();
        for &(stamp, value) in values {
            history.push(Landing { stamp, op: stamp }, value);
        }
        history
    }

    #[test]
    fn a_sync_covers_what_had_landed_before() {
        let mut history = history(&[(1, 10), (2, 20), (5, 50)]);
        assert_eq!(history.settle(0), None);
        assert_eq!(history.settle(3), Some(20));
        assert_eq!(history.versions().len(), 1);
        assert_eq!(history.settle(3), None, "a sync that began earlier changes nothing");
        assert_eq!(history.settle(5), Some(50));
        assert!(history.is_empty());
    }

    #[test]
    fn a_failed_sync_loses_for_good() {
        let mut history = history(&[(1, 10), (2, 20)]);
        history.lose(1);
        history.push(Landing { stamp: 3, op: 3 }, 20);
        assert_eq!(history.settle(1), None);
        history.lose(2);
        assert_eq!(history.settle(9), None);
        assert_eq!(history.last(), Some(&20), "the cache still shows it");
        history.push(Landing { stamp: 10, op: 10 }, 20);
        assert_eq!(history.settle(10), Some(20), "written again, it counts again");
    }
}
