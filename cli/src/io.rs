//! `blkring io`: single requests by commands, in the manner of qemu-io.

mod check;
mod command;
mod complaint;
mod getopt;
mod session;
mod text;

pub use text::human;

use std::process::ExitCode;

use blkring_engine::{Access, QueueOptions, QueueSeed};
use clap::Args;

use crate::disk::{AnyDisk, Opening};
use crate::failure::Failure;
use crate::options::{CacheMode, cache_mode};
use crate::source::Source;

use session::{Next, Session};

/// Run read, write, flush and other commands on an image, as qemu-io does.
///
/// Commands: read, write, readv, writev, aio_read, aio_write, aio_flush, flush, discard, length, info, sleep, quit;
/// "help" as a command lists their options.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    source: Source,
    /// A command; may be given several times.
    #[arg(short, long = "cmd", value_name = "COMMAND", required = true)]
    commands: Vec<String>,
    /// Refuse to write.
    #[arg(short, long)]
    read_only: bool,
    /// The same as -t none.
    #[arg(short, long)]
    nocache: bool,
    /// Cache mode: none, writeback, writethrough, directsync or unsafe.
    #[arg(short = 't', long, value_name = "CACHE", value_parser = cache_option, default_value = "writeback")]
    cache: CacheMode,
}

/// Runs the commands in order. The exit code is 1 if any of them failed.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let access = if options.read_only { Access::ReadOnly } else { Access::ReadWrite };
    let cache = if options.nocache { CacheMode::None } else { options.cache };
    let name = options.source.name()?;
    let mut queue = QueueSeed::new(QueueOptions::default())?.start()?;
    let share = options.source.share();
    let opening = Opening { access, cache, share, ..Opening::read_only() };
    let image = AnyDisk::open(&mut queue, &name, opening)?;
    let disk = image.attach(&mut queue)?;
    let mut session = Session::new(queue, disk, &image, access, cache);
    let mut code = ExitCode::SUCCESS;
    for line in &options.commands {
        match session.execute(line)? {
            Next::Go => (),
            Next::GoFailed => code = ExitCode::FAILURE,
            Next::Quit => break,
        }
    }
    session.finish()?;
    Ok(code)
}

/// As [`cache_mode`], with the words of qemu-io for what is none.
fn cache_option(word: &str) -> Result<CacheMode, String> {
    cache_mode(word).map_err(|_| format!("Invalid cache option: {word}"))
}
