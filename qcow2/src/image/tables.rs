//! What is read of an image when it is opened: its header and its tables, which stay in memory.

use std::sync::Arc;

use blkring_engine::{IoError, IoMem, Lane, Operation, Storage};

use super::open::OpenError;
use super::state::State;
use crate::address::{HostCluster, HostOffset};
use crate::geometry::{MAX_L1_BYTES, MAX_REFTABLE_BYTES};
use crate::header::{self, HEADER_PREFIX_BYTES, Header, L1Table};
use crate::snapshot::{SnapshotKey, SnapshotTable};

/// Bytes of all tables of a chain: as many as one image may have.
const MAX_TABLE_BYTES: u64 = MAX_L1_BYTES + MAX_REFTABLE_BYTES;

/// Clusters of metadata that an image may have to be written: the tables of 768 TiB of data with clusters of 64 KiB.
/// They are kept in a set, so that no guest byte goes there.
const MAX_METADATA: usize = 3 << 19;

/// Bytes that a table is read by.
const PIECE: u64 = 1 << 20;

/// What the tables of a chain may take.
pub(super) struct Budget {
    left: u64,
}

impl Default for Budget {
    fn default() -> Self {
        Budget { left: MAX_TABLE_BYTES }
    }
}

impl Budget {
    fn take(&mut self, path: &Arc<str>, bytes: u64) -> Result<(), OpenError> {
        let taken = MAX_TABLE_BYTES - self.left + bytes;
        let Some(left) = self.left.checked_sub(bytes) else {
            return Err(OpenError::TooLarge {
                path: path.clone(),
                what: "bytes of tables in the image and its chain",
                count: taken,
                limit: MAX_TABLE_BYTES,
            });
        };
        self.left = left;
        Ok(())
    }
}

pub(super) async fn read_header(
    lane: &Lane,
    storage: &Storage,
    access: header::Access,
) -> Result<Header, OpenError> {
    let failed = |source| OpenError::Header { path: storage.path().clone(), source };
    let prefix = read_bytes(lane, storage, HostOffset::ZERO, HEADER_PREFIX_BYTES as u64).await?;
    let wanted = Header::bytes_wanted(&prefix).map_err(failed)?;
    let bytes = read_bytes(lane, storage, HostOffset::ZERO, wanted as u64).await?;
    Header::parse(&bytes, access).map_err(failed)
}

/// So many bytes from `offset`, or fewer at the end of the file.
async fn read_bytes(
    lane: &Lane,
    storage: &Storage,
    offset: HostOffset,
    len: u64,
) -> Result<Vec<u8>, IoError> {
    let len = len.min(storage.size().saturating_sub(offset.get()));
    let too_large = || storage.error(Operation::Read, offset.get(), libc::EFBIG);
    let mem = IoMem::aligned_zeroed(usize::try_from(len).map_err(|_| too_large())?);
    storage.read(lane, offset.get(), &mem).await?;
    Ok(mem.to_vec())
}

/// The numbers of a table, which lies within the file.
pub(super) async fn read_table(
    lane: &Lane,
    storage: &Storage,
    table: &'static str,
    (offset, bytes): (HostOffset, u64),
    budget: &mut Budget,
) -> Result<Vec<u64>, OpenError> {
    let end = offset.checked_add(bytes).filter(|end| end.get() <= storage.size());
    if bytes > 0 && end.is_none() {
        let end = HostOffset::new(offset.get().saturating_add(bytes));
        return Err(OpenError::Truncated { path: storage.path().clone(), table, end });
    }
    budget.take(storage.path(), bytes)?;
    let mut numbers = Vec::with_capacity(usize::try_from(bytes / 8).expect("within the budget"));
    let mut done = 0;
    while done < bytes {
        let part = PIECE.min(bytes - done);
        let at = offset.checked_add(done).expect("before the end of the table");
        let read = read_bytes(lane, storage, at, part).await?;
        let (entries, _) = read.as_chunks::<8>();
        numbers.extend(entries.iter().map(|raw| u64::from_be_bytes(*raw)));
        done += part;
    }
    Ok(numbers)
}

/// What snapshots keep in an image.
#[derive(Default)]
pub(super) struct Inactive {
    /// The snapshot table: where, and how many bytes.
    table: Option<(HostOffset, u64)>,
    /// The L1 tables of the snapshots.
    pub(super) l1_tables: Vec<L1Table>,
}

/// Reads what the snapshot table says of other tables.
pub(super) async fn read_snapshots(
    lane: &Lane,
    storage: &Storage,
    header: &Header,
) -> Result<Inactive, OpenError> {
    let failed = |source| OpenError::Snapshots { path: storage.path().clone(), source };
    let mut table = SnapshotTable::new(header, storage.size()).map_err(failed)?;
    let mut inactive = Inactive::default();
    while let Some((offset, bytes)) = table.wanted() {
        let piece = read_bytes(lane, storage, offset, bytes as u64).await?;
        table.feed(&piece).map_err(failed)?;
        inactive.l1_tables.extend(table.take().into_iter().map(|snapshot| snapshot.l1));
        inactive.table = Some((header.snapshot_table(), table.bytes()));
    }
    Ok(inactive)
}

/// The L1 table of a snapshot.
pub(super) async fn find_snapshot(
    lane: &Lane,
    storage: &Storage,
    header: &Header,
    key: &SnapshotKey,
) -> Result<L1Table, OpenError> {
    let failed = |source| OpenError::Snapshots { path: storage.path().clone(), source };
    let mut table = SnapshotTable::new(header, storage.size()).map_err(failed)?;
    let mut snapshots = Vec::new();
    while let Some((offset, bytes)) = table.wanted() {
        let piece = read_bytes(lane, storage, offset, bytes as u64).await?;
        table.feed(&piece).map_err(failed)?;
        snapshots.extend(table.take());
    }
    let found = key.find(&snapshots).map(|snapshot| snapshot.l1);
    found.ok_or_else(|| OpenError::NoSnapshot { path: storage.path().clone(), key: key.clone() })
}

/// Collects the clusters that no guest byte may go to. (L2 tables that only snapshots have are not among them: nothing
/// of the image that is in use is read through those.)
pub(super) fn note_metadata(
    state: &mut State,
    header: &Header,
    inactive: &Inactive,
    path: &Arc<str>,
) -> Result<(), OpenError> {
    let geometry = header.geometry();
    let clusters = |offset: HostOffset, bytes: u64| {
        let first = geometry.host_cluster(offset).get();
        (first..first + geometry.clusters_for(bytes)).map(HostCluster::new)
    };
    let places = || {
        inactive
            .table
            .into_iter()
            .chain(inactive.l1_tables.iter().map(|l1| (l1.offset, l1.bytes())))
    };
    // Before they are looked at one by one: a small table can claim a lot.
    let claimed: u64 = places().map(|(_, bytes)| geometry.clusters_for(bytes)).sum();
    let too_many = |count| {
        let (limit, what) = (MAX_METADATA as u64, "clusters of metadata");
        Err(OpenError::TooLarge { path: path.clone(), what, count, limit })
    };
    if claimed > MAX_METADATA as u64 {
        return too_many(claimed);
    }
    let all = clusters(HostOffset::ZERO, 1)
        .chain(places().flat_map(|(offset, bytes)| clusters(offset, bytes)))
        .chain(clusters(header.l1().offset, header.l1().bytes()))
        .chain(clusters(header.reftable().offset, header.reftable().bytes(geometry)))
        .chain(state.l1.tables(geometry))
        .chain(state.refcounts.blocks(geometry));
    let count = all.clone().count();
    if count > MAX_METADATA {
        return too_many(count as u64);
    }
    // Room for all of them at once: growing takes half as much again.
    state.metadata.reserve(count);
    for cluster in all {
        if !state.metadata.insert(cluster) {
            let at = geometry.host_offset(cluster);
            return Err(OpenError::Overlap { path: path.clone(), at });
        }
    }
    Ok(())
}
