//! `write -c`: whole clusters, compressed.

use std::sync::Arc;

use blkring_engine::{Flags, IoError, IoMem, Operation, Queue};
use blkring_qcow2::{Compressor, Image};

use super::opened::Opened;
use crate::disk::AnyDisk;

/// Writes `memory` at `offset`, a cluster at a time. The inner error is that of the write.
pub fn write(
    queue: &mut Queue,
    opened: &Opened,
    offset: u64,
    memory: &IoMem,
) -> std::io::Result<Result<(), IoError>> {
    let error = |errno| IoError::new(&Arc::from("image"), Operation::Write, offset, errno);
    let size = opened.size();
    let Some(end) = offset.checked_add(memory.len() as u64).filter(|end| *end <= size) else {
        return Ok(Err(error(libc::EIO)));
    };
    let AnyDisk::Qcow2(image) = &opened.image else { return Ok(Err(error(libc::EOPNOTSUPP))) };
    if memory.is_empty() {
        return Ok(Ok(()));
    }
    let cluster = image.info().cluster_size;
    if !offset.is_multiple_of(cluster) || (!end.is_multiple_of(cluster) && end != size) {
        return Ok(Err(error(libc::EINVAL)));
    }
    let bytes = usize::try_from(cluster).expect("at most 2 MiB");
    let Ok(mut compressor) = Compressor::new(image.compression(), bytes) else {
        return Ok(Err(error(libc::EOPNOTSUPP)));
    };
    queue.block_on(async {
        let mut part = vec![0; bytes];
        for at in (0..memory.len()).step_by(bytes) {
            let part = part.get_mut(..bytes.min(memory.len() - at)).unwrap_or_default();
            memory.copy_out(at, part);
            write_cluster(opened, image, &mut compressor, offset + at as u64, part).await?;
        }
        Ok(())
    })
}

/// One cluster, or what there is of the last one. If it does not become smaller it is written as it is.
async fn write_cluster(
    opened: &Opened,
    image: &Arc<Image>,
    compressor: &mut Compressor,
    offset: u64,
    bytes: &[u8],
) -> Result<(), IoError> {
    match compressor.compress(bytes) {
        Some(cluster) => image.write_compressed(offset, cluster).await,
        None => opened.disk.write(offset, IoMem::aligned(bytes), Flags::empty()).await,
    }
}
