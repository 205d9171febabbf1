//! The program as qemu-io.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, FromArgMatches};

use crate::arguments::{self, Line};
use crate::failure::Failure;
use crate::name::{self, Name};
use crate::{io, qemu_img};

/// Runs it.
pub fn run(words: &[OsString]) -> ExitCode {
    if words.iter().skip(1).any(|word| word == "-V" || word == "--version") {
        print!("{}", qemu_img::version(Name::QemuIo));
        return ExitCode::SUCCESS;
    }
    let command = io::Options::augment_args(clap::Command::new("qemu-io"));
    // The program's own option of this name is not there.
    let command = command.mut_arg("events", |arg| arg.long("trace"));
    let command = arguments::as_getopt(command);
    let result = match arguments::read(command.clone(), words) {
        Line::Help(text) => {
            print!("{text}");
            Ok(ExitCode::SUCCESS)
        }
        Line::Wrong(failure) => Err(failure),
        Line::Matches(matches) => match io::Options::from_arg_matches(&matches) {
            Ok(options) => io::run(&options),
            Err(error) => Err(Failure::Usage(error.to_string())),
        },
    };
    result.unwrap_or_else(|failure| {
        // Of words too many only the help speaks.
        if !matches!(failure, Failure::Misuse(_)) {
            name::complain(failure.text(Name::QemuIo));
        }
        if matches!(failure, Failure::Misuse(_) | Failure::Option(_)) {
            print!("{}", command.clone().render_long_help());
        }
        failure.exit_code()
    })
}
