//! The qcow2 driver.
//!
//! Modules without I/O, on which everything else stands:
//!
//! - [`GuestOffset`], [`HostOffset`], [`GuestCluster`] and [`HostCluster`] are addresses that
//!   cannot be mixed up; [`Geometry`] leads from one to another.
//! - [`Header`] is what cluster 0 says. What this driver cannot handle is refused by name.
//! - [`L1Entry`], [`L2Entry`] and [`RefTableEntry`] decode the entries of the tables.
//! - [`Layout`] plans the contents of a new image.
//! - [`check()`] follows every reference and compares it with the refcounts.
//!
//! An image is not trusted: whatever its bytes say, the answer is a result, not a panic, and
//! neither takes long nor much memory.
#![forbid(unsafe_code)]

mod address;
mod check;
mod entry;
mod geometry;
mod header;
mod image;
mod layout;

pub use address::{GuestCluster, GuestOffset, HostCluster, HostOffset};
pub use check::{
    CheckError, CheckLimits, CheckReport, Finding, LimitKind, Place, ReadAt, Severity, check,
};
pub use entry::{
    Copied, EntryError, L1Entry, L2Entry, Mapping, RefTableEntry, refcount_get, refcount_set,
    table_get, table_set,
};
pub use geometry::{
    Geometry, GeometryError, MAX_CLUSTER_BITS, MAX_HOST_OFFSET, MAX_L1_BYTES, MAX_REFTABLE_BYTES,
    MIN_CLUSTER_BITS, REFCOUNT_BYTES, TABLE_ENTRY_BYTES,
};
pub use header::{
    Access, Autoclear, Backing, Compatible, Extension, ExtensionKind, HEADER_FIXED_BYTES,
    HEADER_PREFIX_BYTES, Header, HeaderError, Incompatible, L1Table, MAX_BACKING_FORMAT_BYTES,
    MAX_BACKING_NAME_BYTES, RefTable, TableKind,
};
pub use image::{
    AllocPolicy, FileOpener, Image, ImageInfo, ImageOptions, ImageStatistics, OpenError, Opener,
};
pub use layout::{CreateError, CreateOptions, Layout, LayoutWrite};
