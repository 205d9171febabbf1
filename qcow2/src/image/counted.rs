//! How many clusters of a file the refcounts tell to be in use.

use blkring_engine::{IoMem, Result};

use super::layer::Layer;
use super::refcounts::Refcounts;
use super::{Image, Member};
use crate::address::{HostCluster, HostOffset};

impl Image {
    /// How many clusters of a file of the chain are in use by its refcounts, `depth` files below the topmost; `None`
    /// of a raw one, and if there is no such file. Blocks that cannot be are left out, and what is being written
    /// meanwhile is counted or not. To be awaited on a queue that the image is attached to: all refcount blocks are
    /// read.
    ///
    /// # Errors
    /// Of the file.
    pub async fn counted_clusters(&self, depth: usize) -> Result<Option<u64>> {
        match depth.checked_sub(1) {
            None => self.top.counted().await.map(Some),
            Some(below) => match self.chain.backing.get(below) {
                Some(Member::Qcow2(layer)) => layer.counted().await.map(Some),
                _ => Ok(None),
            },
        }
    }
}

impl Layer {
    async fn counted(&self) -> Result<u64> {
        let geometry = &self.geometry;
        let counts = geometry.refcounts();
        let in_block = geometry.cluster_size() * 8 / u64::from(counts.bits());
        let in_block = usize::try_from(in_block).expect("a block is small");
        let mut clusters = 0;
        for named in self.refcount_blocks().await? {
            let block = self.read_at(geometry.host_offset(named), geometry.cluster_size()).await?;
            let used = (0..in_block).filter(|&at| counts.get(&block, at).is_some_and(|n| n > 0));
            clusters += used.count() as u64;
        }
        Ok(clusters)
    }

    /// All blocks. A file that is not written to has no table in memory.
    async fn refcount_blocks(&self) -> Result<Vec<HostCluster>> {
        let geometry = &self.geometry;
        {
            let state = self.lock();
            if state.refcounts.table_len() > 0 {
                return Ok(state.refcounts.blocks(geometry).collect());
            }
        }
        let place = self.header.lock().reftable();
        let bytes = self.read_at(place.offset, place.bytes(geometry)).await?;
        let (entries, _) = bytes.as_chunks::<8>();
        let table = entries.iter().map(|&entry| u64::from_be_bytes(entry)).collect();
        Ok(Refcounts::new(table, HostCluster::ZERO).blocks(geometry).collect())
    }

    async fn read_at(&self, offset: HostOffset, len: u64) -> Result<Vec<u8>> {
        let mem = IoMem::aligned_zeroed(usize::try_from(len).expect("tables fit into memory"));
        self.storage.read(self.service.lane(), offset.get(), &mem).await?;
        Ok(mem.to_vec())
    }
}
