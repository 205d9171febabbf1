//! New refcount blocks and a larger refcount table.
//!
//! A new block lies in the first cluster that it counts. Its contents are made durable, then the table entry that
//! names it, and only then is it used. A table that has no room for the entry is replaced first: the new table and
//! the blocks that count it, fdatasync, the header, fdatasync, and then the old one is free.

use std::sync::Arc;

use blkring_engine::{Flags, IoMem, Operation, Result};

use super::layer::Layer;
use super::refcounts::{Block, with_counts};
use crate::address::{HostCluster, HostOffset};
use crate::geometry::{MAX_REFTABLE_BYTES, TABLE_ENTRY_BYTES};
use crate::header::RefTable;

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
        let cluster = self.geometry.refblock_start(index);
        if self.lock().metadata.contains(&cluster) {
            // The range holds the image's own structures, yet nothing counts it.
            return Err(self.error(
                Operation::Allocate,
                self.geometry.host_offset(cluster).get(),
                libc::EIO,
            ));
        }
        let block = self.block_counting(std::iter::once(cluster));
        self.claim_metadata(cluster, 1);
        self.write_cluster(cluster, &block).await?;
        self.sync().await?;
        let table = self.header.lock().reftable().offset;
        let (within, bytes) = {
            let mut state = self.lock();
            state.refcounts.set_block(index, cluster, &self.geometry);
            let unit = self.storage.alignment().max(512).min(self.geometry.cluster_size());
            let start = index as u64 * TABLE_ENTRY_BYTES / unit * unit;
            let bytes = state.refcounts.table_bytes();
            let first = usize::try_from(start).expect("the table is in memory");
            let last = (first + usize::try_from(unit).expect("a sector is small")).min(bytes.len());
            (start, bytes.get(first..last).expect("the entry lies in the table").to_vec())
        };
        let place = table.get() + within;
        let lane = self.service.lane();
        self.storage.write(lane, place, &IoMem::aligned(&bytes), Flags::empty()).await?;
        self.sync().await?;
        self.lock().refcounts.cache(index, block.clone());
        Ok(block)
    }

    /// Replaces the refcount table by one that has an entry `index`. The table, and blocks for the range that it
    /// lies in, go to the first clusters that no block counts yet.
    async fn grow_table(self: &Arc<Self>, index: usize) -> Result<()> {
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
        let old = self.header.lock().reftable();
        let first_table = HostCluster::new(start.get() + blocks);
        self.claim_metadata(start, blocks + clusters);
        let used = (start.get()..start.get() + blocks + clusters).map(HostCluster::new);
        let mut made = Vec::new();
        for number in 0..usize::try_from(blocks).expect("few blocks") {
            let range = geometry.refblock_start(index + number)
                ..geometry.refblock_start(index + number + 1);
            let counted = used.clone().filter(|c| range.contains(c));
            let block = self.block_counting(counted);
            let cluster = HostCluster::new(start.get() + number as u64);
            self.write_cluster(cluster, &block).await?;
            made.push((index + number, cluster, block));
        }
        let bytes = {
            let mut state = self.lock();
            state
                .refcounts
                .grow_table(usize::try_from(clusters * per_cluster).expect("at most 8 MiB"));
            for (index, cluster, _) in &made {
                state.refcounts.set_block(*index, *cluster, geometry);
            }
            state.refcounts.table_bytes()
        };
        let place = geometry.host_offset(first_table);
        self.storage
            .write(self.service.lane(), place.get(), &IoMem::aligned(&bytes), Flags::empty())
            .await?;
        self.sync().await?;
        let clusters = u32::try_from(clusters).expect("at most 8 MiB");
        self.switch_table(RefTable { offset: place, clusters }).await?;
        let mut state = self.lock();
        for (index, _, block) in made {
            state.refcounts.cache(index, block);
        }
        let old_start = geometry.host_cluster(old.offset).get();
        for cluster in (old_start..old_start + u64::from(old.clusters)).map(HostCluster::new) {
            state.metadata.remove(&cluster);
            state.unlinks.to_free.insert(cluster);
        }
        Ok(())
    }

    /// Has the header name another refcount table, durably.
    async fn switch_table(&self, table: RefTable) -> Result<()> {
        let bytes = {
            let mut header = self.header.lock();
            header.set_reftable(table);
            header.fixed_bytes()
        };
        self.write_header(&bytes).await
    }

    /// Writes the fixed part of the header in its sector, durably.
    pub(crate) async fn write_header(&self, bytes: &[u8]) -> Result<()> {
        let lane = self.service.lane();
        self.storage
            .write(lane, HostOffset::ZERO.get(), &IoMem::aligned(bytes), Flags::empty())
            .await?;
        self.sync().await
    }

    fn block_counting(&self, clusters: impl Iterator<Item = HostCluster>) -> Block {
        let len = usize::try_from(self.geometry.cluster_size()).expect("a cluster is small");
        with_counts(&Arc::new(vec![0; len]), clusters, 1, &self.geometry).0
    }

    /// Takes clusters beyond all others for metadata.
    fn claim_metadata(&self, start: HostCluster, count: u64) {
        let mut state = self.lock();
        state.metadata.extend((start.get()..start.get() + count).map(HostCluster::new));
        state.refcounts.extend_to(HostCluster::new(start.get() + count));
    }

    async fn write_cluster(&self, cluster: HostCluster, bytes: &[u8]) -> Result<()> {
        let place = self.geometry.host_offset(cluster).get();
        self.storage.write(self.service.lane(), place, &IoMem::aligned(bytes), Flags::empty()).await
    }
}
