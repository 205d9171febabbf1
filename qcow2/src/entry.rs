//! Entries of the L1, L2 and refcount tables: decode and encode.
//!
//! What a decoder returns is safe to use: its host clusters are aligned, lie below 2^56 bytes and
//! are never cluster 0, which holds the header. Whether they lie inside the file, and whether
//! they hold metadata, only the caller knows.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use crate::address::{HostCluster, HostOffset};
use crate::compressed::CompressedData;
use crate::geometry::{Geometry, MAX_HOST_OFFSET};

/// The bits of table entries.
pub(crate) mod bits {
    use crate::geometry::MAX_HOST_OFFSET;

    pub const COPIED: u64 = 1 << 63;
    pub const COMPRESSED: u64 = 1 << 62;
    pub const ZERO: u64 = 1;
    /// The host offset in entries of L1 and L2 tables.
    pub const OFFSET: u64 = (MAX_HOST_OFFSET - 1) & REFTABLE_OFFSET;
    /// The host offset in entries of the refcount table.
    pub const REFTABLE_OFFSET: u64 = !0x1ff;
}
use bits::{COMPRESSED, COPIED, OFFSET, REFTABLE_OFFSET, ZERO};

/// An entry of a table that cannot be followed. The caller knows which entry of which table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// Bits that the format reserves are set.
    #[error("entry {raw:#018x} has reserved bits {bits:#x} set")]
    ReservedBits {
        /// The entry as it is in the table.
        raw: u64,
        /// The reserved bits among its bits.
        bits: u64,
    },
    /// The host offset is not a multiple of the cluster size.
    #[error("entry {raw:#018x} points at {offset}, which is not aligned to a cluster")]
    Unaligned {
        /// The entry as it is in the table.
        raw: u64,
        /// The offset in it.
        offset: HostOffset,
    },
    /// The host offset of a refcount block or of compressed data lies at or beyond [`MAX_HOST_OFFSET`].
    #[error("entry {raw:#018x} points at {offset}, beyond the largest offset of the format")]
    OffsetTooLarge {
        /// The entry as it is in the table.
        raw: u64,
        /// The offset in it.
        offset: HostOffset,
    },
    /// The entry claims a refcount of one and names no cluster.
    #[error("entry {raw:#018x} has the COPIED flag and names no cluster")]
    CopiedNothing {
        /// The entry as it is in the table.
        raw: u64,
    },
}

impl EntryError {
    /// The errno that stands for this error.
    pub const fn errno(&self) -> i32 {
        libc::EIO
    }

    /// What is wrong in a few words, for an [`IoError`](blkring_engine::IoError).
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::ReservedBits { .. } => "table entry with reserved bits set",
            Self::Unaligned { .. } => "unaligned table entry",
            Self::OffsetTooLarge { .. } => "table entry beyond the largest offset",
            Self::CopiedNothing { .. } => "table entry with a flag and no cluster",
        }
    }
}

/// The COPIED flag: whether an entry claims that the refcount of its cluster is exactly one, so
/// that the cluster may be written in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copied {
    /// Exactly one reference.
    Yes,
    /// Perhaps more than one.
    No,
}

impl Copied {
    const fn of(raw: u64) -> Self {
        if raw & COPIED == 0 { Self::No } else { Self::Yes }
    }

    const fn bit(self) -> u64 {
        match self {
            Self::Yes => COPIED,
            Self::No => 0,
        }
    }
}

/// An entry of the L1 table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L1Entry {
    /// No L2 table: the whole span is unallocated.
    Unallocated,
    /// The L2 table and the COPIED flag for its cluster.
    Table(HostCluster, Copied),
}

impl L1Entry {
    /// Decodes an entry that was read big-endian.
    pub const fn decode(raw: u64, geometry: &Geometry) -> Result<Self, EntryError> {
        let bits = raw & !(COPIED | OFFSET);
        if bits != 0 {
            return Err(EntryError::ReservedBits { raw, bits });
        }
        match decode_cluster(raw, geometry) {
            Ok(Some(table)) => Ok(Self::Table(table, Copied::of(raw))),
            Ok(None) => Ok(Self::Unallocated),
            Err(error) => Err(error),
        }
    }

    /// The entry as a number, to be written big-endian.
    pub const fn encode(self, geometry: &Geometry) -> u64 {
        match self {
            Self::Unallocated => 0,
            Self::Table(table, copied) => geometry.host_offset(table).get() | copied.bit(),
        }
    }
}

/// Where a guest cluster lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Nowhere: it reads as the backing file does, or as zeros.
    Unallocated,
    /// It reads as zeros and has no cluster.
    ZeroPlain,
    /// It reads as zeros; the cluster is kept for later writes.
    ZeroAllocated(HostCluster),
    /// Its bytes are in the cluster.
    Normal(HostCluster),
    /// Its bytes are here in compressed form. (This is not aligned, and may lie anywhere below 2^56.)
    Compressed(CompressedData),
}

impl Mapping {
    /// The cluster that is the guest cluster's own. Compressed data has none: it shares clusters.
    pub const fn host_cluster(&self) -> Option<HostCluster> {
        match *self {
            Self::Unallocated | Self::ZeroPlain | Self::Compressed(_) => None,
            Self::ZeroAllocated(cluster) | Self::Normal(cluster) => Some(cluster),
        }
    }
}

/// A standard entry of an L2 table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L2Entry {
    /// Where the guest cluster lives.
    pub mapping: Mapping,
    /// The COPIED flag for its host cluster; `No` where there is none.
    pub copied: Copied,
}

impl L2Entry {
    /// Nothing mapped.
    pub const UNALLOCATED: Self = Self { mapping: Mapping::Unallocated, copied: Copied::No };
    /// Zeros without a cluster.
    pub const ZERO_PLAIN: Self = Self { mapping: Mapping::ZeroPlain, copied: Copied::No };

    /// Data in a cluster of which this is the only reference.
    pub const fn normal(cluster: HostCluster) -> Self {
        Self { mapping: Mapping::Normal(cluster), copied: Copied::Yes }
    }

    /// Data in compressed form.
    pub const fn compressed(data: CompressedData) -> Self {
        Self { mapping: Mapping::Compressed(data), copied: Copied::No }
    }

    /// Zeros over a kept cluster of which this is the only reference.
    pub const fn zero_allocated(cluster: HostCluster) -> Self {
        Self { mapping: Mapping::ZeroAllocated(cluster), copied: Copied::Yes }
    }

    /// Decodes an entry that was read big-endian. In version 2 the zero flag is a reserved bit.
    pub const fn decode(raw: u64, geometry: &Geometry) -> Result<Self, EntryError> {
        if raw & COMPRESSED != 0 {
            let data = CompressedData::of_raw(raw, geometry);
            if data.end().get() > MAX_HOST_OFFSET {
                return Err(EntryError::OffsetTooLarge { raw, offset: data.offset() });
            }
            // The flag has no meaning here: such data is never written in place.
            return Ok(Self::compressed(data));
        }
        let bits = raw & !(COPIED | OFFSET | geometry.version().zero_flag());
        if bits != 0 {
            return Err(EntryError::ReservedBits { raw, bits });
        }
        let cluster = match decode_cluster(raw, geometry) {
            Ok(cluster) => cluster,
            Err(error) => return Err(error),
        };
        let mapping = match (cluster, raw & ZERO != 0) {
            (None, false) => Mapping::Unallocated,
            (None, true) => Mapping::ZeroPlain,
            (Some(cluster), true) => Mapping::ZeroAllocated(cluster),
            (Some(cluster), false) => Mapping::Normal(cluster),
        };
        Ok(Self { mapping, copied: Copied::of(raw) })
    }

    /// The entry as a number, to be written big-endian.
    pub const fn encode(self, geometry: &Geometry) -> u64 {
        match self.mapping {
            Mapping::Unallocated => 0,
            Mapping::ZeroPlain => ZERO,
            Mapping::ZeroAllocated(cluster) => {
                geometry.host_offset(cluster).get() | self.copied.bit() | ZERO
            }
            Mapping::Normal(cluster) => geometry.host_offset(cluster).get() | self.copied.bit(),
            Mapping::Compressed(data) => data.to_raw(geometry) | COMPRESSED,
        }
    }
}

/// An entry of an L2 table that others may refer to as well: without the claim that its cluster has one reference.
pub(crate) const fn without_claim(raw: u64) -> u64 {
    if raw & COMPRESSED == 0 && raw & OFFSET != 0 { raw & !COPIED } else { raw }
}

/// An entry of the refcount table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefTableEntry {
    /// No block: every cluster that it would count is free.
    Absent,
    /// The refcount block.
    Block(HostCluster),
}

impl RefTableEntry {
    /// Decodes an entry that was read big-endian.
    pub const fn decode(raw: u64, geometry: &Geometry) -> Result<Self, EntryError> {
        let bits = raw & !REFTABLE_OFFSET;
        if bits != 0 {
            return Err(EntryError::ReservedBits { raw, bits });
        }
        let offset = HostOffset::new(raw & REFTABLE_OFFSET);
        if geometry.offset_in_host_cluster(offset) != 0 {
            return Err(EntryError::Unaligned { raw, offset });
        }
        if offset.get() >= MAX_HOST_OFFSET {
            return Err(EntryError::OffsetTooLarge { raw, offset });
        }
        match offset.get() {
            0 => Ok(Self::Absent),
            _ => Ok(Self::Block(geometry.host_cluster(offset))),
        }
    }

    /// The entry as a number, to be written big-endian.
    pub const fn encode(self, geometry: &Geometry) -> u64 {
        match self {
            Self::Absent => 0,
            Self::Block(cluster) => geometry.host_offset(cluster).get(),
        }
    }
}

/// The cluster that an L1 or L2 entry names, if any.
const fn decode_cluster(raw: u64, geometry: &Geometry) -> Result<Option<HostCluster>, EntryError> {
    let offset = HostOffset::new(raw & OFFSET);
    if geometry.offset_in_host_cluster(offset) != 0 {
        return Err(EntryError::Unaligned { raw, offset });
    }
    match (offset.get(), Copied::of(raw)) {
        (0, Copied::No) => Ok(None),
        (0, Copied::Yes) => Err(EntryError::CopiedNothing { raw }),
        _ => Ok(Some(geometry.host_cluster(offset))),
    }
}

/// Entry `index` of a table of 64-bit big-endian entries; `None` past its end.
pub fn table_get(table: &[u8], index: usize) -> Option<u64> {
    let (entries, _) = table.as_chunks::<8>();
    entries.get(index).map(|bytes| u64::from_be_bytes(*bytes))
}

/// Sets entry `index` of a table of 64-bit big-endian entries; `None`, and no change, past its
/// end.
pub fn table_set(table: &mut [u8], index: usize, raw: u64) -> Option<()> {
    let (entries, _) = table.as_chunks_mut::<8>();
    entries.get_mut(index).map(|bytes| *bytes = raw.to_be_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Version;
    use crate::refcount::RefcountWidth;

    const BITS: [u32; 3] = [9, 16, 21];

    fn geometry(bits: u32) -> Geometry {
        Geometry::new(bits, 1 << 20).expect("in range")
    }

    #[test]
    fn every_kind_of_entry_survives_the_way_there_and_back() {
        for bits in BITS {
            let geometry = geometry(bits);
            let cluster = HostCluster::new(5);
            for copied in [Copied::Yes, Copied::No] {
                for mapping in [Mapping::ZeroAllocated(cluster), Mapping::Normal(cluster)] {
                    let entry = L2Entry { mapping, copied };
                    assert_eq!(L2Entry::decode(entry.encode(&geometry), &geometry), Ok(entry));
                }
                let entry = L1Entry::Table(cluster, copied);
                assert_eq!(L1Entry::decode(entry.encode(&geometry), &geometry), Ok(entry));
            }
            for entry in [L2Entry::UNALLOCATED, L2Entry::ZERO_PLAIN] {
                assert_eq!(L2Entry::decode(entry.encode(&geometry), &geometry), Ok(entry));
            }
            assert_eq!(L1Entry::decode(0, &geometry), Ok(L1Entry::Unallocated));
            for entry in [RefTableEntry::Absent, RefTableEntry::Block(cluster)] {
                assert_eq!(RefTableEntry::decode(entry.encode(&geometry), &geometry), Ok(entry));
            }
        }
    }

    #[test]
    fn numbers_as_the_format_wants_them() {
        let geometry = geometry(16);
        let normal = L2Entry::normal(HostCluster::new(5));
        assert_eq!(normal.encode(&geometry), 0x8000_0000_0005_0000);
        let zero = L2Entry::zero_allocated(HostCluster::new(5));
        assert_eq!(zero.encode(&geometry), 0x8000_0000_0005_0001);
        assert_eq!(L2Entry::ZERO_PLAIN.encode(&geometry), 1);
        let table = L1Entry::Table(HostCluster::new(4), Copied::Yes);
        assert_eq!(table.encode(&geometry), 0x8000_0000_0004_0000);
    }

    #[test]
    fn corrupt_entries_are_refused_with_a_reason() {
        let geometry = geometry(16);
        let bit = |bit: u32| 1u64 << bit;
        for reserved in (1..=8).chain(56..=61) {
            let raw = bit(reserved) | 0x5_0000;
            let error = Err(EntryError::ReservedBits { raw, bits: bit(reserved) });
            assert_eq!(L2Entry::decode(raw, &geometry), error);
        }
        for reserved in (0..=8).chain(56..=62) {
            let raw = bit(reserved) | 0x5_0000;
            assert!(matches!(
                L1Entry::decode(raw, &geometry),
                Err(EntryError::ReservedBits { .. })
            ));
        }
        for reserved in 0..=8 {
            let raw = bit(reserved) | 0x5_0000;
            let error = Err(EntryError::ReservedBits { raw, bits: bit(reserved) });
            assert_eq!(RefTableEntry::decode(raw, &geometry), error);
        }
        let unaligned = EntryError::Unaligned { raw: 0x5_0200, offset: HostOffset::new(0x5_0200) };
        assert_eq!(L1Entry::decode(0x5_0200, &geometry), Err(unaligned));
        assert_eq!(L2Entry::decode(0x5_0200, &geometry), Err(unaligned));
        assert_eq!(RefTableEntry::decode(0x5_0200, &geometry), Err(unaligned));
        let raw = bit(56);
        let error = EntryError::OffsetTooLarge { raw, offset: HostOffset::new(raw) };
        assert_eq!(RefTableEntry::decode(raw, &geometry), Err(error));
        let raw = bit(63);
        assert_eq!(L1Entry::decode(raw, &geometry), Err(EntryError::CopiedNothing { raw }));
        assert_eq!(L2Entry::decode(raw, &geometry), Err(EntryError::CopiedNothing { raw }));
        assert_eq!(unaligned.errno(), libc::EIO);
    }

    #[test]
    fn the_zero_flag_is_reserved_in_version_2() {
        let geometry = geometry(16).with_format(Version::V2, RefcountWidth::DEFAULT);
        for raw in [1, 0x8000_0000_0005_0001] {
            let error = Err(EntryError::ReservedBits { raw, bits: 1 });
            assert_eq!(L2Entry::decode(raw, &geometry), error);
        }
    }

    #[test]
    fn compressed_data_survives_the_way_there_and_back() {
        let geometry = geometry(16);
        let raw = 0x4000_0000_0005_1234;
        let entry = L2Entry::decode(raw, &geometry).expect("compressed");
        let Mapping::Compressed(data) = entry.mapping else { panic!("{entry:?}") };
        assert_eq!((data.offset(), data.bytes()), (HostOffset::new(0x5_1234), 0x200 - 0x34));
        assert_eq!(entry.encode(&geometry), raw);
        assert_eq!(entry.mapping.host_cluster(), None);
        // The flag means nothing, and is gone when the entry is written again.
        assert_eq!(L2Entry::decode(raw | COPIED, &geometry), Ok(entry));
    }

    #[test]
    fn compressed_data_beyond_the_largest_offset_is_refused() {
        // Clusters of 512 bytes: an entry can tell offsets up to 2^61.
        let geometry = geometry(9);
        let fits = COMPRESSED | (MAX_HOST_OFFSET - 512);
        assert!(L2Entry::decode(fits, &geometry).is_ok());
        for raw in [fits | 1 << 61, COMPRESSED | MAX_HOST_OFFSET, u64::MAX >> 1] {
            let error = L2Entry::decode(raw, &geometry).expect_err("too large");
            assert!(matches!(error, EntryError::OffsetTooLarge { .. }));
        }
    }

    #[test]
    fn tables_are_big_endian_and_bounded() {
        let mut bytes = [0; 17];
        assert_eq!(table_set(&mut bytes, 1, 0x0102_0304_0506_0708), Some(()));
        assert_eq!(bytes.get(8..), Some(&[1, 2, 3, 4, 5, 6, 7, 8, 0][..]));
        assert_eq!(table_get(&bytes, 1), Some(0x0102_0304_0506_0708));
        assert_eq!((table_get(&bytes, 2), table_set(&mut bytes, 2, 1)), (None, None));
    }
}
