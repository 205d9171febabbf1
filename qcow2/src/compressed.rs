//! Where the compressed form of a guest cluster lies.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use crate::address::{HostCluster, HostOffset};
use crate::entry::bits::COMPRESSED;
use crate::geometry::{Geometry, MAX_HOST_OFFSET};

/// Lengths of compressed data are told in sectors of so many bytes, aligned in the file.
const SECTOR: u64 = 512;

/// Compressed data of one guest cluster: from any byte of the file to the end of a sector. Its own
/// end is not told; what follows it in the last sector may be the next one's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompressedData {
    offset: HostOffset,
    /// Up to the end of the last sector; never 0.
    bytes: u64,
}

impl CompressedData {
    /// Compressed data of `bytes` bytes, less than a cluster and at least one, at `offset`. `None` if an entry cannot
    /// say so: the offset is too large for it.
    pub const fn new(offset: HostOffset, bytes: u64, geometry: &Geometry) -> Option<Self> {
        if bytes == 0 || bytes >= geometry.cluster_size() {
            return None;
        }
        let limit = Self::offset_limit(geometry);
        let Some(end) = offset.get().checked_add(bytes) else { return None };
        if offset.get() >= limit || end > MAX_HOST_OFFSET {
            return None;
        }
        Some(Self { offset, bytes: end.next_multiple_of(SECTOR) - offset.get() })
    }

    /// The offsets that an entry can tell lie below this one.
    pub const fn offset_limit(geometry: &Geometry) -> u64 {
        let limit = 1 << offset_bits(geometry);
        if limit < MAX_HOST_OFFSET { limit } else { MAX_HOST_OFFSET }
    }

    /// What an entry with the compressed flag says. It may say anything: neither the largest offset of the format nor
    /// the end of the file has been looked at.
    pub(crate) const fn of_raw(raw: u64, geometry: &Geometry) -> Self {
        let offset_bits = offset_bits(geometry);
        let offset = raw & ((1 << offset_bits) - 1);
        let further = (raw & (COMPRESSED - 1)) >> offset_bits;
        Self { offset: HostOffset::new(offset), bytes: (further + 1) * SECTOR - offset % SECTOR }
    }

    /// The entry without its flags.
    pub(crate) const fn to_raw(self, geometry: &Geometry) -> u64 {
        let further = (self.offset.get() % SECTOR + self.bytes) / SECTOR - 1;
        self.offset.get() | further << offset_bits(geometry)
    }

    /// The first byte.
    pub const fn offset(&self) -> HostOffset {
        self.offset
    }

    /// Bytes up to the end of the last sector: at most two clusters, and one sector more than a cluster if this is
    /// from a sane writer.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The first byte behind the last sector; saturates.
    pub const fn end(&self) -> HostOffset {
        HostOffset::new(self.offset.get().saturating_add(self.bytes))
    }

    /// The first host cluster that it touches, and how many it touches. Each of them is counted once for it.
    pub const fn clusters(&self, geometry: &Geometry) -> (HostCluster, u64) {
        let first = geometry.host_cluster(self.offset);
        let last = geometry.host_cluster(HostOffset::new(self.end().get() - 1));
        (first, last.get() - first.get() + 1)
    }
}

/// The low bits of an entry hold the offset, those above it up to the flags the number of further sectors.
const fn offset_bits(geometry: &Geometry) -> u32 {
    62 - (geometry.cluster_bits() - 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(bits: u32) -> Geometry {
        Geometry::new(bits, 1 << 20).expect("in range")
    }

    #[test]
    fn entries_tell_sectors() {
        // Clusters of 64 KiB: 54 bits of offset, 8 bits of further sectors.
        let geometry = geometry(16);
        let data = CompressedData::new(HostOffset::new(0x5_01ff), 2, &geometry).unwrap();
        assert_eq!(data.bytes(), 513);
        assert_eq!(data.to_raw(&geometry), 1 << 54 | 0x5_01ff);
        let data = CompressedData::new(HostOffset::new(0x5_0200), 512, &geometry).unwrap();
        assert_eq!((data.bytes(), data.to_raw(&geometry)), (512, 0x5_0200));
        assert_eq!(data.clusters(&geometry), (HostCluster::new(5), 1));
        let data = CompressedData::new(HostOffset::new(0x5_ffff), 2, &geometry).unwrap();
        assert_eq!(data.clusters(&geometry), (HostCluster::new(5), 2));
        let data = CompressedData::new(HostOffset::new(0x5_fe00), 512, &geometry).unwrap();
        assert_eq!(data.clusters(&geometry), (HostCluster::new(5), 1));
    }

    #[test]
    fn every_length_at_every_alignment_fits_into_the_entry() {
        for bits in 9..=21 {
            let geometry = geometry(bits);
            let size = geometry.cluster_size();
            for bytes in [1, 2, 511.min(size - 1), size / 2, size - 1] {
                for offset in [0, 1, 511, 512, size - 1, size, size + 1] {
                    let offset = HostOffset::new(size * 7 + offset);
                    let data = CompressedData::new(offset, bytes, &geometry).unwrap();
                    assert!(data.bytes() >= bytes && data.bytes() < bytes + SECTOR);
                    let raw = data.to_raw(&geometry);
                    assert_eq!(raw >> 62, 0);
                    assert_eq!(CompressedData::of_raw(raw | COMPRESSED, &geometry), data);
                }
            }
        }
    }

    #[test]
    fn what_an_entry_cannot_tell_is_refused() {
        let small = geometry(9);
        assert_eq!(CompressedData::new(HostOffset::new(512), 512, &small), None);
        assert_eq!(CompressedData::new(HostOffset::new(512), 0, &small), None);
        assert_eq!(CompressedData::new(HostOffset::new(MAX_HOST_OFFSET - 1), 2, &small), None);
        assert!(CompressedData::new(HostOffset::new(MAX_HOST_OFFSET - 2), 2, &small).is_some());
        assert_eq!(CompressedData::new(HostOffset::new(u64::MAX), 2, &small), None);
        // Clusters of 2 MiB: 49 bits of offset.
        let large = geometry(21);
        assert_eq!(CompressedData::new(HostOffset::new(1 << 49), 1, &large), None);
        assert!(CompressedData::new(HostOffset::new((1 << 49) - 1), 1, &large).is_some());
    }

    #[test]
    fn the_largest_entry_is_two_clusters() {
        for bits in 9..=21 {
            let geometry = geometry(bits);
            let data = CompressedData::of_raw(u64::MAX, &geometry);
            assert!(data.bytes() <= 2 * geometry.cluster_size());
            assert!(data.clusters(&geometry).1 <= 3);
        }
    }
}
