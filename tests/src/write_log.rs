//! Logs in the format of dm-log-writes, read and replayed by code of its own: the engine's writer is what is tested.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// A flush: what is before it is durable.
pub const FLUSH: u64 = 1;
/// A write that is durable itself.
pub const FUA: u64 = 2;
/// A range that was given back.
pub const DISCARD: u64 = 4;
/// A text for the reader.
pub const MARK: u64 = 8;

const MAGIC: u64 = 0x006a_7366_7773_6872;

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where, in bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// What kind.
    pub flags: u64,
    /// What was written, or the text of a mark.
    pub data: Vec<u8>,
}

impl Entry {
    /// The text, if it is a mark.
    pub fn mark(&self) -> Option<String> {
        (self.flags & MARK != 0).then(|| String::from_utf8_lossy(&self.data).into_owned())
    }

    /// Whether it changes anything.
    pub fn is_change(&self) -> bool {
        self.flags & MARK == 0 && self.len > 0
    }
}

/// A log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// Bytes of a sector.
    pub sector: u64,
    /// What is in it.
    pub entries: Vec<Entry>,
}

/// Reads a whole log.
///
/// # Panics
/// If it is none, or ends early.
pub fn read(path: &Path) -> Log {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let number = |at: usize| {
        let bytes = bytes.get(at..at + 8).unwrap_or_else(|| panic!("the log ends at {at}"));
        u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
    };
    assert_eq!((number(0), number(8)), (MAGIC, 1), "{} is no log", path.display());
    let sector = number(24) & u64::from(u32::MAX);
    let size = usize::try_from(sector).expect("sectors are small");
    let mut at = size;
    let mut entries = Vec::new();
    for _ in 0..number(16) {
        let [place, sectors, flags, text] = [0, 8, 16, 24].map(|field| number(at + field));
        let (start, len) = match flags {
            _ if flags & MARK != 0 => (at + 32, usize::try_from(text).expect("a short text")),
            _ if flags & DISCARD != 0 => (at + size, 0),
            _ => (at + size, usize::try_from(sectors * sector).expect("it is in a file")),
        };
        let data = bytes.get(start..start + len).unwrap_or_else(|| panic!("the log ends at {at}"));
        let mark = flags & MARK != 0;
        let len = if mark { 0 } else { sectors * sector };
        entries.push(Entry { offset: place * sector, len, flags, data: data.to_vec() });
        at = if mark { at + size } else { start + data.len() };
    }
    Log { sector, entries }
}

/// Applies an entry to a file.
///
/// # Panics
/// If the file cannot be written.
pub fn apply(file: &File, entry: &Entry) {
    let done: io::Result<()> = match entry.flags {
        _ if !entry.is_change() => Ok(()),
        flags if flags & DISCARD != 0 => {
            let len = usize::try_from(entry.len).expect("ranges of tests fit into memory");
            file.write_all_at(&vec![0; len], entry.offset)
        }
        _ => file.write_all_at(&entry.data, entry.offset),
    };
    done.expect("the file can be written");
}

/// What was there before the log began, ready to be replayed on.
///
/// # Panics
/// If there is no room for a copy.
pub fn copy_of(before: &Path, to: &Path) -> File {
    fs::copy(before, to).expect("there is room");
    OpenOptions::new().read(true).write(true).open(to).expect("it was just made")
}
