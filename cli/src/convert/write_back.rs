//! Keeps what is written from filling a small memory.
//!
//! Writes through the page cache leave it full of data that the disk has not got yet. That memory is charged to the
//! control group of the program, and where the group is small and the disk is slow, a kernel may end the program before
//! it has written the data out. So with a limit of memory the target is synced each time an eighth of it was written.

use std::fs::File;
use std::io;
use std::path::Path;

use super::memory;

/// What part of the limit may be written before it is synced.
const PART: u64 = 8;

/// Syncs the target now and then.
pub struct WriteBack {
    file: File,
    every: u64,
    next: u64,
}

impl WriteBack {
    /// For a file that is written through the page cache. `None` if no limit of memory is in force.
    ///
    /// # Errors
    /// Of opening the file.
    pub fn of(path: &Path) -> io::Result<Option<Self>> {
        let Some(limit) = memory::limit() else { return Ok(None) };
        let every = (limit / PART).max(1);
        Ok(Some(WriteBack { file: File::open(path)?, every, next: every }))
    }

    /// So many bytes have been written: syncs them if it is time.
    ///
    /// # Errors
    /// Of fdatasync.
    pub fn written(&mut self, bytes: u64) -> io::Result<()> {
        if bytes < self.next {
            return Ok(());
        }
        self.next = bytes + self.every;
        self.file.sync_data()
    }
}
