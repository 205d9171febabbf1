//! Keeps what is written from filling a small memory.
//!
//! Writes through the page cache leave it full of data that the disk has not got yet. That memory is charged to the
//! control group of the program, and where the group is small and the disk is slow, a kernel may end the program before
//! it has written the data out. So with a limit of memory the target is synced each time an eighth of it was written.

use std::fs::File;
use std::io;
use std::path::Path;

/// What part of the limit may be written before it is synced.
const PART: u64 = 8;

/// Syncs the target now and then.
pub struct WriteBack {
    file: File,
    every: u64,
    next: u64,
}

impl WriteBack {
    /// For a file that is written through the page cache. `None` if no limit of memory is in force.
    ///
    /// # Errors
    /// Of opening the file.
    pub fn of(path: &Path) -> io::Result<Option<Self>> {
        let Some(limit) = memory_limit() else { return Ok(None) };
        let every = (limit / PART).max(1);
        Ok(Some(WriteBack { file: File::open(path)?, every, next: every }))
    }

    /// So many bytes have been written: syncs them if it is time.
    ///
    /// # Errors
    /// Of fdatasync.
    pub fn written(&mut self, bytes: u64) -> io::Result<()> {
        if bytes < self.next {
            return Ok(());
        }
        self.next = bytes + self.every;
        self.file.sync_data()
    }
}

/// The smallest limit of memory of the control groups that this process is in, in bytes.
fn memory_limit() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    groups.lines().filter_map(|line| limit_of(line, Path::new("/sys/fs/cgroup"))).min()
}

/// The limit that a line of `/proc/self/cgroup` stands for, of that group and those around it.
fn limit_of(line: &str, root: &Path) -> Option<u64> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, group) = rest.split_once(':')?;
    let (directory, file) = match controllers {
        "" => (root.to_owned(), "memory.max"),
        _ if controllers.split(',').any(|one| one == "memory") => {
            (root.join("memory"), "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let group = Path::new(group.trim_start_matches('/'));
    let limits = group.ancestors().filter_map(|part| {
        let text = std::fs::read_to_string(directory.join(part).join(file)).ok()?;
        // "max", or a number near the largest: none.
        text.trim().parse::<u64>().ok().filter(|limit| *limit < 1 << 60)
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_limit_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = |path: &str, file: &str, text: &str| {
            let directory = root.path().join(path);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join(file), text).unwrap();
        };
        group("memory/a/b", "memory.limit_in_bytes", "9223372036854771712\n");
        group("memory/a", "memory.limit_in_bytes", "4096\n");
        group("c", "memory.max", "8192\n");
        group("c/d", "memory.max", "max\n");
        let limit = |line: &str| limit_of(line, root.path());
        assert_eq!(limit("4:memory:/a/b"), Some(4096));
        assert_eq!(limit("0::/c/d"), Some(8192));
        assert_eq!(limit("0::/none"), None);
        assert_eq!(limit("3:cpu:/a"), None);
    }
}
