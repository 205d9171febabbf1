//! The `blkring` program: `blkring help` says what it can do.
//!
//! Options, output and exit codes follow qemu-img and qemu-io. An error is one line on the standard error that
//! starts with `blkring: `.

mod bench;
mod check;
mod create;
mod disk;
mod failure;
mod info;
mod io;
mod json;
mod number;
mod options;
mod probe;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::failure::Failure;

/// Disk images on io_uring.
#[derive(Parser)]
#[command(name = "blkring", version, about)]
struct Program {
    /// Print the events that FILTER selects to the standard error, for instance "debug" or "blkring_engine=trace".
    #[arg(long, global = true, value_name = "FILTER")]
    trace: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Create(create::Options),
    Info(info::Options),
    Check(check::Options),
    Bench(bench::Options),
    Io(io::Options),
}

fn main() -> ExitCode {
    let program = match Program::try_parse() {
        Ok(program) => program,
        Err(error) => return usage(&error),
    };
    match run(program) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("blkring: {failure}");
            failure.exit_code()
        }
    }
}

fn run(program: Program) -> Result<ExitCode, Failure> {
    if let Some(filter) = &program.trace {
        trace(filter)?;
    }
    match program.command {
        Command::Create(options) => create::run(&options),
        Command::Info(options) => info::run(&options),
        Command::Check(options) => check::run(&options),
        Command::Bench(options) => bench::run(&options),
        Command::Io(options) => io::run(&options),
    }
}

/// What the parser has to say: help as it is, an error as one line.
fn usage(error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        let printed = error.print();
        return if printed.is_ok() && !error.use_stderr() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    let text = match std::error::Error::source(error) {
        // Our own parsers of values say it all.
        Some(reason) if error.kind() == ErrorKind::ValueValidation => reason.to_string(),
        _ => {
            let text = error.to_string();
            let first = text.split("\n\n").next().unwrap_or_default();
            let words: Vec<&str> = first.split_whitespace().collect();
            words.join(" ").trim_start_matches("error: ").to_owned()
        }
    };
    eprintln!("blkring: {text}");
    ExitCode::FAILURE
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
