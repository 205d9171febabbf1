//! Consecutive clusters for a table of the image, however many: behind everything in use.
//!
//! A refill takes what one refcount block counts. A table may be longer than that. The refcount blocks that its range
//! lacks come right before it. They are named one by one from the lowest on, so that the block that counts the place
//! of another one is in force before that one is.

use std::sync::Arc;

use blkring_engine::{Operation, Result};

use super::layer::Layer;
use super::refcounts::{Block, with_counts};
use crate::address::HostCluster;
use crate::geometry::MAX_HOST_OFFSET;

/// Where consecutive clusters are to be: refcount blocks, then the clusters.
struct Place {
    start: HostCluster,
    /// The blocks that there are to be, by their index in the refcount table.
    missing: Vec<usize>,
    count: u64,
}

/// A new refcount block: its index, where it lies, what it holds.
type Made = (usize, HostCluster, Block);

impl Place {
    fn end(&self) -> HostCluster {
        HostCluster::new(self.start.get() + self.missing.len() as u64 + self.count)
    }

    fn clusters(&self) -> impl Iterator<Item = HostCluster> + Clone + use<> {
        (self.start.get()..self.end().get()).map(HostCluster::new)
    }
}

impl Layer {
    /// Counts so many consecutive clusters, durably, and keeps guests out of them. The slot is held.
    pub(crate) async fn claim_consecutive(self: &Arc<Self>, count: u64) -> Result<HostCluster> {
        let half_named = self.lock().refcounts.half_named;
        if let Some((index, _)) = half_named {
            // Its range may hold a block already.
            self.new_block(index).await?;
        }
        let place = self.find_consecutive(count).await?;
        let all = place.end().get() - place.start.get();
        self.check_range(&mut self.lock(), place.start, all)?;
        self.claim_metadata(place.start, all);
        let written = self.count_consecutive(&place).await;
        match written {
            // What is counted by now leaks.
            Err(error) => {
                self.unclaim_metadata(place.start, all);
                return Err(error);
            }
            Ok(made) => self.name_blocks(made).await?,
        }
        Ok(HostCluster::new(place.start.get() + place.missing.len() as u64))
    }

    async fn find_consecutive(self: &Arc<Self>, count: u64) -> Result<Place> {
        let mut start = self.lock().refcounts.end();
        loop {
            let place = self.place_at(start, count)?;
            if self.geometry.host_offset(place.end()).get() > MAX_HOST_OFFSET {
                let offset = self.geometry.host_offset(start).get();
                return Err(self.error(Operation::Allocate, offset, libc::EFBIG));
            }
            let last = self.geometry.refblock_index(HostCluster::new(place.end().get() - 1));
            if last >= self.lock().refcounts.table_len() {
                self.grow_table(last).await?;
                start = self.lock().refcounts.end();
                continue;
            }
            match self.last_counted(&place).await? {
                Some(counted) => start = HostCluster::new(counted.get() + 1),
                None => return Ok(place),
            }
        }
    }

    /// The place at `start`, with the blocks that its range lacks.
    fn place_at(&self, start: HostCluster, count: u64) -> Result<Place> {
        let mut place = Place { start, missing: Vec::new(), count };
        loop {
            let end = HostCluster::new(place.end().get() - 1);
            let indexes = self.geometry.refblock_index(start)..=self.geometry.refblock_index(end);
            let mut missing = Vec::new();
            for index in indexes {
                if self.named_block(index)?.is_none() {
                    missing.push(index);
                }
            }
            if missing.len() == place.missing.len() {
                return Ok(place);
            }
            place.missing = missing;
        }
    }

    /// The last cluster of a place that the image counts although nothing was ever seen there.
    async fn last_counted(self: &Arc<Self>, place: &Place) -> Result<Option<HostCluster>> {
        let mut last = None;
        let mut loaded: Option<(usize, Block)> = None;
        for cluster in place.clusters() {
            let index = self.geometry.refblock_index(cluster);
            if loaded.as_ref().is_none_or(|(of, _)| *of != index) {
                match self.load_block(index).await? {
                    Some((_, block)) => loaded = Some((index, block)),
                    None => continue,
                }
            }
            let block = loaded.as_ref().map(|(_, block)| block.as_slice()).unwrap_or_default();
            let count = self.geometry.refcounts().get(block, self.geometry.refcount_index(cluster));
            if count != Some(0) {
                last = Some(cluster);
            }
        }
        Ok(last)
    }

    /// Writes a count of one for every cluster of a place, durably. Answers the blocks that are to be named for it.
    async fn count_consecutive(self: &Arc<Self>, place: &Place) -> Result<Vec<Made>> {
        let geometry = &self.geometry;
        let mut made = Vec::new();
        let mut next = place.start;
        while next < place.end() {
            let index = geometry.refblock_index(next);
            let of_block = |cluster: &HostCluster| geometry.refblock_index(*cluster) == index;
            let clusters = place.clusters().skip_while(|c| !of_block(c)).take_while(of_block);
            if place.missing.contains(&index) {
                let cluster = HostCluster::new(place.start.get() + made.len() as u64);
                let block = self.block_counting(clusters);
                self.write_cluster(cluster, &block).await?;
                made.push((index, cluster, block));
            } else if let Some((cluster, block)) = self.load_block(index).await? {
                let (block, touched) = with_counts(&block, clusters, 1, geometry);
                self.lock().refcounts.cache(index, block.clone());
                self.write_block(index, cluster, &block, touched).await?;
            }
            next = geometry.refblock_start(index + 1);
        }
        self.sync().await?;
        Ok(made)
    }

    /// Has the refcount table name new blocks, each durably before the next.
    async fn name_blocks(&self, made: Vec<Made>) -> Result<()> {
        for (index, cluster, block) in made {
            let mut named = self.name_block(index, cluster).await;
            if named.is_ok() {
                named = self.sync().await;
            }
            if let Err(error) = named {
                // Nobody knows whether the block is in force: nothing may be counted any more.
                return Err(self.lock().failure.get_or_insert(error).clone());
            }
            self.lock().refcounts.cache(index, block);
        }
        Ok(())
    }
}
