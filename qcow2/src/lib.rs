//! A qcow2 driver for many queues, on io_uring: an [`Image`] is opened once and shared; each thread drives it by a
//! queue of its own.
//!
//! ```
//! use std::os::unix::fs::FileExt;
//!
//! use blkring_engine::{Access, Flags, IoMem, OpenOptions, QueueOptions, QueueSeed, Storage};
//! use blkring_qcow2::{CreateOptions, FileOpener, Image, ImageOptions, Layout};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("disk.qcow2");
//! // A new image is a few writes to an empty file, the header last.
//! let layout = Layout::plan(&CreateOptions::new(1 << 30))?;
//! let file = std::fs::File::create_new(&path)?;
//! file.set_len(layout.file_length)?;
//! for write in &layout.writes {
//!     file.write_all_at(&write.bytes, write.offset.get())?;
//! }
//! file.sync_all()?;
//!
//! // Each thread has a queue; any number of them attach to one image.
//! let mut queue = QueueSeed::new(QueueOptions::default())?.start()?;
//! let storage = Storage::open(&path, &OpenOptions::new().access(Access::ReadWrite))?;
//! let (lane, opener) = (queue.lane(), FileOpener::default());
//! let image =
//!     queue.block_on(Image::open(&lane, storage, &opener, ImageOptions::new().writable()))??;
//! let disk = queue.attach(&image)?;
//! queue.block_on(async {
//!     disk.write(4096, IoMem::from(vec![7; 512]), Flags::empty()).await?;
//!     disk.flush().await?;
//!     let bytes = IoMem::from(vec![0; 512]);
//!     disk.read(4096, bytes.clone()).await?;
//!     assert_eq!(bytes.to_vec(), [7; 512]);
//!     image.close().await
//! })??;
//! # Ok(())
//! # }
//! ```
//!
//! An image that is dropped without [`Image::close`] is as after a power cut: what was flushed is there, and the
//! reservation is found again when it is next opened for writing. Its file is locked while it is open, against all who
//! ask for the lock, unless the storage was opened otherwise. [`FileOpener`] follows any path that an image names; an embedder that
//! does not trust its images brings an [`Opener`] of its own.
//!
//! # Points
//!
//! Where its storage has faults ([`blkring_engine::faults`]), an image passes these points, named as in QEMU:
//! `l2_load`, `l2_update`, `l1_update`, `l2_alloc_cow_read` and `l2_alloc_write` (the copy of a table that a snapshot
//! shares), `l1_grow_*`; `read_aio`, `read_backing_aio`, `read_compressed`, `write_aio`, `write_compressed`, `cow_read`, `cow_write`;
//! `cluster_alloc` (a reservation, not each request), `cluster_alloc_space`, `cluster_free`; `reftable_load`,
//! `reftable_grow`, `refblock_load`, `refblock_update_part`, `refblock_alloc`, `refblock_alloc_hookup`,
//! `refblock_alloc_write*`, `refblock_alloc_switch_table`; `flush_to_os`, `flush_to_disk`. Its storage passes `pwritev*`.
//! The others are never passed.
//!
//! Below it are modules without I/O:
//!
//! - [`GuestOffset`], [`HostOffset`], [`GuestCluster`] and [`HostCluster`] are addresses that
//!   cannot be mixed up; [`Geometry`] leads from one to another.
//! - [`Header`] is what cluster 0 says. What this driver cannot handle is refused by name.
//! - [`L1Entry`], [`L2Entry`] and [`RefTableEntry`] decode the entries of the tables.
//! - [`Layout`] plans the contents of a new image.
//! - [`Compressor`] and [`decompress`] turn clusters into compressed ones and back.
//! - [`check()`] follows every reference and compares it with the refcounts.
//!
//! An image is not trusted: whatever its bytes say, the answer is a result, not a panic, and
//! neither takes long nor much memory.
#![forbid(unsafe_code)]

mod address;
mod bitmap;
mod check;
mod compressed;
mod compression;
mod entry;
mod geometry;
mod header;
mod image;
mod layout;
mod refcount;
mod snapshot;

pub use address::{GuestCluster, GuestOffset, HostCluster, HostOffset};
pub use bitmap::{Bitmap, BitmapError, BitmapFlags, MAX_BITMAP_DIRECTORY_BYTES, MAX_BITMAPS};
pub use check::{
    CheckError, CheckLimits, CheckReport, Finding, LimitKind, Place, ReadAt, Severity, check,
};
pub use compressed::CompressedData;
pub use compression::{CompressedCluster, Compression, CompressionError, Compressor, decompress};
pub use entry::{
    Copied, EntryError, L1Entry, L2Entry, Mapping, RefTableEntry, table_get, table_set,
};
pub use geometry::{
    Geometry, GeometryError, MAX_CLUSTER_BITS, MAX_HOST_OFFSET, MAX_L1_BYTES, MAX_REFTABLE_BYTES,
    MIN_CLUSTER_BITS, TABLE_ENTRY_BYTES, Version,
};
pub use header::{
    Access, Autoclear, Backing, Compatible, Extension, ExtensionKind, HEADER_FIXED_BYTES,
    HEADER_PREFIX_BYTES, HEADER_V2_BYTES, Header, HeaderError, Incompatible, L1Table,
    MAX_BACKING_FORMAT_BYTES, MAX_BACKING_NAME_BYTES, RefTable, TableKind,
};
pub use image::{
    AllocPolicy, FileOpener, Freed, GuestBytes, GuestExtent, Image, ImageInfo, ImageOptions,
    ImageStatistics, OpenError, Opener, Preallocation,
};
pub use layout::{CreateError, CreateOptions, Layout, LayoutWrite};
pub use refcount::{RefcountError, RefcountWidth};
pub use snapshot::{MAX_SNAPSHOT_TABLE_BYTES, MAX_SNAPSHOTS, Snapshot, SnapshotError, SnapshotKey};
