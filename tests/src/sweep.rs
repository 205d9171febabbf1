//! Directories of mounts: how they are named and locked, and the removal of those whose process was killed.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use tempfile::TempDir;

use crate::tools;

/// The mount point in a mount's directory.
pub(crate) const POINT: &str = "mnt";
/// The backing file in a mount's directory.
pub(crate) const BACKING: &str = "disk";
const LOCK: &str = "lock";
const PREFIX: &str = "blkring-mount-";

/// A new directory in `base`, and its lock, held until the file is closed: by the kernel if the process is killed.
pub(crate) fn create(base: &Path) -> io::Result<(TempDir, File)> {
    let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(base)?;
    let lock = File::create_new(directory.path().join(LOCK))?;
    lock.lock()?;
    Ok((directory, lock))
}

/// Unmounts and deletes what killed processes left in `base`. What cannot be removed stays for the next sweep.
pub(crate) fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX) {
            sweep_one(&entry.path());
        }
    }
}

/// Without a lock file the directory is just being made or removed: left alone, as is one whose lock is held.
fn sweep_one(directory: &Path) {
    let Ok(lock) = File::open(directory.join(LOCK)) else { return };
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock | TryLockError::Error(_)) => return,
    }
    let removed = remove(directory);
    eprintln!("left by a killed test: {}: {removed:?}", directory.display());
}

fn remove(directory: &Path) -> io::Result<()> {
    // Fails when the process was killed before it mounted anything: then only the loop device is attached.
    let unmounted = tools::run("umount", &[directory.join(POINT)]);
    if unmounted.is_err() {
        detach(&directory.join(BACKING));
    }
    // Not recursive: if the unmount failed because the file system is busy, its files must not be deleted.
    for file in [BACKING, LOCK] {
        match fs::remove_file(directory.join(file)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    fs::remove_dir(directory.join(POINT))?;
    fs::remove_dir(directory)
}

fn detach(backing: &Path) {
    let filter = ["--noheadings", "--output", "NAME", "--associated"].map(AsRef::as_ref);
    let Ok(found) = tools::run("losetup", &[&filter[..], &[backing.as_os_str()]].concat()) else {
        return;
    };
    for device in found.stdout.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Err(error) = tools::run("losetup", &["--detach", device]) {
            eprintln!("{device} stays attached: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_directory_whose_owner_is_gone_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let (used, _used_lock) = create(base.path()).unwrap();
        let (left, left_lock) = create(base.path()).unwrap();
        let young = base.path().join("blkring-mount-young");
        fs::create_dir(&young).unwrap();
        let (used, left) = (used.keep(), left.keep());
        for directory in [&used, &left] {
            fs::create_dir(directory.join(POINT)).unwrap();
            fs::write(directory.join(BACKING), "x").unwrap();
        }
        drop(left_lock);
        sweep(base.path());
        assert!(used.join(BACKING).exists(), "a directory in use was swept");
        assert!(young.exists(), "a directory without a lock was swept");
        assert!(!left.exists(), "a left directory stays");
    }
}
