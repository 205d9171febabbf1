//! The `blkring` program: `blkring help` says what it can do. Through links of these names it is qemu-img or qemu-io.
//!
//! Options, output and exit codes follow qemu-img and qemu-io. An error is a line on the standard error that starts
//! with the program's name.

#[macro_use]
mod say;

mod arguments;
mod backend;
mod bench;
mod bytes;
mod chain;
mod check;
mod compare;
mod convert;
mod create;
mod dd;
mod disk;
mod error_form;
mod failure;
mod image_name;
mod info;
mod io;
mod json;
mod map;
mod measure;
mod name;
mod number;
mod options;
mod probe;
mod probed;
mod progress;
mod qemu_img;
mod qemu_io;
mod reason;
mod resize;
mod signals;
mod snapshots;
mod source;
mod status;
mod text;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::arguments::Line;
use crate::failure::Failure;
use crate::name::Name;

/// Disk images on io_uring.
#[derive(Parser)]
#[command(name = "blkring", version, about, subcommand_required = true)]
struct Program {
    /// Print the events that FILTER selects to the standard error, for instance "debug" or "blkring_engine=trace".
    #[arg(long, global = true, value_name = "FILTER")]
    trace: Option<String>,
    /// How an error is told: human, or json for one JSON object in a line.
    #[arg(long, global = true, value_name = "FORM", value_parser = options::output)]
    error_format: Option<options::Output>,
    #[command(subcommand)]
    command: Command,
}

/// What the program can do. All but [`Command::Io`] are commands of qemu-img too.
#[derive(Subcommand)]
enum Command {
    Create(create::Options),
    Info(info::Options),
    Check(check::Options),
    Compare(compare::Options),
    Convert(convert::Options),
    Dd(dd::Options),
    Map(map::Options),
    Measure(measure::Options),
    Resize(resize::Options),
    Bench(bench::Options),
    Io(io::Options),
}

impl Command {
    fn run(&self) -> Result<ExitCode, Failure> {
        match self {
            Command::Create(options) => create::run(options),
            Command::Info(options) => info::run(options),
            Command::Check(options) => check::run(options),
            Command::Measure(options) => measure::run(options),
            Command::Compare(options) => compare::run(options),
            Command::Dd(options) => dd::run(options),
            Command::Resize(options) => resize::run(options),
            Command::Convert(options) => convert::run(options),
            Command::Map(options) => map::run(options),
            Command::Bench(options) => bench::run(options),
            Command::Io(options) => io::run(options),
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().map(|word| bytes::word(&word)).collect();
    let name = words.first().map_or(Name::Blkring, |word| Name::of(word));
    name::set(name);
    signals::survive();
    match name {
        Name::Blkring => blkring(&words),
        Name::QemuImg => qemu_img::run(&words),
        Name::QemuIo => qemu_io::run(&words),
    }
}

fn blkring(words: &[OsString]) -> ExitCode {
    if words.len() < 2 {
        eprint!("{}", Program::command().render_long_help());
        return ExitCode::FAILURE;
    }
    let result = match arguments::read(Program::command(), words) {
        Line::Help(text) => {
            print!("{text}");
            Ok(ExitCode::SUCCESS)
        }
        Line::Wrong(failure) => Err(failure),
        Line::Matches(matches) => match Program::from_arg_matches(&matches) {
            Err(error) => Err(Failure::Usage(error.to_string())),
            Ok(program) => match program.trace.as_deref().map(trace) {
                Some(Err(failure)) => Err(failure),
                _ => program.command.run(),
            },
        },
    };
    result.unwrap_or_else(|failure| {
        match error_form::asked(words) {
            options::Output::Human => name::complain(failure.text(Name::Blkring)),
            options::Output::Json => eprintln!("{}", error_form::json(&failure)),
        }
        failure.exit_code()
    })
}

fn trace(filter: &str) -> Result<(), Failure> {
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .map_err(|error| Failure::Usage(format!("Invalid trace filter '{filter}': {error}")))?;
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(ansi)
        .with_writer(std::io::stderr)
        .init();
    Ok(())
}
