//! New refcount blocks and a larger refcount table.
//!
//! A new block takes a clean cluster of the reservation: one that is counted and zero already, both durably, which is
//! what an empty block is. Then nothing but the table entry has to be written. Where there is none the block lies in
//! the first cluster that it counts, and its contents are made durable before the entry is written. The entry itself
//! is synced together with the first counts in the block: the clusters that they count are *pending* until then, so
//! no table names one of them before. What a crash leaves is an empty block, with a name or without.
//!
//! A table that has no room for the entry is replaced first: the new table and the blocks that count it, fdatasync,
//! the header, fdatasync, and then the old one is free.

use std::sync::Arc;

use blkring_engine::faults::Event;
use blkring_engine::{Flags, IoMem, Operation, Result, Variant};

use super::layer::Layer;
use super::options::AllocPolicy;
use super::refcounts::{Block, with_counts};
use super::state::State;
use crate::address::{HostCluster, HostOffset};
use crate::geometry::{MAX_REFTABLE_BYTES, TABLE_ENTRY_BYTES};
use crate::header::{Header, RefTable};

impl Layer {
    /// Makes the refcount block for table entry `index`, which has none. The slot is held.
    pub(crate) async fn new_block(self: &Arc<Self>, index: usize) -> Result<Block> {
        if index >= self.lock().refcounts.table_len() {
            self.grow_table(index).await?;
            // The new table and the blocks that count it may lie in this very range.
            if let Some((_, block)) = self.load_block(index).await? {
                return Ok(block);
            }
        }
        self.storage.point(Event::RefblockAlloc).await;
        let (cluster, block) = self.place_block(index).await?;
        self.storage.point(Event::RefblockAllocHookup).await;
        self.name_block(index, cluster).await?;
        self.lock().refcounts.cache(index, block.clone());
        Ok(block)
    }

    /// Where the block for table entry `index` goes, with what it holds there, durably.
    async fn place_block(self: &Arc<Self>, index: usize) -> Result<(HostCluster, Block)> {
        let own = self.geometry.refblock_start(index);
        let (cluster, first) = {
            let mut state = self.lock();
            match state.refcounts.half_named {
                // The disk may have the entry already: the block keeps its place.
                Some((tried, cluster)) if tried == index => (cluster, false),
                _ => {
                    let cluster = self.clean_cluster(&mut state).unwrap_or(own);
                    // Where nothing counts it yet, the range may hold the image's own structures all the same.
                    self.check_range(&mut state, cluster, 1)?;
                    (cluster, true)
                }
            }
        };
        self.claim_metadata(cluster, 1);
        if cluster != own {
            return Ok((cluster, self.block_counting(std::iter::empty())));
        }
        let block = self.block_counting(std::iter::once(own));
        self.storage.point(Event::RefblockAllocWrite).await;
        let mut made = self.write_cluster(own, &block).await;
        if made.is_ok() {
            made = self.sync().await;
        }
        if made.is_err() && first {
            self.unclaim_metadata(own, 1);
        }
        made.map(|()| (own, block))
    }

    /// A cluster that is counted and zero, both durably: an empty refcount block.
    fn clean_cluster(&self, state: &mut State) -> Option<HostCluster> {
        let pool = match self.policy {
            AllocPolicy::Ahead => &mut state.pools.ready,
            // Were the one that a table waits for taken by each refill that crosses into a new range, none would end
            // that wait.
            AllocPolicy::PerAllocation if state.pools.keeps_table() => return None,
            AllocPolicy::PerAllocation => &mut state.pools.tables,
        };
        pool.take_clean(&state.clock)
    }

    /// Has the refcount table name a block whose contents are durable. The entry need not be durable before counts
    /// are written to the block: they are pending together.
    pub(super) async fn name_block(&self, index: usize, cluster: HostCluster) -> Result<()> {
        let place = self.header.lock().reftable().offset;
        let table = {
            let mut state = self.lock();
            // If this fails nobody knows what the disk has. The block is counted and counts nothing else, so both are
            // right; it keeps its place, and the next attempt writes the same.
            state.refcounts.half_named = Some((index, cluster));
            state.refcounts.table_with(0, std::iter::once((index, cluster)), &self.geometry)
        };
        let unit = self.table_unit();
        let within = index as u64 * TABLE_ENTRY_BYTES / unit * unit;
        let bytes = table_bytes(&table, within, unit);
        let lane = self.service.lane();
        self.storage
            .write(lane, place.get() + within, &IoMem::aligned(&bytes), Flags::empty())
            .await?;
        let mut state = self.lock();
        state.refcounts.half_named = None;
        state.refcounts.replace_table(table);
        state.refcounts.note_made(index);
        Ok(())
    }

    /// Bytes of the refcount table that are written at once.
    pub(super) fn table_unit(&self) -> u64 {
        self.storage.alignment().max(512).min(self.geometry.cluster_size())
    }

    /// Replaces the refcount table by one that has an entry `index`. The table, and blocks for the range that it
    /// lies in, go to the first clusters that no block counts yet.
    pub(super) async fn grow_table(self: &Arc<Self>, index: usize) -> Result<()> {
        self.storage.point(Event::ReftableGrow).await;
        let geometry = &self.geometry;
        let start = geometry.refblock_start(index);
        let per_cluster = geometry.cluster_size() / TABLE_ENTRY_BYTES;
        // The table must have entries for the blocks that count it, and some to spare.
        let (mut clusters, mut blocks) = (1, 1);
        loop {
            let entries = (index as u64 + blocks) * 3 / 2 + 1;
            let needed = (entries.div_ceil(per_cluster), geometry.refblocks_for(blocks + clusters));
            if needed == (clusters, blocks) {
                break;
            }
            (clusters, blocks) = (needed.0.max(clusters), needed.1.max(blocks));
        }
        if clusters * geometry.cluster_size() > MAX_REFTABLE_BYTES {
            return Err(self.error(
                Operation::Allocate,
                geometry.host_offset(start).get(),
                libc::EFBIG,
            ));
        }
        let size = (blocks, clusters);
        self.check_range(&mut self.lock(), start, blocks + clusters)?;
        self.claim_metadata(start, blocks + clusters);
        let written = self.write_table(index, size).await;
        let Ok((table, made)) = written else {
            // The header names none of this.
            self.unclaim_metadata(start, blocks + clusters);
            return written.map(drop);
        };
        let old = self.header.lock().reftable();
        let offset = geometry.host_offset(HostCluster::new(start.get() + blocks));
        let clusters = u32::try_from(clusters).expect("at most 8 MiB");
        let new = RefTable { offset, clusters };
        self.storage.point(Event::RefblockAllocSwitchTable).await;
        self.switch_table(|header| header.set_reftable(new)).await?;
        let mut state = self.lock();
        state.refcounts.replace_table(table);
        for (index, block) in made {
            state.refcounts.cache(index, block);
        }
        self.free_table(&mut state, old.offset, u64::from(old.clusters));
        Ok(())
    }

    /// Writes the blocks from number `index` on that count a new refcount table and themselves, and behind them that
    /// table, and makes them durable.
    async fn write_table(
        &self,
        index: usize,
        (blocks, clusters): (u64, u64),
    ) -> Result<(Vec<u64>, Vec<(usize, Block)>)> {
        let geometry = &self.geometry;
        let start = geometry.refblock_start(index);
        let used = (start.get()..start.get() + blocks + clusters).map(HostCluster::new);
        let mut made = Vec::new();
        self.storage.point(Event::RefblockAllocWriteBlocks).await;
        for (index, cluster) in (index..).zip(used.clone()).take(saturate(blocks)) {
            let range = geometry.refblock_start(index)..geometry.refblock_start(index + 1);
            let block = self.block_counting(used.clone().filter(|c| range.contains(c)));
            self.write_cluster(cluster, &block).await?;
            made.push((index, block));
        }
        let entries = saturate(clusters * geometry.cluster_size() / TABLE_ENTRY_BYTES);
        let named = made.iter().map(|(index, _)| *index).zip(used);
        let table = self.lock().refcounts.table_with(entries, named, geometry);
        let bytes: Vec<u8> = table.iter().flat_map(|raw| raw.to_be_bytes()).collect();
        self.storage.point(Event::RefblockAllocWriteTable).await;
        self.write_cluster(HostCluster::new(start.get() + blocks), &bytes).await?;
        self.sync_before_switch().await?;
        Ok((table, made))
    }

    /// Makes everything durable that the header is about to name.
    pub(super) async fn sync_before_switch(&self) -> Result<()> {
        if self.breaks(Variant::TableSwitchedBeforeSync) { Ok(()) } else { self.sync().await }
    }

    /// A table that the header names no more.
    pub(super) fn free_table(&self, state: &mut State, offset: HostOffset, clusters: u64) {
        let start = self.geometry.host_cluster(offset).get();
        for cluster in (start..start + clusters).map(HostCluster::new) {
            state.metadata.remove(&cluster);
            state.unlinks.lose(cluster);
        }
    }

    /// Has the header name another table, durably.
    pub(super) async fn switch_table(&self, name: impl FnOnce(&mut Header)) -> Result<()> {
        let bytes = {
            let mut header = self.header.lock();
            name(&mut header);
            header.fixed_bytes()
        };
        let switched = self.write_header(&bytes).await;
        if let Err(error) = &switched {
            // Nobody knows which table is in force: nothing may be written to either any more.
            self.lock().failure.get_or_insert(error.clone());
        }
        switched
    }

    /// Writes the fixed part of the header in its sector, durably.
    pub(crate) async fn write_header(&self, bytes: &[u8]) -> Result<()> {
        let lane = self.service.lane();
        self.storage
            .write(lane, HostOffset::ZERO.get(), &IoMem::aligned(bytes), Flags::empty())
            .await?;
        if self.breaks(Variant::OldTableFreedBeforeSwitch) { Ok(()) } else { self.sync().await }
    }

    pub(super) fn block_counting(&self, clusters: impl Iterator<Item = HostCluster>) -> Block {
        let len = usize::try_from(self.geometry.cluster_size()).expect("a cluster is small");
        with_counts(&Arc::new(vec![0; len]), clusters, 1, &self.geometry).0
    }

    /// Takes clusters that nothing counts for metadata.
    pub(super) fn claim_metadata(&self, start: HostCluster, count: u64) {
        let mut state = self.lock();
        state.metadata.extend((start.get()..start.get() + count).map(HostCluster::new));
        state.refcounts.extend_to(HostCluster::new(start.get() + count));
    }

    /// Nothing names these clusters after all.
    pub(super) fn unclaim_metadata(&self, start: HostCluster, count: u64) {
        let mut state = self.lock();
        for cluster in (start.get()..start.get() + count).map(HostCluster::new) {
            state.metadata.remove(&cluster);
        }
    }

    /// Writes one cluster, or several.
    pub(super) async fn write_cluster(&self, cluster: HostCluster, bytes: &[u8]) -> Result<()> {
        let place = self.geometry.host_offset(cluster).get();
        self.storage.write(self.service.lane(), place, &IoMem::aligned(bytes), Flags::empty()).await
    }
}

/// The bytes of a table from an offset in it on, at most so many.
pub(super) fn table_bytes(table: &[u64], within: u64, len: u64) -> Vec<u8> {
    let entries = table
        .iter()
        .skip(usize::try_from(within / TABLE_ENTRY_BYTES).expect("the table is in memory"))
        .take(usize::try_from(len / TABLE_ENTRY_BYTES).expect("a sector is small"));
    entries.flat_map(|raw| raw.to_be_bytes()).collect()
}

fn saturate(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}
