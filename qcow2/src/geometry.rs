//! Where things are: every shift and mask between offsets, clusters, tables and slices.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use crate::address::{GuestCluster, GuestOffset, HostCluster, HostOffset};
use crate::entry::bits;
use crate::refcount::RefcountWidth;

/// Bytes of one entry of an L1, L2 or refcount table.
pub const TABLE_ENTRY_BYTES: u64 = 8;
/// The largest L1 table, in bytes.
pub const MAX_L1_BYTES: u64 = 32 << 20;
/// The largest refcount table, in bytes.
pub const MAX_REFTABLE_BYTES: u64 = 8 << 20;
/// Host offsets lie below this, in bytes: table entries have no more bits for them.
pub const MAX_HOST_OFFSET: u64 = 1 << 56;
/// The smallest cluster is `1 << MIN_CLUSTER_BITS` bytes.
pub const MIN_CLUSTER_BITS: u32 = 9;
/// The largest cluster is `1 << MAX_CLUSTER_BITS` bytes.
pub const MAX_CLUSTER_BITS: u32 = 21;

/// Bytes of the part of an L2 table that is cached and written as one unit; less where the
/// cluster is smaller. A page: large enough that a sequential workload seldom changes slices,
/// small enough that a random one writes little.
const MAX_SLICE_BITS: u32 = 12;
const TABLE_ENTRY_BITS: u32 = TABLE_ENTRY_BYTES.trailing_zeros();

/// A version of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Version {
    /// Version 2 (`compat=0.10`): a header of 72 bytes, no feature bits, no zero flag, refcounts of 16 bits.
    V2,
    /// Version 3 (`compat=1.1`).
    #[default]
    V3,
}

impl Version {
    /// The number in the header.
    pub const fn number(self) -> u32 {
        match self {
            Self::V2 => 2,
            Self::V3 => 3,
        }
    }

    /// The bit of an L2 entry by which a guest cluster reads as zeros.
    pub(crate) const fn zero_flag(self) -> u64 {
        match self {
            Self::V2 => 0,
            Self::V3 => bits::ZERO,
        }
    }
}

/// Why a cluster size and a virtual size make no image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// The cluster size is none of 512 bytes to 2 MiB.
    #[error(
        "cluster_bits is {cluster_bits}; it must lie in {MIN_CLUSTER_BITS}..={MAX_CLUSTER_BITS}"
    )]
    ClusterBits {
        /// Base-2 logarithm of the cluster size that was asked for.
        cluster_bits: u32,
    },
    /// The virtual size needs an L1 table of more than [`MAX_L1_BYTES`].
    #[error(
        "a virtual size of {size} bytes needs an L1 table of more than {MAX_L1_BYTES} bytes with \
         clusters of {cluster_size} bytes"
    )]
    SizeTooLarge {
        /// The virtual size in bytes.
        size: u64,
        /// The cluster size in bytes.
        cluster_size: u64,
    },
}

impl GeometryError {
    /// The errno that stands for this error.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::ClusterBits { .. } => libc::EINVAL,
            Self::SizeTooLarge { .. } => libc::EFBIG,
        }
    }
}

/// Cluster size, virtual size, version and refcount width of an image, and what follows from them.
///
/// Results that would not fit in 64 bits saturate: such an offset lies beyond every limit of the
/// format, so the bounds check that follows any use of it refuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    cluster_bits: u32,
    virtual_size: u64,
    version: Version,
    refcounts: RefcountWidth,
}

impl Geometry {
    /// Clusters of `1 << cluster_bits` bytes and a disk of `virtual_size` bytes, in version 3 with 16-bit refcounts.
    pub const fn new(cluster_bits: u32, virtual_size: u64) -> Result<Self, GeometryError> {
        if cluster_bits < MIN_CLUSTER_BITS || cluster_bits > MAX_CLUSTER_BITS {
            return Err(GeometryError::ClusterBits { cluster_bits });
        }
        let (version, refcounts) = (Version::V3, RefcountWidth::DEFAULT);
        let geometry = Self { cluster_bits, virtual_size, version, refcounts };
        if geometry.l1_entries_for(virtual_size) > MAX_L1_BYTES / TABLE_ENTRY_BYTES {
            return Err(GeometryError::SizeTooLarge {
                size: virtual_size,
                cluster_size: geometry.cluster_size(),
            });
        }
        Ok(geometry)
    }

    /// The same clusters with another virtual size in bytes.
    pub const fn resized(self, virtual_size: u64) -> Result<Self, GeometryError> {
        match Self::new(self.cluster_bits, virtual_size) {
            Ok(geometry) => Ok(geometry.with_format(self.version, self.refcounts)),
            Err(error) => Err(error),
        }
    }

    /// The same in this version and with refcounts of this width.
    #[must_use]
    pub const fn with_format(self, version: Version, refcounts: RefcountWidth) -> Self {
        Self { version, refcounts, ..self }
    }

    /// The version of the format.
    pub const fn version(&self) -> Version {
        self.version
    }

    /// How wide refcounts are.
    pub const fn refcounts(&self) -> RefcountWidth {
        self.refcounts
    }

    /// Base-2 logarithm of the cluster size.
    pub const fn cluster_bits(&self) -> u32 {
        self.cluster_bits
    }

    /// Bytes of one cluster.
    pub const fn cluster_size(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bytes of the virtual disk.
    pub const fn virtual_size(&self) -> u64 {
        self.virtual_size
    }

    /// Clusters needed for `bytes`, rounded up.
    pub const fn clusters_for(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.cluster_size())
    }

    /// Clusters of the virtual disk; the last one may be covered in part only.
    pub const fn guest_clusters(&self) -> u64 {
        self.clusters_for(self.virtual_size)
    }

    // Guest addresses.

    /// The guest cluster that holds the byte at `offset`.
    pub const fn guest_cluster(&self, offset: GuestOffset) -> GuestCluster {
        GuestCluster::new(offset.get() >> self.cluster_bits)
    }

    /// The first byte of a guest cluster.
    pub const fn guest_offset(&self, cluster: GuestCluster) -> GuestOffset {
        GuestOffset::new(cluster.get().saturating_mul(self.cluster_size()))
    }

    /// Where in its cluster the byte at `offset` lies, in bytes.
    pub const fn offset_in_cluster(&self, offset: GuestOffset) -> u64 {
        offset.get() & (self.cluster_size() - 1)
    }

    // Host addresses.

    /// The host cluster that holds the byte at `offset`.
    pub const fn host_cluster(&self, offset: HostOffset) -> HostCluster {
        HostCluster::new(offset.get() >> self.cluster_bits)
    }

    /// The first byte of a host cluster.
    pub const fn host_offset(&self, cluster: HostCluster) -> HostOffset {
        HostOffset::new(cluster.get().saturating_mul(self.cluster_size()))
    }

    /// Where in its cluster the byte at `offset` of the file lies, in bytes; 0 if it is aligned.
    pub const fn offset_in_host_cluster(&self, offset: HostOffset) -> u64 {
        offset.get() & (self.cluster_size() - 1)
    }

    // L1 and L2 tables.

    /// Entries of one L2 table, which fills one cluster.
    pub const fn l2_entries(&self) -> u64 {
        1 << self.l2_bits()
    }

    /// Bytes of the virtual disk that one L1 entry maps.
    pub const fn l1_entry_span(&self) -> u64 {
        1 << (self.l2_bits() + self.cluster_bits)
    }

    /// L1 entries that a disk of `size` bytes needs.
    pub const fn l1_entries_for(&self, size: u64) -> u64 {
        size.div_ceil(self.l1_entry_span())
    }

    /// The L1 entry that leads to `cluster`.
    pub const fn l1_index(&self, cluster: GuestCluster) -> usize {
        saturate(cluster.get() >> self.l2_bits())
    }

    /// The entry for `cluster` in its L2 table.
    pub const fn l2_index(&self, cluster: GuestCluster) -> usize {
        saturate(cluster.get() & (self.l2_entries() - 1))
    }

    /// The guest cluster that entry `l2_index` of the L2 table below L1 entry `l1_index` maps.
    pub const fn guest_cluster_at(&self, l1_index: usize, l2_index: usize) -> GuestCluster {
        let first = (l1_index as u64).saturating_mul(self.l2_entries());
        GuestCluster::new(first.saturating_add(l2_index as u64))
    }

    // Slices: aligned parts of an L2 table, cached and written one by one.

    /// Bytes of one slice: a page, or the cluster where that is smaller.
    pub const fn slice_bytes(&self) -> u64 {
        1 << self.slice_byte_bits()
    }

    /// Entries of one slice.
    pub const fn slice_entries(&self) -> u64 {
        1 << self.slice_bits()
    }

    /// Slices of one L2 table.
    pub const fn slices_per_table(&self) -> u64 {
        1 << (self.cluster_bits - self.slice_byte_bits())
    }

    /// The slice that maps `cluster`, counted over the whole virtual disk: a key for caches.
    pub const fn slice_number(&self, cluster: GuestCluster) -> u64 {
        cluster.get() >> self.slice_bits()
    }

    /// The slice that maps `cluster`, counted within its L2 table.
    pub const fn slice_in_table(&self, cluster: GuestCluster) -> u64 {
        self.slice_number(cluster) & (self.slices_per_table() - 1)
    }

    /// The entry for `cluster` in its slice.
    pub const fn slice_index(&self, cluster: GuestCluster) -> usize {
        saturate(cluster.get() & (self.slice_entries() - 1))
    }

    /// The first guest cluster that slice `number` maps; the inverse of [`Self::slice_number`].
    pub const fn slice_start(&self, number: u64) -> GuestCluster {
        GuestCluster::new(number.saturating_mul(self.slice_entries()))
    }

    /// Where slice `slice_in_table` of the L2 table in cluster `table` lies in the file.
    pub const fn slice_offset(&self, table: HostCluster, slice_in_table: u64) -> HostOffset {
        let start = self.host_offset(table).get();
        HostOffset::new(start.saturating_add(slice_in_table.saturating_mul(self.slice_bytes())))
    }

    // Refcounts: a table of blocks, each block one cluster of counts.

    /// Refcounts in one block, which fills one cluster.
    pub const fn refblock_entries(&self) -> u64 {
        1 << self.refblock_bits()
    }

    /// The entry of the refcount table that leads to the count of `cluster`.
    pub const fn refblock_index(&self, cluster: HostCluster) -> usize {
        saturate(cluster.get() >> self.refblock_bits())
    }

    /// The place of the count of `cluster` within its block, in entries.
    pub const fn refcount_index(&self, cluster: HostCluster) -> usize {
        saturate(cluster.get() & (self.refblock_entries() - 1))
    }

    /// The first cluster that refcount block `refblock_index` counts.
    pub const fn refblock_start(&self, refblock_index: usize) -> HostCluster {
        HostCluster::new((refblock_index as u64).saturating_mul(self.refblock_entries()))
    }

    /// Refcount blocks that `clusters` host clusters need.
    pub const fn refblocks_for(&self, clusters: u64) -> u64 {
        clusters.div_ceil(self.refblock_entries())
    }

    /// Entries of a refcount table of `clusters` clusters.
    pub const fn reftable_entries(&self, clusters: u32) -> u64 {
        (clusters as u64) << self.l2_bits()
    }

    const fn l2_bits(&self) -> u32 {
        self.cluster_bits - TABLE_ENTRY_BITS
    }

    const fn slice_byte_bits(&self) -> u32 {
        if self.cluster_bits < MAX_SLICE_BITS { self.cluster_bits } else { MAX_SLICE_BITS }
    }

    const fn slice_bits(&self) -> u32 {
        self.slice_byte_bits() - TABLE_ENTRY_BITS
    }

    const fn refblock_bits(&self) -> u32 {
        self.cluster_bits + 3 - self.refcounts.order()
    }
}

/// An index as `usize`; where that is too narrow, an index that no table has.
const fn saturate(index: u64) -> usize {
    if index > usize::MAX as u64 { usize::MAX } else { index as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_bits() -> impl Iterator<Item = u32> {
        MIN_CLUSTER_BITS..=MAX_CLUSTER_BITS
    }

    #[test]
    fn cluster_sizes_outside_the_format_are_refused() {
        for cluster_bits in [0, 8, 22, 63, 64, u32::MAX] {
            assert_eq!(
                Geometry::new(cluster_bits, 0),
                Err(GeometryError::ClusterBits { cluster_bits })
            );
        }
    }

    #[test]
    fn the_largest_disk_fills_the_largest_l1_table() {
        for bits in all_bits() {
            let span = Geometry::new(bits, 0).expect("in range").l1_entry_span();
            let largest = span * (MAX_L1_BYTES / 8);
            assert!(Geometry::new(bits, largest).is_ok(), "{bits}");
            let error = Geometry::new(bits, largest + 1).expect_err("one byte too many");
            assert_eq!(error.errno(), libc::EFBIG);
            assert!(Geometry::new(bits, u64::MAX).is_err());
        }
    }

    #[test]
    fn the_default_cluster_size() {
        let geometry = Geometry::new(16, 1 << 30).expect("in range");
        assert_eq!(geometry.cluster_size(), 65536);
        assert_eq!(geometry.l2_entries(), 8192);
        assert_eq!(geometry.l1_entry_span(), 512 << 20);
        assert_eq!(geometry.l1_entries_for(1 << 30), 2);
        assert_eq!(geometry.l1_entries_for((1 << 30) + 1), 3);
        assert_eq!(geometry.slice_entries(), 512);
        assert_eq!(geometry.slices_per_table(), 16);
        assert_eq!(geometry.refblock_entries(), 32768);
        let cluster = geometry.guest_cluster(GuestOffset::new((513 << 20) + 5));
        assert_eq!(cluster, GuestCluster::new(8192 + 16));
        assert_eq!(geometry.offset_in_cluster(GuestOffset::new((513 << 20) + 5)), 5);
        assert_eq!((geometry.l1_index(cluster), geometry.l2_index(cluster)), (1, 16));
        let host = HostCluster::new(32768 + 3);
        assert_eq!((geometry.refblock_index(host), geometry.refcount_index(host)), (1, 3));
    }

    #[test]
    fn table_and_slice_indexes_agree_with_each_other() {
        for bits in all_bits() {
            let geometry = Geometry::new(bits, 0).expect("in range");
            assert_eq!(
                geometry.slice_entries() * geometry.slices_per_table(),
                geometry.l2_entries()
            );
            for index in [0, 1, 63, 64, 511, 512, 8191, 8192, 123_456_789] {
                let cluster = GuestCluster::new(index);
                let (l1, l2) = (geometry.l1_index(cluster), geometry.l2_index(cluster));
                assert_eq!(geometry.guest_cluster_at(l1, l2), cluster);
                let in_slice = geometry.slice_index(cluster) as u64;
                let before = geometry.slice_in_table(cluster) * geometry.slice_entries();
                assert_eq!(before + in_slice, l2 as u64);
                let start = geometry.slice_start(geometry.slice_number(cluster));
                assert_eq!(cluster.checked_since(start), Some(in_slice));
            }
        }
    }

    #[test]
    fn offsets_and_clusters_are_inverse_and_saturate() {
        for bits in all_bits() {
            let geometry = Geometry::new(bits, 0).expect("in range");
            let cluster = HostCluster::new(77);
            let offset = geometry.host_offset(cluster);
            assert_eq!(geometry.host_cluster(offset), cluster);
            assert_eq!(geometry.offset_in_host_cluster(offset), 0);
            assert_eq!(geometry.host_offset(HostCluster::new(u64::MAX)).get(), u64::MAX);
            assert_eq!(geometry.slice_offset(HostCluster::new(u64::MAX), 1).get(), u64::MAX);
            assert_eq!(geometry.reftable_entries(1), geometry.l2_entries());
        }
    }
}
