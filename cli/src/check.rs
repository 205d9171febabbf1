//! `blkring check`: whether the metadata of an image is right.

use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::ExitCode;

use blkring_engine::{Access, Claim, LockedFile};
use blkring_qcow2::{CheckError, CheckLimits, CheckReport, Finding, ReadAt, Severity, check};
use clap::Args;
use serde::Serialize;

use crate::arguments::Misuse;
use crate::bytes;
use crate::chain::{self, Member};
use crate::failure::Failure;
use crate::image_name::ImageName;
use crate::name::Name;
use crate::options::{CacheMode, Format, Output, Share, cache_mode, output};
use crate::reason::Reason;
use crate::source::Source;
use crate::{json, name, probe};

/// Check the metadata of an image, as qemu-img check does.
///
/// The exit code is 0 if nothing is wrong, 1 if the check could not be done, 2 if the image is corrupt, 3 if clusters
/// are leaked, and 63 if the format has nothing to check.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    source: Source,
    /// How the result is printed: human or json.
    #[arg(long, value_name = "OUTPUT", default_value = "human", value_parser = output)]
    output: Output,
    /// Repair: leaks or all. Not supported yet.
    #[arg(short, long, value_name = "WHAT", value_parser = repair)]
    repair: Option<String>,
    /// Cache mode of the file: none, writeback, writethrough, directsync or unsafe.
    #[arg(short = 'T', long = "cache", value_name = "CACHE", value_parser = cache)]
    _cache: Option<CacheMode>,
    /// Print errors only.
    #[arg(short, long)]
    quiet: bool,
}

/// The format has nothing to check.
const UNSUPPORTED: u8 = 63;

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let name = options.source.name()?;
    let format = name.format().map_or_else(|| probe::format(name.path()), Ok);
    // The file of a raw image must be there all the same.
    let there = format.and_then(|format| probe::open(name.path()).map(|_| format));
    if there.map_err(|reason| Failure::open(&name, reason))? == Format::Raw {
        if !name.wishes().below.is_empty() {
            return Err(Failure::open(&name, Reason::no_backing_files()));
        }
        name::complain("This image format does not support checks");
        return Ok(ExitCode::from(UNSUPPORTED));
    }
    if let Some(what) = &options.repair {
        return Err(Failure::Usage(format!("--repair (-r) {what} is not supported")));
    }
    let share = options.source.share();
    let _below;
    if name::own() != Name::Blkring {
        // The others open all of the chain, and keep it, though one file of it is checked.
        let top = Member::look(name.path(), Some(Format::Qcow2));
        let below = top.and_then(|top| chain::members_below(&top, &name.wishes().below, share));
        _below = below.map_err(|reason| Failure::open(&name, reason))?;
    }
    let report = image(&name, share, &mut |finding| eprintln!("{}", line(finding)))?;
    match (options.quiet, options.output) {
        (_, Output::Json) => json::print(&Json::of(name.path(), &report)),
        (true, Output::Human) => (),
        (false, Output::Human) => print!("{}", human(&report)),
    }
    Ok(exit_code(&report))
}

fn repair(word: &str) -> Result<String, Misuse> {
    match word {
        "leaks" | "all" => Ok(word.to_owned()),
        _ => Err(Misuse(format!("--repair (-r) expects 'leaks' or 'all' not '{word}'"))),
    }
}

fn cache(word: &str) -> Result<CacheMode, String> {
    cache_mode(word).map_err(|_| format!("Invalid source cache option: {word}"))
}

/// A finding as it is told.
fn line(finding: &Finding) -> String {
    match (finding, finding.severity()) {
        (Finding::Leak { cluster, refcount, references }, _) => {
            format!("Leaked cluster {cluster} refcount={refcount} reference={references}")
        }
        (Finding::RefcountTooLow { cluster, refcount, references }, _) => {
            format!("ERROR cluster {cluster} refcount={refcount} reference={references}")
        }
        (_, Severity::Corruption | Severity::CheckError) => format!("ERROR {finding}"),
        (_, Severity::Leak) => format!("Leaked: {finding}"),
    }
}

/// Checks the qcow2 image `name`; each finding is told to `sink`.
pub fn image(
    name: &ImageName,
    share: Share,
    sink: &mut dyn FnMut(&Finding),
) -> Result<CheckReport, Failure> {
    let path = name.path();
    let cannot_open = |reason| Failure::open(name, reason);
    let claim = match name.share(share) {
        Share::Locked => Claim::exclusive(Access::ReadOnly),
        Share::Forced => Claim::shared(Access::ReadOnly),
    };
    let file = probe::locked(path, name.locking(), claim).map_err(cannot_open)?;
    let metadata = file.metadata();
    let metadata = metadata.map_err(|error| cannot_open(Reason::system(path, &error)))?;
    let len = probe::length(&file).map_err(|error| cannot_open(Reason::system(path, &error)))?;
    // Of a device it is not known how much of it is in use.
    let stored = if metadata.is_file() { metadata.blocks() * 512 } else { len };
    let limits = CheckLimits::for_stored(stored);
    let image = CheckedFile { file, len };
    check(&image, limits, sink).map_err(|error| match error {
        CheckError::Header(error) => cannot_open(Reason::header(&error)),
        other => Failure::Check { path: bytes::of_path(path), source: other },
    })
}

struct CheckedFile {
    file: LockedFile,
    len: u64,
}

impl ReadAt for CheckedFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn len(&self) -> u64 {
        self.len
    }
}

fn exit_code(report: &CheckReport) -> ExitCode {
    ExitCode::from(match report {
        CheckReport { check_errors: 1.., .. } => 1,
        CheckReport { corruptions: 1.., .. } => 2,
        CheckReport { leaks: 1.., .. } => 3,
        _ => 0,
    })
}

/// The result for people.
fn human(report: &CheckReport) -> String {
    let mut lines = String::new();
    let mut add = |line: String| {
        lines.push_str(&line);
        lines.push('\n');
    };
    if report.is_clean() {
        add("No errors were found on the image.".to_owned());
    }
    if report.corruptions > 0 {
        add(format!(
            "\n{} errors were found on the image.\n\
             Data may be corrupted, or further writes to the image may corrupt it.",
            report.corruptions
        ));
    }
    if report.leaks > 0 {
        add(format!(
            "\n{} leaked clusters were found on the image.\n\
             This means waste of disk space, but no harm to data.",
            report.leaks
        ));
    }
    if report.check_errors > 0 {
        add(format!("\n{} internal errors have occurred during the check.", report.check_errors));
    }
    let (total, allocated) = (report.total_clusters, report.allocated_clusters);
    if total > 0 && allocated > 0 {
        let share = |part: u64, whole: u64| part as f64 * 100.0 / whole as f64;
        add(format!(
            "{allocated}/{total} = {:.2}% allocated, {:.2}% fragmented, {:.2}% compressed clusters",
            share(allocated, total),
            share(report.fragmented_clusters, allocated),
            share(report.compressed_clusters, allocated)
        ));
    }
    if report.image_end_offset > 0 {
        add(format!("Image end offset: {}", report.image_end_offset));
    }
    lines
}

/// The result for programs, in the order in which qemu-img tells it.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Json {
    #[serde(skip_serializing_if = "is_zero")]
    image_end_offset: u64,
    #[serde(skip_serializing_if = "is_zero")]
    compressed_clusters: u64,
    #[serde(skip_serializing_if = "is_zero")]
    total_clusters: u64,
    #[serde(skip_serializing_if = "is_zero")]
    corruptions: u64,
    check_errors: u64,
    #[serde(skip_serializing_if = "is_zero")]
    leaks: u64,
    #[serde(skip_serializing_if = "is_zero")]
    allocated_clusters: u64,
    filename: String,
    format: &'static str,
    #[serde(skip_serializing_if = "is_zero")]
    fragmented_clusters: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Json {
    fn of(path: &Path, report: &CheckReport) -> Self {
        Json {
            image_end_offset: report.image_end_offset,
            total_clusters: report.total_clusters,
            fragmented_clusters: report.fragmented_clusters,
            compressed_clusters: report.compressed_clusters,
            corruptions: report.corruptions,
            leaks: report.leaks,
            check_errors: report.check_errors,
            allocated_clusters: report.allocated_clusters,
            filename: bytes::of_path(path),
            format: Format::Qcow2.name(),
        }
    }
}
