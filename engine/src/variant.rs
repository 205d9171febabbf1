//! Deliberately broken builds of single rules, so that a test can show that it would notice.
//!
//! Without the cargo feature `variants`, which no default enables, [`Variants`] is empty, every question about it is
//! answered with "no" at compile time, and no name of a variant is in the program.

/// The names of all variants, as tests print them.
#[cfg(feature = "variants")]
pub const NAMES: &[&str] = &[
    "growth-not-serialised",
    "zero-write-widens-to-own-range",
    "rmw-not-serialised",
    "payload-after-entry",
    "entry-before-refcount",
    "reuse-before-durable",
    "allocation-taken-for-zero",
    "fua-without-mapping",
    "flush-joins-frozen-cut",
    "pending-link-without-sync",
    "decrement-in-own-cut",
    "failed-cluster-stays-clean",
    "joiner-does-not-wait",
    "eviction-promotes",
    "flush-counts-at-submission",
    "slot-freed-before-landing",
    "zero-allocated-taken-for-clean",
    "unlink-marks-lost-on-error",
    "pool-without-lease-check",
    "discard-shared",
    "table-in-dirty-cluster",
    "frozen-slices-read-live",
    "pending-table-without-sync",
    "sync-cleans-later",
    "sync-cleans-at-begin",
    "dirty-marks-lost-on-error",
    "failed-decrement-recycled",
    "failed-cut-does-not-wait",
    "refill-without-slot",
    "link-taken-for-plain",
    "payload-before-zero-write",
    "failed-cluster-back-with-joiners",
    "decrement-at-unlink",
    "every-writer-links",
    "table-switched-before-sync",
    "old-table-freed-before-switch",
    "table-copy-without-sync",
    "shared-written-in-place",
    "compressed-cluster-freed-with-others",
    "compressed-entry-before-data",
    "compressed-entry-before-count",
    "compressed-link-taken-for-plain",
    "zero-part-not-looked-at-again",
    "block-freed-before-unnamed",
    "flush-skipped",
    "ladder-errno-ignored",
    "wakeup-lost",
    "dropped-receipt-releases-range",
];

/// A rule that can be broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Variant {
    /// Operations that change the file's size do not exclude others.
    GrowthNotSerialised,
    /// A zero-write past the end excludes its own range only, not all beyond.
    ZeroWriteWidensToOwnRange,
    /// A read-modify-write does not exclude its neighbours.
    RmwNotSerialised,
    /// A link over data that is not zero does not wait for a sync of its payload.
    PayloadAfterEntry,
    /// A cluster is used before its refcount is durable.
    EntryBeforeRefcount,
    /// A freed cluster is used again before its removal is durable.
    ReuseBeforeDurable,
    /// A plain allocation over old bytes counts as zeroing.
    AllocationTakenForZero,
    /// A durable write does not look at its mapping.
    FuaWithoutMapping,
    /// A flush joins a cut that was frozen before it came.
    FlushJoinsFrozenCut,
    /// A link into a pending cluster is written without the sync.
    PendingLinkWithoutSync,
    /// The decrement of an unlinked cluster goes into the cut that removes it.
    DecrementInOwnCut,
    /// The cluster of a failed write goes back as clean.
    FailedClusterStaysClean,
    /// A joiner of a careful cluster does not wait for the first writer.
    JoinerDoesNotWait,
    /// An eviction, which does not sync, makes its unlinks due.
    EvictionPromotes,
    /// A flush is skipped by counting writes when they are submitted.
    FlushCountsAtSubmission,
    /// The slot of a cut is free before its writes have landed.
    SlotFreedBeforeLanding,
    /// A cluster under a zero flag is taken for clean.
    ZeroAllocatedTakenForClean,
    /// A failed cut forgets what it unlinked.
    UnlinkMarksLostOnError,
    /// A cluster is used again while I/O is still in it.
    PoolWithoutLeaseCheck,
    /// A discard does not exclude other requests.
    DiscardShared,
    /// A new L2 table goes into a cluster of unknown contents.
    TableInDirtyCluster,
    /// A cut writes its slices as they are when it writes, not as they were when it was frozen.
    FrozenSlicesReadLive,
    /// An L1 entry for a pending table is written without the sync.
    PendingTableWithoutSync,
    /// A sync counts for what landed after it began.
    SyncCleansLater,
    /// A sync counts as soon as it begins.
    SyncCleansAtBegin,
    /// A failed cut counts its slices as written.
    DirtyMarksLostOnError,
    /// A cluster whose decrement failed is used again as if its count were untouched.
    FailedDecrementRecycled,
    /// A cut that fails ends while its other writes are in flight.
    FailedCutDoesNotWait,
    /// A refill writes counts while a cut does.
    RefillWithoutSlot,
    /// A cluster zeroed by its own allocation is linked as if it had never held bytes.
    LinkTakenForPlain,
    /// The zero-write of an allocation does not come before its payload.
    PayloadBeforeZeroWrite,
    /// The cluster of a failed write goes back although others still write into it.
    FailedClusterBackWithJoiners,
    /// The next write of a refcount block carries the decrements of what was unlinked.
    DecrementAtUnlink,
    /// A joiner links although another writer of its cluster has.
    EveryWriterLinks,
    /// The header names a new table before that table is durable.
    TableSwitchedBeforeSync,
    /// A table that was replaced is freed before its replacement is durable.
    OldTableFreedBeforeSwitch,
    /// The copy of a shared L2 table is named before it is durable.
    TableCopyWithoutSync,
    /// A cluster that others may refer to is written in place.
    SharedWrittenInPlace,
    /// A cluster that an entry with a count of its own gives up is used again although others refer to it.
    CompressedClusterFreedWithOthers,
    /// The entry for compressed data is in the table before the data is in the file.
    CompressedEntryBeforeData,
    /// The entry for compressed data is in the table before its host clusters are counted for it.
    CompressedEntryBeforeCount,
    /// The entry for compressed data is written without a sync of data and counts.
    CompressedLinkTakenForPlain,
    /// A cluster that was empty before a zero-write of a part of it was admitted is taken for empty still.
    ZeroPartNotLookedAtAgain,
    /// A refcount block that is given up loses its count before it is durable that the table does not name it.
    BlockFreedBeforeUnnamed,
    /// A flush is answered without an fdatasync.
    FlushSkipped,
    /// A zero-write is answered as done whatever the calls that zero have said.
    LadderErrnoIgnored,
    /// A task that another thread wakes while its queue sleeps does not end the sleep.
    WakeupLost,
    /// What is given up while the kernel works on it (a receipt, a future) gives its range back at once.
    DroppedReceiptReleasesRange,
}

/// Which rules are broken: none, unless the feature `variants` is on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Variants {
    #[cfg(feature = "variants")]
    set: u64,
}

impl Variants {
    /// One broken rule.
    #[cfg(feature = "variants")]
    pub fn only(variant: Variant) -> Self {
        Variants { set: 1 << variant as u64 }
    }

    /// The variant called `name`.
    #[cfg(feature = "variants")]
    pub fn named(name: &str) -> Option<Self> {
        let index = NAMES.iter().position(|known| *known == name)?;
        Some(Variants { set: 1 << index })
    }

    /// One more broken rule.
    #[cfg(feature = "variants")]
    #[must_use]
    pub fn and(self, variant: Variant) -> Self {
        Variants { set: self.set | Variants::only(variant).set }
    }

    /// Whether the rule is broken.
    #[cfg(feature = "variants")]
    pub fn has(self, variant: Variant) -> bool {
        self.set & 1 << variant as u64 != 0
    }

    /// Whether the rule is broken: never, without the feature `variants`.
    #[cfg(not(feature = "variants"))]
    #[inline(always)]
    pub const fn has(self, _variant: Variant) -> bool {
        false
    }
}
