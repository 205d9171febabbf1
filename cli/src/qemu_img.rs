//! The program as qemu-img.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::process::ExitCode;

use clap::{FromArgMatches, Subcommand};

use crate::Command;
use crate::arguments::{self, Line};
use crate::failure::Failure;
use crate::name::{self, Name};

/// The version whose ways are followed: scripts look at it.
pub const VERSION: &str = "10.0.2";

/// All commands of qemu-img. Those that [`Command`] lacks are refused by name.
const ALL: &[&str] = &[
    "amend", "bench", "bitmap", "check", "commit", "compare", "convert", "create", "dd", "info",
    "map", "measure", "rebase", "resize", "snapshot",
];

/// Runs it.
pub fn run(words: &[OsString]) -> ExitCode {
    let mut left = words.get(1..).unwrap_or_default();
    loop {
        let Some((first, rest)) = left.split_first() else {
            return misuse("Not enough arguments");
        };
        left = rest;
        let word = first.to_string_lossy();
        match &*word {
            "-h" | "--help" => {
                print!("{}", help());
                return ExitCode::SUCCESS;
            }
            "-V" | "--version" => {
                print!("{}", version(Name::QemuImg));
                return ExitCode::SUCCESS;
            }
            "-T" | "--trace" => {
                left = left.get(1..).unwrap_or_default();
                not_traced();
            }
            traced if traced.starts_with("-T") || traced.starts_with("--trace=") => not_traced(),
            long if long.starts_with("--") => {
                return misuse(&format!("unrecognized option '{long}'"));
            }
            short if short.len() > 1 && short.starts_with('-') => {
                let letter = short.chars().nth(1).unwrap_or('-');
                return misuse(&format!("invalid option -- '{letter}'"));
            }
            _ => return command(first, rest),
        }
    }
}

fn not_traced() {
    name::complain("warning: the trace events of QEMU do not exist here; see blkring --trace");
}

/// Runs a command; `words` are what follows it.
fn command(given: &OsStr, words: &[OsString]) -> ExitCode {
    let known = given.to_str().filter(|name| ALL.contains(name));
    let Some(name) = known else {
        return misuse(&format!("Command not found: {}", given.to_string_lossy()));
    };
    let all = commands();
    if all.find_subcommand(name).is_none() {
        name::complain(format_args!("{name} is not supported"));
        return ExitCode::FAILURE;
    }
    let line: Vec<OsString> = [OsString::from("qemu-img"), given.to_owned()].into();
    let line = [line.as_slice(), words].concat();
    let result = match arguments::read(all, &line) {
        Line::Help(text) => {
            print!("{text}");
            Ok(ExitCode::SUCCESS)
        }
        Line::Wrong(failure) => Err(failure),
        Line::Matches(matches) => match Command::from_arg_matches(&matches) {
            Ok(command) => command.run(),
            Err(error) => Err(Failure::Usage(error.to_string())),
        },
    };
    result.unwrap_or_else(|failure| {
        let text = failure.text(Name::QemuImg);
        let more = format!("Try 'qemu-img {name} --help' for more info");
        match failure {
            Failure::Misuse(_) => eprintln!("qemu-img: {text}\n{more}"),
            Failure::Option(_) => eprintln!("qemu-img {name}: {text}\n{more}"),
            _ => name::complain(text),
        }
        failure.exit_code()
    })
}

/// The commands that are there.
fn commands() -> clap::Command {
    let all = Command::augment_subcommands(clap::Command::new("qemu-img"));
    arguments::as_getopt(all)
}

fn misuse(text: &str) -> ExitCode {
    name::complain(text);
    eprintln!("Try 'qemu-img --help' for more info");
    ExitCode::FAILURE
}

/// The line of the version.
pub fn version(name: Name) -> String {
    format!("{} version {VERSION} (blkring {})\n", name.text(), env!("CARGO_PKG_VERSION"))
}

fn help() -> String {
    let mut text = version(Name::QemuImg);
    text.push_str(
        "Disk images on io_uring, in the manner of qemu-img.\n\n\
         Usage: qemu-img [-h | -V] COMMAND [OPTIONS]\n\n\
         \x20 -h, --help     Print this\n\
         \x20 -V, --version  Print the version\n\n\
         Commands; 'qemu-img COMMAND --help' tells more:\n\n",
    );
    for command in commands().get_subcommands().filter(|command| ALL.contains(&command.get_name()))
    {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        writeln!(text, "  {:9} {about}", command.get_name()).expect("a string takes everything");
    }
    text.push_str("\nSupported formats: qcow2 raw\n");
    text
}
