//! An opened image of any format.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use blkring_engine::{Access, Disk, OpenOptions, Queue, RawDisk, Storage};

use crate::failure::{Failure, reason};
use crate::options::{CacheMode, Format};

/// How to open an image.
#[derive(Debug, Clone, Copy)]
pub struct Opening {
    /// The format; probed if it was not given.
    pub format: Option<Format>,
    /// Whether it may be written.
    pub access: Access,
    /// How the host caches it.
    pub cache: CacheMode,
}

/// An opened image.
pub enum AnyDisk {
    /// A raw one.
    Raw(Arc<RawDisk>),
}

impl AnyDisk {
    /// Opens the image at `path`.
    pub fn open(path: &Path, opening: Opening) -> Result<Self, Failure> {
        let format = match opening.format {
            Some(format) => format,
            None => probed(path, opening.access)?,
        };
        match format {
            Format::Raw => {
                let options =
                    OpenOptions::new().access(opening.access).cache(opening.cache.cache());
                let storage =
                    Storage::open(path, &options).map_err(|error| Failure::open(path, &error))?;
                Ok(AnyDisk::Raw(RawDisk::new(storage)))
            }
            Format::Qcow2 => Err(refused(path, "this version does not open qcow2 images")),
        }
    }

    /// Makes it reachable from `queue`.
    pub fn attach(&self, queue: &mut Queue) -> std::io::Result<Disk> {
        match self {
            AnyDisk::Raw(disk) => queue.attach(disk),
        }
    }

    /// The lines that `info` of `io` prints.
    pub fn summary(&self) -> &'static str {
        match self {
            AnyDisk::Raw(_) => {
                "format name: raw\ncluster size: 0 bytes\nvm state offset: 0 bytes\n"
            }
        }
    }
}

fn refused(path: &Path, reason: &str) -> Failure {
    Failure::Open { path: path.display().to_string(), reason: reason.to_owned() }
}

/// The format that the first bytes of a file tell. A file that says nothing may be raw, and then whoever wrote its
/// first bytes, a guest for instance, decides what it is taken for: it is only opened for reading, and with a warning.
pub fn probed(path: &Path, access: Access) -> Result<Format, Failure> {
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read(&mut magic));
    let read = read.map_err(|error| refused(path, &reason(&error)))?;
    if magic.get(..read) == Some(b"QFI\xfb".as_slice()) {
        return Ok(Format::Qcow2);
    }
    if access == Access::ReadWrite {
        return Err(refused(
            path,
            "its format was probed and may be raw: give -f raw to write to it",
        ));
    }
    eprintln!(
        "WARNING: Image format was not specified for '{}' and probing guessed raw.",
        path.display()
    );
    Ok(Format::Raw)
}
