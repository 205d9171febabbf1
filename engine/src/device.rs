//! What ops act on: a file of the kernel, bytes in memory, or a file of the simulated disk.

use std::sync::Arc;

use blkring_tracker::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use crate::faults::Faults;
use crate::lane::LaneKind;
use crate::memory_disk::MemoryDisk;
use crate::op::{Op, Verb};
#[cfg(feature = "sim")]
use crate::sim::SimFile;
use crate::storage::LockedFile;
#[cfg(feature = "variants")]
use crate::watch::Watcher;
use crate::write_log::WriteLog;

/// One open file below a storage, with the facts that hold for everybody who uses it.
pub struct Device {
    pub(crate) path: Arc<str>,
    pub(crate) kind: Kind,
    /// The size in bytes as far as completed operations tell.
    size: AtomicU64,
    /// Operations that changed anything and have *completed*: what a flush must cover. Counted at completion, since
    /// an fdatasync covers only what had completed when it began.
    changes: AtomicU64,
    /// The error number of a failed fdatasync or durable write: what it should have made durable may be lost, and no later one that
    /// succeeds would say so.
    failed_sync: AtomicI32,
    /// What is done to ops beside them, if anything is.
    hooks: Option<Box<Hooks>>,
    #[cfg(feature = "variants")]
    pub(crate) watcher: Watcher,
}

/// What few devices have.
#[derive(Default)]
struct Hooks {
    faults: Option<Arc<Faults>>,
    log: Option<Arc<WriteLog>>,
    /// What offsets and lengths of ops are multiples of, in bytes.
    block: u64,
}

pub(crate) enum Kind {
    File(LockedFile),
    Memory(MemoryDisk),
    #[cfg(feature = "sim")]
    Sim(Arc<SimFile>),
}

impl Device {
    pub(crate) fn new(path: Arc<str>, kind: Kind, size: u64) -> Arc<Self> {
        Arc::new(Device {
            path,
            kind,
            size: AtomicU64::new(size),
            changes: AtomicU64::new(1),
            failed_sync: AtomicI32::new(0),
            hooks: None,
            #[cfg(feature = "variants")]
            watcher: Watcher::default(),
        })
    }

    /// Has these faults befall its ops, which are multiples of `block` bytes.
    pub(crate) fn set_faults(&mut self, faults: &Arc<Faults>, block: u64) {
        let hooks = self.hooks.get_or_insert_default();
        hooks.faults = Some(faults.clone());
        hooks.block = hooks.block.max(block);
    }

    /// Has its changes logged.
    pub(crate) fn set_log(&mut self, log: &Arc<WriteLog>) {
        let hooks = self.hooks.get_or_insert_default();
        hooks.log = Some(log.clone());
        hooks.block = hooks.block.max(log.sector());
    }

    /// Whether ops are looked at before they are sent.
    pub(crate) fn has_hooks(&self) -> bool {
        self.hooks.is_some()
    }

    pub(crate) fn log(&self) -> Option<&Arc<WriteLog>> {
        self.hooks.as_ref()?.log.as_ref()
    }

    pub(crate) fn faults(&self) -> Option<&Arc<Faults>> {
        self.hooks.as_ref()?.faults.as_ref()
    }

    /// What ops are multiples of, as far as faults need to know.
    pub(crate) fn block(&self) -> u64 {
        self.hooks.as_ref().map_or(1, |hooks| hooks.block.max(1))
    }

    /// The size in bytes, growing while extending writes complete.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Takes another size for the true one: somebody else has changed it.
    pub(crate) fn learn_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// How many changes have completed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// What has failed may have made the file longer all the same: ext4 keeps the part of an allocation for which there was
    /// room.
    fn note_growth_all_the_same(&self) {
        if let Kind::File(file) = &self.kind
            && let Ok(metadata) = file.metadata()
        {
            self.size.fetch_max(metadata.len(), Ordering::AcqRel);
        }
    }

    /// Device and inode of a file, the number of a block device, an address for what is in memory or simulated.
    pub(crate) fn identity(&self) -> (u64, u64) {
        match &self.kind {
            Kind::File(file) => file.identity(),
            Kind::Memory(memory) => (u64::MAX, std::ptr::from_ref(memory).addr() as u64),
            #[cfg(feature = "sim")]
            Kind::Sim(file) => (u64::MAX, Arc::as_ptr(file).addr() as u64),
        }
    }

    /// The error number of a failed fdatasync or durable write, 0 if none has failed.
    pub(crate) fn failed_sync(&self) -> i32 {
        self.failed_sync.load(Ordering::Acquire)
    }

    /// Takes note of a completed op, before anybody is told of it, whoever still waits for it.
    pub(crate) fn note(&self, op: &Op, result: i32) {
        if let Some(log) = self.log() {
            log.note(op, result, self.size());
        }
        #[cfg(feature = "variants")]
        self.watcher.ends(op, result);
        match op.verb {
            Verb::Read => return,
            Verb::Sync => {
                if result < 0 && !did_not_run(result) {
                    self.failed_sync.store(-result, Ordering::Release);
                }
                return;
            }
            // A failed write may have changed anything. A durable one reports, and uses up, errors of writing back
            // what others wrote before: the next fdatasync would not hear of them again.
            Verb::Write | Verb::WriteDurable => {
                if op.verb == Verb::WriteDurable && result < 0 && !did_not_run(result) {
                    self.failed_sync.store(-result, Ordering::Release);
                }
                if result > 0 {
                    self.size
                        .fetch_max(op.offset + u64::from(result.unsigned_abs()), Ordering::AcqRel);
                } else {
                    self.note_growth_all_the_same();
                }
            }
            Verb::Allocate(mode) => {
                if mode.extends() && result >= 0 {
                    self.size.fetch_max(op.offset + op.len, Ordering::AcqRel);
                } else if mode.extends() {
                    self.note_growth_all_the_same();
                }
            }
            Verb::Truncate => {
                if result >= 0 {
                    self.size.store(op.offset, Ordering::Release);
                }
            }
            // Of block devices, whose size is their own business.
            Verb::Discard | Verb::Call(_) => (),
        }
        self.changes.fetch_add(1, Ordering::AcqRel);
    }
}

/// Whether an op did not run at all: interrupted, out of resources for the moment, given up because the thread that had
/// submitted it ended, or without its memory. Of a thread that has ended the kernel says ECANCELED of what had not begun
/// then, and EFAULT of what it would have begun again in the thread's name.
pub(crate) fn did_not_run(result: i32) -> bool {
    matches!(-result, libc::EINTR | libc::EAGAIN | libc::ECANCELED | libc::EFAULT)
}

/// Whether an op of such a lane did not run and may be issued again. EFAULT says two things, and the lane tells which.
/// The ring of a queue is reaped by the thread that submits to it, which therefore has not ended: the memory of the
/// request is bad, and stays so. Shared work has no memory but its own, which is good, and is submitted by whichever
/// thread is about: that one has ended.
pub(crate) fn may_be_asked_again(result: i32, kind: LaneKind) -> bool {
    did_not_run(result) && (-result != libc::EFAULT || kind == LaneKind::Service)
}
