//! Why a header is refused, each reason by name.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use std::fmt;

use super::{MAX_BACKING_FORMAT_BYTES, MAX_BACKING_NAME_BYTES};
use crate::address::HostOffset;
use crate::compression::Compression;
use crate::geometry::GeometryError;

/// A table that the header names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TableKind {
    /// The active L1 table.
    L1,
    /// The refcount table.
    Refcount,
    /// The snapshot table.
    Snapshot,
}

impl fmt::Display for TableKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::L1 => "L1 table",
            Self::Refcount => "refcount table",
            Self::Snapshot => "snapshot table",
        })
    }
}

/// Why a header was refused, or cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The file ends inside the header.
    #[error("the file ends inside the header: {have} bytes where {need} are needed")]
    Truncated {
        /// Bytes at hand.
        have: u64,
        /// Bytes needed.
        need: u64,
    },
    /// The file does not start as a qcow2 image does.
    #[error("not a qcow2 image: it starts with {magic:02x?}")]
    Magic {
        /// The first bytes of the file.
        magic: [u8; 4],
    },
    /// Another version than 2 and 3.
    #[error("qcow2 version {version} is not supported; only versions 2 and 3 are")]
    Version {
        /// The version in the header.
        version: u32,
    },
    /// The cluster size or the virtual size is out of range.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The header is too short, longer than a cluster, or not a multiple of 8 bytes.
    #[error("a header length of {length} bytes with clusters of {cluster_size} bytes is invalid")]
    HeaderLength {
        /// The length in the header.
        length: u32,
        /// The cluster size in bytes.
        cluster_size: u64,
    },
    /// An extension is longer than the room for it.
    #[error("header extension {kind:#010x} at {offset:#x} is too long: {length} bytes")]
    ExtensionLength {
        /// The type of the extension.
        kind: u32,
        /// Where it starts in the file.
        offset: u64,
        /// Its length in bytes.
        length: u32,
    },
    /// There are too many extensions.
    #[error("more than {limit} header extensions")]
    ExtensionCount {
        /// How many are allowed.
        limit: usize,
    },
    /// Feature bits that this driver does not know.
    #[error("unsupported incompatible features {bits:#x}: {}", names.join(", "))]
    UnknownIncompatible {
        /// The unknown bits.
        bits: u64,
        /// What the image calls them.
        names: Vec<String>,
    },
    /// Guest data lies in another file.
    #[error("an external data file is not supported")]
    ExternalData,
    /// L2 entries have subclusters.
    #[error("extended L2 entries are not supported")]
    ExtendedL2,
    /// An unknown compression type.
    #[error("compression type {compression} is not supported")]
    Compression {
        /// The type in the header.
        compression: u8,
    },
    /// Clusters are compressed by something that was left out of this build.
    #[error("compression by {compression} is not in this build")]
    NotBuiltIn {
        /// What is missing.
        compression: Compression,
    },
    /// The compression type and its feature bit contradict each other.
    #[error("compression type {compression} contradicts the compression feature bit")]
    CompressionBit {
        /// The type in the header.
        compression: u8,
    },
    /// The image is encrypted.
    #[error("encryption (method {method}) is not supported")]
    Encrypted {
        /// The method in the header.
        method: u32,
    },
    /// Refcounts are wider than 64 bits.
    #[error("a refcount order of {order} is invalid; at most 6 (64 bits) is allowed")]
    RefcountOrder {
        /// Base-2 logarithm of the width in bits.
        order: u32,
    },
    /// The L1 or refcount table is larger than the format allows.
    #[error("the {table} is too large: {bytes} bytes")]
    TableTooLarge {
        /// Which table.
        table: TableKind,
        /// Its size in bytes.
        bytes: u64,
    },
    /// A table is not aligned to a cluster, or reaches beyond the largest offset.
    #[error(
        "the {table} at {offset} is not aligned to a cluster or ends beyond the largest offset"
    )]
    TableOffset {
        /// Which table.
        table: TableKind,
        /// Where the header says that it is.
        offset: HostOffset,
    },
    /// A table lies over the header or over another table.
    #[error("the {table} at {offset} overlaps the header or another table")]
    TableOverlap {
        /// Which table.
        table: TableKind,
        /// Where the header says that it is.
        offset: HostOffset,
    },
    /// The L1 table does not cover the virtual size.
    #[error("the L1 table is too small: {entries} entries where {need} are needed")]
    L1TooSmall {
        /// The entries that it has.
        entries: u32,
        /// The entries that the virtual size needs.
        need: u64,
    },
    /// There is no refcount table.
    #[error("the image has no refcount table")]
    NoRefTable,
    /// The image was not closed after lazy refcounting.
    #[error("the image is marked dirty: its refcounts must be repaired before it is written")]
    Dirty,
    /// The image is marked corrupt.
    #[error("the image is marked corrupt: it can only be read")]
    Corrupt,
    /// The backing file name is empty, too long, or not inside the first cluster.
    #[error(
        "a backing file name of {bytes} bytes at {offset:#x} is not 1 to \
         {MAX_BACKING_NAME_BYTES} bytes inside the first cluster and behind the header"
    )]
    BackingName {
        /// Where it starts.
        offset: u64,
        /// Its length in bytes.
        bytes: u64,
    },
    /// The backing file name contains a NUL byte.
    #[error("the backing file name contains a NUL byte")]
    BackingNameNul,
    /// The name of the backing format is too long.
    #[error(
        "a backing format name of {bytes} bytes; at most {MAX_BACKING_FORMAT_BYTES} are allowed"
    )]
    BackingFormat {
        /// Its length in bytes.
        bytes: u64,
    },
    /// What is to be written does not fit into the first cluster.
    #[error("the header does not fit into the first cluster: {bytes} bytes")]
    TooLong {
        /// The bytes that it takes.
        bytes: u64,
    },
}

impl HeaderError {
    /// The errno that stands for this error: ENOTSUP for what is legal and not supported, EFBIG
    /// for what is too large, EINVAL for what no image may say.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::Version { .. }
            | Self::UnknownIncompatible { .. }
            | Self::ExternalData
            | Self::ExtendedL2
            | Self::Compression { .. }
            | Self::NotBuiltIn { .. }
            | Self::Encrypted { .. }
            | Self::Dirty => libc::ENOTSUP,
            Self::Geometry(error) => error.errno(),
            Self::TableTooLarge { .. } => libc::EFBIG,
            Self::Corrupt => libc::EACCES,
            Self::TooLong { .. } => libc::ENOSPC,
            _ => libc::EINVAL,
        }
    }
}
