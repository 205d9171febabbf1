//! The command line: one definition of each command for all names of the program, with the ways and the words of
//! getopt where it is called qemu-img or qemu-io.

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgMatches, Command, Error};

use crate::failure::Failure;
use crate::name::{self, Name};

/// What a command line is.
pub enum Line {
    /// What to do.
    Matches(ArgMatches),
    /// Nothing to do but print this.
    Help(String),
    /// Nothing that can be done.
    Wrong(Failure),
}

/// Makes a command, and all of its sub-commands, read options as getopt does: long ones may be cut short, the last of
/// several holds, a value may begin with a dash, and a word that begins with one is no number.
pub fn as_getopt(command: Command) -> Command {
    let command = command
        .args_override_self(true)
        .infer_long_args(true)
        .disable_help_subcommand(true)
        .disable_version_flag(true)
        .mut_args(|arg| {
            let value = arg.get_action().takes_values();
            let option = value && !arg.is_positional();
            arg.allow_hyphen_values(option).allow_negative_numbers(false)
        });
    let names: Vec<String> =
        command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, as_getopt))
}

/// Reads `words`, the first of which is the program's name. `command` is what they are for.
pub fn read(command: Command, words: &[OsString]) -> Line {
    let mut reading = command.clone();
    match reading.try_get_matches_from_mut(crate::resize::shield(words)) {
        Ok(matches) => Line::Matches(matches),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Line::Help(error.to_string()),
            ErrorKind::ValueValidation => Line::Wrong(value(&error)),
            _ if name::own() == Name::Blkring => Line::Wrong(Failure::Usage(plain(&error))),
            _ => Line::Wrong(getopt(&command, words, &error)),
        },
    }
}

/// What a parser of a value said. It says it all.
fn value(error: &Error) -> Failure {
    match error.source() {
        Some(source) => match source.downcast_ref::<Misuse>() {
            Some(Misuse(text)) => Failure::Misuse(text.clone()),
            None => Failure::Usage(source.to_string()),
        },
        None => Failure::Usage(plain(error)),
    }
}

/// What a parser of a value says where qemu-img says where to read more.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Misuse(pub String);

/// clap's own words, as one line.
fn plain(error: &Error) -> String {
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.split_whitespace().collect();
    words.join(" ").trim_start_matches("error: ").to_owned()
}

/// The words of getopt.
fn getopt(command: &Command, words: &[OsString], error: &Error) -> Failure {
    let Some(ContextValue::String(arg)) = error.get(ContextKind::InvalidArg) else {
        return Failure::Usage(plain(error));
    };
    let last = words.last().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let text = match error.kind() {
        ErrorKind::UnknownArgument if !arg.starts_with('-') => {
            return Failure::Misuse(format!("Unexpected argument: {arg}"));
        }
        ErrorKind::UnknownArgument => match arg.strip_prefix("--") {
            Some(long) => unknown_long(command, words, long),
            None => format!("invalid option -- '{}'", arg.trim_start_matches('-')),
        },
        // A value is missing, and only the last word can lack one.
        ErrorKind::InvalidValue if last.starts_with("--") => {
            let long = arg.split([' ', '=']).next().unwrap_or_default();
            format!("option '{long}' requires an argument")
        }
        ErrorKind::InvalidValue => {
            let letter = last.chars().next_back().unwrap_or('-');
            format!("option requires an argument -- '{letter}'")
        }
        ErrorKind::TooManyValues => {
            let long = arg.split([' ', '=']).next().unwrap_or_default();
            format!("option '{long}' doesn't allow an argument")
        }
        _ => return Failure::Usage(plain(error)),
    };
    Failure::Option(text)
}

/// A long option that is none, or that could be several. It is told as it was written.
fn unknown_long(command: &Command, words: &[OsString], long: &str) -> String {
    let written = words.iter().map(|word| word.to_string_lossy());
    let written = written.into_iter().find_map(|word| {
        let rest = word.strip_prefix("--")?.strip_prefix(long)?;
        (rest.is_empty() || rest.starts_with('=')).then(|| word.into_owned())
    });
    let written = written.unwrap_or_else(|| format!("--{long}"));
    let used = words.get(1).and_then(|word| command.find_subcommand(word)).unwrap_or(command);
    let possible: Vec<String> = used
        .get_arguments()
        .filter_map(Arg::get_long)
        .filter(|name| name.starts_with(long))
        .map(|name| format!("'--{name}'"))
        .collect();
    match possible.as_slice() {
        [_, _, ..] => {
            format!("option '{written}' is ambiguous; possibilities: {}", possible.join(" "))
        }
        _ => format!("unrecognized option '{written}'"),
    }
}
