//! The judge of what is in the kernel together.
//!
//! It sees the operations of a file as they go to the kernel and come back, and knows nothing of the tracker that
//! admitted them. A kernel that copes with what an older one made a loss of cannot hide a missing exclusion from it.
//!
//! *Alone to infinity.* From its begin to its end an operation that changes the size is alone from the lower of the size
//! and its own start: no other operation that touches a byte there is under way.
//!
//! *Exclusive blocks.* Where every write is a read-modify-write, nothing touches the bytes of a write while it is under
//! way.
//!
//! *Durable.* When a flush is answered, every change that had ended before the flush was asked for is covered by an
//! fdatasync that began later than the change ended, and has ended well.

use std::sync::Mutex;

use blkring_engine::{Watch, Watched, WatchedKind};

/// Whether others may touch the bytes of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// Yes, if it writes whole blocks.
    #[default]
    Allowed,
    /// No: this file sees writes of parts of blocks only.
    Forbidden,
}

/// The operations of one file.
#[derive(Default)]
pub struct Order(Mutex<State>);

#[derive(Default)]
struct State {
    overlap: Overlap,
    size: u64,
    /// The last number given, to operations and to ends of changes.
    number: u64,
    running: Vec<Running>,
    /// Changes that no fdatasync has covered, with the numbers of their ends.
    volatile: Vec<(u64, Watched)>,
    found: Option<String>,
    together: u64,
}

struct Running {
    number: u64,
    op: Watched,
    /// From here on it is alone.
    alone: Option<u64>,
}

impl Order {
    /// With this rule for writes.
    pub fn new(overlap: Overlap) -> Self {
        Order(Mutex::new(State { overlap, ..State::default() }))
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().expect("nothing in here panics under the lock")
    }

    /// What was found so far, once.
    pub fn found(&self) -> Option<String> {
        self.locked().found.take()
    }

    /// Operations in the kernel.
    pub fn running(&self) -> usize {
        self.locked().running.len()
    }

    /// Operations that began while others were in the kernel.
    pub fn together(&self) -> u64 {
        self.locked().together
    }

    /// Changes so far: what a flush that is asked for now must cover.
    pub fn now(&self) -> u64 {
        self.locked().number
    }

    /// A change that had ended by then, has a byte from `start` to `end`, and is not durable.
    pub fn volatile(&self, by: u64, start: u64, end: u64) -> Option<Watched> {
        let touches = |op: &Watched| op.offset < end && start < op.offset + op.len.max(1);
        let state = self.locked();
        let found = state.volatile.iter().find(|(ended, op)| *ended <= by && touches(op));
        found.map(|(_, op)| *op)
    }

    /// Nobody asks any more for what was changed so far.
    pub fn forget(&self) {
        self.locked().volatile.clear();
    }
}

impl Watch for Order {
    fn begins(&self, op: &Watched) -> u64 {
        let mut state = self.locked();
        let alone = state.alone_from(op);
        let exclusive = state.overlap == Overlap::Forbidden;
        let meets = |other: &&Running| {
            must_not_meet(op, alone, other) || exclusive && is_written_beside(op, &other.op)
        };
        if let Some(other) = state.running.iter().find(meets) {
            let (size, other) = (state.size, other.op);
            let text = format!("{op} while {other} was in the kernel, in a file of {size} bytes");
            state.found.get_or_insert(text);
        }
        state.together += u64::from(!state.running.is_empty());
        state.number += 1;
        let number = state.number;
        state.running.push(Running { number, op: *op, alone });
        number
    }

    fn ends(&self, number: u64, result: i32) {
        let mut state = self.locked();
        let Some(place) = state.running.iter().position(|one| one.number == number) else { return };
        let Running { op, .. } = state.running.swap_remove(place);
        if result < 0 {
            return;
        }
        let moved = u64::from(result.unsigned_abs());
        state.number += 1;
        let ended = state.number;
        match op.kind {
            WatchedKind::Read => return,
            WatchedKind::Sync => return state.volatile.retain(|(ended, _)| *ended > number),
            WatchedKind::Write | WatchedKind::WriteDurable => {
                state.size = state.size.max(op.offset + moved);
            }
            WatchedKind::Allocate => state.size = state.size.max(op.offset + op.len),
            WatchedKind::Truncate => state.size = op.offset,
            WatchedKind::Punch => (),
        }
        if op.kind != WatchedKind::WriteDurable {
            state.volatile.push((ended, op));
        }
    }
}

impl State {
    /// From where on an operation must be alone, if it changes the size.
    fn alone_from(&self, op: &Watched) -> Option<u64> {
        match op.kind {
            WatchedKind::Truncate => Some(op.offset.min(self.size)),
            WatchedKind::Allocate if op.offset + op.len > self.size => {
                Some(op.offset.min(self.size))
            }
            _ => None,
        }
    }
}

fn must_not_meet(op: &Watched, alone: Option<u64>, other: &Running) -> bool {
    let reaches = |op: &Watched, own: Option<u64>, from: u64| {
        own.is_some() || op.kind != WatchedKind::Sync && op.len > 0 && op.offset + op.len > from
    };
    other.alone.is_some_and(|from| reaches(op, alone, from))
        || alone.is_some_and(|from| reaches(&other.op, other.alone, from))
}

/// Whether one of two writes bytes that the other touches.
fn is_written_beside(one: &Watched, other: &Watched) -> bool {
    let writes = |op: &Watched| matches!(op.kind, WatchedKind::Write | WatchedKind::WriteDurable);
    let common = one.offset < other.offset + other.len && other.offset < one.offset + one.len;
    common && (writes(one) || writes(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(kind: WatchedKind, offset: u64, len: u64) -> Watched {
        Watched { kind, offset, len }
    }

    #[test]
    fn a_write_beyond_a_growing_fallocate_is_found() {
        let order = Order::default();
        let first = order.begins(&op(WatchedKind::Allocate, 0, 4096));
        order.ends(first, 0);
        let write = order.begins(&op(WatchedKind::Write, 0, 4096));
        let grows = order.begins(&op(WatchedKind::Allocate, 8192, 4096));
        assert_eq!(order.found(), None, "the write lies below the end of the file");
        order.begins(&op(WatchedKind::Write, 16384, 4096));
        assert!(order.found().unwrap().contains("Write [16384, 20480) while Allocate"));
        order.ends(grows, 0);
        order.ends(write, 4096);
        assert_eq!((order.running(), order.together()), (1, 2));
    }

    #[test]
    fn growth_finds_what_is_there_already() {
        let order = Order::default();
        order.begins(&op(WatchedKind::Write, 8192, 512));
        order.begins(&op(WatchedKind::Truncate, 4096, 0));
        assert!(order.found().is_some());
        let two = Order::default();
        two.begins(&op(WatchedKind::Truncate, 4096, 0));
        two.begins(&op(WatchedKind::Truncate, 0, 0));
        assert!(two.found().is_some());
    }

    #[test]
    fn a_block_that_is_written_in_parts_is_touched_by_one_at_a_time() {
        for (overlap, found) in [(Overlap::Allowed, false), (Overlap::Forbidden, true)] {
            let order = Order::new(overlap);
            let first = order.begins(&op(WatchedKind::Read, 0, 4096));
            order.ends(first, 4096);
            order.begins(&op(WatchedKind::Write, 0, 4096));
            order.begins(&op(WatchedKind::Read, 4096, 4096));
            assert_eq!(order.found(), None);
            order.begins(&op(WatchedKind::Read, 0, 8192));
            assert_eq!(order.found().is_some(), found);
        }
    }

    #[test]
    fn a_sync_covers_what_had_ended_when_it_began() {
        let order = Order::default();
        let early = order.begins(&op(WatchedKind::Write, 0, 512));
        let late = order.begins(&op(WatchedKind::Write, 512, 512));
        order.ends(early, 512);
        let sync = order.begins(&op(WatchedKind::Sync, 0, 0));
        order.ends(late, 512);
        assert!(order.volatile(order.now(), 0, 512).is_some(), "the sync has not ended");
        order.ends(sync, 0);
        assert_eq!(order.volatile(order.now(), 0, 512), None);
        assert!(order.volatile(order.now(), 0, 1024).is_some(), "the second write is not covered");
        let failed = order.begins(&op(WatchedKind::Sync, 0, 0));
        order.ends(failed, -libc::EIO);
        assert!(order.volatile(order.now(), 0, 1024).is_some());
    }
}
