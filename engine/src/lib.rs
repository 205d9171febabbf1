//! The block I/O engine below the blkring qcow2 driver: queues on io_uring, storages with a request tracker, buffers,
//! shared work, and a simulated disk to test it all on.
//!
//! # The path of a request
//!
//! A [`Disk`] hands a [`Request`] to the [`Queue`] of its thread: refused with would-block, or accepted and from then
//! on the queue's own. The next turn of the queue starts it as a task of its [`Target`]. The target moves bytes by
//! way of a [`Storage`], which pads what is unaligned, has the range admitted by its tracker, and issues ops on the
//! queue's [`Lane`]; each op owns its memory, its file and the grant until its completion is reaped. The task ends
//! with one answer, which the queue lists or gives to a [`Receipt`].
//!
//! Work that several requests wait for (a [`Job`]) issues its ops on the [`Service`] of its target instead, where
//! every queue reaps them: it goes on although the queue that began it is never polled again.
//!
//! ```
//! use blkring_engine::{Flags, IoMem, Queue, QueueOptions, QueueSeed, RawDisk, Storage};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let disk = RawDisk::new(Storage::in_memory("scratch", vec![0; 1 << 20], 1 << 20));
//! let mut queue = QueueSeed::new(QueueOptions::default())?.start()?;
//! let disk = queue.attach(&disk)?;
//! queue.block_on(async {
//!     disk.write(4096, IoMem::from(vec![7; 512]), Flags::FUA).await?;
//!     let bytes = IoMem::from(vec![0; 512]);
//!     disk.read(4096, bytes.clone()).await?;
//!     assert_eq!(bytes.to_vec(), [7; 512]);
//!     disk.flush().await
//! })??;
//! # Ok(())
//! # }
//! ```

//!
//! # What it asks of the embedder
//!
//! No thread is started unless a [`ThreadPool`] is given, and no async runtime is needed; `panic = "abort"` is fine, since nothing
//! relies on unwinding.
//! Events go to `tracing`; with the feature `log`, to the `log` crate where there is no subscriber. Guest memory is given
//! by address and owner ([`IoMem::from_segments`]), so that any crate may manage it.

mod backend;
mod buffers;
mod clock;
mod device;
mod error;
pub mod faults;
mod histogram;
mod inbox;
mod job;
mod lane;
mod memory;
mod memory_disk;
#[cfg(all(test, blkring_loom))]
mod model;
mod notify;
mod op;
mod pool;
mod queue;
mod quiesce;
mod raw;
mod request;
mod service;
#[cfg(feature = "sim")]
pub mod sim;
mod size_watch;
mod statistics;
mod storage;
mod sys;
mod target;
mod tasks;
mod uring;
pub mod variant;
mod wake;
#[cfg(feature = "variants")]
mod watch;
mod write_log;

pub use backend::{BackendError, Choice, InUse};
pub use blkring_tracker as tracker;
pub use buffers::{BUFFER_ALIGNMENT, Buffer, BufferPool};
pub use error::{IoError, Operation, Result};
pub use histogram::Histogram;
pub use inbox::{Disk, Receipt, Ticket};
pub use job::{Job, Join, Until};
pub use lane::{Lane, LaneCounts};
pub use memory::{IoMem, Segment};
pub use pool::{MAX_THREADS, PoolCounts, PoolOptions, ThreadPool};
pub use queue::{Polling, Queue, QueueOptions, QueueSeed, Turn};
pub use quiesce::Quiesced;
pub use raw::RawDisk;
pub use request::{Action, Completion, Flags, Request, WouldBlock};
pub use service::Service;
pub use size_watch::{DiskSize, SizeWatch};
pub use statistics::{Latencies, QueueStatistics, RequestCounts, RequestKind};
pub use storage::{
    Access, Cache, Claim, Conflict, Discarding, Extent, ExtentKind, Flushing, Holder, LockError,
    LockMode, LockedFile, OpenError, OpenOptions, Permissions, RangeLimits, Storage, Topology,
    UnknownLockMode, identity,
};
pub use target::{Context, Target};
pub use uring::{MAX_DEPTH, Obstacle, RingUnavailable};
pub use variant::{Variant, Variants};
#[cfg(feature = "variants")]
pub use watch::{Watch, Watched, WatchedKind};
pub use write_log::{MAX_MARK, WriteLog};
