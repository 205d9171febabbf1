//! L2 tables: a new one where there is none, and an own one where others may refer to it.
//!
//! A table that snapshots may share is never changed. It is copied by a job, whole and without a look at the cache, so
//! that one slice in memory is enough: read, written into a counted cluster, and made durable; only then the L1 entry
//! in memory names the copy. What the copied entries refer to is counted for both tables already. What they claim to
//! have alone is shared by now: the claims are left out of the copy, and out of every slice loaded from such a table.

use std::sync::Arc;

use blkring_engine::faults::Event;
use blkring_engine::{Flags, IoMem, Result, Variant};

use super::clock::Stamp;
use super::layer::Layer;
use super::options::AllocPolicy;
use super::pool::Run;
use super::state::{SharedJob, State};
use super::unlinks::Reference;
use crate::address::{GuestCluster, HostCluster};
use crate::entry::{Copied, without_claim};

/// Bytes that a table is copied by.
const PIECE: u64 = 64 << 10;

impl Layer {
    /// Gives a guest cluster without an L2 table one, in a zero cluster; or the job that makes such a cluster
    /// ready, and `more` besides.
    pub(crate) fn new_table(
        self: &Arc<Self>,
        state: &mut State,
        guest: GuestCluster,
        more: u64,
    ) -> Option<SharedJob> {
        let geometry = &self.geometry;
        let pool = match self.policy {
            AllocPolicy::Ahead => &mut state.pools.ready,
            AllocPolicy::PerAllocation => &mut state.pools.tables,
        };
        let dirty = state.variants.has(Variant::TableInDirtyCluster);
        let taken = if dirty { state.pools.dirty.take(1) } else { None }.or_else(|| pool.take(1));
        let Some(run) = taken else {
            // Asked for only now: space for tables that nobody needs yet would lie between the data.
            state.pools.table_needed = self.policy == AllocPolicy::PerAllocation;
            return Some(self.refill_job(state, 1 + more));
        };
        state.pools.table_needed = false;
        state.l1.set(geometry.l1_index(guest), run.start, run.stamp, geometry);
        state.metadata.insert(run.start);
        state.slices.insert_zero(geometry.slice_number(guest));
        None
    }

    /// What a change of the L2 table of a guest cluster has to wait for, because others may refer to that table: its
    /// copy, or a cluster for it.
    pub(crate) fn own_table(
        self: &Arc<Self>,
        state: &mut State,
        guest: GuestCluster,
    ) -> Result<Option<SharedJob>> {
        let index = self.geometry.l1_index(guest);
        let table = state.l1.table(index, &self.geometry);
        let table = table.map_err(|error| self.entry_error(guest, &error))?;
        let Some((old, Copied::No)) = table else { return Ok(None) };
        if let Some(copy) = state.copies.get(&index) {
            return Ok(Some(copy.clone()));
        }
        // All of it is written, and durable before anything names it: any counted cluster will do.
        let pools = &mut state.pools;
        let taken = pools.dirty.take(1).or_else(|| pools.tables.take(1));
        let Some(run) = taken.or_else(|| pools.ready.take(1)) else {
            return Ok(Some(self.refill_job(state, 1)));
        };
        self.check_range(state, run.start, 1)?;
        let copy = self.service.start(self.clone().copy_table(index, old, run));
        state.copies.insert(index, copy.clone());
        Ok(Some(copy))
    }

    async fn copy_table(self: Arc<Self>, index: usize, old: HostCluster, run: Run) -> Result<()> {
        let copied = self.write_copy(old, run.start).await;
        let mut state = self.lock();
        state.copies.remove(&index);
        if let Err(error) = copied {
            state.put_dirty(run.start, run.stamp);
            return Err(error);
        }
        // Durable, and its count with it: the entry may go out with any cut.
        state.l1.set(index, run.start, Stamp::default(), &self.geometry);
        state.metadata.insert(run.start);
        state.metadata.remove(&old);
        state.unlink(Reference::to(old, Copied::No));
        Ok(())
    }

    async fn write_copy(&self, from: HostCluster, to: HostCluster) -> Result<()> {
        let lane = self.service.lane();
        let size = self.geometry.cluster_size();
        let piece = size.min(PIECE);
        for at in (0..size).step_by(usize::try_from(piece).expect("a piece is small")) {
            let mem = IoMem::aligned_zeroed(usize::try_from(piece).expect("a piece is small"));
            self.storage.point(Event::L2AllocCowRead).await;
            self.storage.read(lane, self.host_at(from, at).get(), &mem).await?;
            let bytes = mem.to_vec();
            let (entries, _) = bytes.as_chunks::<8>();
            let entries = entries.iter().map(|raw| without_claim(u64::from_be_bytes(*raw)));
            let bytes: Vec<u8> = entries.flat_map(u64::to_be_bytes).collect();
            let place = self.host_at(to, at).get();
            self.storage.point(Event::L2AllocWrite).await;
            self.storage.write(lane, place, &IoMem::aligned(&bytes), Flags::empty()).await?;
        }
        if self.breaks(Variant::TableCopyWithoutSync) { Ok(()) } else { self.sync().await }
    }
}
