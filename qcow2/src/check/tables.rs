//! The walk over the L1 table and all L2 tables.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use super::counts::Kind;
use super::report::{CheckError, Finding, Place};
use super::{Checker, PIECE_BYTES, Reach};
use crate::address::HostOffset;
use crate::entry::{EntryError, L1Entry, L2Entry, bits};
use crate::geometry::TABLE_ENTRY_BYTES;
use crate::header::Header;

/// An L2 table as it is walked.
struct Table {
    offset: HostOffset,
    /// L1 entries that lead to it: everything in it counts as often.
    times: u64,
    /// Where the next cluster would lie if nothing were fragmented.
    expected: Option<u64>,
}

impl Checker<'_> {
    /// Counts the references of the L1 table and of everything below it.
    pub(super) fn walk_l1(&mut self, header: &Header) -> Result<(), CheckError> {
        let l1 = header.l1();
        if self.refer(Place::L1Table, l1.offset, l1.bytes(), Kind::Metadata, 1)? == Reach::Beyond {
            return Ok(());
        }
        let mut tables = self.l2_tables(header)?;
        // A table with many references is read once: a small hostile file cannot name it a
        // million times to keep us busy.
        tables.sort_unstable();
        for same in tables.chunk_by(|a, b| a == b) {
            if let Some(&offset) = same.first() {
                self.walk_l2(Table { offset, times: same.len() as u64, expected: None })?;
            }
        }
        Ok(())
    }

    /// Checks the entries of the L1 table. Returns the L2 tables that can be read, once for
    /// each reference.
    fn l2_tables(&mut self, header: &Header) -> Result<Vec<HostOffset>, CheckError> {
        let l1 = header.l1();
        let inside = (self.reader.len() / TABLE_ENTRY_BYTES).min(u64::from(l1.entries));
        // At most 32 MiB, and no more than the file has.
        let mut tables = Vec::with_capacity(inside as usize);
        let mut piece = vec![0; PIECE_BYTES];
        let mut done = 0;
        while done < l1.bytes() {
            let bytes = (l1.bytes() - done).min(PIECE_BYTES as u64) as usize;
            let piece = piece.get_mut(..bytes).unwrap_or_default();
            let offset = HostOffset::new(l1.offset.get().saturating_add(done));
            self.reader.read(offset, piece)?;
            for (index, raw) in (done / TABLE_ENTRY_BYTES..).zip(piece.as_chunks::<8>().0) {
                let table = self.check_l1_entry(index, u64::from_be_bytes(*raw))?;
                tables.extend(table);
            }
            done += bytes as u64;
        }
        Ok(tables)
    }

    /// Checks an L1 entry and counts its reference. Returns the L2 table if it can be read.
    fn check_l1_entry(&mut self, index: u64, raw: u64) -> Result<Option<HostOffset>, CheckError> {
        let place = Place::L1Entry { index };
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
        self.check_copied(place, raw, table, 1);
        let reach = self.refer(place, table, self.geometry.cluster_size(), Kind::Metadata, 1)?;
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
        let times = table.times;
        match L2Entry::decode(raw, &self.geometry) {
            Ok(_) => {}
            Err(EntryError::Compressed { .. }) => return self.check_compressed(place, raw, times),
            Err(error @ EntryError::ReservedBits { .. }) => {
                self.find(Finding::Entry { place, error }, times);
                let usable = raw & (bits::COPIED | bits::OFFSET | bits::ZERO);
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
        self.report.allocated_clusters += times;
        if table.expected.is_some_and(|expected| expected != offset.get()) {
            self.report.fragmented_clusters += times;
        }
        table.expected = Some(offset.get() + self.geometry.cluster_size());
        self.check_copied(place, raw, offset, times);
        self.refer(place, offset, self.geometry.cluster_size(), Kind::Data, times)?;
        Ok(())
    }

    /// Compressed data: any number of sectors at any byte. It is counted although the driver
    /// cannot read it.
    fn check_compressed(&mut self, place: Place, raw: u64, times: u64) -> Result<(), CheckError> {
        if raw & bits::COPIED != 0 {
            self.find(Finding::CompressedCopied { place, raw }, times);
        }
        let (offset, bytes) = self.geometry.compressed_range(raw);
        self.report.allocated_clusters += times;
        self.report.fragmented_clusters += times;
        self.report.compressed_clusters += times;
        self.refer(place, offset, bytes, Kind::Data, times)?;
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
