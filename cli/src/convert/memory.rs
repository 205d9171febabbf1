//! How much memory a copy may take: the limits of the control groups that the program is in.

use std::path::Path;

/// Twice what a piece may take at worst, in bytes: its buffer, a compressed cluster of the source and what it was
/// before, one of the target and the copy of it that is written.
const PER_PIECE: u64 = 16 << 20;

/// The smallest limit of memory of the control groups that this process is in, in bytes.
pub fn limit() -> Option<u64> {
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

/// How many pieces of a copy there may be at once where `asked` are wanted. In a small memory they are fewer.
pub fn pieces(asked: usize) -> usize {
    limit().map_or(asked, |limit| fitting(asked, limit))
}

fn fitting(asked: usize, limit: u64) -> usize {
    let fit = usize::try_from(limit / PER_PIECE).unwrap_or(usize::MAX);
    asked.min(fit.max(1))
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

    #[test]
    fn a_small_memory_has_room_for_few_pieces() {
        let fit = [1, 32, 128, 256, 1 << 20].map(|limit| fitting(16, limit << 20));
        assert_eq!(fit, [1, 2, 8, 16, 16]);
        assert_eq!(fitting(1, 1 << 40), 1);
    }
}
