//! What stops a copy.

use std::fmt;

use blkring_engine::IoError;

use crate::text::describe;

/// What was being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Asking which ranges hold data.
    Status,
    /// Reading the source.
    Read,
    /// Writing the target.
    Write,
}

/// A step that failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("error while {step} {offset}: {}", describe(.source.errno))]
pub struct CopyError {
    /// What was being done.
    pub step: Step,
    /// Where in the source, in bytes; of several images, counted from the begin of the first.
    pub offset: u64,
    /// What failed below: the file, the operation on it, and its place there.
    pub source: IoError,
}

impl CopyError {
    /// A failed step.
    pub fn new(step: Step, offset: u64, source: IoError) -> Self {
        CopyError { step, offset, source }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Status => "reading block status at offset",
            Step::Read => "reading at byte",
            Step::Write => "writing at byte",
        })
    }
}
