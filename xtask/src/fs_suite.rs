//! `cargo xtask fs-suite`: builds the program of the tests crate and becomes it, so that it alone is told of interrupts.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use crate::place::Place;
use crate::suite;

/// Arguments of the program, which has its own help.
#[derive(clap::Args)]
pub(crate) struct Options {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Does not return, unless there is no cargo.
pub(crate) fn run(place: &Place, options: &Options) -> ExitCode {
    let manifest = place.root.join("Cargo.toml");
    let mut cargo = Command::new(suite::program());
    cargo.args(["run", "--quiet", "--package", "blkring-tests", "--bin", "fs-suite"]);
    // The user's directory stays the current one: `--dir` may be relative to it.
    cargo.arg("--manifest-path").arg(manifest).arg("--").args(&options.args);
    let error = cargo.exec();
    eprintln!("{}: {error}", cargo.get_program().display());
    ExitCode::FAILURE
}
