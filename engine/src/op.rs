//! One operation for the kernel, or for what stands in for it.

use std::sync::Arc;

use blkring_tracker::Guard;

use crate::device::Device;
use crate::faults::{Ops, Seen};
use crate::memory::IoMem;
use crate::sys::device::Change;
use crate::write_log::SyncId;

/// What an op does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Read,
    Write,
    /// A write that is durable when it completes (RWF_DSYNC).
    WriteDurable,
    /// fdatasync.
    Sync,
    /// fallocate.
    Allocate(Allocate),
    /// ftruncate to `offset`.
    Truncate,
    /// A discard of a block device, by a command of the ring.
    Discard,
    /// A change of a block device by a call of its own, which blocks.
    Call(Change),
}

/// The modes of fallocate(2) in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allocate {
    /// Plain: space is there, old bytes stay, the file may grow.
    Grow,
    /// Reads as zeros, space is there, the file may grow.
    ZeroRange,
    /// Reads as zeros, space given back, the size stays.
    PunchHole,
    /// The same call, where it does not matter what is read afterwards.
    Discard,
}

impl Allocate {
    pub(crate) fn mode(self) -> i32 {
        match self {
            Allocate::Grow => 0,
            Allocate::ZeroRange => libc::FALLOC_FL_ZERO_RANGE,
            Allocate::PunchHole | Allocate::Discard => {
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE
            }
        }
    }

    /// Whether the file grows when the range ends beyond it.
    pub(crate) fn extends(self) -> bool {
        !matches!(self, Allocate::PunchHole | Allocate::Discard)
    }
}

/// An operation with everything that must live until its completion: the memory, the file, and the tracker's grant.
pub(crate) struct Op {
    pub(crate) device: Arc<Device>,
    pub(crate) verb: Verb,
    pub(crate) offset: u64,
    /// Length in bytes; of `mem` where there is one.
    pub(crate) len: u64,
    pub(crate) mem: Option<IoMem>,
    /// Given back with the outcome, or released at completion if nobody waits any more.
    pub(crate) guard: Option<Guard>,
    /// Of an fdatasync that is on its way, where a log is kept.
    pub(crate) logged: Option<SyncId>,
    /// What its watch calls it, for tests.
    #[cfg(feature = "variants")]
    pub(crate) watched: u64,
}

impl Op {
    pub(crate) fn transfer(device: &Arc<Device>, verb: Verb, offset: u64, mem: IoMem) -> Self {
        let len = mem.len() as u64;
        Op { mem: Some(mem), ..Op::plain(device, verb, offset, len) }
    }

    pub(crate) fn plain(device: &Arc<Device>, verb: Verb, offset: u64, len: u64) -> Self {
        Op {
            device: device.clone(),
            verb,
            offset,
            len,
            mem: None,
            guard: None,
            logged: None,
            #[cfg(feature = "variants")]
            watched: 0,
        }
    }

    /// What rules of faults look at.
    pub(crate) fn seen(&self) -> Seen {
        let op = Ops::of(self.verb);
        Seen { op, offset: self.offset, len: self.len }
    }

    /// Has it move less: at least one block of its device, and whole blocks.
    pub(crate) fn shorten(&mut self, bytes: u64) {
        let Some(mem) = &self.mem else { return };
        let block = self.device.block();
        let bytes = (bytes & !(block - 1)).max(block);
        if bytes < self.len {
            self.len = bytes;
            let bytes = usize::try_from(bytes).expect("less than the memory has");
            self.mem = Some(mem.slice(0..bytes));
        }
    }

    /// Ties the grant to the op: if the future is dropped, the range is released at the completion, not before.
    pub(crate) fn under(mut self, guard: Guard) -> Self {
        self.guard = Some(guard);
        self
    }
}
