//! Which fallocates reach a file, with their arguments, as the file system sees them: whoever calls, by a ring or not.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::report::Skip;
use crate::trace::Trace;

/// The events of a fallocate on ext4, before anything is done: which of them tells of it depends on the mode.
const EVENTS: [&str; 3] = ["ext4_punch_hole", "ext4_zero_range", "ext4_fallocate_enter"];

/// A fallocate, offset and length.
pub type Fallocate = (Mode, u64, u64);

/// The modes that are told apart. A hole is punched with KEEP_SIZE, or the kernel refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// PUNCH_HOLE with KEEP_SIZE.
    PunchHole,
    /// ZERO_RANGE alone: the file may become longer.
    ZeroRange,
    /// No flag: space is put aside, and the file may become longer.
    Plain,
    /// Anything else.
    Other,
}

/// Records the fallocates of one file on ext4.
#[derive(Debug)]
pub struct FallocateTrace(Trace);

impl FallocateTrace {
    /// Prepares to record what is done to the file with this metadata.
    ///
    /// # Errors
    /// [`Skip`] where this process may not trace, or the kernel has no such event.
    pub fn new(file: &Metadata) -> Result<Self, Skip> {
        let trace = Trace::new("fallocate")?;
        let device = (libc::major(file.dev()) << 20) | libc::minor(file.dev());
        let this_file = format!("dev == {device} && ino == {}", file.ino());
        for event in EVENTS {
            trace.set(&format!("events/ext4/{event}/filter"), &this_file)?;
            trace.set(&format!("events/ext4/{event}/enable"), "1")?;
        }
        Ok(Self(trace))
    }

    /// Records from here on.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn begin(&self) -> io::Result<()> {
        self.0.begin()
    }

    /// What was done since [`FallocateTrace::begin`], in order.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn end(&self) -> io::Result<Vec<Fallocate>> {
        Ok(self.0.end()?.lines().filter_map(fallocate).collect())
    }
}

/// The call in a line such as `x-1 [000] ..... 1.5: ext4_zero_range: dev 7,0 ino 12 offset 0 len 4096 mode ZERO_RANGE`.
fn fallocate(line: &str) -> Option<Fallocate> {
    let event = EVENTS.into_iter().find(|event| line.contains(&format!(" {event}: ")))?;
    let after = |word: &str| {
        let (_, rest) = line.split_once(&format!(" {word} "))?;
        rest.split_whitespace().next()
    };
    let mode = match (event, after("mode").unwrap_or_default()) {
        ("ext4_punch_hole", _) => Mode::PunchHole,
        ("ext4_zero_range", "ZERO_RANGE") => Mode::ZeroRange,
        ("ext4_fallocate_enter", "") => Mode::Plain,
        // The other two events come as well, where this one comes for every call.
        ("ext4_fallocate_enter", flags) if flags.contains("PUNCH") || flags.contains("ZERO") => {
            return None;
        }
        _ => Mode::Other,
    };
    Some((mode, after("offset")?.parse().ok()?, after("len")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read() {
        let line = |event, mode| {
            format!("x-1 [000] ..... 1.5: {event}: dev 7,0 ino 12 offset 512 len 4096 mode {mode}")
        };
        for (event, mode, read) in [
            ("ext4_punch_hole", "", Some(Mode::PunchHole)),
            ("ext4_zero_range", "ZERO_RANGE", Some(Mode::ZeroRange)),
            ("ext4_zero_range", "KEEP_SIZE|ZERO_RANGE", Some(Mode::Other)),
            ("ext4_fallocate_enter", "", Some(Mode::Plain)),
            ("ext4_fallocate_enter", "KEEP_SIZE", Some(Mode::Other)),
            ("ext4_fallocate_enter", "ZERO_RANGE", None),
            ("ext4_fallocate_exit", "", None),
        ] {
            assert_eq!(
                fallocate(&line(event, mode)),
                read.map(|mode| (mode, 512, 4096)),
                "{event}"
            );
        }
    }
}
