//! `blkring map`: where the bytes of an image are.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;
use std::sync::Arc;

use blkring_engine::{Queue, QueueOptions};
use clap::Args;

use crate::backend;
use crate::disk::{AnyDisk, Opening};
use crate::failure::Failure;
use crate::number::sizes;
use crate::options::{Output, output};
use crate::source::Source;
use crate::status::{Holds, Holes, Run, Survey};

/// Print which parts of an image are where, as qemu-img map does.
///
/// For people, only the parts that hold data are printed, with the file that holds them. The form for programs has
/// all parts.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    source: Source,
    /// Begin at this offset.
    #[arg(short, long, value_name = "OFFSET", allow_negative_numbers = true,
        value_parser = sizes("start offset", 0..=i64::MAX as u64))]
    start_offset: Option<u64>,
    /// Look at so many bytes at most.
    #[arg(short = 'l', long, value_name = "LENGTH", allow_negative_numbers = true,
        value_parser = sizes("max length", 0..=i64::MAX as u64))]
    max_length: Option<u64>,
    /// How it is printed: human or json.
    #[arg(long, value_name = "OUTPUT", default_value = "human", value_parser = output)]
    output: Output,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let name = options.source.name()?;
    let mut queue = backend::queue(QueueOptions::default())?;
    let opening = Opening { share: options.source.share(), ..Opening::read_only() };
    let disk = AnyDisk::open(&mut queue, &name, opening)?;
    disk.attach(&mut queue)?;
    let survey = Survey::new(&disk, Holes::WhereMany);
    let start = options.start_offset.unwrap_or(0);
    let end = start.saturating_add(options.max_length.unwrap_or(u64::MAX)).min(survey.len());
    let mut entries = Entries { queue, survey, next: None, at: start, end };
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = match options.output {
        Output::Human => human(&mut entries, &mut out),
        Output::Json => json(&mut entries, start, &mut out),
    };
    // As with `println!`, there is nobody to tell if this fails.
    drop(out.flush());
    printed?;
    disk.close(&mut entries.queue)?;
    Ok(ExitCode::SUCCESS)
}

/// Some bytes that are alike, as long as they can be.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    start: u64,
    len: u64,
    depth: usize,
    holds: Holds,
    at: Option<u64>,
    path: Arc<str>,
}

/// The entries of a range, one after the other.
struct Entries {
    queue: Queue,
    survey: Survey,
    /// The run that ended the last entry.
    next: Option<Run>,
    at: u64,
    end: u64,
}

impl Entries {
    fn run(&mut self) -> Result<Option<Run>, Failure> {
        if let Some(run) = self.next.take() {
            return Ok(Some(run));
        }
        if self.at >= self.end {
            return Ok(None);
        }
        let run = self.queue.block_on(self.survey.run(self.at, self.end))?;
        let run = run.map_err(Failure::Status)?;
        self.at = run.offset + run.len;
        Ok(Some(run))
    }

    fn next(&mut self) -> Result<Option<Entry>, Failure> {
        let Some(Run { offset, len, holds, depth, at, path }) = self.run()? else {
            return Ok(None);
        };
        let mut entry = Entry { start: offset, len, depth, holds, at, path };
        while let Some(run) = self.run()? {
            if !entry.takes(&run) {
                self.next = Some(run);
                break;
            }
            entry.len += run.len;
        }
        Ok(Some(entry))
    }
}

impl Entry {
    fn takes(&self, run: &Run) -> bool {
        let follows = match (self.at, run.at) {
            (Some(here), Some(there)) => here + self.len == there,
            (here, there) => here.is_none() && there.is_none(),
        };
        follows && (self.holds, self.depth, &self.path) == (run.holds, run.depth, &run.path)
    }
}

/// For programs: one object of a list in a line.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let present = self.holds != Holds::Absent;
        let data = matches!(self.holds, Holds::Data | Holds::Compressed | Holds::Hole);
        let (zero, compressed) = (self.holds.is_zero(), self.holds == Holds::Compressed);
        write!(
            f,
            "{{ \"start\": {}, \"length\": {}, \"depth\": {}, \"present\": {present}, \
             \"zero\": {zero}, \"data\": {data}, \"compressed\": {compressed}",
            self.start, self.len, self.depth
        )?;
        match self.at {
            Some(at) => write!(f, ", \"offset\": {at}}}"),
            None => f.write_str("}"),
        }
    }
}

fn human(entries: &mut Entries, out: &mut impl Write) -> Result<(), Failure> {
    drop(writeln!(out, "Offset          Length          Mapped to       File"));
    while let Some(entry) = entries.next()? {
        match (entry.holds, entry.at) {
            (Holds::Data, Some(at)) => {
                let [start, len, at] = [entry.start, entry.len, at].map(hexadecimal);
                drop(writeln!(out, "{start:16}{len:16}{at:16}{}", entry.path));
            }
            (Holds::Data | Holds::Compressed, _) => {
                let text = "File contains external, encrypted or compressed clusters.";
                return Err(Failure::Usage(text.to_owned()));
            }
            (Holds::Hole | Holds::Zero | Holds::Absent, _) => (),
        }
    }
    Ok(())
}

/// Zero has no prefix.
fn hexadecimal(number: u64) -> String {
    if number == 0 { "0".to_owned() } else { format!("{number:#x}") }
}

fn json(entries: &mut Entries, start: u64, out: &mut impl Write) -> Result<(), Failure> {
    drop(write!(out, "["));
    let mut separator = "";
    while let Some(entry) = entries.next()? {
        drop(write!(out, "{separator}{entry}"));
        separator = ",\n";
    }
    if separator.is_empty() {
        // An empty range is one entry.
        drop(write!(
            out,
            "{{ \"start\": {start}, \"length\": 0, \"depth\": 0, \"present\": false, \"zero\": false, \
             \"data\": false, \"compressed\": false}}"
        ));
    }
    drop(writeln!(out, "]"));
    Ok(())
}
