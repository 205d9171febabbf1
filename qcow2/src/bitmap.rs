//! The dirty bitmaps of an image, as their directory tells them. This driver does not keep them up to date: whoever
//! writes the image clears the bit that says they are. The directory is not trusted: nothing is allocated from a size
//! in it before that was checked.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use std::io;

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::address::HostOffset;
use crate::check::ReadAt;
use crate::geometry::{Geometry, MAX_HOST_OFFSET};
use crate::header::{Autoclear, ExtensionKind, Header};

/// Bitmaps that an image may have.
pub const MAX_BITMAPS: u32 = 65535;

/// Bytes that the directory of bitmaps may have.
pub const MAX_BITMAP_DIRECTORY_BYTES: u64 = 64 << 20;

/// Bytes of the longest name.
const MAX_NAME_BYTES: usize = 1023;

/// The one kind of bitmap: what has changed.
const DIRTY_TRACKING: u8 = 1;

/// A bit of a bitmap stands for at least and at most so many bytes, as powers of two.
const GRANULARITY_BITS: std::ops::RangeInclusive<u8> = 9..=31;

bitflags::bitflags! {
    /// What a bitmap says of itself.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct BitmapFlags: u32 {
        /// A program keeps it up to date, or was killed while it did: it is out of date in the image.
        const IN_USE = 1 << 0;
        /// Programs keep it up to date from the moment in which they open the image.
        const AUTO = 1 << 1;
        /// Its extra data may be ignored by who does not know it.
        const EXTRA_DATA_COMPATIBLE = 1 << 2;
    }
}

/// A dirty bitmap.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bitmap {
    /// Its name. What is no UTF-8 is replaced.
    pub name: String,
    /// Bytes of its name in the image.
    pub name_bytes: u64,
    /// What it says of itself.
    pub flags: BitmapFlags,
    /// Bytes of the virtual disk that one bit stands for.
    pub granularity: u64,
    /// Where its table lies: of entries of 8 bytes, each for one cluster of bits.
    pub table: HostOffset,
    /// Entries of the table.
    pub entries: u32,
}

/// Why the bitmaps of an image cannot be told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BitmapError {
    /// The header extension has another length than it must have.
    #[error("the bitmaps extension has {bytes} bytes instead of {}", size_of::<RawExtension>())]
    Extension {
        /// Bytes that it has.
        bytes: usize,
    },
    /// None, or more than the format allows.
    #[error("the image claims {count} bitmaps; 1 to {MAX_BITMAPS} are allowed")]
    Count {
        /// The number in the extension.
        count: u32,
    },
    /// The directory is not where one can be, or not of a length that one can have.
    #[error(
        "the bitmap directory of {bytes} bytes at {offset} is unaligned, too long or not within the file"
    )]
    Directory {
        /// Where the extension says that it is.
        offset: HostOffset,
        /// Bytes that it claims.
        bytes: u64,
    },
    /// An entry of the directory says what none may say, or the directory ends within it.
    #[error("entry {index} of the bitmap directory is invalid")]
    Entry {
        /// Which entry.
        index: usize,
    },
    /// The directory cannot be read.
    #[error("cannot read the bitmap directory at {offset}")]
    Read {
        /// Where.
        offset: HostOffset,
        /// The cause.
        source: io::Error,
    },
}

impl BitmapError {
    /// The errno that stands for this error.
    pub fn errno(&self) -> i32 {
        match self {
            Self::Read { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            _ => libc::EINVAL,
        }
    }
}

/// The data of the header extension.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawExtension {
    count: U32,
    reserved: U32,
    directory_bytes: U64,
    directory_offset: U64,
}

/// The fixed part of an entry of the directory.
#[derive(FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawBitmap {
    table_offset: U64,
    table_entries: U32,
    flags: U32,
    kind: u8,
    granularity_bits: u8,
    name_bytes: U16,
    extra_bytes: U32,
}

impl Bitmap {
    /// The bitmaps of the image whose header is `header`, in the order of their directory. Those that a writer has
    /// left behind without keeping them up to date are none.
    ///
    /// # Errors
    /// [`BitmapError`]: what is wrong with the directory.
    pub fn list(image: &dyn ReadAt, header: &Header) -> Result<Vec<Self>, BitmapError> {
        let Some(directory) = Directory::of(header, image.len())? else { return Ok(Vec::new()) };
        let mut bytes = vec![0; directory.bytes];
        let offset = directory.offset;
        let read = image.read_at(offset.get(), &mut bytes);
        read.map_err(|source| BitmapError::Read { offset, source })?;
        directory.parse(&bytes)
    }
}

/// The directory of bitmaps, where the header says that it is.
pub(crate) struct Directory {
    /// Where it lies, within the file.
    pub offset: HostOffset,
    /// Its length.
    pub bytes: usize,
    count: u32,
    geometry: Geometry,
}

impl Directory {
    /// The directory in a file of so many bytes, if there are bitmaps that are up to date.
    pub fn of(header: &Header, file_bytes: u64) -> Result<Option<Self>, BitmapError> {
        let extension = header.extensions().iter().find(|one| one.kind == ExtensionKind::BITMAPS);
        let Some(extension) = extension.filter(|_| header.autoclear().contains(Autoclear::BITMAPS))
        else {
            return Ok(None);
        };
        let raw = RawExtension::ref_from_bytes(&extension.data)
            .map_err(|_| BitmapError::Extension { bytes: extension.data.len() })?;
        let count = raw.count.get();
        if count == 0 || count > MAX_BITMAPS {
            return Err(BitmapError::Count { count });
        }
        let (offset, bytes) =
            (HostOffset::new(raw.directory_offset.get()), raw.directory_bytes.get());
        let geometry = *header.geometry();
        let end = offset.get().checked_add(bytes);
        let fits = end.is_some_and(|end| end <= file_bytes) && bytes <= MAX_BITMAP_DIRECTORY_BYTES;
        match usize::try_from(bytes) {
            Ok(bytes) if fits && may_hold(offset, &geometry) => {
                Ok(Some(Self { offset, bytes, count, geometry }))
            }
            _ => Err(BitmapError::Directory { offset, bytes }),
        }
    }

    /// The entries in the bytes of the directory.
    pub fn parse(&self, bytes: &[u8]) -> Result<Vec<Bitmap>, BitmapError> {
        let mut rest = bytes;
        let mut bitmaps = Vec::new();
        for index in 0..self.count as usize {
            let (bitmap, used) = self.entry(rest).ok_or(BitmapError::Entry { index })?;
            bitmaps.push(bitmap);
            rest = rest.get(used..).unwrap_or_default();
        }
        Ok(bitmaps)
    }

    /// The first entry in `bytes` and its length.
    fn entry(&self, bytes: &[u8]) -> Option<(Bitmap, usize)> {
        let (raw, rest) = RawBitmap::ref_from_prefix(bytes).ok()?;
        let (_, rest) = rest.split_at_checked(raw.extra_bytes.get() as usize)?;
        let name = rest.get(..raw.name_bytes.get() as usize)?;
        let table = HostOffset::new(raw.table_offset.get());
        let known = BitmapFlags::from_bits(raw.flags.get());
        if raw.kind != DIRTY_TRACKING
            || !GRANULARITY_BITS.contains(&raw.granularity_bits)
            || !may_hold(table, &self.geometry)
            || name.is_empty()
            || name.len() > MAX_NAME_BYTES
        {
            return None;
        }
        let bitmap = Bitmap {
            name: String::from_utf8_lossy(name).into_owned(),
            name_bytes: name.len() as u64,
            flags: known?,
            granularity: 1 << raw.granularity_bits,
            table,
            entries: raw.table_entries.get(),
        };
        let used = size_of::<RawBitmap>() + raw.extra_bytes.get() as usize + name.len();
        Some((bitmap, used.next_multiple_of(8)))
    }
}

/// Whether a table may begin there.
fn may_hold(offset: HostOffset, geometry: &Geometry) -> bool {
    offset.get() < MAX_HOST_OFFSET
        && offset.get() >= geometry.cluster_size()
        && geometry.offset_in_host_cluster(offset) == 0
}

#[cfg(test)]
mod tests;
