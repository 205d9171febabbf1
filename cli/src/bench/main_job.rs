//! `blkring bench` without FILE: the main job.

use std::io;
use std::path::{Path, PathBuf};

use blkring_bench::job::{self, Counters, JobError, Settings, Subject};
use blkring_bench::plan::Plan;
use blkring_bench::{table, verify as verification};
use blkring_engine::{Access, Disk, Queue, QueueOptions};
use blkring_qcow2::CreateOptions;
use clap::Args;

use super::place;
use crate::backend;
use crate::disk::{AnyDisk, Opening};
use crate::failure::Failure;
use crate::image_name::ImageName;
use crate::number::{counts, short, sizes};
use crate::options::{CacheMode, Format, Share};
use crate::{check, create};

/// Options of the main job.
#[derive(Args)]
#[group(skip)]
#[command(next_help_heading = "Options of the main job")]
pub(super) struct Options {
    /// Bytes of the disk: a multiple of 64k.
    #[arg(long, default_value = "256M", conflicts_with = "files",
        value_parser = sizes("size", 0..=i64::MAX as u64))]
    size: u64,
    /// Queues, each with a thread of its own: 1 to 15.
    #[arg(long, default_value = "4", conflicts_with = "files",
        value_parser = counts("number of queues", 1..=super::I31))]
    queues: u64,
    /// What everything random comes from.
    #[arg(long, default_value = "1", conflicts_with = "files",
        value_parser = counts("seed", 0..=i64::MAX as u64))]
    seed: u64,
    /// Random writes, of all queues together.
    #[arg(long, default_value = "65536", conflicts_with = "files",
        value_parser = counts("number of overwrites", 0..=super::I31))]
    overwrites: u64,
    /// Random reads, of all queues together.
    #[arg(long, default_value = "65536", conflicts_with = "files",
        value_parser = counts("number of reads", 0..=super::I31))]
    reads: u64,
    /// Leave the image here. A file that is there already is not touched.
    #[arg(long, value_name = "IMAGE", conflicts_with = "files")]
    keep: Option<PathBuf>,
    /// Write nothing: verify an image that was kept.
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["files", "keep"])]
    pub(super) verify: Option<PathBuf>,
}

/// The flush interval that is used if none was given.
const FLUSH_INTERVAL: u64 = 1024;
const DEPTH: u64 = 32;

struct Image<'a>(&'a AnyDisk);

impl Subject for Image<'_> {
    fn attach(&self, queue: &mut Queue) -> io::Result<Disk> {
        self.0.attach(queue)
    }

    fn counters(&self) -> Counters {
        let (guest, file) = self.0.trackers();
        let shared = self.0.shared_counts();
        Counters {
            syncs: shared.syncs,
            durable_writes: shared.durable_writes,
            waits: guest.map_or(0, |guest| guest.waits) + file.waits,
        }
    }
}

/// Writes an image, verifies and checks it.
pub(super) fn run(all: &super::Options) -> Result<(), Failure> {
    let options = &all.job;
    let plan = Plan::new(options.size, options.queues, options.overwrites, options.seed)?;
    let directory = place::directory()?;
    let path = match &options.keep {
        Some(path) if path.symlink_metadata().is_ok() => {
            return Err(Failure::Usage(format!("{}: File exists", path.display())));
        }
        Some(path) => path.clone(),
        None => directory.path().join("image"),
    };
    let format = all.source.format()?.unwrap_or(Format::Qcow2);
    place::check_room(&path, plan.size())?;
    create(&path, format, plan.size())?;
    let name = ImageName::of_file(&path).of_format(format);
    let cache = cache_mode(all, &name)?;
    let opening = |access| Opening { access, cache, policy: all.policy, ..Opening::read_only() };
    let settings = settings(all, cache);
    println!(
        "{} image of {}, {} queues, depth {}, cache {}, seed {}: {}",
        format.name(),
        short(plan.size()),
        plan.queues(),
        settings.depth,
        cache.name(),
        plan.seed(),
        path.display()
    );
    let failed = |source| Failure::Job { path: path.display().to_string(), source };

    let mut queue = queue()?;
    let image = AnyDisk::open(&mut queue, &name, opening(Access::ReadWrite))?;
    let disk = image.attach(&mut queue)?;
    let ran = job::run(&Image(&image), &plan, &settings)
        .and_then(|reports| verification::seal(&mut queue, &disk, &plan).map(|()| reports));
    // What was reserved goes back after a failed job too, whose error is the one to tell.
    let closed = image.close(&mut queue);
    let mut reports = ran.map_err(failed)?;
    closed?;
    drop((disk, image, queue));

    // All of it once more, from the file alone.
    let (_, report) = verified(&name, opening(Access::ReadOnly))?;
    reports.push(report);
    print!("{}", table::render(&reports));
    if format == Format::Qcow2 {
        check_image(&name)?;
    }
    println!("{} bytes verified", plan.size());
    Ok(())
}

/// Verifies an image that an earlier run has kept.
pub(super) fn verify(path: &Path, all: &super::Options) -> Result<(), Failure> {
    let format = all.source.format()?.unwrap_or(Format::Qcow2);
    let name = ImageName::of_file(path).of_format(format);
    let cache = all.cache.unwrap_or(CacheMode::Writeback);
    let share = all.source.share();
    let (plan, _) = verified(&name, Opening { cache, share, ..Opening::read_only() })?;
    println!(
        "{}: {} bytes verified ({} queues, {} overwrites, seed {})",
        path.display(),
        plan.size(),
        plan.queues(),
        plan.overwrites(),
        plan.seed()
    );
    Ok(())
}

fn verified(name: &ImageName, opening: Opening) -> Result<(Plan, job::PhaseReport), Failure> {
    let mut queue = queue()?;
    let image = AnyDisk::open(&mut queue, name, opening)?;
    let disk = image.attach(&mut queue)?;
    verification::verify(&mut queue, &disk)
        .map_err(|source: JobError| Failure::Job { path: name.given().to_owned(), source })
}

fn queue() -> Result<Queue, Failure> {
    backend::queue(QueueOptions::default())
}

fn create(path: &Path, format: Format, size: u64) -> Result<(), Failure> {
    let made = match format {
        Format::Qcow2 => create::image(path, &CreateOptions::new(size)),
        Format::Raw => create::raw(path, size),
    };
    made.map_err(|source| Failure::Create { path: path.display().to_string(), source })
}

/// The cache mode that was asked for; else none, or writeback where the file system has no direct I/O.
fn cache_mode(all: &super::Options, name: &ImageName) -> Result<CacheMode, Failure> {
    if let Some(cache) = all.cache {
        return Ok(cache);
    }
    let opening = Opening { cache: CacheMode::None, ..Opening::read_only() };
    match AnyDisk::open(&mut queue()?, name, opening) {
        Ok(_) => Ok(CacheMode::None),
        Err(Failure::NoDirectIo { .. }) => Ok(CacheMode::Writeback),
        Err(other) => Err(other),
    }
}

fn settings(all: &super::Options, cache: CacheMode) -> Settings {
    let flush_interval = all.flush_interval.unwrap_or(FLUSH_INTERVAL);
    Settings {
        depth: usize::try_from(all.depth.unwrap_or(DEPTH)).unwrap_or(usize::MAX),
        reads: all.job.reads,
        flush_interval: (flush_interval > 0 && cache.flushes()).then_some(flush_interval),
        write_flags: cache.write_flags(),
        backend: backend::choice(),
    }
}

fn check_image(name: &ImageName) -> Result<(), Failure> {
    let report = check::image(name, Share::Locked, &mut |finding| eprintln!("{finding}"))?;
    if !report.is_clean() {
        return Err(Failure::Unclean {
            path: name.given().to_owned(),
            corruptions: report.corruptions + report.check_errors,
            leaks: report.leaks,
        });
    }
    println!(
        "check: no errors, {} of {} clusters allocated",
        report.allocated_clusters, report.total_clusters
    );
    Ok(())
}
