//! Which ranges of a storage hold data.

use super::{Medium, Storage};
use crate::device::Kind;
use crate::error::{Operation, Result};
use crate::sys::{self, Seek};

/// What a range holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// Bytes that may be anything.
    Data,
    /// A hole: reads as zeros.
    Zero,
}

/// A run of bytes of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// What it holds.
    pub kind: ExtentKind,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Storage {
    /// The extent that begins at `offset` and ends at `limit` at the latest. Beyond the end everything is zero.
    /// Asks the file system, which may block for a moment (SEEK_DATA, SEEK_HOLE); where it has no answer, data.
    ///
    /// # Errors
    /// What the kernel says of the file itself.
    pub fn extent(&self, offset: u64, limit: u64) -> Result<Extent> {
        let extent =
            |kind, end: u64| Extent { kind, offset, len: end.min(limit).saturating_sub(offset) };
        if offset >= self.size() {
            return Ok(extent(ExtentKind::Zero, limit));
        }
        #[cfg(feature = "sim")]
        if let Kind::Sim(file) = &self.device.kind {
            let (data, end) = file.run(offset, limit.min(self.size()));
            return Ok(extent(if data { ExtentKind::Data } else { ExtentKind::Zero }, end));
        }
        let Kind::File(file) = &self.device.kind else {
            return Ok(extent(ExtentKind::Data, self.size()));
        };
        // A device tells of no holes.
        if self.medium == Medium::BlockDevice {
            return Ok(extent(ExtentKind::Data, self.size()));
        }
        let seek = |what| {
            sys::seek(file, what, offset).map_err(|error| {
                self.error(Operation::Extents, offset, error.raw_os_error().unwrap_or(libc::EIO))
            })
        };
        match seek(Seek::Data)? {
            None => Ok(extent(ExtentKind::Zero, limit)),
            Some(data) if data > offset => Ok(extent(ExtentKind::Zero, data)),
            Some(_) => match seek(Seek::Hole)? {
                Some(hole) if hole > offset => Ok(extent(ExtentKind::Data, hole)),
                _ => Ok(extent(ExtentKind::Data, limit)),
            },
        }
    }
}
