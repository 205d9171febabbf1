//! Storage: the bytes of one file, through a request tracker.
//!
//! A request is aligned (or bounced), admitted by the tracker, done by one or more ops that carry its grant, and
//! answered. Under a grant a request waits for its own ops and its own widening only, so a storage grant is a leaf
//! of every wait.

mod block;
mod extents;
mod flush;
mod holder;
mod ladder;
mod lock;
mod medium;
mod open;
mod size;
mod topology;
mod transfer;
mod zero;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use blkring_tracker::sync::atomic::{AtomicU64, Ordering};
use blkring_tracker::{Class, Guard, Span, Statistics, Tracker};

pub use extents::{Extent, ExtentKind};
pub use holder::Holder;
pub use lock::{
    Claim, Conflict, LockError, LockMode, LockedFile, Permissions, UnknownLockMode, identity,
};
pub(crate) use medium::Medium;
pub use open::{Access, Cache, Discarding, Flushing, OpenError, OpenOptions};
pub use topology::{RangeLimits, Topology};

use crate::buffers::BufferPool;
use crate::device::{Device, Kind, may_be_asked_again};
use crate::error::{IoError, Operation, Result};
use crate::faults::{Event, Faults};
use crate::lane::Lane;
use crate::memory_disk::MemoryDisk;
use crate::op::Op;
use crate::request::Flags;
use crate::variant::Variants;
use crate::write_log::WriteLog;

/// How often an interrupted op is issued again before its error number is believed.
const RETRIES: usize = 1000;

/// The block of what has no device below it, in bytes.
const PAGE: u64 = 4096;

/// One file, device or memory, shared by any number of queues.
pub struct Storage {
    device: Arc<Device>,
    /// As it was opened; the device has a name for messages.
    file_path: PathBuf,
    tracker: Arc<Tracker>,
    buffers: Arc<BufferPool>,
    /// The same for shared work, which must not wait for a buffer that a queue holds.
    shared_buffers: Arc<BufferPool>,
    /// Offsets and lengths of ops are multiples of this, in bytes.
    alignment: u64,
    /// Memory of ops starts and ends at multiples of this.
    memory_alignment: usize,
    access: Access,
    flushing: Flushing,
    discarding: Discarding,
    medium: Medium,
    topology: Topology,
    modes: ladder::Modes,
    /// The changes that the last successful fdatasync covered.
    synced: AtomicU64,
    syncs: flush::Syncs,
    variants: Variants,
}

impl Storage {
    pub(crate) fn over(
        device: Arc<Device>,
        alignment: u64,
        access: Access,
        buffers: Arc<BufferPool>,
    ) -> Self {
        let memory_alignment = usize::try_from(alignment).expect("alignments are small");
        Storage {
            file_path: PathBuf::from(&*device.path),
            device,
            tracker: Tracker::new(),
            shared_buffers: BufferPool::new(buffers.budget()),
            buffers,
            alignment,
            memory_alignment,
            access,
            flushing: Flushing::Done,
            discarding: Discarding::Done,
            medium: Medium::File,
            topology: Topology::of_file(alignment, memory_alignment, PAGE),
            modes: ladder::Modes::default(),
            synced: AtomicU64::new(0),
            syncs: flush::Syncs::default(),
            variants: Variants::default(),
        }
    }

    /// The same for the file at exactly this path.
    pub(crate) fn at(mut self, path: &Path) -> Self {
        path.clone_into(&mut self.file_path);
        self
    }

    /// The same with another alignment of memory, in bytes.
    pub(crate) fn with_memory_alignment(mut self, alignment: usize) -> Self {
        self.memory_alignment = alignment;
        self.topology.memory_alignment = topology::narrow(alignment as u64);
        self
    }

    /// The same on something else than a plain file.
    pub(crate) fn on(mut self, medium: Medium, topology: Topology) -> Self {
        self.medium = medium;
        self.topology = topology;
        self
    }

    /// The same with discards done or ignored.
    pub(crate) fn with_discarding(mut self, discarding: Discarding) -> Self {
        self.discarding = discarding;
        if discarding == Discarding::Ignored {
            self.topology.discard = None;
        }
        self
    }

    /// The same with flushes done or ignored.
    pub(crate) fn with_flushing(mut self, flushing: Flushing) -> Self {
        self.flushing = flushing;
        self
    }

    /// A storage in memory that starts as `bytes` and may grow to `limit` bytes. Every op completes when it is sent.
    pub fn in_memory(name: &str, bytes: Vec<u8>, limit: usize) -> Self {
        let size = bytes.len() as u64;
        let kind = Kind::Memory(MemoryDisk::new(bytes, limit));
        Storage::over(
            Device::new(name.into(), kind, size),
            1,
            Access::ReadWrite,
            BufferPool::new(1 << 20),
        )
    }

    /// The contents of a storage in memory; `None` for others.
    pub fn memory_contents(&self) -> Option<Vec<u8>> {
        match &self.device.kind {
            Kind::Memory(memory) => Some(memory.contents()),
            _ => None,
        }
    }

    /// The same with faults on purpose.
    ///
    /// # Panics
    /// If operations of this storage are under way: faults are there from the begin.
    #[must_use]
    pub fn with_faults(mut self, faults: &Arc<Faults>) -> Self {
        let device = Arc::get_mut(&mut self.device).expect("no operation is under way");
        device.set_faults(faults, self.alignment);
        self
    }

    /// The same with everything that changes it logged. All its I/O is in sectors of the log then.
    ///
    /// # Panics
    /// If operations of this storage are under way: a log begins with the first.
    #[must_use]
    pub fn with_write_log(mut self, log: &Arc<WriteLog>) -> Self {
        let device = Arc::get_mut(&mut self.device).expect("no operation is under way");
        device.set_log(log);
        self.alignment = self.alignment.max(log.sector());
        self
    }

    /// The faults that it was given.
    pub fn faults(&self) -> Option<&Arc<Faults>> {
        self.device.faults()
    }

    /// Somebody who uses this storage passes a point: a rule may stop it there. Without faults nothing happens.
    pub async fn point(&self, event: Event) {
        if let Some(faults) = self.device.faults() {
            faults.pass(event).await;
        }
    }

    /// The same storage with rules broken, for tests.
    #[cfg(feature = "variants")]
    #[must_use]
    pub fn with_variants(mut self, variants: Variants) -> Self {
        self.variants = variants;
        self
    }

    /// The same with a kernel below that changes ranges of a device by calls alone, for tests.
    #[cfg(feature = "variants")]
    #[must_use]
    pub fn without_ring_commands(mut self) -> Self {
        self.modes = ladder::Modes::calls_only();
        self
    }

    /// The same storage, watched, for tests.
    ///
    /// # Panics
    /// If an operation of it is under way: a watch is there from the begin.
    #[cfg(feature = "variants")]
    #[must_use]
    pub fn with_watch(mut self, watch: Arc<dyn crate::Watch>) -> Self {
        let device = Arc::get_mut(&mut self.device).expect("nothing was issued yet");
        device.watcher = crate::watch::Watcher::new(watch);
        self
    }

    /// The path it was opened by, byte for byte; of what is no file its name.
    pub fn file_path(&self) -> &Path {
        &self.file_path
    }

    /// The name it was opened by, for messages: what is not UTF-8 is replaced.
    pub fn path(&self) -> &Arc<str> {
        &self.device.path
    }

    /// The size in bytes, as far as completed operations tell.
    pub fn size(&self) -> u64 {
        self.device.size()
    }

    /// What offsets and lengths must be multiples of so that nothing is bounced, in bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Whether it may be written.
    pub fn access(&self) -> Access {
        self.access
    }

    /// The flags that requests may carry here. `NO_FALLBACK` zero-writes may still fail with ENOTSUP, once.
    pub fn supported_flags(&self) -> Flags {
        let mut flags = Flags::FUA | Flags::MAY_UNMAP;
        flags.set(Flags::NO_FALLBACK, self.may_zero_fast());
        flags
    }

    /// Its units and limits, as they were when it was opened.
    pub fn topology(&self) -> Topology {
        self.topology
    }

    /// Whether it is a block device: then it has a size that is not its user's to change.
    pub fn is_block_device(&self) -> bool {
        self.medium == Medium::BlockDevice
    }

    /// What the tracker has seen.
    pub fn statistics(&self) -> Statistics {
        self.tracker.statistics()
    }

    /// The buffers that unaligned requests are copied through.
    pub fn buffers(&self) -> &Arc<BufferPool> {
        &self.buffers
    }

    /// Something that is equal for two storages of the same file.
    pub fn identity(&self) -> (u64, u64) {
        self.device.identity()
    }

    /// Whether image locks are held on its file: until it is dropped and all that was issued for it has
    /// completed, or until [`unlock`](Self::unlock).
    pub fn is_locked(&self) -> bool {
        matches!(&self.device.kind, Kind::File(file) if file.is_locked())
    }

    /// Gives the image locks up before the storage is dropped: of an image that was closed, for one. What is done to
    /// the storage after this is not protected any more.
    pub fn unlock(&self) {
        if let Kind::File(file) = &self.device.kind {
            file.give_up();
        }
    }

    /// A grant over all of it. Once it is given nothing is under way that reads or changes the file, and what comes waits
    /// until it is dropped. It waits for what came before, each of which ends by its own operations.
    pub async fn hold(&self) -> Guard {
        self.tracker.begin(Span::to_infinity(0), Class::Serialising).await
    }

    /// Whether its ops need a ring of the kernel: true for files, false in memory and simulated.
    pub fn needs_ring(&self) -> bool {
        matches!(self.device.kind, Kind::File(_))
    }

    /// An error of this storage.
    pub fn error(&self, operation: Operation, offset: u64, errno: i32) -> IoError {
        IoError::new(&self.device.path, operation, offset, errno)
    }

    fn check_writable(&self, operation: Operation, offset: u64) -> Result<()> {
        match self.access {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(self.error(operation, offset, libc::EBADF)),
        }
    }

    /// The end of a range, or the error that a file of that size would give.
    fn check_range(&self, operation: Operation, offset: u64, len: u64) -> Result<u64> {
        let end = offset.checked_add(len).filter(|&end| i64::try_from(end).is_ok());
        end.ok_or_else(|| self.error(operation, offset, libc::EFBIG))
    }

    /// Issues an op under a grant until it was not merely interrupted, and gives the grant back.
    async fn issue(&self, lane: &Lane, guard: Guard, op: impl Fn() -> Op) -> (i32, Guard) {
        let mut guard = guard;
        let mut tries = 0;
        loop {
            let outcome = lane.issue(op().under(guard)).await;
            guard = outcome.guard.expect("an op gives back the grant that it carried");
            tries += 1;
            if !may_be_asked_again(outcome.result, lane.kind()) || tries == RETRIES {
                return (outcome.result, guard);
            }
        }
    }

    fn note_synced(&self, changes: u64) {
        self.synced.fetch_max(changes, Ordering::AcqRel);
    }
}
