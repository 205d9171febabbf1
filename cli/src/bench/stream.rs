//! `blkring bench FILE`: what `qemu-img bench` does, on one queue.

use std::path::Path;

use blkring_bench::stream::{Direction, Drain, FlushEvery, Stream};
use blkring_engine::{Access, BufferPool, Flags, IoMem, LaneCounts, Queue, QueueSeed};

use super::Options;
use crate::disk::{AnyDisk, Opening};
use crate::failure::Failure;
use crate::options::Aio;

pub(super) fn run(file: &Path, options: &Options) -> Result<(), Failure> {
    check(options)?;
    let stream = stream(options);
    let access = if options.write { Access::ReadWrite } else { Access::ReadOnly };
    let mut queue = QueueSeed::new(stream.queue_options())?.start()?;
    let opening =
        Opening { format: options.format, access, cache: options.cache, policy: options.policy };
    let image = AnyDisk::open(&mut queue, file, opening)?;
    let disk = image.attach(&mut queue)?;
    announce(&stream, options);
    let taken = stream.run(&mut queue, &disk, &buffer(options)?)?;
    println!("Run completed in {:.3} seconds.", taken.as_secs_f64());
    image.close(&mut queue)?;
    if options.stats {
        print_statistics(&queue, &image, options);
    }
    Ok(())
}

fn check(options: &Options) -> Result<(), Failure> {
    let complaint = if options.flush_interval == 0 {
        return Ok(());
    } else if !options.write {
        "--flush-interval is only available in write tests"
    } else if options.flush_interval < options.depth {
        "Flush interval can't be smaller than depth"
    } else {
        return Ok(());
    };
    Err(Failure::Usage(complaint.to_owned()))
}

fn stream(options: &Options) -> Stream {
    let small = |value| u32::try_from(value).expect("parsed as below 2^31");
    let drain = if options.no_drain { Drain::No } else { Drain::Yes };
    let flushes = options.flush_interval > 0 && options.cache.flushes();
    let flush = flushes.then(|| FlushEvery { interval: small(options.flush_interval), drain });
    Stream {
        count: small(options.count),
        depth: small(options.depth),
        step: if options.step_size == 0 { options.buffer_size } else { options.step_size },
        offset: options.offset,
        direction: if options.write { Direction::Write } else { Direction::Read },
        flags: if options.write { options.cache.write_flags() } else { Flags::empty() },
        flush,
    }
}

/// The buffer of all requests, aligned for direct I/O.
fn buffer(options: &Options) -> Result<IoMem, Failure> {
    let bytes = usize::try_from(options.buffer_size)
        .map_err(|_| Failure::Usage("The buffer does not fit into memory".to_owned()))?;
    let buffer = BufferPool::new(bytes).try_take(bytes).expect("a fresh pool has its first buffer");
    let memory = buffer.mem();
    memory.fill(0..bytes, u8::try_from(options.pattern).expect("parsed as a byte"));
    Ok(memory)
}

fn announce(stream: &Stream, options: &Options) {
    println!(
        "Sending {} {} requests, {} bytes each, {} in parallel (starting at offset {}, step size {})",
        stream.count,
        if options.write { "write" } else { "read" },
        options.buffer_size,
        stream.depth,
        stream.offset,
        stream.step
    );
    if options.flush_interval > 0 {
        println!("Sending flush every {} requests", options.flush_interval);
    }
}

fn print_statistics(queue: &Queue, image: &AnyDisk, options: &Options) {
    let asked = if options.native { Aio::Native } else { options.aio };
    println!("aio: io_uring ({} was asked for)", asked.name());
    println!("ring: {}", queue.ring_flags().unwrap_or_default());
    println!("enters: {}", queue.enters());
    print_counts("ring entries", queue.counts());
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
