//! How far a command is: for people, for programs, and when a signal asks.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use crate::failure::Failure;
use crate::text::reason;

/// Where and how progress is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Percent on the standard output, one over the other.
    Percent,
    /// One JSON object a line, on a descriptor.
    Json(u32),
}

/// The standard error.
const STDERR: u32 = 2;

impl FromStr for Form {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let descriptor = match word {
            "human" => return Ok(Form::Percent),
            "json" => return Ok(Form::Json(STDERR)),
            _ => word.strip_prefix("json:").and_then(|number| number.parse().ok()),
        };
        let wrong = || format!("--progress expects 'human', 'json' or 'json:FD' not '{word}'");
        descriptor.map(Form::Json).ok_or_else(wrong)
    }
}

/// Tells how much of a total is done.
pub struct Progress {
    sink: Sink,
    total: u64,
    done: u64,
    /// Percent that were told last.
    told: Option<f64>,
    /// Percent from one line to the next at least.
    step: f64,
    /// Whether a signal has asked since the last look.
    asked: Arc<AtomicBool>,
}

enum Sink {
    Nowhere,
    Percent,
    Json(File),
}

/// One line for programs. All numbers but the percent are bytes.
#[derive(Serialize)]
struct Line {
    done: u64,
    total: u64,
    percent: f64,
}

impl Progress {
    /// Of `total` bytes, told in this form if any. From here on SIGUSR1 asks for one line.
    ///
    /// # Errors
    /// If the descriptor cannot be written to.
    pub fn new(form: Option<Form>, total: u64) -> Result<Self, Failure> {
        let asked = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGUSR1, asked.clone())?;
        let sink = match form {
            None => Sink::Nowhere,
            Some(Form::Percent) => Sink::Percent,
            Some(Form::Json(descriptor)) => Sink::Json(descriptor_file(descriptor)?),
        };
        let mut progress = Progress { sink, total, done: 0, told: None, step: 1.0, asked };
        progress.tell(0.0);
        Ok(progress)
    }

    /// The same with a line after so many percent at the earliest.
    #[must_use]
    pub fn in_steps_of(mut self, percent: f64) -> Self {
        self.step = percent;
        self
    }

    /// So many bytes more are done.
    pub fn add(&mut self, bytes: u64) {
        self.done += bytes;
        self.look();
    }

    /// So many bytes need nothing done. Where nobody watches, they are part of the total; where somebody does, it was
    /// found out before what has to be done.
    pub fn pass_over(&mut self, bytes: u64) {
        if let Sink::Nowhere = self.sink {
            self.done += bytes;
        }
        self.look();
    }

    /// Tells what there is to tell.
    pub fn look(&mut self) {
        let percent = self.percent();
        let asked = self.asked.swap(false, Ordering::Relaxed);
        let due = self.told.is_none_or(|told| percent >= told + self.step)
            || (percent >= 100.0 && self.told < Some(100.0));
        match &self.sink {
            Sink::Percent | Sink::Nowhere if asked => eprintln!("    ({percent:.2}/100%)"),
            _ if asked || due => self.tell(percent),
            _ => (),
        }
    }

    fn tell(&mut self, percent: f64) {
        match &self.sink {
            Sink::Nowhere => (),
            Sink::Percent => print_percent(percent),
            Sink::Json(_) => self.line(percent),
        }
        self.told = Some(percent);
    }

    /// The line of percents ends.
    pub fn end(&self) {
        if let Sink::Percent = self.sink {
            println!();
        }
    }

    /// The same for what is done as a whole.
    pub fn end_whole(&self) {
        if let Sink::Percent = self.sink {
            print_percent(100.0);
        }
        self.end();
    }

    fn percent(&self) -> f64 {
        if self.total == 0 || self.done >= self.total {
            return 100.0;
        }
        self.done as f64 * 100.0 / self.total as f64
    }

    fn line(&self, percent: f64) {
        let Sink::Json(file) = &self.sink else { return };
        let percent = (percent * 100.0).floor() / 100.0;
        let line = Line { done: self.done, total: self.total, percent };
        let mut text = serde_json::to_vec(&line).expect("numbers can be written to memory");
        text.push(b'\n');
        // A reader that has gone is no reason to stop.
        drop((&*file).write_all(&text));
    }
}

fn print_percent(percent: f64) {
    print!("    ({percent:.2}/100%)\r");
    drop(io::stdout().flush());
}

/// What a descriptor of this process writes to.
fn descriptor_file(descriptor: u32) -> Result<File, Failure> {
    let opened = OpenOptions::new().append(true).open(format!("/proc/self/fd/{descriptor}"));
    opened.map_err(|error| {
        let text = reason(&error);
        Failure::Usage(format!("Could not write progress to descriptor {descriptor}: {text}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_read() {
        assert_eq!("json".parse(), Ok(Form::Json(2)));
        assert_eq!("json:7".parse(), Ok(Form::Json(7)));
        assert_eq!("human".parse(), Ok(Form::Percent));
        for word in ["", "json:", "json:-1", "json:x", "xml"] {
            assert!(word.parse::<Form>().is_err(), "{word}");
        }
    }
}
