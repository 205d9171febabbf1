//! Refcount blocks that count nothing any more, given up when an image is closed.
//!
//! A reservation that reaches into new ranges has blocks made for them. Where nothing came to be in such a range its
//! block goes with the reservation: one that lies in the range that it counts would keep the end of the file there.
//!
//! First no block is named any more, durably; then those of them that other blocks count lose that count. So a crash in
//! between leaks clusters. A block that still counts another one has to wait until that one is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use blkring_engine::{Flags, IoMem, Result, Variant};

use super::layer::Layer;
use super::refblock::table_bytes;
use super::refcounts::Block;
use crate::address::HostCluster;
use crate::geometry::TABLE_ENTRY_BYTES;

/// A refcount block by its index in the refcount table, and where it lies.
type Placed = (usize, HostCluster);

/// How often blocks are looked for at most: most lie in clusters that stay counted.
const ROUNDS: usize = 4;

impl Layer {
    /// Gives up the blocks that this opening has made, as far as they count nothing but themselves. The slot is held,
    /// and what was reserved has lost its counts.
    pub(super) async fn trim_blocks(self: &Arc<Self>) -> Result<()> {
        for _ in 0..ROUNDS {
            let empty = self.empty_blocks().await?;
            if empty.is_empty() {
                return Ok(());
            }
            self.unname_blocks(&empty).await?;
            if !self.breaks(Variant::BlockFreedBeforeUnnamed) {
                self.sync().await?;
            }
            let counted_elsewhere = |&(index, cluster): &Placed| {
                (self.geometry.refblock_index(cluster) != index).then_some((cluster, 1))
            };
            let losses: BTreeMap<_, _> = empty.iter().filter_map(counted_elsewhere).collect();
            self.lower_now(losses).await?;
        }
        Ok(())
    }

    async fn empty_blocks(&self) -> Result<Vec<Placed>> {
        let made: Vec<usize> = {
            let state = self.lock();
            // Where the disk may name a block or not, and where the counts are not to be believed, all stays.
            let sure = state.refcounts.half_named.is_none();
            let believed = state.refcounts.distrusted_end() == HostCluster::ZERO;
            if sure && believed { state.refcounts.made().collect() } else { Vec::new() }
        };
        let mut empty = Vec::new();
        for index in made {
            if let Some((cluster, block)) = self.load_block(index).await?
                && self.counts_itself_at_most((index, cluster), &block)
            {
                empty.push((index, cluster));
            }
        }
        Ok(empty)
    }

    fn counts_itself_at_most(&self, (index, cluster): Placed, block: &Block) -> bool {
        let counts = self.geometry.refcounts();
        let entries = usize::try_from(self.geometry.refblock_entries()).expect("a block is small");
        let own = (self.geometry.refblock_index(cluster) == index)
            .then(|| self.geometry.refcount_index(cluster));
        (0..entries).all(|entry| match counts.get(block, entry) {
            Some(0) => true,
            Some(1) => own == Some(entry),
            _ => false,
        })
    }

    /// Has the refcount table name these blocks no more.
    async fn unname_blocks(&self, blocks: &[Placed]) -> Result<()> {
        let place = self.header.lock().reftable().offset;
        let table = self.lock().refcounts.table_without(blocks.iter().map(|(index, _)| *index));
        let unit = self.table_unit();
        let pieces: BTreeSet<u64> =
            blocks.iter().map(|&(index, _)| index as u64 * TABLE_ENTRY_BYTES / unit).collect();
        for piece in pieces {
            let bytes = table_bytes(&table, piece * unit, unit);
            let lane = self.service.lane();
            let at = place.get() + piece * unit;
            self.storage.write(lane, at, &IoMem::aligned(&bytes), Flags::empty()).await?;
        }
        let mut state = self.lock();
        state.refcounts.replace_table(table);
        for (index, cluster) in blocks {
            state.refcounts.forget_made(*index);
            state.metadata.remove(cluster);
        }
        Ok(())
    }
}
