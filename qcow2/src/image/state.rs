//! What a layer knows, behind one lock (*layer*).
//!
//! The functions here are synchronous, short and without I/O. Between two lock holds anything may change; what must
//! not is held by a grant of the tracker, a pin, a lease or a claim.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use blkring_engine::{IoError, Job, Result, Variant, Variants};

use super::claim::ClaimId;
use super::clock::{Clock, Stamp};
use super::l1::L1;
use super::lease::Leases;
use super::packing::Packing;
use super::pool::{Content, Pool, Run};
use super::refcounts::Refcounts;
use super::slices::{Order, SliceCache};
use super::unlinks::{Reference, Unlinked, Unlinks};
use crate::address::{GuestCluster, HostCluster};

/// Shared work without a value.
pub(crate) type SharedJob = Arc<Job<Result<()>>>;

pub(crate) struct State {
    pub(crate) clock: Clock,
    pub(crate) leases: Leases,
    pub(crate) l1: L1,
    pub(crate) slices: SliceCache,
    /// Slices on their way in.
    pub(crate) loads: HashMap<u64, SharedJob>,
    /// L2 tables that are being copied, by L1 entry.
    pub(crate) copies: HashMap<usize, SharedJob>,
    /// Host clusters that hold the image's own structures. No guest byte is ever written there.
    pub(crate) metadata: HashSet<HostCluster>,
    pub(crate) refcounts: Refcounts,
    pub(crate) pools: Pools,
    pub(crate) in_flight: HashMap<GuestCluster, InFlight>,
    pub(crate) last_claim: ClaimId,
    pub(crate) unlinks: Unlinks,
    pub(crate) packing: Packing,
    /// How many counts more these clusters need, for compressed data.
    pub(crate) raises: BTreeMap<HostCluster, u64>,
    pub(crate) work: Work,
    /// Why nothing may be written any more.
    pub(crate) failure: Option<IoError>,
    pub(crate) variants: Variants,
}

/// Clusters that are counted and not linked.
#[derive(Default)]
pub(crate) struct Pools {
    /// For guest data: zero or, where the policy zeroes later, fresh.
    pub(crate) ready: Pool,
    /// For L2 tables where `ready` has no zero ones.
    pub(crate) tables: Pool,
    /// Of unknown contents.
    pub(crate) dirty: Pool,
    /// How many those that wait for a refill need at least.
    pub(crate) needed: u64,
    /// Whether somebody waits for a cluster for an L2 table, where tables have a pool of their own. Until a table is
    /// taken from there, the last cluster in it is for nothing else.
    pub(crate) table_needed: bool,
    /// How many the next refill asks for.
    pub(crate) next_refill: u64,
    /// How many the last one brought: half of that is the mark for the next.
    pub(crate) last_refill: u64,
    /// How many want the file to grow by holes, without space on its disk.
    pub(crate) by_holes: usize,
    /// Cuts asked for since the last refill.
    pub(crate) flushes: u64,
    /// When what the last refill made had landed.
    pub(crate) refilled: Stamp,
}

impl Pools {
    /// Whether somebody waits for a cluster for a table and there is none.
    pub(crate) fn lacks_table(&self) -> bool {
        self.table_needed && self.tables.len() == 0
    }

    /// Whether the clusters for tables are for somebody who waits.
    pub(crate) fn keeps_table(&self) -> bool {
        self.table_needed && self.tables.len() <= 1
    }
}

/// The shared work that is going on.
#[derive(Default)]
pub(crate) struct Work {
    /// Who may freeze and write metadata: a cut, from its freeze to its landing, or a refill.
    pub(crate) slot: Option<SharedJob>,
    /// The cut that has not frozen yet. Everything that must be in a cut joins it.
    pub(crate) next_cut: Option<SharedJob>,
    /// The flush that waits for that cut.
    pub(crate) next_flush: Option<SharedJob>,
    /// The flush whose cut was frozen last; only a broken variant looks at it.
    pub(crate) frozen_flush: Option<SharedJob>,
    pub(crate) refill: Option<SharedJob>,
    /// The raise of counts that has not begun.
    pub(crate) next_raise: Option<SharedJob>,
    /// An fdatasync that nobody asked for.
    pub(crate) background_sync: Option<SharedJob>,
    /// Marks the image as damaged.
    pub(crate) marking: Option<SharedJob>,
    /// Closes the image.
    pub(crate) closing: Option<SharedJob>,
    /// Makes the virtual disk larger.
    pub(crate) resizing: Option<SharedJob>,
    /// Holds the image still.
    pub(crate) quiescing: Option<SharedJob>,
}

/// A guest cluster that an allocating write is in.
pub(crate) struct InFlight {
    pub(crate) id: ClaimId,
    pub(crate) host: HostCluster,
    /// Of what prepared the cluster.
    pub(crate) stamp: Stamp,
    pub(crate) order: Order,
    pub(crate) owner: Owner,
    pub(crate) writers: usize,
    pub(crate) link: Link,
    pub(crate) stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    NotYet,
    Done,
}

/// Whose a claimed cluster is if nobody links it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The pool's: it goes back there.
    Pool,
    /// The entry's, which names it under a zero flag already.
    Entry,
}

/// What a second writer of a cluster in flight has to do.
#[derive(Clone)]
pub(crate) enum Stage {
    /// Join: write its own bytes at once.
    Open,
    /// Wait for the first writer, which writes the whole cluster, and map again.
    Careful(SharedJob),
    /// Wait for the zero-write, then join.
    Zeroing(SharedJob),
}

impl State {
    /// Moves what is due and unleased on: a cluster that had one reference to the pool, up to `keep` of them there;
    /// of any other, what it loses of its count.
    pub(crate) fn recycle(&mut self, keep: u64) {
        let early = self.variants.has(Variant::ReuseBeforeDurable);
        let leased = !self.variants.has(Variant::PoolWithoutLeaseCheck);
        if early {
            let fresh = std::mem::take(&mut self.unlinks.fresh);
            self.unlinks.removed.extend(fresh.into_iter().map(|one| (Stamp::default(), one)));
        }
        while let Some((stamp, one)) = self.unlinks.removed.front().copied() {
            let due = early || self.clock.is_durable(stamp);
            if !due || (leased && !self.leases.is_over(one.epoch)) {
                return;
            }
            self.unlinks.removed.pop_front();
            match one.reference {
                Reference::Only(cluster) if self.pools.dirty.len() < keep => {
                    self.put_dirty(cluster, Stamp::default());
                }
                Reference::Counts { .. }
                    if self.variants.has(Variant::CompressedClusterFreedWithOthers) =>
                {
                    one.reference.clusters().for_each(|one| self.put_dirty(one, Stamp::default()));
                }
                Reference::Only(cluster) => self.unlinks.lose_whole(cluster),
                reference => reference.clusters().for_each(|one| self.unlinks.lose(one)),
            }
        }
    }

    /// Puts a counted cluster of unknown contents into the pool.
    pub(crate) fn put_dirty(&mut self, cluster: HostCluster, stamp: Stamp) {
        self.pools.dirty.put(Run { start: cluster, len: 1, stamp, content: Content::Unknown });
    }

    /// No table in memory holds this reference any more.
    pub(crate) fn unlink(&mut self, reference: Reference) {
        let epoch = self.leases.unlink();
        self.unlinks.fresh.push(Unlinked { reference, epoch });
    }

    /// Notes that an fdatasync that began at `begin` has succeeded.
    pub(crate) fn synced(&mut self, begin: Stamp) {
        self.clock.synced(begin);
        self.slices.synced(&self.clock);
        self.l1.synced(&self.clock);
    }
}
