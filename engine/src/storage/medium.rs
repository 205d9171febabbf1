//! What a storage lies in, where that makes a difference.

use std::fs::File;
use std::io;

use crate::sys::device;

/// A file of its own, or all of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Medium {
    /// It grows and is cut, takes ranges of any alignment, and has holes.
    File,
    /// Its size is its own business, and ranges are whole logical blocks.
    BlockDevice,
}

impl Medium {
    /// The size in bytes, as the kernel tells it.
    pub(super) fn size(self, file: &File) -> io::Result<u64> {
        match self {
            Medium::File => file.metadata().map(|metadata| metadata.len()),
            Medium::BlockDevice => device::size(file),
        }
    }
}
