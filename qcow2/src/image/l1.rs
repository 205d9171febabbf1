//! The active L1 table in memory, and which of its entries are on the disk.

use std::collections::{BTreeMap, BTreeSet};

use super::clock::{Clock, Stamp};
use crate::address::HostCluster;
use crate::entry::{Copied, EntryError, L1Entry};
use crate::geometry::Geometry;

/// The table. Entries beyond what the virtual size needs are kept as they are.
#[derive(Debug)]
pub(crate) struct L1 {
    raw: Vec<u64>,
    /// Changed since the last freeze, with the stamp of the new table's cluster.
    dirty: BTreeMap<usize, Stamp>,
    /// Frozen and not landed.
    in_flight: BTreeSet<usize>,
    /// Landed and perhaps not synced.
    unsynced: BTreeMap<usize, Stamp>,
}

/// What a freeze took: entries, with the stamps of the tables that they name.
#[derive(Debug, Clone, Default)]
pub(crate) struct FrozenL1 {
    pub(crate) entries: Vec<(usize, Stamp)>,
    /// The blocks of the table that hold them: byte offset in the table and contents.
    pub(crate) blocks: Vec<(u64, Vec<u8>)>,
}

impl L1 {
    pub(crate) fn new(raw: Vec<u64>) -> Self {
        L1 { raw, dirty: BTreeMap::new(), in_flight: BTreeSet::new(), unsynced: BTreeMap::new() }
    }

    /// The L2 table for entry `index`, if there is one.
    pub(crate) fn table(
        &self,
        index: usize,
        geometry: &Geometry,
    ) -> Result<Option<(HostCluster, Copied)>, EntryError> {
        let raw = self.raw.get(index).copied().unwrap_or(0);
        match L1Entry::decode(raw, geometry)? {
            L1Entry::Unallocated => Ok(None),
            L1Entry::Table(table, copied) => Ok(Some((table, copied))),
        }
    }

    /// All entries, if each of them is on the disk as it is here.
    pub(crate) fn settled(&self) -> Option<Vec<u64>> {
        (self.dirty.is_empty() && self.in_flight.is_empty()).then(|| self.raw.clone())
    }

    /// The table has so many entries now, at least.
    pub(crate) fn reach(&mut self, entries: usize) {
        self.raw.resize(entries.max(self.raw.len()), 0);
    }

    /// Every table that the entries name; entries that cannot be decoded name none.
    pub(crate) fn tables(&self, geometry: &Geometry) -> impl Iterator<Item = HostCluster> + Clone {
        self.raw.iter().filter_map(|&raw| match L1Entry::decode(raw, geometry) {
            Ok(L1Entry::Table(table, _)) => Some(table),
            _ => None,
        })
    }

    /// Names a new table.
    pub(crate) fn set(
        &mut self,
        index: usize,
        table: HostCluster,
        stamp: Stamp,
        geometry: &Geometry,
    ) {
        let entry = L1Entry::Table(table, Copied::Yes).encode(geometry);
        *self.raw.get_mut(index).expect("the table covers the virtual size") = entry;
        self.dirty.insert(index, stamp);
    }

    /// Whether entry `index` is durable.
    pub(crate) fn is_durable(&self, index: usize, clock: &Clock) -> bool {
        !self.dirty.contains_key(&index)
            && !self.in_flight.contains(&index)
            && self.unsynced.get(&index).is_none_or(|&stamp| clock.is_durable(stamp))
    }

    #[cfg(test)]
    fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Takes the changed entries for a cut, as blocks of `unit` bytes of the table.
    pub(crate) fn freeze(&mut self, unit: u64) -> FrozenL1 {
        let entries: Vec<(usize, Stamp)> = std::mem::take(&mut self.dirty).into_iter().collect();
        self.in_flight.extend(entries.iter().map(|(index, _)| *index));
        let per_block = usize::try_from(unit / 8).expect("a block is small");
        let numbers: BTreeSet<usize> = entries.iter().map(|(index, _)| index / per_block).collect();
        let blocks = numbers.into_iter().map(|number| {
            let first = number * per_block;
            let mut bytes: Vec<u8> = self
                .raw
                .iter()
                .skip(first)
                .take(per_block)
                .flat_map(|raw| raw.to_be_bytes())
                .collect();
            bytes.resize(per_block * 8, 0);
            (first as u64 * 8, bytes)
        });
        FrozenL1 { blocks: blocks.collect(), entries }
    }

    pub(crate) fn landed(&mut self, frozen: &FrozenL1, stamp: Stamp) {
        for (index, _) in &frozen.entries {
            self.in_flight.remove(index);
            self.unsynced.insert(*index, stamp);
        }
    }

    /// The cut failed: the entries are to be written again.
    pub(crate) fn put_back(&mut self, frozen: &FrozenL1) {
        for (index, table) in &frozen.entries {
            self.in_flight.remove(index);
            self.dirty.entry(*index).or_insert(*table);
        }
    }

    /// Forgets what an fdatasync has covered.
    pub(crate) fn synced(&mut self, clock: &Clock) {
        self.unsynced.retain(|_, stamp| !clock.is_durable(*stamp));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_entry_is_frozen_with_its_block() {
        let geometry = Geometry::new(16, 1 << 40).unwrap();
        let (mut l1, mut clock) = (L1::new(vec![0; 100]), Clock::default());
        assert_eq!(l1.table(70, &geometry), Ok(None));
        let stamp = clock.landed();
        l1.set(70, HostCluster::new(9), stamp, &geometry);
        assert_eq!(l1.table(70, &geometry), Ok(Some((HostCluster::new(9), Copied::Yes))));
        assert!(!l1.is_durable(70, &clock));
        let frozen = l1.freeze(512);
        assert_eq!(frozen.entries, [(70, stamp)]);
        let [(512, bytes)] = frozen.blocks.as_slice() else { panic!("{frozen:?}") };
        assert_eq!(bytes.len(), 512);
        assert_eq!(bytes[6 * 8..7 * 8], (1u64 << 63 | 9 << 16).to_be_bytes());
        l1.put_back(&frozen);
        assert!(l1.has_dirty());
        let frozen = l1.freeze(512);
        l1.landed(&frozen, clock.landed());
        assert!(!l1.is_durable(70, &clock));
        let begin = clock.sync_begins();
        clock.synced(begin);
        assert!(l1.is_durable(70, &clock));
    }
}
