//! Reading an image without trusting it.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use std::io;

use super::report::{CheckError, LimitKind};
use crate::address::HostOffset;

/// Something that can be read at an offset and does not change: a file, memory, a simulated disk.
pub trait ReadAt {
    /// Fills `buf` from byte `offset` on. It is never asked for bytes behind [`Self::len`].
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Its length in bytes.
    fn len(&self) -> u64;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..)?.get(..buf.len()))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }

    fn len(&self) -> u64 {
        Vec::len(self) as u64
    }
}

/// How much a check may take. It ends with [`CheckError::Limit`] where it would take more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckLimits {
    /// Bytes of memory for counts: 8 or a little more for each host cluster in use. (The L1 table
    /// and the refcount table, 40 MiB at most and never more than the file has, come on top.)
    pub memory: u64,
    /// Bytes of tables to read.
    pub table_bytes: u64,
}

impl CheckLimits {
    /// Limits that no intact image of `stored` bytes reaches, and that a small file with large
    /// holes cannot stretch. `stored` is what the file takes on its disk, not its length.
    pub const fn for_stored(stored: u64) -> Self {
        // Clusters of 512 bytes take the most memory. Tables are clusters themselves: no more
        // of them can be read than the file has.
        let memory = stored / 512 * 12;
        let least = Self::DEFAULT;
        Self {
            memory: if memory > least.memory { memory } else { least.memory },
            table_bytes: if stored > least.table_bytes { stored } else { least.table_bytes },
        }
    }

    /// The same with so many bytes of memory for counts.
    #[must_use]
    pub const fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// The same with so many bytes of tables to read.
    #[must_use]
    pub const fn table_bytes(mut self, bytes: u64) -> Self {
        self.table_bytes = bytes;
        self
    }

    const DEFAULT: Self = Self { memory: 16 << 20, table_bytes: 256 << 20 };
}

impl Default for CheckLimits {
    /// Enough for images with two million clusters in use (128 GiB with clusters of 64 KiB), and
    /// little enough for an image that nobody trusts.
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Reads tables and keeps to the limit.
pub(super) struct Reader<'a> {
    image: &'a dyn ReadAt,
    length: u64,
    left: u64,
    limit: u64,
}

impl<'a> Reader<'a> {
    pub fn new(image: &'a dyn ReadAt, limit: u64) -> Self {
        Self { image, length: image.len(), left: limit, limit }
    }

    /// Bytes of the image.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Fills `buf` from `offset` on; behind the end of the file there are zeros.
    pub fn read(&mut self, offset: HostOffset, buf: &mut [u8]) -> Result<(), CheckError> {
        let bytes = buf.len() as u64;
        self.left = self
            .left
            .checked_sub(bytes)
            .ok_or(CheckError::Limit { kind: LimitKind::TableBytes, limit: self.limit })?;
        let inside = self.length.saturating_sub(offset.get()).min(bytes) as usize;
        let (there, beyond) = buf.split_at_mut(inside);
        beyond.fill(0);
        if there.is_empty() {
            return Ok(());
        }
        let bytes = there.len();
        self.image.read_at(offset.get(), there).map_err(|source| CheckError::Read {
            offset,
            bytes,
            source,
        })
    }
}
