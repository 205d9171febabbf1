//! The walk over the dirty bitmaps. What they say is not looked at, only what they take.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use super::counts::Kind;
use super::report::{CheckError, Finding, Place};
use super::{Checker, PIECE_BYTES, Reach};
use crate::address::HostOffset;
use crate::bitmap::{Bitmap, Directory};
use crate::entry::{EntryError, bits};
use crate::geometry::TABLE_ENTRY_BYTES;
use crate::header::Header;

/// Bits of an entry of a bitmap's table that must be zero.
const RESERVED: u64 = !(bits::OFFSET | ALL_ONES);

/// Set in an entry without a cluster: all bits in it are one.
const ALL_ONES: u64 = 1;

impl Checker<'_> {
    /// Counts the references of the directory of bitmaps and of everything below it.
    pub(super) fn walk_bitmaps(&mut self, header: &Header) -> Result<(), CheckError> {
        let Some(directory) = Directory::of(header, self.reader.len())? else { return Ok(()) };
        let mut bytes = vec![0; directory.bytes];
        self.reader.read(directory.offset, &mut bytes)?;
        let (place, len) = (Place::BitmapDirectory, directory.bytes as u64);
        self.refer(place, directory.offset, len, Kind::Metadata, 1)?;
        for (number, bitmap) in (0..).zip(directory.parse(&bytes)?) {
            self.walk_bitmap(number, &bitmap)?;
        }
        Ok(())
    }

    fn walk_bitmap(&mut self, bitmap: u64, of: &Bitmap) -> Result<(), CheckError> {
        let len = u64::from(of.entries) * TABLE_ENTRY_BYTES;
        let place = Place::BitmapTable { bitmap };
        if self.refer(place, of.table, len, Kind::Metadata, 1)? == Reach::Beyond {
            return Ok(());
        }
        let mut piece = vec![0; PIECE_BYTES];
        let mut done = 0;
        while done < len {
            let bytes = (len - done).min(PIECE_BYTES as u64) as usize;
            let piece = piece.get_mut(..bytes).unwrap_or_default();
            self.reader.read(HostOffset::new(of.table.get().saturating_add(done)), piece)?;
            for (index, raw) in (done / TABLE_ENTRY_BYTES..).zip(piece.as_chunks::<8>().0) {
                let place = Place::BitmapTableEntry { bitmap, index };
                self.check_bitmap_entry(place, u64::from_be_bytes(*raw))?;
            }
            done += bytes as u64;
        }
        Ok(())
    }

    fn check_bitmap_entry(&mut self, place: Place, raw: u64) -> Result<(), CheckError> {
        let offset = HostOffset::new(raw & bits::OFFSET);
        let reserved = if offset == HostOffset::ZERO { RESERVED } else { RESERVED | ALL_ONES };
        let error = if raw & reserved != 0 {
            Some(EntryError::ReservedBits { raw, bits: raw & reserved })
        } else if self.geometry.offset_in_host_cluster(offset) != 0 {
            Some(EntryError::Unaligned { raw, offset })
        } else {
            None
        };
        if let Some(error) = error {
            self.find(Finding::Entry { place, error }, 1);
            return Ok(());
        }
        if offset != HostOffset::ZERO {
            self.refer(place, offset, self.geometry.cluster_size(), Kind::Data, 1)?;
        }
        Ok(())
    }
}
