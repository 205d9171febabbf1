//! `blkring bench`.

mod main_job;
mod place;
mod stream;

use std::process::ExitCode;

use blkring_qcow2::AllocPolicy;
use clap::Args;

use crate::backend;
use crate::failure::Failure;
use crate::name::{self, Name};
use crate::number::counts;
use crate::options::{Aio, CacheMode, aio, cache_mode};
use crate::source::Source;

const I31: u64 = i32::MAX as u64;

/// Measure an image.
///
/// Without FILE, the main job: several queues write a fresh image in a temporary directory, overwrite it at random and
/// read it at random; then every byte is verified and the image is checked. With FILE, a stream of equal requests on
/// that image, as qemu-img bench makes them.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    source: Source,
    /// Cache mode: none, writeback, writethrough, directsync or unsafe. By default writeback; the main job takes none
    /// where it can.
    #[arg(short = 't', long, value_name = "CACHE", value_parser = cache_mode)]
    cache: Option<CacheMode>,
    /// Requests in parallel, on each queue: 64 by default, in the main job 32.
    #[arg(short, long, allow_negative_numbers = true,
        value_parser = counts("queue depth", 1..=I31))]
    depth: Option<u64>,
    /// Flush after so many requests of a queue; 0 for never, which is the default. In the main job each phase ends
    /// with a flush in any case, and the default is 1024.
    #[arg(long, allow_negative_numbers = true,
        value_parser = counts("flush interval", 0..=I31))]
    flush_interval: Option<u64>,
    /// How new clusters of a qcow2 image get their zeros: ahead or per-allocation.
    #[arg(long, value_name = "POLICY", default_value = "ahead", value_parser = policy)]
    policy: AllocPolicy,
    /// Kind of asynchronous I/O: threads, or io_uring, or native, which is io_uring too and needs a cache mode of
    /// direct I/O. By default io_uring, and threads where there is none.
    #[arg(short = 'i', long, value_name = "AIO", value_parser = aio)]
    aio: Option<Aio>,
    /// The same as -i native.
    #[arg(short = 'n', long)]
    native: bool,
    /// Accepted for scripts.
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    stream: stream::Options,
    #[command(flatten)]
    job: main_job::Options,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    backend::ask_for(if options.native { Some(Aio::Native) } else { options.aio });
    let main_job = options.source.is_empty() && name::own() == Name::Blkring;
    match &options.job.verify {
        Some(image) => main_job::verify(image, options)?,
        None if main_job => main_job::run(options)?,
        None => stream::run(options)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn policy(word: &str) -> Result<AllocPolicy, String> {
    AllocPolicy::named(word).ok_or_else(|| format!("Invalid allocation policy '{word}'"))
}
