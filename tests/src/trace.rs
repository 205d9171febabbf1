//! The kernel's trace, in an instance of its own.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::report::Skip;
use crate::tools;

/// Where the kernel's tracing is, or is mounted to.
const TRACING: &str = "/sys/kernel/tracing";

/// A trace of its own, gone on drop. It records nothing before [`Trace::begin`].
#[derive(Debug)]
pub(crate) struct Trace {
    instance: PathBuf,
}

impl Trace {
    /// A trace for the calling thread, which may have one of each name.
    ///
    /// # Errors
    /// [`Skip`] where this process may not trace.
    pub(crate) fn new(name: &str) -> Result<Self, Skip> {
        let tracing = Path::new(TRACING);
        if !tracing.join("instances").exists() {
            tools::run("mount", &["-t", "tracefs", "tracefs", TRACING])?;
        }
        let thread = thread().map_err(|error| failed(&error))?;
        let instance = tracing.join("instances").join(format!("blkring-{name}-{thread}"));
        let trace = Self { instance };
        fs::create_dir(&trace.instance).map_err(|error| failed(&error))?;
        trace.set("tracing_on", "0")?;
        Ok(trace)
    }

    /// Records what the calling thread does, and nobody else.
    ///
    /// # Errors
    /// [`Skip`] where the kernel refuses.
    pub(crate) fn only_this_thread(&self) -> Result<(), Skip> {
        self.set("set_event_pid", &thread().map_err(|error| failed(&error))?)
    }

    /// Writes one of the files of the trace.
    ///
    /// # Errors
    /// [`Skip`] where the kernel refuses, or has no such file.
    pub(crate) fn set(&self, file: &str, value: &str) -> Result<(), Skip> {
        fs::write(self.instance.join(file), value).map_err(|error| failed(&error))
    }

    /// Records from here on.
    ///
    /// # Errors
    /// Of the kernel.
    pub(crate) fn begin(&self) -> io::Result<()> {
        fs::write(self.instance.join("trace"), "")?;
        fs::write(self.instance.join("tracing_on"), "1")
    }

    /// What was recorded since [`Trace::begin`].
    ///
    /// # Errors
    /// Of the kernel.
    pub(crate) fn end(&self) -> io::Result<String> {
        fs::write(self.instance.join("tracing_on"), "0")?;
        fs::read_to_string(self.instance.join("trace"))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir(&self.instance) {
            eprintln!("{} is left: {error}", self.instance.display());
        }
    }
}

fn thread() -> io::Result<String> {
    let thread = fs::read_link("/proc/thread-self")?;
    Ok(thread.file_name().expect("PID/task/TID").to_string_lossy().into_owned())
}

fn failed(error: &io::Error) -> Skip {
    Skip::new(format!("the kernel traces nothing: {error}"))
}
