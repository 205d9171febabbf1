//! A disk in memory, for overhead measurements and tests: every op completes when it is sent.

use blkring_tracker::sync::Mutex;

use crate::memory::IoMem;
use crate::op::{Allocate, Op, Verb};

/// Bytes in memory that behave like a regular file: reads beyond the end are short, writes grow it.
pub(crate) struct MemoryDisk {
    bytes: Mutex<Vec<u8>>,
    /// The largest size; growth beyond it is ENOSPC.
    limit: usize,
}

impl MemoryDisk {
    pub(crate) fn new(bytes: Vec<u8>, limit: usize) -> Self {
        MemoryDisk { bytes: Mutex::new(bytes), limit }
    }

    /// A copy of the contents.
    pub(crate) fn contents(&self) -> Vec<u8> {
        self.bytes.lock().clone()
    }

    /// Does the op and answers as a kernel would.
    pub(crate) fn execute(&self, op: &Op) -> i32 {
        let Ok(offset) = usize::try_from(op.offset) else { return -libc::EFBIG };
        let Ok(len) = usize::try_from(op.len) else { return -libc::EFBIG };
        let Some(end) = offset.checked_add(len) else { return -libc::EFBIG };
        let mut bytes = self.bytes.lock();
        match (op.verb, &op.mem) {
            (Verb::Read, Some(mem)) => read(&bytes, offset, mem),
            (Verb::Write | Verb::WriteDurable, Some(mem)) => {
                if end > self.limit {
                    return -libc::ENOSPC;
                }
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                mem.copy_out(0, &mut bytes[offset..end]);
                i32::try_from(len).unwrap_or(i32::MAX)
            }
            (Verb::Read | Verb::Write | Verb::WriteDurable, None) => -libc::EFAULT,
            (Verb::Sync, _) => 0,
            // It is no block device.
            (Verb::Discard | Verb::Call(_), _) => -libc::EOPNOTSUPP,
            (Verb::Truncate, _) if offset > self.limit => -libc::ENOSPC,
            (Verb::Truncate, _) => {
                bytes.resize(offset, 0);
                0
            }
            (Verb::Allocate(mode), _) => {
                if mode.extends() && end > self.limit {
                    return -libc::ENOSPC;
                }
                let old = bytes.len();
                if mode.extends() && old < end {
                    bytes.resize(end, 0);
                }
                if mode != Allocate::Grow && offset < old {
                    bytes[offset..end.min(old)].fill(0);
                }
                0
            }
        }
    }
}

fn read(bytes: &[u8], offset: usize, mem: &IoMem) -> i32 {
    let there = bytes.len().saturating_sub(offset).min(mem.len());
    if there > 0 {
        mem.copy_in(0, &bytes[offset..offset + there]);
    }
    i32::try_from(there).unwrap_or(i32::MAX)
}
