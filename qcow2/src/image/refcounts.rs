//! Refcounts in memory: the refcount table whole, its blocks as far as they are cached.
//!
//! Blocks change only under the cut slot and are written before it is released, so a cached block never holds a
//! change that is not on its way. After a failed write the block is dropped and loaded anew: what the disk has is
//! then what counts.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use crate::address::HostCluster;
use crate::entry::{EntryError, RefTableEntry};
use crate::geometry::Geometry;

/// Blocks in the cache at most.
const CACHED_BLOCKS: usize = 16;

/// A refcount block as it is on the disk.
pub(crate) type Block = Arc<Vec<u8>>;

#[derive(Debug)]
pub(crate) struct Refcounts {
    /// Raw entries of the refcount table.
    table: Vec<u64>,
    blocks: HashMap<usize, Block>,
    /// Clusters below this have been seen to be in use; the search for free ones starts here.
    cursor: HostCluster,
    /// The first cluster beyond everything that is or was in use.
    end: HostCluster,
    /// Clusters that entries name although nothing counts them: never given out, never cut off.
    uncounted: HashSet<HostCluster>,
    /// The same for all clusters below.
    floor: HostCluster,
    /// The block whose table entry may be on the disk or not, since its write has failed, and where it lies.
    pub(crate) half_named: Option<(usize, HostCluster)>,
    /// The blocks that were made since the image was opened.
    made: BTreeSet<usize>,
    /// What counts should be whose writes have failed: the disk has that, or what was before.
    in_doubt: BTreeMap<HostCluster, u64>,
}

/// A block with some counts lower, the bytes of it that changed, and what those counts are.
pub(crate) type Lower = (Block, Range<usize>, Vec<(HostCluster, u64)>);

impl Refcounts {
    pub(crate) fn new(table: Vec<u64>, end: HostCluster) -> Self {
        Refcounts {
            table,
            blocks: HashMap::new(),
            cursor: HostCluster::ZERO,
            end,
            uncounted: HashSet::new(),
            floor: HostCluster::ZERO,
            half_named: None,
            made: BTreeSet::new(),
            in_doubt: BTreeMap::new(),
        }
    }

    /// The refcount block for table entry `index`; `None` if there is none or the table is too short.
    pub(crate) fn block_at(
        &self,
        index: usize,
        geometry: &Geometry,
    ) -> Result<Option<HostCluster>, EntryError> {
        match RefTableEntry::decode(self.table.get(index).copied().unwrap_or(0), geometry)? {
            RefTableEntry::Absent => Ok(None),
            RefTableEntry::Block(cluster) => Ok(Some(cluster)),
        }
    }

    /// Every block that the table names.
    pub(crate) fn blocks(&self, geometry: &Geometry) -> impl Iterator<Item = HostCluster> + Clone {
        self.table.iter().filter_map(|&raw| match RefTableEntry::decode(raw, geometry) {
            Ok(RefTableEntry::Block(cluster)) => Some(cluster),
            _ => None,
        })
    }

    /// Entries of the table.
    pub(crate) fn table_len(&self) -> usize {
        self.table.len()
    }

    /// The table with at least `len` entries and these blocks named. It is in force when it has been put into place
    /// by [`Refcounts::replace_table`]: not before the disk has it.
    pub(crate) fn table_with(
        &self,
        len: usize,
        blocks: impl Iterator<Item = (usize, HostCluster)>,
        geometry: &Geometry,
    ) -> Vec<u64> {
        let mut table = self.table.clone();
        table.resize(len.max(table.len()), 0);
        for (index, block) in blocks {
            let entry = table.get_mut(index).expect("the caller gave the length for these");
            *entry = RefTableEntry::Block(block).encode(geometry);
        }
        table
    }

    /// The table without these blocks.
    pub(crate) fn table_without(&self, blocks: impl Iterator<Item = usize>) -> Vec<u64> {
        let mut table = self.table.clone();
        for index in blocks {
            *table.get_mut(index).expect("the block is named") = 0;
        }
        table
    }

    /// A block was made, and is named.
    pub(crate) fn note_made(&mut self, index: usize) {
        self.made.insert(index);
    }

    /// The blocks that were made since the image was opened.
    pub(crate) fn made(&self) -> impl Iterator<Item = usize> {
        self.made.iter().copied()
    }

    /// The table names this block no more.
    pub(crate) fn forget_made(&mut self, index: usize) {
        self.made.remove(&index);
        self.blocks.remove(&index);
    }

    /// The disk has this table now.
    pub(crate) fn replace_table(&mut self, table: Vec<u64>) {
        self.table = table;
    }

    /// A cached block.
    pub(crate) fn cached(&self, index: usize) -> Option<Block> {
        self.blocks.get(&index).cloned()
    }

    /// Puts a block into the cache, as loaded or as just changed.
    pub(crate) fn cache(&mut self, index: usize, block: Block) {
        if self.blocks.len() >= CACHED_BLOCKS && !self.blocks.contains_key(&index) {
            // Any one will do; those in use are loaded again.
            if let Some(&other) = self.blocks.keys().min() {
                self.blocks.remove(&other);
            }
        }
        self.blocks.insert(index, block);
    }

    /// The count of a cluster in its block.
    pub(crate) fn count(&self, block: &Block, cluster: HostCluster, geometry: &Geometry) -> u64 {
        let known = self.in_doubt.get(&cluster).copied();
        known.unwrap_or_else(|| {
            let counts = geometry.refcounts();
            counts
                .get(block, geometry.refcount_index(cluster))
                .expect("the geometry yields indexes within a block")
        })
    }

    /// The block with so many counts off each cluster.
    ///
    /// # Errors
    /// The first cluster that has fewer: nothing in the image is to be believed any more.
    pub(crate) fn lower(
        &self,
        block: &Block,
        losses: &[(HostCluster, u64)],
        geometry: &Geometry,
    ) -> Result<Lower, HostCluster> {
        let lower = |&(cluster, off): &(HostCluster, u64)| {
            let count = self.count(block, cluster, geometry);
            let left = count.checked_sub(off);
            left.map(|left| (cluster, left)).ok_or(cluster)
        };
        let counts: Vec<(HostCluster, u64)> = losses.iter().map(lower).collect::<Result<_, _>>()?;
        let (block, touched) = with_each(block, counts.iter().copied(), geometry);
        Ok((block, touched, counts))
    }

    /// A lower count has landed. Without any the cluster is free, and the search may begin there.
    pub(crate) fn landed(&mut self, cluster: HostCluster, count: u64) {
        self.in_doubt.remove(&cluster);
        if count == 0 {
            self.freed(cluster);
        }
    }

    /// The disk may have this count or what was before: this one is to be written again.
    pub(crate) fn in_doubt(&mut self, cluster: HostCluster, count: u64) {
        self.in_doubt.insert(cluster, count);
    }

    /// Takes a count off where its block is cached. Only a broken variant does that outside the slot.
    pub(crate) fn decrement_cached(&mut self, cluster: HostCluster, geometry: &Geometry) {
        if let Some(block) = self.cached(geometry.refblock_index(cluster))
            && let Ok((block, ..)) = self.lower(&block, &[(cluster, 1)], geometry)
        {
            self.blocks.insert(geometry.refblock_index(cluster), block);
        }
    }

    /// Forgets a block whose write failed.
    pub(crate) fn forget(&mut self, index: usize) {
        self.blocks.remove(&index);
    }

    pub(crate) fn end(&self) -> HostCluster {
        self.end
    }

    /// Clusters below `end` may be in use from here on.
    pub(crate) fn extend_to(&mut self, end: HostCluster) {
        self.end = self.end.max(end);
    }

    /// Where the search for free clusters begins.
    pub(crate) fn cursor(&self) -> HostCluster {
        self.cursor.max(self.floor)
    }

    /// Entries name these clusters, and nothing counts them.
    pub(crate) fn distrust(&mut self, uncounted: HashSet<HostCluster>) {
        self.uncounted = uncounted;
    }

    /// Any count of zero below `floor` may be wrong.
    pub(crate) fn distrust_below(&mut self, floor: HostCluster) {
        self.floor = floor;
    }

    /// Whether an entry names a cluster that nothing counts.
    pub(crate) fn is_uncounted(&self, cluster: HostCluster) -> bool {
        self.uncounted.contains(&cluster)
    }

    /// The first cluster behind all that may be in use although nothing counts it.
    pub(crate) fn distrusted_end(&self) -> HostCluster {
        let last = self.uncounted.iter().max();
        last.map_or(self.floor, |last| self.floor.max(HostCluster::new(last.get() + 1)))
    }

    pub(crate) fn search_from(&mut self, cursor: HostCluster) {
        self.cursor = cursor;
    }

    /// A cluster was freed: the search may begin there.
    pub(crate) fn freed(&mut self, cluster: HostCluster) {
        self.cursor = self.cursor.min(cluster);
    }
}

/// A block with the counts of `clusters` set to `count`, and the bytes of it that changed.
pub(crate) fn with_counts(
    block: &Block,
    clusters: impl Iterator<Item = HostCluster>,
    count: u64,
    geometry: &Geometry,
) -> (Block, Range<usize>) {
    with_each(block, clusters.map(|cluster| (cluster, count)), geometry)
}

/// A block with each of these counts set, and the bytes of it that changed.
pub(crate) fn with_each(
    block: &Block,
    counts: impl Iterator<Item = (HostCluster, u64)>,
    geometry: &Geometry,
) -> (Block, Range<usize>) {
    let mut changed = Vec::clone(block);
    let (mut first, mut last) = (block.len(), 0);
    for (cluster, count) in counts {
        let index = geometry.refcount_index(cluster);
        let width = geometry.refcounts();
        width
            .set(&mut changed, index, count)
            .expect("the geometry yields indexes within a block; counts fit into their width");
        let place = width.place(index);
        (first, last) = (first.min(place.start), last.max(place.end));
    }
    (Arc::new(changed), first.min(last)..last)
}

/// Runs of clusters within `range` with count zero in `block` that are not taken all the same, at most `want` clusters
/// in all.
pub(crate) fn free_runs(
    block: &Block,
    range: Range<HostCluster>,
    want: u64,
    is_taken: impl Fn(HostCluster) -> bool,
    geometry: &Geometry,
) -> Vec<(HostCluster, u64)> {
    let mut runs: Vec<(HostCluster, u64)> = Vec::new();
    let mut found = 0;
    let mut cluster = range.start;
    while cluster < range.end && found < want {
        let count = geometry.refcounts().get(block, geometry.refcount_index(cluster));
        if count == Some(0) && !is_taken(cluster) {
            found += 1;
            match runs.last_mut() {
                Some((start, len)) if start.get() + *len == cluster.get() => *len += 1,
                _ => runs.push((cluster, 1)),
            }
        }
        cluster = HostCluster::new(cluster.get() + 1);
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_clusters_are_found_in_runs() {
        let geometry = Geometry::new(9, 1 << 20).unwrap();
        let block: Block = Arc::new(vec![0; 512]);
        let used = [0, 1, 2, 5].map(HostCluster::new);
        let (block, touched) = with_counts(&block, used.into_iter(), 1, &geometry);
        assert_eq!(touched, 0..12);
        let runs = |end: u64, taken: u64| {
            let range = HostCluster::ZERO..HostCluster::new(end);
            free_runs(&block, range, 4, |cluster| cluster.get() == taken, &geometry)
        };
        assert_eq!(runs(256, 0), [(HostCluster::new(3), 2), (HostCluster::new(6), 2)]);
        assert_eq!(runs(4, 0), [(HostCluster::new(3), 1)]);
        assert_eq!(runs(256, 3), [(HostCluster::new(4), 1), (HostCluster::new(6), 3)]);
    }

    #[test]
    fn counts_go_down_and_never_below_zero() {
        let geometry = Geometry::new(9, 1 << 20).unwrap();
        let (one, two) = (HostCluster::new(4), HostCluster::new(7));
        let block =
            with_each(&Arc::new(vec![0; 512]), [(one, 1), (two, 3)].into_iter(), &geometry).0;
        let mut refcounts = Refcounts::new(vec![0x8000], HostCluster::new(100));
        refcounts.search_from(HostCluster::new(50));
        let (lower, touched, counts) =
            refcounts.lower(&block, &[(one, 1), (two, 2)], &geometry).unwrap();
        assert_eq!((touched, counts.as_slice()), (8..16, [(one, 0), (two, 1)].as_slice()));
        assert_eq!(refcounts.lower(&lower, &[(two, 1), (one, 1)], &geometry).unwrap_err(), one);
        assert_eq!(refcounts.lower(&block, &[(two, u64::MAX)], &geometry).unwrap_err(), two);
        refcounts.landed(two, 1);
        assert_eq!(refcounts.cursor(), HostCluster::new(50));
        refcounts.landed(one, 0);
        assert_eq!(refcounts.cursor(), one, "it is free");
    }

    #[test]
    fn a_count_in_doubt_is_what_it_should_be_until_it_has_landed() {
        let geometry = Geometry::new(9, 1 << 20).unwrap();
        let one = HostCluster::new(4);
        let three = with_each(&Arc::new(vec![0; 512]), std::iter::once((one, 3)), &geometry).0;
        let two = with_each(&three, std::iter::once((one, 2)), &geometry).0;
        let mut refcounts = Refcounts::new(vec![0x8000], HostCluster::new(100));
        refcounts.in_doubt(one, 2);
        for read in [&two, &three] {
            let (_, _, again) = refcounts.lower(read, &[(one, 0)], &geometry).unwrap();
            assert_eq!(again, [(one, 2)], "written again, and not taken off twice");
            let (_, _, more) = refcounts.lower(read, &[(one, 1)], &geometry).unwrap();
            assert_eq!(more, [(one, 1)]);
        }
        refcounts.landed(one, 2);
        assert_eq!(refcounts.count(&three, one, &geometry), 3);
    }
}
