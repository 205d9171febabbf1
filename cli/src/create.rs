//! `blkring create`: new images.

pub mod format_options;

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use blkring_engine::{Claim, LockMode, LockedFile};
use blkring_qcow2::{Backing, Compatible, CreateError, CreateOptions, Layout};
use clap::Args;

use crate::failure::Failure;
use crate::name::{self, Name};
use crate::number::sizes;
use crate::options::{Format, format};
use crate::probe;
use crate::reason::Reason;
use crate::text::reason;

use format_options::FormatOptions;

/// Images are made of whole sectors.
const SECTOR: u64 = 512;

/// Make a new image, as qemu-img create does.
#[derive(Args)]
pub struct Options {
    /// Format of the image (raw, qcow2).
    #[arg(short, long, value_name = "FMT", default_value = "raw", value_parser = format)]
    format: Format,
    /// Options of the format: NAME=VALUE, several with commas between them.
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Backing file, relative to the directory of the image.
    #[arg(short, long, value_name = "BACKING")]
    backing: Option<String>,
    /// Format of the backing file; needed with -b, since it is never guessed.
    #[arg(short = 'F', long, value_name = "FMT")]
    backing_format: Option<String>,
    /// Do not look at the backing file; the size must be given.
    #[arg(short = 'u', long)]
    backing_unsafe: bool,
    /// Print nothing.
    #[arg(short, long)]
    quiet: bool,
    /// The image.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Its size in bytes; that of the backing file if it is not given.
    #[arg(value_name = "SIZE", allow_negative_numbers = true,
        value_parser = sizes("image size", 0..=i64::MAX as u64))]
    size: Option<u64>,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let mut given = FormatOptions::default();
    for text in &options.options {
        given.add(options.format, text).map_err(|text| failure(&options.file, text))?;
    }
    given.size = options.size.or(given.size);
    given.backing_file = options.backing.clone().or(given.backing_file);
    given.backing_format = options.backing_format.clone().or(given.backing_format);
    match options.format {
        Format::Raw => create_raw(options, &given)?,
        Format::Qcow2 => create_qcow2(options, given)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn failure(file: &Path, text: impl ToString) -> Failure {
    Failure::Usage(format!("{}: {}", file.display(), text.to_string()))
}

fn create_raw(options: &Options, given: &FormatOptions) -> Result<(), Failure> {
    if given.backing_file.is_some() {
        return Err(failure(&options.file, "Backing file not supported for file format 'raw'"));
    }
    let size = given.size.ok_or_else(|| no_size(&options.file))?;
    if !options.quiet {
        println!("Formatting '{}', fmt=raw size={size}", options.file.display());
    }
    raw(&options.file, size)
}

/// Makes a raw image: a file of zeros. What it held before is gone.
///
/// # Errors
/// Of the file.
pub fn raw(path: &Path, size: u64) -> Result<(), Failure> {
    let file = emptied(path)?;
    let made = file.set_len(size.next_multiple_of(SECTOR)).and_then(|()| file.sync_all());
    made.map_err(|error| cannot_create(path, &error))
}

fn create_qcow2(options: &Options, given: FormatOptions) -> Result<(), Failure> {
    let backing = backing(options, &given)?;
    let size = match (given.size, &backing) {
        (Some(size), _) => size,
        (None, Some(backing)) if !options.backing_unsafe => backing_size(&options.file, backing)?,
        (None, _) => return Err(no_size(&options.file)),
    };
    let mut compatible = Compatible::empty();
    compatible.set(Compatible::LAZY_REFCOUNTS, given.lazy_refcounts);
    let plan = CreateOptions {
        size,
        cluster_size: given.cluster_size,
        backing,
        compatible,
        ..CreateOptions::default()
    };
    if !options.quiet {
        announce(&options.file, &plan);
    }
    image(&options.file, &plan)
}

fn no_size(file: &Path) -> Failure {
    failure(file, "Image creation needs a size parameter")
}

fn cannot_create(file: &Path, error: &io::Error) -> Failure {
    failure(file, format!("Could not create '{}': {}", file.display(), reason(error)))
}

/// The backing file, which is there if it is looked at.
fn backing(options: &Options, given: &FormatOptions) -> Result<Option<Backing>, Failure> {
    let Some(name) = &given.backing_file else { return Ok(None) };
    let Some(format) = &given.backing_format else {
        let text = "Backing file specified without backing format";
        return Err(failure(&options.file, text));
    };
    let backing = Backing { name: name.clone().into_bytes(), format: format.clone().into_bytes() };
    if !options.backing_unsafe {
        backing_size(&options.file, &backing)?;
    }
    Ok(Some(backing))
}

/// The size of the virtual disk in the backing file.
fn backing_size(file: &Path, backing: &Backing) -> Result<u64, Failure> {
    let name = PathBuf::from(OsString::from_vec(backing.name.clone()));
    let path = file.parent().map(|directory| directory.join(&name)).unwrap_or(name);
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    if identity(file).is_some_and(|own| identity(&path) == Some(own)) {
        let text = "Error: Trying to create an image with the same filename as the backing file";
        return Err(failure(file, text));
    }
    let size = match backing.format.as_slice() {
        b"raw" => File::open(&path)
            .and_then(|file| file.metadata())
            .map(|metadata| metadata.len())
            .map_err(|error| reason(&error)),
        b"qcow2" => probe::header(&path, blkring_qcow2::Access::Read)
            .map(|header| header.geometry().virtual_size())
            .map_err(|error| error.text(Name::Blkring, &path.display().to_string())),
        other => Err(format!("Unknown driver '{}'", other.escape_ascii())),
    };
    size.map_err(|reason| failure(file, format!("Could not open '{}': {reason}", path.display())))
}

fn announce(file: &Path, plan: &CreateOptions) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let backing = plan.backing.as_ref().map_or_else(String::new, |backing| {
        format!(" backing_file={} backing_fmt={}", text(&backing.name), text(&backing.format))
    });
    let lazy = if plan.compatible.contains(Compatible::LAZY_REFCOUNTS) { "on" } else { "off" };
    println!(
        "Formatting '{}', fmt=qcow2 cluster_size={} extended_l2=off compression_type=zlib \
         size={}{backing} lazy_refcounts={lazy} refcount_bits=16",
        file.display(),
        plan.cluster_size,
        plan.size
    );
}

/// Makes a qcow2 image. What the file held before is gone.
///
/// # Errors
/// If there can be no such image, before the file is touched, or of the file.
pub fn image(path: &Path, plan: &CreateOptions) -> Result<(), Failure> {
    let layout = Layout::plan(plan).map_err(|error| match error {
        CreateError::ClusterSize { .. } => {
            failure(path, "Cluster size must be a power of two between 512 and 2048k")
        }
        other => failure(path, other),
    })?;
    let file = emptied(path)?;
    write(&file, &layout).map_err(|error| cannot_create(path, &error))
}

/// The file of a new image: there, empty, and locked, which comes before anything that it held is gone.
fn emptied(path: &Path) -> Result<LockedFile, Failure> {
    let mut options = File::options();
    let opened = options.read(true).write(true).create(true).truncate(false).open(path);
    let file = opened.map_err(|error| cannot_create(path, &error))?;
    let name = path.to_string_lossy().into();
    let file = LockedFile::new(file, &name, LockMode::Auto, Claim::create()).map_err(|error| {
        failure(path, Reason::lock(&error).text(name::own(), &path.display().to_string()))
    })?;
    file.set_len(0).map_err(|error| cannot_create(path, &error))?;
    Ok(file)
}

fn write(file: &File, layout: &Layout) -> io::Result<()> {
    file.set_len(layout.file_length)?;
    for write in &layout.writes {
        file.write_all_at(&write.bytes, write.offset.get())?;
    }
    file.sync_all()
}
