//! `blkring dd`: a part of an image copied into a new one.

use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

use clap::Args;

use crate::convert;
use crate::failure::Failure;
use crate::image_name::{ImageName, Syntax};
use crate::number::{counts, sizes};
use crate::options::{self, Share};

const I31: u64 = i32::MAX as u64;

/// Copy a part of an image into a new one, as qemu-img dd does.
///
/// OPERANDS are if=INPUT, of=OUTPUT, and of the INPUT bs=BYTES in a block (512), count=BLOCKS at which it ends, and
/// skip=BLOCKS at which it begins.
#[derive(Args)]
pub struct Options {
    /// Format of the input (raw, qcow2).
    #[arg(short, long, value_name = "FMT")]
    format: Option<String>,
    /// INPUT is no file name but options: driver=qcow2,file.filename=NAME.
    #[arg(long)]
    image_opts: bool,
    /// Format of the output (raw, qcow2).
    #[arg(short = 'O', long, value_name = "FMT", default_value = "raw")]
    output_format: String,
    /// Open the input whatever locks others hold.
    #[arg(short = 'U', long)]
    force_share: bool,
    /// Accepted for scripts: nothing here uses an object.
    #[arg(long, value_name = "OBJDEF", hide = true)]
    object: Vec<String>,
    /// What, where from and where to.
    #[arg(value_name = "OPERANDS")]
    operands: Vec<OsString>,
}

struct Operands {
    input: OsString,
    output: OsString,
    block: u64,
    count: Option<u64>,
    skip: u64,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let operands = operands(&options.operands)?;
    let format = options::format(&options.output_format)
        .map_err(|_| Failure::Usage("Unknown file format".to_owned()))?;
    let syntax = Syntax::of(options.image_opts);
    let source = ImageName::parse(&operands.input, syntax, options.format.as_deref())?;
    let target = ImageName::parse(&operands.output, Syntax::FileName, None)?.of_format(format);
    let order = convert::Order::plain(source, target, format, Share::of(options.force_share));
    let end = operands.count.map(|count| count.saturating_mul(operands.block));
    let window = convert::Window { start: operands.skip.saturating_mul(operands.block), end };
    convert::part(&order, window)
}

fn operands(words: &[OsString]) -> Result<Operands, Failure> {
    let (mut input, mut output) = (None, None);
    let (mut block, mut count, mut skip) = (512, None, 0);
    let range = 0..=i64::MAX as u64;
    for word in words {
        let (name, value) = split(word);
        let text = value.map(OsStr::to_string_lossy).unwrap_or_default();
        match (&*name.to_string_lossy(), value) {
            ("if", Some(value)) => input = Some(value.to_owned()),
            ("of", Some(value)) => output = Some(value.to_owned()),
            ("bs", Some(_)) => block = sizes("bs", 1..=I31)(&text).map_err(Failure::Usage)?,
            ("count", Some(_)) => {
                count = Some(counts("count", range.clone())(&text).map_err(Failure::Usage)?);
            }
            ("skip", Some(_)) => {
                skip = counts("skip", range.clone())(&text).map_err(Failure::Usage)?;
            }
            (name, _) => return Err(Failure::Usage(format!("unrecognized operand {name}"))),
        }
    }
    match (input, output) {
        (Some(input), Some(output)) => Ok(Operands { input, output, block, count, skip }),
        _ => Err(Failure::Usage("Must specify both input and output files".to_owned())),
    }
}

/// The parts before and after the first `=`.
fn split(word: &OsStr) -> (&OsStr, Option<&OsStr>) {
    use std::os::unix::ffi::OsStrExt;
    let bytes = word.as_bytes();
    match bytes.iter().position(|&byte| byte == b'=') {
        None => (word, None),
        Some(at) => (OsStr::from_bytes(&bytes[..at]), Some(OsStr::from_bytes(&bytes[at + 1..]))),
    }
}
