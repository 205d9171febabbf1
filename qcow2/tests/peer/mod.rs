//! The installed qemu-img as the other opinion.

use std::process::{Command, Stdio};

/// Whether qemu-img is missing; says so if it is.
pub fn missing() -> bool {
    let found = Command::new("qemu-img").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("skipped: qemu-img is not installed");
    }
    !found
}

/// Runs a command that must succeed; its standard output.
pub fn run_ok(command: &mut Command) -> String {
    let output = command.output().expect("the program was found before");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {stderr}", output.status);
    String::from_utf8(output.stdout).expect("UTF-8")
}
