//! Opening a regular file or a block device.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use super::block;
use super::topology::{Topology, of_cache};
use super::{Claim, LockError, LockMode, LockedFile, Medium, Permissions, Storage};
use crate::buffers::BufferPool;
use crate::device::{Device, Kind};
use crate::error::{IoError, Operation};
use crate::faults::Faults;
use crate::sys;
use crate::write_log::WriteLog;

/// Whether a storage may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// Reads only; everything else is EBADF.
    #[default]
    ReadOnly,
    /// Reads and writes.
    ReadWrite,
}

/// Whether the host's page cache is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Cache {
    /// Through the page cache.
    #[default]
    Cached,
    /// Around it (O_DIRECT).
    Direct,
}

/// What a flush does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Flushing {
    /// It makes what has completed durable (fdatasync).
    #[default]
    Done,
    /// Nothing, and nothing is written durably (FUA): for images that need not survive a crash of the host. After
    /// one, an image in such a storage may be damaged.
    Ignored,
}

/// What a discard does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Discarding {
    /// It gives space back to the host, as zero-writes that may unmap do.
    #[default]
    Done,
    /// Nothing, and zero-writes keep the space: what was put aside stays so.
    Ignored,
}

/// How to open a file.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Whether it may be written.
    pub access: Access,
    /// Whether the page cache is used.
    pub cache: Cache,
    /// What a flush does.
    pub flushing: Flushing,
    /// What a discard does.
    pub discarding: Discarding,
    /// Bytes for bounce buffers.
    pub buffer_budget: usize,
    /// Whether image locks are taken. By default they are where there are any.
    pub lock: LockMode,
    /// What is locked: by default [`Claim::exclusive`] for the access. A claim for writing has to use
    /// [`Permissions::WRITE`].
    pub claim: Option<Claim>,
    /// Faults on purpose.
    pub faults: Option<Arc<Faults>>,
    /// Where changes are logged.
    pub write_log: Option<Arc<WriteLog>>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        OpenOptions {
            access: Access::ReadOnly,
            cache: Cache::Cached,
            flushing: Flushing::Done,
            discarding: Discarding::Done,
            buffer_budget: 4 << 20,
            lock: LockMode::Auto,
            claim: None,
            faults: None,
            write_log: None,
        }
    }
}

impl OpenOptions {
    /// Read-only, cached.
    pub fn new() -> Self {
        OpenOptions::default()
    }

    /// The same with this access.
    #[must_use]
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// The same with this use of the page cache.
    #[must_use]
    pub fn cache(mut self, cache: Cache) -> Self {
        self.cache = cache;
        self
    }

    /// The same with flushes done or ignored.
    #[must_use]
    pub fn flushing(mut self, flushing: Flushing) -> Self {
        self.flushing = flushing;
        self
    }

    /// The same with discards done or ignored.
    #[must_use]
    pub fn discarding(mut self, discarding: Discarding) -> Self {
        self.discarding = discarding;
        self
    }

    /// The same with this use of image locks.
    #[must_use]
    pub fn lock(mut self, mode: LockMode) -> Self {
        self.lock = mode;
        self
    }

    /// The same with this claim.
    #[must_use]
    pub fn claim(mut self, claim: Claim) -> Self {
        self.claim = Some(claim);
        self
    }

    /// The same with these faults.
    #[must_use]
    pub fn faults(mut self, faults: &Arc<Faults>) -> Self {
        self.faults = Some(faults.clone());
        self
    }

    /// The same with changes logged.
    #[must_use]
    pub fn write_log(mut self, log: &Arc<WriteLog>) -> Self {
        self.write_log = Some(log.clone());
        self
    }

    /// The same for reading an image that others may write meanwhile ([`Claim::shared`]). What is read may then be
    /// neither what was there nor what comes; to open for writing in this way is an error.
    #[must_use]
    pub fn force_share(self) -> Self {
        self.claim(Claim::shared(Access::ReadOnly))
    }
}

/// Why a file could not be opened as a storage.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel refused.
    #[error("{0}")]
    Io(#[from] IoError),
    /// Not something with bytes at offsets.
    #[error("{path}: is {what}, and only regular files and block devices can be opened")]
    NotRegular {
        /// The file.
        path: Arc<str>,
        /// What it is.
        what: &'static str,
    },
    /// A block device that may not be written was to be.
    #[error("{path}: the block device is read-only")]
    ReadOnlyDevice {
        /// The device.
        path: Arc<str>,
    },
    /// Direct I/O was asked for and no alignment works.
    #[error("{path}: direct I/O is not possible here: open it cached")]
    NoDirectIo {
        /// The file.
        path: Arc<str>,
    },
    /// Somebody else uses the image, or it cannot be locked.
    #[error("{0}")]
    Lock(#[from] LockError),
    /// A claim that does not write does not go with access for writing.
    #[error("{path}: force-share is for reading only")]
    SharedWriter {
        /// The file.
        path: Arc<str>,
    },
}

impl OpenError {
    /// The error number that a program would report.
    pub fn errno(&self) -> i32 {
        match self {
            OpenError::Io(error) => error.errno,
            OpenError::NotRegular { .. } => libc::ENOTSUP,
            OpenError::ReadOnlyDevice { .. } => libc::EACCES,
            OpenError::NoDirectIo { .. } | OpenError::SharedWriter { .. } => libc::EINVAL,
            OpenError::Lock(error) => error.errno(),
        }
    }
}

impl Storage {
    /// Opens the regular file or block device at `path`, and locks it: others of this library, in this process too, and
    /// QEMU and its tools then keep off, and this fails while one of them has the image open in a way that does not go
    /// with it ([`OpenOptions::claim`]). The locks end when the storage is dropped and the last that was issued for it
    /// has completed. Whoever may write the file can ignore them all the same.
    ///
    /// # Errors
    /// [`OpenError`]; nothing is created.
    pub fn open(path: &Path, options: &OpenOptions) -> Result<Storage, OpenError> {
        let name: Arc<str> = path.to_string_lossy().into();
        let failed = |error| failed(&name, &error);
        let write = options.access == Access::ReadWrite;
        let claim = options.claim.unwrap_or(Claim::exclusive(options.access));
        if write && !claim.uses.contains(Permissions::WRITE) {
            return Err(OpenError::SharedWriter { path: name });
        }
        let file = open(path, &name, options)?;
        let kind = file.metadata().map_err(failed)?.file_type();
        if let Some(what) = useless(kind) {
            return Err(OpenError::NotRegular { path: name, what });
        }
        let medium = if kind.is_file() { Medium::File } else { Medium::BlockDevice };
        // The kernel opens a device that may not be written, and fails each write.
        if medium == Medium::BlockDevice && write && block::is_read_only(&file).map_err(failed)? {
            return Err(OpenError::ReadOnlyDevice { path: name });
        }
        sys::set_blocking(&file).map_err(failed)?;
        let file = LockedFile::new(file, &name, options.lock, claim)?;
        // Whoever held the locks before may have changed the size.
        let size = medium.size(&file).map_err(failed)?;
        let told = sys::direct_io_alignment(&file);
        let direct = match medium {
            Medium::File => file_alignment(told),
            Medium::BlockDevice => block::alignment(&file, told).map_err(failed)?,
        };
        let (alignment, memory_alignment) = of_cache(options.cache, direct);
        let topology = match medium {
            Medium::File => {
                let block = file.metadata().map_err(failed)?.blksize();
                Topology::of_file(alignment, memory_alignment, block)
            }
            Medium::BlockDevice => {
                block::topology(&file, options.cache, memory_alignment).map_err(failed)?
            }
        };
        let device = Device::new(name, Kind::File(file), size);
        let buffers = BufferPool::new(options.buffer_budget);
        let storage = Storage::over(device, alignment, options.access, buffers);
        let storage = storage.at(path).with_memory_alignment(memory_alignment);
        let storage = storage.on(medium, topology).with_discarding(options.discarding);
        let storage = storage.with_flushing(options.flushing);
        let storage = options.write_log.iter().fold(storage, Storage::with_write_log);
        Ok(options.faults.iter().fold(storage, Storage::with_faults))
    }
}

fn failed(name: &Arc<str>, error: &std::io::Error) -> OpenError {
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    OpenError::from(IoError::new(name, Operation::Open, 0, errno))
}

/// Opens a file, without waiting: opening a pipe would wait for its other end, and a name may come from an image.
fn open(path: &Path, name: &Arc<str>, options: &OpenOptions) -> Result<File, OpenError> {
    let direct = options.cache == Cache::Direct;
    let write = options.access == Access::ReadWrite;
    let flags = libc::O_NONBLOCK | if direct { libc::O_DIRECT } else { 0 };
    let opened = fs::OpenOptions::new().read(true).write(write).custom_flags(flags).open(path);
    let error = match opened {
        Ok(file) => return Ok(file),
        Err(error) => error,
    };
    // A directory cannot be opened for writing, some devices not at all or not in this way: what they are says more.
    let kind = fs::metadata(path).map(|metadata| metadata.file_type());
    if let Ok(Some(what)) = kind.as_ref().map(|kind| useless(*kind)) {
        return Err(OpenError::NotRegular { path: name.clone(), what });
    }
    if kind.is_ok_and(|kind| kind.is_block_device()) && error.raw_os_error() == Some(libc::EROFS) {
        return Err(OpenError::ReadOnlyDevice { path: name.clone() });
    }
    if direct && error.raw_os_error() == Some(libc::EINVAL) {
        return Err(OpenError::NoDirectIo { path: name.clone() });
    }
    Err(failed(name, &error))
}

/// What a file is, unless it has bytes at offsets.
fn useless(kind: fs::FileType) -> Option<&'static str> {
    if kind.is_file() || kind.is_block_device() {
        return None;
    }
    Some(if kind.is_dir() {
        "a directory"
    } else if kind.is_char_device() {
        "a character device"
    } else {
        "a pipe or socket"
    })
}

/// Alignment of offsets and of memory for direct I/O on a file. As the kernel tells it; where it does not (before Linux
/// 6.1, or a file system without an answer), the largest that any device here asks for.
fn file_alignment(told: Option<(u32, u32)>) -> (u64, usize) {
    const UNKNOWN: u32 = 4096;
    let (memory, offset) = told.unwrap_or((UNKNOWN, UNKNOWN));
    (u64::from(offset.max(1)), memory.max(1) as usize)
}
