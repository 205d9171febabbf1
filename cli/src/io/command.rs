//! Commands: what a line of words means.

mod open;
mod table;
mod transfer;

pub use table::{COMMANDS, find};

use blkring_engine::Flags;

use super::check::Check;
use super::complaint::Complaint;
use super::getopt::{self, Letters, Words};
use super::text::Style;
use super::wish::{Change, Wish};
use crate::number::size;

/// The longest buffer of one request, in bytes: the largest 32-bit length that is a multiple of a sector.
pub const MAX_LENGTH: u64 = i32::MAX as u64 & !511;

/// Bytes of a sector.
pub const SECTOR: u64 = 512;

/// A command that makes sense.
#[derive(Debug)]
pub enum Command {
    /// A request for bytes.
    Transfer(Transfer),
    /// Give a range back.
    Discard {
        /// Where, in bytes.
        offset: u64,
        /// Bytes.
        len: u64,
        /// How its end is told.
        style: Style,
    },
    /// Wait for everything that was begun with `aio_`.
    AioFlush,
    /// Make what was written durable.
    Flush,
    /// Change the size.
    Truncate {
        /// Bytes.
        size: u64,
        /// How the space between is made ready.
        mode: String,
    },
    /// Print the size.
    Length,
    /// Print what is known of the image.
    Info,
    /// Print how many of these bytes the image has itself.
    Alloc {
        /// Where, in bytes.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Print the runs of bytes that the image has and has not.
    Map,
    /// Open an image.
    Open(Wish),
    /// Close it.
    Close,
    /// Open it anew in another way.
    Reopen(Change),
    /// Wait so many milliseconds.
    Sleep(u64),
    /// Print the commands, or one of them.
    Help(Option<(&'static Entry, String)>),
    /// Print a line and do nothing: what only counters of QEMU would see.
    Say(&'static str),
    /// Have the next request that passes a point wait there.
    Break {
        /// The name of the point.
        event: String,
        /// What it is called then.
        tag: String,
    },
    /// Take breakpoints away, and let go whoever waits.
    RemoveBreak(String),
    /// Let a request go.
    Resume(String),
    /// Wait until a request waits.
    WaitBreak(String),
    /// Something that is not there.
    Unsupported {
        /// What cannot be done.
        what: String,
    },
    /// End as after a bug.
    Abort,
    /// End by a signal.
    Raise(i32),
    /// End.
    Quit,
}

/// Whether a command waits for its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Its end is told before the next command begins.
    Now,
    /// Its end is told when it comes.
    Later,
}

/// What is done with the bytes.
#[derive(Debug)]
pub enum Kind {
    /// Read, check and print them.
    Read {
        /// What they should be.
        check: Option<Check>,
        /// Whether to print them.
        dump: Dump,
    },
    /// Write them.
    Write(Fill),
    /// Write them compressed.
    Compressed(Fill),
    /// Make so many zero.
    Zero,
    /// Read or write the place where the state of a virtual machine is kept.
    State,
}

/// What is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fill {
    /// One byte over and over.
    Byte(u8),
    /// The bytes of a file over and over.
    File(String),
}

/// Whether bytes are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dump {
    /// In hexadecimal.
    Yes,
    /// Not at all.
    No,
}

/// A read, write or zero-write.
#[derive(Debug)]
pub struct Transfer {
    /// The verb of error messages.
    pub name: &'static str,
    /// Whether the next command waits for it.
    pub wait: Wait,
    /// What is done.
    pub kind: Kind,
    /// Where, in bytes.
    pub offset: u64,
    /// Bytes of each buffer; one for a zero-write.
    pub lengths: Vec<u64>,
    /// How it is done.
    pub flags: Flags,
    /// How its end is told.
    pub style: Style,
}

impl Transfer {
    /// Bytes in all.
    pub fn len(&self) -> u64 {
        self.lengths.iter().sum()
    }
}

/// Whether an image is open when a line is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Present {
    /// One is.
    Image,
    /// None is.
    Nothing,
}

/// What is known of a command.
#[derive(Debug)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    alias: Option<&'static str>,
    /// Its options; without, every word is an argument.
    letters: Option<Letters>,
    /// Words needed after the name, and allowed.
    count: (usize, Option<usize>),
    /// Whether it is for an open image.
    needs: Present,
    /// How it is called, with a blank at the end if that is anything.
    pub arguments: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// More about it, in lines.
    pub details: &'static str,
    /// Its options.
    pub options: &'static [(char, &'static str)],
    make: fn(&'static Entry, &Words<'_>) -> Result<Command, Complaint>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Entry {}

/// The line that says how a command is called.
pub fn usage(entry: &Entry) -> String {
    usage_as(entry.name, entry)
}

/// The same under the name that it was called.
pub fn usage_as(name: &str, entry: &Entry) -> String {
    format!("{name} {}-- {}", entry.arguments, entry.summary)
}

/// Reads a line; `None` if it is empty.
pub fn parse(line: &str, present: Present) -> Result<Option<Command>, Complaint> {
    let mut words = line.split(' ').filter(|word| !word.is_empty());
    let Some(name) = words.next() else { return Ok(None) };
    let entry = find(name).ok_or_else(|| Complaint::NotFound(name.to_owned()))?;
    if entry.needs == Present::Image && present == Present::Nothing {
        return Err(Complaint::NoImage);
    }
    let words: Vec<&str> = words.collect();
    let (least, most) = entry.count;
    if words.len() < least || most.is_some_and(|most| words.len() > most) {
        let name = name.to_owned();
        return Err(Complaint::Count { name, given: words.len(), least, most });
    }
    let words = match entry.letters {
        None => Words::plain(words),
        Some(letters) => getopt::parse(&words, letters).map_err(|error| Complaint::Option {
            name: name.to_owned(),
            error,
            entry,
        })?,
    };
    (entry.make)(entry, &words).map(Some)
}

fn help(_: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    let Some(name) = words.arguments.first() else { return Ok(Command::Help(None)) };
    match find(name) {
        Some(entry) => Ok(Command::Help(Some((entry, (*name).to_owned())))),
        None => Err(Complaint::Other(format!("command {name} not found"))),
    }
}

fn sleep(_: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    let word = words.argument(0);
    match whole(word).and_then(|milliseconds| u64::try_from(milliseconds).ok()) {
        Some(milliseconds) => Ok(Command::Sleep(milliseconds)),
        None => Err(Complaint::Other(format!("{word} is not a valid number"))),
    }
}

fn raise(_: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    /// One more than the largest signal number of Linux: it is not refused, and does nothing.
    const LAST: i32 = 65;
    let word = words.argument(0);
    match i32::try_from(number(word)?) {
        Ok(signal) if signal <= LAST => Ok(Command::Raise(signal)),
        _ => {
            let text = format!("signal argument '{word}' is too large to be a valid signal");
            Err(Complaint::Other(text))
        }
    }
}

fn alloc(_: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    let offset = number(words.argument(0))?;
    let len = words.arguments.get(1).map_or(Ok(SECTOR), |word| number(word))?;
    Ok(Command::Alloc { offset, len })
}

fn truncate(_: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    // A complaint names the first word, whichever was wrong.
    let first = words.first();
    let word = words.arguments.first().copied().unwrap_or_default();
    let size = size(word).map_err(|error| Complaint::Number(first, error))?;
    Ok(Command::Truncate { size, mode: words.value('m').unwrap_or("off").to_owned() })
}

/// What zoned devices have; the words are read all the same.
fn zone(entry: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    for word in &words.arguments {
        number(word)?;
    }
    Ok(Command::Unsupported { what: format!("{} failed", entry.name.replace('_', " ")) })
}

fn set_break(_: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    Ok(Command::Break { event: words.argument(0).to_owned(), tag: words.argument(1).to_owned() })
}

fn number(word: &str) -> Result<u64, Complaint> {
    size(word).map_err(|error| Complaint::Number(word.to_owned(), error))
}

/// A number without a unit as C writes it: hexadecimal after `0x`, octal after `0`.
fn whole(word: &str) -> Option<i64> {
    let (digits, sign) = match word.strip_prefix('-') {
        Some(digits) => (digits, -1),
        None => (word.strip_prefix('+').unwrap_or(word), 1),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let value = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) if !hex.starts_with(['+', '-']) => i64::from_str_radix(hex, 16),
        Some(_) => return None,
        None if digits.len() > 1 && digits.starts_with('0') => i64::from_str_radix(digits, 8),
        None => digits.parse(),
    };
    value.ok().map(|value| sign * value)
}

fn style(words: &Words<'_>) -> Style {
    match () {
        () if words.has('q') => Style::Quiet,
        () if words.has('C') => Style::Values,
        () => Style::Lines,
    }
}

#[cfg(test)]
mod tests;
