//! Skips and inapplicable tests, written where `cargo xtask test` finds them.
//!
//! A line goes to standard error and, when `BLKRING_REPORT` names a file, to the end of that file: the output of a
//! passing test is captured by the harness, a file is not. The line ends with the test's name in brackets, since a
//! test that reported one of them is counted under it and not as passed. One test, one file system: a test that
//! reports returns at once.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

/// Start of a line that says why a test did not run on this machine.
pub const SKIPPED: &str = "skipped: ";
/// Start of a line that says why a test cannot exist on a file system.
pub const NOT_APPLICABLE: &str = "not applicable: ";
/// Environment variable: the file that report lines are appended to.
pub const REPORT_ENV: &str = "BLKRING_REPORT";
/// Environment variable: `1` turns a skip into a failure.
pub const CI_ENV: &str = "BLKRING_CI";

/// Why a test cannot run on this machine: a missing tool, no root, no such file system in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Skip {
    reason: String,
}

impl Skip {
    /// A skip for `reason`, one line of text.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into().replace('\n', "; ") }
    }

    /// Writes the line `skipped: REASON [TEST]`.
    ///
    /// # Panics
    /// With `BLKRING_CI=1`: the test fails.
    #[track_caller]
    pub fn report(&self) {
        let ci = std::env::var_os(CI_ENV).is_some_and(|value| value == "1");
        assert!(!ci, "{SKIPPED}{} (a skip is a failure under {CI_ENV}=1)", self.reason);
        write_line(SKIPPED, &self.reason);
    }
}

/// The value, or `None` after the skip has been reported: `let Some(mount) = or_skip(..) else { return };`.
///
/// # Panics
/// With `BLKRING_CI=1`, if there is no value.
#[track_caller]
pub fn or_skip<T>(result: Result<T, Skip>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(skip) => {
            skip.report();
            None
        }
    }
}

/// Writes the line `not applicable: REASON [TEST]`.
pub fn not_applicable(reason: &str) {
    write_line(NOT_APPLICABLE, reason);
}

fn write_line(prefix: &str, reason: &str) {
    let line = format!("{prefix}{reason} [{}]\n", test_name());
    eprint!("{line}");
    if let Some(path) = std::env::var_os(REPORT_ENV) {
        append(Path::new(&path), &line).expect("the file named by BLKRING_REPORT is writable");
    }
}

/// One `write` call of a file opened for appending: lines of parallel tests do not mix.
fn append(path: &Path, line: &str) -> std::io::Result<()> {
    OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
}

/// The harness names a test's thread after the test; nextest says it in the environment.
fn test_name() -> String {
    match std::env::var("NEXTEST_TEST_NAME") {
        Ok(name) => name,
        Err(_) => std::thread::current().name().unwrap_or("unknown").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_appended_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("report");
        append(&path, "skipped: a [x]\n").unwrap();
        append(&path, "not applicable: b [y]\n").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "skipped: a [x]\nnot applicable: b [y]\n");
    }

    #[test]
    fn a_reason_is_one_line() {
        assert_eq!(Skip::new("a\nb").to_string(), "a; b");
    }

    #[test]
    fn the_name_is_the_tests_own() {
        assert!(test_name().ends_with("the_name_is_the_tests_own"), "{}", test_name());
    }
}
