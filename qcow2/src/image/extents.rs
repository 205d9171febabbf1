//! Where the guest's bytes are: runs of one kind, found in the tables of the chain and in no data.
//!
//! The answer is a snapshot. Nothing is held for it: once it is given, writes, discards and cuts may change what it
//! tells.

use std::sync::Arc;

use blkring_engine::{ExtentKind, IoError, Operation, Result, Storage};

use super::layer::{Layer, Pin};
use super::state::{SharedJob, State};
use super::{Image, Member};
use crate::address::GuestOffset;
use crate::entry::{L2Entry, Mapping};

/// Raw files count in whole sectors of so many bytes.
const SECTOR: u64 = 512;

/// A run of guest bytes of one kind.
#[derive(Clone)]
pub struct GuestExtent {
    /// First byte, in the guest's disk.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Which file of the chain says so: 0 is the topmost. Of [`GuestBytes::Absent`], the deepest that reaches so far.
    pub depth: usize,
    /// Where the bytes are.
    pub bytes: GuestBytes,
    /// The file at `depth`.
    pub storage: Arc<Storage>,
}

/// Where the bytes of a run are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuestBytes {
    /// In the file, from this offset on.
    Data(u64),
    /// In the file, in compressed form.
    Compressed,
    /// Zeros that need no reading. With a place in the file, from the offset on, where there is one: a hole of a raw
    /// file, or a cluster that is kept for later writes.
    Zero(Option<u64>),
    /// In this file they are nowhere; if nothing lies below, they read as zeros.
    Absent,
}

/// What a layer knows of the bytes from an offset on.
enum Found {
    /// The slice is not in the cache: wait for the job, keeping the pin, and look again.
    Load(SharedJob, Pin),
    /// This, for so many bytes.
    Run(GuestBytes, u64),
}

impl Image {
    /// How many files the chain has, with the topmost.
    pub fn depth(&self) -> usize {
        1 + self.chain.backing.len()
    }

    /// The run that begins at `offset` and ends at `limit` at the latest, as the guest sees it: [`GuestBytes::Absent`]
    /// means that no file of the chain has these bytes. The run may end although the next is of the same kind. To be awaited on a queue that the image is
    /// attached to: tables are loaded by shared work.
    ///
    /// # Errors
    /// EINVAL unless `offset` < `limit` and `limit` is within the virtual size; ESHUTDOWN once the image is closed;
    /// of the files, and of tables that cannot be followed.
    pub async fn extent(&self, offset: u64, limit: u64) -> Result<GuestExtent> {
        self.extent_above(self.depth(), offset, limit).await
    }

    /// The same as the topmost `depth` files of the chain see it: [`GuestBytes::Absent`] means that none of them has
    /// these bytes, so that the file below them decides.
    ///
    /// # Errors
    /// As [`Image::extent`].
    pub async fn extent_above(&self, depth: usize, offset: u64, limit: u64) -> Result<GuestExtent> {
        self.check_not_closing(offset)?;
        self.extent_of_chain(depth, offset, limit).await
    }

    /// The same for a request of the image itself, which is finished even if the image is being closed.
    pub(super) async fn extent_of_chain(
        &self,
        depth: usize,
        offset: u64,
        limit: u64,
    ) -> Result<GuestExtent> {
        let (mut level, mut limit) = (0, limit);
        loop {
            let mut found = self.extent_of(level, offset, limit).await?;
            let next = self.chain.backing.get(level).filter(|_| level + 1 < depth);
            let Some(next) = next.filter(|_| found.is_absent()) else { return Ok(found) };
            // Beyond the end of what lies below everything is zero, and nothing further down is seen.
            let end = next.guest_size();
            if offset >= end {
                if depth < self.depth() {
                    found.bytes = GuestBytes::Zero(None);
                }
                return Ok(found);
            }
            limit = (found.offset + found.len).min(end);
            level += 1;
        }
    }

    /// The same as one file of the chain sees it, `depth` files below the topmost: [`GuestBytes::Absent`] means that
    /// it does not have these bytes.
    ///
    /// # Errors
    /// As [`Image::extent`]; EINVAL too if there is no such file or it ends before `offset`.
    pub async fn extent_in(&self, depth: usize, offset: u64, limit: u64) -> Result<GuestExtent> {
        self.check_not_closing(offset)?;
        self.extent_of(depth, offset, limit).await
    }

    fn map_error(&self, offset: u64, errno: i32) -> IoError {
        IoError::new(self.top.storage.path(), Operation::Map, offset, errno)
    }

    fn check_not_closing(&self, offset: u64) -> Result<()> {
        match *self.closing.lock() {
            Some(_) => Err(self.map_error(offset, libc::ESHUTDOWN)),
            None => Ok(()),
        }
    }

    /// The same for a request of the image itself, which is finished even if the image is being closed.
    pub(super) async fn extent_of(
        &self,
        depth: usize,
        offset: u64,
        limit: u64,
    ) -> Result<GuestExtent> {
        let limit = limit.min(self.size_at(depth).unwrap_or(0));
        if offset >= limit {
            return Err(self.map_error(offset, libc::EINVAL));
        }
        let run = |storage: &Arc<Storage>, bytes, len| GuestExtent {
            offset,
            len,
            depth,
            bytes,
            storage: storage.clone(),
        };
        let layer = match depth.checked_sub(1).and_then(|below| self.chain.backing.get(below)) {
            None => &self.top,
            Some(Member::Qcow2(layer)) => layer,
            Some(Member::Raw(storage)) => {
                // The last sector may end beyond the end of the file.
                let extent = storage.extent(offset, limit)?;
                let bytes = match extent.kind {
                    ExtentKind::Data => GuestBytes::Data(offset),
                    ExtentKind::Zero => GuestBytes::Zero(Some(offset)),
                };
                return Ok(run(storage, bytes, extent.len));
            }
        };
        let mut held = None;
        loop {
            match layer.whereabouts(offset, limit - offset)? {
                Found::Load(job, pin) => {
                    held = Some(pin);
                    job.join().await?;
                }
                Found::Run(bytes, len) => {
                    drop(held);
                    return Ok(run(&layer.storage, bytes, len));
                }
            }
        }
    }

    /// A file of the chain, `depth` files below the topmost.
    pub fn storage_at(&self, depth: usize) -> Option<&Arc<Storage>> {
        let Some(below) = depth.checked_sub(1) else { return Some(&self.top.storage) };
        self.chain.backing.get(below).map(|member| match member {
            Member::Qcow2(layer) => &layer.storage,
            Member::Raw(storage) => storage,
        })
    }

    /// Bytes of a cluster in a file of the chain; `None` for a raw one, and if there is no such file.
    pub fn cluster_size_at(&self, depth: usize) -> Option<u64> {
        let Some(below) = depth.checked_sub(1) else { return Some(self.info.cluster_size) };
        self.chain.backing.get(below).and_then(|member| match member {
            Member::Qcow2(layer) => Some(layer.geometry.cluster_size()),
            Member::Raw(_) => None,
        })
    }

    /// Bytes of the disk that a file of the chain holds; `None` if there is no such file.
    pub fn size_at(&self, depth: usize) -> Option<u64> {
        match depth.checked_sub(1) {
            None => Some(self.top.virtual_size()),
            Some(below) => self.chain.backing.get(below).map(Member::guest_size),
        }
    }
}

impl GuestExtent {
    /// Whether the file at its depth does not have these bytes.
    pub fn is_absent(&self) -> bool {
        self.bytes == GuestBytes::Absent
    }
}

impl Member {
    fn guest_size(&self) -> u64 {
        match self {
            Member::Qcow2(_) => self.size(),
            Member::Raw(_) => self.size().next_multiple_of(SECTOR),
        }
    }
}

impl Layer {
    /// What the tables say of `len` bytes from `offset` on (within the virtual size), as far as that is one run.
    fn whereabouts(self: &Arc<Self>, offset: u64, len: u64) -> Result<Found> {
        let geometry = &self.geometry;
        let first = geometry.guest_cluster(GuestOffset::new(offset));
        let mut state = self.lock();
        let table = state.l1.table(geometry.l1_index(first), geometry);
        if table.map_err(|error| self.entry_error(first, &error))?.is_none() {
            let end = (offset / geometry.l1_entry_span() + 1) * geometry.l1_entry_span();
            return Ok(Found::Run(GuestBytes::Absent, len.min(end - offset)));
        }
        let number = geometry.slice_number(first);
        if state.slices.get(number).is_none() {
            let job = self.load(&mut state, number);
            return Ok(Found::Load(job, Pin::new(self, &mut state, number)));
        }
        let entry = self.entry(&mut state, first)?;
        let within = geometry.offset_in_cluster(GuestOffset::new(offset));
        let like = |_: &State, count, other| goes_on(entry, count, other);
        let clusters = self.run_like(&mut state, (first, within + len), like);
        let place = |host| self.host_at(host, within).get();
        let bytes = match entry.mapping {
            Mapping::Unallocated => GuestBytes::Absent,
            Mapping::ZeroPlain => GuestBytes::Zero(None),
            Mapping::ZeroAllocated(host) => GuestBytes::Zero(Some(place(host))),
            Mapping::Normal(host) => GuestBytes::Data(place(host)),
            Mapping::Compressed(_) => GuestBytes::Compressed,
        };
        Ok(Found::Run(bytes, len.min(clusters * geometry.cluster_size() - within)))
    }
}

/// Whether `other` goes on, so many clusters later, as `entry` is mapped.
fn goes_on(entry: L2Entry, count: u64, other: L2Entry) -> bool {
    let alike = std::mem::discriminant(&entry.mapping) == std::mem::discriminant(&other.mapping);
    alike
        && match (entry.mapping.host_cluster(), other.mapping.host_cluster()) {
            (Some(here), Some(there)) => here.get() + count == there.get(),
            (here, there) => here.is_none() && there.is_none(),
        }
}
