//! Why an image cannot be opened, in the words of who is asked.
//!
//! qemu-img and qemu-io tell of one file in another: `Could not open backing file: Could not open 'base': No such file
//! or directory`. Under the program's own name a file is not named twice, and what is wrong with a header is told
//! with its numbers.

mod header;

use std::path::Path;

use blkring_engine::{Conflict, LockError, OpenError as FileError};
use blkring_qcow2::{HeaderError, OpenError};

use crate::bytes;
use crate::name::Name;
use crate::text::describe;

/// Why something cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// In words that are the same under every name.
    Words(String),
    /// In one's own words, and in those of qemu-img and qemu-io.
    Either {
        /// What blkring says.
        own: String,
        /// What the others say.
        theirs: String,
    },
    /// The kernel did not open a file.
    File {
        /// The file.
        path: String,
        /// What the kernel said.
        errno: i32,
    },
    /// A file below it cannot be used.
    Backing(Box<Reason>),
}

impl Reason {
    /// A reason in words.
    pub fn words(text: impl Into<String>) -> Self {
        Reason::Words(text.into())
    }

    /// An option is about files below an image that can have none.
    pub fn no_backing_files() -> Self {
        Reason::words("Driver doesn't support backing files")
    }

    /// That kind of asynchronous I/O is for files that bypass the page cache.
    pub fn native_needs_direct() -> Self {
        Reason::words(
            "aio=native was specified, but it requires cache.direct=on, which was not specified.",
        )
    }

    /// What the system says of the file at `path`.
    pub fn system(path: &Path, error: &std::io::Error) -> Self {
        match error.raw_os_error() {
            Some(errno) => Reason::File { path: bytes::of_path(path), errno },
            None => Reason::Words(error.to_string()),
        }
    }

    /// What is wrong with a file.
    pub fn file(error: &FileError) -> Self {
        match error {
            FileError::Io(error) => {
                Reason::File { path: error.path.to_string(), errno: error.errno }
            }
            FileError::NotRegular { path, what } => not_regular(path, what),
            FileError::ReadOnlyDevice { .. } => read_only_device(),
            FileError::Lock(error) => Reason::lock(error),
            other => Reason::Words(other.to_string()),
        }
    }

    /// Why a file cannot be locked. Under the program's own name with who stands in the way, if that is known.
    pub fn lock(error: &LockError) -> Self {
        let LockError::Conflict { path, conflict, holder, .. } = error else {
            return Reason::Words(error.to_string());
        };
        let theirs = match conflict {
            Conflict::Byte(_) => conflict.to_string(),
            _ => format!("{conflict}\nIs another process using the image [{path}]?"),
        };
        let own = match holder {
            Some(holder) => format!("{theirs}\nIt is held by {holder}."),
            None => theirs.clone(),
        };
        Reason::Either { own, theirs }
    }

    /// What is wrong with a header.
    pub fn header(error: &HeaderError) -> Self {
        let own = match error {
            HeaderError::Magic { .. } => "Image is not in qcow2 format".to_owned(),
            other => other.to_string(),
        };
        let theirs = header::theirs(error).unwrap_or_else(|| own.clone());
        Reason::Either { own, theirs }
    }

    /// What is wrong with the image at `path` or its chain, of which `depth` files below the image were tried.
    pub fn image(path: &Path, error: &OpenError, depth: usize) -> Self {
        let error = match error {
            OpenError::Backing { source, .. } => source,
            of_the_image => of_the_image,
        };
        let reason = match error {
            OpenError::Storage(error) => Reason::file(error),
            OpenError::NoBackingFormat { path, name } => {
                return Reason::Words(no_backing_format(path, name, depth));
            }
            OpenError::BackingFormat { format, .. } => Reason::Either {
                own: error.to_string(),
                theirs: format!("Unknown driver '{format}'"),
            },
            OpenError::Header { path: which, source } => match Reason::header(source) {
                Reason::Either { own, theirs } if Path::new(&**which) != path => {
                    Reason::Either { own: format!("{which}: {own}"), theirs }
                }
                other => other,
            },
            other => {
                // The library names the file first; who was asked for it needs that of other files only.
                let text = other.to_string();
                let own = format!("{}: ", bytes::of_path(path));
                Reason::Words(text.strip_prefix(&own).map(str::to_owned).unwrap_or(text))
            }
        };
        (0..depth).fold(reason, |reason, _| Reason::Backing(Box::new(reason)))
    }

    /// The reason as `name` tells it of what was asked for as `asked`.
    pub fn text(&self, name: Name, asked: &str) -> String {
        match self {
            Reason::Words(text) => text.clone(),
            Reason::Either { own, theirs } => {
                if name == Name::Blkring { own } else { theirs }.clone()
            }
            Reason::File { path, errno } if name == Name::Blkring && path == asked => {
                describe(*errno)
            }
            Reason::File { path, errno } => {
                format!("Could not open '{path}': {}", describe(*errno))
            }
            // One's own words name the file, however far below it is.
            Reason::Backing(inner) if name == Name::Blkring => match inner.text(name, asked) {
                deeper if matches!(**inner, Reason::Backing(_)) => deeper,
                text => format!("Could not open backing file: {text}"),
            },
            Reason::Backing(inner) => {
                format!("Could not open backing file: {}", inner.text(name, asked))
            }
        }
    }
}

/// The file so far below the image, which `image` calls `name`, may be anything.
fn no_backing_format(image: &str, name: &str, depth: usize) -> String {
    let option = format!("{}driver", "backing.".repeat(depth));
    format!(
        "{image} does not say which format its backing file '{name}' has, and it is not guessed; give it with \
         --image-opts driver=qcow2,file.filename=FILE,{option}=raw (or qcow2)"
    )
}

/// A block device that was to be written and may not be.
pub fn read_only_device() -> Reason {
    Reason::Either {
        own: "the block device is read-only".to_owned(),
        theirs: "The device is not writable: Permission denied".to_owned(),
    }
}

/// A file without bytes at offsets.
pub fn not_regular(path: &str, what: &str) -> Reason {
    Reason::Either {
        own: format!("it is {what}, and only regular files and block devices can be opened"),
        theirs: format!("'file' driver requires '{path}' to be a regular file"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_has_its_words() {
        let missing = |path: &str| Reason::File { path: path.into(), errno: 2 };
        let below = |reason| Reason::Backing(Box::new(reason));
        for (reason, own, theirs) in [
            (
                missing("a"),
                "No such file or directory",
                "Could not open 'a': No such file or directory",
            ),
            (
                below(missing("b")),
                "Could not open backing file: Could not open 'b': No such file or directory",
                "Could not open backing file: Could not open 'b': No such file or directory",
            ),
            (
                below(below(missing("b"))),
                "Could not open backing file: Could not open 'b': No such file or directory",
                "Could not open backing file: Could not open backing file: Could not open 'b': No such \
                 file or directory",
            ),
            (Reason::words("no"), "no", "no"),
            (
                not_regular("a", "a directory"),
                "it is a directory, and only regular files and block devices can be opened",
                "'file' driver requires 'a' to be a regular file",
            ),
        ] {
            assert_eq!(reason.text(Name::Blkring, "a"), own);
            assert_eq!(reason.text(Name::QemuImg, "a"), theirs);
            assert_eq!(reason.text(Name::QemuIo, "a"), theirs);
        }
    }
}
