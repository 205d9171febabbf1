//! What ends the program with an error, and how.

use std::path::Path;
use std::process::ExitCode;

use blkring_bench::job::JobError;
use blkring_bench::plan::PlanError;
use blkring_bench::stream::StreamError;
use blkring_engine::{IoError, OpenError, RingUnavailable};
use blkring_qcow2::CheckError;

use crate::probe::header_reason;

/// An error of the program: one line.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line makes no sense.
    #[error("{0}")]
    Usage(String),
    /// A file or image cannot be opened.
    #[error("Could not open '{path}': {reason}")]
    Open {
        /// As it was given.
        path: String,
        /// Why.
        reason: String,
    },
    /// Direct I/O was asked for and is not possible.
    #[error("Could not open '{path}': the file system does not support direct I/O (O_DIRECT)")]
    NoDirectIo {
        /// As it was given.
        path: String,
    },
    /// A check has no result.
    #[error("Could not check '{path}': {source}")]
    Check {
        /// As it was given.
        path: String,
        /// Why.
        source: CheckError,
    },
    /// A request failed and nothing goes on after that.
    #[error("Failed request: {}", describe(.0.errno))]
    Request(IoError),
    /// The main job failed.
    #[error("{path}: {source}")]
    Job {
        /// Its image.
        path: String,
        /// Why.
        source: JobError,
    },
    /// The main job cannot be run as asked.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The image of the main job is not as it should be.
    #[error("{path}: the check found {corruptions} corruptions and {leaks} leaks")]
    Unclean {
        /// The image.
        path: String,
        /// Corruptions, and what could not be checked.
        corruptions: u64,
        /// Leaked clusters.
        leaks: u64,
    },
    /// The last flush failed, or what was reserved could not be given back.
    #[error("Could not close the image: {0}")]
    Close(IoError),
    /// There is no ring.
    #[error(transparent)]
    Ring(#[from] RingUnavailable),
    /// A queue failed as a whole.
    #[error("The queue failed: {}", reason(.0))]
    Queue(#[from] std::io::Error),
}

impl Failure {
    /// The exit code.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::FAILURE
    }

    /// A file or image that cannot be opened for a reason in words.
    pub fn cannot_open(path: &Path, reason: impl Into<String>) -> Self {
        Failure::Open { path: path.display().to_string(), reason: reason.into() }
    }

    /// A qcow2 image that cannot be opened, or another file of its chain.
    pub fn open_image(path: &Path, error: &blkring_qcow2::OpenError) -> Self {
        use blkring_qcow2::OpenError as Error;
        match error {
            Error::Storage(error) => Failure::open(path, error),
            Error::Header { path: which, source } if **which == *path.to_string_lossy() => {
                Failure::cannot_open(path, header_reason(source))
            }
            other => Failure::cannot_open(path, other.to_string()),
        }
    }

    /// A file that cannot be opened as a storage.
    pub fn open(path: &Path, error: &OpenError) -> Self {
        let reason = match error {
            OpenError::Io(error) => describe(error.errno),
            OpenError::NotRegular { what, .. } => {
                format!("it is {what}, and only regular files can be opened")
            }
            OpenError::NoDirectIo { .. } => {
                return Failure::NoDirectIo { path: path.display().to_string() };
            }
            other => other.to_string(),
        };
        Failure::cannot_open(path, reason)
    }
}

impl From<StreamError> for Failure {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::Request(error) => Failure::Request(error),
            StreamError::Queue(error) => Failure::Queue(error),
        }
    }
}

/// The text of an error number, without the number.
pub fn describe(errno: i32) -> String {
    reason(&std::io::Error::from_raw_os_error(errno))
}

/// The text of an error, without the number.
pub fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split_once(" (os error").map(|(text, _)| text.to_owned()).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_error_has_no_number() {
        assert_eq!(describe(5), "Input/output error");
        assert_eq!(reason(&std::io::Error::other("plain")), "plain");
    }
}
