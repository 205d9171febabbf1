//! What this thread asks of the kernel through io_uring, counted by the kernel: a trace instance of its own that
//! records each submission with its opcode.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::report::Skip;
use crate::tools;

/// Where the kernel's tracing is, or is mounted to.
const TRACING: &str = "/sys/kernel/tracing";

/// The event of a submission.
const EVENT: &str = "events/io_uring/io_uring_submit_req";

/// Counts by opcode, as the kernel names them: `WRITE`, `FSYNC`, `FALLOCATE`.
pub type Opcodes = BTreeMap<String, u64>;

/// Records the submissions of the calling thread, from [`RingTrace::begin`] to [`RingTrace::end`].
pub struct RingTrace {
    instance: PathBuf,
}

impl RingTrace {
    /// Prepares to record.
    ///
    /// # Errors
    /// [`Skip`] where this process may not trace, or the kernel has no such event.
    pub fn new() -> Result<Self, Skip> {
        let tracing = Path::new(TRACING);
        if !tracing.join("instances").exists() {
            tools::run("mount", &["-t", "tracefs", "tracefs", TRACING])?;
        }
        let failed = |error: io::Error| Skip::new(format!("the kernel traces nothing: {error}"));
        let thread = fs::read_link("/proc/thread-self").map_err(failed)?;
        let thread = thread.file_name().expect("PID/task/TID").to_string_lossy().into_owned();
        let trace = Self { instance: tracing.join("instances").join(format!("blkring-{thread}")) };
        fs::create_dir(&trace.instance).map_err(failed)?;
        trace.set("set_event_pid", &thread).map_err(failed)?;
        trace.set("tracing_on", "0").map_err(failed)?;
        trace.set(&format!("{EVENT}/enable"), "1").map_err(failed)?;
        Ok(trace)
    }

    fn set(&self, file: &str, value: &str) -> io::Result<()> {
        fs::write(self.instance.join(file), value)
    }

    /// Records from here on.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn begin(&self) -> io::Result<()> {
        self.set("trace", "")?;
        self.set("tracing_on", "1")
    }

    /// What was submitted since [`RingTrace::begin`].
    ///
    /// # Errors
    /// Of the kernel.
    pub fn end(&self) -> io::Result<Opcodes> {
        self.set("tracing_on", "0")?;
        Ok(opcodes(&fs::read_to_string(self.instance.join("trace"))?))
    }
}

impl Drop for RingTrace {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.instance) {
            eprintln!("{} is left: {error}", self.instance.display());
        }
    }
}

fn opcodes(trace: &str) -> Opcodes {
    let mut counts = Opcodes::new();
    for line in trace.lines().filter(|line| line.contains("io_uring_submit_req:")) {
        let (_, after) = line.split_once("opcode ").unwrap_or_default();
        let name = after.split(',').next().unwrap_or_default();
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_are_counted() {
        let line = |opcode| {
            format!(
                " counts-7 [000] ..... 1.5: io_uring_submit_req: ring 1, req 2, user_data 0x0, opcode {opcode}, flags 0x0, sq_thread 0\n"
            )
        };
        let trace = format!("# tracer: nop\n{}{}{}", line("WRITE"), line("FSYNC"), line("WRITE"));
        let expected = [("FSYNC".to_owned(), 1), ("WRITE".to_owned(), 2)];
        assert_eq!(opcodes(&trace), Opcodes::from(expected));
    }
}
