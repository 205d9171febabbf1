//! Entries as they are in the file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{MAGIC, VERSION, ZEROS};

pub(super) const FLUSH: u64 = 1;
pub(super) const FUA: u64 = 2;
pub(super) const DISCARD: u64 = 4;
pub(super) const MARK: u64 = 8;

/// Bytes of the header of an entry.
pub(super) const HEADER: usize = 32;

/// One entry.
pub(super) struct Record {
    /// Where, in bytes.
    pub(super) offset: u64,
    /// Bytes of zeros behind `bytes`; of a discard what it covers.
    pub(super) zeros: u64,
    pub(super) flags: u64,
    /// What was written, or the text of a mark.
    pub(super) bytes: Vec<u8>,
}

impl Record {
    /// A write of these bytes at 0.
    pub(super) fn with(bytes: Vec<u8>) -> Self {
        Record { offset: 0, zeros: 0, flags: 0, bytes }
    }

    fn header(&self, sector: u64) -> [u8; HEADER] {
        let mark = self.flags & MARK != 0;
        let bytes = self.bytes.len() as u64;
        let sectors = if mark { 0 } else { (bytes + self.zeros).div_ceil(sector) };
        let text = if mark { bytes } else { 0 };
        let mut header = [0; HEADER];
        let numbers = [self.offset / sector, sectors, self.flags, text];
        for (place, number) in header.chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        header
    }

    /// Writes it at `at` and says how many bytes it takes.
    pub(super) fn write(&self, file: &File, at: u64, sector: u64) -> io::Result<u64> {
        let size = usize::try_from(sector).expect("sectors are small");
        let mut bytes = vec![0; size];
        let header = self.header(sector);
        let (head, rest) = bytes.split_at_mut(HEADER);
        head.copy_from_slice(&header);
        if self.flags & MARK != 0 {
            let len = self.bytes.len().min(rest.len());
            let text = self.bytes.get(..len).unwrap_or_default();
            rest.get_mut(..len).unwrap_or_default().copy_from_slice(text);
        }
        file.write_all_at(&bytes, at)?;
        if self.flags & (MARK | DISCARD) != 0 {
            return Ok(sector);
        }
        let mut data = self.bytes.len() as u64;
        file.write_all_at(&self.bytes, at + sector)?;
        let end = (data + self.zeros).next_multiple_of(sector);
        let zeros = vec![0; ZEROS];
        while data < end {
            let part = usize::try_from(end - data).unwrap_or(ZEROS).min(ZEROS);
            let part = zeros.get(..part).unwrap_or_default();
            file.write_all_at(part, at + sector + data)?;
            data += part.len() as u64;
        }
        Ok(sector + data)
    }
}

/// The size of a sector, where the entries end and how many there are, of the log in `file`.
pub(super) fn walk(file: &File) -> io::Result<(u64, u64, u64)> {
    let invalid = || io::Error::from_raw_os_error(libc::EINVAL);
    let numbers = |at: u64| {
        let mut bytes = [0; HEADER];
        file.read_exact_at(&mut bytes, at)?;
        let (numbers, _) = bytes.as_chunks::<8>();
        Ok::<_, io::Error>(
            [0, 1, 2, 3].map(|i| numbers.get(i).copied().map_or(0, u64::from_le_bytes)),
        )
    };
    let [magic, version, entries, sector] = numbers(0)?;
    let sector = sector & u64::from(u32::MAX);
    if magic != MAGIC
        || version != VERSION
        || !sector.is_power_of_two()
        || !(512..=65536).contains(&sector)
    {
        return Err(invalid());
    }
    let mut end = sector;
    for _ in 0..entries {
        let [_, sectors, flags, _] = numbers(end)?;
        let data = if flags & (MARK | DISCARD) != 0 { 0 } else { sectors };
        let bytes = data.checked_add(1).and_then(|all| all.checked_mul(sector));
        end = bytes.and_then(|bytes| end.checked_add(bytes)).ok_or_else(invalid)?;
    }
    Ok((sector, end, entries))
}
