//! Two programs side by side: what a run of each gave, without what differs by nature.

use std::io::Write as _;
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
    run_with_input(program, dir, arguments, "")
}

/// The same with a standard input.
///
/// # Panics
/// If it cannot be started.
pub fn run_with_input(program: &Path, dir: &Path, arguments: &[&str], input: &str) -> Run {
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(dir)
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program was found before");
    let mut pipe = child.stdin.take().expect("it is a pipe");
    // Whether all of it is read is the program's affair.
    drop(pipe.write_all(input.as_bytes()));
    drop(pipe);
    let output = child.wait_with_output().expect("it was started");
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let stderr = String::from_utf8_lossy(&output.stderr).replace(&format!("{name}: "), "");
    Run {
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr,
        code: output.status.code(),
    }
}

/// The lines that qemu-io prints, without what depends on time.
pub fn without_times(text: &str) -> String {
    let lines = text.lines().map(|line| {
        // "4 KiB, 1 ops; 00.00 sec (47.247 MiB/sec and 12095.1160 ops/sec)"
        if let Some((size, rest)) = line.split_once("; ")
            && rest.ends_with(" ops/sec)")
            && rest.contains("/sec and ")
        {
            return format!("{size}; TIME\n");
        }
        // "4096,1,0:00:00.00,1354229.106,330.622"
        let values: Vec<&str> = line.split(',').collect();
        match values[..] {
            [bytes, count, time, _, _] if time.contains(':') => format!("{bytes},{count},TIME\n"),
            _ => format!("{line}\n"),
        }
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_times_are_left_out() {
        let text = "wrote 4/4 bytes at offset 0\n4 bytes, 1 ops; 00.00 sec (47.247 KiB/sec and 12.1160 ops/sec)\n\
                    4096,1,0:00:00.00,1354229.106,330.622\nother, text; here";
        let expected =
            "wrote 4/4 bytes at offset 0\n4 bytes, 1 ops; TIME\n4096,1,TIME\nother, text; here\n";
        assert_eq!(without_times(text), expected);
    }
}
