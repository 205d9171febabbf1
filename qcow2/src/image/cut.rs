//! A cut: a consistent set of metadata, frozen at one instant and written out.
//!
//! A cut that has not frozen yet is *next*: everything that must be in it joins it. It takes the slot, loads the
//! refcount blocks that it needs (nobody else writes one meanwhile) and freezes; from then on a new one is next. When all its writes have landed it gives the slot up, so no slice
//! is ever in flight twice, while the fdatasyncs of flushes may overlap.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use blkring_engine::faults::Event;
use blkring_engine::{Flags, IoMem, Operation, Result, Variant};

use super::l1::FrozenL1;
use super::layer::Layer;
use super::lower::Lowered;
use super::refcounts::Block;
use super::slices::{Entries, FrozenSlice, Order};
use super::state::{SharedJob, State};
use super::unlinks::Unlinked;
use crate::address::{HostCluster, HostOffset};

/// What one cut writes.
#[derive(Default)]
struct Frozen {
    slices: Vec<FrozenSlice>,
    /// Where each of `slices` goes.
    places: Vec<HostOffset>,
    l1: FrozenL1,
    unlinked: Vec<Unlinked>,
    lowered: Lowered,
    presync: Presync,
}

/// Whether an fdatasync must come before the writes of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Presync {
    #[default]
    None,
    Needed,
}

/// Who asks for the slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    Cut,
    Refill,
    Raise,
    Marking,
    Closing,
    Resize,
    Quiesce,
}

impl Layer {
    /// The cut that has not frozen yet.
    pub(crate) fn cut_job(self: &Arc<Self>) -> SharedJob {
        let mut state = self.lock();
        self.next_cut(&mut state)
    }

    fn next_cut(self: &Arc<Self>, state: &mut State) -> SharedJob {
        let layer = self.clone();
        state.work.next_cut.get_or_insert_with(|| self.service.start(layer.cut())).clone()
    }

    /// The flush whose cut has not frozen yet: that cut, and an fdatasync.
    pub(crate) fn flush_job(self: &Arc<Self>) -> SharedJob {
        let mut state = self.lock();
        state.pools.flushes += 1;
        if self.breaks(Variant::FlushJoinsFrozenCut)
            && let Some(frozen) =
                state.work.frozen_flush.clone().filter(|job| job.result().is_none())
        {
            return frozen;
        }
        let cut = self.next_cut(&mut state);
        let layer = self.clone();
        let body = async move {
            layer.storage.point(Event::FlushToOs).await;
            cut.join().await?;
            layer.storage.point(Event::FlushToDisk).await;
            layer.sync().await
        };
        state.work.next_flush.get_or_insert_with(|| self.service.start(body)).clone()
    }

    async fn cut(self: Arc<Self>) -> Result<()> {
        self.take_slot(Holder::Cut, |_, _| ()).await;
        self.give_space_back().await;
        self.load_blocks_to_lower().await;
        let frozen = self.freeze(&mut self.lock());
        if self.breaks(Variant::SlotFreedBeforeLanding) {
            self.give_slot_up();
        }
        let failure = self.lock().failure.clone();
        let result = match failure {
            // After a failed fdatasync, or in a damaged image, nothing may reach the disk any more.
            Some(failure) => Err(failure),
            None => self.write_out(&frozen).await,
        };
        self.settle(&frozen, result.is_ok());
        self.give_slot_up();
        result
    }

    /// Waits until nobody has the slot, takes it, and does `first` in the same lock hold.
    pub(crate) async fn take_slot<R>(
        self: &Arc<Self>,
        holder: Holder,
        mut first: impl FnMut(&Arc<Self>, &mut State) -> R,
    ) -> R {
        loop {
            let other = {
                let mut state = self.lock();
                if holder == Holder::Refill && self.breaks(Variant::RefillWithoutSlot) {
                    return first(self, &mut state);
                }
                match state.work.slot.clone() {
                    Some(other) => other,
                    None => {
                        state.work.slot = match holder {
                            Holder::Cut => state.work.next_cut.clone(),
                            Holder::Refill => state.work.refill.clone(),
                            Holder::Raise => state.work.next_raise.clone(),
                            Holder::Marking => state.work.marking.clone(),
                            Holder::Closing => state.work.closing.clone(),
                            Holder::Resize => state.work.resizing.clone(),
                            Holder::Quiesce => state.work.quiescing.clone(),
                        };
                        return first(self, &mut state);
                    }
                }
            };
            let (layer, held) = (self.clone(), other.clone());
            other
                .until(move || {
                    layer.lock().work.slot.as_ref().is_none_or(|now| !Arc::ptr_eq(now, &held))
                })
                .await;
        }
    }

    /// Gives the slot up and wakes those that wait for it.
    pub(crate) fn give_slot_up(&self) {
        let held = self.lock().work.slot.take();
        if let Some(job) = held {
            job.nudge();
        }
    }

    fn freeze(self: &Arc<Self>, state: &mut State) -> Frozen {
        state.work.next_cut = None;
        state.work.frozen_flush = state.work.next_flush.take();
        let slices = state.slices.freeze();
        let geometry = &self.geometry;
        let place = |slice: &FrozenSlice| {
            let first = geometry.slice_start(slice.number);
            let table = state.l1.table(geometry.l1_index(first), geometry);
            let (table, _) =
                table.ok().flatten().expect("a slice is cached after its table was found");
            geometry.slice_offset(table, geometry.slice_in_table(first))
        };
        let places = slices.iter().map(place).collect();
        let l1 = state.l1.freeze(self.l1_unit());
        let unlinked = std::mem::take(&mut state.unlinks.fresh);
        if self.breaks(Variant::DecrementInOwnCut) {
            let clusters = unlinked.iter().flat_map(|one| one.reference.clusters());
            clusters.for_each(|cluster| state.unlinks.lose(cluster));
        }
        let mut frozen = Frozen { slices, places, l1, unlinked, ..Frozen::default() };
        frozen.presync = presync(state, &frozen);
        frozen.lowered = self.freeze_counts(state);
        frozen
    }

    /// Entries of the L1 table go out in blocks of this many bytes: whole sectors, within the table's clusters.
    fn l1_unit(&self) -> u64 {
        self.storage.alignment().max(512).min(self.geometry.cluster_size())
    }

    async fn write_out(&self, frozen: &Frozen) -> Result<()> {
        tracing::debug!(
            path = %self.storage.path(),
            slices = frozen.slices.len(),
            l1 = frozen.l1.blocks.len(),
            presync = ?frozen.presync,
            "cut"
        );
        if frozen.presync == Presync::Needed {
            self.sync().await?;
        }
        let mut writes: Vec<(HostOffset, IoMem)> = Vec::new();
        for (slice, place) in frozen.slices.iter().zip(&frozen.places) {
            let bytes: Vec<u8> =
                self.contents(slice).iter().flat_map(|raw| raw.to_be_bytes()).collect();
            writes.push((*place, IoMem::aligned(&bytes)));
        }
        let l1 = self.header.lock().l1().offset;
        for (offset, bytes) in &frozen.l1.blocks {
            let place = l1.checked_add(*offset).expect("the table lies below 2^56");
            writes.push((place, IoMem::aligned(bytes)));
        }
        for block in &frozen.lowered.blocks {
            let (within, bytes) = self.block_part(&block.contents, block.touched.clone());
            let place = self.geometry.host_offset(block.cluster).checked_add(within);
            writes.push((place.expect("blocks lie below 2^56"), IoMem::aligned(bytes)));
        }
        self.pass_points(frozen).await;
        self.write_all(&writes).await
    }

    async fn pass_points(&self, frozen: &Frozen) {
        if !frozen.slices.is_empty() {
            self.storage.point(Event::L2Update).await;
        }
        if !frozen.l1.blocks.is_empty() {
            self.storage.point(Event::L1Update).await;
        }
        if !frozen.lowered.blocks.is_empty() {
            self.storage.point(Event::ClusterFree).await;
            self.storage.point(Event::RefblockUpdatePart).await;
        }
    }

    fn contents(&self, slice: &FrozenSlice) -> Entries {
        if self.breaks(Variant::FrozenSlicesReadLive) {
            return self.lock().slices.get(slice.number).expect("slices in flight stay").entries();
        }
        slice.entries.clone()
    }

    /// Writes several pieces of metadata side by side and waits for all of them, whatever becomes of one.
    pub(crate) async fn write_all(&self, writes: &[(HostOffset, IoMem)]) -> Result<()> {
        type Write<'a> = Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;
        let lane = self.service.lane();
        let mut open: Vec<Option<Write<'_>>> = Vec::with_capacity(writes.len());
        for (place, mem) in writes {
            let write = self.storage.write(lane, place.get(), mem, Flags::empty());
            open.push(Some(Box::pin(write)));
        }
        let mut result = Ok(());
        poll_fn(|cx| {
            for write in &mut open {
                if let Some(Poll::Ready(one)) = write.as_mut().map(|w| w.as_mut().poll(cx)) {
                    *write = None;
                    if result.is_ok() {
                        result = one;
                    }
                }
            }
            let given_up = result.is_err() && self.breaks(Variant::FailedCutDoesNotWait);
            if given_up || open.iter().all(Option::is_none) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        result
    }

    /// Notes that the writes of a cut have landed, or puts back what they should have carried.
    fn settle(&self, frozen: &Frozen, success: bool) {
        let mut state = self.lock();
        if !success {
            if self.breaks(Variant::DirtyMarksLostOnError) {
                state.slices.landed(&frozen.slices, Default::default());
            } else {
                state.slices.put_back(&frozen.slices);
            }
            state.l1.put_back(&frozen.l1);
            if !self.breaks(Variant::UnlinkMarksLostOnError) {
                state.unlinks.fresh.extend(&frozen.unlinked);
            } else {
                let due = frozen.unlinked.iter().map(|one| (Default::default(), *one));
                state.unlinks.removed.extend(due);
            }
            self.put_counts_back(&mut state, &frozen.lowered);
            return;
        }
        let stamp = state.clock.landed();
        state.slices.landed(&frozen.slices, stamp);
        state.l1.landed(&frozen.l1, stamp);
        let in_own_cut = self.breaks(Variant::DecrementInOwnCut);
        let removed = frozen.unlinked.iter().filter(|_| !in_own_cut).map(|one| (stamp, *one));
        state.unlinks.removed.extend(removed);
        self.counts_landed(&mut state, &frozen.lowered);
        if self.breaks(Variant::EvictionPromotes) {
            state.clock.synced(stamp);
        }
        state.recycle(self.reserve);
    }

    /// The part of a refcount block that holds `touched`, in whole sectors: where it begins, and its bytes.
    pub(crate) fn block_part<'a>(
        &self,
        block: &'a Block,
        touched: std::ops::Range<usize>,
    ) -> (u64, &'a [u8]) {
        let unit = usize::try_from(self.l1_unit()).expect("a sector is small");
        let start = touched.start / unit * unit;
        let end = touched.end.next_multiple_of(unit).min(block.len());
        let part = block.get(start..end).expect("touched bytes lie within the block");
        (start as u64, part)
    }

    /// Where a refcount block is. `None` if the table names none.
    pub(super) fn named_block(&self, index: usize) -> Result<Option<HostCluster>> {
        let named = self.lock().refcounts.block_at(index, &self.geometry);
        named.map_err(|error| {
            tracing::warn!(path = %self.storage.path(), index, %error, "bad refcount table entry");
            self.error(Operation::Allocate, index as u64 * 8, libc::EIO).because(error.reason())
        })
    }

    /// A refcount block, loaded if it is not cached. `None` if the table names none.
    pub(crate) async fn load_block(&self, index: usize) -> Result<Option<(HostCluster, Block)>> {
        let Some(named) = self.named_block(index)? else { return Ok(None) };
        if let Some(block) = self.lock().refcounts.cached(index) {
            return Ok(Some((named, block)));
        }
        let len = usize::try_from(self.geometry.cluster_size()).expect("a cluster is small");
        let mem = IoMem::aligned_zeroed(len);
        let offset = self.geometry.host_offset(named);
        self.storage.point(Event::RefblockLoad).await;
        self.storage.read(self.service.lane(), offset.get(), &mem).await?;
        let mut state = self.lock();
        if let Some(block) = state.refcounts.cached(index) {
            return Ok(Some((named, block)));
        }
        let block: Block = Arc::new(mem.to_vec());
        state.refcounts.cache(index, block.clone());
        Ok(Some((named, block)))
    }
}

fn presync(state: &State, frozen: &Frozen) -> Presync {
    let pending = |stamp| {
        !state.clock.is_durable(stamp) && !state.variants.has(Variant::PendingLinkWithoutSync)
    };
    let careful = |slice: &FrozenSlice| {
        slice.order == Order::Careful && !state.variants.has(Variant::PayloadAfterEntry)
    };
    let slices = frozen.slices.iter().any(|slice| careful(slice) || pending(slice.linked));
    let tables = frozen.l1.entries.iter().any(|(_, table)| pending(*table))
        && !state.variants.has(Variant::PendingTableWithoutSync);
    if slices || tables { Presync::Needed } else { Presync::None }
}
