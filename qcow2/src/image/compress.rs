//! Writing compressed clusters.
//!
//! The data is appended to what was compressed before it; the counts of the host clusters that it touches go up; then
//! the entry may name it. The link is careful: the cut that carries it begins with an fdatasync, which covers data and
//! counts.
//!
//! A power cut leaves no count too low, and some too high: that of the open host cluster, and those of the host
//! clusters (two at most) of each write whose entry was not durable. A failed write leaves none: what it has raised
//! goes down with the next cut. The next opening for writing takes the counts off those host clusters that lie behind
//! everything in use; in others, which hold durable data as well, they stay until a check repairs them. Host clusters
//! are filled one after the other, so without cuts in between that is one host cluster: the one that was open when the
//! last cut froze.

use std::sync::Arc;

use blkring_engine::faults::Event;
use blkring_engine::tracker::{Class, Guard};
use blkring_engine::{Access, Flags, IoError, IoMem, Operation, Result, Variant};

use super::decompress::Place;
use super::layer::{Layer, Pin};
use super::packing::Room;
use super::slices::Order;
use super::state::SharedJob;
use super::{Chain, Image};
use crate::address::{GuestCluster, GuestOffset};
use crate::compressed::CompressedData;
use crate::compression::{CompressedCluster, Compression};
use crate::entry::{L2Entry, Mapping};

/// What a compressed write does next.
enum Step {
    /// Wait for a slice, keeping the pin, and look again.
    Load(SharedJob, Pin),
    /// Wait for clusters to be made ready, or for a table to be copied, and look again.
    Refill(SharedJob),
    /// The data may go there.
    Placed(Placement),
}

/// Compressed data on its way: it has its place, and holds the host clusters there. Dropped without
/// [`Placement::publish`] it counts as a failed write.
struct Placement {
    layer: Arc<Layer>,
    guest: GuestCluster,
    data: CompressedData,
    room: Room,
    linked: bool,
    /// The slice that will name the data stays.
    _slice: Pin,
}

impl Image {
    /// How the compressed clusters of the image are compressed.
    pub fn compression(&self) -> Compression {
        self.top.compression
    }

    /// Writes the guest cluster at `offset` in compressed form. Only clusters that have no data yet are written so:
    /// such as an image that is being filled has. (An incompressible cluster is written as it is, by a write.) Several
    /// of these may run at once, and beside any other request; each has its range to itself.
    ///
    /// The bytes are durable after the next flush. To be awaited on a queue that the image is attached to. The write
    /// goes on if this future is dropped once it has begun.
    ///
    /// # Errors
    /// EPERM on a read-only image; EINVAL if `offset` is not a multiple of the cluster size, lies beyond the disk, or
    /// the cluster was compressed for other images; EIO where the cluster has data; EFBIG where the file is too long
    /// for an entry to tell the place; ESHUTDOWN once the image is closed; of the file.
    pub async fn write_compressed(
        self: &Arc<Self>,
        offset: u64,
        cluster: CompressedCluster,
    ) -> Result<()> {
        self.check_compressed(offset, &cluster)?;
        let guard = self.admit(offset, self.info.cluster_size, Class::Serialising).await;
        // Closing may have begun meanwhile, and the disk may have become smaller.
        self.check_compressed(offset, &cluster)?;
        let chain = self.chain.clone();
        let guest = self.top.geometry.guest_cluster(GuestOffset::new(offset));
        let job = self.service.start(async move {
            let result = chain.write_compressed(guest, &cluster).await;
            let _ended: Guard = guard;
            result
        });
        let result = job.join().await;
        if result.is_err() {
            self.top.marked().await;
        }
        result
    }

    fn check_compressed(&self, offset: u64, cluster: &CompressedCluster) -> Result<()> {
        if self.closing.lock().is_some() {
            return Err(self.compressed_error(offset, libc::ESHUTDOWN));
        }
        let invalid = |reason| Err(self.compressed_error(offset, libc::EINVAL).because(reason));
        if self.top.storage.access() == Access::ReadOnly {
            return Err(self.compressed_error(offset, libc::EPERM));
        }
        if cluster.compression() != self.top.compression {
            return invalid("compressed in another way than the image says");
        }
        if cluster.cluster_size() as u64 != self.info.cluster_size {
            return invalid("compressed for clusters of another size");
        }
        if !offset.is_multiple_of(self.info.cluster_size) || offset >= self.top.virtual_size() {
            return invalid("no cluster begins there");
        }
        Ok(())
    }

    fn compressed_error(&self, offset: u64, errno: i32) -> IoError {
        self.top.error(Operation::Write, offset, errno)
    }
}

impl Chain {
    async fn write_compressed(
        &self,
        guest: GuestCluster,
        cluster: &CompressedCluster,
    ) -> Result<()> {
        let bytes = cluster.bytes();
        let mut held = None;
        let placed = loop {
            match self.top.place(guest, bytes.len() as u64)? {
                Step::Load(job, pin) => {
                    drop(held.replace(pin));
                    job.join().await?;
                }
                Step::Refill(job) => job.join().await?,
                Step::Placed(placed) => break placed,
            }
        };
        drop(held);
        let (data, room) = (placed.data, placed.room);
        let write = async {
            let (lane, mem) = (self.top.service.lane(), IoMem::aligned(bytes));
            self.top.storage.point(Event::WriteCompressed).await;
            self.top.storage.write(lane, data.offset().get(), &mem, Flags::empty()).await
        };
        let count = async {
            if self.top.can_share() {
                self.top.raise_job(room.clusters()).join().await?;
            }
            Ok(())
        };
        self.decompressed.forget(Place { level: 0, data });
        if self.top.breaks(Variant::CompressedEntryBeforeData) {
            count.await?;
            placed.publish();
            return write.await;
        }
        write.await?;
        if self.top.breaks(Variant::CompressedEntryBeforeCount) {
            placed.publish();
            return count.await;
        }
        count.await?;
        placed.publish();
        Ok(())
    }
}

impl Layer {
    /// Whether a count may be larger than one.
    fn can_share(&self) -> bool {
        self.geometry.refcounts().max() > 1
    }

    /// Finds a place for `bytes` bytes of compressed data of a guest cluster.
    fn place(self: &Arc<Self>, guest: GuestCluster, bytes: u64) -> Result<Step> {
        let geometry = &self.geometry;
        let offset = geometry.guest_offset(guest).get();
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        if let Some(job) = self.own_table(&mut state, guest)? {
            return Ok(Step::Refill(job));
        }
        let number = geometry.slice_number(guest);
        if state.slices.get(number).is_none() {
            let table = state.l1.table(geometry.l1_index(guest), geometry);
            if table.map_err(|error| self.entry_error(guest, &error))?.is_some() {
                let job = self.load(&mut state, number);
                return Ok(Step::Load(job, Pin::new(self, &mut state, number)));
            }
            if let Some(job) = self.new_table(&mut state, guest, 1) {
                return Ok(Step::Refill(job));
            }
        }
        match self.entry(&mut state, guest)?.mapping {
            Mapping::Unallocated | Mapping::ZeroPlain => (),
            _ => {
                let error = self.error(Operation::Write, offset, libc::EIO);
                return Err(error.because("a compressed write over a cluster that has data"));
            }
        }
        let Some(room) = state.make_room(bytes, geometry) else {
            return Ok(Step::Refill(self.refill_job(&mut state, 1)));
        };
        if self.is_low(&state) {
            // Whoever needs the clusters learns of a failure by a refill of its own.
            self.refill_job(&mut state, 1);
        }
        let checked = self.check_range(&mut state, room.first, room.clusters);
        let data = CompressedData::new(room.offset, bytes, geometry)
            .ok_or_else(|| self.error(Operation::Allocate, room.offset.get(), libc::EFBIG));
        match checked.and(data) {
            Ok(data) => {
                let slice = Pin::new(self, &mut state, number);
                let layer = self.clone();
                Ok(Step::Placed(Placement {
                    layer,
                    guest,
                    data,
                    room,
                    linked: false,
                    _slice: slice,
                }))
            }
            Err(error) => {
                room.clusters().for_each(|cluster| state.leave(cluster));
                Err(error)
            }
        }
    }
}

impl Placement {
    /// Data and counts have landed: the entry names the data.
    fn publish(mut self) {
        self.linked = true;
        let (layer, geometry) = (&self.layer, &self.layer.geometry);
        let mut state = layer.lock();
        let raw = L2Entry::compressed(self.data).encode(geometry);
        let (number, index) = (geometry.slice_number(self.guest), geometry.slice_index(self.guest));
        let plain = layer.breaks(Variant::CompressedLinkTakenForPlain);
        let order = if plain { Order::Plain } else { Order::Careful };
        state.slices.set(number, index, raw, order, self.room.stamp);
        for cluster in self.room.clusters() {
            if layer.can_share() {
                state.leave(cluster);
            } else {
                state.pass_on(cluster);
            }
        }
    }
}

impl Drop for Placement {
    fn drop(&mut self) {
        if !self.linked {
            let mut state = self.layer.lock();
            self.room.clusters().for_each(|cluster| state.leave(cluster));
        }
    }
}
