//! The refcounts: what they say, where they lie, and whether they are right.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use super::counts::Kind;
use super::report::{CheckError, Finding, Place};
use super::{Checker, PIECE_BYTES, Reach};
use crate::address::{HostCluster, HostOffset};
use crate::entry::{EntryError, RefTableEntry, bits};
use crate::geometry::TABLE_ENTRY_BYTES;
use crate::header::Header;

/// A refcount block as the refcount table names it.
enum Block {
    /// There is none, or it lies behind the end of the file: all counts are zero.
    Absent,
    /// The entry is unaligned: nobody knows the counts.
    Unknown,
    At(HostOffset),
}

impl Checker<'_> {
    /// Reads all refcounts.
    pub(super) fn load_refcounts(&mut self, header: &Header) -> Result<(), CheckError> {
        let table = header.reftable();
        let start = table.offset.get();
        let inside = self.reader.len().saturating_sub(start);
        // At most 8 MiB, and no more than the file has.
        let mut bytes = vec![0; table.bytes(&self.geometry).min(inside) as usize];
        self.reader.read(table.offset, &mut bytes)?;
        self.reftable =
            bytes.as_chunks::<8>().0.iter().map(|raw| u64::from_be_bytes(*raw)).collect();
        for index in 0..self.reftable.len() {
            if let Block::At(offset) = self.block(index) {
                self.load_block(index, offset)?;
            }
        }
        Ok(())
    }

    fn load_block(&mut self, index: usize, block: HostOffset) -> Result<(), CheckError> {
        let size = self.geometry.cluster_size();
        let mut piece = vec![0; PIECE_BYTES.min(size as usize)];
        let end = block.get().saturating_add(size).min(self.reader.len());
        let mut cluster = self.geometry.refblock_start(index).get();
        let width = self.geometry.refcounts();
        let per_chunk = (u64::BITS / width.bits()) as usize;
        for offset in (block.get()..end).step_by(piece.len()) {
            self.reader.read(HostOffset::new(offset), &mut piece)?;
            for counts in piece.as_chunks::<8>().0 {
                for index in (0..per_chunk).take_while(|_| *counts != [0; 8]) {
                    let count = width.get(counts, index).unwrap_or(0);
                    self.counts.set_refcount(cluster.saturating_add(index as u64), count)?;
                }
                cluster = cluster.saturating_add(per_chunk as u64);
            }
        }
        Ok(())
    }

    fn block(&self, index: usize) -> Block {
        let raw = self.reftable.get(index).copied().unwrap_or(0);
        // With reserved bits the rest of the entry may still be right.
        match RefTableEntry::decode(raw & bits::REFTABLE_OFFSET, &self.geometry) {
            Ok(RefTableEntry::Block(cluster)) if cluster.get() < self.file_clusters() => {
                Block::At(self.geometry.host_offset(cluster))
            }
            Err(EntryError::Unaligned { .. }) => Block::Unknown,
            _ => Block::Absent,
        }
    }

    /// Whether the image can tell the refcount of a cluster.
    pub(super) fn refcount_known(&self, cluster: HostCluster) -> bool {
        !matches!(self.block(self.geometry.refblock_index(cluster)), Block::Unknown)
    }

    /// Counts the references to the refcount table and its blocks.
    pub(super) fn walk_reftable(&mut self, header: &Header) -> Result<(), CheckError> {
        let table = header.reftable();
        let bytes = table.bytes(&self.geometry);
        self.refer(Place::RefTable, table.offset, bytes, Kind::Metadata, 1)?;
        for index in 0..self.reftable.len() {
            let raw = self.reftable.get(index).copied().unwrap_or(0);
            if raw != 0 {
                self.check_reftable_entry(index, raw)?;
            }
        }
        Ok(())
    }

    fn check_reftable_entry(&mut self, index: usize, raw: u64) -> Result<(), CheckError> {
        let place = Place::RefTableEntry { index: index as u64 };
        let cluster = match RefTableEntry::decode(raw, &self.geometry) {
            Ok(RefTableEntry::Absent) => return Ok(()),
            Ok(RefTableEntry::Block(cluster)) => cluster,
            Err(error) => {
                self.find(Finding::Entry { place, error }, 1);
                self.note_unknown(place, index);
                return Ok(());
            }
        };
        let bytes = self.geometry.cluster_size();
        let offset = self.geometry.host_offset(cluster);
        if cluster.get() >= self.file_clusters() {
            self.find(Finding::BeyondEof { place, offset, bytes }, 1);
            return Ok(());
        }
        if self.refer(place, offset, bytes, Kind::Metadata, 1)? == Reach::Inside {
            let references = self.counts.get(cluster.get()).references;
            if references != 1 {
                self.find(Finding::RefBlockShared { place, cluster, references }, 1);
            }
        }
        Ok(())
    }

    /// Counts the clusters whose refcounts are behind an unaligned entry.
    fn note_unknown(&mut self, place: Place, index: usize) {
        let start = self.geometry.refblock_start(index).get();
        let behind = self.clusters.saturating_sub(start);
        let clusters = behind.min(self.geometry.refblock_entries());
        if clusters > 0 && matches!(self.block(index), Block::Unknown) {
            self.find(Finding::RefcountsUnknown { place, clusters }, clusters);
        }
    }

    /// Compares refcounts with references, cluster by cluster.
    pub(super) fn compare(&mut self) {
        let counts = std::mem::replace(&mut self.counts, super::Counts::new(0));
        let mut last = 0;
        for (number, count) in counts.iter() {
            let cluster = HostCluster::new(number);
            if number >= self.clusters {
                break;
            }
            if !self.refcount_known(cluster) {
                continue;
            }
            let (refcount, references) = (count.refcount, count.references);
            if refcount != 0 || references != 0 {
                last = number;
            }
            if refcount < u64::from(references) {
                self.find(Finding::RefcountTooLow { cluster, refcount, references }, 1);
            } else if refcount > u64::from(references) {
                self.find(Finding::Leak { cluster, refcount, references }, 1);
            } else if count.metadata && references > 1 {
                self.find(Finding::MetadataShared { cluster, references }, 1);
            }
        }
        let end = last.saturating_add(1).saturating_mul(self.geometry.cluster_size());
        self.report.image_end_offset = end;
    }
}

const _: () = assert!(TABLE_ENTRY_BYTES == 8, "tables are read in chunks of 8 bytes");
