//! `blkring compare`: whether two images hold the same.

use std::ffi::OsString;
use std::process::ExitCode;

use blkring_engine::{Disk, IoError, IoMem, Queue, QueueOptions, Request};
use clap::Args;

use crate::backend;
use crate::convert::zeros::{first_difference, first_nonzero};
use crate::disk::{AnyDisk, Opening};
use crate::failure::Failure;
use crate::image_name::{ImageName, Syntax};
use crate::options::{Share, cache_mode};
use crate::progress::{Form, Progress};
use crate::status::{Holds, Holes, Run, SECTOR, Survey};
use crate::text::describe;

/// Bytes that are compared at once.
const PIECE: u64 = 2 << 20;

/// Check whether two images hold the same, as qemu-img compare does.
///
/// A longer one may end in zeros. The exit code is 0 if they are alike, 1 if they are not, 2 if one cannot be opened,
/// 3 if its tables, and 4 if its data cannot be read.
#[derive(Args)]
pub struct Options {
    /// Print nothing but errors.
    #[arg(short, long)]
    quiet: bool,
    /// Print progress; with json one JSON object a line to the standard error, with json:FD to a descriptor.
    #[arg(short, long, value_name = "FORM", num_args = 0..=1, require_equals = true,
        default_missing_value = "human")]
    progress: Option<Form>,
    /// Format of the first image (raw, qcow2).
    #[arg(short = 'f', long, value_name = "FMT")]
    a_format: Option<String>,
    /// Format of the second.
    #[arg(short = 'F', long, value_name = "FMT")]
    b_format: Option<String>,
    /// The images are no file names but options: driver=qcow2,file.filename=NAME.
    #[arg(long)]
    image_opts: bool,
    /// Their sizes and what of them is allocated must be alike too.
    #[arg(short, long)]
    strict: bool,
    /// Cache mode: none, writeback, writethrough, directsync or unsafe.
    #[arg(short = 'T', long, value_name = "CACHE", default_value = "writeback")]
    cache: String,
    /// Open them whatever locks others hold.
    #[arg(short = 'U', long)]
    force_share: bool,
    /// Accepted for scripts: nothing here uses an object.
    #[arg(long, value_name = "OBJDEF", hide = true)]
    object: Vec<String>,
    /// The images.
    #[arg(value_name = "FILE")]
    files: Vec<OsString>,
}

/// Exit codes.
const NO_OPEN: u8 = 2;
const NO_STATUS: u8 = 3;
const NO_READ: u8 = 4;

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let [a, b] = options.files.as_slice() else {
        return Err(Failure::Misuse("Expecting two image file names".to_owned()));
    };
    let cannot_open = |failure| Failure::Coded { code: NO_OPEN, failure: Box::new(failure) };
    let cache = cache_mode(&options.cache).map_err(|_| {
        cannot_open(Failure::Usage(format!("Invalid source cache option: {}", options.cache)))
    })?;
    let mut queue = backend::queue(QueueOptions::default())?;
    let opening = Opening { cache, share: Share::of(options.force_share), ..Opening::read_only() };
    let mut side = |word, format: &Option<String>| {
        let name = ImageName::parse(word, Syntax::of(options.image_opts), format.as_deref())?;
        let image = AnyDisk::open(&mut queue, &name, opening)?;
        let survey = Survey::new(&image, Holes::WhereMany);
        Ok(Side { name: name.given().to_owned(), disk: image.attach(&mut queue)?, survey })
    };
    let (a, b) = (side(a, &options.a_format), side(b, &options.b_format));
    let mut comparison = Comparison {
        a: a.map_err(cannot_open)?,
        b: b.map_err(cannot_open)?,
        buffers: [(); 2].map(|()| IoMem::aligned_zeroed(small(PIECE))),
        strict: options.strict,
        quiet: options.quiet,
    };
    let total = comparison.a.survey.len().max(comparison.b.survey.len());
    let form = options.progress.filter(|_| !options.quiet);
    let mut progress = Progress::new(form, total)?.in_steps_of(2.0);
    let verdict = comparison.run(&mut queue, &mut progress)?;
    let say = |text: &str| {
        if !options.quiet {
            println!("{text}");
        }
    };
    let code = match verdict {
        Verdict::Alike => {
            say("Images are identical.");
            ExitCode::SUCCESS
        }
        Verdict::Size => different(say, "Strict mode: Image size mismatch!"),
        Verdict::Status(at) => {
            different(say, &format!("Strict mode: Offset {at} block status mismatch!"))
        }
        Verdict::Content(at) => different(say, &format!("Content mismatch at offset {at}!")),
    };
    progress.end();
    Ok(code)
}

fn different(say: impl Fn(&str), text: &str) -> ExitCode {
    say(text);
    ExitCode::FAILURE
}

/// What came out.
enum Verdict {
    Alike,
    Size,
    Status(u64),
    Content(u64),
}

/// One of the images.
struct Side {
    name: String,
    disk: Disk,
    survey: Survey,
}

struct Comparison {
    a: Side,
    b: Side,
    buffers: [IoMem; 2],
    strict: bool,
    quiet: bool,
}

impl Comparison {
    fn run(&mut self, queue: &mut Queue, progress: &mut Progress) -> Result<Verdict, Failure> {
        let sizes = (self.a.survey.len(), self.b.survey.len());
        if sizes.0 != sizes.1 && self.strict {
            return Ok(Verdict::Size);
        }
        let (both, all) = (sizes.0.min(sizes.1), sizes.0.max(sizes.1));
        let mut at = 0;
        while at < both {
            let (a, b) = (self.a.run(queue, at, both)?, self.b.run(queue, at, both)?);
            if self.strict && flags(&a) != flags(&b) {
                return Ok(Verdict::Status(at));
            }
            let len = a.len.min(b.len);
            let (end, difference) = self.piece(queue, (at, len), (a.holds, b.holds))?;
            if let Some(at) = difference {
                return Ok(Verdict::Content(at / SECTOR * SECTOR));
            }
            progress.add(end - at);
            at = end;
        }
        if both < all && !self.quiet {
            println!("Warning: Image size mismatch!");
        }
        while at < all {
            let longer = if sizes.0 > sizes.1 { &self.a } else { &self.b };
            let run = longer.run(queue, at, all)?;
            let holds = if sizes.0 > sizes.1 {
                (run.holds, Holds::Absent)
            } else {
                (Holds::Absent, run.holds)
            };
            let (end, difference) = self.piece(queue, (at, run.len), holds)?;
            if let Some(at) = difference {
                return Ok(Verdict::Content(at / SECTOR * SECTOR));
            }
            progress.add(end - at);
            at = end;
        }
        Ok(Verdict::Alike)
    }

    /// Compares the begin of a run that is of one kind on either side: where that ends, and where they differ.
    fn piece(
        &self,
        queue: &mut Queue,
        (at, len): (u64, u64),
        holds: (Holds, Holds),
    ) -> Result<(u64, Option<u64>), Failure> {
        let zero = (holds.0.is_zero(), holds.1.is_zero());
        if zero == (true, true) {
            return Ok((at + len, None));
        }
        let len = len.min(PIECE);
        let sides = [(&self.a, zero.0, &self.buffers[0]), (&self.b, zero.1, &self.buffers[1])];
        // Both are in flight before either is waited for.
        let mut reads = Vec::new();
        for (side, _, mem) in sides.iter().filter(|(_, zero, _)| !zero) {
            // The last sector may end beyond the end of a raw file.
            let there = small(len.min(side.disk.size().saturating_sub(at)));
            mem.fill(there..small(len), 0);
            let read = side.disk.submit(Request::read(at, mem.slice(0..there)));
            reads.push((*side, read.map_err(|_| Failure::Usage("The queue is full".to_owned()))?));
        }
        for (side, read) in reads {
            queue.block_on(read)?.map_err(|error| side.no_read(at, &error))?;
        }
        let [a, b] = &self.buffers;
        let range = 0..small(len);
        let difference = match zero {
            (false, false) => first_difference(a, b, range),
            (false, true) => first_nonzero(a, range),
            (true, _) => first_nonzero(b, range),
        };
        Ok((at + len, difference.map(|within| at + within as u64)))
    }
}

impl Side {
    fn run(&self, queue: &mut Queue, at: u64, end: u64) -> Result<Run, Failure> {
        queue.block_on(self.survey.run(at, end))?.map_err(|_| {
            let text = format!("Sector allocation test failed for {}", self.name);
            Failure::Coded { code: NO_STATUS, failure: Box::new(Failure::Usage(text)) }
        })
    }

    fn no_read(&self, at: u64, error: &IoError) -> Failure {
        let reason = describe(error.errno);
        let text = format!("Error while reading offset {at} of {}: {reason}", self.name);
        Failure::Coded { code: NO_READ, failure: Box::new(Failure::Usage(text)) }
    }
}

/// What must be alike in strict mode: whether there are data, whether they are zero, and whether any file has them.
fn flags(run: &Run) -> (bool, bool, bool) {
    let data = matches!(run.holds, Holds::Data | Holds::Compressed | Holds::Hole);
    (data, run.holds.is_zero(), run.holds != Holds::Absent)
}

fn small(bytes: u64) -> usize {
    usize::try_from(bytes).expect("not more than a piece")
}
