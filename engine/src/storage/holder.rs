//! Who has an image file locked, as far as `/proc` tells.

use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

/// How many descriptors are looked at. Each costs some microseconds.
const MOST_DESCRIPTORS: usize = 100_000;

/// How much of what the kernel tells of one descriptor is read. The locks come behind a few short lines.
const MOST_BYTES: u64 = 64 << 10;

/// A process that has an image file locked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// The name that it gives itself, with what cannot be printed escaped.
    pub command: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.pid == std::process::id() {
            write!(f, "this process ({})", self.pid)
        } else {
            write!(f, "{} (process {})", self.command, self.pid)
        }
    }
}

/// A process that holds `byte` of `file` by another open file description than this one. Reads `/proc` alone, which no
/// file system or other process can keep waiting; looks at a bounded number of descriptors, and finds nobody whom this
/// user may not look at.
pub(super) fn find(file: &File, byte: u32) -> Option<Holder> {
    let name = name(file)?;
    let own = file.as_raw_fd().to_string();
    let mut left = MOST_DESCRIPTORS;
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let process = process.file_name();
        let Some(pid) = process.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { continue };
        for descriptor in descriptors.flatten() {
            left = left.checked_sub(1)?;
            if pid == std::process::id() && *descriptor.file_name() == *own {
                continue;
            }
            if read(&descriptor.path()).is_some_and(|text| holds(&text, &name, byte)) {
                return Some(Holder { pid, command: command(pid) });
            }
        }
    }
    None
}

/// The file as the kernel writes it in a line about a lock: `MAJOR:MINOR:INODE`. The numbers of the device are those of
/// the file system, which may differ from what stat tells; so they are taken from a lock of our own, if there is one.
fn name(file: &File) -> Option<String> {
    let own = read(format!("/proc/self/fdinfo/{}", file.as_raw_fd()).as_ref());
    let own = own.as_deref().and_then(|text| locks(text).next().map(|lock| lock.file.to_owned()));
    own.or_else(|| {
        let metadata = file.metadata().ok()?;
        let device = metadata.dev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        Some(format!("{major:02x}:{minor:02x}:{}", metadata.ino()))
    })
}

fn read(path: &std::path::Path) -> Option<String> {
    let mut text = Vec::new();
    File::open(path).ok()?.take(MOST_BYTES).read_to_end(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// One lock of a descriptor.
struct Lock<'a> {
    file: &'a str,
    first: u64,
    /// None: to the end.
    last: Option<u64>,
}

/// The locks on bytes in a text such as `lock:\t1: OFDLCK  ADVISORY  READ -1 fe:00:6449634 100 101`.
fn locks(text: &str) -> impl Iterator<Item = Lock<'_>> {
    text.lines().filter_map(|line| {
        let line = line.strip_prefix("lock:")?;
        // Those of flock(2) are another world: they cover everything and meet no bytes.
        if !line.contains("OFDLCK") && !line.contains("POSIX") {
            return None;
        }
        let mut words = line.split_whitespace().rev();
        let (last, first, file) = (words.next()?, words.next()?, words.next()?);
        Some(Lock { file, first: first.parse().ok()?, last: last.parse().ok() })
    })
}

fn holds(text: &str, name: &str, byte: u32) -> bool {
    let byte = u64::from(byte);
    locks(text).any(|lock| {
        lock.file == name && lock.first <= byte && lock.last.is_none_or(|last| byte <= last)
    })
}

fn command(pid: u32) -> String {
    let name = read(format!("/proc/{pid}/comm").as_ref()).unwrap_or_default();
    let name = name.trim_end_matches('\n').escape_debug().to_string();
    if name.is_empty() { "a process that has ended".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "pos:\t0\nflags:\t02500002\nmnt_id:\t26\nino:\t13\n\
        lock:\t1: OFDLCK ADVISORY  READ -1 00:1b:13 100 101\n\
        lock:\t2: POSIX  ADVISORY  WRITE 77 00:1b:13 200 EOF\n";

    #[test]
    fn lines_about_locks_are_understood() {
        for (byte, held) in [(99, false), (100, true), (101, true), (102, false), (999, true)] {
            assert_eq!(holds(TEXT, "00:1b:13", byte), held, "byte {byte}");
            assert!(!holds(TEXT, "00:1b:14", byte));
        }
        let flock = "lock:\t1: FLOCK  ADVISORY  WRITE 2971 00:1b:13 0 EOF\n";
        assert!(!holds(flock, "00:1b:13", 100), "flock(2) holds no bytes");
        assert!(holds(&format!("{flock}{TEXT}"), "00:1b:13", 101));
        assert!(!holds(&format!("{flock}{TEXT}"), "00:1b:13", 102));
        assert!(locks("lock:\nlock:\t1: OFDLCK x\nlock").next().is_none());
    }
}
