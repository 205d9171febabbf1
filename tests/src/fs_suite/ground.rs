//! Where the tests run: a file system made for them, or a directory of the user.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::fs::Fs;
use crate::mounts::{Mount, SectorSize};
use crate::report::Skip;

/// Room of a file system that is to be filled, in MiB.
const SMALL_MIB: u64 = 64;

/// Room of the others, in MiB. Their backing files are sparse.
const LARGE_MIB: u64 = 1024;

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A file system of this kind, made for the tests on a loop device.
    Made(Fs),
    /// A directory that exists.
    Directory(PathBuf),
}

/// How much room a file system has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Enough.
    Plenty,
    /// So little that a test fills it.
    Little,
}

/// A directory that is ready, and gone when this is dropped.
pub enum Ground {
    /// On a file system of its own.
    Mounted(Mount),
    /// In a directory of the user.
    Directory(tempfile::TempDir),
}

impl Place {
    /// The name in the report.
    pub fn name(&self) -> String {
        match self {
            Place::Made(fs) => fs.to_string(),
            Place::Directory(path) => path.display().to_string(),
        }
    }

    /// Why there is no such room here, whatever the machine.
    pub fn lacks(&self, room: Room) -> Option<&'static str> {
        match (self, room) {
            (Place::Directory(_), Room::Little) => {
                Some("it fills a file system, which is not done to that of a directory")
            }
            _ => None,
        }
    }

    /// Makes it ready.
    ///
    /// # Errors
    /// Why this machine cannot.
    pub fn prepare(&self, room: Room) -> Result<Ground, Skip> {
        match self {
            Place::Directory(path) => {
                let made = tempfile::Builder::new().prefix("blkring-fs-suite-").tempdir_in(path);
                made.map(Ground::Directory)
                    .map_err(|error| Skip::new(format!("{}: {error}", path.display())))
            }
            Place::Made(fs) => {
                // Blocks that are larger than what is written in parts. tmpfs has no sectors.
                let sector = if *fs == Fs::Tmpfs { SectorSize::S512 } else { SectorSize::S4096 };
                let size = if room == Room::Little { SMALL_MIB } else { LARGE_MIB };
                let mount = Mount::new(*fs, sector, size)?;
                if room == Room::Little {
                    fill_up_to(mount.path(), SMALL_MIB << 20).map_err(Skip::new)?;
                }
                Ok(Ground::Mounted(mount))
            }
        }
    }
}

impl Ground {
    /// The directory for files.
    pub fn path(&self) -> &Path {
        match self {
            Ground::Mounted(mount) => mount.path(),
            Ground::Directory(directory) => directory.path(),
        }
    }
}

/// Some file systems are larger than they are asked to be: all but `room` bytes are taken by a file.
fn fill_up_to(directory: &Path, room: u64) -> Result<(), String> {
    let path = directory.join("ballast");
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let found = rustix::fs::statvfs(directory).map_err(|error| failed(error.into()))?;
    let free = found.f_bavail * found.f_frsize;
    let Some(excess) = free.checked_sub(room).filter(|&excess| excess > 0) else { return Ok(()) };
    let file = File::create_new(&path).map_err(failed)?;
    let plain = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&file, plain, 0, excess).map_err(|error| failed(error.into()))?;
    file.sync_all().map_err(failed)
}
