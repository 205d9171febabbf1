//! Closing: the last flush, and everything that was reserved goes back.

use std::sync::Arc;

use blkring_engine::tracker::{Class, Span};
use blkring_engine::{Access, Result};

use super::Image;
use super::cut::Holder;
use super::layer::Layer;
use super::pool::Run;
use super::state::SharedJob;
use crate::address::HostCluster;

/// Bytes of empty refcount blocks read at most in the search for the end of the file.
const MAX_READ: u64 = 128 << 20;

impl Image {
    /// Waits for all requests, makes everything durable, gives the reservation back and cuts the file behind the
    /// last cluster in use; then the locks on the files are given up. Requests that come later are answered with ESHUTDOWN. Run it on a queue that is attached
    /// to the image. Closing goes on if this future is dropped; a second call waits for the same and answers the same.
    ///
    /// # Errors
    /// What the last flush or the return met. What was flushed before is safe; clusters may be leaked.
    pub async fn close(self: &Arc<Self>) -> Result<()> {
        let job = self.closing.lock().get_or_insert_with(|| self.closing_job()).clone();
        let result = job.join().await;
        if result.is_err() {
            self.top.marked().await;
        }
        result
    }

    fn closing_job(&self) -> SharedJob {
        let (parts, requests) = (self.parts.clone(), self.tracker.clone());
        let (top, chain) = (self.top.clone(), self.chain.clone());
        let body = async move {
            let _parts = parts.begin(Span::new(0, 1), Class::Serialising).await;
            let _all = requests.begin(Span::to_infinity(0), Class::Serialising).await;
            top.close().await?;
            // Nobody comes any more. After a failure the locks stay until the image is dropped.
            chain.unlock();
            Ok(())
        };
        // Under the lock, so that the job finds itself named when it takes the slot.
        let mut state = self.top.lock();
        let job = self.service.start(body);
        state.work.closing = Some(job.clone());
        job
    }
}

impl Layer {
    /// Closes a layer that no request is in any more.
    async fn close(self: &Arc<Self>) -> Result<()> {
        if self.storage.access() == Access::ReadOnly {
            return Ok(());
        }
        self.finish_work(Holder::Closing).await?;
        let result = self.give_back().await;
        self.give_slot_up();
        result
    }

    /// Waits for the shared work of a layer that no request is in any more, flushes, and takes the slot: nothing is
    /// written to the file then but by who has it. Nothing is waited for but the slot if the file is only read.
    pub(super) async fn finish_work(self: &Arc<Self>, holder: Holder) -> Result<()> {
        if self.storage.access() == Access::ReadWrite {
            self.finish_writing().await?;
        }
        // A flush that nobody waits for any more may still be on its way.
        self.take_slot(holder, |_, _| ()).await;
        Ok(())
    }

    async fn finish_writing(self: &Arc<Self>) -> Result<()> {
        let refill = self.lock().work.refill.clone();
        if let Some(refill) = refill {
            // Its failure is no failure of closing.
            drop(refill.join().await);
        }
        // Nor is that of a copy of a table that nobody waits for any more.
        let copies: Vec<SharedJob> = self.lock().copies.values().cloned().collect();
        for copy in copies {
            drop(copy.join().await);
        }
        self.flush_job().join().await?;
        let background = self.lock().work.background_sync.clone();
        if let Some(background) = background {
            background.join().await?;
        }
        Ok(())
    }

    /// Takes their counts off all that is reserved or unlinked, and cuts the file.
    async fn give_back(self: &Arc<Self>) -> Result<()> {
        let losses = {
            {
                let mut state = self.lock();
                state.close_packing();
                state.recycle(0);
            }
            self.give_space_back().await;
            let mut state = self.lock();
            let pools = &mut state.pools;
            let runs = [pools.ready.drain(), pools.tables.drain(), pools.dirty.drain()].concat();
            let mut losses = state.unlinks.take_losing();
            for cluster in runs.into_iter().flat_map(Run::clusters) {
                *losses.entry(cluster).or_default() += 1;
            }
            losses
        };
        self.lower_now(losses).await?;
        self.trim_blocks().await?;
        if let Some(end) = self.end_of_use().await? {
            // A block that the disk may name or not stays within the file, and so does what is in use although nothing
            // counts it.
            let (sure, uncounted) = {
                let state = self.lock();
                let metadata = state.metadata.iter().max().map_or(0, |last| last.get() + 1);
                let distrusted = state.refcounts.distrusted_end();
                let sure = state.refcounts.half_named.is_none();
                (sure, distrusted.max(HostCluster::new(metadata)))
            };
            let size = self.geometry.host_offset(end.max(uncounted)).get();
            if sure && size < self.storage.size() {
                self.storage.resize(self.service.lane(), size).await?;
            }
        }
        self.sync().await
    }

    /// The first cluster behind the last one with a count, refcount blocks and tables included.
    async fn end_of_use(&self) -> Result<Option<HostCluster>> {
        let blocks = {
            let state = self.lock();
            let end = self.geometry.refblock_index(state.refcounts.end()) + 1;
            end.min(state.refcounts.table_len())
        };
        let most =
            usize::try_from(MAX_READ / self.geometry.cluster_size()).expect("a small number");
        let width = self.geometry.refcounts();
        for index in (0..blocks).rev().take(most) {
            let Some((_, block)) = self.load_block(index).await? else { continue };
            let entries =
                usize::try_from(self.geometry.refblock_entries()).expect("a block is small");
            let last = (0..entries).rev().find(|&entry| width.get(&block, entry) != Some(0));
            if let Some(last) = last {
                let start = self.geometry.refblock_start(index).get();
                return Ok(Some(HostCluster::new(start + last as u64 + 1)));
            }
        }
        Ok(None)
    }
}
