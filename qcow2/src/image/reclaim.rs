//! What a crash left reserved, found again when the image is opened for writing.
//!
//! A reservation lies at the end of the file: counted clusters that no table names. Those behind the last cluster in
//! use go to the pool as they are, so that crashes do not add up; those with several counts, which hold compressed data
//! without its entries, lose them all. The search reads every L2 table; where that is too
//! much, or where the image has parts that this driver does not know and that may own clusters, it is left out, and
//! a check with repair finds them.
//!
//! The walk sees every host cluster that an entry names, so it looks at their counts as well. A count of zero there is
//! a contradiction: believed, it would have a refill zero a guest's bytes for another guest cluster, or closing cut
//! them off. Such clusters are noted and neither given out nor cut off; where they are too many, or an entry cannot be
//! followed, nothing at or below the highest cluster in use is. That costs the refcount blocks of what is in use, a
//! fourth of the L2 tables at most. What is not protected: images whose walk is left out, and counts that are above
//! zero and still too low.

use std::collections::HashSet;
use std::sync::Arc;

use blkring_engine::{IoMem, Lane, Result, Storage};

use super::clock::Stamp;
use super::state::State;
use super::tables::Inactive;
use crate::address::HostCluster;
use crate::entry::{L1Entry, L2Entry, Mapping};
use crate::geometry::Geometry;
use crate::header::{ExtensionKind, Header, L1Table};

/// Bytes of L2 tables read at most: those of a full disk of 1 TiB with clusters of 64 KiB.
const MAX_TABLE_BYTES: u64 = 128 << 20;

/// Bytes of L1 tables of snapshots read at most.
const MAX_INACTIVE_BYTES: u64 = 16 << 20;

/// L2 tables and refcount blocks read at most, whatever their size.
const MAX_TABLES: usize = 4096;

/// Bytes of refcount blocks read at most: what they count is looked at one by one.
const MAX_BLOCK_BYTES: u64 = 16 << 20;

/// Clusters taken back at most: far more than any reservation.
const MAX_FOUND: u64 = 1 << 18;

/// Clusters noted at most that an entry names and nothing counts.
const MAX_UNCOUNTED: usize = 1 << 16;

/// Puts the counted clusters behind the last one in use into the pool.
pub(super) async fn reclaim(
    lane: &Lane,
    storage: &Storage,
    state: &mut State,
    (header, inactive): (&Header, &Inactive),
) -> Result<()> {
    let geometry = *header.geometry();
    let known = [ExtensionKind::BACKING_FORMAT, ExtensionKind::FEATURE_NAMES];
    if header.extensions().iter().any(|e| !known.contains(&e.kind)) {
        return Ok(());
    }
    // Counted before they are collected: an image may name millions.
    let named = state.l1.tables(&geometry).take(MAX_TABLES + 1).count();
    let mut tables: HashSet<HostCluster> =
        state.l1.tables(&geometry).take(MAX_TABLES + 1).collect();
    if !add_inactive(lane, storage, inactive, &mut tables, &geometry).await? {
        return Ok(());
    }
    if named > MAX_TABLES || tables.len() as u64 * geometry.cluster_size() > MAX_TABLE_BYTES {
        return Ok(());
    }
    let Some(highest) = walk(lane, storage, state, tables, &geometry).await? else {
        return Ok(());
    };
    let mut next = highest.get() + 1;
    let counted = geometry.refblock_start(state.refcounts.table_len());
    let end = state.refcounts.end().min(counted).get();
    let (mut found, mut blocks) = (0, 0);
    let max_blocks = (MAX_BLOCK_BYTES / geometry.cluster_size()).min(MAX_TABLES as u64);
    while next < end && blocks < max_blocks && found < MAX_FOUND {
        let first = HostCluster::new(next);
        let index = geometry.refblock_index(first);
        let stop = geometry.refblock_start(index + 1).get().min(end);
        if let Ok(Some(block)) = state.refcounts.block_at(index, &geometry) {
            let block = read_cluster(lane, storage, block, &geometry).await?;
            blocks += 1;
            for cluster in (next..stop).map(HostCluster::new) {
                match geometry.refcounts().get(&block, geometry.refcount_index(cluster)) {
                    None | Some(0) => continue,
                    Some(1) => state.put_dirty(cluster, Stamp::default()),
                    // Compressed data was there: its counts came, and its entries did not. Free with the next cut.
                    Some(counts) => state.unlinks.lose_many(cluster, counts),
                }
                found += 1;
            }
        }
        next = stop;
    }
    tracing::debug!(path = %storage.path(), clusters = found, "reclaim");
    Ok(())
}

/// Adds the L2 tables that snapshots name. False if there is too much to read.
async fn add_inactive(
    lane: &Lane,
    storage: &Storage,
    inactive: &Inactive,
    tables: &mut HashSet<HostCluster>,
    geometry: &Geometry,
) -> Result<bool> {
    let bytes: u64 = inactive.l1_tables.iter().map(L1Table::bytes).sum();
    if bytes > MAX_INACTIVE_BYTES {
        return Ok(false);
    }
    for l1 in &inactive.l1_tables {
        let mem = IoMem::aligned_zeroed(usize::try_from(l1.bytes()).expect("within the limit"));
        storage.read(lane, l1.offset.get(), &mem).await?;
        let bytes = mem.to_vec();
        for raw in bytes.as_chunks::<8>().0 {
            if let Ok(L1Entry::Table(table, _)) =
                L1Entry::decode(u64::from_be_bytes(*raw), geometry)
            {
                tables.insert(table);
            }
            if tables.len() > MAX_TABLES {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// The highest cluster that anything names. `None` if an entry cannot be followed: then nothing is sure. Notes what
/// is named and not counted.
async fn walk(
    lane: &Lane,
    storage: &Storage,
    state: &mut State,
    tables: HashSet<HostCluster>,
    geometry: &Geometry,
) -> Result<Option<HostCluster>> {
    let mut highest = state.metadata.iter().chain(&tables).copied().max().unwrap_or_default();
    let mut tables: Vec<HostCluster> = tables.into_iter().collect();
    tables.sort_unstable();
    let mut counts = Counts { reads_left: tables.len() + MAX_TABLES, uncounted: HashSet::new() };
    // Those of snapshots are in no other list.
    let mut sure = counts.look(lane, storage, state, &tables, geometry).await?;
    let mut followed = true;
    for table in tables {
        let bytes = read_cluster(lane, storage, table, geometry).await?;
        let (entries, _) = bytes.as_chunks::<8>();
        let mut named = Vec::with_capacity(entries.len());
        for raw in entries {
            match L2Entry::decode(u64::from_be_bytes(*raw), geometry) {
                Ok(entry) => named.extend(clusters_of(entry, geometry)),
                Err(_) => followed = false,
            }
        }
        named.sort_unstable();
        highest = highest.max(named.last().copied().unwrap_or_default());
        sure = sure && counts.look(lane, storage, state, &named, geometry).await?;
    }
    sure &= followed;
    if !counts.uncounted.is_empty() || !sure {
        let count = counts.uncounted.len();
        tracing::warn!(path = %storage.path(), count, sure, "clusters in use that nothing counts");
    }
    state.refcounts.distrust(counts.uncounted);
    if !sure {
        let end = if followed { HostCluster::ZERO } else { state.refcounts.end() };
        state.refcounts.distrust_below(end.max(HostCluster::new(highest.get() + 1)));
    }
    Ok(followed.then_some(highest))
}

/// The clusters that an entry names.
fn clusters_of(entry: L2Entry, geometry: &Geometry) -> impl Iterator<Item = HostCluster> {
    let (first, count) = match entry.mapping {
        Mapping::Compressed(data) => data.clusters(geometry),
        mapping => mapping.host_cluster().map_or((HostCluster::ZERO, 0), |host| (host, 1)),
    };
    (first.get()..first.get() + count).map(HostCluster::new)
}

/// What the refcounts say of clusters that entries name.
struct Counts {
    /// Refcount blocks read at most: entries all over the place need one each.
    reads_left: usize,
    uncounted: HashSet<HostCluster>,
}

impl Counts {
    /// Notes those of `named`, which is sorted, that nothing counts. Says whether that can be told of all of them.
    async fn look(
        &mut self,
        lane: &Lane,
        storage: &Storage,
        state: &mut State,
        named: &[HostCluster],
        geometry: &Geometry,
    ) -> Result<bool> {
        for group in
            named.chunk_by(|a, b| geometry.refblock_index(*a) == geometry.refblock_index(*b))
        {
            let Some(&first) = group.first() else { continue };
            let index = geometry.refblock_index(first);
            let block =
                match (state.refcounts.cached(index), state.refcounts.block_at(index, geometry)) {
                    (Some(block), _) => Some(block),
                    (None, Ok(Some(cluster))) => {
                        if self.reads_left == 0 {
                            return Ok(false);
                        }
                        self.reads_left -= 1;
                        let block = Arc::new(read_cluster(lane, storage, cluster, geometry).await?);
                        state.refcounts.cache(index, block.clone());
                        Some(block)
                    }
                    (None, Ok(None) | Err(_)) => None,
                };
            let count = |cluster: HostCluster| {
                let block = block.as_ref()?;
                geometry.refcounts().get(block, geometry.refcount_index(cluster))
            };
            self.uncounted.extend(group.iter().filter(|one| count(**one).unwrap_or(0) == 0));
            if self.uncounted.len() > MAX_UNCOUNTED {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

async fn read_cluster(
    lane: &Lane,
    storage: &Storage,
    cluster: HostCluster,
    geometry: &Geometry,
) -> Result<Vec<u8>> {
    let len = usize::try_from(geometry.cluster_size()).expect("a cluster is small");
    let mem = IoMem::aligned_zeroed(len);
    storage.read(lane, geometry.host_offset(cluster).get(), &mem).await?;
    Ok(mem.to_vec())
}
