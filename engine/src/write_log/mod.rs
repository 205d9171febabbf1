//! A log of everything that changes a storage, in the format of the kernel's dm-log-writes target, for replay.
//!
//! The log begins with a super block of one sector. Each entry is a sector with its header, and for a write the bytes
//! in whole sectors behind it. Numbers are little-endian. Entries are in the order in which operations completed, and a
//! flush stands before those that completed after it had begun: what precedes it is what it made durable. So the
//! state after each prefix of the log is one that a power cut may leave, and so is every one that lacks some of the
//! entries behind its last flush.
//!
//! - A write is logged with the bytes that it moved, a durable one as flag FUA.
//! - A zero-write is a write of zeros; a range that is given back is a discard, which is to be replayed as zeros.
//! - Cutting a file is a discard of what is cut off. Growing it is not logged: what is there reads as zeros.
//!
//! Offsets are in sectors, so a storage with a log does all its I/O in whole sectors. The log is written by the thread that
//! takes note of a completion, with plain system calls that may block it: this is for tests. The bytes are read from the
//! memory of a request when it completes. What completes while an fdatasync is under way is kept in memory until it
//! ends. An error of the log is an error of the [`finish`](WriteLog::finish) at the end and of nothing else.

mod order;
mod record;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use blkring_tracker::sync::Mutex;

use crate::op::{Allocate, Op, Verb};
use crate::sys::device::Change;
use order::Order;
pub(crate) use order::SyncId;
use record::{DISCARD, FLUSH, FUA, HEADER, MARK, Record};

/// The first eight bytes of a log.
const MAGIC: u64 = 0x006a_7366_7773_6872;

const VERSION: u64 = 1;

/// How much of a long range of zeros is written at once, in bytes.
const ZEROS: usize = 64 << 10;

/// The longest mark that every log has room for, in bytes.
pub const MAX_MARK: usize = 512 - HEADER;

/// A log, shared by whoever writes to it. Finished with the last of them, or before by [`finish`](WriteLog::finish).
pub struct WriteLog {
    /// The lock *log*: held while an entry is written.
    state: Mutex<State>,
    sector: u64,
}

struct State {
    file: File,
    /// Where the next entry goes.
    end: u64,
    entries: u64,
    order: Order,
    error: Option<io::Error>,
}

impl fmt::Debug for WriteLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteLog").field("sector", &self.sector).finish_non_exhaustive()
    }
}

impl WriteLog {
    /// Begins a log at the start of `file`, with sectors of `sector` bytes: a power of two from 512 to 65536.
    ///
    /// # Errors
    /// EINVAL for another size of sectors, and what the kernel says.
    pub fn create(file: File, sector: u32) -> io::Result<Arc<WriteLog>> {
        if !sector.is_power_of_two() || !(512..=65536).contains(&sector) {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        let sector = u64::from(sector);
        let log = WriteLog::at(file, sector, sector, 0);
        log.write_super(&log.state.lock())?;
        Ok(Arc::new(log))
    }

    /// Goes on with the log that is in `file`, with the sectors that it has.
    ///
    /// # Errors
    /// EINVAL if there is none, and what the kernel says.
    pub fn append(file: File) -> io::Result<Arc<WriteLog>> {
        let (sector, end, entries) = record::walk(&file)?;
        Ok(Arc::new(WriteLog::at(file, sector, end, entries)))
    }

    fn at(file: File, sector: u64, end: u64, entries: u64) -> WriteLog {
        let state = State { file, end, entries, order: Order::default(), error: None };
        WriteLog { state: Mutex::new(state), sector }
    }

    /// Bytes of a sector: what the I/O of a storage with this log is multiples of.
    pub fn sector(&self) -> u64 {
        self.sector
    }

    /// Entries so far, in their order: those that wait for an fdatasync are not among them.
    pub fn entries(&self) -> u64 {
        self.state.lock().entries
    }

    /// Puts a mark behind everything that has completed, for whoever replays the log; of a long text the first
    /// [`MAX_MARK`] bytes.
    pub fn mark(&self, text: &str) {
        let bytes = text.as_bytes();
        let bytes = bytes.get(..MAX_MARK).unwrap_or(bytes);
        self.add(Record { flags: MARK, ..Record::with(bytes.to_vec()) });
    }

    /// Writes out what is waited for and how many entries there are.
    ///
    /// # Errors
    /// The first error that the log has met.
    pub fn finish(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        for record in state.order.take_all() {
            self.write(&mut state, &record);
        }
        if let Err(error) = self.write_super(&state) {
            state.error.get_or_insert(error);
        }
        state.error.take().map_or(Ok(()), Err)
    }

    fn write_super(&self, state: &State) -> io::Result<()> {
        let mut bytes = vec![0; usize::try_from(self.sector).expect("sectors are small")];
        let numbers = [MAGIC, VERSION, state.entries, self.sector];
        let numbers: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        // The size of a sector has four bytes, and nothing but zeros is behind it.
        bytes.get_mut(..numbers.len()).expect("a sector has room").copy_from_slice(&numbers);
        state.file.write_all_at(&bytes, 0)
    }

    fn add(&self, record: Record) {
        let mut state = self.state.lock();
        for record in state.order.completed(record) {
            self.write(&mut state, &record);
        }
    }

    fn write(&self, state: &mut State, record: &Record) {
        if state.error.is_some() {
            return;
        }
        match record.write(&state.file, state.end, self.sector) {
            Ok(bytes) => {
                state.end += bytes;
                state.entries += 1;
            }
            Err(error) => {
                tracing::error!(%error, "the write log ends here");
                state.error = Some(error);
            }
        }
    }

    /// An fdatasync is about to be sent: it covers what has completed.
    pub(crate) fn sync_begins(&self) -> SyncId {
        self.state.lock().order.sync_begins()
    }

    /// That one has ended.
    fn sync_ended(&self, id: SyncId, result: i32) {
        let mut state = self.state.lock();
        let flush = (result >= 0).then(|| Record { flags: FLUSH, ..Record::with(Vec::new()) });
        for record in state.order.sync_ended(id, flush) {
            self.write(&mut state, &record);
        }
    }

    /// Takes note of a completed op of a file that was `size` bytes long before. Its memory is still there.
    pub(crate) fn note(&self, op: &Op, result: i32, size: u64) {
        if let Some(id) = op.logged {
            return self.sync_ended(id, result);
        }
        if result < 0 {
            return;
        }
        match op.verb {
            Verb::Write | Verb::WriteDurable => {
                let Some(mem) = &op.mem else { return };
                let mut bytes = vec![0; usize::try_from(result).unwrap_or(0).min(mem.len())];
                mem.copy_out(0, &mut bytes);
                let flags = if op.verb == Verb::WriteDurable { FUA } else { 0 };
                self.add(Record { offset: op.offset, flags, ..Record::with(bytes) });
            }
            Verb::Allocate(Allocate::ZeroRange | Allocate::PunchHole)
            | Verb::Call(Change::ZeroOut) => {
                self.add(Record { offset: op.offset, zeros: op.len, ..Record::with(Vec::new()) });
            }
            Verb::Allocate(Allocate::Discard) | Verb::Discard | Verb::Call(Change::Discard) => {
                self.discard(op.offset, op.len);
            }
            Verb::Truncate if op.offset < size => self.discard(op.offset, size - op.offset),
            Verb::Read | Verb::Sync | Verb::Truncate | Verb::Allocate(Allocate::Grow) => (),
        }
    }

    fn discard(&self, offset: u64, len: u64) {
        let record = Record { offset, zeros: len, flags: DISCARD, ..Record::with(Vec::new()) };
        self.add(record);
    }
}

impl Drop for WriteLog {
    fn drop(&mut self) {
        if let Err(error) = self.finish() {
            tracing::error!(%error, "the write log is not whole");
        }
    }
}
