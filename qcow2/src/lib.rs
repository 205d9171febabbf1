//! The qcow2 driver.
#![forbid(unsafe_code)]

mod address;
mod entry;
mod geometry;
mod header;
mod layout;

pub use address::{GuestCluster, GuestOffset, HostCluster, HostOffset};
pub use entry::{
    Copied, EntryError, L1Entry, L2Entry, Mapping, RefTableEntry, refcount_get, refcount_set,
    table_get, table_set,
};
pub use geometry::{Geometry, GeometryError, MAX_HOST_OFFSET, MAX_L1_BYTES, MAX_REFTABLE_BYTES};
pub use header::{
    Access, Autoclear, Backing, Compatible, Extension, ExtensionKind, HEADER_FIXED_BYTES,
    HEADER_PREFIX_BYTES, Header, HeaderError, Incompatible, L1Table, MAX_BACKING_FORMAT_BYTES,
    MAX_BACKING_NAME_BYTES, RefTable, TableKind,
};
pub use layout::{CreateError, CreateOptions, Layout, LayoutWrite};
