//! What can go wrong with a request, as values.

use std::fmt;
use std::sync::Arc;

/// What a request or one of its steps was doing when it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Opening or probing a storage.
    Open,
    /// Reading bytes.
    Read,
    /// Writing bytes.
    Write,
    /// Making a range read as zeros.
    WriteZeroes,
    /// Giving a range back to the host.
    Discard,
    /// Making completed writes durable.
    Flush,
    /// Changing the size.
    Resize,
    /// Asking which ranges hold data.
    Extents,
    /// Finding the place of guest bytes in an image.
    Map,
    /// Reserving space in an image.
    Allocate,
    /// Reading a compressed cluster of an image.
    Decompress,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Open => "open",
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::WriteZeroes => "write zeroes",
            Operation::Discard => "discard",
            Operation::Flush => "flush",
            Operation::Resize => "resize",
            Operation::Extents => "query extents",
            Operation::Map => "map",
            Operation::Allocate => "allocate",
            Operation::Decompress => "decompress",
        })
    }
}

/// A failed operation: where, what and why.
///
/// The error is small and cheap to copy between the waiters of shared work. `errno` is what a guest or a caller of
/// a C interface is told; the other fields are for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {operation} at offset {offset}: {}", describe(*.errno, *.reason))]
#[non_exhaustive]
pub struct IoError {
    /// The file, as it was opened.
    pub path: Arc<str>,
    /// What was being done.
    pub operation: Operation,
    /// Where, in bytes from the start of the file named by `path`.
    pub offset: u64,
    /// A positive error number of Linux (`EIO`, `ENOSPC`, ...).
    pub errno: i32,
    /// What was met that `errno` alone does not tell, such as "compressed cluster".
    pub reason: Option<&'static str>,
}

impl IoError {
    /// An error of `operation` at `offset` of the file `path`.
    pub fn new(path: &Arc<str>, operation: Operation, offset: u64, errno: i32) -> Self {
        IoError { path: path.clone(), operation, offset, errno: errno.abs(), reason: None }
    }

    /// The same error, which says what was met.
    #[must_use]
    pub fn because(mut self, reason: &'static str) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Whether the host had no room (`ENOSPC` or `EDQUOT`).
    pub fn is_no_space(&self) -> bool {
        matches!(self.errno, libc::ENOSPC | libc::EDQUOT)
    }

    /// Whether the operation is not there at all (a file system without hole punching, for one).
    pub fn is_unsupported(&self) -> bool {
        is_unsupported(self.errno)
    }
}

/// The error numbers by which kernels say that they do not have an operation.
pub(crate) fn is_unsupported(errno: i32) -> bool {
    matches!(errno, libc::ENODEV | libc::ENOSYS | libc::EOPNOTSUPP | libc::ENOTTY)
}

fn describe(errno: i32, reason: Option<&str>) -> String {
    let text = std::io::Error::from_raw_os_error(errno).to_string();
    match reason {
        None => text,
        // The reason takes the place of the number.
        Some(reason) => {
            let words = text.split_once(" (os error").map_or(text.as_str(), |(words, _)| words);
            format!("{words} ({reason})")
        }
    }
}

/// The result of a request or of one step of it.
pub type Result<T> = std::result::Result<T, IoError>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_file_operation_offset_and_cause() {
        let error = IoError::new(&"disk.img".into(), Operation::WriteZeroes, 65536, -libc::ENOSPC);
        assert_eq!(
            error.to_string(),
            "disk.img: write zeroes at offset 65536: No space left on device (os error 28)"
        );
        assert!(error.is_no_space());
    }

    #[test]
    fn an_error_says_what_was_met() {
        let error = IoError::new(&"disk.qcow2".into(), Operation::Map, 65536, libc::ENOTSUP);
        assert_eq!(
            error.because("compressed cluster").to_string(),
            "disk.qcow2: map at offset 65536: Operation not supported (compressed cluster)"
        );
    }
}
