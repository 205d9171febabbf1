//! Closing: the last flush, and everything that was reserved goes back.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use blkring_engine::tracker::{Class, Guard, Span};
use blkring_engine::{Access, Job, Join, Result};

use super::layer::Layer;
use super::refcounts::with_counts;
use super::state::{SharedJob, Stage};
use super::{Image, Life};
use crate::address::HostCluster;
use crate::entry::refcount_get;

impl Image {
    /// Waits for all requests, makes everything durable, gives the reservation back and cuts the file behind the
    /// last cluster in use. Requests that come later are answered with ESHUTDOWN. Run it on a queue that is attached
    /// to the image.
    ///
    /// # Errors
    /// What the last flush or the return met. What was flushed before is safe; clusters may be leaked.
    pub async fn close(self: &Arc<Self>) -> Result<()> {
        if std::mem::replace(&mut *self.life.lock(), Life::Closed) == Life::Closed {
            return Ok(());
        }
        let _all = self.everything().await;
        if self.top.storage.access() == Access::ReadOnly {
            return Ok(());
        }
        let refill = self.top.lock().work.refill.clone();
        if let Some(refill) = refill {
            // Its failure is no failure of closing.
            drop(refill.join().await);
        }
        self.flush_metadata().await?;
        self.top.give_back().await
    }

    /// A grant over everything. Jobs whose requests are gone are polled by who waits here.
    async fn everything(&self) -> Guard {
        let mut begin = self.tracker.begin(Span::to_infinity(0), Class::Serialising);
        let mut joined: Vec<(SharedJob, Join<Result<()>>)> = Vec::new();
        poll_fn(move |cx| {
            if let Poll::Ready(guard) = Pin::new(&mut begin).poll(cx) {
                return Poll::Ready(guard);
            }
            for job in self.top.jobs_in_flight() {
                if !joined.iter().any(|(known, _)| Arc::ptr_eq(known, &job)) {
                    let join = job.join();
                    joined.push((job, join));
                }
            }
            joined.retain_mut(|(_, join)| Pin::new(join).poll(cx).is_pending());
            Pin::new(&mut begin).poll(cx)
        })
        .await
    }
}

impl Layer {
    fn jobs_in_flight(&self) -> Vec<SharedJob> {
        let state = self.lock();
        let jobs = state.in_flight.values().filter_map(|one| match &one.stage {
            Stage::Careful(job) | Stage::Zeroing(job) => Some(job.clone()),
            Stage::Open => None,
        });
        jobs.collect()
    }

    /// Drops all shared work where it stands. None of its operations is in flight.
    pub(super) fn abandon_work(&self) {
        let mut jobs = self.jobs_in_flight();
        {
            let mut state = self.lock();
            jobs.extend(std::mem::take(&mut state.loads).into_values());
            let work = std::mem::take(&mut state.work);
            jobs.extend(
                [work.slot, work.next_cut, work.next_flush, work.frozen_flush, work.refill]
                    .into_iter()
                    .flatten(),
            );
        }
        jobs.iter().for_each(|job| Job::abandon(job));
    }

    /// Sets the counts of all that is reserved or unlinked to zero, and cuts the file.
    async fn give_back(self: &Arc<Self>) -> Result<()> {
        let mut by_block: BTreeMap<usize, Vec<HostCluster>> = BTreeMap::new();
        {
            let mut state = self.lock();
            state.recycle(0);
            let pools = &mut state.pools;
            let runs = [pools.ready.drain(), pools.tables.drain(), pools.dirty.drain()].concat();
            let freed = std::mem::take(&mut state.unlinks.to_free);
            let all = runs.into_iter().flat_map(|run| run.clusters()).chain(freed);
            for cluster in all {
                by_block.entry(self.geometry.refblock_index(cluster)).or_default().push(cluster);
            }
        }
        for (index, clusters) in by_block {
            let Some((cluster, block)) = self.load_block(index).await? else { continue };
            let (block, touched) = with_counts(&block, clusters.into_iter(), 0, &self.geometry);
            self.lock().refcounts.cache(index, block.clone());
            self.write_block(index, cluster, &block, touched).await?;
        }
        if let Some(end) = self.end_of_use().await? {
            let size = self.geometry.host_offset(end).get();
            if size < self.storage.size() {
                self.storage.resize(self.service.lane(), size).await?;
            }
        }
        self.sync().await
    }

    /// The first cluster behind the last one with a count, refcount blocks and tables included.
    async fn end_of_use(&self) -> Result<Option<HostCluster>> {
        let end = self.lock().refcounts.end();
        let blocks: BTreeSet<usize> = (0..=self.geometry.refblock_index(end)).collect();
        for index in blocks.into_iter().rev() {
            let Some((_, block)) = self.load_block(index).await? else { continue };
            let entries =
                usize::try_from(self.geometry.refblock_entries()).expect("a block is small");
            let last = (0..entries).rev().find(|&entry| refcount_get(&block, entry) != Some(0));
            if let Some(last) = last {
                let start = self.geometry.refblock_start(index).get();
                return Ok(Some(HostCluster::new(start + last as u64 + 1)));
            }
        }
        Ok(None)
    }
}
