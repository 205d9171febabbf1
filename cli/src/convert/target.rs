//! Where a copy goes: made new, or there already.

use blkring_engine::{Access, Disk, Queue};
use blkring_qcow2::Backing;

use super::Under;
use super::options::{Existing, Order, Packing};
use crate::bytes;
use crate::create;
use crate::disk::{AnyDisk, Opening};
use crate::failure::Failure;
use crate::image_name::ImageName;

/// The target, open.
pub struct Opened {
    /// The image.
    pub image: AnyDisk,
    /// The way to it.
    pub disk: Disk,
    /// What it reads as where nothing is written.
    pub under: Under,
    /// If it shares a file with the source: how many files of the source lie above that.
    pub above: Option<usize>,
    /// If it does not: the file below it.
    pub below: Option<AnyDisk>,
    /// Bytes of its clusters, if it has some.
    pub cluster_size: Option<u64>,
}

impl Opened {
    /// Makes the copy durable, unless flushes are ignored, and closes it.
    pub fn finish(&self, queue: &mut Queue) -> Result<(), Failure> {
        queue.block_on(self.disk.flush())?.map_err(Failure::Close)?;
        self.image.close(queue)
    }
}

/// Refuses a target that is a part of the source: it would be destroyed before it is read.
pub fn spare_sources(order: &Order, images: &[AnyDisk]) -> Result<(), Failure> {
    let Ok(metadata) = order.target.path().metadata() else { return Ok(()) };
    let identity = blkring_engine::identity(&metadata);
    if images.iter().any(|image| image.has_file(identity)) {
        let text = "the target is the source, or a file below it";
        return Err(failure(order, text));
    }
    Ok(())
}

/// Makes the target, unless it is there already, and opens it.
pub fn open(
    queue: &mut Queue,
    order: &Order,
    images: &[AnyDisk],
    size: u64,
) -> Result<Opened, Failure> {
    if order.existing == Existing::No {
        make(order, size)?;
    }
    let opening =
        Opening { cache: order.target_cache, access: Access::ReadWrite, ..Opening::read_only() };
    let image = AnyDisk::open(queue, &order.target, opening)?;
    let disk = image.attach(queue)?;
    if order.packing == Packing::Compressed && !matches!(image, AnyDisk::Qcow2(_)) {
        return Err(Failure::Usage("Compression not supported for this file format".to_owned()));
    }
    if image.virtual_size() < size {
        return Err(Failure::Usage("output file is smaller than input file".to_owned()));
    }
    let mut opened = Opened {
        disk,
        under: match order.existing {
            // A device has whatever it had before.
            Existing::No if image.storage().is_block_device() => Under::Unknown,
            Existing::No | Existing::Zero => Under::Zeros,
            Existing::Yes => Under::Unknown,
        },
        above: None,
        below: None,
        cluster_size: match &image {
            AnyDisk::Qcow2(image) => Some(image.info().cluster_size),
            _ => None,
        },
        image,
    };
    if order.given.text("backing_file").is_some() {
        look_below(queue, order, images, &mut opened)?;
    }
    Ok(opened)
}

/// Finds out whether the file below the target is one of the source's.
fn look_below(
    queue: &mut Queue,
    order: &Order,
    images: &[AnyDisk],
    opened: &mut Opened,
) -> Result<(), Failure> {
    let AnyDisk::Qcow2(target) = &opened.image else { return Ok(()) };
    let Some(file) = target.storage_at(1) else { return Ok(()) };
    if let [AnyDisk::Qcow2(source)] = images {
        let is_it = |depth: &usize| {
            source.storage_at(*depth).is_some_and(|one| one.identity() == file.identity())
        };
        opened.above = (1..source.depth()).find(is_it);
    }
    if opened.above.is_some() {
        opened.under = Under::Shared;
        return Ok(());
    }
    let format = target.info().backing_format.as_deref().map(crate::options::format);
    let format = format.and_then(Result::ok).expect("the target was opened with it");
    let name = ImageName::of_file(file.file_path()).of_format(format);
    let opening = Opening { share: order.share, ..Opening::read_only() };
    opened.below = Some(AnyDisk::open(queue, &name, opening)?);
    opened.under = Under::Compared;
    Ok(())
}

fn failure(order: &Order, text: &str) -> Failure {
    let path = bytes::of_path(order.target.path());
    Failure::Usage(format!("{path}: {}: {text}", order.cannot_make))
}

fn make(order: &Order, size: u64) -> Result<(), Failure> {
    let given = &order.given;
    let backing = given.text("backing_file").map(|name| {
        let format = given.text("backing_fmt").unwrap_or_default();
        Backing::new(bytes::bytes(name), bytes::bytes(format))
    });
    create::make(order.target.path(), given, size, backing).map_err(|text| failure(order, &text))
}
