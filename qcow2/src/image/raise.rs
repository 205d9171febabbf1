//! Counts that go up, for compressed data that shares a host cluster. Under the cut slot, as all that writes counts.
//!
//! A raise that has not begun is *next*: whoever needs more counts joins it. When it has landed, entries may name the
//! clusters; the fdatasync that comes before such an entry covers the counts as it covers the data.

use std::collections::BTreeMap;
use std::sync::Arc;

use blkring_engine::{Operation, Result};

use super::cut::Holder;
use super::layer::Layer;
use super::refcounts::with_each;
use super::state::SharedJob;
use crate::address::HostCluster;

/// A cluster, its count before and its count after.
type Raised = (HostCluster, u64, u64);

impl Layer {
    /// The raise that has not begun yet, with one more count for each of these clusters.
    pub(super) fn raise_job(
        self: &Arc<Self>,
        clusters: impl Iterator<Item = HostCluster>,
    ) -> SharedJob {
        let layer = self.clone();
        let mut state = self.lock();
        for cluster in clusters {
            *state.raises.entry(cluster).or_default() += 1;
        }
        state.work.next_raise.get_or_insert_with(|| self.service.start(layer.raise())).clone()
    }

    async fn raise(self: Arc<Self>) -> Result<()> {
        let raises = self
            .take_slot(Holder::Raise, |_, state| {
                state.work.next_raise = None;
                std::mem::take(&mut state.raises)
            })
            .await;
        let result = self.raise_under_slot(raises).await;
        self.give_slot_up();
        result
    }

    async fn raise_under_slot(self: &Arc<Self>, raises: BTreeMap<HostCluster, u64>) -> Result<()> {
        let mut by_block: BTreeMap<usize, Vec<(HostCluster, u64)>> = BTreeMap::new();
        for (cluster, more) in raises {
            by_block
                .entry(self.geometry.refblock_index(cluster))
                .or_default()
                .push((cluster, more));
        }
        let mut raised: Vec<(HostCluster, u64)> = Vec::new();
        for (index, more) in by_block {
            if let Err(error) = self.raise_block(index, &more).await {
                // Nobody will name these clusters for it.
                let mut state = self.lock();
                raised.iter().for_each(|&(one, counts)| state.unlinks.lose_many(one, counts));
                return Err(error);
            }
            raised.extend(more);
        }
        Ok(())
    }

    async fn raise_block(
        self: &Arc<Self>,
        index: usize,
        more: &[(HostCluster, u64)],
    ) -> Result<()> {
        let error = |errno| self.error(Operation::Allocate, index as u64 * 8, errno);
        let loaded = self.load_block(index).await?;
        let (cluster, block) =
            loaded.ok_or_else(|| error(libc::EIO).because("no refcount block"))?;
        let (counts, changed, touched) = {
            let mut state = self.lock();
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            let count = |one| state.refcounts.count(&block, one, &self.geometry);
            let counts: Vec<Raised> = more
                .iter()
                .map(|&(cluster, more)| (cluster, count(cluster), more))
                .map(|(cluster, before, more)| (cluster, before, before.saturating_add(more)))
                .collect();
            if counts.iter().any(|(.., after)| *after > self.geometry.refcounts().max()) {
                return Err(error(libc::EOVERFLOW).because("a refcount would be too large"));
            }
            let after = counts.iter().map(|&(cluster, _, after)| (cluster, after));
            let (changed, touched) = with_each(&block, after, &self.geometry);
            state.refcounts.cache(index, changed.clone());
            (counts, changed, touched)
        };
        let written = self.write_block(index, cluster, &changed, touched).await;
        let mut state = self.lock();
        for (cluster, before, after) in counts {
            match written {
                Ok(()) => state.refcounts.landed(cluster, after),
                // The disk may have the one or the other: the lower one is written again.
                Err(_) => {
                    state.refcounts.in_doubt(cluster, before);
                    state.unlinks.lose_many(cluster, 0);
                }
            }
        }
        written
    }
}
