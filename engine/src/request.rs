//! What an embedder asks for, and what it is told.

use bitflags::bitflags;

use crate::error::{IoError, Operation};
use crate::memory::IoMem;

bitflags! {
    /// How a request is to be done.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct Flags: u32 {
        /// Durable before it is answered (force unit access). For writes and zero-writes.
        const FUA = 1;
        /// A zero-write may give the space back.
        const MAY_UNMAP = 2;
        /// A zero-write fails with ENOTSUP rather than write zeros.
        const NO_FALLBACK = 4;
    }
}

/// What a request does.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Action {
    /// Fills the memory from the disk.
    Read(IoMem),
    /// Writes the memory to the disk.
    Write(IoMem),
    /// Makes so many bytes read as zeros.
    WriteZeroes(u64),
    /// Gives so many bytes back; what they read as afterwards is the target's choice.
    Discard(u64),
    /// Makes everything answered before durable.
    Flush,
}

/// A request: an action at an offset in bytes. Any alignment is accepted.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Request {
    /// What to do, with its memory or length.
    pub action: Action,
    /// Where, in bytes; ignored by a flush.
    pub offset: u64,
    /// How.
    pub flags: Flags,
}

impl Request {
    /// A read into `mem`.
    pub fn read(offset: u64, mem: IoMem) -> Self {
        Request { action: Action::Read(mem), offset, flags: Flags::empty() }
    }

    /// A write of `mem`.
    pub fn write(offset: u64, mem: IoMem) -> Self {
        Request { action: Action::Write(mem), offset, flags: Flags::empty() }
    }

    /// A zero-write of `len` bytes.
    pub fn write_zeroes(offset: u64, len: u64) -> Self {
        Request { action: Action::WriteZeroes(len), offset, flags: Flags::empty() }
    }

    /// A discard of `len` bytes.
    pub fn discard(offset: u64, len: u64) -> Self {
        Request { action: Action::Discard(len), offset, flags: Flags::empty() }
    }

    /// A flush.
    pub fn flush() -> Self {
        Request { action: Action::Flush, offset: 0, flags: Flags::empty() }
    }

    /// The same request with `flags` added.
    #[must_use]
    pub fn with(mut self, flags: Flags) -> Self {
        self.flags |= flags;
        self
    }

    /// Bytes asked for; 0 for a flush.
    pub fn len(&self) -> u64 {
        match &self.action {
            Action::Read(mem) | Action::Write(mem) => mem.len() as u64,
            Action::WriteZeroes(len) | Action::Discard(len) => *len,
            Action::Flush => 0,
        }
    }

    /// What it does, for errors.
    pub(crate) fn operation(&self) -> Operation {
        match self.action {
            Action::Read(_) => Operation::Read,
            Action::Write(_) => Operation::Write,
            Action::WriteZeroes(_) => Operation::WriteZeroes,
            Action::Discard(_) => Operation::Discard,
            Action::Flush => Operation::Flush,
        }
    }

    /// Whether no bytes are asked for.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The answer to one accepted request.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Completion {
    /// As given at submission.
    pub user_data: u64,
    /// Done whole, or failed.
    pub result: Result<(), IoError>,
}

impl Completion {
    /// 0, or the negative error number, as guests are told.
    pub fn code(&self) -> i32 {
        match &self.result {
            Ok(()) => 0,
            Err(error) => -error.errno,
        }
    }
}

/// The queue holds as many requests as it may. Nothing of the request was accepted; here it is back.
#[derive(Debug, thiserror::Error)]
#[error("the queue is full: submit again after a completion")]
pub struct WouldBlock(pub Request);
