//! Two programs side by side: what a run of each gave, without what differs by nature.

use std::path::Path;
use std::process::{Command, Stdio};

/// What a run of a program gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// What it printed.
    pub stdout: String,
    /// What it complained about, without the name of the program.
    pub stderr: String,
    /// Its exit code; none after a signal.
    pub code: Option<i32>,
}

/// Runs a program in `dir`, without input.
///
/// # Panics
/// If it cannot be started.
pub fn run(program: &Path, dir: &Path, arguments: &[&str]) -> Run {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(dir)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .expect("the program was found before");
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let stderr = String::from_utf8_lossy(&output.stderr).replace(&format!("{name}: "), "");
    Run {
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr,
        code: output.status.code(),
    }
}
