//! The file of a new image.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use blkring_engine::{
    Access, Claim, LockError, LockMode, LockedFile, OpenError, OpenOptions, Storage,
};
use blkring_qcow2::Layout;
use rustix::fs::{FallocateFlags, IFlags, fallocate, ioctl_getflags, ioctl_setflags};

use crate::name;
use crate::reason::{Reason, read_only_device};
use crate::text::reason;

/// Images are made of whole sectors.
const SECTOR: u64 = 512;

/// What of the space of a raw image is taken at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preallocation {
    /// None.
    Off,
    /// All of it, without writing it.
    Falloc,
    /// All of it, with zeros.
    Full,
}

impl Preallocation {
    /// What the option says.
    pub fn of(word: Option<&str>) -> Result<Self, String> {
        match word {
            None | Some("off") => Ok(Preallocation::Off),
            Some("falloc") => Ok(Preallocation::Falloc),
            Some("full") => Ok(Preallocation::Full),
            Some("metadata") => Err("Unsupported preallocation mode: metadata".to_owned()),
            Some(other) => Err(format!("invalid parameter value: {other}")),
        }
    }
}

/// Whether the file system may write the file's data elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyOnWrite {
    /// As it likes.
    Allowed,
    /// It should not; file systems without such a choice do not listen.
    Off,
}

/// Why there is no such file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Somebody else uses it.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// It cannot be written.
    #[error("{}", reason(.0))]
    Io(#[from] io::Error),
    /// A block device cannot be used so.
    #[error("{}", .0.text(name::own(), ""))]
    Device(Reason),
}

/// Where the file of a new image comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was made for it.
    Made,
    /// It was there.
    There,
}

impl Origin {
    /// Removes the file at `path` if it was made for an image that there will not be.
    pub fn settle<T, E>(self, path: &Path, result: Result<T, E>) -> Result<T, E> {
        if result.is_err() && self == Origin::Made {
            drop(std::fs::remove_file(path));
        }
        result
    }
}

impl CopyOnWrite {
    /// The file of a new image: there, empty, and locked, which comes before anything that it held is gone.
    fn create(self, path: &Path) -> Result<(LockedFile, Origin), FileError> {
        let mut options = File::options();
        let (file, origin) = match options.read(true).write(true).create_new(true).open(path) {
            Ok(file) => (file, Origin::Made),
            // A link to nothing is there, and what it leads to is not.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let file = options.create_new(false).create(true).truncate(false).open(path)?;
                (file, Origin::There)
            }
            Err(error) => return Err(error.into()),
        };
        let name = path.to_string_lossy().into();
        let file = LockedFile::new(file, &name, LockMode::Auto, Claim::create())?;
        file.set_len(0)?;
        if self == CopyOnWrite::Off
            && let Ok(flags) = ioctl_getflags(&*file)
            && ioctl_setflags(&*file, flags | IFlags::NOCOW).is_err()
        {
            tracing::debug!(path = %path.display(), "the file system has no such choice");
        }
        Ok((file, origin))
    }
}

/// Makes a file of zeros. What it held before is gone.
pub fn raw(
    path: &Path,
    size: u64,
    preallocation: Preallocation,
    cow: CopyOnWrite,
) -> Result<(), FileError> {
    let size = size.next_multiple_of(SECTOR);
    if is_block_device(path) {
        return device(path, size, preallocation);
    }
    let (file, origin) = cow.create(path)?;
    origin.settle(path, fill(&file, size, preallocation))
}

fn fill(file: &File, size: u64, preallocation: Preallocation) -> Result<(), FileError> {
    match preallocation {
        Preallocation::Falloc if size > 0 => {
            fallocate(file, FallocateFlags::empty(), 0, size).map_err(io::Error::from)?;
        }
        Preallocation::Full => write_zeros(file, size)?,
        Preallocation::Off | Preallocation::Falloc => (),
    }
    file.set_len(size)?;
    Ok(file.sync_all()?)
}

/// Whether there is a block device of this name.
pub fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Makes a raw image of a block device: it is there, and so is what it holds, but for the first sector, which said of
/// what format it was.
fn device(path: &Path, size: u64, preallocation: Preallocation) -> Result<(), FileError> {
    let refused = |text: &str| Err(FileError::Device(Reason::words(text)));
    match preallocation {
        Preallocation::Off => (),
        Preallocation::Falloc => return refused("Unsupported preallocation mode 'falloc'"),
        Preallocation::Full => return refused("Unsupported preallocation mode 'full'"),
    }
    let options = OpenOptions::new().access(Access::ReadWrite).claim(Claim::create());
    let storage = Storage::open(path, &options).map_err(|error| match error {
        OpenError::Lock(error) => FileError::Lock(error),
        OpenError::ReadOnlyDevice { .. } => FileError::Device(no_new_device()),
        other => FileError::Io(io::Error::from_raw_os_error(other.errno())),
    })?;
    if size > storage.size() {
        return refused("Cannot grow device files");
    }
    let file = File::options().write(true).open(path)?;
    file.write_all_at(&[0; SECTOR as usize], 0)?;
    Ok(file.sync_all()?)
}

/// A device cannot be made, and the one that is there cannot be written.
fn no_new_device() -> Reason {
    let Reason::Either { own, theirs } = read_only_device() else { return read_only_device() };
    let theirs = format!(
        "Protocol driver 'host_device' does not support creating new images, so an existing image must be selected as \
         the target; however, opening the given target as an existing image failed: {theirs}"
    );
    Reason::Either { own, theirs }
}

fn write_zeros(mut file: &File, size: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut left = size;
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(usize::MAX).min(zeros.len());
        file.write_all(zeros.get(..part).unwrap_or_default())?;
        left -= part as u64;
    }
    Ok(())
}

/// Makes a file that holds a new image. What it held before is gone.
pub fn write(path: &Path, layout: &Layout, cow: CopyOnWrite) -> Result<Origin, FileError> {
    if is_block_device(path) {
        let text = "qcow2 images on block devices are not supported yet";
        return Err(FileError::Device(Reason::words(text)));
    }
    let (file, origin) = cow.create(path)?;
    origin.settle(path, lay_out(&file, layout))?;
    Ok(origin)
}

fn lay_out(file: &File, layout: &Layout) -> Result<(), FileError> {
    file.set_len(layout.file_length)?;
    for write in &layout.writes {
        file.write_all_at(&write.bytes, write.offset.get())?;
    }
    Ok(file.sync_all()?)
}
