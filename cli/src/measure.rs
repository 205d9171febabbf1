//! `blkring measure`: how large the file of a new image will be.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use blkring_engine::{Queue, QueueOptions};
use blkring_qcow2::{Bitmap, Preallocation, Version};
use clap::Args;
use serde::Serialize;

use crate::backend;
use crate::chain::Member;
use crate::create::option_list::OptionList;
use crate::disk::{AnyDisk, Opening};
use crate::failure::Failure;
use crate::image_name::{ImageName, Syntax};
use crate::name::complain;
use crate::number::sizes;
use crate::options::{self, Format, Output, Share, output};
use crate::reason::Reason;
use crate::status::{Holes, SECTOR, Survey};
use crate::{json, snapshots};

/// Calculate the length of the file that a new image will take, as qemu-img measure does.
///
/// Two numbers: what is needed to hold the data of FILE, or nothing with --size, and what is needed once all of it
/// has been written.
#[derive(Args)]
pub struct Options {
    /// Format of the new image (raw, qcow2).
    #[arg(short = 'O', long, value_name = "FMT", default_value = "raw")]
    target_format: String,
    /// Options of the new image, as create takes them.
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Of an empty image with so many bytes.
    #[arg(short, long, value_name = "SIZE", allow_negative_numbers = true,
        value_parser = sizes("image size", 0..=i64::MAX as u64))]
    size: Option<u64>,
    /// Format of FILE (raw, qcow2).
    #[arg(short, long, value_name = "FMT")]
    format: Option<String>,
    /// FILE is no file name but options: driver=qcow2,file.filename=NAME.
    #[arg(long)]
    image_opts: bool,
    /// A snapshot of FILE, given by its id or name, or as snapshot.id=ID,snapshot.name=NAME.
    #[arg(short = 'l', long, value_name = "SNAPSHOT")]
    snapshot: Option<String>,
    /// How it is printed: human or json.
    #[arg(long, value_name = "OUTPUT", default_value = "human", value_parser = output)]
    output: Output,
    /// Open FILE whatever locks others hold.
    #[arg(short = 'U', long)]
    force_share: bool,
    /// Accepted for scripts: nothing here uses an object.
    #[arg(long, value_name = "OBJDEF", hide = true)]
    object: Vec<String>,
    /// The image that is to be copied.
    #[arg(value_name = "FILE")]
    files: Vec<OsString>,
}

/// The result, in bytes.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Measure {
    /// Bitmaps of the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    bitmaps: Option<u64>,
    required: u64,
    fully_allocated: u64,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let file = match options.files.as_slice() {
        [] => None,
        [file] => Some(file),
        _ => return usage("At most one filename argument is allowed."),
    };
    if file.is_none()
        && (options.image_opts || options.format.is_some() || options.snapshot.is_some())
    {
        return usage("--image-opts, -f, and -l require a filename argument.");
    }
    match (file, options.size) {
        (None, None) => return usage("Either --size N or one filename must be specified."),
        (Some(_), Some(_)) => return usage("--size N cannot be used together with a filename."),
        _ => (),
    }
    let source = file.map(|file| Source::open(options, file)).transpose()?;
    let format = options::format(&options.target_format);
    let unknown = || Failure::Usage(format!("Unknown file format '{}'", options.target_format));
    let format = format.map_err(|_| unknown())?;
    let mut given = OptionList::new(format);
    for text in &options.options {
        given.add(text).map_err(|text| {
            complain(text);
            Failure::Usage(format!("Invalid options for file format '{}'", format.name()))
        })?;
    }
    let measure = match format {
        Format::Raw => {
            let size = source.as_ref().map_or(options.size.unwrap_or(0), Source::len);
            let size = size.next_multiple_of(SECTOR);
            Measure { bitmaps: None, required: size, fully_allocated: size }
        }
        Format::Qcow2 => qcow2(&given, options.size.unwrap_or(0), source)?,
    };
    match options.output {
        Output::Json => json::print(&measure),
        Output::Human => {
            println!("required size: {}", measure.required);
            println!("fully allocated size: {}", measure.fully_allocated);
            if let Some(bytes) = measure.bitmaps {
                println!("bitmaps size: {bytes}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The image that is to be copied.
struct Source {
    queue: Queue,
    survey: Survey,
    /// Its bitmaps, if it is one that may have some.
    bitmaps: Option<Vec<Bitmap>>,
}

fn bitmaps(path: &Path) -> Result<Option<Vec<Bitmap>>, Reason> {
    let member = Member::look(path, Some(Format::Qcow2))?;
    let Some(header) = member.header.as_ref().filter(|header| header.version() == Version::V3)
    else {
        return Ok(None);
    };
    let bitmaps = Bitmap::list(&member, header);
    bitmaps.map(Some).map_err(|error| Reason::Words(error.to_string()))
}

impl Source {
    fn open(options: &Options, file: &OsString) -> Result<Self, Failure> {
        let syntax = Syntax::of(options.image_opts);
        let snapshot = options.snapshot.as_deref().map(snapshots::key).transpose()?;
        let name = ImageName::parse(file, syntax, options.format.as_deref())?.of_snapshot(snapshot);
        let mut queue = backend::queue(QueueOptions::default())?;
        let opening = Opening { share: Share::of(options.force_share), ..Opening::read_only() };
        let image = AnyDisk::open(&mut queue, &name, opening)?;
        image.attach(&mut queue)?;
        let bitmaps = match image {
            AnyDisk::Qcow2(_) => {
                bitmaps(name.path()).map_err(|reason| Failure::open(&name, reason))?
            }
            _ => None,
        };
        Ok(Source { survey: Survey::new(&image, Holes::WhereMany), queue, bitmaps })
    }

    fn len(&self) -> u64 {
        self.survey.len()
    }

    /// How many units of `unit` bytes hold data.
    fn units(&mut self, unit: u64) -> Result<u64, Failure> {
        let (mut at, mut units, mut counted) = (0, 0, 0);
        while at < self.len() {
            let run = self.queue.block_on(self.survey.run(at, self.len()))?;
            let run = run.map_err(|error| {
                let reason = crate::text::describe(error.errno);
                Failure::Usage(format!("Unable to get block status: {reason}"))
            })?;
            at += run.len;
            if !run.holds.is_zero() {
                // A unit that begins in the run before may be counted already.
                let first = (run.offset / unit).max(counted);
                let end = at.div_ceil(unit);
                units += end - first.min(end);
                counted = end;
            }
        }
        Ok(units)
    }
}

fn qcow2(given: &OptionList, size: u64, source: Option<Source>) -> Result<Measure, Failure> {
    // What is only measured needs not be supported.
    let measured = ["extended_l2", "data_file", "data_file_raw"];
    if let Some((name, value)) = given.unsupported().filter(|(name, _)| !measured.contains(name)) {
        return usage(&format!("{name}={value} is not supported"));
    }
    let cluster = given.number("cluster_size").unwrap_or_default();
    if !cluster.is_power_of_two() || !(512..=2 << 20).contains(&cluster) {
        return usage("Cluster size must be a power of two between 512 and 2048k");
    }
    let extended = given.is_on("extended_l2");
    if extended && cluster < 16384 {
        return usage(
            "Extended L2 entries are only supported with cluster sizes of at least 16384 bytes",
        );
    }
    let version_2 = match given.text("compat") {
        Some("0.10" | "v2") => true,
        None | Some("1.1" | "v3") => false,
        Some(other) => return usage(&format!("Invalid compatibility level: '{other}'")),
    };
    let refcount_bits = given.number("refcount_bits").unwrap_or_default();
    if !refcount_bits.is_power_of_two() || refcount_bits > 64 {
        return usage("Refcount width must be a power of two and may not exceed 64 bits");
    }
    if version_2 && refcount_bits != 16 {
        return usage(
            "Different refcount widths than 16 bits require compatibility level 1.1 or above (use \
             compat=1.1 or greater)",
        );
    }
    let preallocation = given.text("preallocation").unwrap_or("off");
    let Some(preallocation) = Preallocation::named(preallocation) else {
        return usage(&format!("invalid parameter value: {preallocation}"));
    };
    let size = source.as_ref().map_or(size, Source::len).next_multiple_of(SECTOR);
    let shape = Shape { cluster, entry: if extended { 16 } else { 8 }, refcount_bits };
    let Some(all) = shape.clusters(size) else {
        return usage("The image size is too large (try using a larger cluster size)");
    };
    let data = size.div_ceil(cluster);
    let bitmaps = source.as_ref().and_then(|source| source.bitmaps.as_ref());
    let bitmaps = bitmaps.filter(|_| !version_2).map(|bitmaps| shape.bitmaps(size, bitmaps));
    let used = match (preallocation, source) {
        (Preallocation::Falloc | Preallocation::Full, _) => data,
        // All of it, as it hides what lies below.
        (_, Some(_)) if given.text("backing_file").is_some() => data,
        (_, Some(mut source)) => source.units(cluster)?,
        (_, None) => 0,
    };
    Ok(Measure { bitmaps, required: (all - data + used) * cluster, fully_allocated: all * cluster })
}

/// What decides how many clusters of tables there are.
struct Shape {
    cluster: u64,
    /// Bytes of an entry in an L2 table.
    entry: u64,
    refcount_bits: u64,
}

/// The largest L1 table, in bytes.
const MAX_L1: u64 = 32 << 20;

impl Shape {
    /// Bytes that copies of these bitmaps of a disk of `size` bytes take: each its bits and the table of where they
    /// are, and all of them the directory.
    fn bitmaps(&self, size: u64, bitmaps: &[Bitmap]) -> u64 {
        /// Of an entry of the directory, before the name.
        const ENTRY: u64 = 24;
        let whole = |bytes: u64| bytes.div_ceil(self.cluster) * self.cluster;
        let bits = |one: &Bitmap| whole(size.div_ceil(one.granularity).div_ceil(8));
        let each = bitmaps.iter().map(|one| bits(one) + whole(bits(one) / self.cluster * 8));
        let directory = bitmaps.iter().map(|one| (ENTRY + one.name_bytes).next_multiple_of(8));
        each.sum::<u64>() + whole(directory.sum())
    }

    /// Clusters of an image of `size` bytes that is allocated as a whole: header, data, tables, and what counts all
    /// of them. `None` if there can be no such image.
    fn clusters(&self, size: u64) -> Option<u64> {
        let data = size.div_ceil(self.cluster);
        let l2 = data.div_ceil(self.cluster / self.entry);
        if l2 * 8 > MAX_L1 {
            return None;
        }
        let l1 = (l2 * 8).div_ceil(self.cluster);
        let counted = 1 + data + l2 + l1;
        let per_block = self.cluster * 8 / self.refcount_bits;
        // Blocks and their table count themselves too; each round adds what the last one lacked.
        let (mut blocks, mut table) = (0, 0);
        loop {
            let more = (counted + blocks + table).div_ceil(per_block);
            let longer = (more * 8).div_ceil(self.cluster);
            if (more, longer) == (blocks, table) {
                return Some(counted + blocks + table);
            }
            (blocks, table) = (more, longer);
        }
    }
}

fn usage<T>(text: &str) -> Result<T, Failure> {
    Err(Failure::Usage(text.to_owned()))
}
