//! The system call that stands for a ring entry.

use std::io;
use std::os::fd::{AsRawFd, RawFd};

use crate::device::Kind;
use crate::memory::Segment;
use crate::op::{Op, Verb};
use crate::sys::device::{self, Change};
use crate::uring::list_segments;

/// An op in numbers: what it points at is kept by its lane until its completion is reaped.
pub(super) struct Call {
    fd: RawFd,
    verb: Verb,
    offset: u64,
    len: u64,
    memory: Memory,
}

enum Memory {
    None,
    One(Segment),
    /// The address of an array of iovecs and their number.
    Many(usize, usize),
}

impl Call {
    /// The call for `op`, whose segments are written to `iovecs` if there are several.
    pub(super) fn new(op: &Op, iovecs: &mut Vec<libc::iovec>) -> Self {
        let Kind::File(file) = &op.device.kind else {
            unreachable!("only ops of files go to a pool")
        };
        let memory = match &op.mem {
            None => Memory::None,
            Some(mem) => {
                let mut segments = mem.segments();
                match (segments.next(), segments.next()) {
                    (Some(one), None) => Memory::One(one),
                    _ => {
                        let count = list_segments(mem, iovecs);
                        Memory::Many(iovecs.as_ptr().expose_provenance(), count)
                    }
                }
            }
        };
        let (verb, offset, len) = (op.verb, op.offset, op.len);
        Call { fd: file.as_raw_fd(), verb, offset, len, memory }
    }

    /// Makes the call. The result is the kernel's, as a ring would give it: a count, or a negative error number.
    pub(super) fn perform(&self) -> i32 {
        let result = match self.verb {
            Verb::Discard => {
                return device::change(self.fd, Change::Discard, self.offset, self.len);
            }
            Verb::Call(change) => return device::change(self.fd, change, self.offset, self.len),
            Verb::Read | Verb::Write | Verb::WriteDurable => self.transfer(),
            // SAFETY: fdatasync takes no pointers; the lane keeps the file open. Test: `the_pool_does_every_operation`.
            Verb::Sync => unsafe { libc::fdatasync(self.fd) as isize },
            // SAFETY: fallocate takes no pointers; the file is open as above. Test: as above.
            Verb::Allocate(mode) => unsafe {
                libc::fallocate(self.fd, mode.mode(), offset(self.offset), offset(self.len))
                    as isize
            },
            // SAFETY: ftruncate takes no pointers; the file is open as above. Test: as above.
            Verb::Truncate => unsafe { libc::ftruncate(self.fd, offset(self.offset)) as isize },
        };
        if result < 0 {
            return -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        }
        // The kernel moves less than 2 GiB in one call.
        i32::try_from(result).unwrap_or(i32::MAX)
    }

    fn transfer(&self) -> isize {
        let one;
        let (iovecs, count) = match self.memory {
            Memory::None => (std::ptr::null(), 0),
            Memory::One(Segment { address, len }) => {
                let iov_base = std::ptr::with_exposed_provenance_mut(address);
                one = libc::iovec { iov_base, iov_len: len };
                (&raw const one, 1)
            }
            Memory::Many(address, count) => (std::ptr::with_exposed_provenance(address), count),
        };
        let count = i32::try_from(count).expect("bounded by MAX_SEGMENTS");
        let at = offset(self.offset);
        let flags = if self.verb == Verb::WriteDurable { libc::RWF_DSYNC } else { 0 };
        // SAFETY: the memory, the iovec array and the file of an op live in its slab entry until its completion is
        // reaped (`Lane`), and its completion is put into the mailbox after this call. Test:
        // `a_dropped_read_on_the_pool_keeps_its_memory`.
        unsafe {
            match self.verb {
                Verb::Read => libc::preadv2(self.fd, iovecs, count, at, 0),
                _ => libc::pwritev2(self.fd, iovecs, count, at, flags),
            }
        }
    }
}

/// As the kernel takes it. What does not fit was refused before; if not, the kernel refuses it.
fn offset(bytes: u64) -> libc::off_t {
    libc::off_t::try_from(bytes).unwrap_or(-1)
}
