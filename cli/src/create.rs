//! `blkring create`: new images.

mod backing;
mod file;
pub mod option_list;
mod space;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use blkring_qcow2::{
    Backing, Compatible, Compression, CreateError, CreateOptions, Layout, Version,
};
use clap::Args;

use crate::bytes;
use crate::failure::Failure;
use crate::image_name::{ImageName, Syntax};
use crate::name::{self, Name};
use crate::number::sizes;
use crate::options::{self, Format};
use crate::reason::Reason;
use crate::text::reason;

use backing::Look;
use file::{CopyOnWrite, FileError, Origin, Preallocation};
use option_list::{File, OptionList};

/// Make a new image, as qemu-img create does.
#[derive(Args)]
pub struct Options {
    /// Format of the image (raw, qcow2).
    #[arg(short, long, value_name = "FMT", default_value = "raw")]
    format: String,
    /// Options of the format: NAME=VALUE, several with commas between them; "help" lists them.
    #[arg(short, long, value_name = "OPTIONS")]
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
    /// Accepted for scripts: nothing here uses an object.
    #[arg(long, value_name = "OBJDEF", hide = true)]
    object: Vec<String>,
    /// The image, and its size in bytes; that of the backing file if it is not given.
    #[arg(value_names = ["FILE", "SIZE"], num_args = 1.., allow_negative_numbers = true)]
    words: Vec<OsString>,
}

/// What is to be made.
struct Plan {
    /// As it was given, for messages.
    shown: String,
    path: PathBuf,
    given: OptionList,
    quiet: bool,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    if options.options.iter().any(|list| option_list::asks_for_help(list)) {
        let format = options::format(&options.format)
            .map_err(|_| Failure::Usage(format!("Unknown file format '{}'", options.format)))?;
        let file = if options.words.is_empty() { File::None } else { File::Some };
        print!("{}", option_list::help(format, file));
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(list) = options.options.iter().find(|list| !option_list::is_list(list)) {
        return Err(Failure::Usage(format!("Invalid option list: {list}")));
    }
    let (file, size) = match options.words.as_slice() {
        [] => return Err(Failure::Misuse("Expecting image file name".to_owned())),
        [file] => (file, None),
        [file, size] => (file, Some(image_size(size)?)),
        [_, _, more, ..] => {
            let text = format!("Unexpected argument: {}", more.to_string_lossy());
            return Err(Failure::Misuse(text));
        }
    };
    let plan = plan(options, file, size)?;
    let look = if options.backing_unsafe { Look::No } else { Look::Yes };
    plan.make(look).map_err(|text| plan.failure(&text))?;
    Ok(ExitCode::SUCCESS)
}

fn image_size(word: &OsStr) -> Result<u64, Failure> {
    let parse = sizes("image size", 0..=i64::MAX as u64);
    parse(&word.to_string_lossy()).map_err(Failure::Usage)
}

/// What the command line says.
fn plan(options: &Options, file: &OsStr, size: Option<u64>) -> Result<Plan, Failure> {
    let shown = file.to_string_lossy().into_owned();
    let failed = |text: String| Failure::Usage(format!("{shown}: {text}"));
    let format = options::format(&options.format)
        .map_err(|_| failed(format!("Unknown file format '{}'", options.format)))?;
    if shown.starts_with("json:") {
        return Err(failed("Unknown protocol 'json'".to_owned()));
    }
    let name = ImageName::parse(file, Syntax::FileName, None).map_err(|failure| match failure {
        Failure::Open { reason, .. } => failed(reason.text(name::own(), &shown)),
        other => other,
    })?;
    let mut given = OptionList::new(format);
    for list in &options.options {
        given.add(list).map_err(failed)?;
    }
    if let Some(size) = size {
        if given.text("size").is_some() {
            return Err(failed("The image size must be specified only once".to_owned()));
        }
        given.set("size", size.to_string());
    }
    for (option, value, what) in [
        ("backing_file", &options.backing, "Backing file"),
        ("backing_fmt", &options.backing_format, "Backing format"),
    ] {
        let Some(value) = value else { continue };
        if !given.has(option) {
            let format = format.name();
            return Err(failed(format!("{what} not supported for file format '{format}'")));
        }
        given.set(option, value.clone());
    }
    if let Some((name, value)) = given.unsupported() {
        return Err(failed(format!("{name}={value} is not supported")));
    }
    Ok(Plan { path: name.path().to_owned(), given, quiet: options.quiet, shown })
}

impl Plan {
    fn failure(&self, text: &str) -> Failure {
        Failure::Usage(format!("{}: {text}", self.shown))
    }

    /// Makes the image.
    fn make(&self, look: Look) -> Result<(), String> {
        // Without a backing file this is told after the line.
        let (backing, below) = match self.given.text("backing_file") {
            Some(_) => backing::read(&self.path, &self.given, look)?.unzip(),
            None => (None, None),
        };
        let size = self.size(below.flatten())?;
        let mut all = self.given.clone();
        all.set("size", size.to_string());
        self.announce(&all);
        backing::read(&self.path, &self.given, Look::No)?;
        make(&self.path, &self.given, size, backing)
    }

    fn size(&self, below: Option<u64>) -> Result<u64, String> {
        let size = self.given.number("size").or(below);
        size.ok_or_else(|| "Image creation needs a size parameter".to_owned())
    }

    fn announce(&self, all: &OptionList) {
        if !self.quiet {
            let format = all.format().name();
            println!("Formatting '{}', fmt={format}{}", self.shown, all.line());
        }
    }
}

/// Makes an image of `size` bytes as the options say; what the file held before is gone. `backing` is named and not
/// looked at.
///
/// # Errors
/// In words, as qemu-img says them where it is imitated.
pub fn make(
    path: &Path,
    given: &OptionList,
    size: u64,
    backing: Option<Backing>,
) -> Result<(), String> {
    let cow = if given.is_on("nocow") { CopyOnWrite::Off } else { CopyOnWrite::Allowed };
    match given.format() {
        Format::Raw => {
            let preallocation = Preallocation::of(given.text("preallocation"))?;
            let made = file::raw(path, size, preallocation, cow);
            made.map_err(|error| not_made(path, given, &error))
        }
        Format::Qcow2 => {
            let space = preallocation(given, backing.as_ref())?;
            let plan = create_options(given, size, backing)?;
            let origin = write(path, &plan, cow).map_err(|error| words(path, given, error))?;
            if space == blkring_qcow2::Preallocation::Off {
                return Ok(());
            }
            let taken = space::take(path, space).map_err(|failure| failure.text(name::own()));
            origin.settle(path, taken)
        }
    }
}

/// What is made ready of the space of a qcow2 image.
fn preallocation(
    given: &OptionList,
    backing: Option<&Backing>,
) -> Result<blkring_qcow2::Preallocation, String> {
    let word = given.text("preallocation").unwrap_or("off");
    let space = blkring_qcow2::Preallocation::named(word);
    let space = space.ok_or_else(|| not_accepted("preallocation", word))?;
    if backing.is_some() && space != blkring_qcow2::Preallocation::Off {
        let text = "Backing file and preallocation can only be used at the same time if \
                    extended_l2 is on";
        return Err(text.to_owned());
    }
    Ok(space)
}

/// What the library is to make.
fn create_options(
    given: &OptionList,
    size: u64,
    backing: Option<Backing>,
) -> Result<CreateOptions, String> {
    if let Some(backing) = &backing {
        let format = String::from_utf8_lossy(&backing.format);
        options::format(&format)
            .map_err(|_| format!("Parameter 'backing-fmt' does not accept value '{format}'"))?;
    }
    let mut compatible = Compatible::empty();
    compatible.set(Compatible::LAZY_REFCOUNTS, given.is_on("lazy_refcounts"));
    let version = match given.text("compat") {
        None | Some("1.1" | "v3") => Version::V3,
        Some("0.10" | "v2") => Version::V2,
        Some(other) => return Err(not_accepted("version", other)),
    };
    let compression = match given.text("compression_type") {
        None | Some("zlib") => Compression::Zlib,
        Some("zstd") => Compression::Zstd,
        Some(other) => return Err(not_accepted("compression-type", other)),
    };
    let refcount_bits = given.number("refcount_bits").unwrap_or(16);
    Ok(CreateOptions::new(size)
        .cluster_size(given.number("cluster_size").unwrap_or(65536))
        .version(version)
        .refcount_bits(u32::try_from(refcount_bits).unwrap_or(u32::MAX))
        .compression(compression)
        .backing(backing)
        .compatible(compatible))
}

fn not_made(path: &Path, given: &OptionList, error: &FileError) -> String {
    let path = bytes::of_path(path);
    match error {
        FileError::Lock(error) => Reason::lock(error).text(name::own(), &path),
        FileError::Io(error)
            if error.raw_os_error() == Some(libc::EFBIG) && name::own() != Name::Blkring =>
        {
            too_large(given)
        }
        FileError::Io(error) => format!("Could not create '{path}': {}", reason(error)),
        FileError::Device(reason) => reason.text(name::own(), &path.to_string()),
    }
}

/// Why it was not made, in words of qemu-img where it has some and is imitated.
fn words(path: &Path, given: &OptionList, error: ImageError) -> String {
    let error = match error {
        ImageError::File(error) => return not_made(path, given, &error),
        ImageError::Plan(error) => error,
    };
    let imitated = name::own() != Name::Blkring;
    match error {
        CreateError::ClusterSize { .. } => {
            "Cluster size must be a power of two between 512 and 2048k".to_owned()
        }
        CreateError::RefcountBits { .. } => {
            "Refcount width must be a power of two and may not exceed 64 bits".to_owned()
        }
        CreateError::NeedsVersion3 { .. } if imitated => {
            let what = if given.is_on("lazy_refcounts") {
                "Lazy refcounts only supported with compatibility level 1.1 and"
            } else if given.number("refcount_bits") != Some(16) {
                "Different refcount widths than 16 bits require compatibility level 1.1 or"
            } else {
                "Non-zlib compression type is only supported with compatibility level 1.1 and"
            };
            format!("{what} above (use version=v3 or greater)")
        }
        other if other.errno() == libc::EFBIG && imitated => too_large(given),
        other => other.to_string(),
    }
}

/// What qemu-img says of an image that no file can hold.
fn too_large(given: &OptionList) -> String {
    let advice = if given.has("cluster_size") { " (try using a larger cluster size)" } else { "" };
    format!("The image size is too large for file format '{}'{advice}", given.format().name())
}

/// What qemu-img says of a value that an option does not have; some options have another name then.
fn not_accepted(name: &str, value: &str) -> String {
    format!("Parameter '{name}' does not accept value '{value}'")
}

/// Why an image was not made.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// There can be no such image. The file was not touched.
    #[error("{0}")]
    Plan(#[from] CreateError),
    /// The file cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Makes a qcow2 image. What the file held before is gone.
///
/// # Errors
/// If there can be no such image, before the file is touched, or of the file.
pub fn image(path: &Path, plan: &CreateOptions) -> Result<(), ImageError> {
    write(path, plan, CopyOnWrite::Allowed).map(drop)
}

fn write(path: &Path, plan: &CreateOptions, cow: CopyOnWrite) -> Result<Origin, ImageError> {
    let layout = Layout::plan(plan)?;
    Ok(file::write(path, &layout, cow)?)
}

/// Makes a raw image: a file of zeros. What it held before is gone.
///
/// # Errors
/// Of the file.
pub fn raw(path: &Path, size: u64) -> Result<(), ImageError> {
    Ok(file::raw(path, size, Preallocation::Off, CopyOnWrite::Allowed)?)
}
