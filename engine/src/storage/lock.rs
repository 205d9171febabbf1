//! Locks on image files: the byte ranges that QEMU locks, so that its programs and ours keep each other out.
//!
//! Whoever opens an image says what it does to the file and what it does not let others do meanwhile: a [`Claim`].
//! Each permission has two bytes of the file, which need not be there. Byte 100 + i is held by those who use
//! permission i, byte 200 + i by those who deny it to others; both are held shared, and it is a *look* at the opposite
//! byte that finds a conflict. The own bytes are taken first and only then the others looked at: of two who come at
//! once, at least one sees the other.
//!
//! The locks belong to the open file description (`F_OFD_SETLK`): two storages in one process keep each other out as
//! well, and closing another descriptor of the same file takes nothing away.

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::str::FromStr;
use std::sync::Arc;

use bitflags::bitflags;
use blkring_tracker::sync::atomic::{AtomicBool, Ordering};

use super::Access;
use super::holder::{self, Holder};
use crate::error::is_unsupported;
use crate::sys::{self, Hold};

/// The byte of the first permission that somebody uses.
const USED: u32 = 100;
/// The byte of the first permission that somebody denies to others.
const DENIED: u32 = 200;

bitflags! {
    /// What can be done to an image file.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Permissions: u8 {
        /// Reading what is a consistent image.
        const READ = 1;
        /// Writing.
        const WRITE = 1 << 1;
        /// Writing what does not change what is read.
        const WRITE_UNCHANGED = 1 << 2;
        /// Changing the size of the file.
        const RESIZE = 1 << 3;
    }
}

impl Permissions {
    /// The numbers of those that are set.
    fn bits_set(self) -> impl Iterator<Item = u8> {
        (0..8).filter(move |bit| self.bits() & (1 << bit) != 0)
    }

    /// As messages name one of them.
    fn name(bit: u8) -> &'static str {
        match bit {
            0 => "consistent read",
            1 => "write",
            2 => "write unchanged",
            3 => "resize",
            _ => "unknown",
        }
    }
}

/// What somebody who has an image file open does to it, and what nobody else may do meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Claim {
    /// What is done.
    pub uses: Permissions,
    /// What others may not do.
    pub denies: Permissions,
}

impl Claim {
    /// To do what `uses` says, while others may not do what `denies` says.
    pub const fn new(uses: Permissions, denies: Permissions) -> Self {
        Claim { uses, denies }
    }

    /// While this one reads, others may read but not write; while it writes, others may only do what denies nothing,
    /// as a [shared](Self::shared) reader does. What a qcow2 image needs, and the default of a storage.
    pub const fn exclusive(access: Access) -> Self {
        let uses = match access {
            Access::ReadOnly => Permissions::READ,
            Access::ReadWrite => {
                Permissions::READ.union(Permissions::WRITE).union(Permissions::RESIZE)
            }
        };
        Claim { uses, denies: Permissions::WRITE.union(Permissions::RESIZE) }
    }

    /// Others may do everything. To read an image that somebody writes, and what is found may then be neither the old
    /// nor the new; or to write a raw image together with others who see to it themselves that they do not meet.
    /// The file is not resized by who writes under this claim.
    pub const fn shared(access: Access) -> Self {
        let uses = match access {
            Access::ReadOnly => Permissions::READ,
            Access::ReadWrite => Permissions::READ.union(Permissions::WRITE),
        };
        Claim { uses, denies: Permissions::empty() }
    }

    /// To make a new image over whatever the file held: taken before the file is cut.
    pub const fn create() -> Self {
        Claim { uses: Permissions::WRITE.union(Permissions::RESIZE), denies: Permissions::RESIZE }
    }

    /// The same which lets others write and resize.
    #[must_use]
    pub const fn sharing(mut self) -> Self {
        self.denies = Permissions::empty();
        self
    }
}

/// Whether locks are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum LockMode {
    /// Never.
    Off,
    /// Always; where there are none, the file cannot be opened.
    On,
    /// Where the kernel and the file system have them. Some network file systems do not, and nothing keeps a second
    /// program from opening the image there; an event at level debug tells of it.
    #[default]
    Auto,
}

impl FromStr for LockMode {
    type Err = UnknownLockMode;

    fn from_str(word: &str) -> Result<Self, UnknownLockMode> {
        match word {
            "off" => Ok(LockMode::Off),
            "on" => Ok(LockMode::On),
            "auto" => Ok(LockMode::Auto),
            _ => Err(UnknownLockMode(word.to_owned())),
        }
    }
}

/// Not the name of a [`LockMode`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no lock mode: on, off or auto")]
pub struct UnknownLockMode(String);

/// What stands against a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Conflict {
    /// Somebody denies what the claim uses: one permission.
    Use(Permissions),
    /// Somebody uses what the claim denies: one permission.
    Share(Permissions),
    /// Somebody holds this byte of the file alone, as QEMU never does.
    Byte(u32),
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |permission: &Permissions| {
            Permissions::name(permission.bits_set().next().unwrap_or(u8::MAX))
        };
        match self {
            Conflict::Use(permission) => write!(f, "Failed to get \"{}\" lock", name(permission)),
            Conflict::Share(permission) => {
                write!(f, "Failed to get shared \"{}\" lock", name(permission))
            }
            Conflict::Byte(byte) => write!(f, "Failed to lock byte {byte}"),
        }
    }
}

/// Why an image file could not be locked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody else has the image open in a way that does not go with the claim.
    #[error("{path}: {conflict}: the image is in use{}", by(.holder.as_ref()))]
    Conflict {
        /// The file, as it was opened.
        path: Arc<str>,
        /// What does not go together.
        conflict: Conflict,
        /// Who has it open, if that can be found out: processes of others and of other machines are not seen.
        holder: Option<Holder>,
        /// Device and inode of the file, as [`Storage::identity`](super::Storage::identity) gives them.
        file: (u64, u64),
    },
    /// There are no locks on this file.
    #[error(
        "{path}: image locks are not possible here: {}. The kernel, the file system or its server has no locks of open \
         file descriptions. Lock mode auto goes on without any", io::Error::from_raw_os_error(*.errno)
    )]
    Unavailable {
        /// The file, as it was opened.
        path: Arc<str>,
        /// What the kernel said.
        errno: i32,
    },
    /// The kernel failed.
    #[error("{path}: locking the image: {}", io::Error::from_raw_os_error(*.errno))]
    Io {
        /// The file, as it was opened.
        path: Arc<str>,
        /// What the kernel said.
        errno: i32,
    },
}

fn by(holder: Option<&Holder>) -> String {
    holder.map_or_else(String::new, |holder| format!(" by {holder}"))
}

impl LockError {
    /// The error number that a program would report.
    pub fn errno(&self) -> i32 {
        match self {
            LockError::Conflict { .. } => libc::EAGAIN,
            LockError::Unavailable { errno, .. } | LockError::Io { errno, .. } => *errno,
        }
    }
}

/// Something that is the same for two names of one file: device and inode. A block device has as many inodes as names,
/// and its number stands for all of them.
pub fn identity(metadata: &Metadata) -> (u64, u64) {
    if metadata.file_type().is_block_device() {
        (0, metadata.rdev())
    } else {
        (metadata.dev(), metadata.ino())
    }
}

/// An open file with the locks of a claim on it, which are given up when this is dropped: at once, although a ring may
/// keep the file itself open for another moment.
#[derive(Debug)]
pub struct LockedFile {
    file: File,
    /// Whether locks are held. Nothing else is ordered by it.
    held: AtomicBool,
}

impl LockedFile {
    /// Locks `file`, which is open for reading at least and which messages call `path`. Nothing of the file is
    /// changed. Does not wait; who stands in the way is looked for in `/proc`.
    ///
    /// # Errors
    /// [`LockError`]; the file is closed then.
    pub fn new(
        file: File,
        path: &Arc<str>,
        mode: LockMode,
        claim: Claim,
    ) -> Result<Self, LockError> {
        let locked = LockedFile { file, held: AtomicBool::new(mode != LockMode::Off) };
        if mode == LockMode::Off {
            return Ok(locked);
        }
        let obstacle = match locked.take(claim) {
            Ok(()) => return Ok(locked),
            Err(obstacle) => obstacle,
        };
        match obstacle {
            Obstacle::Conflict(conflict, byte) => {
                let identity = locked.identity();
                let holder = holder::find(&locked.file, byte);
                Err(LockError::Conflict { path: path.clone(), conflict, holder, file: identity })
            }
            Obstacle::Errno(errno) if !has_no_locks(errno) => {
                Err(LockError::Io { path: path.clone(), errno })
            }
            Obstacle::Errno(errno) if mode == LockMode::On => {
                Err(LockError::Unavailable { path: path.clone(), errno })
            }
            Obstacle::Errno(errno) => {
                tracing::debug!(%path, errno, "no image locks here: opened without");
                locked.give_up();
                Ok(locked)
            }
        }
    }

    /// What [`identity`] says of it.
    pub fn identity(&self) -> (u64, u64) {
        self.metadata().map_or((0, 0), |metadata| identity(&metadata))
    }

    /// Whether locks are held.
    pub fn is_locked(&self) -> bool {
        self.held.load(Ordering::Relaxed)
    }

    fn take(&self, claim: Claim) -> Result<(), Obstacle> {
        let uses = claim.uses.bits_set().map(|bit| USED + u32::from(bit));
        let denies = claim.denies.bits_set().map(|bit| DENIED + u32::from(bit));
        for byte in uses.chain(denies) {
            match sys::hold(&self.file, byte..byte + 1, Hold::Shared) {
                Ok(()) => {}
                Err(error) => {
                    return Err(match errno_of(&error) {
                        libc::EAGAIN | libc::EACCES => {
                            Obstacle::Conflict(Conflict::Byte(byte), byte)
                        }
                        errno => Obstacle::Errno(errno),
                    });
                }
            }
        }
        for bit in claim.uses.bits_set() {
            let conflict = Conflict::Use(Permissions::from_bits_retain(1 << bit));
            self.look(DENIED + u32::from(bit), conflict)?;
        }
        for bit in claim.denies.bits_set() {
            let conflict = Conflict::Share(Permissions::from_bits_retain(1 << bit));
            self.look(USED + u32::from(bit), conflict)?;
        }
        Ok(())
    }

    fn look(&self, byte: u32, conflict: Conflict) -> Result<(), Obstacle> {
        match sys::is_held_by_another(&self.file, byte) {
            Ok(false) => Ok(()),
            Ok(true) => Err(Obstacle::Conflict(conflict, byte)),
            Err(error) => Err(Obstacle::Errno(errno_of(&error))),
        }
    }

    /// Gives the locks up before the file is closed: nothing of it is used any more.
    pub fn give_up(&self) {
        if !self.held.swap(false, Ordering::Relaxed) {
            return;
        }
        if let Err(error) = sys::hold(&self.file, USED..DENIED + 8, Hold::No) {
            // Closing the file gives them up as well.
            tracing::debug!(%error, "image locks were not given up");
        }
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

enum Obstacle {
    /// What, and the byte that somebody holds.
    Conflict(Conflict, u32),
    Errno(i32),
}

fn errno_of(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// The error numbers by which kernels and file systems say that they have no such locks. A kernel before 3.15 does not
/// know the command (EINVAL); a server without a lock manager gives ENOLCK.
fn has_no_locks(errno: i32) -> bool {
    is_unsupported(errno) || matches!(errno, libc::ENOLCK | libc::EINVAL)
}

#[cfg(test)]
mod tests;
