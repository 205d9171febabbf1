//! What ends the program with an error, and how it is told under each of the program's names.

use std::ffi::OsStr;
use std::process::ExitCode;

use blkring_bench::job::JobError;
use blkring_bench::plan::PlanError;
use blkring_bench::stream::StreamError;
use blkring_engine::{BackendError, IoError, OpenError};
use blkring_qcow2::CheckError;

use crate::convert::CopyError;
use crate::create::ImageError;
use crate::image_name::{ImageName, Syntax};
use crate::name::Name;
use crate::reason::Reason;
use crate::text::{describe, reason};

/// An error of the program.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// What was asked for cannot be.
    #[error("{0}")]
    Usage(String),
    /// The command line makes no sense: as [`Failure::Usage`], and qemu-img says where to read more.
    #[error("{0}")]
    Misuse(String),
    /// An option makes no sense: as [`Failure::Misuse`], and qemu-img names the command first.
    #[error("{0}")]
    Option(String),
    /// A file or image cannot be opened.
    #[error("Could not open '{given}': {}", .reason.text(Name::Blkring, given))]
    Open {
        /// What was given.
        given: String,
        /// How.
        syntax: Syntax,
        /// Why.
        reason: Reason,
    },
    /// Direct I/O was asked for and is not possible.
    #[error("Could not open '{path}': the file system does not support direct I/O (O_DIRECT)")]
    NoDirectIo {
        /// As it was given.
        path: String,
    },
    /// An image cannot be made.
    #[error("Could not create '{path}': {source}")]
    Create {
        /// The image.
        path: String,
        /// Why.
        source: ImageError,
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
    /// Where the bytes of an image are is not known.
    #[error("Could not read file metadata: {}", describe(.0.errno))]
    Status(IoError),
    /// A copy stopped.
    #[error(transparent)]
    Copy(CopyError),
    /// An error of a command that tells errors apart by its exit code.
    #[error("{failure}")]
    Coded {
        /// The exit code.
        code: u8,
        /// The error.
        failure: Box<Failure>,
    },
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
    /// There is nothing that does I/O.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A queue failed as a whole.
    #[error("The queue failed: {}", reason(.0))]
    Queue(#[from] std::io::Error),
}

impl Failure {
    /// The exit code.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Failure::Coded { code, .. } => ExitCode::from(*code),
            _ => ExitCode::FAILURE,
        }
    }

    /// The same, told of another word.
    #[must_use]
    pub fn given_as(self, word: &OsStr) -> Self {
        match self {
            Failure::Open { reason, .. } => {
                let given = word.to_string_lossy().into_owned();
                Failure::Open { given, syntax: Syntax::FileName, reason }
            }
            other => other,
        }
    }

    /// An image that cannot be opened.
    pub fn open(image: &ImageName, reason: Reason) -> Self {
        let (given, syntax) = (image.given().to_owned(), image.syntax());
        Failure::Open { given, syntax, reason }
    }

    /// A file that cannot be opened as a storage.
    pub fn open_storage(image: &ImageName, error: &OpenError) -> Self {
        match error {
            OpenError::NoDirectIo { .. } => Failure::NoDirectIo { path: image.given().to_owned() },
            other => Failure::open(image, Reason::file(other)),
        }
    }

    /// The message under a name; several lines at most.
    pub fn text(&self, name: Name) -> String {
        match (self, name) {
            (Failure::Coded { failure, .. }, _) => failure.text(name),
            (Failure::Open { given, reason, .. }, Name::QemuImg) => {
                format!("Could not open '{given}': {}", reason.text(name, given))
            }
            (Failure::Open { given, syntax: Syntax::FileName, reason }, Name::QemuIo) => {
                format!("can't open device {given}: {}", reason.text(name, given))
            }
            (Failure::Open { given, syntax: Syntax::Options, reason }, Name::QemuIo) => {
                format!("can't open: {}", reason.text(name, given))
            }
            (other, _) => other.to_string(),
        }
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
