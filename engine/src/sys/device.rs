//! What only block devices are asked: their facts, and two changes of a range.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// The group of requests that block devices answer (`<linux/fs.h>`).
const GROUP: u32 = 0x12;

/// `BLOCK_URING_CMD_DISCARD` of `<linux/blkdev.h>` (Linux 6.12): a discard by way of a ring.
pub(crate) const RING_DISCARD: u32 = libc::_IO(GROUP, 0) as u32;

/// What a block device is asked for a number.
#[derive(Clone, Copy)]
pub(crate) enum Fact {
    /// 1 if it may not be written (BLKROGET).
    ReadOnly,
    /// Bytes of a logical block (BLKSSZGET).
    LogicalBlock,
    /// Bytes of a physical block (BLKPBSZGET).
    PhysicalBlock,
    /// Bytes that a transfer should be a multiple of; 0 if there is no such number (BLKIOOPT).
    OptimalTransfer,
}

/// A number that a block device tells of itself.
pub(crate) fn fact(device: &File, fact: Fact) -> io::Result<u32> {
    let request = libc::_IO(
        GROUP,
        match fact {
            Fact::ReadOnly => 94,
            Fact::LogicalBlock => 104,
            Fact::PhysicalBlock => 123,
            Fact::OptimalTransfer => 121,
        },
    );
    let mut number = 0u32;
    // SAFETY: each of these requests writes one int, which is here. Test: `a_block_device_tells_its_geometry`.
    match unsafe { libc::ioctl(device.as_raw_fd(), request, &raw mut number) } {
        0 => Ok(number),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The size of a block device in bytes (BLKGETSIZE64).
pub(crate) fn size(device: &File) -> io::Result<u64> {
    let request = libc::_IOR::<libc::size_t>(GROUP, 114);
    let mut bytes = 0u64;
    // SAFETY: the request writes eight bytes on every architecture, and they are here. Test:
    // `a_block_device_tells_its_geometry`.
    match unsafe { libc::ioctl(device.as_raw_fd(), request, &raw mut bytes) } {
        0 => Ok(bytes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What can be done to a range of a block device by a call that may block for as long as the device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Gives the range back; it may read as anything (BLKDISCARD).
    Discard,
    /// Has it read as zeros, written out by the kernel if need be (BLKZEROOUT).
    ZeroOut,
}

/// Changes a range; 0 or a negative error number.
pub(crate) fn change(device: RawFd, change: Change, offset: u64, len: u64) -> i32 {
    let request = libc::_IO(
        GROUP,
        match change {
            Change::Discard => 119,
            Change::ZeroOut => 127,
        },
    );
    let range = [offset, len];
    // SAFETY: both requests read two numbers of eight bytes, which are here. Test:
    // `a_device_without_ring_commands_is_changed_by_calls`.
    match unsafe { libc::ioctl(device, request, range.as_ptr()) } {
        0 => 0,
        _ => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
    }
}
