//! The cache of L2 slices: aligned parts of L2 tables, loaded, changed, frozen and dropped one by one.
//!
//! A slice is *dirty* from a change until a cut has taken it, *in flight* until the write of that cut has landed,
//! *unsynced* until an fdatasync has covered that. Frozen contents are shared with the cut: the first change after a
//! freeze copies them.
//!
//! The budget is soft. A slice with a pin (an allocating write will link into it) or with changes is never dropped;
//! the cache is over its budget by at most those, which the number of requests bounds, until a cut lets them go.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::clock::{Clock, Stamp};

/// Raw entries in the order of the table, as numbers of this machine.
pub(crate) type Entries = Arc<Vec<u64>>;

/// One slice.
#[derive(Debug)]
pub(crate) struct Slice {
    entries: Entries,
    /// Changed since the last freeze.
    dirty: bool,
    /// A link since the last freeze needs its data synced before the entry is written.
    careful: bool,
    /// The latest stamp of a cluster linked since the last freeze.
    linked: Stamp,
    /// Frozen and not landed.
    in_flight: bool,
    /// Used since the clock hand last passed.
    used: bool,
}

impl Slice {
    fn new(entries: Entries) -> Self {
        Slice {
            entries,
            dirty: false,
            careful: false,
            linked: Stamp::default(),
            in_flight: false,
            used: true,
        }
    }

    /// The raw entry at `index`.
    pub(crate) fn get(&self, index: usize) -> u64 {
        self.entries.get(index).copied().expect("the geometry yields indexes within a slice")
    }

    /// All of them, as they are now.
    pub(crate) fn entries(&self) -> Entries {
        self.entries.clone()
    }

    fn is_clean(&self) -> bool {
        !self.dirty && !self.in_flight
    }
}

/// How a change of an entry is to be made durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// In any order with its data.
    Plain,
    /// After an fdatasync of its data.
    Careful,
}

/// What a freeze took of one slice.
#[derive(Debug, Clone)]
pub(crate) struct FrozenSlice {
    /// Which slice.
    pub(crate) number: u64,
    pub(crate) entries: Entries,
    pub(crate) order: Order,
    pub(crate) linked: Stamp,
}

/// The cached slices, by number.
#[derive(Debug)]
pub(crate) struct SliceCache {
    slices: HashMap<u64, Slice>,
    /// The hand of the clock goes round these.
    ring: VecDeque<u64>,
    dirty: Vec<u64>,
    /// How many want a slice to stay, or to come.
    pins: HashMap<u64, usize>,
    /// Written and perhaps not synced yet, whether still cached or not.
    unsynced: HashMap<u64, Stamp>,
    budget: usize,
    entries_per_slice: usize,
}

impl SliceCache {
    /// A cache of `budget` slices (at least one).
    pub(crate) fn new(budget: usize, entries_per_slice: usize) -> Self {
        SliceCache {
            slices: HashMap::new(),
            ring: VecDeque::new(),
            dirty: Vec::new(),
            pins: HashMap::new(),
            unsynced: HashMap::new(),
            budget: budget.max(1),
            entries_per_slice,
        }
    }

    /// The slice, if it is cached.
    pub(crate) fn get(&mut self, number: u64) -> Option<&Slice> {
        let slice = self.slices.get_mut(&number)?;
        slice.used = true;
        Some(slice)
    }

    /// Puts a loaded slice in, unless somebody was faster, and drops others down to the budget.
    pub(crate) fn insert(&mut self, number: u64, entries: Entries) {
        if self.slices.contains_key(&number) {
            return;
        }
        self.shrink(self.budget - 1);
        self.slices.insert(number, Slice::new(entries));
        self.ring.push_back(number);
    }

    /// Puts an empty slice of a new table in.
    pub(crate) fn insert_zero(&mut self, number: u64) {
        let entries = Arc::new(vec![0; self.entries_per_slice]);
        self.insert(number, entries);
    }

    /// Whether the cache is full of changes, so that a load should let a cut go first.
    pub(crate) fn wants_cut(&self) -> bool {
        self.slices.len() >= self.budget
            && !self.dirty.is_empty()
            && !self
                .slices
                .iter()
                .any(|(number, slice)| slice.is_clean() && !self.pins.contains_key(number))
    }

    /// Drops slices that nothing holds until `target` are left; a second chance for those used since the last round.
    fn shrink(&mut self, target: usize) {
        let mut looks = 2 * self.ring.len();
        while self.slices.len() > target && looks > 0 {
            looks -= 1;
            let Some(number) = self.ring.pop_front() else { return };
            let slice = self.slices.get_mut(&number).expect("the ring holds what is cached");
            let idle = slice.is_clean() && !self.pins.contains_key(&number);
            if idle && !std::mem::take(&mut slice.used) {
                self.slices.remove(&number);
            } else {
                self.ring.push_back(number);
            }
        }
    }

    /// Keeps a slice in the cache, from now or from when it is loaded.
    pub(crate) fn pin(&mut self, number: u64) {
        *self.pins.entry(number).or_default() += 1;
    }

    /// Ends a pin.
    pub(crate) fn unpin(&mut self, number: u64) {
        let pins = self.pins.get_mut(&number).expect("every unpin has its pin");
        *pins -= 1;
        if *pins == 0 {
            self.pins.remove(&number);
        }
    }

    /// Changes an entry of a cached slice. `linked` is the stamp of the cluster that it names now.
    pub(crate) fn set(&mut self, number: u64, index: usize, raw: u64, order: Order, linked: Stamp) {
        let slice = self
            .slices
            .get_mut(&number)
            .expect("changed under the lock hold that found it, or pinned");
        *Arc::make_mut(&mut slice.entries)
            .get_mut(index)
            .expect("the geometry yields indexes within a slice") = raw;
        slice.careful |= order == Order::Careful;
        slice.linked = slice.linked.max(linked);
        if !std::mem::replace(&mut slice.dirty, true) {
            self.dirty.push(number);
        }
    }

    /// Whether what the slice says is durable (its L1 entry aside).
    pub(crate) fn is_durable(&self, number: u64, clock: &Clock) -> bool {
        let changing = self.slices.get(&number).is_some_and(|slice| slice.dirty || slice.in_flight);
        !changing && self.unsynced.get(&number).is_none_or(|&stamp| clock.is_durable(stamp))
    }

    /// Forgets what an fdatasync has covered.
    pub(crate) fn synced(&mut self, clock: &Clock) {
        self.unsynced.retain(|_, stamp| !clock.is_durable(*stamp));
    }

    /// Whether any slice is dirty.
    #[cfg(test)]
    fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Takes all that is dirty for a cut. No slice is in flight: cuts hold the slot one at a time.
    pub(crate) fn freeze(&mut self) -> Vec<FrozenSlice> {
        let dirty = std::mem::take(&mut self.dirty);
        let freeze = |number: u64| {
            let slice = self.slices.get_mut(&number).expect("dirty slices stay");
            slice.dirty = false;
            slice.in_flight = true;
            let careful = std::mem::take(&mut slice.careful);
            FrozenSlice {
                number,
                entries: slice.entries.clone(),
                order: if careful { Order::Careful } else { Order::Plain },
                linked: std::mem::take(&mut slice.linked),
            }
        };
        dirty.into_iter().map(freeze).collect()
    }

    /// The frozen slices have landed.
    pub(crate) fn landed(&mut self, frozen: &[FrozenSlice], stamp: Stamp) {
        for one in frozen {
            let slice = self.slices.get_mut(&one.number).expect("slices in flight stay");
            slice.in_flight = false;
            self.unsynced.insert(one.number, stamp);
        }
        self.shrink(self.budget);
    }

    /// The cut failed: what it had taken is to be written again. The live slices keep what changed meanwhile.
    pub(crate) fn put_back(&mut self, frozen: &[FrozenSlice]) {
        for one in frozen {
            let slice = self.slices.get_mut(&one.number).expect("slices in flight stay");
            slice.in_flight = false;
            slice.careful |= one.order == Order::Careful;
            slice.linked = slice.linked.max(one.linked);
            if !std::mem::replace(&mut slice.dirty, true) {
                self.dirty.push(one.number);
            }
        }
    }

    /// Slices in the cache.
    pub(crate) fn len(&self) -> usize {
        self.slices.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(budget: usize) -> SliceCache {
        SliceCache::new(budget, 4)
    }

    fn set(cache: &mut SliceCache, number: u64, index: usize, raw: u64) {
        cache.set(number, index, raw, Order::Plain, Stamp::default());
    }

    #[test]
    fn a_change_after_the_freeze_is_not_in_the_cut() {
        let mut cache = cache(2);
        cache.insert_zero(0);
        set(&mut cache, 0, 1, 7);
        let frozen = cache.freeze();
        set(&mut cache, 0, 1, 8);
        assert_eq!(frozen[0].entries[1], 7);
        assert_eq!(cache.get(0).unwrap().get(1), 8);
        let mut clock = Clock::default();
        cache.landed(&frozen, clock.landed());
        assert!(cache.has_dirty(), "changed again since");
        assert!(!cache.is_durable(0, &clock));
    }

    #[test]
    fn a_failed_cut_is_written_again_with_its_marks() {
        let mut cache = cache(2);
        cache.insert_zero(0);
        cache.set(0, 0, 9, Order::Careful, Stamp::default());
        let frozen = cache.freeze();
        assert!(!cache.has_dirty());
        cache.put_back(&frozen);
        let again = cache.freeze();
        assert_eq!((again[0].entries[0], again[0].order), (9, Order::Careful));
    }

    #[test]
    fn pinned_and_dirty_slices_stay_and_idle_ones_go() {
        let mut cache = cache(1);
        cache.insert_zero(0);
        cache.pin(0);
        cache.insert_zero(1);
        assert_eq!(cache.len(), 2, "over the budget by the pinned one");
        set(&mut cache, 1, 0, 1);
        cache.insert_zero(2);
        assert_eq!(cache.len(), 3);
        cache.unpin(0);
        let frozen = cache.freeze();
        cache.landed(&frozen, Clock::default().landed());
        assert_eq!(cache.len(), 1);
    }

    #[test]
    fn durable_means_landed_and_synced_since() {
        let (mut cache, mut clock) = (cache(2), Clock::default());
        cache.insert_zero(0);
        assert!(cache.is_durable(0, &clock));
        set(&mut cache, 0, 0, 1);
        assert!(!cache.is_durable(0, &clock));
        let frozen = cache.freeze();
        let begin = clock.sync_begins();
        cache.landed(&frozen, clock.landed());
        clock.synced(begin);
        assert!(!cache.is_durable(0, &clock), "the sync began before the slice landed");
        let begin = clock.sync_begins();
        clock.synced(begin);
        assert!(cache.is_durable(0, &clock));
    }
}
