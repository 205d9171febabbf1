//! What this thread asks of the kernel through io_uring, counted by the kernel: a trace instance of its own that
//! records each submission with its opcode.

use std::collections::BTreeMap;
use std::io;

use crate::report::Skip;
use crate::trace::Trace;

/// The event of a submission.
const EVENT: &str = "events/io_uring/io_uring_submit_req";

/// Counts by opcode, as the kernel names them: `WRITE`, `FSYNC`, `FALLOCATE`.
pub type Opcodes = BTreeMap<String, u64>;

/// Records the submissions of the calling thread, from [`RingTrace::begin`] to [`RingTrace::end`].
pub struct RingTrace(Trace);

impl RingTrace {
    /// Prepares to record.
    ///
    /// # Errors
    /// [`Skip`] where this process may not trace, or the kernel has no such event.
    pub fn new() -> Result<Self, Skip> {
        let trace = Trace::new("ring")?;
        trace.only_this_thread()?;
        trace.set(&format!("{EVENT}/enable"), "1")?;
        Ok(Self(trace))
    }

    /// Records from here on.
    ///
    /// # Errors
    /// Of the kernel.
    pub fn begin(&self) -> io::Result<()> {
        self.0.begin()
    }

    /// What was submitted since [`RingTrace::begin`].
    ///
    /// # Errors
    /// Of the kernel.
    pub fn end(&self) -> io::Result<Opcodes> {
        Ok(opcodes(&self.0.end()?))
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
