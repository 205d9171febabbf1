//! The image header: what cluster 0 says about the image.
//!
//! [`Header::parse`] accepts what this driver can handle and refuses everything else by name.
//! Nothing in here does I/O: bytes come in, bytes go out.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

mod create;
mod error;
mod extension;
mod features;
mod parse;
mod raw;
mod serialise;

pub use create::Backing;
pub use error::{HeaderError, TableKind};
pub use extension::{Extension, ExtensionKind};
pub use features::{Autoclear, Compatible, Incompatible};

use crate::address::HostOffset;
use crate::compression::Compression;
use crate::geometry::{Geometry, TABLE_ENTRY_BYTES, Version};

/// Bytes of the fixed part of a header of version 3. Every field that a running image changes
/// lies in it, and it lies in the first sector of the file, so that one write of it is atomic.
pub const HEADER_FIXED_BYTES: usize = 104;
/// Bytes of a header of version 2, all of it fixed.
pub const HEADER_V2_BYTES: usize = 72;
/// Bytes that must be read to learn the cluster size, and so how much more to read.
pub const HEADER_PREFIX_BYTES: usize = HEADER_V2_BYTES;
/// The longest backing file name, in bytes.
pub const MAX_BACKING_NAME_BYTES: usize = 1023;
/// The longest backing format name, in bytes.
pub const MAX_BACKING_FORMAT_BYTES: usize = 15;

/// What an image is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To read guest data. A dirty or corrupt image may be read.
    Read,
    /// To read and write guest data.
    Write,
    /// To look at its header alone. An image may have any feature that is known by name.
    Inspect,
    /// To check its metadata. A dirty or corrupt image may be checked, and one without refcounts.
    Check,
}

/// The active L1 table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L1Table {
    /// Where it starts; aligned to a cluster.
    pub offset: HostOffset,
    /// Its entries; at least as many as the virtual size needs.
    pub entries: u32,
}

impl L1Table {
    /// Bytes of the table.
    pub const fn bytes(&self) -> u64 {
        self.entries as u64 * TABLE_ENTRY_BYTES
    }
}

/// The refcount table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefTable {
    /// Where it starts; aligned to a cluster.
    pub offset: HostOffset,
    /// Its clusters.
    pub clusters: u32,
}

impl RefTable {
    /// Bytes of the table.
    pub const fn bytes(&self, geometry: &Geometry) -> u64 {
        self.clusters as u64 * geometry.cluster_size()
    }
}

/// A parsed header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    geometry: Geometry,
    l1: L1Table,
    reftable: RefTable,
    snapshots: u32,
    snapshots_offset: HostOffset,
    incompatible: Incompatible,
    compatible: Compatible,
    autoclear: Autoclear,
    /// How guest data is encrypted; 0 if it is not.
    encryption: u32,
    /// What follows the fixed part up to the header's length: compression type, and fields of
    /// later versions, kept as they are. Empty in version 2.
    tail: Vec<u8>,
    extensions: Vec<Extension>,
    backing_name: Option<Vec<u8>>,
    /// Where the backing name lies, as long as the header is not laid out anew.
    backing_offset: u64,
}

impl Header {
    /// The version of the format.
    pub const fn version(&self) -> Version {
        self.geometry.version()
    }

    /// Cluster size and virtual size, version and refcount width.
    pub const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The active L1 table.
    pub const fn l1(&self) -> L1Table {
        self.l1
    }

    /// The refcount table.
    pub const fn reftable(&self) -> RefTable {
        self.reftable
    }

    /// Number of snapshots.
    pub const fn snapshots(&self) -> u32 {
        self.snapshots
    }

    /// Where the snapshot table lies, if there are snapshots.
    pub const fn snapshot_table(&self) -> HostOffset {
        self.snapshots_offset
    }

    /// Features that a driver must know.
    pub const fn incompatible(&self) -> Incompatible {
        self.incompatible
    }

    /// Features that a driver may ignore.
    pub const fn compatible(&self) -> Compatible {
        self.compatible
    }

    /// Features that a writer must know or clear.
    pub const fn autoclear(&self) -> Autoclear {
        self.autoclear
    }

    /// How guest data is encrypted: 0 not at all, 1 AES, 2 LUKS.
    pub const fn encryption(&self) -> u32 {
        self.encryption
    }

    /// How compressed clusters are compressed.
    pub fn compression(&self) -> Compression {
        if self.incompatible.contains(Incompatible::COMPRESSION_TYPE) {
            Compression::Zstd
        } else {
            Compression::Zlib
        }
    }

    /// Bits of a refcount.
    pub const fn refcount_bits(&self) -> u32 {
        self.geometry.refcounts().bits()
    }

    /// All header extensions in the order of the file, unknown ones included.
    pub fn extensions(&self) -> &[Extension] {
        &self.extensions
    }

    /// The name of the backing file as bytes, without a NUL; never empty.
    pub fn backing_name(&self) -> Option<&[u8]> {
        self.backing_name.as_deref()
    }

    /// The format of the backing file, if the image names it.
    pub fn backing_format(&self) -> Option<&[u8]> {
        let mut formats =
            self.extensions.iter().filter(|e| e.kind == ExtensionKind::BACKING_FORMAT);
        formats.next_back().map(|extension| extension.data.as_slice())
    }

    /// Clears every autoclear bit that this driver does not maintain, as each writer must before
    /// its first write, and says whether any was set. If so, [`Self::fixed_bytes`] is to be
    /// written and synced.
    #[must_use]
    pub fn clear_autoclear(&mut self) -> bool {
        let stale = !self.autoclear.is_empty();
        self.autoclear = Autoclear::empty();
        stale
    }

    /// Sets the corrupt bit, and says whether there is one: version 2 has none.
    #[must_use]
    pub fn mark_corrupt(&mut self) -> bool {
        let has_bits = self.version() >= Version::V3;
        self.incompatible.set(Incompatible::CORRUPT, has_bits);
        has_bits
    }

    /// Names another L1 table.
    pub fn set_l1(&mut self, l1: L1Table) {
        self.l1 = l1;
    }

    /// Names another refcount table.
    pub fn set_reftable(&mut self, reftable: RefTable) {
        self.reftable = reftable;
    }

    /// Changes the virtual size. The L1 table named must cover it.
    pub fn set_geometry(&mut self, geometry: Geometry) {
        self.geometry = geometry;
    }
}

#[cfg(test)]
mod tests;
