//! `blkring bench FILE`: what `qemu-img bench` does, on one queue.

use blkring_bench::stream::{Direction, Drain, FlushEvery, Stream};
use blkring_engine::{Access, BufferPool, Cache, Flags, IoMem, LaneCounts, Queue};

use clap::Args;

use super::I31;
use crate::backend;
use crate::disk::{AnyDisk, Opening};
use crate::failure::Failure;
use crate::number::{counts, sizes};
use crate::options::{Aio, CacheMode};
use crate::reason::Reason;

/// Options for a run on FILE.
#[derive(Args)]
#[group(skip)]
#[command(next_help_heading = "Options with FILE")]
pub(super) struct Options {
    /// Number of requests.
    #[arg(short, long, default_value = "75000", allow_negative_numbers = true, requires = "files",
        value_parser = counts("request count", 1..=I31))]
    count: u64,
    /// Bytes of each request.
    #[arg(short = 's', long, default_value = "4096", allow_negative_numbers = true, requires = "files",
        value_parser = sizes("buffer size", 1..=I31))]
    buffer_size: u64,
    /// Bytes from one request to the next; 0 for the size of a request.
    #[arg(short = 'S', long, default_value = "0", allow_negative_numbers = true, requires = "files",
        value_parser = sizes("step size", 0..=I31))]
    step_size: u64,
    /// Offset of the first request.
    #[arg(short, long, default_value = "0", allow_negative_numbers = true, requires = "files",
        value_parser = sizes("offset", 0..=i64::MAX as u64))]
    offset: u64,
    /// Write instead of reading.
    #[arg(short, long, requires = "files")]
    write: bool,
    /// The byte to write.
    #[arg(long, default_value = "0", allow_negative_numbers = true, requires = "files",
        value_parser = counts("pattern byte", 0..=255))]
    pattern: u64,
    /// Send flushes beside the requests in flight instead of waiting for these.
    #[arg(long, requires = "files")]
    no_drain: bool,
    /// Print what the queue has sent to the kernel.
    #[arg(long, requires = "files")]
    stats: bool,
}

/// All of it: what was given, and what is so by default.
struct Run<'a> {
    own: &'a Options,
    cache: CacheMode,
    depth: u64,
    flush_interval: u64,
}

pub(super) fn run(all: &super::Options) -> Result<(), Failure> {
    let name = all.source.name()?;
    let options = &Run {
        own: &all.stream,
        cache: all.cache.unwrap_or(CacheMode::Writeback),
        depth: all.depth.unwrap_or(64),
        flush_interval: all.flush_interval.unwrap_or(0),
    };
    check(options)?;
    let stream = stream(options);
    let access = if options.own.write { Access::ReadWrite } else { Access::ReadOnly };
    let mut queue = backend::queue(stream.queue_options())?;
    let (cache, policy, share) = (options.cache, all.policy, all.source.share());
    let opening = Opening { access, cache, policy, share, ..Opening::read_only() };
    if backend::asked() == Some(Aio::Native) && cache.cache() != Cache::Direct {
        return Err(Failure::open(&name, Reason::native_needs_direct()));
    }
    let image = AnyDisk::open(&mut queue, &name, opening)?;
    let disk = image.attach(&mut queue)?;
    announce(&stream, options);
    let taken = stream.run(&mut queue, &disk, &buffer(options)?)?;
    println!("Run completed in {:.3} seconds.", taken.as_secs_f64());
    image.close(&mut queue)?;
    if options.own.stats {
        print_statistics(&queue, &image);
    }
    Ok(())
}

fn check(options: &Run<'_>) -> Result<(), Failure> {
    let complaint = if options.flush_interval == 0 {
        return Ok(());
    } else if !options.own.write {
        "--flush-interval is only available in write tests"
    } else if options.flush_interval < options.depth {
        "Flush interval can't be smaller than depth"
    } else {
        return Ok(());
    };
    Err(Failure::Usage(complaint.to_owned()))
}

fn stream(options: &Run<'_>) -> Stream {
    let small = |value| u32::try_from(value).expect("parsed as below 2^31");
    let drain = if options.own.no_drain { Drain::No } else { Drain::Yes };
    let flushes = options.flush_interval > 0 && options.cache.flushes();
    let flush = flushes.then(|| FlushEvery { interval: small(options.flush_interval), drain });
    Stream {
        count: small(options.own.count),
        depth: small(options.depth),
        step: if options.own.step_size == 0 {
            options.own.buffer_size
        } else {
            options.own.step_size
        },
        offset: options.own.offset,
        direction: if options.own.write { Direction::Write } else { Direction::Read },
        flags: if options.own.write { options.cache.write_flags() } else { Flags::empty() },
        flush,
    }
}

/// The buffer of all requests, aligned for direct I/O.
fn buffer(options: &Run<'_>) -> Result<IoMem, Failure> {
    let bytes = usize::try_from(options.own.buffer_size)
        .map_err(|_| Failure::Usage("The buffer does not fit into memory".to_owned()))?;
    let buffer = BufferPool::new(bytes).try_take(bytes).expect("a fresh pool has its first buffer");
    let memory = buffer.mem();
    memory.fill(0..bytes, u8::try_from(options.own.pattern).expect("parsed as a byte"));
    Ok(memory)
}

fn announce(stream: &Stream, options: &Run<'_>) {
    println!(
        "Sending {} {} requests, {} bytes each, {} in parallel (starting at offset {}, step size {})",
        stream.count,
        if options.own.write { "write" } else { "read" },
        options.own.buffer_size,
        stream.depth,
        stream.offset,
        stream.step
    );
    if options.flush_interval > 0 {
        println!("Sending flush every {} requests", options.flush_interval);
    }
}

fn print_statistics(queue: &Queue, image: &AnyDisk) {
    println!("aio: {}", backend::description(&queue.backend()));
    if let Some(flags) = queue.ring_flags() {
        println!("ring: {flags}");
    }
    println!("enters: {}", queue.enters());
    print_counts("entries", queue.counts());
    if let AnyDisk::Qcow2(_) = image {
        print_counts("entries of shared work", image.shared_counts());
    }
    let (guest, file) = image.trackers();
    for (what, statistics) in
        guest.map(|guest| ("guest", guest)).into_iter().chain([("file", file)])
    {
        let (requests, waits) = (statistics.requests(), statistics.waits);
        println!("{what} ranges: {requests} admitted, {waits} waits");
    }
}

fn print_counts(what: &str, counts: LaneCounts) {
    let LaneCounts { reads, writes, syncs, allocates, truncates, .. } = counts;
    let entries = reads + writes + syncs + allocates + truncates;
    println!(
        "{what}: {entries} ({reads} reads, {writes} writes, {syncs} fdatasyncs, \
         {allocates} fallocates, {truncates} ftruncates)"
    );
}
