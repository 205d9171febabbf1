//! What `convert` is told.

use std::ffi::OsString;

use clap::Args;

use super::{Salvage, Sequence};
use crate::create::option_list::{self, File, OptionList};
use crate::disk::RawClaim;
use crate::failure::Failure;
use crate::image_name::{ImageName, Syntax};
use crate::number::{NumberError, counts, size};
use crate::options::{self, CacheMode, Format, Share, cache_mode};
use crate::progress::Form;
use crate::snapshots;
use crate::status::SECTOR;

/// The largest unit in which zeros are looked for.
const MAX_SPARSE: u64 = 16 << 20;

/// Copy an image, or several as one, into another, as qemu-img convert does.
///
/// What lies below the source is copied too, so that the target stands alone, unless -B gives it a backing file. If
/// the copy fails, what has been written of the target is left.
#[derive(Args)]
pub struct Options {
    /// Print no progress.
    #[arg(short, long)]
    quiet: bool,
    /// Print progress, for people; with json one JSON object a line to the standard error, with json:FD to a
    /// descriptor.
    #[arg(short, long, value_name = "FORM", num_args = 0..=1, require_equals = true,
        default_missing_value = "human")]
    progress: Option<Form>,
    /// Format of the sources (raw, qcow2).
    #[arg(short = 'f', long, value_name = "FMT")]
    source_format: Option<String>,
    /// SOURCE is no file name but options: driver=qcow2,file.filename=NAME.
    #[arg(long, visible_alias = "image-opts")]
    source_image_opts: bool,
    /// Copy a snapshot of the source, given by its id or name, or as snapshot.id=ID,snapshot.name=NAME.
    #[arg(short = 'l', long, value_name = "SNAPSHOT")]
    source_snapshot: Option<String>,
    /// Cache mode of the sources.
    #[arg(short = 'T', long, value_name = "CACHE", default_value = "writeback")]
    source_cache: String,
    /// Format of the target (raw, qcow2).
    #[arg(short = 'O', long, value_name = "FMT", default_value = "raw")]
    target_format: String,
    /// TARGET is no file name but options; needs -n.
    #[arg(long)]
    target_image_opts: bool,
    /// Options of the target's format, as create takes them.
    #[arg(short = 'o', long, value_name = "OPTIONS")]
    target_options: Vec<String>,
    /// Compress what is written, on all cores.
    #[arg(short = 'c', long)]
    compress: bool,
    /// Cache mode of the target.
    #[arg(short = 't', long, value_name = "CACHE", default_value = "unsafe")]
    target_cache: String,
    /// Backing file of the target, relative to its directory: what that has is not copied.
    #[arg(short = 'B', long, value_name = "FILE")]
    backing: Option<String>,
    /// Format of the backing file.
    #[arg(short = 'F', long, value_name = "FMT")]
    backing_format: Option<String>,
    /// Write to a target that is there already.
    #[arg(short = 'n', long)]
    no_create: bool,
    /// The target, which is there already, reads as zeros.
    #[arg(long)]
    target_is_zero: bool,
    /// Zeros of so many bytes together need no space; with 0 everything is written.
    #[arg(short = 'S', long, value_name = "SIZE", allow_negative_numbers = true)]
    sparse_size: Option<String>,
    /// Copy bitmaps as well: not supported.
    #[arg(long)]
    bitmaps: bool,
    /// Leave out damaged bitmaps: not supported.
    #[arg(long)]
    skip_broken_bitmaps: bool,
    /// Open the sources whatever locks others hold.
    #[arg(short = 'U', long)]
    force_share: bool,
    /// Copy so many bytes in a second at most.
    #[arg(short, long, value_name = "RATE", allow_negative_numbers = true)]
    rate: Option<String>,
    /// Pieces that are copied at once, of 2 MiB each: 1 to 16, by default 8.
    #[arg(short = 'm', long, value_name = "N", allow_negative_numbers = true)]
    parallel: Option<String>,
    /// Accepted for scripts: the bytes go through this program's memory.
    #[arg(short = 'C', long)]
    copy_range_offloading: bool,
    /// Take what cannot be read for zeros.
    #[arg(long)]
    salvage: bool,
    /// Write pieces as they come, not in their order.
    #[arg(short = 'W', long)]
    oob_writes: bool,
    /// Accepted for scripts: nothing here uses an object.
    #[arg(long, value_name = "OBJDEF", hide = true)]
    object: Vec<String>,
    /// The sources, and last the target.
    #[arg(value_name = "FILE")]
    files: Vec<OsString>,
}

/// Whether the target is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It is made.
    No,
    /// It is, with whatever it holds.
    Yes,
    /// It is, and reads as zeros.
    Zero,
}

/// How clusters are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// As they are.
    Plain,
    /// Compressed, unless that makes them no smaller.
    Compressed,
}

/// What is to be done, in all its parts.
pub struct Order {
    /// In this order.
    pub sources: Vec<ImageName>,
    /// How the sources are cached.
    pub source_cache: CacheMode,
    /// Whether locks on the sources count.
    pub share: Share,
    /// What is claimed of raw sources.
    pub claim: RawClaim,
    /// Where to.
    pub target: ImageName,
    /// Format of the target.
    pub format: Format,
    /// Options of it.
    pub given: OptionList,
    /// How the target is cached.
    pub target_cache: CacheMode,
    /// Whether it is there.
    pub existing: Existing,
    /// What it is called if it cannot be made.
    pub cannot_make: String,
    /// Zeros of so many bytes are left out; 0 for none.
    pub sparse: u64,
    /// How clusters are written.
    pub packing: Packing,
    /// Pieces at once.
    pub pieces: usize,
    /// In which order they are written.
    pub sequence: Sequence,
    /// What becomes of what cannot be read.
    pub salvage: Salvage,
    /// Bytes in a second at most.
    pub rate: Option<u64>,
    /// How progress is told.
    pub progress: Option<Form>,
}

/// Pieces at once, unless something else was asked for.
const PIECES: usize = 8;

impl Order {
    /// Of one image into a new one, without options; all of it is written.
    pub fn plain(source: ImageName, target: ImageName, format: Format, share: Share) -> Self {
        Order {
            sources: vec![source],
            source_cache: CacheMode::Writeback,
            share,
            claim: RawClaim::Shared,
            target,
            format,
            given: OptionList::new(format),
            target_cache: CacheMode::Writeback,
            existing: Existing::No,
            cannot_make: "error while creating output image".to_owned(),
            sparse: 0,
            packing: Packing::Plain,
            pieces: PIECES,
            sequence: Sequence::Ascending,
            salvage: Salvage::No,
            rate: None,
            progress: None,
        }
    }
}

impl Options {
    /// What they mean.
    ///
    /// # Errors
    /// If they make no sense, or ask for what is not there.
    pub fn read(&self) -> Result<Order, Failure> {
        let sparse = self.sparse()?;
        let pieces = self.pieces()?;
        let rate = self.rate.as_deref().map(rate).transpose()?;
        self.fit()?;
        let Some((target, sources @ [_, ..])) = self.files.split_last() else {
            return usage("Must specify image file name");
        };
        let snapshot = self.source_snapshot.as_deref().map(snapshots::key).transpose()?;
        if snapshot.is_some() && sources.len() > 1 {
            return usage("No support for concatenating multiple snapshot");
        }
        if self.has_backing() && sources.len() > 1 {
            return usage(
                "Having a backing file for the target makes no sense when concatenating multiple input images",
            );
        }
        let cache = |word, what| {
            cache_mode(word).map_err(|_| Failure::Usage(format!("Invalid {what} option: {word}")))
        };
        let source_cache = cache(&self.source_cache, "source cache")?;
        let target_cache = cache(&self.target_cache, "cache")?;
        let format = options::format(&self.target_format);
        let unknown = format!("Unknown file format '{}'", self.target_format);
        let format = format.map_err(|_| Failure::Usage(unknown))?;
        let syntax = Syntax::of(self.source_image_opts);
        let name = |word: &OsString| {
            let name = ImageName::parse(word, syntax, self.source_format.as_deref())?;
            Ok(name.of_snapshot(snapshot.clone()))
        };
        Ok(Order {
            sources: sources.iter().map(name).collect::<Result<_, Failure>>()?,
            source_cache,
            share: Share::of(self.force_share),
            claim: RawClaim::Kept,
            target: self.target(target, format)?,
            given: self.given(format)?,
            format,
            target_cache,
            cannot_make: format!("error while converting {}", format.name()),
            existing: match (self.no_create, self.target_is_zero) {
                (false, _) => Existing::No,
                (true, false) => Existing::Yes,
                (true, true) => Existing::Zero,
            },
            sparse,
            packing: if self.compress { Packing::Compressed } else { Packing::Plain },
            pieces,
            sequence: if self.oob_writes { Sequence::Any } else { Sequence::Ascending },
            salvage: if self.salvage { Salvage::Yes } else { Salvage::No },
            rate,
            progress: self.progress.filter(|_| !self.quiet),
        })
    }

    /// The options of the target's format, if that is what is asked for.
    pub fn help(&self) -> Result<Option<String>, Failure> {
        if !self.target_options.iter().any(|list| option_list::asks_for_help(list)) {
            return Ok(None);
        }
        let format = options::format(&self.target_format);
        let unknown = |_| Failure::Usage(format!("Unknown file format '{}'", self.target_format));
        let file = if self.files.is_empty() { File::None } else { File::Some };
        Ok(Some(option_list::help(format.map_err(unknown)?, file)))
    }

    /// Refuses what does not go together, and what is not there.
    fn fit(&self) -> Result<(), Failure> {
        let named = |option: &str| usage(&format!("{option} is not supported"));
        if self.target_is_zero && !self.no_create {
            return usage("--target-is-zero requires use of -n flag");
        }
        if self.target_image_opts && !self.no_create {
            return usage("--target-image-opts requires use of -n flag");
        }
        if self.no_create && !self.target_options.is_empty() {
            return usage("-o has no effect when skipping image creation");
        }
        if self.skip_broken_bitmaps && !self.bitmaps {
            return usage("Use of --skip-broken-bitmaps requires --bitmaps");
        }
        if self.copy_range_offloading && self.sparse_size.is_some() {
            return usage("Cannot enable copy offloading when -S is used");
        }
        if self.copy_range_offloading && self.compress {
            return usage("Cannot enable copy offloading when -c is used");
        }
        if self.compress && self.target_format == Format::Raw.name() {
            return usage("Compression not supported for this file format");
        }
        if self.bitmaps {
            return named("--bitmaps");
        }
        Ok(())
    }

    fn has_backing(&self) -> bool {
        let backing = |text: &String| text.split(',').any(|one| one.starts_with("backing_file="));
        self.backing.is_some() || self.target_options.iter().any(backing)
    }

    fn target(&self, word: &OsString, format: Format) -> Result<ImageName, Failure> {
        if self.target_image_opts {
            return ImageName::parse(word, Syntax::Options, None);
        }
        ImageName::parse(word, Syntax::FileName, None).map(|name| name.of_format(format))
    }

    fn given(&self, format: Format) -> Result<OptionList, Failure> {
        let mut given = OptionList::new(format);
        for text in &self.target_options {
            given.add(text).map_err(Failure::Usage)?;
        }
        if self.compress && given.text("preallocation").is_some_and(|mode| mode != "off") {
            return usage("Compression and preallocation not supported at the same time");
        }
        for (option, value) in
            [("backing_file", &self.backing), ("backing_fmt", &self.backing_format)]
        {
            let Some(value) = value else { continue };
            if !given.has(option) {
                return usage("Backing file not supported for file format 'raw'");
            }
            given.set(option, value.clone());
        }
        if let Some((name, value)) = given.unsupported() {
            return usage(&format!("{name}={value} is not supported"));
        }
        match (given.text("backing_file"), given.text("backing_fmt")) {
            (Some(_), None) => usage("Use of backing file requires explicit backing format"),
            (None, Some(_)) => {
                let (file, format) = (self.files.last().map(|file| file.display()), format.name());
                let file = file.map(|file| file.to_string()).unwrap_or_default();
                usage(&format!(
                    "{file}: error while converting {format}: Backing format cannot be used without backing file"
                ))
            }
            _ => Ok(given),
        }
    }

    fn sparse(&self) -> Result<u64, Failure> {
        let Some(word) = &self.sparse_size else { return Ok(4096) };
        match size(word) {
            Ok(bytes) if bytes <= MAX_SPARSE && bytes.is_multiple_of(SECTOR) => Ok(bytes),
            Err(NumberError::Invalid) => {
                usage(&format!("Invalid buffer size for sparse output specified: '{word}'."))
            }
            _ => usage(&format!(
                "Invalid buffer size for sparse output specified. Valid sizes are multiples of {SECTOR} up to \
                 {MAX_SPARSE}. Select 0 to disable sparse detection (fully allocates output)."
            )),
        }
    }

    fn pieces(&self) -> Result<usize, Failure> {
        let Some(word) = &self.parallel else { return Ok(PIECES) };
        let pieces = counts("number of coroutines", 1..=16)(word).map_err(Failure::Usage)?;
        Ok(usize::try_from(pieces).expect("16 at most"))
    }
}

fn rate(word: &str) -> Result<u64, Failure> {
    match size(word) {
        Ok(0) | Err(_) => usage(&format!("Invalid rate limit specified: '{word}'.")),
        Ok(bytes) => Ok(bytes),
    }
}

fn usage<T>(text: &str) -> Result<T, Failure> {
    Err(Failure::Usage(text.to_owned()))
}
