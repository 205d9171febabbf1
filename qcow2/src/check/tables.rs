//! The walk over all L1 and L2 tables, those of snapshots too.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use super::counts::Kind;
use super::report::{CheckError, Finding, LimitKind, Place};
use super::{Checker, PIECE_BYTES, Reach};
use crate::address::HostOffset;
use crate::compressed::CompressedData;
use crate::entry::{EntryError, L1Entry, L2Entry, bits};
use crate::geometry::TABLE_ENTRY_BYTES;
use crate::header::{Header, L1Table};
use crate::snapshot::SnapshotTable;

/// L2 tables that all L1 tables together may name: more than the largest of them has entries.
const MAX_TABLES: usize = 8 << 20;

/// An L2 table as it is walked.
struct Table {
    offset: HostOffset,
    /// Entries of the active L1 table that lead to it: everything in it counts as often.
    active: u64,
    /// Entries of the L1 tables of snapshots that do.
    inactive: u64,
    /// Where the next cluster would lie if nothing were fragmented.
    expected: Option<u64>,
}

impl Table {
    fn times(&self) -> u64 {
        self.active + self.inactive
    }
}

/// Whose an L1 table is.
#[derive(Clone, Copy)]
enum Whose {
    /// The guest's.
    Active,
    /// That of a snapshot, by its place in the table of them.
    Snapshot(u64),
}

/// The L2 tables found so far: each with how often the active L1 table names it, and how often others do.
#[derive(Default)]
struct Found {
    tables: Vec<(HostOffset, u32, u32)>,
    /// How many there were when they were last made one entry each.
    merged: usize,
}

impl Found {
    fn add(&mut self, offset: HostOffset, whose: Whose) {
        let (active, inactive) = match whose {
            Whose::Active => (1, 0),
            Whose::Snapshot(_) => (0, 1),
        };
        self.tables.push((offset, active, inactive));
        if self.tables.len() > 2 * self.merged + (1 << 16) {
            self.merge();
        }
    }

    fn merge(&mut self) {
        self.tables.sort_unstable();
        self.tables.dedup_by(|next, first| {
            let same = next.0 == first.0;
            if same {
                first.1 = first.1.saturating_add(next.1);
                first.2 = first.2.saturating_add(next.2);
            }
            same
        });
        self.merged = self.tables.len();
    }
}

impl Checker<'_> {
    /// Counts the references of all L1 tables and of everything below them.
    pub(super) fn walk_l1_tables(&mut self, header: &Header) -> Result<(), CheckError> {
        let snapshots = self.snapshots(header)?;
        let mut found = Found::default();
        self.walk_l1(Whose::Active, header.l1(), &mut found)?;
        for (number, l1) in (0..).zip(snapshots) {
            self.walk_l1(Whose::Snapshot(number), l1, &mut found)?;
        }
        // A table with many references is read once: a small hostile file cannot name it a
        // million times to keep us busy.
        found.merge();
        for (offset, active, inactive) in found.tables {
            let (active, inactive) = (u64::from(active), u64::from(inactive));
            self.walk_l2(Table { offset, active, inactive, expected: None })?;
        }
        Ok(())
    }

    /// Counts the references to the snapshot table and returns the L1 tables that it names.
    fn snapshots(&mut self, header: &Header) -> Result<Vec<L1Table>, CheckError> {
        let mut table = SnapshotTable::new(header, self.reader.len())?;
        let mut l1_tables = Vec::new();
        while let Some((offset, bytes)) = table.wanted() {
            let mut piece = vec![0; bytes];
            self.reader.read(offset, &mut piece)?;
            table.feed(&piece)?;
            l1_tables.extend(table.take().into_iter().map(|snapshot| snapshot.l1));
        }
        let place = Place::SnapshotTable;
        self.shared_tables = !l1_tables.is_empty();
        self.refer(place, header.snapshot_table(), table.bytes(), Kind::Metadata, 1)?;
        Ok(l1_tables)
    }

    /// Checks the entries of an L1 table, and notes the L2 tables that can be read, once for
    /// each reference.
    fn walk_l1(&mut self, whose: Whose, l1: L1Table, found: &mut Found) -> Result<(), CheckError> {
        let place = match whose {
            Whose::Active => Place::L1Table,
            Whose::Snapshot(snapshot) => Place::SnapshotL1Table { snapshot },
        };
        if self.refer(place, l1.offset, l1.bytes(), Kind::Metadata, 1)? == Reach::Beyond {
            return Ok(());
        }
        let mut piece = vec![0; PIECE_BYTES];
        let mut done = 0;
        while done < l1.bytes() {
            let bytes = (l1.bytes() - done).min(PIECE_BYTES as u64) as usize;
            let piece = piece.get_mut(..bytes).unwrap_or_default();
            let offset = HostOffset::new(l1.offset.get().saturating_add(done));
            self.reader.read(offset, piece)?;
            for (index, raw) in (done / TABLE_ENTRY_BYTES..).zip(piece.as_chunks::<8>().0) {
                if let Some(table) = self.check_l1_entry(whose, index, u64::from_be_bytes(*raw))? {
                    found.add(table, whose);
                }
            }
            if found.merged > MAX_TABLES {
                let limit = (MAX_TABLES * size_of::<(HostOffset, u32, u32)>()) as u64;
                return Err(CheckError::Limit { kind: LimitKind::Memory, limit });
            }
            done += bytes as u64;
        }
        Ok(())
    }

    /// Checks an L1 entry and counts its reference. Returns the L2 table if it can be read.
    fn check_l1_entry(
        &mut self,
        whose: Whose,
        index: u64,
        raw: u64,
    ) -> Result<Option<HostOffset>, CheckError> {
        let place = match whose {
            Whose::Active => Place::L1Entry { index },
            Whose::Snapshot(snapshot) => Place::SnapshotL1Entry { snapshot, index },
        };
        // With reserved bits the rest of the entry may still be right.
        let usable = raw & (bits::COPIED | bits::OFFSET);
        match L1Entry::decode(raw, &self.geometry) {
            Ok(L1Entry::Unallocated) => return Ok(None),
            Ok(L1Entry::Table(..)) => {}
            Err(error) => {
                self.find(Finding::Entry { place, error }, 1);
                match L1Entry::decode(usable, &self.geometry) {
                    Ok(L1Entry::Table(..)) => {}
                    _ => return Ok(None),
                }
            }
        }
        let table = HostOffset::new(raw & bits::OFFSET);
        // The flag says nothing in tables of snapshots, which nobody writes.
        if matches!(whose, Whose::Active) {
            self.check_copied(place, raw, table, 1);
        }
        // Where there are snapshots a table has several references by right.
        let kind = if self.shared_tables { Kind::Data } else { Kind::Metadata };
        let reach = self.refer(place, table, self.geometry.cluster_size(), kind, 1)?;
        Ok((reach == Reach::Inside).then_some(table))
    }

    fn walk_l2(&mut self, mut table: Table) -> Result<(), CheckError> {
        let size = self.geometry.cluster_size();
        let mut piece = vec![0; PIECE_BYTES.min(size as usize)];
        let start = table.offset.get();
        // What lies behind the end of the file reads as zeros: nothing is mapped there.
        let end = start.saturating_add(size).min(self.reader.len());
        for (number, offset) in (start..end).step_by(piece.len()).enumerate() {
            self.reader.read(HostOffset::new(offset), &mut piece)?;
            let first = (number * piece.len()) as u64 / TABLE_ENTRY_BYTES;
            for (index, raw) in (first..).zip(piece.as_chunks::<8>().0) {
                let raw = u64::from_be_bytes(*raw);
                if raw != 0 {
                    self.check_l2_entry(&mut table, index, raw)?;
                }
            }
        }
        Ok(())
    }

    fn check_l2_entry(
        &mut self,
        table: &mut Table,
        index: u64,
        raw: u64,
    ) -> Result<(), CheckError> {
        let place = Place::L2Entry { table: table.offset, index };
        let times = table.times();
        if raw & bits::COMPRESSED != 0 {
            return self.check_compressed(place, raw, table);
        }
        match L2Entry::decode(raw, &self.geometry) {
            Ok(_) => {}
            Err(error @ EntryError::ReservedBits { .. }) => {
                self.find(Finding::Entry { place, error }, times);
                let usable =
                    raw & (bits::COPIED | bits::OFFSET | self.geometry.version().zero_flag());
                if let Err(error) = L2Entry::decode(usable, &self.geometry) {
                    self.find(Finding::Entry { place, error }, times);
                }
            }
            Err(error) => self.find(Finding::Entry { place, error }, times),
        }
        let offset = HostOffset::new(raw & bits::OFFSET);
        if offset == HostOffset::ZERO {
            return Ok(());
        }
        self.report.allocated_clusters += table.active;
        if table.expected.is_some_and(|expected| expected != offset.get()) {
            self.report.fragmented_clusters += table.active;
        }
        table.expected = Some(offset.get() + self.geometry.cluster_size());
        if table.active > 0 {
            self.check_copied(place, raw, offset, table.active);
        }
        self.refer(place, offset, self.geometry.cluster_size(), Kind::Data, times)?;
        Ok(())
    }

    /// Compressed data: any number of sectors at any byte. Its contents are not looked at.
    fn check_compressed(
        &mut self,
        place: Place,
        raw: u64,
        table: &Table,
    ) -> Result<(), CheckError> {
        let times = table.times();
        if raw & bits::COPIED != 0 {
            self.find(Finding::CompressedCopied { place, raw }, times);
        }
        let data = CompressedData::of_raw(raw, &self.geometry);
        self.report.allocated_clusters += table.active;
        self.report.fragmented_clusters += table.active;
        self.report.compressed_clusters += table.active;
        self.refer(place, data.offset(), data.bytes(), Kind::Data, times)?;
        Ok(())
    }

    /// Compares the COPIED flag with the refcount in the image, if that is known.
    fn check_copied(&mut self, place: Place, raw: u64, offset: HostOffset, times: u64) {
        let cluster = self.geometry.host_cluster(offset);
        if self.refcount_known(cluster) {
            let refcount = self.counts.get(cluster.get()).refcount;
            if (refcount == 1) != (raw & bits::COPIED != 0) {
                self.find(Finding::Copied { place, raw, refcount }, times);
            }
        }
    }
}
