//! The snapshots of an image, as its snapshot table tells them. The table is not trusted: nothing is allocated from
//! a size in it before that was checked.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use std::io;

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::address::HostOffset;
use crate::check::ReadAt;
use crate::geometry::{Geometry, MAX_L1_BYTES, TABLE_ENTRY_BYTES, Version};
use crate::header::{Header, L1Table};

/// Snapshots that an image may have.
pub const MAX_SNAPSHOTS: u32 = 65536;

/// Bytes that a snapshot table may have.
pub const MAX_SNAPSHOT_TABLE_BYTES: u64 = 64 << 20;

/// Bytes of extra data that a snapshot must have from version 3 on, and may have.
const MIN_EXTRA_BYTES: u32 = 16;
const MAX_EXTRA_BYTES: u32 = 1024;

/// More than the longest entry: the fixed part, extra data, an id and a name, all at their limits.
const PIECE: u64 = 256 << 10;

/// A snapshot inside an image.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Its id. What is no UTF-8 is replaced.
    pub id: String,
    /// Its name, in the same way.
    pub name: String,
    /// Its L1 table, which lies within the file.
    pub l1: L1Table,
    /// Bytes of the state of the virtual machine in it.
    pub vm_state_bytes: u64,
    /// When it was taken: seconds since 1970 in UTC, and the nanoseconds that come on top.
    pub date: (u32, u32),
    /// Nanoseconds that the guest had run.
    pub vm_clock_nsec: u64,
    /// Bytes of the virtual disk, if it tells. Version 2 need not.
    pub disk_size: Option<u64>,
    /// Instructions that the guest had run, if that was counted.
    pub icount: Option<u64>,
}

/// Which snapshot of an image is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotKey {
    /// The one with this id, or else the first with this name.
    IdOrName(String),
    /// The first for which all is right that is given.
    Both {
        /// Its id.
        id: Option<String>,
        /// Its name.
        name: Option<String>,
    },
}

impl SnapshotKey {
    /// That one among `snapshots`.
    pub fn find<'a>(&self, snapshots: &'a [Snapshot]) -> Option<&'a Snapshot> {
        match self {
            Self::IdOrName(word) => {
                let by_id = snapshots.iter().find(|one| one.id == *word);
                by_id.or_else(|| snapshots.iter().find(|one| one.name == *word))
            }
            Self::Both { id, name } => snapshots.iter().find(|one| {
                id.as_ref().is_none_or(|id| one.id == *id)
                    && name.as_ref().is_none_or(|name| one.name == *name)
            }),
        }
    }
}

/// Why the snapshots of an image cannot be told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// More than the format allows.
    #[error("the image claims {count} snapshots; at most {MAX_SNAPSHOTS} are allowed")]
    TooMany {
        /// The number in the header.
        count: u32,
    },
    /// The table is not where one can be.
    #[error("the snapshot table at {offset} is not aligned to a cluster, or lies in the header")]
    TableOffset {
        /// Where the header says that it is.
        offset: HostOffset,
    },
    /// The table is longer than the format allows.
    #[error("the snapshot table is longer than {MAX_SNAPSHOT_TABLE_BYTES} bytes")]
    TableTooLong,
    /// The file ends within the table.
    #[error("the file ends within entry {index} of the snapshot table")]
    Truncated {
        /// Which entry.
        index: usize,
    },
    /// The extra data of an entry is too short or too long.
    #[error("snapshot {index} claims {bytes} bytes of extra data, too few or too many")]
    ExtraData {
        /// Which entry.
        index: usize,
        /// Bytes that it claims.
        bytes: u32,
    },
    /// The L1 table of a snapshot is larger than the format allows.
    #[error("the L1 table of snapshot {index} has {entries} entries")]
    L1TooLarge {
        /// Which snapshot.
        index: usize,
        /// Entries that it claims.
        entries: u32,
    },
    /// The L1 table of a snapshot is not aligned to a cluster, in the header, or not within the file.
    #[error("the L1 table of snapshot {index} at {offset} is unaligned or not within the file")]
    L1Place {
        /// Which snapshot.
        index: usize,
        /// Where it should be.
        offset: HostOffset,
    },
    /// The table cannot be read.
    #[error("cannot read the snapshot table at {offset}")]
    Read {
        /// Where.
        offset: HostOffset,
        /// The cause.
        source: io::Error,
    },
}

impl SnapshotError {
    /// The errno that stands for this error.
    pub fn errno(&self) -> i32 {
        match self {
            Self::TooMany { .. } | Self::TableTooLong | Self::L1TooLarge { .. } => libc::EFBIG,
            Self::ExtraData { bytes, .. } if *bytes > MAX_EXTRA_BYTES => libc::EFBIG,
            Self::Read { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            _ => libc::EINVAL,
        }
    }
}

/// The fixed part of an entry of the table.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawSnapshot {
    l1_offset: U64,
    l1_entries: U32,
    id_bytes: U16,
    name_bytes: U16,
    date_sec: U32,
    date_nsec: U32,
    vm_clock_nsec: U64,
    vm_state_bytes: U32,
    extra_bytes: U32,
}

impl Snapshot {
    /// The snapshots of the image whose header is `header`, in the order of its table.
    ///
    /// # Errors
    /// [`SnapshotError`]: what is wrong with the table.
    pub fn list(image: &dyn ReadAt, header: &Header) -> Result<Vec<Self>, SnapshotError> {
        let mut table = SnapshotTable::new(header, image.len())?;
        while let Some((offset, bytes)) = table.wanted() {
            let mut piece = vec![0; bytes];
            let read = image.read_at(offset.get(), &mut piece);
            read.map_err(|source| SnapshotError::Read { offset, source })?;
            table.feed(&piece)?;
        }
        Ok(table.take())
    }
}

/// A snapshot table as it is read, piece by piece.
pub(crate) struct SnapshotTable {
    /// Known and not taken yet.
    snapshots: Vec<Snapshot>,
    /// How many are known.
    known: usize,
    geometry: Geometry,
    offset: HostOffset,
    count: usize,
    /// Bytes of entries so far.
    done: u64,
    file_bytes: u64,
}

impl SnapshotTable {
    /// The table that a header names, in a file of so many bytes.
    pub(crate) fn new(header: &Header, file_bytes: u64) -> Result<Self, SnapshotError> {
        let (count, offset) = (header.snapshots(), header.snapshot_table());
        if count > MAX_SNAPSHOTS {
            return Err(SnapshotError::TooMany { count });
        }
        let geometry = *header.geometry();
        if count > 0 && !may_hold(offset, &geometry) {
            return Err(SnapshotError::TableOffset { offset });
        }
        let count = count as usize;
        Ok(Self { snapshots: Vec::new(), known: 0, geometry, offset, count, done: 0, file_bytes })
    }

    /// What to read next: where, and how many bytes. `None` when all is known.
    pub(crate) fn wanted(&self) -> Option<(HostOffset, usize)> {
        if self.known == self.count {
            return None;
        }
        let start = self.offset.get().saturating_add(self.done);
        let left = self.file_bytes.saturating_sub(start);
        Some((HostOffset::new(start), left.min(PIECE) as usize))
    }

    /// Takes the entries that are whole in the bytes that were wanted: one at least.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        let before = self.known;
        let mut rest = bytes;
        while self.known < self.count {
            let Some((snapshot, used)) = self.entry(rest)? else { break };
            self.snapshots.push(snapshot);
            self.known += 1;
            // Entries are padded; the last one may end with the file.
            rest = rest.get(used..).unwrap_or_default();
            self.done += used as u64;
            if self.done > MAX_SNAPSHOT_TABLE_BYTES {
                return Err(SnapshotError::TableTooLong);
            }
        }
        if self.known == before {
            return Err(SnapshotError::Truncated { index: before });
        }
        Ok(())
    }

    /// Takes the snapshots that have become known.
    pub(crate) fn take(&mut self) -> Vec<Snapshot> {
        std::mem::take(&mut self.snapshots)
    }

    /// Bytes of the table, once all is known.
    pub(crate) fn bytes(&self) -> u64 {
        self.done
    }

    /// The first entry in `bytes` and its length, if it is whole.
    fn entry(&self, bytes: &[u8]) -> Result<Option<(Snapshot, usize)>, SnapshotError> {
        let index = self.known;
        let Ok((raw, rest)) = RawSnapshot::ref_from_prefix(bytes) else { return Ok(None) };
        let extra_bytes = raw.extra_bytes.get();
        let least = if self.geometry.version() >= Version::V3 { MIN_EXTRA_BYTES } else { 0 };
        if extra_bytes < least || extra_bytes > MAX_EXTRA_BYTES {
            return Err(SnapshotError::ExtraData { index, bytes: extra_bytes });
        }
        let l1 = self.l1_table(index, raw)?;
        let (id_bytes, name_bytes) = (raw.id_bytes.get() as usize, raw.name_bytes.get() as usize);
        let parts = rest.split_at_checked(extra_bytes as usize).and_then(|(extra, rest)| {
            let (id, rest) = rest.split_at_checked(id_bytes)?;
            Some((extra, id, rest.get(..name_bytes)?))
        });
        let Some((extra, id, name)) = parts else { return Ok(None) };
        // Three numbers, as far as they are there: VM state, disk size, instructions.
        let mut numbers = extra.as_chunks::<8>().0.iter().map(|bytes| u64::from_be_bytes(*bytes));
        let small = u64::from(raw.vm_state_bytes.get());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let snapshot = Snapshot {
            id: text(id),
            name: text(name),
            l1,
            vm_state_bytes: numbers.next().unwrap_or(small),
            date: (raw.date_sec.get(), raw.date_nsec.get()),
            vm_clock_nsec: raw.vm_clock_nsec.get(),
            disk_size: numbers.next(),
            icount: numbers.next().filter(|count| *count != u64::MAX),
        };
        let used = size_of::<RawSnapshot>() + extra.len() + id_bytes + name_bytes;
        Ok(Some((snapshot, used.next_multiple_of(8))))
    }

    fn l1_table(&self, index: usize, raw: &RawSnapshot) -> Result<L1Table, SnapshotError> {
        let (offset, entries) = (HostOffset::new(raw.l1_offset.get()), raw.l1_entries.get());
        let bytes = u64::from(entries) * TABLE_ENTRY_BYTES;
        if bytes > MAX_L1_BYTES {
            return Err(SnapshotError::L1TooLarge { index, entries });
        }
        let end = offset.get().checked_add(bytes);
        let within = end.is_some_and(|end| end <= self.file_bytes);
        if entries > 0 && !(may_hold(offset, &self.geometry) && within) {
            return Err(SnapshotError::L1Place { index, offset });
        }
        Ok(L1Table { offset, entries })
    }
}

/// Whether a table may begin there.
fn may_hold(offset: HostOffset, geometry: &Geometry) -> bool {
    offset.get() < crate::geometry::MAX_HOST_OFFSET
        && offset.get() >= geometry.cluster_size()
        && geometry.offset_in_host_cluster(offset) == 0
}

#[cfg(test)]
mod tests;
