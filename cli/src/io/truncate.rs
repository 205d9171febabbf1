//! `truncate`: another size.

use blkring_engine::{Access, Flags, IoError, IoMem, Queue, RawDisk};
use blkring_qcow2::Preallocation;

use super::opened::Opened;
use crate::disk::AnyDisk;
use crate::failure::Failure;
use crate::resize::refusal;
use crate::text::describe;

/// Bytes of zeros written at once.
const CHUNK: u64 = 1 << 20;

/// Gives the image another size. The inner error is the command's own.
pub fn run(
    queue: &mut Queue,
    opened: &Opened,
    size: u64,
    mode: &str,
) -> Result<Result<(), String>, Failure> {
    let Some(mode) = Preallocation::named(mode) else {
        return Ok(Err(format!("Invalid preallocation mode '{mode}'")));
    };
    if opened.access() == Access::ReadOnly {
        return Ok(Err("Block node is read-only".to_owned()));
    }
    match &opened.image {
        AnyDisk::Raw(disk) => raw(queue, disk, size, mode),
        AnyDisk::Probed(disk) => raw(queue, disk.disk(), size, mode),
        AnyDisk::Qcow2(image) => {
            if let Some(text) = refusal(image, size) {
                return Ok(Err(text.to_owned()));
            }
            let result = queue.block_on(image.resize_with(size, mode))?;
            Ok(result.map_err(|error| match error.reason {
                Some(reason) => format!("{reason}: {}", describe(error.errno)),
                None => format!("Failed to resize: {}", describe(error.errno)),
            }))
        }
    }
}

fn raw(
    queue: &mut Queue,
    disk: &RawDisk,
    size: u64,
    mode: Preallocation,
) -> Result<Result<(), String>, Failure> {
    if mode == Preallocation::Metadata {
        return Ok(Err("Unsupported preallocation mode: metadata".to_owned()));
    }
    let (lane, storage) = (queue.lane(), disk.storage());
    // A device stays as it is; to be longer than needed is no error.
    if storage.is_block_device() {
        let fits = size <= storage.size();
        return Ok(if fits { Ok(()) } else { Err("Cannot grow device files".to_owned()) });
    }
    let old = storage.size();
    let result = queue.block_on(async {
        disk.resize(&lane, size).await?;
        let size = storage.size();
        let mut at = old;
        while mode != Preallocation::Off && at < size {
            let part = (size - at).min(CHUNK);
            if mode == Preallocation::Full {
                let zeros = vec![0; usize::try_from(part).expect("at most a chunk")];
                storage.write(&lane, at, &IoMem::from(zeros), Flags::empty()).await?;
            } else {
                storage.write_zeroes(&lane, at, part, Flags::empty()).await?;
            }
            at += part;
        }
        Ok::<(), IoError>(())
    })?;
    Ok(result.map_err(|error| format!("Failed to resize: {}", describe(error.errno))))
}
