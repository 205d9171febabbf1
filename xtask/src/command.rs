//! One command with a time limit, its output in a file.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::descendants;

const POLL: Duration = Duration::from_millis(20);

/// How a command ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// By itself.
    Exit(ExitStatus),
    /// Killed with all its children when its time was over: a hang is a failure, not a CI job without end.
    TimedOut(Duration),
}

/// Runs `command` with both outputs in the file `log`, at most for `limit`.
///
/// # Errors
/// The log cannot be written or the command cannot be started.
pub(crate) fn run(mut command: Command, log: &Path, limit: Duration) -> io::Result<Ended> {
    let output = File::create(log)?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let mut child = command.spawn()?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ended::Exit(status));
        }
        if start.elapsed() > limit {
            kill(&mut child)?;
            return Ok(Ended::TimedOut(limit));
        }
        thread::sleep(POLL);
    }
}

/// With everything below it, and not by process group: the child shares ours, so that an interrupt from the terminal
/// reaches all of them.
fn kill(child: &mut Child) -> io::Result<()> {
    let below = descendants::of(child.id());
    child.kill()?;
    if !below.is_empty() {
        // The shell's own: a program of this name is not everywhere.
        let mut kill = Command::new("sh");
        kill.args(["-c", "kill -KILL \"$@\"", "kill"]).args(below.iter().map(u32::to_string));
        // One that has ended meanwhile makes it complain.
        kill.stderr(Stdio::null()).status()?;
    }
    child.wait().map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> (Ended, String) {
        let log =
            std::env::temp_dir().join(format!("blkring-xtask-{}-{script:.4}", std::process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let ended = run(command, &log, limit).unwrap();
        let text = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&log).unwrap();
        (ended, text)
    }

    #[test]
    fn both_outputs_are_kept() {
        let (ended, text) = shell("echo a; echo b >&2; exit 3", Duration::from_secs(60));
        assert!(matches!(ended, Ended::Exit(status) if status.code() == Some(3)), "{ended:?}");
        assert_eq!(text, "a\nb\n");
    }

    #[test]
    fn a_hang_is_killed_with_its_children() {
        let (ended, text) = shell("sleep 1000 & echo $!; wait", Duration::from_millis(200));
        assert!(matches!(ended, Ended::TimedOut(_)), "{ended:?}");
        let alive = || {
            let state = std::fs::read_to_string(format!("/proc/{}/stat", text.trim()));
            state.is_ok_and(|state| !state.contains(") Z "))
        };
        // The kernel takes a moment to end a process.
        let start = Instant::now();
        while alive() && start.elapsed() < Duration::from_secs(10) {
            thread::sleep(POLL);
        }
        assert!(!alive(), "the child {text} lives on");
    }
}
