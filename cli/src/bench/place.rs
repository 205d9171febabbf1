//! Where the main job works: a temporary directory that is gone afterwards, however the job ends.

use std::path::Path;
use std::process;

use tempfile::TempDir;

use crate::failure::Failure;
use crate::name;
use crate::number::short;
use crate::text::reason;

/// What an image takes beside its data, at most: tables, and space that is made ready ahead.
const BESIDE: u64 = 64 << 20;

/// A temporary directory. It is removed when it is dropped, and when the program is interrupted or terminated.
pub fn directory() -> Result<TempDir, Failure> {
    let made = tempfile::Builder::new().prefix("blkring-bench-").tempdir();
    let directory = made.map_err(|error| {
        let place = std::env::temp_dir();
        let text = format!("no directory can be made in '{}' (TMPDIR)", place.display());
        // The error names a directory that never was; that of the place itself says more.
        let cause = place.metadata().map_or_else(|error| reason(&error), |_| reason(&error));
        Failure::Usage(format!("{text}: {cause}"))
    })?;
    let path = directory.path().to_owned();
    let handled = ctrlc::set_handler(move || {
        if let Err(error) = std::fs::remove_dir_all(&path) {
            name::complain(format_args!("'{}' was left: {}", path.display(), reason(&error)));
        }
        name::complain("interrupted");
        // As a shell tells of an interrupted program.
        process::exit(130);
    });
    match handled {
        Ok(()) => Ok(directory),
        Err(error) => Err(Failure::Usage(format!("signals cannot be handled: {error}"))),
    }
}

/// Refuses to begin where there is not room enough for an image of `size` bytes.
pub fn check_room(path: &Path, size: u64) -> Result<(), Failure> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = parent.unwrap_or(Path::new("."));
    // Where nobody can tell, the job itself will.
    let Ok(room) = rustix::fs::statvfs(directory) else { return Ok(()) };
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    let needed = size.saturating_add(BESIDE);
    if free >= needed {
        return Ok(());
    }
    Err(Failure::Usage(format!(
        "'{}' has {} free, and the job takes up to {}: give a smaller --size, or another TMPDIR or --keep",
        directory.display(),
        short(free),
        short(needed)
    )))
}
