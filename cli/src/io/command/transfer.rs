//! Reads, writes and discards: what their words mean.

use blkring_engine::Flags;

use super::{
    Command, Dump, Entry, Fill, Kind, MAX_LENGTH, SECTOR, Transfer, Wait, number, style, whole,
};
use crate::io::check::Check;
use crate::io::complaint::Complaint;
use crate::io::getopt::Words;

/// A write has its bytes from one place.
const ONE_SOURCE: &str = "Only one of -z, -P, and -s can be specified at the same time";

fn other<T>(text: impl Into<String>) -> Result<T, Complaint> {
    Err(Complaint::Other(text.into()))
}

/// How many buffers a command takes, and how it speaks of lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Buffers {
    One,
    Any,
}

/// `read`.
pub fn read(entry: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    read_into(entry, words, "read", Wait::Now, Buffers::One)
}

/// `readv`.
pub fn readv(entry: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    read_into(entry, words, "readv", Wait::Now, Buffers::Any)
}

/// `aio_read`.
pub fn aio_read(entry: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    if words.has('i') {
        return Ok(Command::Say("injecting invalid read request"));
    }
    read_into(entry, words, "readv", Wait::Later, Buffers::Any)
}

/// `write`.
pub fn write(entry: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    write_from(entry, words, "write", Wait::Now, Buffers::One)
}

/// `writev`.
pub fn writev(entry: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    write_from(entry, words, "writev", Wait::Now, Buffers::Any)
}

/// `aio_write`.
pub fn aio_write(entry: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    if words.has('i') {
        return Ok(Command::Say("injecting invalid write request"));
    }
    write_from(entry, words, "aio_write", Wait::Later, Buffers::Any)
}

/// `discard`.
pub fn discard(entry: &'static Entry, words: &Words<'_>) -> Result<Command, Complaint> {
    let [offset, len] = words.arguments[..] else { return Err(Complaint::Usage(entry)) };
    let (offset, len) = (number(offset)?, single_length(len, "")?);
    Ok(Command::Discard { offset, len, style: style(words) })
}

fn read_into(
    entry: &'static Entry,
    words: &Words<'_>,
    name: &'static str,
    wait: Wait,
    buffers: Buffers,
) -> Result<Command, Complaint> {
    let check = match words.value('P') {
        Some(word) => Some((pattern(word)?, number_of(words, 's')?, number_of(words, 'l')?)),
        None if words.has('s') || words.has('l') => return Err(Complaint::Usage(entry)),
        None => None,
    };
    let dump = if words.has('v') { Dump::Yes } else { Dump::No };
    let (offset, lengths) = range(entry, words, buffers, "")?;
    let total: u64 = lengths.iter().sum();
    let check = check
        .map(|(byte, from, len)| {
            let from = from.unwrap_or(0);
            let len = len.unwrap_or(total.saturating_sub(from));
            if from.saturating_add(len) > total || from > total {
                return other("pattern verification range exceeds end of read data");
            }
            Ok(Check { byte, from, len })
        })
        .transpose()?;
    let kind = match words.has('b') {
        true => aligned(words, offset, total).map(|()| Kind::State)?,
        false => Kind::Read { check, dump },
    };
    let flags = Flags::empty();
    let style = style(words);
    Ok(Command::Transfer(Transfer { name, wait, kind, offset, lengths, flags, style }))
}

fn write_from(
    entry: &'static Entry,
    words: &Words<'_>,
    name: &'static str,
    wait: Wait,
    buffers: Buffers,
) -> Result<Command, Complaint> {
    let fill = fill(words, wait)?;
    let zero = words.has('z');
    let limit = if buffers == Buffers::One { " without -n" } else { "" };
    let (offset, lengths) = range(entry, words, buffers, limit)?;
    let total = lengths.iter().sum();
    let kind = match () {
        () if words.has('b') => aligned(words, offset, total).map(|()| Kind::State)?,
        () if zero => Kind::Zero,
        () if words.has('c') => {
            aligned(words, offset, total)?;
            Kind::Compressed(fill)
        }
        () => Kind::Write(fill),
    };
    let mut flags = Flags::empty();
    flags.set(Flags::FUA, words.has('f'));
    flags.set(Flags::MAY_UNMAP, words.has('u'));
    flags.set(Flags::NO_FALLBACK, words.has('n'));
    let style = style(words);
    Ok(Command::Transfer(Transfer { name, wait, kind, offset, lengths, flags, style }))
}

/// Where the bytes of a write come from, and whether its options go together.
fn fill(words: &Words<'_>, wait: Wait) -> Result<Fill, Complaint> {
    let pattern = words.value('P').map(pattern).transpose()?;
    let zero = words.has('z');
    let sources = usize::from(zero) + usize::from(pattern.is_some()) + usize::from(words.has('s'));
    match () {
        () if words.has('b') && zero => other("-b and -z cannot be specified at the same time"),
        () if words.has('f') && (words.has('b') || words.has('c')) => {
            other("-f and -b or -c cannot be specified at the same time")
        }
        () if words.has('n') && !zero => other("-n requires -z to be specified"),
        () if words.has('u') && !zero => other("-u requires -z to be specified"),
        () if wait == Wait::Now && sources > 1 => other(ONE_SOURCE),
        () if zero && words.has('r') => {
            other("cannot combine zero write with registered I/O buffer")
        }
        () if zero && wait == Wait::Later && words.arguments.len() > 2 => {
            other("-z supports only a single length parameter")
        }
        () => Ok(match (pattern, words.value('s')) {
            (_, Some(file)) => Fill::File(file.to_owned()),
            (pattern, None) => Fill::Byte(pattern.unwrap_or(0xcd)),
        }),
    }
}

/// What lies on sectors.
fn aligned(words: &Words<'_>, offset: u64, len: u64) -> Result<(), Complaint> {
    for (place, value, what) in [(0, offset, "offset"), (1, len, "count")] {
        if value % SECTOR != 0 {
            let word = number(words.argument(place))?;
            return other(format!("{word} is not a sector-aligned value for '{what}'"));
        }
    }
    Ok(())
}

fn number_of(words: &Words<'_>, letter: char) -> Result<Option<u64>, Complaint> {
    words.value(letter).map(number).transpose()
}

/// An offset and as many lengths as there may be. `unless` is said of a length that is too long, after the limit; with
/// `-n` there is no limit where it is said.
fn range(
    entry: &'static Entry,
    words: &Words<'_>,
    buffers: Buffers,
    unless: &str,
) -> Result<(u64, Vec<u64>), Complaint> {
    let [offset, lengths @ ..] = &words.arguments[..] else { return Err(Complaint::Usage(entry)) };
    match (lengths, buffers) {
        ([len], Buffers::One) => {
            let offset = number(offset)?;
            let len = match words.has('n') {
                true => number(len)?,
                false => single_length(len, unless)?,
            };
            Ok((offset, vec![len]))
        }
        ([], _) | (_, Buffers::One) => Err(Complaint::Usage(entry)),
        // The zero-write of `aio_write` has no buffer.
        ([len], Buffers::Any) if words.has('z') => Ok((number(offset)?, vec![number(len)?])),
        (lengths, Buffers::Any) => Ok((number(offset)?, several(lengths)?)),
    }
}

fn single_length(word: &str, unless: &str) -> Result<u64, Complaint> {
    match number(word)? {
        len if len > MAX_LENGTH => {
            other(format!("length cannot exceed {MAX_LENGTH}{unless}, given {word}"))
        }
        len => Ok(len),
    }
}

fn several(words: &[&str]) -> Result<Vec<u64>, Complaint> {
    let mut left = MAX_LENGTH;
    let mut all = Vec::new();
    for word in words {
        let len = number(word)?;
        if len > MAX_LENGTH {
            return other(format!("Argument '{word}' exceeds maximum size {MAX_LENGTH}"));
        }
        left = match left.checked_sub(len) {
            Some(left) => left,
            None => {
                let text = "The total number of bytes exceed the maximum size";
                return other(format!("{text} {MAX_LENGTH}"));
            }
        };
        all.push(len);
    }
    Ok(all)
}

fn pattern(word: &str) -> Result<u8, Complaint> {
    let invalid = || Complaint::Other(format!("{word} is not a valid pattern byte"));
    whole(word).and_then(|value| u8::try_from(value).ok()).ok_or_else(invalid)
}
