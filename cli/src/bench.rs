//! `blkring bench`.

mod stream;

use std::path::PathBuf;
use std::process::ExitCode;

use blkring_qcow2::AllocPolicy;
use clap::Args;

use crate::failure::Failure;
use crate::number::{counts, sizes};
use crate::options::{Aio, CacheMode, Format, aio, cache_mode, format};

const I31: u64 = i32::MAX as u64;

/// Measure an image: a stream of equal requests, as qemu-img bench does.
#[derive(Args)]
pub struct Options {
    /// The image.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Format of the image (raw, qcow2).
    #[arg(short, long, value_name = "FMT", value_parser = format)]
    format: Option<Format>,
    /// Cache mode: none, writeback, writethrough, directsync or unsafe.
    #[arg(short = 't', long, value_name = "CACHE", default_value = "writeback", value_parser = cache_mode)]
    cache: CacheMode,
    /// Number of requests.
    #[arg(short, long, default_value = "75000", allow_negative_numbers = true,
        value_parser = counts("request count", 1..=I31))]
    count: u64,
    /// Requests in parallel.
    #[arg(short, long, default_value = "64", allow_negative_numbers = true,
        value_parser = counts("queue depth", 1..=I31))]
    depth: u64,
    /// Bytes of each request.
    #[arg(short = 's', long, default_value = "4096", allow_negative_numbers = true,
        value_parser = sizes("buffer size", 1..=I31))]
    buffer_size: u64,
    /// Bytes from one request to the next; 0 for the size of a request.
    #[arg(short = 'S', long, default_value = "0", allow_negative_numbers = true,
        value_parser = sizes("step size", 0..=I31))]
    step_size: u64,
    /// Offset of the first request.
    #[arg(short, long, default_value = "0", allow_negative_numbers = true,
        value_parser = sizes("offset", 0..=i64::MAX as u64))]
    offset: u64,
    /// Write instead of reading.
    #[arg(short, long)]
    write: bool,
    /// The byte to write.
    #[arg(long, default_value = "0", allow_negative_numbers = true,
        value_parser = counts("pattern byte", 0..=255))]
    pattern: u64,
    /// Flush after so many requests; 0 for never.
    #[arg(long, default_value = "0", allow_negative_numbers = true,
        value_parser = counts("flush interval", 0..=I31))]
    flush_interval: u64,
    /// Send flushes beside the requests in flight instead of waiting for these.
    #[arg(long)]
    no_drain: bool,
    /// Kind of asynchronous I/O: threads, native or io_uring. Accepted for scripts; all run on io_uring.
    #[arg(short = 'i', long, value_name = "AIO", default_value = "io_uring", value_parser = aio)]
    aio: Aio,
    /// The same as -i native.
    #[arg(short = 'n', long)]
    native: bool,
    /// How new clusters of a qcow2 image get their zeros: ahead or per-allocation.
    #[arg(long, value_name = "POLICY", default_value = "ahead", value_parser = policy)]
    policy: AllocPolicy,
    /// Print what the queue has sent to the kernel.
    #[arg(long)]
    stats: bool,
    /// Accepted for scripts: no lock is taken.
    #[arg(short = 'U', long)]
    force_share: bool,
    /// Accepted for scripts.
    #[arg(short, long)]
    quiet: bool,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let Some(file) = &options.file else {
        return Err(Failure::Usage("Expecting one image file name".to_owned()));
    };
    stream::run(file, options)?;
    Ok(ExitCode::SUCCESS)
}

fn policy(word: &str) -> Result<AllocPolicy, String> {
    AllocPolicy::named(word).ok_or_else(|| format!("Invalid allocation policy '{word}'"))
}
