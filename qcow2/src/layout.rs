//! Where everything of a new image lies: the writes that make one.
//!
//! The layout is that of qemu-img: header, refcount table, first refcount block, L1 table, then
//! the further refcount blocks that a very large L1 table needs. It differs only where one
//! cluster of refcount table is too small for that (clusters of 512 bytes, 32 GiB and more): the
//! table is then made large enough at once instead of being moved.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use crate::address::{HostCluster, HostOffset};
use crate::compression::Compression;
use crate::entry::{RefTableEntry, table_set};
use crate::geometry::{Geometry, GeometryError, TABLE_ENTRY_BYTES, Version};
use crate::header::{Backing, Compatible, Header, HeaderError, L1Table, RefTable};
use crate::refcount::RefcountWidth;

/// The header says virtual sizes in bytes; images are made of whole sectors.
const SECTOR_BYTES: u64 = 512;

/// What a new image shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CreateOptions {
    /// The virtual size in bytes; rounded up to a multiple of 512.
    pub size: u64,
    /// Bytes of one cluster: a power of two from 512 to 2 MiB.
    pub cluster_size: u64,
    /// The version of the format.
    pub version: Version,
    /// Bits of a refcount: 1, 2, 4, 8, 16, 32 or 64; 16 in version 2.
    pub refcount_bits: u32,
    /// How clusters are compressed where they are; nothing but zlib in version 2.
    pub compression: Compression,
    /// The backing file, if any. It is named, not looked at.
    pub backing: Option<Backing>,
    /// Feature bits to set. [`Compatible::LAZY_REFCOUNTS`] allows other programs to postpone
    /// refcounts. None in version 2.
    pub compatible: Compatible,
}

impl Default for CreateOptions {
    /// An empty image of version 3 with clusters of 64 KiB.
    fn default() -> Self {
        Self {
            size: 0,
            cluster_size: 65536,
            version: Version::V3,
            refcount_bits: RefcountWidth::DEFAULT.bits(),
            compression: Compression::Zlib,
            backing: None,
            compatible: Compatible::empty(),
        }
    }
}

impl CreateOptions {
    /// An empty image of version 3 with clusters of 64 KiB, and so many bytes of virtual disk.
    pub fn new(size: u64) -> Self {
        Self { size, ..Self::default() }
    }

    /// The same with clusters of so many bytes.
    #[must_use]
    pub fn cluster_size(mut self, bytes: u64) -> Self {
        self.cluster_size = bytes;
        self
    }

    /// The same in this version of the format.
    #[must_use]
    pub fn version(mut self, version: Version) -> Self {
        self.version = version;
        self
    }

    /// The same with refcounts of so many bits.
    #[must_use]
    pub fn refcount_bits(mut self, bits: u32) -> Self {
        self.refcount_bits = bits;
        self
    }

    /// The same with this way to compress clusters.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// The same over this backing file, or over none.
    #[must_use]
    pub fn backing(mut self, backing: impl Into<Option<Backing>>) -> Self {
        self.backing = backing.into();
        self
    }

    /// The same with these feature bits.
    #[must_use]
    pub fn compatible(mut self, compatible: Compatible) -> Self {
        self.compatible = compatible;
        self
    }
}

/// Why there can be no such image.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// The cluster size is no power of two from 512 bytes to 2 MiB.
    #[error("a cluster size of {cluster_size} bytes is not a power of two from 512 to 2097152")]
    ClusterSize {
        /// The size that was asked for, in bytes.
        cluster_size: u64,
    },
    /// Refcounts have 1, 2, 4, 8, 16, 32 or 64 bits.
    #[error("a refcount width of {bits} bits is not a power of two from 1 to 64")]
    RefcountBits {
        /// The width that was asked for.
        bits: u32,
    },
    /// Something that version 2 does not have.
    #[error("{what} needs version 3 of the format (compat=1.1)")]
    NeedsVersion3 {
        /// What was asked for.
        what: &'static str,
    },
    /// The virtual size is too large for the cluster size.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The backing file cannot be named in the header.
    #[error(transparent)]
    Header(#[from] HeaderError),
}

impl CreateError {
    /// The errno that stands for this error.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::ClusterSize { .. } | Self::RefcountBits { .. } | Self::NeedsVersion3 { .. } => {
                libc::EINVAL
            }
            Self::Geometry(error) => error.errno(),
            Self::Header(error) => error.errno(),
        }
    }
}

/// One write of a [`Layout`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutWrite {
    /// Where it goes; aligned to a cluster.
    pub offset: HostOffset,
    /// What is written; at most a few MiB.
    pub bytes: Vec<u8>,
}

/// The contents of a new image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The header of the image.
    pub header: Header,
    /// What is written to an empty file, in this order: the header comes last, so that the file
    /// is no image before it is a whole one. All other bytes of the file are zero.
    pub writes: Vec<LayoutWrite>,
    /// Bytes of the file.
    pub file_length: u64,
}

impl Layout {
    /// Plans a new image.
    pub fn plan(options: &CreateOptions) -> Result<Self, CreateError> {
        let cluster_size = options.cluster_size;
        if !cluster_size.is_power_of_two() {
            return Err(CreateError::ClusterSize { cluster_size });
        }
        let refcounts = refcounts(options)?;
        let size = options.size.checked_next_multiple_of(SECTOR_BYTES).unwrap_or(u64::MAX);
        let geometry = Geometry::new(cluster_size.ilog2(), size).map_err(|error| match error {
            GeometryError::ClusterBits { .. } => CreateError::ClusterSize { cluster_size },
            error => error.into(),
        })?;
        let geometry = geometry.with_format(options.version, refcounts);
        let places = Places::find(&geometry);
        let mut header = Header::create(
            geometry,
            places.l1,
            places.reftable,
            options.compatible,
            options.compression,
            options.backing.as_ref(),
        )?;
        let header_bytes = header.to_bytes()?;
        let mut writes = places.refblock_writes(&geometry);
        writes.push(places.reftable_write(&geometry));
        writes.push(LayoutWrite { offset: HostOffset::ZERO, bytes: header_bytes });
        Ok(Self { header, writes, file_length: places.file_length })
    }
}

/// The width of refcounts, and whether the version has what is asked for.
fn refcounts(options: &CreateOptions) -> Result<RefcountWidth, CreateError> {
    let bits = options.refcount_bits;
    let width = RefcountWidth::of_bits(bits).ok_or(CreateError::RefcountBits { bits })?;
    let newer = [
        (width != RefcountWidth::DEFAULT, "a refcount width other than 16 bits"),
        (options.compression != Compression::Zlib, "a compression type other than zlib"),
        (options.compatible.contains(Compatible::LAZY_REFCOUNTS), "lazy refcounts"),
        (!options.compatible.is_empty(), "a feature bit"),
    ];
    let first = newer.iter().find(|(asked, _)| *asked && options.version == Version::V2);
    first.map_or(Ok(width), |(_, what)| Err(CreateError::NeedsVersion3 { what }))
}

/// Clusters of everything that a new image has.
struct Places {
    reftable: RefTable,
    l1: L1Table,
    /// Cluster of each refcount block, by its index in the refcount table.
    blocks: Vec<HostCluster>,
    clusters: u64,
    file_length: u64,
}

impl Places {
    fn find(geometry: &Geometry) -> Self {
        // Terminates: one more cluster of table counts at least 2^12 more clusters, and the
        // largest L1 table has 2^16.
        let mut table_clusters = 1;
        loop {
            let places = Self::with_table(geometry, table_clusters);
            if places.blocks.len() as u64 <= geometry.reftable_entries(table_clusters) {
                return places;
            }
            table_clusters += 1;
        }
    }

    fn with_table(geometry: &Geometry, table_clusters: u32) -> Self {
        let first_block = 1 + u64::from(table_clusters);
        let l1_start = HostCluster::new(first_block + 1);
        let entries = geometry.l1_entries_for(geometry.virtual_size());
        let l1_bytes = entries * TABLE_ENTRY_BYTES;
        let l1_end = l1_start.get() + geometry.clusters_for(l1_bytes);
        let offset = if entries == 0 { HostOffset::ZERO } else { geometry.host_offset(l1_start) };
        let blocks = place_blocks(geometry, first_block, l1_end);
        let clusters = l1_end + blocks.len() as u64 - 1;
        // The L1 table of a small image ends the file, and need not fill its cluster.
        let file_length = if blocks.len() == 1 {
            geometry.host_offset(l1_start).get() + l1_bytes
        } else {
            geometry.host_offset(HostCluster::new(clusters)).get()
        };
        Self {
            reftable: RefTable {
                offset: geometry.host_offset(HostCluster::new(1)),
                clusters: table_clusters,
            },
            // The L1 table of the largest disk has 2^22 entries.
            l1: L1Table { offset, entries: entries as u32 },
            blocks,
            clusters,
            file_length,
        }
    }

    fn reftable_write(&self, geometry: &Geometry) -> LayoutWrite {
        let mut bytes = vec![0; self.blocks.len() * TABLE_ENTRY_BYTES as usize];
        for (index, block) in self.blocks.iter().enumerate() {
            table_set(&mut bytes, index, RefTableEntry::Block(*block).encode(geometry))
                .expect("the buffer was made for as many entries");
        }
        LayoutWrite { offset: self.reftable.offset, bytes }
    }

    fn refblock_writes(&self, geometry: &Geometry) -> Vec<LayoutWrite> {
        let write = |(index, block): (usize, &HostCluster)| {
            let start = geometry.refblock_start(index).get();
            let counts = geometry.refblock_entries().min(self.clusters - start) as usize;
            let width = geometry.refcounts();
            let mut bytes = vec![0; (counts * width.bits() as usize).div_ceil(8)];
            for index in 0..counts {
                width.set(&mut bytes, index, 1).expect("the buffer was made for as many");
            }
            LayoutWrite { offset: geometry.host_offset(*block), bytes }
        };
        self.blocks.iter().enumerate().map(write).collect()
    }
}

/// Places refcount blocks until they count everything, themselves included: block 0 at `first`,
/// the others from `next` on. They follow each other by index, but the block that counts the
/// cluster at `next` comes right behind the one that lies there.
fn place_blocks(geometry: &Geometry, first: u64, next: u64) -> Vec<HostCluster> {
    let mut count = geometry.refblocks_for(next);
    while geometry.refblocks_for(next + count - 1) > count {
        count = geometry.refblocks_for(next + count - 1);
    }
    let mut order: Vec<usize> = (1..count as usize).collect();
    let counts_next = geometry.refblock_index(HostCluster::new(next));
    match order.get_mut(1..counts_next) {
        Some(before) if !before.is_empty() => before.rotate_right(1),
        _ => {}
    }
    let mut blocks = vec![HostCluster::new(first); count as usize];
    for (cluster, index) in (next..).zip(order) {
        if let Some(block) = blocks.get_mut(index) {
            *block = HostCluster::new(cluster);
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::Access;

    fn plan(cluster_size: u64, size: u64) -> Result<Layout, CreateError> {
        Layout::plan(&CreateOptions { size, cluster_size, ..CreateOptions::default() })
    }

    #[test]
    fn a_small_image_is_header_table_block_and_l1() {
        let layout = plan(65536, 1 << 30).expect("valid");
        assert_eq!(layout.file_length, 0x3_0010);
        let offsets: Vec<u64> = layout.writes.iter().map(|write| write.offset.get()).collect();
        assert_eq!(offsets, [0x2_0000, 0x1_0000, 0]);
        assert_eq!(layout.writes[0].bytes, [0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(layout.writes[1].bytes, 0x2_0000u64.to_be_bytes());
        let parsed = Header::parse(&layout.writes[2].bytes, Access::Write).expect("valid");
        assert_eq!(parsed, layout.header);
    }

    #[test]
    fn sizes_are_rounded_up_to_sectors() {
        let layout = plan(65536, 1000).expect("valid");
        assert_eq!(layout.header.geometry().virtual_size(), 1024);
        assert_eq!(plan(512, u64::MAX).expect_err("too large").errno(), libc::EFBIG);
    }

    #[test]
    fn odd_cluster_sizes_are_refused() {
        for cluster_size in [0, 1, 256, 511, 513, 65535, 4 << 20, 1 << 63, u64::MAX] {
            let error = CreateError::ClusterSize { cluster_size };
            assert_eq!(plan(cluster_size, 0), Err(error));
        }
    }

    /// Every cluster in use has a count of one, and no two things share a cluster.
    #[test]
    fn places_of_huge_l1_tables_do_not_overlap() {
        for mib in [0, 1, 509, 510, 511, 512, 1024, 2048, 10 << 10, 31 << 10, 32 << 10, 128 << 10] {
            let geometry = Geometry::new(9, mib << 20).expect("in range");
            let places = Places::find(&geometry);
            let mut used = vec![0; places.clusters as usize];
            let l1_start = geometry.host_cluster(places.l1.offset).get();
            let l1_clusters = geometry.clusters_for(places.l1.bytes());
            let table = 1..1 + u64::from(places.reftable.clusters);
            let blocks = places.blocks.iter().map(|block| block.get());
            let all = table.chain(l1_start..l1_start + l1_clusters).chain(blocks).chain([0]);
            all.for_each(|cluster| used[cluster as usize] += 1);
            assert!(used.iter().all(|count| *count == 1), "{mib} MiB");
            let counted = places.blocks.len() as u64 * geometry.refblock_entries();
            assert!((places.clusters..places.clusters + 256).contains(&counted), "{mib} MiB");
        }
    }

    #[test]
    fn an_image_too_small_for_its_backing_name_is_refused() {
        let backing = |bytes| Backing { name: vec![b'x'; bytes], format: b"raw".to_vec() };
        let make = |bytes| {
            let backing = Some(backing(bytes));
            let options = CreateOptions { cluster_size: 512, backing, ..CreateOptions::default() };
            Layout::plan(&options)
        };
        assert!(make(376).is_ok());
        assert_eq!(make(377).expect_err("too long").errno(), libc::ENOSPC);
    }
}
