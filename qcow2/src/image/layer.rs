//! A layer: one qcow2 file of a chain. The topmost one may be written.

use std::io;
use std::sync::Arc;

use blkring_engine::faults::Event;
use blkring_engine::tracker::sync::{Mutex, MutexGuard};
use blkring_engine::{
    DiskSize, IoError, IoMem, Operation, Result, Service, SizeWatch, Storage, Variant, Variants,
};

use super::lease::Epoch;
use super::options::{AllocPolicy, Freed, ImageOptions};
use super::state::{SharedJob, State};
use crate::address::{GuestCluster, GuestOffset, HostCluster, HostOffset};
use crate::compressed::CompressedData;
use crate::compression::Compression;
use crate::entry::{Copied, EntryError, L2Entry, Mapping, without_claim};
use crate::geometry::Geometry;
use crate::header::Header;

/// One qcow2 file.
pub(crate) struct Layer {
    pub(crate) storage: Arc<Storage>,
    pub(crate) service: Arc<Service>,
    pub(crate) geometry: Geometry,
    pub(crate) header: Mutex<Header>,
    /// How its compressed clusters are compressed.
    pub(crate) compression: Compression,
    pub(crate) policy: AllocPolicy,
    /// Clusters reserved ahead at most.
    pub(crate) reserve: u64,
    /// Unlinked clusters held back at most.
    pub(crate) held_back: u64,
    /// What becomes of the space of freed clusters.
    pub(crate) freed: Freed,
    pub(crate) state: Mutex<State>,
    /// Bytes of the virtual disk. The size in the geometry is not looked at: it is that of the time of opening.
    size: Arc<DiskSize>,
    variants: Variants,
}

/// Where the bytes from a guest offset on are.
pub(crate) enum Lookup {
    /// The slice is not in the cache: wait for the job, keeping the pin, and look again.
    Load(SharedJob, Pin),
    /// In the file at this offset, for so many bytes.
    Data(HostOffset, u64, Lease),
    /// In the compressed cluster whose data is here, for so many bytes.
    Compressed(CompressedData, u64, Lease),
    /// Zeros for so many bytes.
    Zero(u64),
    /// Not in this layer for so many bytes.
    Unallocated(u64),
}

impl Layer {
    pub(crate) fn new(
        storage: Arc<Storage>,
        service: Arc<Service>,
        header: Header,
        state: State,
        options: &ImageOptions,
    ) -> Arc<Self> {
        let geometry = *header.geometry();
        Arc::new(Layer {
            storage,
            service,
            geometry,
            compression: header.compression(),
            header: Mutex::new(header),
            policy: options.policy,
            reserve: (options.reserve_bytes / geometry.cluster_size()).max(1),
            held_back: (options.held_back_bytes / geometry.cluster_size()).max(1),
            freed: options.freed,
            state: Mutex::new(state),
            size: DiskSize::new(geometry.virtual_size()),
            variants: options.broken(),
        })
    }

    /// Bytes of the virtual disk.
    pub(crate) fn virtual_size(&self) -> u64 {
        self.size.get()
    }

    /// Requests may reach so far now. The header says so durably.
    pub(crate) fn set_virtual_size(&self, size: u64) {
        self.size.set(size);
    }

    /// Hears of every size of the virtual disk from here on.
    pub(crate) fn watch_size(&self) -> io::Result<SizeWatch> {
        self.size.watch()
    }

    /// Whether anything may still be written: no fdatasync has failed, and the image does not contradict itself.
    pub(crate) fn check_failure(&self) -> Result<()> {
        self.lock().failure.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn error(&self, operation: Operation, offset: u64, errno: i32) -> IoError {
        self.storage.error(operation, offset, errno)
    }

    /// The error of a table entry that cannot be followed, at the guest cluster that it is for.
    pub(crate) fn entry_error(&self, cluster: GuestCluster, error: &EntryError) -> IoError {
        let offset = self.geometry.guest_offset(cluster).get();
        tracing::warn!(path = %self.storage.path(), offset, %error, "bad table entry");
        self.error(Operation::Map, offset, error.errno()).because(error.reason())
    }

    /// Where `len` bytes from `offset` (within the virtual size) are, as far as that is one extent.
    pub(crate) fn lookup(self: &Arc<Self>, offset: u64, len: u64) -> Result<Lookup> {
        let geometry = &self.geometry;
        let first = geometry.guest_cluster(GuestOffset::new(offset));
        let mut state = self.lock();
        let table = state.l1.table(geometry.l1_index(first), geometry);
        if table.map_err(|error| self.entry_error(first, &error))?.is_none() {
            let end = (offset / geometry.l1_entry_span() + 1) * geometry.l1_entry_span();
            return Ok(Lookup::Unallocated(len.min(end - offset)));
        }
        let number = geometry.slice_number(first);
        if state.slices.get(number).is_none() {
            let job = self.load(&mut state, number);
            let pin = Pin::new(self, &mut state, number);
            return Ok(Lookup::Load(job, pin));
        }
        let entry = self.entry(&mut state, first)?;
        let within = geometry.offset_in_cluster(GuestOffset::new(offset));
        let clusters = self.extent(&mut state, first, entry.mapping, within + len);
        let len = len.min(clusters * geometry.cluster_size() - within);
        Ok(match entry.mapping {
            Mapping::Unallocated => Lookup::Unallocated(len),
            Mapping::ZeroPlain | Mapping::ZeroAllocated(_) => Lookup::Zero(len),
            Mapping::Normal(host) => {
                let at = self.host_at(host, within);
                Lookup::Data(at, len, Lease::new(self, &mut state))
            }
            Mapping::Compressed(data) => {
                Lookup::Compressed(data, len, Lease::new(self, &mut state))
            }
        })
    }

    /// The byte `within` of a host cluster.
    pub(crate) fn host_at(&self, host: HostCluster, within: u64) -> HostOffset {
        let start = self.geometry.host_offset(host);
        start.checked_add(within).expect("decoded clusters lie below 2^56")
    }

    /// The entry for a guest cluster whose slice is cached.
    pub(crate) fn entry(&self, state: &mut State, cluster: GuestCluster) -> Result<L2Entry> {
        let number = self.geometry.slice_number(cluster);
        let slice = state.slices.get(number).expect("the caller has looked");
        let raw = slice.get(self.geometry.slice_index(cluster));
        L2Entry::decode(raw, &self.geometry).map_err(|error| self.entry_error(cluster, &error))
    }

    /// How many guest clusters from `first` on continue `mapping`, within one slice and `bytes` bytes.
    fn extent(&self, state: &mut State, first: GuestCluster, mapping: Mapping, bytes: u64) -> u64 {
        self.run_like(state, (first, bytes), |_, count, entry| match (mapping, entry.mapping) {
            (Mapping::Normal(host), Mapping::Normal(other)) => host.get() + count == other.get(),
            (Mapping::Unallocated, Mapping::Unallocated) => true,
            (
                Mapping::ZeroPlain | Mapping::ZeroAllocated(_),
                Mapping::ZeroPlain | Mapping::ZeroAllocated(_),
            ) => true,
            _ => false,
        })
    }

    /// How many guest clusters from the first on, which counts, within one slice and so many bytes from its begin, have
    /// an entry that `fits`; it is told which of them it looks at. The slice is cached.
    pub(crate) fn run_like(
        &self,
        state: &mut State,
        (first, bytes): (GuestCluster, u64),
        fits: impl Fn(&State, u64, L2Entry) -> bool,
    ) -> u64 {
        let geometry = &self.geometry;
        let in_slice = geometry.slice_entries() - geometry.slice_index(first) as u64;
        let wanted = geometry.clusters_for(bytes).min(in_slice);
        let mut count = 1;
        while count < wanted {
            let entry = self.entry(state, GuestCluster::new(first.get() + count));
            if !entry.is_ok_and(|entry| fits(state, count, entry)) {
                break;
            }
            count += 1;
        }
        count
    }

    /// The job that loads a slice, a running one or a new one.
    pub(crate) fn load(self: &Arc<Self>, state: &mut State, number: u64) -> SharedJob {
        let layer = self.clone();
        state
            .loads
            .entry(number)
            .or_insert_with(|| self.service.start(async move { layer.load_slice(number).await }))
            .clone()
    }

    async fn load_slice(self: Arc<Self>, number: u64) -> Result<()> {
        let result = self.read_slice(number).await;
        let mut state = self.lock();
        state.loads.remove(&number);
        let entries = result?;
        state.slices.insert(number, Arc::new(entries));
        Ok(())
    }

    async fn read_slice(self: &Arc<Self>, number: u64) -> Result<Vec<u64>> {
        let geometry = &self.geometry;
        let first = geometry.slice_start(number);
        // A cache full of changes lets a cut go first; that one needs nothing that this load holds. If it fails the
        // cache is over its budget, which is no reason for a read to fail.
        if self.lock().slices.wants_cut() {
            drop(self.cut_job().join().await);
        }
        // A shared table may be copied meanwhile; with the lease it is not used for anything else before this is done.
        let ((table, copied), _lease) = {
            let mut state = self.lock();
            let table = state.l1.table(geometry.l1_index(first), geometry);
            let table = table.map_err(|error| self.entry_error(first, &error))?;
            let table = table.expect("tables do not go away while an image is open");
            (table, Lease::new(self, &mut state))
        };
        let offset = geometry.slice_offset(table, geometry.slice_in_table(first));
        let len = usize::try_from(geometry.slice_bytes()).expect("a slice is small");
        let mem = IoMem::aligned_zeroed(len);
        self.storage.point(Event::L2Load).await;
        self.storage.read(self.service.lane(), offset.get(), &mem).await?;
        let bytes = mem.to_vec();
        let (entries, _) = bytes.as_chunks::<8>();
        let entries = entries.iter().map(|raw| u64::from_be_bytes(*raw));
        Ok(match copied {
            Copied::Yes => entries.collect(),
            Copied::No => entries.map(without_claim).collect(),
        })
    }

    /// Makes everything that has landed durable, and lets go what was due with it.
    pub(crate) async fn sync(&self) -> Result<()> {
        let mut begin = self.lock().clock.sync_begins();
        if self.breaks(Variant::SyncCleansAtBegin) {
            self.lock().synced(begin);
        }
        let result = self.storage.flush(self.service.lane()).await;
        let mut state = self.lock();
        if state.variants.has(Variant::SyncCleansLater) {
            begin = state.clock.sync_begins();
        }
        match result {
            Ok(()) => {
                state.synced(begin);
                state.recycle(self.reserve);
                Ok(())
            }
            Err(error) => {
                // What this sync should have covered may be lost: nothing may build on it.
                state.failure.get_or_insert(error.clone());
                Err(error)
            }
        }
    }

    /// Whether a rule is broken.
    pub(crate) fn breaks(&self, variant: Variant) -> bool {
        self.variants.has(variant)
    }
}

/// Keeps an L2 slice in the cache until it is dropped.
pub(crate) struct Pin {
    layer: Arc<Layer>,
    number: u64,
}

impl Pin {
    pub(crate) fn new(layer: &Arc<Layer>, state: &mut State, number: u64) -> Self {
        state.slices.pin(number);
        Pin { layer: layer.clone(), number }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.layer.lock().slices.unpin(self.number);
    }
}

/// Holds back every host cluster that is unlinked after it was taken, until it is dropped.
pub(crate) struct Lease {
    layer: Arc<Layer>,
    epoch: Epoch,
}

impl Lease {
    pub(crate) fn new(layer: &Arc<Layer>, state: &mut State) -> Self {
        Lease { layer: layer.clone(), epoch: state.leases.take() }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.layer.lock().leases.give_back(self.epoch);
    }
}
