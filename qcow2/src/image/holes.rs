//! Space of freed clusters on its way back to the host.
//!
//! A cluster whose removal is durable and that no I/O is in any more means nothing to anybody, and nobody takes it while
//! its count is not lower on the disk. In between, under the slot that the lower count is written under, a hole is made
//! of it: after a power cut it is a cluster without a reference, with bytes or without.

use super::layer::Layer;
use super::options::Freed;

/// Runs of clusters given back by one cut at most: the others are kept. A flush waits for them.
const RUNS: usize = 1024;

impl Layer {
    /// Makes holes of the clusters that are about to lose their only count. The slot is held. A host that cannot do it
    /// keeps them.
    pub(super) async fn give_space_back(&self) {
        if self.freed == Freed::Kept {
            return;
        }
        for _ in 0..RUNS {
            let run = self.lock().unlinks.take_hollow();
            let Some((first, clusters)) = run else { return };
            let offset = self.geometry.host_offset(first).get();
            let len = clusters * self.geometry.cluster_size();
            if let Err(error) = self.storage.discard(self.service.lane(), offset, len).await {
                tracing::debug!(%error, clusters, "space of freed clusters is kept");
                return;
            }
        }
    }
}
