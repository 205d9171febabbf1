//! `blkring convert`: copies of images, in another format, flat, sparse.
//!
//! The source is walked by what its tables and holes tell (`walk`); pieces that hold data are read and written beside
//! each other on one queue (`copy`), with a bound on how many there are.

mod compressors;
mod copy;
mod error;
mod flow;
mod memory;
mod options;
mod readers;
mod salvage;
mod source;
mod target;
mod team;
mod walk;
mod write_back;
pub mod zeros;

use std::ops::Range;
use std::process::ExitCode;
use std::rc::Rc;

use blkring_engine::{Cache, Queue, QueueOptions};

use compressors::Compressors;
use copy::{Helpers, Manner, Target};
use options::Packing;
use readers::Readers;
use source::Sources;
use target::Opened;
use walk::{Rules, Task, Walk, Zeros};
use write_back::WriteBack;

pub use error::CopyError;
pub use options::{Options, Order};

use crate::backend;
use crate::disk::{AnyDisk, Opening};
use crate::failure::Failure;
use crate::name::complain;
use crate::options::Format;
use crate::progress::Progress;
use crate::status::{Holes, SECTOR, Survey};

/// Requests that the queue takes at once: the parts of all pieces.
const REQUESTS: usize = 1024;

/// In which order the pieces are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sequence {
    /// From the begin to the end; they are sent in this order, and in flight together.
    Ascending,
    /// As their reads end.
    Any,
}

/// What becomes of bytes that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Salvage {
    /// The copy ends.
    No,
    /// They are zeros in the target.
    Yes,
}

/// What the target reads as where nothing is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Under {
    /// Zeros.
    Zeros,
    /// Anything: zeros are written.
    Unknown,
    /// A file that the source has below it too: what the files of the source above that have is copied.
    Shared,
    /// Another file, which the source is compared with.
    Compared,
}

/// The part of the source that is copied, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Window {
    /// Its begin.
    pub start: u64,
    /// Its end, if that is not the end of the source.
    pub end: Option<u64>,
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    if let Some(text) = options.help()? {
        print!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    part(&options.read()?, Window::default())
}

/// Copies a part of the source.
pub fn part(order: &Order, window: Window) -> Result<ExitCode, Failure> {
    let mut queue = backend::queue(QueueOptions::with_requests(REQUESTS))?;
    let mut images = Vec::new();
    for name in &order.sources {
        let opening = Opening {
            cache: order.source_cache,
            share: order.share,
            raw: order.claim,
            ..Opening::read_only()
        };
        images.push(AnyDisk::open(&mut queue, name, opening)?);
    }
    let size = images.iter().map(AnyDisk::virtual_size).sum();
    let end = window.end.map_or(size, |end| end.min(size));
    if let (Some(name), true) = (order.sources.first(), end < window.start) {
        complain(format_args!("{}: cannot skip to specified offset", name.given()));
    }
    let window = window.start.min(end)..end;
    target::spare_sources(order, &images)?;
    let len = (window.end - window.start).next_multiple_of(SECTOR);
    let opened = target::open(&mut queue, order, &images, len)?;
    let copied = copy(&mut queue, order, (&images, window), &opened);
    let flushed = copied.and_then(|()| opened.finish(&mut queue));
    for image in &images {
        image.close(&mut queue)?;
    }
    flushed.map(|()| ExitCode::SUCCESS)
}

fn copy(
    queue: &mut Queue,
    order: &Order,
    (images, window): (&[AnyDisk], Range<u64>),
    opened: &Opened,
) -> Result<(), Failure> {
    let survey = |image| {
        let survey = Survey::new(image, Holes::Wanted);
        opened.above.map_or_else(|| Survey::new(image, Holes::Wanted), |depth| survey.above(depth))
    };
    let parts = images.iter().map(|image| (image, survey(image)));
    let sources = Rc::new(Sources::new(queue, parts)?.window(window.clone()));
    let zeros = if order.sparse == 0 { Zeros::Written } else { Zeros::Sparse };
    let cluster = opened.cluster_size.filter(|_| order.packing == Packing::Compressed);
    let rules = Rules { under: opened.under, zeros, salvage: order.salvage, cluster };
    let below_survey = || opened.below.as_ref().map(|below| Survey::new(below, Holes::Wanted));
    let rules = Rc::new(rules);
    let total = match order.progress {
        None => sources.len(),
        Some(_) => work(queue, Walk::new(&sources, &rules, below_survey()))?,
    };
    let progress = Progress::new(order.progress, total)?;
    let below = opened.below.iter().map(|below| (below, Survey::new(below, Holes::Wanted)));
    let below = Sources::new(queue, below)?;
    let target = Target {
        disk: opened.disk.clone(),
        flags: order.target_cache.write_flags(),
        below: opened.below.is_some().then_some(below),
    };
    let write_back = write_back(order)?;
    let pieces = memory::pieces(order.pieces);
    let manner = Manner {
        pieces,
        sequence: order.sequence,
        unit: unit(order, opened),
        zeros,
        under: opened.under,
        salvage: order.salvage,
        rate: order.rate,
        write_back,
    };
    let walk = Walk::new(&sources, &rules, below_survey());
    let helpers = helpers((order, pieces), images, &window, opened)?;
    copy::run(queue, (sources, walk), (target, helpers), manner, progress)
}

/// What goes through the page cache must not fill a memory that is limited.
fn write_back(order: &Order) -> Result<Option<WriteBack>, Failure> {
    if order.target_cache.cache() == Cache::Direct {
        return Ok(None);
    }
    let path = order.target.path();
    WriteBack::of(path)
        .map_err(|error| Failure::Usage(format!("{}: {error}", crate::bytes::of_path(path))))
}

/// Only qcow2 images have anything compressed.
fn helpers(
    (order, pieces): (&Order, usize),
    images: &[AnyDisk],
    window: &Range<u64>,
    opened: &Opened,
) -> Result<Helpers, Failure> {
    let mut helpers = Helpers::default();
    if images.iter().any(|image| matches!(image, AnyDisk::Qcow2(_))) {
        helpers.readers = Some(Readers::start(images, window, pieces)?);
    }
    if let (AnyDisk::Qcow2(image), Packing::Compressed) = (&opened.image, order.packing) {
        helpers.compressors = Some(Compressors::start(image, pieces)?);
    }
    Ok(helpers)
}

/// Bytes that have to be copied or made zero.
fn work(queue: &mut Queue, mut walk: Walk) -> Result<u64, Failure> {
    let mut bytes = 0;
    loop {
        match queue.block_on(walk.next())?.map_err(Failure::Copy)? {
            None => return Ok(bytes),
            Some(piece) if piece.task == Task::Skip => (),
            Some(piece) => bytes += piece.len,
        }
    }
}

/// Zeros within a cluster save no space in the target: there they are looked for in larger units, so that fewer and
/// longer writes do. A large cluster is not filled with them, though.
fn unit(order: &Order, opened: &Opened) -> u64 {
    const MOST: u64 = 64 << 10;
    let sparse = order.sparse.max(SECTOR);
    match (order.format, opened.cluster_size) {
        // A cluster is compressed as a whole.
        (_, Some(cluster)) if order.packing == Packing::Compressed => cluster,
        (Format::Qcow2, Some(cluster)) => sparse.max(cluster.min(MOST)),
        _ => sparse,
    }
}
