//! Room for compressed data: one host cluster after the other is filled, byte by byte.
//!
//! Whoever may still put data into a host cluster *holds* it: the packing itself as long as the cluster is open, and
//! each write until its entry names the data. All of them together own one count, the one that the cluster came with
//! from the pool, so that it cannot become free under them; when the last one leaves, that count goes. Each entry has
//! a count of its own.

use std::collections::HashMap;

use super::clock::Stamp;
use super::pool::Run;
use super::state::State;
use crate::address::{HostCluster, HostOffset};
use crate::geometry::Geometry;

/// The host clusters that compressed data may still come to.
#[derive(Default)]
pub(crate) struct Packing {
    open: Option<Open>,
    holds: HashMap<HostCluster, u64>,
}

/// The host cluster that the next data goes to, if it fits.
#[derive(Clone, Copy)]
struct Open {
    cluster: HostCluster,
    /// The first free byte in it.
    next: u64,
    /// Data that has been put there.
    users: u64,
    stamp: Stamp,
}

/// Where compressed data may go.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) offset: HostOffset,
    /// The host clusters that the data touches, each held.
    pub(super) first: HostCluster,
    pub(super) clusters: u64,
    /// Of what prepared them.
    pub(super) stamp: Stamp,
}

impl Room {
    pub(super) fn clusters(self) -> impl Iterator<Item = HostCluster> {
        (self.first.get()..self.first.get() + self.clusters).map(HostCluster::new)
    }
}

impl State {
    /// Room for `bytes` bytes, less than a cluster. `None` if there is no counted cluster left.
    pub(super) fn make_room(&mut self, bytes: u64, geometry: &Geometry) -> Option<Room> {
        let size = geometry.cluster_size();
        // One count of a cluster belongs to those who hold it.
        let most = geometry.refcounts().max() - 1;
        let usable = self.packing.open.filter(|open| open.users < most);
        if let Some(open) = usable.filter(|open| open.next + bytes <= size) {
            let room = self.room((open.cluster, 1), open.next, open.stamp, geometry);
            self.packing.open =
                Some(Open { next: open.next + bytes, users: open.users + 1, ..open });
            return Some(room);
        }
        let run = self.pools.dirty.take(1).or_else(|| self.pools.ready.take(1))?;
        let behind = |open: &Open| open.next < size && open.cluster.get() + 1 == run.start.get();
        let (room, next) = match usable.filter(behind) {
            // It begins in what is left of the cluster before.
            Some(open) => {
                let stamp = open.stamp.max(run.stamp);
                let next = open.next + bytes - size;
                (self.room((open.cluster, 2), open.next, stamp, geometry), next)
            }
            None => (self.room((run.start, 1), 0, run.stamp, geometry), bytes),
        };
        self.close_packing();
        if most > 0 {
            self.hold(run.start);
            let Run { start: cluster, stamp, .. } = run;
            self.packing.open = Some(Open { cluster, next, users: 1, stamp });
        }
        Some(room)
    }

    fn room(
        &mut self,
        (first, clusters): (HostCluster, u64),
        within: u64,
        stamp: Stamp,
        geometry: &Geometry,
    ) -> Room {
        let offset = HostOffset::new(geometry.host_offset(first).get().saturating_add(within));
        let room = Room { offset, first, clusters, stamp };
        room.clusters().for_each(|cluster| self.hold(cluster));
        room
    }

    fn hold(&mut self, cluster: HostCluster) {
        *self.packing.holds.entry(cluster).or_default() += 1;
    }

    /// Nothing more is put into the open cluster.
    pub(super) fn close_packing(&mut self) {
        if let Some(open) = self.packing.open.take() {
            self.leave(open.cluster);
        }
    }

    /// One hold on the cluster ends. With the last one goes the count that they had.
    pub(super) fn leave(&mut self, cluster: HostCluster) {
        if self.end_hold(cluster) {
            self.unlinks.lose(cluster);
        }
    }

    /// One hold on the cluster ends, and if it is the last one its count is the entry's now. Where counts cannot be
    /// larger than one there is no other.
    pub(super) fn pass_on(&mut self, cluster: HostCluster) {
        let last = self.end_hold(cluster);
        debug_assert!(last, "a cluster that cannot be shared has one holder");
    }

    fn end_hold(&mut self, cluster: HostCluster) -> bool {
        let holds = self.packing.holds.get_mut(&cluster).expect("every end has its hold");
        *holds -= 1;
        let last = *holds == 0;
        if last {
            self.packing.holds.remove(&cluster);
        }
        last
    }
}
