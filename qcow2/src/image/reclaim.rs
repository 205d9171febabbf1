//! What a crash left reserved, found again when the image is opened for writing.
//!
//! A reservation lies at the end of the file: counted clusters that no table names. Those behind the last cluster in
//! use go to the pool as they are, so that crashes do not add up. The search reads every L2 table; where that is too
//! much, or where the image has parts that this driver does not know and that may own clusters, it is left out, and
//! a check with repair finds them.

use std::collections::HashSet;

use blkring_engine::{IoMem, Lane, Result, Storage};

use super::clock::Stamp;
use super::pool::{Content, Run};
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
    let Some(highest) = highest_in_use(lane, storage, state, &tables, &geometry).await? else {
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
                let count = geometry.refcounts().get(&block, geometry.refcount_index(cluster));
                if count == Some(1) {
                    found += 1;
                    let run = Run {
                        start: cluster,
                        len: 1,
                        stamp: Stamp::default(),
                        content: Content::Unknown,
                    };
                    state.pools.dirty.put(run);
                }
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

/// The highest cluster that anything names. `None` if an entry cannot be followed: then nothing is sure.
async fn highest_in_use(
    lane: &Lane,
    storage: &Storage,
    state: &State,
    tables: &HashSet<HostCluster>,
    geometry: &Geometry,
) -> Result<Option<HostCluster>> {
    let mut highest = state.metadata.iter().chain(tables).copied().max().unwrap_or_default();
    let mut tables: Vec<HostCluster> = tables.iter().copied().collect();
    tables.sort_unstable();
    for table in tables {
        let bytes = read_cluster(lane, storage, table, geometry).await?;
        let (entries, _) = bytes.as_chunks::<8>();
        for raw in entries {
            match L2Entry::decode(u64::from_be_bytes(*raw), geometry) {
                Ok(entry) => highest = highest.max(last_of(entry, geometry).unwrap_or_default()),
                Err(_) => return Ok(None),
            }
        }
    }
    Ok(Some(highest))
}

/// The last cluster that an entry names.
fn last_of(entry: L2Entry, geometry: &Geometry) -> Option<HostCluster> {
    match entry.mapping {
        Mapping::Compressed(data) => {
            let (first, count) = data.clusters(geometry);
            Some(HostCluster::new(first.get() + count - 1))
        }
        mapping => mapping.host_cluster(),
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
