//! The order of entries: a flush stands before what completed after it had begun, and is known when it ends.

use std::collections::VecDeque;

use super::record::Record;

/// An fdatasync under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SyncId(u64);

/// What waits for an fdatasync that began before it.
#[derive(Default)]
pub(super) struct Order {
    waiting: VecDeque<Waiting>,
    last: u64,
}

enum Waiting {
    Completed(Record),
    /// One that has not ended.
    Sync(SyncId),
}

impl Order {
    /// Gives what may be written now.
    pub(super) fn completed(&mut self, record: Record) -> Vec<Record> {
        if self.waiting.is_empty() {
            return vec![record];
        }
        self.waiting.push_back(Waiting::Completed(record));
        Vec::new()
    }

    pub(super) fn sync_begins(&mut self) -> SyncId {
        self.last += 1;
        let id = SyncId(self.last);
        self.waiting.push_back(Waiting::Sync(id));
        id
    }

    /// It has ended, with an entry unless it failed. Gives what may be written now.
    pub(super) fn sync_ended(&mut self, id: SyncId, flush: Option<Record>) -> Vec<Record> {
        let is_it = |one: &Waiting| matches!(one, Waiting::Sync(known) if *known == id);
        if let Some(at) = self.waiting.iter().position(is_it) {
            self.waiting.remove(at);
            if let Some(flush) = flush {
                self.waiting.insert(at, Waiting::Completed(flush));
            }
        }
        let mut ready = Vec::new();
        while let Some(Waiting::Completed(_)) = self.waiting.front() {
            let Some(Waiting::Completed(record)) = self.waiting.pop_front() else { break };
            ready.push(record);
        }
        ready
    }

    /// Everything that has completed, whatever it waits for.
    pub(super) fn take_all(&mut self) -> Vec<Record> {
        let all = std::mem::take(&mut self.waiting);
        let completed = all.into_iter().filter_map(|one| match one {
            Waiting::Completed(record) => Some(record),
            Waiting::Sync(_) => None,
        });
        completed.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::FLUSH;
    use super::*;

    fn record(offset: u64) -> Record {
        Record { offset, ..Record::with(Vec::new()) }
    }

    fn flush() -> Option<Record> {
        Some(Record { flags: FLUSH, ..record(0) })
    }

    fn offsets(records: Vec<Record>) -> Vec<u64> {
        records
            .into_iter()
            .map(|one| if one.flags == FLUSH { u64::MAX } else { one.offset })
            .collect()
    }

    #[test]
    fn a_flush_stands_before_what_completed_after_it_began() {
        let mut order = Order::default();
        assert_eq!(offsets(order.completed(record(1))), [1]);
        let first = order.sync_begins();
        assert!(order.completed(record(2)).is_empty());
        let second = order.sync_begins();
        assert!(order.completed(record(3)).is_empty());
        assert!(order.sync_ended(second, flush()).is_empty(), "the first may still be before it");
        assert_eq!(offsets(order.sync_ended(first, flush())), [u64::MAX, 2, u64::MAX, 3]);
        // One that fails leaves no entry.
        let failed = order.sync_begins();
        assert!(order.completed(record(4)).is_empty());
        assert_eq!(offsets(order.sync_ended(failed, None)), [4]);
        let left = order.sync_begins();
        assert!(order.completed(record(5)).is_empty());
        assert_eq!(offsets(order.take_all()), [5]);
        assert!(order.sync_ended(left, None).is_empty());
    }
}
