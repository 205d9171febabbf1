//! A file of the simulated disk: its state, and the open file that storages issue ops to.

use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

use crate::lane::Lane;
use crate::op::Op;

use super::disk::Shared;
use super::history::{History, Landing};
use super::sectors::{SECTOR, Sectors};

/// Space is given out in blocks of this many bytes.
const BLOCK: u64 = 4096;

/// What a discarded byte of a block device reads as.
const DISCARDED: u8 = 0xd5;

/// The bytes of a range that was discarded.
pub(super) fn discarded(start: u64, end: u64) -> Vec<u8> {
    vec![DISCARDED; usize::try_from(end - start).expect("within the file")]
}

/// An open file. It goes out of use with the last [`SimDisk`](super::SimDisk) handle, as if unplugged: every op is
/// EIO from then on.
pub struct SimFile {
    pub(super) disk: Weak<Shared>,
    pub(super) index: usize,
    pub(super) alignment: u64,
    pub(super) memory_alignment: usize,
}

impl SimFile {
    pub(crate) fn accept(&self, lane: Lane, key: u64, op: Op) {
        match self.disk.upgrade() {
            Some(disk) => disk.accept(self, (lane, key), op),
            None => lane.complete(key, -libc::EIO, Some(op)),
        }
    }

    /// Whether the run of equal sectors at `offset` holds data, and where it ends. Zeros count as a hole.
    pub(crate) fn run(&self, offset: u64, limit: u64) -> (bool, u64) {
        match self.disk.upgrade() {
            Some(disk) => disk.with_file(self.index, |file| file.run(offset, limit)),
            None => (true, limit),
        }
    }
}

/// What the disk knows of a file.
#[derive(Clone)]
pub(super) struct FileState {
    pub(super) name: Arc<str>,
    pub(super) sectors: Sectors,
    pub(super) durable_size: u64,
    pub(super) sizes: History<u64>,
    /// Blocks that have space, as the running system sees it.
    allocated: Arc<BTreeSet<u64>>,
}

impl FileState {
    /// A file whose content is durable and has its space.
    pub(super) fn new(name: Arc<str>, bytes: &[u8]) -> Self {
        let size = bytes.len() as u64;
        FileState {
            name,
            sectors: Sectors::new(bytes),
            durable_size: size,
            sizes: History::default(),
            allocated: Arc::new((0..size.div_ceil(BLOCK)).collect()),
        }
    }

    /// What a crash left of `before`.
    pub(super) fn after_crash(before: &FileState, mut sectors: Sectors, size: u64) -> Self {
        sectors.cut(size);
        FileState {
            name: before.name.clone(),
            sectors,
            durable_size: size,
            sizes: History::default(),
            allocated: before.allocated.clone(),
        }
    }

    /// The size as the running system sees it.
    pub(super) fn size(&self) -> u64 {
        self.sizes.last().copied().unwrap_or(self.durable_size)
    }

    pub(super) fn blocks(&self) -> u64 {
        self.allocated.len() as u64
    }

    /// Blocks of [start, end) without space.
    pub(super) fn missing(&self, start: u64, end: u64) -> u64 {
        let all = end.div_ceil(BLOCK).saturating_sub(start / BLOCK);
        all - self.allocated.range(start / BLOCK..end.div_ceil(BLOCK).max(start / BLOCK)).count()
            as u64
    }

    pub(super) fn allocate(&mut self, start: u64, end: u64) {
        if self.missing(start, end) > 0 {
            Arc::make_mut(&mut self.allocated).extend(start / BLOCK..end.div_ceil(BLOCK));
        }
    }

    fn free(&mut self, start: u64, end: u64) {
        let range = start.div_ceil(BLOCK)..(end / BLOCK).max(start.div_ceil(BLOCK));
        if self.allocated.range(range.clone()).next().is_some() {
            Arc::make_mut(&mut self.allocated).retain(|block| !range.contains(block));
        }
    }

    pub(super) fn write(&mut self, landing: Landing, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        self.allocate(offset, end);
        let values = self.sectors.written(offset, bytes);
        self.sectors.land(landing, values);
        self.extend(landing, end);
    }

    /// Zeros in [start, end); the size stays.
    pub(super) fn zero(&mut self, landing: Landing, start: u64, end: u64) {
        let values = self.sectors.zeroed(start, end);
        self.sectors.land(landing, values);
    }

    pub(super) fn punch(&mut self, landing: Landing, start: u64, end: u64) {
        self.zero(landing, start, end);
        self.free(start, end);
    }

    /// What was discarded on a device reads as anything: as this, so that nobody takes it for zeros.
    pub(super) fn spoil(&mut self, landing: Landing, start: u64, end: u64) {
        self.write(landing, start, &discarded(start, end));
    }

    /// Makes the file at least `size` bytes long.
    pub(super) fn extend(&mut self, landing: Landing, size: u64) {
        if size > self.size() {
            self.sizes.push(landing, size);
        }
    }

    /// Makes the file `size` bytes long. What lies beyond is lost.
    pub(super) fn set_size(&mut self, landing: Landing, size: u64) {
        let old = self.size();
        if size < old {
            self.zero(landing, size, old);
            self.free(size, old.next_multiple_of(BLOCK));
        }
        if size != old {
            self.sizes.push(landing, size);
        }
    }

    /// A sync is over: what had landed up to `stamp` is durable.
    pub(super) fn settle(&mut self, stamp: u64) {
        self.sectors.settle(stamp);
        self.settle_size(stamp);
    }

    fn settle_size(&mut self, stamp: u64) {
        if let Some(size) = self.sizes.settle(stamp) {
            self.durable_size = size;
        }
    }

    /// A durable write of [start, end) that landed at `stamp` is over: its sectors survive, and whatever size they
    /// need to be read.
    pub(super) fn settle_write(&mut self, start: u64, end: u64, stamp: u64) {
        self.sectors.settle_range(start, end, stamp);
        let shorter = |size: u64| size < end;
        if shorter(self.durable_size) || self.sizes.versions().iter().any(|v| shorter(v.value)) {
            self.settle_size(stamp);
        }
    }

    /// A sync over everything up to `stamp` has failed.
    pub(super) fn lose(&mut self, stamp: u64) {
        self.sectors.lose(stamp);
        self.sizes.lose(stamp);
    }

    fn run(&self, offset: u64, limit: u64) -> (bool, u64) {
        let first = self.sectors.is_zero(offset / SECTOR);
        let mut end = (offset / SECTOR + 1) * SECTOR;
        while end < limit && self.sectors.is_zero(end / SECTOR) == first {
            end += SECTOR;
        }
        (!first, end.min(limit))
    }
}
