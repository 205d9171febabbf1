//! A refill: clusters made ready ahead of use.
//!
//! It holds the cut slot, so that no refcount block is in flight twice. It takes clusters of unknown contents that
//! are counted already, then free ones, then new ones at the end of the file; zeroes what may hold bytes, grows the
//! file, writes the counts. When all of that has landed the clusters are *pending*: they may be used, and the cut
//! that carries a link to them begins with an fdatasync, unless one came before.

use std::sync::Arc;

use blkring_engine::faults::Event;
use blkring_engine::{Flags, IoMem, Operation, Result, Variant};

use super::clock::Stamp;
use super::cut::Holder;
use super::layer::Layer;
use super::options::AllocPolicy;
use super::pool::{Content, Run};
use super::refcounts::{Block, free_runs, with_counts};
use super::state::{SharedJob, State};
use crate::address::HostCluster;

/// How far a refill goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// As far as it takes: somebody waits.
    Far,
    /// It is ahead of use, and stops before it would make what might keep the end of the file there.
    Near,
}

/// Clusters that a refill has found, all counted by one refcount block.
struct Found {
    runs: Vec<(HostCluster, u64)>,
    index: usize,
    /// How many of them, the first ones, are for L2 tables although the policy zeroes the others later.
    tables: u64,
}

/// When flushes are this frequent, a refill syncs what it made: a flush then costs one fdatasync.
const FLUSHES_FOR_SYNC: u64 = 1;

impl Layer {
    /// The refill that is going on, or a new one for at least `need` clusters.
    pub(crate) fn refill_job(self: &Arc<Self>, state: &mut State, need: u64) -> SharedJob {
        let layer = self.clone();
        state.pools.needed = state.pools.needed.max(need);
        state.work.refill.get_or_insert_with(|| self.service.start(layer.refill())).clone()
    }

    /// Whether so little is left that a refill should begin before it is needed.
    pub(crate) fn is_low(&self, state: &State) -> bool {
        state.pools.last_refill > 1
            && state.pools.ready.len() * 2 < state.pools.last_refill
            && state.work.refill.is_none()
            && !self.stops_before(state, self.geometry.refblock_index(state.refcounts.cursor()))
    }

    async fn refill(self: Arc<Self>) -> Result<()> {
        let want = self
            .take_slot(Holder::Refill, |layer, state| {
                // The first one brings what its write needs and nothing ahead of use.
                let needed = std::mem::take(&mut state.pools.needed);
                let want = state.pools.next_refill.max(needed).clamp(1, layer.reserve);
                state.pools.next_refill = want.saturating_mul(2).min(layer.reserve);
                want
            })
            .await;
        let result = self.refill_under_slot(want).await;
        if !self.breaks(Variant::RefillWithoutSlot) {
            self.give_slot_up();
        }
        let sync = {
            let mut state = self.lock();
            let often = state.pools.flushes >= FLUSHES_FOR_SYNC;
            state.pools.flushes = 0;
            // A failed refill starts small again.
            if result.is_err() {
                state.pools.next_refill = 1;
            }
            often && result.is_ok()
        };
        let result = if sync { self.sync().await } else { result };
        self.lock().work.refill = None;
        result
    }

    async fn refill_under_slot(self: &Arc<Self>, want: u64) -> Result<()> {
        let mut got = self.recycle_dirty(want).await? + self.recycle_for_table().await?;
        if got > 0 && self.policy == AllocPolicy::PerAllocation && self.lock().pools.ready.len() > 0
        {
            // That was for a table, and there is enough for data.
            return Ok(());
        }
        let mut ask = want;
        while got < want {
            let reach = if got > 0 || self.is_ahead() { Reach::Near } else { Reach::Far };
            match self.claim_new(ask.min(want - got), reach).await {
                Ok(0) => break,
                Ok(count) => got += count,
                Err(error) if error.is_no_space() && got > 0 => break,
                // Space or quota is short: less may still fit.
                Err(error) if error.is_no_space() && ask > 1 => ask /= 2,
                Err(error) => return Err(error),
            }
        }
        self.lock().pools.last_refill = got;
        Ok(())
    }

    /// Whether nobody who waits for this refill needs it.
    fn is_ahead(&self) -> bool {
        let pools = &self.lock().pools;
        pools.ready.len() > 0 && !pools.lacks_table()
    }

    /// Whether a range that the refcounts do not reach yet is left to the request that needs it. A larger refcount table
    /// lies there for good, whatever becomes of the reservation. And by the policy that zeroes later, so does a block:
    /// its reservation has no zero cluster for it.
    fn stops_before(&self, state: &State, index: usize) -> bool {
        if index >= state.refcounts.table_len() {
            return true;
        }
        let named = state.refcounts.block_at(index, &self.geometry);
        self.policy == AllocPolicy::PerAllocation && named.is_ok_and(|named| named.is_none())
    }

    /// Zeroes counted clusters of unknown contents. Where the policy zeroes later there is nothing to do: such
    /// clusters are used as they are.
    async fn recycle_dirty(self: &Arc<Self>, want: u64) -> Result<u64> {
        if self.policy == AllocPolicy::PerAllocation {
            return Ok(0);
        }
        let mut got = 0;
        while got < want {
            let taken = self.lock().pools.dirty.take(want - got);
            let Some(run) = taken else { break };
            let zeroed = self.zero(run.start, run.len).await;
            let mut state = self.lock();
            if let Err(error) = zeroed {
                state.pools.dirty.put(run);
                return Err(error);
            }
            let stamp = state.clock.landed();
            state.pools.refilled = stamp;
            state.pools.ready.put(Run { stamp, content: Content::Zero, ..run });
            got += run.len;
        }
        Ok(got)
    }

    /// Zeroes a counted cluster for the L2 table that somebody waits for.
    async fn recycle_for_table(self: &Arc<Self>) -> Result<u64> {
        let taken = {
            let pools = &mut self.lock().pools;
            let lacks = pools.lacks_table();
            lacks.then(|| pools.ready.take(1).or_else(|| pools.dirty.take(1))).flatten()
        };
        let Some(run) = taken else { return Ok(0) };
        let zeroed = self.make_zero(run.start, run.len).await;
        let mut state = self.lock();
        if let Err(error) = zeroed {
            state.put_dirty(run.start, run.stamp);
            return Err(error);
        }
        let stamp = state.clock.landed();
        state.pools.refilled = stamp;
        state.pools.tables.put(Run { stamp, content: Content::Zero, ..run });
        Ok(run.len)
    }

    /// Finds free clusters, makes them ready and counts them. Answers how many.
    async fn claim_new(self: &Arc<Self>, want: u64, reach: Reach) -> Result<u64> {
        self.storage.point(Event::ClusterAlloc).await;
        let Some(found) = self.find(want, reach).await? else { return Ok(0) };
        let count = found.runs.iter().map(|(_, len)| len).sum();
        tracing::debug!(path = %self.storage.path(), clusters = count, runs = ?found.runs, "reserve");
        let early = self.breaks(Variant::EntryBeforeRefcount);
        if early {
            self.give_out(&found, Stamp::default());
        }
        if let Err(error) = self.prepare(&found).await {
            // Nothing of it is counted for sure: the next search looks at these clusters again.
            if let Some(&(first, _)) = found.runs.first() {
                self.lock().refcounts.freed(first);
            }
            return Err(error);
        }
        let stamp = {
            let mut state = self.lock();
            state.pools.refilled = state.clock.landed();
            state.pools.refilled
        };
        if self.policy == AllocPolicy::PerAllocation {
            // Zeroing comes with each use; the counts at least are synced ahead.
            self.sync().await?;
        }
        if !early {
            self.give_out(&found, stamp);
        }
        Ok(count)
    }

    /// Zeroes and counts what was found.
    async fn prepare(self: &Arc<Self>, found: &Found) -> Result<()> {
        for (position, &(start, len)) in found.runs.iter().enumerate() {
            match self.policy {
                AllocPolicy::Ahead => self.make_zero(start, len).await?,
                AllocPolicy::PerAllocation if position == 0 => {
                    self.make_zero(start, found.tables.min(len)).await?;
                }
                AllocPolicy::PerAllocation => (),
            }
        }
        self.write_counts(found).await
    }

    fn give_out(&self, found: &Found, stamp: Stamp) {
        let file_end = self.storage.size();
        let mut state = self.lock();
        for (position, &(start, len)) in found.runs.iter().enumerate() {
            let run = Run { start, len, stamp, content: Content::Zero };
            if self.policy == AllocPolicy::Ahead {
                state.pools.ready.put(run);
                continue;
            }
            let mut rest = run;
            if position == 0 && found.tables > 0 {
                state.pools.tables.put(Run { len: 1, ..run });
                rest = Run { start: HostCluster::new(start.get() + 1), len: len - 1, ..run };
            }
            for cluster in rest.clusters() {
                let fresh = self.geometry.host_offset(cluster).get() >= file_end;
                let content = if fresh { Content::Fresh } else { Content::Unknown };
                state.pools.ready.put(Run { start: cluster, len: 1, stamp, content });
            }
        }
    }

    /// The first free clusters, at most `want`, all in the range of one refcount block. Nobody else looks or takes:
    /// the slot is held. None if there are none within reach.
    async fn find(self: &Arc<Self>, want: u64, reach: Reach) -> Result<Option<Found>> {
        loop {
            let (cursor, end) = {
                let state = self.lock();
                (state.refcounts.cursor(), state.refcounts.end())
            };
            let index = self.geometry.refblock_index(cursor);
            let block = match self.load_block(index).await? {
                Some((_, block)) => block,
                None if reach == Reach::Near && self.stops_before(&self.lock(), index) => {
                    return Ok(None);
                }
                None => self.new_block(index).await?,
            };
            let range_end = self.geometry.refblock_start(index + 1);
            // New space at the end is taken as it is wanted; free space before it first.
            let limit = HostCluster::new(end.get().max(cursor.get()) + want).min(range_end);
            let mut state = self.lock();
            // After a failed cut the disk may show a count of zero whose decrement is still to be written again.
            let is_taken =
                |cluster| state.unlinks.is_losing(cluster) || state.refcounts.is_uncounted(cluster);
            let runs = free_runs(&block, cursor..limit, want, is_taken, &self.geometry);
            let Some(&(last, len)) = runs.last() else {
                state.refcounts.search_from(limit);
                continue;
            };
            // A count of zero for the image's own structures: zeroing them would be the end of it.
            for &(start, len) in &runs {
                self.check_range(&mut state, start, len)?;
            }
            let next = HostCluster::new(last.get() + len);
            if self.geometry.host_offset(next).get() >= crate::geometry::MAX_HOST_OFFSET {
                return Err(self.error(Operation::Allocate, u64::MAX, libc::EFBIG));
            }
            state.refcounts.search_from(next);
            state.refcounts.extend_to(next);
            let tables = u64::from(state.pools.lacks_table());
            return Ok(Some(Found { runs, index, tables }));
        }
    }

    /// Makes clusters read as zeros and be within the file, for good once synced. What lies beyond the end of the
    /// file has never held bytes and needs growth only.
    async fn make_zero(&self, start: HostCluster, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let end = self.geometry.host_offset(HostCluster::new(start.get() + len)).get();
        let offset = self.geometry.host_offset(start).get();
        let inside = self.storage.size().clamp(offset, end) - offset;
        if inside > 0 && !self.breaks(Variant::AllocationTakenForZero) {
            self.storage.write_zeroes(self.service.lane(), offset, inside, Flags::empty()).await?;
        }
        let by_holes = self.lock().pools.by_holes > 0;
        if by_holes {
            return self.storage.grow_by_hole(self.service.lane(), end).await;
        }
        self.storage.grow(self.service.lane(), end).await
    }

    async fn zero(&self, start: HostCluster, len: u64) -> Result<()> {
        if self.breaks(Variant::AllocationTakenForZero) {
            return Ok(());
        }
        let offset = self.geometry.host_offset(start).get();
        let bytes = len * self.geometry.cluster_size();
        self.storage.write_zeroes(self.service.lane(), offset, bytes, Flags::empty()).await
    }

    /// Writes a count of one for every cluster found.
    async fn write_counts(self: &Arc<Self>, found: &Found) -> Result<()> {
        let (cluster, block) = self
            .load_block(found.index)
            .await?
            .expect("the block was there when the clusters were found");
        let clusters = found
            .runs
            .iter()
            .flat_map(|&(start, len)| (start.get()..start.get() + len).map(HostCluster::new));
        let (block, touched) = with_counts(&block, clusters, 1, &self.geometry);
        self.lock().refcounts.cache(found.index, block.clone());
        self.write_block(found.index, cluster, &block, touched).await
    }

    /// Writes a part of a refcount block that is in the cache. A block that could not be written is forgotten.
    pub(crate) async fn write_block(
        &self,
        index: usize,
        cluster: HostCluster,
        block: &Block,
        touched: std::ops::Range<usize>,
    ) -> Result<()> {
        let (within, bytes) = self.block_part(block, touched);
        let place = self.geometry.host_offset(cluster).get() + within;
        self.storage.point(Event::RefblockUpdatePart).await;
        let written = self
            .storage
            .write(self.service.lane(), place, &IoMem::aligned(bytes), Flags::empty())
            .await;
        if written.is_err() {
            self.lock().refcounts.forget(index);
        }
        written
    }
}
