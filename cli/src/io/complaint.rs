//! What is wrong with a line that is no command.

use super::command::{Entry, usage};
use super::getopt::OptionError;
use crate::name;
use crate::number::NumberError;

/// Why a line is no command.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Complaint {
    /// Nothing is called so.
    #[error("command \"{0}\" not found")]
    NotFound(String),
    /// It is for an open image.
    #[error("no file open, try 'help open'")]
    NoImage,
    /// Too few or too many words.
    #[error("bad argument count {given} to {name}, expected {}", expected(*.least, *.most))]
    Count {
        /// The command.
        name: String,
        /// Words after it.
        given: usize,
        /// Words needed.
        least: usize,
        /// Words allowed.
        most: Option<usize>,
    },
    /// An option that the command does not have, or without its value.
    #[error("{name}: {error}\n{}", usage(.entry))]
    Option {
        /// The command as it was called.
        name: String,
        /// What is wrong.
        error: OptionError,
        /// How it should be called.
        entry: &'static Entry,
    },
    /// The right options with the wrong arguments.
    #[error("{}", usage(.0))]
    Usage(&'static Entry),
    /// A size or offset that is none.
    #[error("Parsing error: {1} -- {0}")]
    Number(String, NumberError),
    /// What the program says in its own name.
    #[error("{0}")]
    Program(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

impl Complaint {
    /// Prints it where qemu-io does: what is no command to the standard error, what a command says to the standard
    /// output.
    pub fn print(&self) {
        match self {
            Complaint::NotFound(_) | Complaint::NoImage | Complaint::Count { .. } => {
                eprintln!("{self}");
            }
            Complaint::Program(text) => name::complain(text),
            Complaint::Option { name, error, entry } => {
                eprintln!("{name}: {error}");
                println!("{}", usage(entry));
            }
            _ => println!("{self}"),
        }
    }
}

fn expected(least: usize, most: Option<usize>) -> String {
    match most {
        None => format!("at least {least} arguments"),
        Some(most) if most == least => format!("{least} arguments"),
        Some(most) => format!("between {least} and {most} arguments"),
    }
}
