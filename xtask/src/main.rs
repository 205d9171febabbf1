//! Tasks of this repository: `cargo xtask test` runs the whole suite, `cargo xtask fs-suite` tests a file system.
//!
//! A suite is a list of named steps (`suite.rs`). Each step is a command with a time limit (`command.rs`) whose output
//! goes to a file, and whose result is read from its exit code, the summaries that cargo prints, and the report file
//! that tests append skips to (`outcome.rs`). The table at the end is `table.rs`.

mod command;
mod descendants;
mod fs_suite;
mod install;
mod outcome;
mod place;
mod publish;
mod suite;
mod table;
mod test;
mod variants;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Tasks of the blkring repository")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Install what the tests need, when this user may, and run the whole suite
    Test(test::Options),
    /// Tests of concurrent I/O against a file system: see `cargo xtask fs-suite --help`
    #[command(disable_help_flag = true)]
    FsSuite(fs_suite::Options),
    /// Print the names of the suite's steps
    List,
}

fn main() -> ExitCode {
    let place = place::Place::find();
    match Cli::parse().task {
        Task::Test(options) => test::run(&place, &options),
        Task::FsSuite(options) => fs_suite::run(&place, &options),
        Task::List => {
            suite::steps(&place).iter().for_each(|step| println!("{}", step.name));
            ExitCode::SUCCESS
        }
    }
}
