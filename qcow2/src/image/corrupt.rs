//! An image that contradicts itself: its corrupt bit is set, and nothing else of it is written any more.
//!
//! A guest write or an allocation would go where the image keeps its own structures. What is wrong is found under the
//! layer's lock, before anything is written; the mark is shared work, and a request that fails waits for it before it
//! is answered.

use std::sync::Arc;

use blkring_engine::{IoError, Operation, Result};

use super::cut::Holder;
use super::layer::Layer;
use super::state::State;
use crate::address::{HostCluster, HostOffset};

impl Layer {
    /// The error of who met the damage at `at`. Begins to mark the image; from here on every change fails.
    pub(crate) fn corrupt(self: &Arc<Self>, state: &mut State, at: HostOffset) -> IoError {
        let error = self.error(Operation::Map, at.get(), libc::EIO);
        let error = error.because("a cluster of the image's own structures");
        state.failure.get_or_insert(error.clone());
        let layer = self.clone();
        let mark = || self.service.start(layer.mark_corrupt(at));
        state.work.marking.get_or_insert_with(mark);
        error
    }

    /// Waits for the mark, if there is to be one.
    pub(crate) async fn marked(&self) {
        let marking = self.lock().work.marking.clone();
        if let Some(marking) = marking {
            // That it could not be written has been logged; the request has an error of its own.
            drop(marking.join().await);
        }
    }

    /// No cluster of a range that is about to be given away, or written by a guest, may hold the image's own
    /// structures.
    pub(crate) fn check_range(
        self: &Arc<Self>,
        state: &mut State,
        host: HostCluster,
        count: u64,
    ) -> Result<()> {
        let mut clusters = (host.get()..host.get() + count).map(HostCluster::new);
        match clusters.find(|cluster| state.metadata.contains(cluster)) {
            None => Ok(()),
            Some(hit) => Err(self.corrupt(state, self.geometry.host_offset(hit))),
        }
    }

    /// Sets the corrupt bit, durably. Under the slot: a refill may be about to name another refcount table.
    async fn mark_corrupt(self: Arc<Self>, at: HostOffset) -> Result<()> {
        let path = self.storage.path();
        tracing::error!(%path, offset = at.get(), "the image contradicts itself: marked corrupt");
        self.take_slot(Holder::Marking, |_, _| ()).await;
        let marked = {
            let mut header = self.header.lock();
            header.mark_corrupt().then(|| header.fixed_bytes())
        };
        let result = match marked {
            Some(bytes) => self.write_header(&bytes).await,
            // Version 2 has no such bit.
            None => Ok(()),
        };
        if let Err(error) = &result {
            tracing::error!(%error, "the corrupt bit could not be written");
        }
        self.give_slot_up();
        result
    }
}
