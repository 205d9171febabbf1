//! Guest clusters in flight: claimed by the first allocating write, joined by others, linked once.

use std::sync::Arc;

use blkring_engine::Variant;

use super::clock::Stamp;
use super::layer::Layer;
use super::pool::{Content, Run};
use super::slices::Order;
use super::state::{InFlight, Link, Owner, Stage, State};
use super::unlinks::Reference;
use crate::address::{GuestCluster, HostCluster};
use crate::entry::L2Entry;

/// Tells the writers of a guest cluster in flight from those of an earlier time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct ClaimId(u64);

impl ClaimId {
    /// The next one.
    pub(crate) fn next(&mut self) -> ClaimId {
        *self = self.following();
        *self
    }

    /// The one that [`ClaimId::next`] will give.
    pub(crate) fn following(self) -> ClaimId {
        ClaimId(self.0 + 1)
    }
}

/// One writer's hold on consecutive guest clusters in flight, and on the slice that will name them. Dropping it
/// without [`Claim::publish`] counts as a failed write.
pub(crate) struct Claim {
    layer: Arc<Layer>,
    id: ClaimId,
    first: GuestCluster,
    count: u64,
    open: bool,
}

/// What a claim puts in flight.
pub(crate) struct Claimed {
    pub(crate) first: GuestCluster,
    pub(crate) run: Run,
    pub(crate) order: Order,
    pub(crate) owner: Owner,
}

impl Claim {
    /// Puts guest clusters in flight, in the clusters of a run. Their slice is cached. Whoever is given the id holds
    /// the claim from here on, by [`Claim::adopt`].
    pub(crate) fn start(
        layer: &Layer,
        state: &mut State,
        claimed: &Claimed,
        stage: &Stage,
    ) -> ClaimId {
        let id = state.last_claim.next();
        for (guest, host) in guests(claimed.first, claimed.run.len).zip(claimed.run.clusters()) {
            let in_flight = InFlight {
                id,
                host,
                stamp: claimed.run.stamp,
                order: claimed.order,
                owner: claimed.owner,
                writers: 1,
                link: Link::NotYet,
                stage: stage.clone(),
            };
            let before = state.in_flight.insert(guest, in_flight);
            assert!(before.is_none(), "a cluster in flight is joined, not claimed again");
        }
        state.slices.pin(layer.geometry.slice_number(claimed.first));
        id
    }

    /// Takes over what [`Claim::start`] has put in flight.
    pub(crate) fn adopt(layer: &Arc<Layer>, id: ClaimId, first: GuestCluster, count: u64) -> Self {
        Claim { layer: layer.clone(), id, first, count, open: true }
    }

    /// A further hold on guest clusters in flight, for a job to adopt.
    pub(crate) fn hold(layer: &Layer, state: &mut State, first: GuestCluster, count: u64) {
        for guest in guests(first, count) {
            state.in_flight.get_mut(&guest).expect("the caller has put it there").writers += 1;
        }
        state.slices.pin(layer.geometry.slice_number(first));
    }

    /// Joins the writers of a guest cluster in flight.
    pub(crate) fn join(layer: &Arc<Layer>, state: &mut State, cluster: GuestCluster) -> Self {
        let one = state.in_flight.get_mut(&cluster).expect("the caller has looked");
        one.writers += 1;
        let id = one.id;
        state.slices.pin(layer.geometry.slice_number(cluster));
        Claim::adopt(layer, id, cluster, 1)
    }

    /// The bytes of this writer have landed: whoever finishes first links.
    pub(crate) fn publish(mut self) {
        self.open = false;
        self.finish(Written::Yes);
    }

    fn finish(&self, written: Written) {
        let mut state = self.layer.lock();
        for guest in guests(self.first, self.count) {
            leave(&self.layer, &mut state, guest, self.id, written);
        }
        state.slices.unpin(self.layer.geometry.slice_number(self.first));
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.open {
            self.finish(Written::No);
        }
    }
}

/// Ends a claim whose clusters could not be prepared, before anybody joined it: its writer's own end finds nothing.
pub(crate) fn revoke(layer: &Layer, id: ClaimId, first: GuestCluster, count: u64) {
    let mut state = layer.lock();
    for guest in guests(first, count) {
        leave(layer, &mut state, guest, id, Written::No);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    Yes,
    No,
}

fn guests(first: GuestCluster, count: u64) -> impl Iterator<Item = GuestCluster> {
    (first.get()..first.get() + count).map(GuestCluster::new)
}

/// One writer leaves a cluster in flight. The last one takes it out; if nobody linked it, it goes back to the pool as
/// a cluster that has held bytes.
fn leave(layer: &Layer, state: &mut State, guest: GuestCluster, id: ClaimId, written: Written) {
    let Some(one) = state.in_flight.get_mut(&guest).filter(|one| one.id == id) else { return };
    one.writers -= 1;
    let unlinked = one.link == Link::NotYet || state.variants.has(Variant::EveryWriterLinks);
    let links = written == Written::Yes && unlinked;
    if links {
        one.link = Link::Done;
    }
    let (host, stamp, order) = (one.host, one.stamp, one.order);
    let unused = one.link == Link::NotYet && one.owner == Owner::Pool;
    let early = written == Written::No && state.variants.has(Variant::FailedClusterBackWithJoiners);
    let last = one.writers == 0 || early;
    if last {
        state.in_flight.remove(&guest);
    }
    if links {
        link(layer, state, guest, (host, order, stamp));
    }
    if last && unused {
        give_back(state, host, stamp);
    }
}

/// Has the entry of a guest cluster name its new cluster, and give up what it named before.
fn link(
    layer: &Layer,
    state: &mut State,
    guest: GuestCluster,
    (host, order, stamp): (HostCluster, Order, Stamp),
) {
    let (number, index) = (layer.geometry.slice_number(guest), layer.geometry.slice_index(guest));
    let slice = state.slices.get(number).expect("a claim holds its slice");
    // An entry that could not be followed was not claimed over.
    let old = L2Entry::decode(slice.get(index), &layer.geometry).ok();
    let raw = L2Entry::normal(host).encode(&layer.geometry);
    state.slices.set(number, index, raw, order, stamp);
    if let Some(old) = old.filter(|old| old.mapping.host_cluster() != Some(host)) {
        Reference::of(old, &layer.geometry).into_iter().for_each(|given_up| state.unlink(given_up));
    }
}

/// A claimed cluster that was not linked: dirty, and pending still if it was.
fn give_back(state: &mut State, host: HostCluster, stamp: Stamp) {
    if state.variants.has(Variant::FailedClusterStaysClean) {
        state.pools.ready.put(Run { start: host, len: 1, stamp, content: Content::Zero });
    } else {
        state.put_dirty(host, stamp);
    }
}
