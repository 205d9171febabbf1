//! Zero-writes and discards: whole clusters by their entries.

use std::sync::Arc;

use blkring_engine::{Context, Flags, Operation, Result, Variant};

use blkring_engine::tracker::Class;

use super::Image;
use super::layer::{Layer, Pin};
use super::options::AllocPolicy;
use super::plan::BackingEnd;
use super::slices::Order;
use super::state::{SharedJob, State};
use super::unlinks::Reference;
use super::write::Grant;
use crate::address::GuestCluster;
use crate::entry::{L2Entry, Mapping};
use crate::geometry::Version;

/// Zeros that a partial zero-write writes at once, in bytes.
pub(super) const ZERO_CHUNK: u64 = 1 << 20;

/// What becomes of whole clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// They read as zeros; their clusters are kept.
    Zeros,
    /// They read as zeros; their clusters may be given back.
    ZerosUnmapped,
    /// They are of no use any more; they read as zeros too.
    Discarded,
}

/// What a step over the clusters of one slice came to.
enum Step {
    Load(SharedJob, Pin),
    Refill(SharedJob),
    /// So many clusters are done.
    Done(u64),
}

impl Image {
    /// Makes [offset, offset + len) read as zeros. Whole clusters are alone in their range meanwhile; the bytes before
    /// and behind them are written as by any other write, unless all else in their cluster is zero. Each part has its
    /// own grant and none is held while the next is waited for.
    pub(super) async fn zero_guest(
        self: &Arc<Self>,
        context: &Context,
        offset: u64,
        len: u64,
        flags: Flags,
    ) -> Result<()> {
        let end = offset + len;
        if self.top.geometry.version() == Version::V2 {
            self.zero_guest_v2(context, (offset, end), flags).await?;
        } else {
            self.zero_guest_v3(context, (offset, end), flags).await?;
        }
        if flags.contains(Flags::FUA) {
            self.flush_metadata().await?;
        }
        Ok(())
    }

    async fn zero_guest_v3(
        self: &Arc<Self>,
        context: &Context,
        (offset, end): (u64, u64),
        flags: Flags,
    ) -> Result<()> {
        let len = end - offset;
        if flags.contains(Flags::NO_FALLBACK) && !self.is_whole(offset, len) {
            let error = self.top.error(Operation::WriteZeroes, offset, libc::ENOTSUP);
            return Err(error.because("a part of a cluster takes zeros to be written"));
        }
        let wanted =
            if flags.contains(Flags::MAY_UNMAP) { Wanted::ZerosUnmapped } else { Wanted::Zeros };
        match self.whole_clusters(offset, len) {
            None => self.zero_parts(context, offset, end).await,
            Some((first, count)) => {
                let geometry = &self.top.geometry;
                let start = geometry.guest_offset(first).get();
                let stop = start + count * geometry.cluster_size();
                self.zero_parts(context, offset, start).await?;
                self.zero_clusters(context, (first, count), end, wanted).await?;
                self.zero_parts(context, stop.min(end), end).await
            }
        }
    }

    /// Whether a range needs no zeros to be written: all of it is whole clusters.
    pub(super) fn is_whole(&self, offset: u64, len: u64) -> bool {
        let geometry = &self.top.geometry;
        self.whole_clusters(offset, len).is_some_and(|(first, count)| {
            let start = geometry.guest_offset(first).get();
            start == offset && start + count * geometry.cluster_size() >= offset + len
        })
    }

    /// Gives the whole clusters of [offset, offset + len) back.
    pub(super) async fn discard_guest(
        self: &Arc<Self>,
        context: &Context,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        if self.top.geometry.version() == Version::V2 {
            return self.discard_guest_v2(context, (offset, offset + len)).await;
        }
        match self.whole_clusters(offset, len) {
            None => Ok(()),
            Some((first, count)) => {
                self.zero_clusters(context, (first, count), offset + len, Wanted::Discarded).await
            }
        }
    }

    /// The clusters that a range covers whole; the last one of the disk counts as whole when it is covered to its
    /// end.
    pub(super) fn whole_clusters(&self, offset: u64, len: u64) -> Option<(GuestCluster, u64)> {
        let geometry = &self.top.geometry;
        let first = offset.div_ceil(geometry.cluster_size());
        let end = offset + len;
        let last = if end == self.top.virtual_size() {
            geometry.clusters_for(end)
        } else {
            end / geometry.cluster_size()
        };
        (first < last).then(|| (GuestCluster::new(first), last - first))
    }

    /// Writes zeros over a part of a cluster, or parts of two, as any other write would.
    pub(super) async fn zero_bytes(
        self: &Arc<Self>,
        context: &Context,
        start: u64,
        end: u64,
    ) -> Result<()> {
        let mut at = start;
        while at < end {
            let len = (end - at).min(ZERO_CHUNK);
            let zeros = self.chain.zeros.of(usize::try_from(len).expect("a chunk is small"));
            let mut grant = Grant::Own(self.admit(at, len, Class::Shared).await);
            self.write_guest(context, at, &zeros, Flags::empty(), &mut grant).await?;
            at += len;
        }
        Ok(())
    }

    /// Changes the entries of whole clusters, of a range that ends at `end`.
    pub(super) async fn zero_clusters(
        self: &Arc<Self>,
        context: &Context,
        (first, mut count): (GuestCluster, u64),
        end: u64,
        wanted: Wanted,
    ) -> Result<()> {
        let size = self.top.geometry.cluster_size();
        let start = self.top.geometry.guest_offset(first).get();
        let class = if self.top.breaks(Variant::DiscardShared) {
            Class::Shared
        } else {
            Class::Serialising
        };
        let guard = self.admit(start, count * size, class).await;
        // The last cluster is whole if the disk ends with the range, as it did before the wait.
        let grown = start + count * size > end && self.top.virtual_size() != end;
        count -= u64::from(grown);
        self.zero_granted(context, first, count, wanted).await?;
        drop(guard);
        if grown && wanted != Wanted::Discarded {
            self.zero_bytes(context, start + count * size, end).await?;
        }
        self.let_go().await
    }

    /// The same under a grant that is held already.
    pub(super) async fn zero_granted(
        self: &Arc<Self>,
        context: &Context,
        first: GuestCluster,
        count: u64,
        wanted: Wanted,
    ) -> Result<()> {
        let mut done = 0;
        let mut held = None;
        while done < count {
            let next = GuestCluster::new(first.get() + done);
            match self.top.zero_step(next, count - done, wanted, self.seen_below(wanted))? {
                Step::Load(job, pin) => {
                    held = Some(pin);
                    job.join().await?;
                }
                Step::Refill(job) => job.join().await?,
                Step::Done(clusters) => {
                    context.commit();
                    done += clusters;
                    held = None;
                }
            }
        }
        drop(held);
        Ok(())
    }

    /// Up to where clusters that are nowhere get an entry that says zero. By QEMU's policy a zero-write always leaves
    /// one, so that the zeros stay whatever is put below the image later; and so does a discard where there is
    /// anything below it, however short.
    fn seen_below(&self, wanted: Wanted) -> BackingEnd {
        let always = match wanted {
            Wanted::Zeros | Wanted::ZerosUnmapped => true,
            Wanted::Discarded => !self.chain.backing.is_empty(),
        };
        let has_zeros = self.top.geometry.version() != Version::V2;
        if always && has_zeros && self.top.policy == AllocPolicy::PerAllocation {
            return BackingEnd(u64::MAX);
        }
        self.backing_end()
    }

    /// When too much is unlinked and held back, a flush lets it go.
    pub(super) async fn let_go(&self) -> Result<()> {
        let held = self.top.lock().unlinks.len();
        if held > self.top.held_back { self.flush_metadata().await } else { Ok(()) }
    }
}

impl Layer {
    /// Changes the entries of up to `count` clusters within one slice.
    fn zero_step(
        self: &Arc<Self>,
        first: GuestCluster,
        count: u64,
        wanted: Wanted,
        backing: BackingEnd,
    ) -> Result<Step> {
        let geometry = &self.geometry;
        let number = geometry.slice_number(first);
        let in_slice = geometry.slice_entries() - geometry.slice_index(first) as u64;
        let count = count.min(in_slice);
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if let Some(job) = self.own_table(&mut state, first)? {
            return Ok(Step::Refill(job));
        }
        if state.slices.get(number).is_none() {
            let table = state.l1.table(geometry.l1_index(first), geometry);
            if table.map_err(|error| self.entry_error(first, &error))?.is_some() {
                let job = self.load(&mut state, number);
                return Ok(Step::Load(job, Pin::new(self, &mut state, number)));
            }
            if geometry.guest_offset(first).get() >= backing.0 {
                // No table and nothing below: zeros already.
                return Ok(Step::Done(count));
            }
            if let Some(job) = self.new_table(&mut state, first, 0) {
                return Ok(Step::Refill(job));
            }
        }
        for step in 0..count {
            let cluster = GuestCluster::new(first.get() + step);
            self.zero_entry(&mut state, cluster, wanted, backing)?;
        }
        Ok(Step::Done(count))
    }

    fn zero_entry(
        self: &Arc<Self>,
        state: &mut State,
        cluster: GuestCluster,
        wanted: Wanted,
        backing: BackingEnd,
    ) -> Result<()> {
        let geometry = &self.geometry;
        let old = self.entry(state, cluster)?;
        let below = geometry.guest_offset(cluster).get() < backing.0;
        let reference = Reference::of(old, geometry);
        if let Some((first, count)) = reference.map(Reference::range) {
            self.check_range(state, first, count)?;
        }
        let new = match (old.mapping, wanted) {
            (Mapping::Unallocated, _) if !below => return Ok(()),
            (Mapping::ZeroPlain, _) => return Ok(()),
            // One that others refer to as well is kept too: it is there for later writes when they are gone.
            (Mapping::ZeroAllocated(_), Wanted::Zeros) => return Ok(()),
            (Mapping::Normal(host), Wanted::Zeros) => {
                L2Entry { mapping: Mapping::ZeroAllocated(host), copied: old.copied }
            }
            // Nothing lies below here in version 2.
            _ if geometry.version() == Version::V2 => L2Entry::UNALLOCATED,
            _ => L2Entry::ZERO_PLAIN,
        };
        let (number, index) = (geometry.slice_number(cluster), geometry.slice_index(cluster));
        state.slices.set(number, index, new.encode(geometry), Order::Plain, Default::default());
        let given_up = reference.filter(|_| new.mapping.host_cluster().is_none());
        if let Some(reference) = given_up {
            state.unlink(reference);
            if self.breaks(Variant::DecrementAtUnlink) {
                reference
                    .clusters()
                    .for_each(|one| state.refcounts.decrement_cached(one, geometry));
            }
        }
        Ok(())
    }
}
