//! What is done in quiet moments, so that the next flush costs less.
//!
//! What a refill made is *pending* until an fdatasync has covered it, and the first cut that links into it begins with
//! one. While flushes are frequent the refill syncs by itself. After a burst without a flush nobody has, so a queue
//! that finds nothing to do has it synced: the flush that comes later costs one fdatasync, not two.

use std::sync::Arc;

use blkring_engine::Result;

use super::layer::Layer;
use super::state::State;

impl Layer {
    /// Begins an fdatasync if something is pending and no other work is on its way, which would sync it or add to it.
    /// Says whether it did. What is pending is told by the stamp of the last refill, so nothing is synced twice.
    pub(crate) fn sync_when_idle(self: &Arc<Self>) -> bool {
        let mut state = self.lock();
        if state.clock.is_durable(state.pools.refilled) || !is_quiet(&state) {
            return false;
        }
        state.work.background_sync = Some(self.service.start(self.clone().background_sync()));
        true
    }

    async fn background_sync(self: Arc<Self>) -> Result<()> {
        let result = self.sync().await;
        self.lock().work.background_sync = None;
        result
    }
}

fn is_quiet(state: &State) -> bool {
    let work = &state.work;
    let all = [&work.slot, &work.next_cut, &work.next_flush, &work.refill, &work.background_sync];
    state.failure.is_none() && all.iter().all(|job| job.is_none())
}
