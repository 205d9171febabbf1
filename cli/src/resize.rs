//! `blkring resize`: images made longer or shorter.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use blkring_engine::{Access, Flags, IoError, Queue, QueueOptions, Storage};
use blkring_qcow2::{Image, Preallocation, Version};
use clap::Args;

use crate::backend;
use crate::disk::{AnyDisk, Opening, RawClaim};
use crate::failure::Failure;
use crate::image_name::{ImageName, Syntax};
use crate::name::{self, Name, complain};
use crate::number::size;
use crate::text::describe;

/// Make an image longer or shorter, as qemu-img resize does.
#[derive(Args)]
pub struct Options {
    /// Print errors only.
    #[arg(short, long)]
    quiet: bool,
    /// Format of the image (raw, qcow2).
    #[arg(short, long, value_name = "FMT")]
    format: Option<String>,
    /// FILE is no file name but options: driver=qcow2,file.filename=NAME.
    #[arg(long)]
    image_opts: bool,
    /// Allow it to become shorter: what lies beyond its new end is lost.
    #[arg(long)]
    shrink: bool,
    /// Space for what is new: off, metadata, falloc or full.
    #[arg(long, value_name = "MODE")]
    preallocation: Option<String>,
    /// Accepted for scripts: nothing here uses an object.
    #[arg(long, value_name = "OBJDEF", hide = true)]
    object: Vec<String>,
    /// The image, and its new size, or with a sign by how much it changes.
    #[arg(value_name = "FILE [+-]SIZE")]
    words: Vec<OsString>,
}

/// How the size changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    To(u64),
    Plus(u64),
    Minus(u64),
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let (file, word) = match options.words.as_slice() {
        [file, size] => (file, size.to_string_lossy()),
        [_, _, ..] => return Err(Failure::Misuse("Extra argument(s) in command line".to_owned())),
        _ => return Err(Failure::Misuse("Expecting image file name and size".to_owned())),
    };
    let preallocation = preallocation(options.preallocation.as_deref().unwrap_or("off"))?;
    let change = change(&word)?;
    let name = ImageName::parse(file, Syntax::of(options.image_opts), options.format.as_deref())?;
    let mut queue = backend::queue(QueueOptions::default())?;
    let image = AnyDisk::open(
        &mut queue,
        &name,
        Opening { access: Access::ReadWrite, raw: RawClaim::Resized, ..Opening::read_only() },
    )?;
    image.attach(&mut queue)?;
    let old = image.virtual_size();
    let new = match change {
        Change::To(size) => Some(size),
        Change::Plus(more) => old.checked_add(more),
        Change::Minus(less) => old.checked_sub(less),
    };
    let new = new.filter(|size| (1..=i64::MAX as u64).contains(size));
    let Some(new) = new else { return usage("New image size must be positive") };
    if new <= old && preallocation != Preallocation::Off {
        return usage("Preallocation can only be used for growing images");
    }
    if new < old && !options.shrink {
        complain("Use the --shrink option to perform a shrink operation.");
        return usage(
            "warning: Shrinking an image will delete all data beyond the shrunken image's end. Before \
             performing such an operation, make sure there is no important data there.",
        );
    }
    let resized = match &image {
        AnyDisk::Qcow2(image) => qcow2_size(&mut queue, image, (old, new), preallocation),
        raw => raw_size(&mut queue, raw.storage(), new, preallocation),
    };
    // After a failure as well: what was made ready goes back.
    let closed = image.close(&mut queue);
    resized?;
    closed?;
    if !options.quiet {
        println!("Image resized.");
    }
    Ok(ExitCode::SUCCESS)
}

fn qcow2_size(
    queue: &mut Queue,
    image: &Arc<Image>,
    (old, new): (u64, u64),
    preallocation: Preallocation,
) -> Result<(), Failure> {
    if let Some(text) = refusal(image, new) {
        return usage(text);
    }
    if new < old {
        return usage("Shrinking a qcow2 image is not supported");
    }
    match queue.block_on(image.resize_with(new, preallocation))? {
        Ok(()) => Ok(()),
        Err(error) => usage(&format!("Failed to resize: {error}")),
    }
}

/// Why a qcow2 image cannot get this size at all, in the words of qemu-img.
pub fn refusal(image: &Image, size: u64) -> Option<&'static str> {
    const SECTOR: u64 = 512;
    let info = image.info();
    if !size.is_multiple_of(SECTOR) {
        return Some("The new size must be a multiple of 512");
    }
    let unknown = info.version == Version::V2 && info.snapshots > 0;
    unknown.then_some("Can't resize a v2 image which has snapshots")
}

fn raw_size(
    queue: &mut Queue,
    storage: &Storage,
    new: u64,
    preallocation: Preallocation,
) -> Result<(), Failure> {
    if storage.is_block_device() && new != storage.size() {
        return usage("Cannot resize device files");
    }
    let lane = queue.lane();
    let old = storage.size();
    let resized = async {
        match preallocation {
            Preallocation::Off => storage.resize(&lane, new).await?,
            Preallocation::Falloc | Preallocation::Full => storage.grow(&lane, new).await?,
            Preallocation::Metadata => return Ok(Err("Unsupported preallocation mode: metadata")),
            _ => return Ok(Err("Unsupported preallocation mode")),
        }
        if preallocation == Preallocation::Full {
            write_zeros(storage, &lane, (old, new)).await?;
        }
        storage.flush(&lane).await?;
        Ok::<_, IoError>(Ok(()))
    };
    match queue.block_on(resized)? {
        Ok(Ok(())) => Ok(()),
        Ok(Err(text)) => usage(text),
        Err(error) if name::own() != Name::Blkring => {
            usage(&format!("Could not resize file: {}", describe(error.errno)))
        }
        Err(error) => usage(&format!("Failed to resize: {error}")),
    }
}

/// Writes zeros as bytes: the blocks are then the file's in every way.
async fn write_zeros(
    storage: &Storage,
    lane: &blkring_engine::Lane,
    (start, end): (u64, u64),
) -> Result<(), IoError> {
    const PIECE: u64 = 1 << 20;
    let zeros = blkring_engine::IoMem::aligned_zeroed(1 << 20);
    let mut at = start;
    while at < end {
        let len = (end - at).min(PIECE);
        let mem = zeros.slice(0..usize::try_from(len).expect("a piece is small"));
        storage.write(lane, at, &mem, Flags::empty()).await?;
        at += len;
    }
    Ok(())
}

fn preallocation(word: &str) -> Result<Preallocation, Failure> {
    let invalid = || Failure::Usage(format!("Invalid preallocation mode '{word}'"));
    Preallocation::named(word).ok_or_else(invalid)
}

/// Stands for the sign of a size that a parser of options would take for an option.
const MINUS: char = '\u{2212}';

/// The words of a command line with the size at the end of a `resize` such that it is no option.
pub fn shield(words: &[OsString]) -> Vec<OsString> {
    let mut words = words.to_vec();
    let command = words.iter().skip(1).find(|word| !word.to_string_lossy().starts_with('-'));
    let resizes = command.is_some_and(|word| word == "resize");
    if let (true, Some(last)) = (resizes, words.last_mut()) {
        let text = last.to_string_lossy().into_owned();
        if let Some(rest) =
            text.strip_prefix('-').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        {
            *last = format!("{MINUS}{rest}").into();
        }
    }
    words
}

fn change(word: &str) -> Result<Change, Failure> {
    let (kind, digits): (fn(u64) -> Change, _) = match word.split_at_checked(1) {
        Some(("+", digits)) => (Change::Plus, digits),
        Some(("-", digits)) => (Change::Minus, digits),
        _ => match word.strip_prefix(MINUS) {
            Some(digits) => (Change::Minus, digits),
            None => (Change::To, word),
        },
    };
    match size(digits) {
        Ok(bytes) if !digits.starts_with(['+', '-']) => Ok(kind(bytes)),
        Err(crate::number::NumberError::TooLarge) if !digits.starts_with(['+', '-']) => {
            Ok(kind(u64::MAX))
        }
        _ => usage(
            "Parameter 'size' expects a non-negative number below 2^64\nOptional suffix k, M, G, T, P or E means \
             kilo-, mega-, giga-, tera-, peta-\nand exabytes, respectively.",
        ),
    }
}

fn usage<T>(text: &str) -> Result<T, Failure> {
    Err(Failure::Usage(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_size_is_no_option() {
        let shielded = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            shield(&words).last().map(|word| word.to_string_lossy().into_owned())
        };
        let word = shielded("qemu-img resize --shrink a -512k").unwrap_or_default();
        assert_eq!(change(&word).ok(), Some(Change::Minus(512 << 10)));
        assert_eq!(shielded("qemu-img resize a 1M -q").as_deref(), Some("-q"));
        assert_eq!(shielded("qemu-img bench -1").as_deref(), Some("-1"));
    }

    #[test]
    fn changes_are_read() {
        let read = |word| change(word).ok();
        assert_eq!(read("1k"), Some(Change::To(1024)));
        assert_eq!(read("+1M"), Some(Change::Plus(1 << 20)));
        assert_eq!(read("-512"), Some(Change::Minus(512)));
        for word in ["", "+", "-", "x", "--1", "+-1", "1x"] {
            assert_eq!(read(word), None, "{word}");
        }
    }
}
