//! The program through links named qemu-img and qemu-io, beside the installed programs of these names.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::report::{self, Skip};
use crate::{program, tools};

/// The major version of the programs whose words are followed.
const FOLLOWED: u32 = 10;

/// What a line of shell gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// Standard output, with what differs from run to run masked.
    pub stdout: String,
    /// Standard error, masked in the same way.
    pub stderr: String,
    /// The exit code; none after a signal.
    pub code: Option<i32>,
}

/// A directory in which lines of shell run twice: with the installed programs and with the links.
pub struct Links {
    directory: tempfile::TempDir,
}

/// Whose programs a line means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The links.
    Ours,
    /// The installed ones.
    Theirs,
}

impl Links {
    /// A directory with the links. `setup` is run once, by the installed programs; each line finds what it made.
    ///
    /// `None` if qemu-img or qemu-io is missing, after the skip was reported.
    ///
    /// # Panics
    /// If the setup fails.
    #[track_caller]
    pub fn new(setup: &[&str]) -> Option<Links> {
        for tool in ["qemu-img", "qemu-io"] {
            report::or_skip(tools::find(tool).map_err(Skip::from))?;
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let links = directory.path().join("links");
        std::fs::create_dir(&links).expect("the directory is writable");
        for name in ["qemu-img", "qemu-io", "blkring"] {
            symlink(program::blkring(), links.join(name)).expect("the directory is writable");
        }
        let made = directory.path().join("made");
        std::fs::create_dir(&made).expect("the directory is writable");
        for line in setup {
            let said = shell(&made, line, None);
            assert_eq!(said.code, Some(0), "{line}: {said:?}");
        }
        Some(Links { directory })
    }

    /// Whether the installed programs have the words that are followed. If not, `not applicable` is reported: the
    /// test then compares what images hold, and no words.
    pub fn same_words(&self) -> bool {
        let version = tools::version("qemu-img").expect("the program was found before");
        if version.major != FOLLOWED {
            let found = version.major;
            report::not_applicable(&format!("the words of qemu-img {FOLLOWED}, not {found}"));
        }
        version.major == FOLLOWED
    }

    /// Where the files are that the setup made.
    pub fn made(&self) -> PathBuf {
        self.directory.path().join("made")
    }

    /// Where lines run.
    pub fn place(&self, whose: Whose) -> PathBuf {
        self.directory.path().join(match whose {
            Whose::Ours => "ours/here",
            Whose::Theirs => "theirs/here",
        })
    }

    /// Runs a line in a fresh directory with the files that the setup made.
    ///
    /// # Panics
    /// If there is no such directory.
    #[track_caller]
    pub fn run(&self, whose: Whose, line: &str) -> Said {
        let place = self.place(whose);
        if place.exists() {
            std::fs::remove_dir_all(&place).expect("made here before");
        }
        std::fs::create_dir_all(&place).expect("the directory is writable");
        let copied = shell(&place, "cp -a ../../made/. .", None);
        assert_eq!(copied.code, Some(0), "{copied:?}");
        let links = self.directory.path().join("links");
        shell(&place, line, (whose == Whose::Ours).then_some(&links))
    }

    /// Runs a line with both; what they said must be the same.
    ///
    /// # Panics
    /// If it is not.
    #[track_caller]
    pub fn compare(&self, line: &str) {
        let (theirs, ours) = (self.run(Whose::Theirs, line), self.run(Whose::Ours, line));
        assert_eq!(ours, theirs, "{line}");
    }
}

/// Runs a line of shell in `place`, with programs from `first` before all others.
fn shell(place: &Path, line: &str, first: Option<&PathBuf>) -> Said {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::split_paths(&path);
    let path = std::env::join_paths(first.cloned().into_iter().chain(path)).expect("no colons");
    let output = Command::new("bash")
        .args(["-c", line])
        .current_dir(place)
        .env("PATH", path)
        .env("LC_ALL", "C")
        .env("TZ", "America/New_York")
        .stdin(Stdio::null())
        .output()
        .expect("there is a shell");
    Said {
        stdout: masked(&String::from_utf8_lossy(&output.stdout)),
        stderr: masked(&String::from_utf8_lossy(&output.stderr)),
        code: output.status.code(),
    }
}

/// The text without what differs from run to run: times, and the space that files take.
fn masked(text: &str) -> String {
    let lines = text.split_inclusive('\n').map(|line| {
        let blanks = line.len() - line.trim_start().len();
        let (indent, rest) = line.split_at(blanks);
        let mask = |start: &str| format!("{indent}{start}*\n");
        for start in ["disk size: ", "\"actual-size\": ", "Run completed in "] {
            if rest.starts_with(start) {
                return mask(start);
            }
        }
        match rest.split_once(" ops; ") {
            Some((counts, _)) => format!("{indent}{counts} ops; *\n"),
            None => line.to_owned(),
        }
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_space_are_masked() {
        let text = "a: b\n    disk size: 196 KiB\n\"actual-size\": 5,\n4 KiB, 1 ops; 00.0 sec\nRun";
        let expected = "a: b\n    disk size: *\n\"actual-size\": *\n4 KiB, 1 ops; *\nRun";
        assert_eq!(masked(text), expected);
    }
}
