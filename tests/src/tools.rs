//! The installed programs that tests compare with or build on.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::report::{self, Skip};

/// Why an installed program gave no result.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The program is in none of the directories searched.
    #[error("{tool} is not installed")]
    NotInstalled {
        /// Its name.
        tool: String,
    },
    /// The program could not be started.
    #[error("{tool} could not be started: {source}")]
    Start {
        /// Its name.
        tool: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The program ended with another exit code than 0.
    #[error("{tool} {args:?} failed with code {code:?}: {stderr}{stdout}")]
    Failed {
        /// Its name.
        tool: String,
        /// Its arguments.
        args: Vec<OsString>,
        /// Its exit code; none after a signal.
        code: Option<i32>,
        /// What it printed.
        stdout: String,
        /// What it complained about.
        stderr: String,
    },
    /// The program's version line is not understood.
    #[error("{tool}: no version in {text:?}")]
    Version {
        /// Its name.
        tool: String,
        /// What it printed.
        text: String,
    },
}

impl From<ToolError> for Skip {
    fn from(error: ToolError) -> Self {
        Self::new(error.to_string())
    }
}

/// What a program that ended with code 0 printed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// A version: major, minor, patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number, 0 if there is none.
    pub patch: u32,
}

/// Directories searched after those of `PATH`: where mkfs and losetup live, which not every shell names.
const MORE_DIRECTORIES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Where an installed program is.
///
/// # Errors
/// [`ToolError::NotInstalled`].
pub fn find(tool: &str) -> Result<PathBuf, ToolError> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(MORE_DIRECTORIES.map(PathBuf::from))
        .map(|directory| directory.join(tool))
        .find(|file| file.is_file())
        .ok_or_else(|| ToolError::NotInstalled { tool: tool.to_owned() })
}

/// Whether a program is missing, reported as a skip: the test returns when the answer is `true`.
///
/// # Panics
/// With `BLKRING_CI=1`, if it is missing.
#[track_caller]
pub fn missing(tool: &str) -> bool {
    report::or_skip(find(tool).map_err(Skip::from)).is_none()
}

/// Runs a command that must succeed; its standard output.
///
/// # Panics
/// If it fails, with what it printed.
#[track_caller]
pub fn run_ok(command: &mut Command) -> String {
    let output = command.output().expect("the program was found before");
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {stderr}{stdout}", output.status);
    stdout
}

/// Runs an installed program, in the C locale and without input.
///
/// # Errors
/// Not installed, not startable, or an exit code other than 0: the code and both outputs are in the error, so that a
/// test can look at them.
pub fn run<A: AsRef<OsStr>>(tool: &str, args: &[A]) -> Result<Output, ToolError> {
    let ended = Command::new(find(tool)?)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .map_err(|source| ToolError::Start { tool: tool.to_owned(), source })?;
    let stdout = String::from_utf8_lossy(&ended.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    if ended.status.success() {
        return Ok(Output { stdout, stderr });
    }
    Err(ToolError::Failed {
        tool: tool.to_owned(),
        args: args.iter().map(|arg| arg.as_ref().to_owned()).collect(),
        code: ended.status.code(),
        stdout,
        stderr,
    })
}

/// Runs the installed qemu-img.
///
/// # Errors
/// Those of [`run`]; `qemu-img check` ends with 2 on corruption and 3 on leaks.
pub fn qemu_img<A: AsRef<OsStr>>(args: &[A]) -> Result<Output, ToolError> {
    run("qemu-img", args)
}

/// Runs the installed qemu-io.
///
/// # Errors
/// Those of [`run`].
pub fn qemu_io<A: AsRef<OsStr>>(args: &[A]) -> Result<Output, ToolError> {
    run("qemu-io", args)
}

/// The version that `TOOL --version` prints.
///
/// # Errors
/// Those of [`run`], and [`ToolError::Version`].
pub fn version(tool: &str) -> Result<Version, ToolError> {
    let output = run(tool, &["--version"])?;
    parse_version(&output.stdout)
        .ok_or_else(|| ToolError::Version { tool: tool.to_owned(), text: output.stdout })
}

/// The first word that starts with two or three numbers joined by dots: `10.0.2`, `6.1-rc1`, `v3.33`.
fn parse_version(text: &str) -> Option<Version> {
    text.split_whitespace().find_map(parse_word)
}

fn parse_word(word: &str) -> Option<Version> {
    let word = word.trim_start_matches(['(', 'v']);
    let end = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
    let mut numbers = word.get(..end)?.split('.').map(str::parse::<u32>);
    let major = numbers.next()?.ok()?;
    let minor = numbers.next()?.ok()?;
    let patch = numbers.next().and_then(Result::ok).unwrap_or(0);
    Some(Version { major, minor, patch })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        let v = |major, minor, patch| Some(Version { major, minor, patch });
        let qemu = "qemu-img version 10.0.2 (Debian 1:10.0.2+ds-2)\nCopyright (c) 2003-2025";
        assert_eq!(parse_version(qemu), v(10, 0, 2));
        assert_eq!(parse_version("strace -- version 6.1\nCopyright"), v(6, 1, 0));
        assert_eq!(parse_version("fio-3.33\n"), None);
        assert_eq!(parse_version("perf v6.1-rc1"), v(6, 1, 0));
        assert_eq!(parse_version("no number 12 here."), None);
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = run("blkring-no-such-tool", &["x"]).unwrap_err();
        assert!(matches!(error, ToolError::NotInstalled { .. }));
        assert_eq!(error.to_string(), "blkring-no-such-tool is not installed");
        assert_eq!(Skip::from(error).to_string(), "blkring-no-such-tool is not installed");
    }

    #[test]
    fn a_failure_carries_code_and_output() {
        let error = run("sh", &["-c", "echo out; echo err >&2; exit 3"]).unwrap_err();
        let ToolError::Failed { code, stdout, stderr, .. } = error else { panic!("{error}") };
        assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(3), "out\n", "err\n"));
    }

    #[test]
    fn success_carries_output() {
        let output = run("sh", &["-c", "echo out; echo err >&2"]).unwrap();
        assert_eq!(output, Output { stdout: "out\n".into(), stderr: "err\n".into() });
    }
}
