//! Mapping a write: what the next piece of it has to do, decided in one lock hold.

use std::sync::Arc;

use blkring_engine::faults::Event;
use blkring_engine::tracker::Guard;
use blkring_engine::{Flags, Result, Variant};

use super::claim::{Claim, ClaimId, Claimed, revoke};
use super::clock::Stamp;
use super::layer::{Layer, Lease, Pin};
use super::options::AllocPolicy;
use super::pool::{Content, Run};
use super::slices::Order;
use super::state::{Owner, SharedJob, Stage, State};
use super::unlinks::Reference;
use crate::address::{GuestCluster, GuestOffset, HostCluster, HostOffset};
use crate::entry::{Copied, L2Entry, Mapping};

/// What a piece of a write does next.
pub(crate) enum Plan {
    /// Wait for a slice, keeping the pin, and map again.
    Load(SharedJob, Pin),
    /// Wait for the writer of the whole cluster, or for its zero-write, and map again.
    Wait(SharedJob),
    /// Wait for clusters to be made ready, or for a table to be copied, and map again.
    Refill(SharedJob),
    /// Write so many bytes at this offset of the file: they are mapped already.
    InPlace { at: HostOffset, len: u64, lease: Lease, durable: Durable },
    /// Write so many bytes at this offset of the file, into clusters in flight, then publish.
    Claimed { at: HostOffset, len: u64, claim: Claim },
    /// Wait for the job that writes one whole cluster, with so many bytes of this write, and links it.
    Careful { job: SharedJob, len: u64 },
    /// Wait for the zero-write of claimed clusters, then go on as with [`Plan::Claimed`].
    Zeroing { job: SharedJob, at: HostOffset, len: u64, claim: Claim },
}

/// Whether the mapping of a write in place is durable, so that FUA needs no cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    Yes,
    No,
}

/// What shared work does for a write before its clusters may be linked.
pub(crate) enum Prepare {
    /// Writes one whole cluster, and links it.
    Whole(Careful),
    /// Zeroes these clusters, claimed from this guest cluster on: the job has a hold of its own on them, to adopt.
    Zeros(ClaimId, GuestCluster, Run),
}

/// A cluster that must be written whole before it is linked: a claim for the job to adopt.
pub(crate) struct Careful {
    pub(crate) id: ClaimId,
    pub(crate) guest: GuestCluster,
    pub(crate) host: HostCluster,
    /// What the bytes around the write are.
    pub(crate) around: Around,
}

/// What the guest sees around a write into a cluster that is written whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Around {
    Zeros,
    /// What lies below the image.
    Backing,
    /// What the entry says until it is replaced.
    Guest,
}

/// How far the backing chain has bytes under a layer: nothing is zero for sure below that.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BackingEnd(pub(crate) u64);

impl Layer {
    /// Plans the next piece of a write of `len` bytes at `offset`, both within the virtual size. `prepare` makes
    /// the job that prepares new clusters; it keeps the grant of the write, and may outlive it.
    pub(crate) fn plan(
        self: &Arc<Self>,
        offset: u64,
        len: u64,
        backing: BackingEnd,
        prepare: &mut dyn FnMut(Prepare) -> SharedJob,
    ) -> Result<Plan> {
        let geometry = &self.geometry;
        let guest = geometry.guest_cluster(GuestOffset::new(offset));
        let within = geometry.offset_in_cluster(GuestOffset::new(offset));
        let piece = Piece { guest, within, len };
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if let Some(plan) = self.plan_join(&mut state, piece) {
            return Ok(plan);
        }
        if let Some(job) = self.own_table(&mut state, guest)? {
            return Ok(Plan::Refill(job));
        }
        let number = geometry.slice_number(guest);
        if state.slices.get(number).is_none() {
            let table = state.l1.table(geometry.l1_index(guest), geometry);
            if table.map_err(|error| self.entry_error(guest, &error))?.is_some() {
                let job = self.load(&mut state, number);
                return Ok(Plan::Load(job, Pin::new(self, &mut state, number)));
            }
            let data = geometry.clusters_for(within + len);
            if let Some(job) = self.new_table(&mut state, guest, data) {
                return Ok(Plan::Refill(job));
            }
        }
        let entry = self.entry(&mut state, guest)?;
        match (entry.mapping, entry.copied) {
            (Mapping::Normal(host), Copied::No)
                if state.variants.has(Variant::SharedWrittenInPlace) =>
            {
                self.plan_in_place(&mut state, piece, host)
            }
            (Mapping::Compressed(_), _) | (Mapping::Normal(_), Copied::No) => {
                self.plan_replace(&mut state, piece, (entry, Around::Guest), prepare)
            }
            (Mapping::ZeroAllocated(_), Copied::No) => {
                self.plan_replace(&mut state, piece, (entry, Around::Zeros), prepare)
            }
            (Mapping::Normal(host), Copied::Yes) => self.plan_in_place(&mut state, piece, host),
            (Mapping::ZeroAllocated(host), Copied::Yes) => {
                self.plan_zero_allocated(&mut state, piece, host, prepare)
            }
            (Mapping::Unallocated, _) if geometry.guest_offset(guest).get() < backing.0 => {
                self.plan_copy(&mut state, piece, Around::Backing, prepare)
            }
            (Mapping::Unallocated | Mapping::ZeroPlain, _) => {
                self.plan_new(&mut state, piece, backing, prepare)
            }
        }
    }

    /// A cluster in flight: join its writers, or wait for the first one.
    fn plan_join(self: &Arc<Self>, state: &mut State, piece: Piece) -> Option<Plan> {
        let one = state.in_flight.get(&piece.guest)?;
        match &one.stage {
            Stage::Careful(job) if !state.variants.has(Variant::JoinerDoesNotWait) => {
                return Some(Plan::Wait(job.clone()));
            }
            // A zero-write that fails takes its clusters out of flight before it ends.
            Stage::Zeroing(job)
                if job.result().is_none() && !state.variants.has(Variant::JoinerDoesNotWait) =>
            {
                return Some(Plan::Wait(job.clone()));
            }
            _ => (),
        }
        let at = self.host_at(one.host, piece.within);
        let len = piece.len.min(self.geometry.cluster_size() - piece.within);
        Some(Plan::Claimed { at, len, claim: Claim::join(self, state, piece.guest) })
    }

    fn plan_in_place(
        self: &Arc<Self>,
        state: &mut State,
        piece: Piece,
        host: HostCluster,
    ) -> Result<Plan> {
        let geometry = &self.geometry;
        let count = self.run_of(state, piece, |n, entry| {
            let next = HostCluster::new(host.get() + n);
            entry.mapping == Mapping::Normal(next) && entry.copied == Copied::Yes
        });
        self.check_range(state, host, count)?;
        let durable = state.variants.has(Variant::FuaWithoutMapping)
            || (state.slices.is_durable(geometry.slice_number(piece.guest), &state.clock)
                && state.l1.is_durable(geometry.l1_index(piece.guest), &state.clock));
        Ok(Plan::InPlace {
            at: self.host_at(host, piece.within),
            len: piece.len.min(count * geometry.cluster_size() - piece.within),
            lease: Lease::new(self, state),
            durable: if durable { Durable::Yes } else { Durable::No },
        })
    }

    /// How many guest clusters from that of `piece` on, within its bytes and its slice, are not in flight and have an
    /// entry that `fits`.
    fn run_of(&self, state: &mut State, piece: Piece, fits: impl Fn(u64, L2Entry) -> bool) -> u64 {
        self.run_like(state, (piece.guest, piece.within + piece.len), |state, count, entry| {
            let next = GuestCluster::new(piece.guest.get() + count);
            !state.in_flight.contains_key(&next) && fits(count, entry)
        })
    }

    /// A cluster kept under a zero flag holds old bytes: it is written whole before the flag goes.
    fn plan_zero_allocated(
        self: &Arc<Self>,
        state: &mut State,
        piece: Piece,
        host: HostCluster,
        prepare: &mut dyn FnMut(Prepare) -> SharedJob,
    ) -> Result<Plan> {
        let run = Run { start: host, len: 1, stamp: Stamp::default(), content: Content::Unknown };
        if state.variants.has(Variant::ZeroAllocatedTakenForClean) {
            let claimed =
                Claimed { first: piece.guest, run, order: Order::Plain, owner: Owner::Entry };
            return self.plan_claimed(state, piece, &claimed);
        }
        self.plan_whole(state, piece, run, (Owner::Entry, Around::Zeros), prepare)
    }

    /// A write into guest clusters that read as zeros and have no host cluster.
    fn plan_new(
        self: &Arc<Self>,
        state: &mut State,
        piece: Piece,
        backing: BackingEnd,
        prepare: &mut dyn FnMut(Prepare) -> SharedJob,
    ) -> Result<Plan> {
        let geometry = &self.geometry;
        let wanted = self.run_of(state, piece, |n, entry| match entry.mapping {
            Mapping::ZeroPlain => true,
            Mapping::Unallocated => {
                geometry.guest_offset(GuestCluster::new(piece.guest.get() + n)).get() >= backing.0
            }
            _ => false,
        });
        let taken = match self.policy {
            AllocPolicy::Ahead => state.pools.ready.take(wanted),
            AllocPolicy::PerAllocation => {
                state.pools.ready.take(wanted).or_else(|| state.pools.dirty.take(wanted))
            }
        };
        let Some(run) = taken else { return Ok(Plan::Refill(self.refill_job(state, wanted))) };
        let order = match self.policy {
            AllocPolicy::Ahead => Order::Plain,
            AllocPolicy::PerAllocation if state.variants.has(Variant::LinkTakenForPlain) => {
                Order::Plain
            }
            // The file grows, or old bytes are zeroed, together with the write: durable before the entry is.
            AllocPolicy::PerAllocation => Order::Careful,
        };
        let claimed = Claimed { first: piece.guest, run, order, owner: Owner::Pool };
        let whole = piece.within == 0 && piece.len >= run.len * geometry.cluster_size();
        // Joiners start at once where no zero-write comes first: there must be no old bytes for them to show.
        if self.policy == AllocPolicy::PerAllocation && !(whole && run.content == Content::Fresh) {
            return self.plan_zeroing(state, piece, &claimed, prepare);
        }
        tracing::debug!(
            path = %self.storage.path(),
            offset = geometry.host_offset(run.start).get(),
            clusters = run.len,
            "skip_cow"
        );
        self.plan_claimed(state, piece, &claimed)
    }

    /// The write goes straight into claimed clusters.
    fn plan_claimed(
        self: &Arc<Self>,
        state: &mut State,
        piece: Piece,
        claimed: &Claimed,
    ) -> Result<Plan> {
        let run = claimed.run;
        self.check_range(state, run.start, run.len)?;
        let id = Claim::start(self, state, claimed, &Stage::Open);
        Ok(Plan::Claimed {
            at: self.host_at(run.start, piece.within),
            len: piece.len.min(run.len * self.geometry.cluster_size() - piece.within),
            claim: Claim::adopt(self, id, claimed.first, run.len),
        })
    }

    /// The claimed clusters are zeroed first.
    fn plan_zeroing(
        self: &Arc<Self>,
        state: &mut State,
        piece: Piece,
        claimed: &Claimed,
        prepare: &mut dyn FnMut(Prepare) -> SharedJob,
    ) -> Result<Plan> {
        let run = claimed.run;
        self.check_range(state, run.start, run.len)?;
        let (id, first) = (state.last_claim.following(), claimed.first);
        let job = prepare(Prepare::Zeros(id, first, run));
        let started = Claim::start(self, state, claimed, &Stage::Zeroing(job.clone()));
        assert_eq!(started, id, "one claim is made in one lock hold");
        Claim::hold(self, state, first, run.len);
        Ok(Plan::Zeroing {
            job,
            at: self.host_at(run.start, piece.within),
            len: piece.len.min(run.len * self.geometry.cluster_size() - piece.within),
            claim: Claim::adopt(self, id, first, run.len),
        })
    }

    /// A cluster that others may refer to is never written in place, nor is compressed data: the entry is to name
    /// another cluster, written whole.
    fn plan_replace(
        self: &Arc<Self>,
        state: &mut State,
        piece: Piece,
        (old, around): (L2Entry, Around),
        prepare: &mut dyn FnMut(Prepare) -> SharedJob,
    ) -> Result<Plan> {
        // Counts are to be lowered, which no structure of the image can bear.
        if let Some((first, count)) = Reference::of(old, &self.geometry).map(Reference::range) {
            self.check_range(state, first, count)?;
        }
        self.plan_copy(state, piece, around, prepare)
    }

    /// A cluster over bytes that are elsewhere: any counted cluster will do, since all of it is written.
    fn plan_copy(
        self: &Arc<Self>,
        state: &mut State,
        piece: Piece,
        around: Around,
        prepare: &mut dyn FnMut(Prepare) -> SharedJob,
    ) -> Result<Plan> {
        let taken = state.pools.dirty.take(1).or_else(|| state.pools.ready.take(1));
        let Some(run) = taken else { return Ok(Plan::Refill(self.refill_job(state, 1))) };
        self.plan_whole(state, piece, run, (Owner::Pool, around), prepare)
    }

    /// One whole cluster is written by a job.
    fn plan_whole(
        self: &Arc<Self>,
        state: &mut State,
        piece: Piece,
        run: Run,
        (owner, around): (Owner, Around),
        prepare: &mut dyn FnMut(Prepare) -> SharedJob,
    ) -> Result<Plan> {
        self.check_range(state, run.start, 1)?;
        let id = state.last_claim.following();
        let one = Careful { id, guest: piece.guest, host: run.start, around };
        let job = prepare(Prepare::Whole(one));
        let claimed = Claimed { first: piece.guest, run, order: Order::Careful, owner };
        let started = Claim::start(self, state, &claimed, &Stage::Careful(job.clone()));
        assert_eq!(started, id, "one claim is made in one lock hold");
        Ok(Plan::Careful { job, len: piece.len.min(self.geometry.cluster_size() - piece.within) })
    }

    /// The job that zeroes claimed clusters. It holds them, and the grant of the write, until the disk is done with
    /// them, whatever becomes of the write.
    pub(crate) fn zero_job(
        self: &Arc<Self>,
        (id, first, run): (ClaimId, GuestCluster, Run),
        grant: Arc<Guard>,
    ) -> SharedJob {
        let layer = self.clone();
        self.service.start(async move {
            let held = Claim::adopt(&layer, id, first, run.len);
            let result = layer.zero_claimed(run).await;
            if result.is_err() {
                revoke(&layer, id, first, run.len);
            }
            drop(held);
            drop(grant);
            result
        })
    }

    /// The zero-write of a policy that zeroes with each allocation. Where the kernel has none that writes no zeros,
    /// they are written.
    async fn zero_claimed(self: &Arc<Self>, run: Run) -> Result<()> {
        let offset = self.geometry.host_offset(run.start).get();
        let bytes = run.len * self.geometry.cluster_size();
        let lane = self.service.lane();
        self.storage.point(Event::ClusterAllocSpace).await;
        match self.storage.write_zeroes(lane, offset, bytes, Flags::NO_FALLBACK).await {
            Err(error) if matches!(error.errno, libc::ENOTSUP | libc::EAGAIN) => {
                self.storage.write_zeroes(lane, offset, bytes, Flags::empty()).await
            }
            other => other,
        }
    }
}

/// What is left of a write, from the guest cluster that it is in.
#[derive(Clone, Copy)]
struct Piece {
    guest: GuestCluster,
    /// Where it begins in that cluster, in bytes.
    within: u64,
    len: u64,
}
