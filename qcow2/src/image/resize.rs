//! A larger virtual disk.
//!
//! What is new reads as zeros, whatever the backing file has there: before the header says the new size, the bytes
//! behind the old end are zeros in this file wherever something lies below them, or was left there. So they are after
//! a power cut too. The order on the disk is: a larger L1 table, if it takes one, with the old size; the zeros; the
//! new size.

use std::sync::Arc;

use blkring_engine::faults::Event;
use blkring_engine::tracker::{Class, Span};
use blkring_engine::{Access, Context, Flags, IoMem, Operation, Result};

use super::Image;
use super::cut::Holder;
use super::decompress::Place;
use super::layer::{Layer, Lease, Lookup};
use super::preallocate::Preallocation;
use super::write::Grant;
use super::zero::{Wanted, ZERO_CHUNK};
use crate::address::{GuestOffset, HostCluster};
use crate::compressed::CompressedData;
use crate::geometry::{Geometry, Version};
use crate::header::L1Table;

/// Virtual disks are made of whole sectors.
const SECTOR_BYTES: u64 = 512;

impl Image {
    /// Makes the virtual disk `size` bytes long, durably. What is new reads as zeros. Requests go on meanwhile: those
    /// beyond the old end are refused until it is done. Run it on a queue that is attached to the image. It goes on if
    /// this future is dropped.
    ///
    /// # Errors
    /// EINVAL if `size` is no multiple of 512, ENOTSUP if it is smaller than the disk, EFBIG if the clusters are too
    /// small for it, and what the disk says; the size is then what it was.
    pub async fn resize(self: &Arc<Self>, size: u64) -> Result<()> {
        self.resize_with(size, Preallocation::Off).await
    }

    /// The same as [`Image::resize`], with space made ready for what is new.
    ///
    /// # Errors
    /// As [`Image::resize`].
    pub async fn resize_with(
        self: &Arc<Self>,
        size: u64,
        preallocation: Preallocation,
    ) -> Result<()> {
        let image = self.clone();
        let job = loop {
            let running = {
                // Under the lock, so that the job finds itself named when it takes the slot.
                let mut state = self.top.lock();
                match state.work.resizing.clone().filter(|job| job.result().is_none()) {
                    Some(running) => running,
                    None => {
                        let job = self.service.start(image.grow_to(size, preallocation));
                        state.work.resizing = Some(job.clone());
                        break job;
                    }
                }
            };
            // Whatever becomes of the other one.
            drop(running.join().await);
        };
        let result = job.join().await;
        if result.is_err() {
            self.top.marked().await;
        }
        result
    }

    async fn grow_to(self: Arc<Self>, size: u64, preallocation: Preallocation) -> Result<()> {
        let _parts = self.parts.begin(Span::new(0, 1), Class::Shared).await;
        let old = self.top.virtual_size();
        let guard = self.tracker.begin(Span::to_infinity(old.min(size)), Class::Serialising).await;
        // Another one may have been first.
        let old = self.top.virtual_size();
        let geometry = self.resized(old, size)?;
        if old == size {
            return Ok(());
        }
        self.top.extend_l1(&geometry).await?;
        let mut grant = Grant::Shared(Arc::new(guard));
        self.clear(old, size, &mut grant).await?;
        self.make_space((old, size), preallocation, &mut grant).await?;
        self.flush_metadata().await?;
        self.top.write_size(geometry).await
    }

    /// The geometry of the larger disk.
    fn resized(&self, old: u64, size: u64) -> Result<Geometry> {
        let error = |errno| self.top.error(Operation::Resize, size, errno);
        if self.top.storage.access() == Access::ReadOnly {
            return Err(error(libc::EPERM));
        }
        if self.closing.lock().is_some() {
            return Err(error(libc::ESHUTDOWN));
        }
        if !size.is_multiple_of(SECTOR_BYTES) {
            return Err(error(libc::EINVAL).because("the size is no multiple of 512 bytes"));
        }
        if size < old {
            return Err(error(libc::ENOTSUP).because("a virtual disk cannot be made smaller"));
        }
        let header = self.top.header.lock();
        if header.snapshots() > 0 && header.version() == Version::V2 {
            let reason = "in version 2 snapshots do not know their size";
            return Err(error(libc::ENOTSUP).because(reason));
        }
        header.geometry().resized(size).map_err(|wrong| {
            error(wrong.errno()).because("the clusters are too small for the size")
        })
    }

    /// Makes [old, size) read as zeros where it might not: over the backing file, and in what is mapped already.
    async fn clear(self: &Arc<Self>, old: u64, size: u64, grant: &mut Grant) -> Result<()> {
        let context = Context::of_service(self.service.lane());
        let below = self.backing_end().0.clamp(old, size);
        let cluster = self.top.geometry.cluster_size();
        // The cluster that the old end is in, and then whole ones.
        let head = old.next_multiple_of(cluster).min(below);
        self.write_zeros(&context, (old, head), grant).await?;
        if self.top.geometry.version() == Version::V2 {
            self.write_zeros(&context, (head, below), grant).await?;
        } else {
            let first = self.top.geometry.guest_cluster(GuestOffset::new(head));
            let count = (below - head).div_ceil(cluster);
            self.zero_granted(&context, first, count, Wanted::ZerosUnmapped).await?;
        }
        let (mut at, mut held) = (below, None);
        while at < size {
            match self.top.lookup(at, size - at)? {
                Lookup::Load(job, pin) => {
                    held = Some(pin);
                    job.join().await?;
                }
                Lookup::Data(_, len, lease) => {
                    drop((lease, held.take()));
                    self.write_zeros(&context, (at, at + len), grant).await?;
                    at += len;
                }
                Lookup::Compressed(data, len, lease) => {
                    drop(held.take());
                    // Mostly the last cluster was filled up with zeros, and stays as it is.
                    let zero = self.is_zero_from(&context, data, (at, len), &lease).await?;
                    drop(lease);
                    if !zero {
                        self.write_zeros(&context, (at, at + len), grant).await?;
                    }
                    at += len;
                }
                Lookup::Zero(len) | Lookup::Unallocated(len) => at += len,
            }
        }
        Ok(())
    }

    /// Whether `len` bytes from `at` on are zeros, in a cluster whose compressed data is here.
    async fn is_zero_from(
        &self,
        context: &Context,
        data: CompressedData,
        (at, len): (u64, u64),
        lease: &Lease,
    ) -> Result<bool> {
        let index = |bytes| usize::try_from(bytes).expect("at most a cluster");
        let within = index(at % self.top.geometry.cluster_size());
        let (place, mem) = (Place { level: 0, data }, IoMem::aligned_zeroed(index(len)));
        let part = (within, &mem);
        self.chain.read_compressed(&context.lane, &self.top, place, part, lease).await?;
        Ok(mem.to_vec().iter().all(|&byte| byte == 0))
    }

    /// Writes zeros under a grant that is held already.
    pub(super) async fn write_zeros(
        self: &Arc<Self>,
        context: &Context,
        (start, end): (u64, u64),
        grant: &mut Grant,
    ) -> Result<()> {
        let mut at = start;
        while at < end {
            let len = (end - at).min(ZERO_CHUNK);
            let zeros = self.chain.zeros.of(usize::try_from(len).expect("a chunk is small"));
            self.write_guest(context, at, &zeros, Flags::empty(), grant).await?;
            at += len;
        }
        Ok(())
    }
}

impl Layer {
    /// Gives the L1 table an entry for each part of the larger disk. Where the one on the disk is too short, the
    /// header names a longer one.
    async fn extend_l1(self: &Arc<Self>, geometry: &Geometry) -> Result<()> {
        let entries = geometry.l1_entries_for(geometry.virtual_size());
        if u64::from(self.header.lock().l1().entries) >= entries {
            return Ok(());
        }
        let old = loop {
            self.cut_job().join().await?;
            // An entry that is not on the disk goes there by a cut, when all that it names is there. So none may be in
            // the new table before.
            match self.take_slot(Holder::Resize, |_, state| state.l1.settled()).await {
                Some(old) => break old,
                None => self.give_slot_up(),
            }
        };
        let moved = self.move_l1(old, entries).await;
        self.give_slot_up();
        moved
    }

    /// Writes a longer L1 table and has the header name it. The slot is held.
    async fn move_l1(self: &Arc<Self>, mut raw: Vec<u64>, entries: u64) -> Result<()> {
        self.check_failure()?;
        self.storage.point(Event::L1GrowAllocTable).await;
        let entries = u32::try_from(entries).expect("an L1 table has at most 2^22 entries");
        let count = usize::try_from(entries).expect("an L1 table fits into memory");
        raw.resize(count, 0);
        let mut new = L1Table { offset: Default::default(), entries };
        let clusters = self.geometry.clusters_for(new.bytes());
        let start = self.claim_consecutive(clusters).await?;
        new.offset = self.geometry.host_offset(start);
        let per_cluster = usize::try_from(self.geometry.l2_entries()).expect("a cluster is small");
        for (cluster, entries) in (start.get()..).map(HostCluster::new).zip(raw.chunks(per_cluster))
        {
            let mut bytes: Vec<u8> = entries.iter().flat_map(|raw| raw.to_be_bytes()).collect();
            bytes.resize(per_cluster * 8, 0);
            self.storage.point(Event::L1GrowWriteTable).await;
            self.write_cluster(cluster, &bytes).await?;
        }
        self.sync_before_switch().await?;
        let old = self.header.lock().l1();
        self.storage.point(Event::L1GrowActivateTable).await;
        self.switch_table(|header| header.set_l1(new)).await?;
        let mut state = self.lock();
        state.l1.reach(count);
        self.free_table(&mut state, old.offset, self.geometry.clusters_for(old.bytes()));
        Ok(())
    }

    /// Has the header say the new size, durably, and then the requests.
    async fn write_size(self: &Arc<Self>, geometry: Geometry) -> Result<()> {
        self.take_slot(Holder::Resize, |_, _| ()).await;
        let (before, bytes) = {
            let mut header = self.header.lock();
            let before = *header.geometry();
            header.set_geometry(geometry);
            (before, header.fixed_bytes())
        };
        let mut written = self.check_failure();
        if written.is_ok() {
            written = self.write_header(&bytes).await;
        }
        match &written {
            Ok(()) => self.set_virtual_size(geometry.virtual_size()),
            // The disk may have either size; both are right, and the next header says the old one.
            Err(_) => self.header.lock().set_geometry(before),
        }
        self.give_slot_up();
        written
    }
}
