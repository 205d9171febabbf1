//! What entries have given up, on its way to a pool or to a lower count.
//!
//! An entry that is replaced gives up its *reference*. When the replacement is durable and no I/O that may still know
//! the old address is left, a cluster that had no other reference is used again as it is, its count untouched. One
//! that others may refer to loses a count, and is free if none is left; only a refill finds it then, and counts it
//! anew.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::clock::Stamp;
use super::lease::Epoch;
use crate::address::HostCluster;
use crate::entry::{Copied, L2Entry, Mapping};
use crate::geometry::Geometry;

/// What an entry refers to, and gives up when it is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reference {
    /// A cluster that nothing else refers to.
    Only(HostCluster),
    /// So many clusters from the first one on, one count of each. Other entries may refer to them as well, or none.
    Counts { first: HostCluster, clusters: u64 },
}

impl Reference {
    /// The reference to `cluster` of an entry with this flag.
    pub(crate) fn to(cluster: HostCluster, copied: Copied) -> Self {
        match copied {
            Copied::Yes => Reference::Only(cluster),
            Copied::No => Reference::Counts { first: cluster, clusters: 1 },
        }
    }

    /// The reference of an entry of an L2 table, if it has one.
    pub(crate) fn of(entry: L2Entry, geometry: &Geometry) -> Option<Self> {
        match entry.mapping {
            Mapping::Unallocated | Mapping::ZeroPlain => None,
            Mapping::ZeroAllocated(cluster) | Mapping::Normal(cluster) => {
                Some(Self::to(cluster, entry.copied))
            }
            Mapping::Compressed(data) => {
                let (first, clusters) = data.clusters(geometry);
                Some(Reference::Counts { first, clusters })
            }
        }
    }

    /// The first cluster, and how many there are.
    pub(crate) fn range(self) -> (HostCluster, u64) {
        match self {
            Reference::Only(cluster) => (cluster, 1),
            Reference::Counts { first, clusters } => (first, clusters),
        }
    }

    /// The clusters.
    pub(crate) fn clusters(self) -> impl Iterator<Item = HostCluster> {
        let (first, clusters) = self.range();
        (first.get()..first.get() + clusters).map(HostCluster::new)
    }
}

/// A reference that no table in memory holds any more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unlinked {
    pub(crate) reference: Reference,
    /// I/O that may still be in its clusters.
    pub(crate) epoch: Epoch,
}

/// References on their way from a table to a pool, or to a lower count.
#[derive(Default)]
pub(crate) struct Unlinks {
    /// Not in a cut yet.
    pub(crate) fresh: Vec<Unlinked>,
    /// In a cut that has landed at that stamp: due when the stamp is durable.
    pub(crate) removed: VecDeque<(Stamp, Unlinked)>,
    /// Due and unleased: how many counts these clusters lose in the next cut. Where a cut has failed there may be none
    /// left to lose, but the count must be written again.
    losing: BTreeMap<HostCluster, u64>,
    /// Those of them that nothing else refers to, and whose bytes are there still: what they hold means nothing.
    hollow: BTreeSet<HostCluster>,
}

impl Unlinks {
    /// The cluster loses a count with the next cut. The removal is durable, and no I/O is left in it.
    pub(crate) fn lose(&mut self, cluster: HostCluster) {
        self.lose_many(cluster, 1);
    }

    /// The same for a cluster that loses its only count.
    pub(crate) fn lose_whole(&mut self, cluster: HostCluster) {
        self.hollow.insert(cluster);
        self.lose(cluster);
    }

    /// Takes the first run of clusters that lose their only count: where it begins, and how
    /// many they are. They stay among those that lose counts, so nobody takes them for free.
    pub(crate) fn take_hollow(&mut self) -> Option<(HostCluster, u64)> {
        let first = self.hollow.pop_first()?;
        let mut clusters = 1;
        while self.hollow.remove(&HostCluster::new(first.get() + clusters)) {
            clusters += 1;
        }
        Some((first, clusters))
    }

    /// The cluster loses so many counts with the next cut; with none its count is written again.
    pub(crate) fn lose_many(&mut self, cluster: HostCluster, counts: u64) {
        *self.losing.entry(cluster).or_default() += counts;
    }

    /// The clusters that the next cut would write counts of.
    pub(crate) fn losing(&self) -> impl Iterator<Item = HostCluster> {
        self.losing.keys().copied()
    }

    /// Whether a count of this cluster is on its way to the disk, so that nobody may take it for free.
    pub(crate) fn is_losing(&self, cluster: HostCluster) -> bool {
        self.losing.contains_key(&cluster)
    }

    /// Takes all that the next cut writes.
    pub(crate) fn take_losing(&mut self) -> BTreeMap<HostCluster, u64> {
        // From here on they may be free, and soon be used again.
        self.hollow.clear();
        std::mem::take(&mut self.losing)
    }

    /// References given up whose clusters are not in a pool yet and whose counts are not lower yet.
    pub(crate) fn len(&self) -> u64 {
        (self.fresh.len() + self.removed.len() + self.losing.len()) as u64
    }
}
