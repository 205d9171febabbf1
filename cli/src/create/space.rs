//! Space for a new image before anybody writes it.

use std::path::Path;

use blkring_engine::{Access, QueueOptions};
use blkring_qcow2::Preallocation;

use crate::backend;
use crate::disk::{AnyDisk, Opening};
use crate::failure::Failure;
use crate::image_name::ImageName;
use crate::options::Format;

/// Makes space in the new qcow2 image at `path`.
///
/// # Errors
/// If it cannot be opened, or there is not enough space.
pub fn take(path: &Path, preallocation: Preallocation) -> Result<(), Failure> {
    let mut queue = backend::queue(QueueOptions::default())?;
    let name = ImageName::of_file(path).of_format(Format::Qcow2);
    let opening = Opening { access: Access::ReadWrite, ..Opening::read_only() };
    let image = AnyDisk::open(&mut queue, &name, opening)?;
    image.attach(&mut queue)?;
    if let AnyDisk::Qcow2(image) = &image {
        queue
            .block_on(image.preallocate(preallocation))?
            .map_err(|error| Failure::Usage(format!("Could not preallocate the image: {error}")))?;
    }
    image.close(&mut queue)
}
