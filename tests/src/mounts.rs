//! File systems on loop devices with direct I/O, mounted for one test.
//!
//! Backing files are sparse and lie in `/var/tmp`, or where `BLKRING_TMP` says: a directory on a disk, since a loop
//! device over tmpfs has no direct I/O. Everything is undone when a [`Mount`] is dropped, also by a panic; what a
//! killed process left is removed by the next mount (`sweep.rs`).

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;

use crate::fs::{Feature, Fs, lacks};
use crate::loop_device::{Caching, Loop};
use crate::report::Skip;
use crate::sweep;
use crate::tools::{self, ToolError};

/// Environment variable: the directory for backing files.
pub const DIRECTORY_ENV: &str = "BLKRING_TMP";

/// How often, and how far apart, an unmount that finds the file system busy is tried again (a killed child of a test
/// may hold a file for a moment), and a device is looked at that must become free.
const TRIES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(10);

/// Logical sector size of the device below a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SectorSize {
    /// 512 bytes.
    S512,
    /// 4096 bytes.
    S4096,
}

impl SectorSize {
    /// In bytes.
    pub fn bytes(self) -> u32 {
        match self {
            Self::S512 => 512,
            Self::S4096 => 4096,
        }
    }
}

/// A mounted file system, unmounted and deleted on drop.
#[derive(Debug)]
pub struct Mount {
    fs: Fs,
    point: PathBuf,
    /// The loop device's kernel name, if there is one.
    device: Option<String>,
    /// Holds backing file and mount point.
    directory: TempDir,
    /// Locked as long as the mount lives, so that others can tell a left one from one in use.
    _lock: File,
}

impl Mount {
    /// Makes and mounts a file system of at least `size_mib` MiB (more if its mkfs asks for more).
    ///
    /// # Errors
    /// [`Skip`] when this machine cannot: not root, a tool is missing, the kernel does not know the file system, or
    /// loop devices have no direct I/O.
    pub fn new(fs: Fs, sector: SectorSize, size_mib: u64) -> Result<Self, Skip> {
        check_root()?;
        let base = base_directory();
        sweep::sweep(&base);
        let (directory, lock) = sweep::create(&base)
            .map_err(|error| Skip::new(format!("no directory in {}: {error}", base.display())))?;
        let point = directory.path().join(sweep::POINT);
        fs::create_dir(&point)
            .map_err(|error| Skip::new(format!("cannot create {}: {error}", point.display())))?;
        let size_mib = size_mib.max(fs.min_mib());
        let device = match fs {
            Fs::Tmpfs => {
                mount_tmpfs(&point, sector, size_mib)?;
                None
            }
            Fs::Xfs | Fs::Ext4 | Fs::Btrfs => {
                let backing = directory.path().join(sweep::BACKING);
                let device = Loop::attach(&backing, sector, size_mib, Caching::Direct)?;
                make(fs, device.path())?;
                mount(&[
                    "-t".as_ref(),
                    fs.name().as_ref(),
                    device.path().as_ref(),
                    point.as_os_str(),
                ])?;
                // `device` is detached here: the kernel does so at the unmount, even if this process is killed first.
                Some(device.name())
            }
        };
        Ok(Self { fs, point, device, directory, _lock: lock })
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// The file system.
    pub fn fs(&self) -> Fs {
        self.fs
    }

    /// The kernel's name of the loop device (`loop3`), as in `/sys/block`; none for tmpfs.
    pub fn device(&self) -> Option<&str> {
        self.device.as_deref()
    }

    fn unmount(&self) -> Result<(), ToolError> {
        for _ in 0..TRIES {
            match tools::run("umount", &[&self.point]) {
                Err(ToolError::Failed { stderr, .. }) if stderr.contains("busy") => {
                    thread::sleep(PAUSE);
                }
                ended => return ended.map(drop),
            }
        }
        eprintln!("{} stays busy and is unmounted lazily", self.point.display());
        tools::run("umount", &["--lazy".as_ref(), self.point.as_os_str()]).map(drop)
    }

    /// The kernel detaches the device when the last who has it open closes it. That may be another process that looks
    /// for a free one, a moment after the unmount.
    fn wait_until_detached(&self) -> bool {
        let Some(device) = &self.device else { return true };
        let ours = self.directory.path().join(sweep::BACKING);
        let backing = format!("/sys/block/{device}/loop/backing_file");
        for _ in 0..TRIES {
            match fs::read_to_string(&backing) {
                Ok(file) if Path::new(file.trim_end()) == ours => thread::sleep(PAUSE),
                // Free, or another's already.
                _ => return true,
            }
        }
        false
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A panic here would abort a test that already panics and hide its message.
        if let Err(error) = self.unmount() {
            eprintln!("{} in {} is left: {error}", self.fs, self.directory.path().display());
        } else if !self.wait_until_detached() {
            eprintln!("{:?} stays attached to {}", self.device, self.directory.path().display());
        }
    }
}

/// Discarding a fresh sparse file is wasted time. ext4 would choose 1 KiB blocks on a small device, which nobody runs
/// disk images on.
fn make(fs: Fs, device: &str) -> Result<(), Skip> {
    let (tool, options): (_, &[&str]) = match fs {
        Fs::Xfs => ("mkfs.xfs", &["-q", "-f", "-K"]),
        Fs::Ext4 => ("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", "nodiscard"]),
        Fs::Btrfs => ("mkfs.btrfs", &["-q", "-f", "-K"]),
        Fs::Tmpfs => return Ok(()),
    };
    let mut args = options.to_vec();
    args.push(device);
    tools::run(tool, &args)?;
    Ok(())
}

fn mount_tmpfs(point: &Path, sector: SectorSize, size_mib: u64) -> Result<(), Skip> {
    if let (SectorSize::S4096, Some(why)) = (sector, lacks(Fs::Tmpfs, Feature::SectorSize)) {
        return Err(Skip::new(format!("tmpfs with 4096-byte sectors: {why}")));
    }
    let size = format!("size={size_mib}m");
    let options = ["-t", "tmpfs", "-o", &size, "blkring"].map(AsRef::as_ref);
    mount(&[&options[..], &[point.as_os_str()]].concat())
}

fn mount(args: &[&std::ffi::OsStr]) -> Result<(), Skip> {
    tools::run("mount", args)?;
    Ok(())
}

pub(crate) fn check_root() -> Result<(), Skip> {
    let process = fs::metadata("/proc/self")
        .map_err(|error| Skip::new(format!("cannot tell the user: /proc/self: {error}")))?;
    match process.uid() {
        0 => Ok(()),
        user => Err(Skip::new(format!("mounting a file system takes root, this is user {user}"))),
    }
}

pub(crate) fn base_directory() -> PathBuf {
    match std::env::var_os(DIRECTORY_ENV) {
        Some(directory) => PathBuf::from(directory),
        None => PathBuf::from("/var/tmp"),
    }
}
