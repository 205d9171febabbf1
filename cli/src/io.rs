//! `blkring io`: single requests by commands, in the manner of qemu-io.

mod blocks;
mod breakpoints;
mod check;
mod command;
mod complaint;
mod compressed;
mod getopt;
mod help;
mod injected;
mod input;
mod opened;
mod pending;
mod session;
mod text;
mod truncate;
mod wish;

pub use text::human;

use std::ffi::OsString;
use std::process::ExitCode;

use blkring_engine::Access;
use blkring_qcow2::AllocPolicy;
use clap::Args;

use crate::failure::Failure;
use crate::image_name::Syntax;
use crate::name;
use crate::options::{Aio, CacheMode, Share};

use session::{Next, Placement, Session, Settings};
use wish::{CopyOnRead, Discard, Overlay, Wish, aio_option, cache_option, discard_option};

/// Run read, write, flush and other commands on an image, as qemu-io does.
///
/// Without -c, commands are read from the standard input, one a line. "help" as a command lists them.
#[derive(Args)]
pub struct Options {
    /// A command; may be given several times.
    #[arg(short, long = "cmd", value_name = "COMMAND", action = clap::ArgAction::Append)]
    commands: Vec<String>,
    #[command(flatten)]
    image: ImageOptions,
    #[command(flatten)]
    ways: Ways,
}

/// Which image, and how it is named.
#[derive(Args)]
struct ImageOptions {
    /// Format of the image (raw, qcow2).
    #[arg(short, long, value_name = "FMT")]
    format: Option<String>,
    /// FILE is no file name but options: driver=qcow2,file.filename=NAME.
    #[arg(long)]
    image_opts: bool,
    /// Open it whatever locks others hold; only together with -r.
    #[arg(short = 'U', long)]
    force_share: bool,
    /// Refuse to write.
    #[arg(short, long)]
    read_only: bool,
    /// Leave the image as it is: what is written goes to a new file, which is removed in the end.
    #[arg(short, long)]
    snapshot: bool,
    /// Accepted for scripts: nothing here uses an object.
    #[arg(long, value_name = "OBJDEF", hide = true)]
    object: Vec<String>,
    /// The image.
    #[arg(value_name = "FILE")]
    files: Vec<OsString>,
}

/// How its requests are done.
#[derive(Args)]
struct Ways {
    /// The same as -t none.
    #[arg(short, long)]
    nocache: bool,
    /// Cache mode: none, writeback, writethrough, directsync or unsafe.
    #[arg(short = 't', long, value_name = "CACHE", value_parser = cache_option, default_value = "writeback")]
    cache: CacheMode,
    /// Write what reads find in backing files to the image.
    #[arg(short = 'C', long)]
    copy_on_read: bool,
    /// Let buffers begin where direct I/O does not want them.
    #[arg(short, long)]
    misalign: bool,
    /// The same as -i native.
    #[arg(short = 'k', long)]
    native_aio: bool,
    /// threads, or io_uring, or native, which is io_uring too. By default io_uring, and threads where there is none.
    #[arg(short = 'i', long, value_name = "MODE", value_parser = aio_option)]
    aio: Option<Aio>,
    /// Discards: unmap, or ignore.
    #[arg(short, long, value_name = "MODE", value_parser = discard_option)]
    discard: Option<Discard>,
    /// How new clusters get their zeros: ahead or per-allocation.
    #[arg(long, value_name = "POLICY", value_parser = policy_option)]
    alloc_policy: Option<AllocPolicy>,
    /// Accepted for scripts: there are no trace events of QEMU here.
    #[arg(short = 'T', long = "qemu-trace", value_name = "EVENTS", hide = true)]
    events: Vec<String>,
}

/// Runs the commands in order. The exit code is 1 if any of them failed.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    if !options.ways.events.is_empty() {
        name::complain("warning: the trace events of QEMU do not exist here; see blkring --trace");
    }
    let wish = options.wish()?;
    let placement = if options.ways.misalign { Placement::Misaligned } else { Placement::Aligned };
    let mut session = Session::new(Settings { syntax: wish.syntax, placement })?;
    if wish.path.is_some() {
        session.begin_with(&wish)?;
    }
    let code = match options.commands.as_slice() {
        [] => input::run(&mut session)?,
        commands => given(&mut session, commands)?,
    };
    session.finish()?;
    Ok(code)
}

/// Runs commands that are known before.
fn given(session: &mut Session, commands: &[String]) -> Result<ExitCode, Failure> {
    let mut code = ExitCode::SUCCESS;
    for line in commands {
        match session.execute(line)? {
            Next::Go => (),
            Next::GoFailed => code = ExitCode::FAILURE,
            Next::Quit => break,
        }
    }
    Ok(code)
}

impl Options {
    fn wish(&self) -> Result<Wish, Failure> {
        let Options { image, ways, .. } = self;
        let path = match image.files.as_slice() {
            [] => None,
            [path] => Some(path.clone()),
            _ => return Err(Failure::Misuse("Expecting one image file name".to_owned())),
        };
        if image.image_opts && image.format.is_some() {
            let text = "--image-opts and -f are mutually exclusive";
            return Err(Failure::Usage(text.to_owned()));
        }
        Ok(Wish {
            path,
            syntax: Syntax::of(image.image_opts),
            format: image.format.clone(),
            options: None,
            access: if image.read_only { Access::ReadOnly } else { Access::ReadWrite },
            share: Share::of(image.force_share),
            cache: if ways.nocache { CacheMode::None } else { ways.cache },
            aio: ways.aio.or(ways.native_aio.then_some(Aio::Native)),
            discard: ways.discard.unwrap_or_default(),
            overlay: Overlay::from(image.snapshot),
            copy_on_read: CopyOnRead::from(ways.copy_on_read),
            policy: ways.alloc_policy.unwrap_or_default(),
        })
    }
}

fn policy_option(word: &str) -> Result<AllocPolicy, String> {
    AllocPolicy::named(word).ok_or_else(|| format!("Unknown allocation policy '{word}'"))
}
