//! Commands: their names, their options, and what a line of words means.

use blkring_engine::Flags;

use super::check::Check;
use super::complaint::Complaint;
use super::getopt::{self, Letters, Words};
use super::text::Style;
use crate::number::{counts, size};

/// The longest buffer of one request, in bytes: the largest 32-bit length that is a multiple of a sector.
pub const MAX_LENGTH: u64 = i32::MAX as u64 & !511;

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
    /// Print the size.
    Length,
    /// Print what is known of the image.
    Info,
    /// Wait so many milliseconds.
    Sleep(u64),
    /// Print the commands, or one of them.
    Help(Option<&'static Entry>),
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
    /// Make so many zero.
    Zero,
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

/// The line that says how a command is called.
pub fn usage(entry: &Entry) -> String {
    format!("{} {}-- {}", entry.name, entry.arguments, entry.summary)
}

/// What is known of a command.
#[derive(Debug)]
pub struct Entry {
    name: &'static str,
    alias: Option<&'static str>,
    letters: Letters,
    /// Words needed after the name, and allowed.
    count: (usize, Option<usize>),
    arguments: &'static str,
    summary: &'static str,
    make: fn(&'static Entry, &Words<'_>) -> Result<Command, Complaint>,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Entry {}

/// A write has its bytes from one place.
const ONE_SOURCE: &str = "Only one of -z, -P, and -s can be specified at the same time";

const NONE: Letters = Letters { plain: "", valued: "" };

/// All commands.
pub const COMMANDS: &[Entry] = &[
    Entry {
        name: "aio_flush",
        alias: None,
        letters: NONE,
        count: (0, Some(0)),
        arguments: "",
        summary: "wait for every request begun with aio_read or aio_write",
        make: |_, _| Ok(Command::AioFlush),
    },
    Entry {
        name: "aio_read",
        alias: None,
        letters: Letters { plain: "Cqv", valued: "P" },
        count: (2, None),
        arguments: "[-Cqv] [-P pattern] off len [len..] ",
        summary: "begin a read into buffers of these lengths",
        make: |entry, words| read(entry, words, "readv", Wait::Later),
    },
    Entry {
        name: "aio_write",
        alias: None,
        letters: Letters { plain: "Cfquz", valued: "P" },
        count: (2, None),
        arguments: "[-Cfquz] [-P pattern] off len [len..] ",
        summary: "begin a write from buffers of these lengths",
        make: |entry, words| write(entry, words, "aio_write", Wait::Later),
    },
    Entry {
        name: "discard",
        alias: Some("d"),
        letters: Letters { plain: "Cq", valued: "" },
        count: (2, None),
        arguments: "[-Cq] off len ",
        summary: "give a range back",
        make: discard,
    },
    Entry {
        name: "flush",
        alias: Some("f"),
        letters: NONE,
        count: (0, Some(0)),
        arguments: "",
        summary: "make what was written durable",
        make: |_, _| Ok(Command::Flush),
    },
    Entry {
        name: "help",
        alias: Some("?"),
        letters: NONE,
        count: (0, Some(1)),
        arguments: "[command] ",
        summary: "list the commands, or say how one is called",
        make: help,
    },
    Entry {
        name: "info",
        alias: Some("i"),
        letters: NONE,
        count: (0, Some(0)),
        arguments: "",
        summary: "print what is known of the image",
        make: |_, _| Ok(Command::Info),
    },
    Entry {
        name: "length",
        alias: Some("l"),
        letters: NONE,
        count: (0, Some(0)),
        arguments: "",
        summary: "print the size",
        make: |_, _| Ok(Command::Length),
    },
    Entry {
        name: "quit",
        alias: Some("q"),
        letters: NONE,
        count: (0, Some(0)),
        arguments: "",
        summary: "end",
        make: |_, _| Ok(Command::Quit),
    },
    Entry {
        name: "read",
        alias: Some("r"),
        letters: Letters { plain: "Cqv", valued: "Psl" },
        count: (2, None),
        arguments: "[-Cqv] [-P pattern [-s off] [-l len]] off len ",
        summary: "read a range",
        make: |entry, words| single(entry, words, read(entry, words, "read", Wait::Now)),
    },
    Entry {
        name: "readv",
        alias: None,
        letters: Letters { plain: "Cqv", valued: "P" },
        count: (2, None),
        arguments: "[-Cqv] [-P pattern] off len [len..] ",
        summary: "read a range into buffers of these lengths",
        make: |entry, words| read(entry, words, "readv", Wait::Now),
    },
    Entry {
        name: "sleep",
        alias: None,
        letters: NONE,
        count: (1, Some(1)),
        arguments: "milliseconds ",
        summary: "wait",
        make: sleep,
    },
    Entry {
        name: "write",
        alias: Some("w"),
        letters: Letters { plain: "Cfnquz", valued: "Ps" },
        count: (2, None),
        arguments: "[-Cfnquz] [-P pattern | -s file] off len ",
        summary: "write a range",
        make: |entry, words| single(entry, words, write(entry, words, "write", Wait::Now)),
    },
    Entry {
        name: "writev",
        alias: None,
        letters: Letters { plain: "Cfq", valued: "P" },
        count: (2, None),
        arguments: "[-Cfq] [-P pattern] off len [len..] ",
        summary: "write a range from buffers of these lengths",
        make: |entry, words| write(entry, words, "writev", Wait::Now),
    },
];

/// Reads a line; `None` if it is empty.
pub fn parse(line: &str) -> Result<Option<Command>, Complaint> {
    let mut words = line.split(' ').filter(|word| !word.is_empty());
    let Some(name) = words.next() else { return Ok(None) };
    let entry = find(name).ok_or_else(|| Complaint::NotFound(name.to_owned()))?;
    let words: Vec<&str> = words.collect();
    let (least, most) = entry.count;
    if words.len() < least || most.is_some_and(|most| words.len() > most) {
        let name = name.to_owned();
        return Err(Complaint::Count { name, given: words.len(), least, most });
    }
    let words = if most.is_none() {
        getopt::parse(&words, entry.letters).map_err(|error| Complaint::Option {
            name: name.to_owned(),
            error,
            entry,
        })?
    } else {
        Words::plain(words)
    };
    (entry.make)(entry, &words).map(Some)
}

fn find(name: &str) -> Option<&'static Entry> {
    COMMANDS.iter().find(|entry| entry.name == name || entry.alias == Some(name))
}

/// A command for one buffer only.
fn single(
    entry: &'static Entry,
    words: &Words<'_>,
    command: Result<Command, Complaint>,
) -> Result<Command, Complaint> {
    if words.arguments.len() != 2 { Err(Complaint::Usage(entry)) } else { command }
}

fn read(
    entry: &'static Entry,
    words: &Words<'_>,
    name: &'static str,
    wait: Wait,
) -> Result<Command, Complaint> {
    let check = match words.value('P') {
        Some(word) => Some((pattern(word)?, number_of(words, 's')?, number_of(words, 'l')?)),
        None if words.has('s') || words.has('l') => return Err(Complaint::Usage(entry)),
        None => None,
    };
    let dump = if words.has('v') { Dump::Yes } else { Dump::No };
    let (offset, lengths) = range(entry, words)?;
    let total: u64 = lengths.iter().sum();
    let check = check
        .map(|(byte, from, len)| {
            let from = from.unwrap_or(0);
            let len = len.unwrap_or(total.saturating_sub(from));
            if from.saturating_add(len) > total || from > total {
                let text = "pattern verification range exceeds end of read data";
                return Err(Complaint::Other(text.to_owned()));
            }
            Ok(Check { byte, from, len })
        })
        .transpose()?;
    let kind = Kind::Read { check, dump };
    Ok(Command::Transfer(Transfer {
        name,
        wait,
        kind,
        offset,
        lengths,
        flags: Flags::empty(),
        style: style(words),
    }))
}

fn write(
    entry: &'static Entry,
    words: &Words<'_>,
    name: &'static str,
    wait: Wait,
) -> Result<Command, Complaint> {
    let other = |text: &str| Err(Complaint::Other(text.to_owned()));
    let fill = match (words.value('P'), words.value('s')) {
        (None, None) => Fill::Byte(0xcd),
        (Some(word), None) => Fill::Byte(pattern(word)?),
        (None, Some(file)) => Fill::File(file.to_owned()),
        (Some(_), Some(_)) => return other(ONE_SOURCE),
    };
    let zero = words.has('z');
    match () {
        () if zero && wait == Wait::Now && words.has('P') => return other(ONE_SOURCE),
        () if zero && words.has('s') => return other(ONE_SOURCE),
        () if words.has('n') && !zero => return other("-n requires -z to be specified"),
        () if words.has('u') && !zero => return other("-u requires -z to be specified"),
        () if zero && words.arguments.len() > 2 => {
            return other("-z supports only a single length parameter");
        }
        () => (),
    }
    let (offset, lengths) = range(entry, words)?;
    let mut flags = Flags::empty();
    flags.set(Flags::FUA, words.has('f'));
    flags.set(Flags::MAY_UNMAP, words.has('u'));
    flags.set(Flags::NO_FALLBACK, words.has('n'));
    let kind = if zero { Kind::Zero } else { Kind::Write(fill) };
    let style = style(words);
    Ok(Command::Transfer(Transfer { name, wait, kind, offset, lengths, flags, style }))
}

fn discard(entry: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    let (offset, lengths) = range(entry, words)?;
    match lengths[..] {
        [len] => Ok(Command::Discard { offset, len, style: style(words) }),
        _ => Err(Complaint::Usage(entry)),
    }
}

fn help(_: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    let Some(name) = words.arguments.first() else { return Ok(Command::Help(None)) };
    match find(name) {
        Some(entry) => Ok(Command::Help(Some(entry))),
        None => Err(Complaint::Other(format!("command {name} not found"))),
    }
}

fn sleep(_: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    let word = words.arguments.first().copied().unwrap_or_default();
    match counts("time", 0..=u64::from(u32::MAX))(word) {
        Ok(milliseconds) => Ok(Command::Sleep(milliseconds)),
        Err(_) => Err(Complaint::Other(format!("{word} is not a valid number"))),
    }
}

fn style(words: &Words<'_>) -> Style {
    match () {
        () if words.has('q') => Style::Quiet,
        () if words.has('C') => Style::Values,
        () => Style::Lines,
    }
}

fn number(word: &str) -> Result<u64, Complaint> {
    size(word).map_err(|error| Complaint::Number(word.to_owned(), error))
}

fn number_of(words: &Words<'_>, letter: char) -> Result<Option<u64>, Complaint> {
    words.value(letter).map(number).transpose()
}

/// An offset and one length or more.
fn range(entry: &'static Entry, words: &Words<'_>) -> Result<(u64, Vec<u64>), Complaint> {
    let [offset, lengths @ ..] = &words.arguments[..] else { return Err(Complaint::Usage(entry)) };
    if lengths.is_empty() {
        return Err(Complaint::Usage(entry));
    }
    let offset = number(offset)?;
    let mut left = MAX_LENGTH;
    let mut all = Vec::new();
    for word in lengths {
        let len = number(word)?;
        left = left.checked_sub(len).ok_or_else(|| {
            Complaint::Other(format!("length cannot exceed {MAX_LENGTH}, given {word}"))
        })?;
        all.push(len);
    }
    Ok((offset, all))
}

fn pattern(word: &str) -> Result<u8, Complaint> {
    let value = match word.strip_prefix("0x") {
        Some(hex) => u8::from_str_radix(hex, 16),
        None => word.parse(),
    };
    value.map_err(|_| Complaint::Other(format!("{word} is not a valid pattern byte")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaint(line: &str) -> String {
        parse(line).expect_err("no command").to_string()
    }

    #[test]
    fn every_command_is_found_by_name_and_alias_and_names_are_sorted() {
        assert!(COMMANDS.is_sorted_by_key(|entry| entry.name));
        for entry in COMMANDS {
            assert_eq!(find(entry.name), Some(entry));
            assert!(entry.alias.is_none_or(|alias| find(alias) == Some(entry)));
        }
        assert!(matches!(parse("  "), Ok(None)));
    }

    #[test]
    fn a_write_is_read() {
        let Ok(Some(Command::Transfer(write))) = parse(" w -zfq  4k 0x200 -u") else {
            panic!("a command");
        };
        assert_eq!((write.offset, &write.lengths[..]), (4096, &[512][..]));
        assert_eq!(write.flags, Flags::FUA | Flags::MAY_UNMAP);
        assert!(matches!(write.kind, Kind::Zero) && write.style == Style::Quiet);
    }

    #[test]
    fn complaints_say_what_is_wrong() {
        for (line, text) in [
            ("foo 1", "command \"foo\" not found"),
            ("write 0", "bad argument count 1 to write, expected at least 2 arguments"),
            ("length 1", "bad argument count 1 to length, expected 0 arguments"),
            ("help a b", "bad argument count 2 to help, expected between 0 and 1 arguments"),
            (
                "read 0 x",
                "Parsing error: non-numeric argument, or extraneous/unrecognized suffix -- x",
            ),
            ("read -P 256 0 1", "256 is not a valid pattern byte"),
            ("read 0 3G", "length cannot exceed 2147483136, given 3G"),
            ("readv 0 2147483136 1", "length cannot exceed 2147483136, given 1"),
            ("write -n 0 1", "-n requires -z to be specified"),
            ("aio_write -z 0 1 1", "-z supports only a single length parameter"),
            ("read -P 1 -s 2 0 1", "pattern verification range exceeds end of read data"),
            ("sleep -1", "-1 is not a valid number"),
        ] {
            assert_eq!(complaint(line), text, "{line}");
        }
        assert!(complaint("read -l 1 0 1").starts_with("read [-Cqv] "));
        assert!(complaint("read -x 0 1").starts_with("read: invalid option -- 'x'\nread [-Cqv] "));
        assert!(complaint("discard 0 1 1").starts_with("discard [-Cq] off len -- "));
    }
}
