//! Counts that go down, under the cut slot.
//!
//! A count is written no earlier than its removal is durable, so both what the disk had and what is written are right
//! after a power cut. Where the write has failed nobody knows which of the two the disk has: the new count is kept,
//! and written again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use blkring_engine::{Result, Variant};

use super::layer::Layer;
use super::refcounts::Block;
use super::state::State;
use crate::address::HostCluster;

/// Clusters whose counts go down looked at for the blocks to load, and such blocks loaded for one cut.
const LOOKED_AT: usize = 4096;
const LOADED: usize = 4;

/// A refcount block with counts that went down.
pub(super) struct LoweredBlock {
    pub(super) index: usize,
    /// Where the block is.
    pub(super) cluster: HostCluster,
    pub(super) contents: Block,
    /// Bytes that changed.
    pub(super) touched: Range<usize>,
}

/// The counts that a cut writes.
#[derive(Default)]
pub(super) struct Lowered {
    pub(super) blocks: Vec<LoweredBlock>,
    /// What the counts are now.
    counts: Vec<(HostCluster, u64)>,
}

impl Layer {
    /// Loads the refcount blocks of clusters that lose counts. Under the slot: a block that is being written would be
    /// read as it was. One that cannot be loaded keeps its clusters waiting; they are only leaked.
    pub(super) async fn load_blocks_to_lower(&self) {
        let indexes: BTreeSet<usize> = {
            let state = self.lock();
            let losing = state.unlinks.losing().take(LOOKED_AT);
            losing.map(|cluster| self.geometry.refblock_index(cluster)).collect()
        };
        for index in indexes.into_iter().take(LOADED) {
            if let Err(error) = self.load_block(index).await {
                tracing::warn!(%error, "a refcount block cannot be read; what it counts leaks");
            }
        }
    }

    /// Lowers the counts that can go down now: those whose block is cached. The slot is held.
    pub(super) fn freeze_counts(self: &Arc<Self>, state: &mut State) -> Lowered {
        let mut by_block: BTreeMap<usize, Vec<(HostCluster, u64)>> = BTreeMap::new();
        for (cluster, counts) in state.unlinks.take_losing() {
            by_block
                .entry(self.geometry.refblock_index(cluster))
                .or_default()
                .push((cluster, counts));
        }
        let mut lowered = Lowered::default();
        for (index, losses) in by_block {
            if let Err(losses) = self.lower_block(state, index, losses, &mut lowered) {
                losses.into_iter().for_each(|(one, counts)| state.unlinks.lose_many(one, counts));
            }
        }
        lowered
    }

    /// Gives the losses back if they cannot be taken off now.
    fn lower_block(
        self: &Arc<Self>,
        state: &mut State,
        index: usize,
        losses: Vec<(HostCluster, u64)>,
        lowered: &mut Lowered,
    ) -> std::result::Result<(), Vec<(HostCluster, u64)>> {
        let below_zero = match (
            state.refcounts.block_at(index, &self.geometry),
            state.refcounts.cached(index),
        ) {
            (Ok(Some(cluster)), Some(block)) => {
                match state.refcounts.lower(&block, &losses, &self.geometry) {
                    Ok((contents, touched, counts)) => {
                        state.refcounts.cache(index, contents.clone());
                        lowered.blocks.push(LoweredBlock { index, cluster, contents, touched });
                        lowered.counts.extend(counts);
                        return Ok(());
                    }
                    Err(cluster) => Some(cluster),
                }
            }
            // Nothing is counted there.
            (Ok(None), _) => losses.first().map(|(cluster, _)| *cluster),
            _ => None,
        };
        if let Some(cluster) = below_zero {
            drop(self.corrupt(state, self.geometry.host_offset(cluster)));
        }
        Err(losses)
    }

    /// The counts have landed.
    pub(super) fn counts_landed(&self, state: &mut State, lowered: &Lowered) {
        for &(cluster, count) in &lowered.counts {
            state.refcounts.landed(cluster, count);
        }
    }

    /// The cut has failed: what the disk has of these counts is unknown. They are written again.
    pub(super) fn put_counts_back(&self, state: &mut State, lowered: &Lowered) {
        for &(cluster, count) in &lowered.counts {
            if self.breaks(Variant::FailedDecrementRecycled) {
                if count == 0 {
                    state.put_dirty(cluster, Default::default());
                }
                continue;
            }
            state.refcounts.in_doubt(cluster, count);
            state.unlinks.lose_many(cluster, 0);
        }
        for block in &lowered.blocks {
            state.refcounts.forget(block.index);
        }
    }

    /// Takes counts off clusters and writes the blocks at once, for a layer that is closing. The slot is held.
    pub(super) async fn lower_now(
        self: &Arc<Self>,
        losses: BTreeMap<HostCluster, u64>,
    ) -> Result<()> {
        let mut by_block: BTreeMap<usize, Vec<(HostCluster, u64)>> = BTreeMap::new();
        for (cluster, counts) in losses {
            by_block
                .entry(self.geometry.refblock_index(cluster))
                .or_default()
                .push((cluster, counts));
        }
        for (index, losses) in by_block {
            self.load_block(index).await?;
            let mut lowered = Lowered::default();
            let refused = {
                let mut state = self.lock();
                let result = self.lower_block(&mut state, index, losses, &mut lowered);
                result.err().and(state.failure.clone())
            };
            if let Some(error) = refused {
                return Err(error);
            }
            for one in &lowered.blocks {
                self.write_block(one.index, one.cluster, &one.contents, one.touched.clone())
                    .await?;
            }
        }
        Ok(())
    }
}
