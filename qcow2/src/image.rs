//! An opened image: a qcow2 file with its chain of backing files, driven by any number of queues.
//!
//! # The path of a request
//!
//! *check* (`request`), *admit* (`request`: the image's tracker), *map* (`layer` for reads, `plan` for writes),
//! *reserve* if need be (`refill`), *move bytes* (`read`, `write`, `copy`), *publish* (`claim`), *release*, *answer*.
//! Metadata reaches the file by a *cut* (`cut`), the only writer of L2 slices and L1 entries; refcounts are written by
//! refills and cuts, under one slot.

mod background;
mod claim;
mod clock;
mod close;
mod compress;
mod contiguous;
mod copy;
mod corrupt;
mod counted;
mod cut;
mod decompress;
mod extents;
mod holes;
mod l1;
mod layer;
mod lease;
mod lower;
mod open;
mod options;
mod packing;
mod plan;
mod pool;
mod preallocate;
mod quiesce;
mod raise;
mod read;
mod reclaim;
mod refblock;
mod refcounts;
mod refill;
mod request;
mod resize;
mod slices;
mod state;
mod statistics;
mod table;
mod tables;
mod trim;
mod unlinks;
mod write;
mod zero;
mod zero_part;
mod zero_v2;
mod zeros;

use std::io;
use std::sync::Arc;

use blkring_engine::tracker::Tracker;
use blkring_engine::tracker::sync::Mutex;
use blkring_engine::{BufferPool, InUse, LaneCounts, Result, Service, SizeWatch, Storage};

pub use extents::{GuestBytes, GuestExtent};
pub use open::{FileOpener, OpenError, Opener};
pub use options::{AllocPolicy, Freed, ImageOptions};
pub use preallocate::Preallocation;
pub use statistics::ImageStatistics;

use decompress::Decompressed;
use layer::Layer;
use plan::BackingEnd;
use state::SharedJob;
use statistics::Counters;
use zeros::Zeros;

use crate::geometry::Version;

/// An opened qcow2 image.
///
/// All requests go through queues ([`Queue::attach`](blkring_engine::Queue::attach)); control operations are methods.
pub struct Image {
    top: Arc<Layer>,
    chain: Arc<Chain>,
    tracker: Arc<Tracker>,
    service: Arc<Service>,
    counters: Counters,
    /// What it was when it was opened.
    info: ImageInfo,
    /// Requests of several parts, each of which is admitted alone: closing waits for them as a whole.
    parts: Arc<Tracker>,
    /// The lock *closing*: the job that closes the image, from when no request is taken any more.
    closing: Mutex<Option<SharedJob>>,
}

/// The files that reads go through, with the buffers for copies. Shared work keeps this, never the image: the image
/// goes when its last user does, and its drop waits for that work.
struct Chain {
    top: Arc<Layer>,
    /// What lies below the top, nearest first.
    backing: Vec<Member>,
    buffers: Arc<BufferPool>,
    decompressed: Decompressed,
    zeros: Zeros,
}

impl Chain {
    /// Gives the locks on all files up.
    fn unlock(&self) {
        self.top.storage.unlock();
        for member in &self.backing {
            match member {
                Member::Qcow2(layer) => layer.storage.unlock(),
                Member::Raw(storage) => storage.unlock(),
            }
        }
    }
}

/// One file below the top of a chain.
enum Member {
    Qcow2(Arc<Layer>),
    Raw(Arc<Storage>),
}

impl Member {
    /// Bytes that it has; beyond reads as zeros.
    fn size(&self) -> u64 {
        match self {
            Member::Qcow2(layer) => layer.virtual_size(),
            Member::Raw(storage) => storage.size(),
        }
    }
}

/// What is known of an image without reading its tables.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageInfo {
    /// Bytes of the virtual disk.
    pub virtual_size: u64,
    /// Bytes of a cluster.
    pub cluster_size: u64,
    /// The version of its format.
    pub version: Version,
    /// How many internal snapshots it has.
    pub snapshots: u32,
    /// The name of the backing file, as it is in the header; what is not UTF-8 is replaced.
    pub backing_name: Option<String>,
    /// Its format, as it is in the header.
    pub backing_format: Option<String>,
}

impl Image {
    /// What is known of the image without reading its tables.
    pub fn info(&self) -> ImageInfo {
        let snapshots = self.top.header.lock().snapshots();
        ImageInfo { virtual_size: self.top.virtual_size(), snapshots, ..self.info.clone() }
    }

    /// Hears of every size that the virtual disk gets from here on, by whichever queue and thread.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn watch_size(&self) -> io::Result<SizeWatch> {
        self.top.watch_size()
    }

    /// The file of the image.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.top.storage
    }

    /// What the shared work of the image is done by.
    pub fn backend(&self) -> InUse {
        self.service.backend()
    }

    /// What the shared work of the image has issued.
    pub fn service_counts(&self) -> LaneCounts {
        self.service.counts()
    }

    /// What happened so far.
    pub fn statistics(&self) -> ImageStatistics {
        statistics::of(self)
    }

    /// How far anything below the top may have bytes.
    fn backing_end(&self) -> BackingEnd {
        BackingEnd(self.chain.backing.first().map_or(0, Member::size))
    }

    /// Makes everything answered before durable: a cut that is frozen from now on, and an fdatasync.
    async fn flush_metadata(&self) -> Result<()> {
        self.top.flush_job().join().await
    }
}

impl Drop for Image {
    /// Waits for shared operations in flight, then drops the work that they belong to. What was not flushed is
    /// lost, as in a power cut; the reservation is found again at the next open.
    fn drop(&mut self) {
        if let Err(error) = self.service.settle() {
            tracing::error!(%error, "shared work could not be waited for");
        }
        self.service.abandon_jobs();
    }
}
