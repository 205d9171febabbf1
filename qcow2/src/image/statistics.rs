//! What an image has done, in numbers.

use blkring_engine::tracker::Statistics;
use blkring_engine::tracker::sync::atomic::{AtomicU64, Ordering};
use blkring_engine::{Action, LaneCounts, Request};

use super::Image;

/// Counters of requests.
#[derive(Default)]
pub(super) struct Counters {
    requests: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    inside: AtomicU64,
    together: AtomicU64,
}

/// A request that is inside the driver.
pub(super) struct Inside<'a>(&'a Counters);

impl Counters {
    pub(super) fn enter(&self, request: &Request) -> Inside<'_> {
        // Counters for people: no ordering with anything else.
        self.requests.fetch_add(1, Ordering::Relaxed);
        match request.action {
            Action::Read(_) => self.reads.fetch_add(1, Ordering::Relaxed),
            Action::Write(_) => self.writes.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        if self.inside.fetch_add(1, Ordering::Relaxed) > 0 {
            self.together.fetch_add(1, Ordering::Relaxed);
        }
        Inside(self)
    }

    /// Whether no request is inside, of any queue.
    pub(super) fn is_idle(&self) -> bool {
        self.inside.load(Ordering::Relaxed) == 0
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What happened since the image was opened.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ImageStatistics {
    /// Requests of any kind.
    pub requests: u64,
    /// Reads among them.
    pub reads: u64,
    /// Writes among them.
    pub writes: u64,
    /// Requests that found another one inside the driver when they came.
    pub together: u64,
    /// The tracker of guest ranges.
    pub image_tracker: Statistics,
    /// The tracker of file ranges.
    pub storage_tracker: Statistics,
    /// Operations of shared work.
    pub service: LaneCounts,
    /// Clusters ready for use.
    pub ready_clusters: u64,
    /// Clusters of unknown contents that wait for use.
    pub dirty_clusters: u64,
    /// References that entries have given up, and whose clusters are not usable or whose counts not lower yet.
    pub held_back_clusters: u64,
    /// L2 slices in memory.
    pub cached_slices: u64,
    /// Clusters decompressed, in all files of the chain.
    pub decompressed_clusters: u64,
}

pub(super) fn of(image: &Image) -> ImageStatistics {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let state = image.top.lock();
    ImageStatistics {
        requests: load(&image.counters.requests),
        reads: load(&image.counters.reads),
        writes: load(&image.counters.writes),
        together: load(&image.counters.together),
        image_tracker: image.tracker.statistics(),
        storage_tracker: image.top.storage.statistics(),
        service: image.service.counts(),
        ready_clusters: state.pools.ready.len() + state.pools.tables.len(),
        dirty_clusters: state.pools.dirty.len(),
        held_back_clusters: state.unlinks.len(),
        cached_slices: state.slices.len() as u64,
        decompressed_clusters: image.chain.decompressed.count(),
    }
}
