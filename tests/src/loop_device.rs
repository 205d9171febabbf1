//! Loop devices as block devices: alone, for tests of block devices, or below a file system.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::mounts::{SectorSize, base_directory, check_root};
use crate::report::Skip;
use crate::sweep;
use crate::tools;

/// How a loop device reaches its backing file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// By direct I/O.
    Direct,
    /// Through the page cache.
    Buffered,
}

/// An attached loop device, detached on drop: at once, or when its last user is gone.
#[derive(Debug)]
pub(crate) struct Loop {
    path: String,
}

impl Loop {
    pub(crate) fn attach(
        backing: &Path,
        sector: SectorSize,
        size_mib: u64,
        caching: Caching,
    ) -> Result<Self, Skip> {
        let failed = |error| Skip::new(format!("cannot create {}: {error}", backing.display()));
        let file = File::create_new(backing).map_err(failed)?;
        file.set_len(size_mib << 20).map_err(failed)?;
        let sector = sector.bytes().to_string();
        let direct = if caching == Caching::Direct { "--direct-io=on" } else { "--direct-io=off" };
        let printed = tools::run(
            "losetup",
            &[
                direct.as_ref(),
                "--sector-size".as_ref(),
                sector.as_ref(),
                "--find".as_ref(),
                "--show".as_ref(),
                backing.as_os_str(),
            ],
        )?;
        let device = Self { path: printed.stdout.trim().to_owned() };
        // What was said of the device before it was detached the last time holds.
        tools::run("blockdev", &["--setrw", &device.path])?;
        if caching == Caching::Buffered || device.has_direct_io() {
            return Ok(device);
        }
        Err(Skip::new(format!("a loop device over {} has no direct I/O", backing.display())))
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn name(&self) -> String {
        self.path.trim_start_matches("/dev/").to_owned()
    }

    /// losetup succeeds where the kernel fell back to buffered I/O.
    fn has_direct_io(&self) -> bool {
        let state = fs::read_to_string(format!("/sys/block/{}/loop/dio", self.name()));
        state.is_ok_and(|state| state.trim() == "1")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(error) = tools::run("losetup", &["--detach", &self.path]) {
            eprintln!("{} is left attached: {error}", self.path);
        }
    }
}

/// A block device of its own, gone on drop. Its backing file is sparse.
#[derive(Debug)]
pub struct LoopDevice {
    // Detached before its backing file is deleted.
    device: Loop,
    backing: PathBuf,
    /// Holds the backing file, unless that lies elsewhere. Locked, so that others can tell it from one that was left.
    _directory: Option<(TempDir, File)>,
}

impl LoopDevice {
    /// A device of so many MiB, with direct I/O to its backing file.
    ///
    /// # Errors
    /// [`Skip`] when this machine cannot: not root, no losetup, or loop devices have no direct I/O.
    pub fn new(sector: SectorSize, size_mib: u64) -> Result<Self, Skip> {
        check_root()?;
        let base = base_directory();
        sweep::sweep(&base);
        let failed = |error| Skip::new(format!("no directory in {}: {error}", base.display()));
        let (directory, lock) = sweep::create(&base).map_err(failed)?;
        // As that of a mount, for who has to remove it.
        fs::create_dir(directory.path().join(sweep::POINT)).map_err(failed)?;
        let backing = directory.path().join(sweep::BACKING);
        let device = Loop::attach(&backing, sector, size_mib, Caching::Direct)?;
        Ok(Self { device, backing, _directory: Some((directory, lock)) })
    }

    /// A device over a new file at `backing`, through the page cache.
    ///
    /// # Errors
    /// [`Skip`] as for [`LoopDevice::new`].
    pub fn over(backing: &Path, sector: SectorSize, size_mib: u64) -> Result<Self, Skip> {
        check_root()?;
        let device = Loop::attach(backing, sector, size_mib, Caching::Buffered)?;
        Ok(Self { device, backing: backing.to_owned(), _directory: None })
    }

    /// The device, as `/dev/loop3`.
    pub fn path(&self) -> &Path {
        Path::new(self.device.path())
    }

    /// The kernel's name, as in `/sys/block`.
    pub fn name(&self) -> String {
        self.device.name()
    }

    /// The file that the device is.
    pub fn backing(&self) -> &Path {
        &self.backing
    }

    /// Gives the backing file and the device another size.
    ///
    /// # Errors
    /// [`Skip`] if losetup fails.
    pub fn resize(&self, bytes: u64) -> Result<(), Skip> {
        let failed =
            |error| Skip::new(format!("cannot resize {}: {error}", self.backing.display()));
        File::options()
            .write(true)
            .open(&self.backing)
            .and_then(|file| file.set_len(bytes))
            .map_err(failed)?;
        tools::run("losetup", &["--set-capacity", self.device.path()])?;
        Ok(())
    }

    /// Has the kernel refuse writes to it, or take them again.
    ///
    /// # Errors
    /// [`Skip`] if blockdev fails.
    pub fn set_read_only(&self, read_only: ReadOnly) -> Result<(), Skip> {
        let option = if read_only == ReadOnly::Yes { "--setro" } else { "--setrw" };
        tools::run("blockdev", &[option, self.device.path()])?;
        Ok(())
    }

    /// Sets a limit of the device's queue, a file in `/sys/block/NAME/queue`.
    ///
    /// # Errors
    /// [`Skip`] if the kernel does not take it.
    pub fn set_limit(&self, limit: &str, value: u64) -> Result<(), Skip> {
        let path = format!("/sys/block/{}/queue/{limit}", self.name());
        fs::write(&path, value.to_string()).map_err(|error| Skip::new(format!("{path}: {error}")))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(skip) = self.set_read_only(ReadOnly::No) {
            eprintln!("{} stays read-only: {skip}", self.device.path());
        }
    }
}

/// Whether a device may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadOnly {
    /// It may not.
    Yes,
    /// It may.
    No,
}
