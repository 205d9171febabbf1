//! What a check reports.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use std::{fmt, io};

use crate::address::{HostCluster, HostOffset};
use crate::bitmap::BitmapError;
use crate::entry::EntryError;
use crate::header::HeaderError;
use crate::snapshot::SnapshotError;

/// The result of a check, with the numbers that `qemu-img check` gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Things that could not be checked.
    pub check_errors: u64,
    /// Where the last cluster in use ends, in bytes.
    pub image_end_offset: u64,
    /// Errors that cost data, or may when the image is written.
    pub corruptions: u64,
    /// Clusters that are counted as used and used less often than that: wasted space.
    pub leaks: u64,
    /// Clusters of the virtual disk.
    pub total_clusters: u64,
    /// Clusters of the virtual disk that have a place in the file.
    pub allocated_clusters: u64,
    /// Allocated clusters that do not follow the one before them in the same L2 table.
    pub fragmented_clusters: u64,
    /// Allocated clusters that are compressed.
    pub compressed_clusters: u64,
}

impl CheckReport {
    /// Whether nothing was found.
    pub const fn is_clean(&self) -> bool {
        self.check_errors == 0 && self.corruptions == 0 && self.leaks == 0
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// It costs data, or may when the image is written.
    Corruption,
    /// It costs space.
    Leak,
    /// Something could not be checked.
    CheckError,
}

/// Where in the image a reference is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The header itself.
    Header,
    /// The header's reference to the L1 table.
    L1Table,
    /// The header's reference to the refcount table.
    RefTable,
    /// The header's reference to the snapshot table.
    SnapshotTable,
    /// A snapshot's reference to its L1 table.
    SnapshotL1Table {
        /// The place of the snapshot in their table.
        snapshot: u64,
    },
    /// An entry of the L1 table of a snapshot.
    SnapshotL1Entry {
        /// The place of the snapshot in their table.
        snapshot: u64,
        /// The place of the entry in the L1 table.
        index: u64,
    },
    /// An entry of the L1 table.
    L1Entry {
        /// Its place in the table.
        index: u64,
    },
    /// An entry of an L2 table.
    L2Entry {
        /// Where the table lies.
        table: HostOffset,
        /// Its place in the table.
        index: u64,
    },
    /// The header's reference to the directory of bitmaps.
    BitmapDirectory,
    /// The directory's reference to the table of a bitmap.
    BitmapTable {
        /// The place of the bitmap in the directory.
        bitmap: u64,
    },
    /// An entry of the table of a bitmap.
    BitmapTableEntry {
        /// The place of the bitmap in the directory.
        bitmap: u64,
        /// The place of the entry in the table.
        index: u64,
    },
    /// An entry of the refcount table.
    RefTableEntry {
        /// Its place in the table.
        index: u64,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => write!(f, "the header"),
            Self::L1Table => write!(f, "the L1 table"),
            Self::RefTable => write!(f, "the refcount table"),
            Self::SnapshotTable => write!(f, "the snapshot table"),
            Self::SnapshotL1Table { snapshot } => write!(f, "the L1 table of snapshot {snapshot}"),
            Self::SnapshotL1Entry { snapshot, index } => {
                write!(f, "L1 entry {index} of snapshot {snapshot}")
            }
            Self::L1Entry { index } => write!(f, "L1 entry {index}"),
            Self::L2Entry { table, index } => write!(f, "entry {index} of the L2 table at {table}"),
            Self::BitmapDirectory => write!(f, "the bitmap directory"),
            Self::BitmapTable { bitmap } => write!(f, "the table of bitmap {bitmap}"),
            Self::BitmapTableEntry { bitmap, index } => {
                write!(f, "entry {index} of the table of bitmap {bitmap}")
            }
            Self::RefTableEntry { index } => write!(f, "refcount table entry {index}"),
        }
    }
}

/// Something wrong with an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Finding {
    /// An entry says what none may say.
    #[error("{place}: {error}")]
    Entry {
        /// Which entry.
        place: Place,
        /// What is wrong with it.
        error: EntryError,
    },
    /// An entry of a compressed cluster claims that it may be written in place.
    #[error("{place}: entry {raw:#018x} of a compressed cluster has the COPIED flag")]
    CompressedCopied {
        /// Which entry.
        place: Place,
        /// The entry as it is in the table.
        raw: u64,
    },
    /// A reference leads behind the end of the file.
    #[error(
        "{place}: the {bytes} bytes at {offset} end a cluster or more behind the end of the file"
    )]
    BeyondEof {
        /// The reference.
        place: Place,
        /// Where it leads.
        offset: HostOffset,
        /// How many bytes it names.
        bytes: u64,
    },
    /// The COPIED flag is set and the refcount is not one, or the other way round.
    #[error("{place}: the COPIED flag of entry {raw:#018x} contradicts a refcount of {refcount}")]
    Copied {
        /// Which entry.
        place: Place,
        /// The entry as it is in the table.
        raw: u64,
        /// The refcount of the cluster that it names.
        refcount: u64,
    },
    /// A refcount block lies where something else lies.
    #[error("{place}: the refcount block in cluster {cluster} is referenced {references} times")]
    RefBlockShared {
        /// The entry that names the block.
        place: Place,
        /// The cluster of the block.
        cluster: HostCluster,
        /// The references found up to this one.
        references: u32,
    },
    /// A cluster is used more often than it is counted: it may be given away while in use.
    #[error("cluster {cluster} has a refcount of {refcount} and {references} references")]
    RefcountTooLow {
        /// The cluster.
        cluster: HostCluster,
        /// Its refcount.
        refcount: u64,
        /// The references found.
        references: u32,
    },
    /// A cluster is used less often than it is counted.
    #[error(
        "cluster {cluster} is leaked: it has a refcount of {refcount} and {references} references"
    )]
    Leak {
        /// The cluster.
        cluster: HostCluster,
        /// Its refcount.
        refcount: u64,
        /// The references found.
        references: u32,
    },
    /// Metadata and something else share a cluster, and the refcount agrees.
    #[error("cluster {cluster} holds metadata and has {references} references")]
    MetadataShared {
        /// The cluster.
        cluster: HostCluster,
        /// The references found.
        references: u32,
    },
    /// Refcounts that cannot be read, because the table entry that leads to them is corrupt.
    #[error("{place}: the refcounts of {clusters} clusters cannot be read")]
    RefcountsUnknown {
        /// The corrupt entry.
        place: Place,
        /// How many clusters of the file are concerned.
        clusters: u64,
    },
}

impl Finding {
    /// How bad it is.
    pub const fn severity(&self) -> Severity {
        match self {
            Self::Leak { .. } => Severity::Leak,
            Self::RefcountsUnknown { .. } => Severity::CheckError,
            _ => Severity::Corruption,
        }
    }
}

/// A limit of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LimitKind {
    /// Memory for counts.
    Memory,
    /// Bytes of tables read.
    TableBytes,
}

impl fmt::Display for LimitKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory for counts",
            Self::TableBytes => "tables to read",
        })
    }
}

/// Why a check has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The header is refused.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The snapshot table is refused.
    #[error(transparent)]
    Snapshots(#[from] SnapshotError),
    /// The directory of bitmaps is refused.
    #[error(transparent)]
    Bitmaps(#[from] BitmapError),
    /// The image cannot be read.
    #[error("cannot read {bytes} bytes at {offset}")]
    Read {
        /// Where.
        offset: HostOffset,
        /// How many bytes were asked for.
        bytes: usize,
        /// The cause.
        source: io::Error,
    },
    /// The image would take more than the check may.
    #[error("the image needs more than {limit} bytes of {kind}")]
    Limit {
        /// Which limit.
        kind: LimitKind,
        /// Its value in bytes.
        limit: u64,
    },
}

impl CheckError {
    /// The errno that stands for this error.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Header(error) => error.errno(),
            Self::Snapshots(error) => error.errno(),
            Self::Bitmaps(error) => error.errno(),
            Self::Read { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Self::Limit { .. } => libc::EFBIG,
        }
    }
}
