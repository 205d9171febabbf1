//! What the image has itself, and what it has not: `alloc`, `map` and reads that copy.

use std::fmt::Write as _;

use blkring_engine::{Flags, IoMem, Queue, Result};

use super::opened::Opened;
use super::text::human;
use crate::disk::AnyDisk;

/// Bytes copied at once.
const COPY: u64 = 1 << 20;

/// A range of the disk, and whether the image has its bytes itself.
struct Run {
    end: u64,
    own: bool,
}

/// The run that begins at `offset` and ends at `limit` at the latest.
fn run(
    queue: &mut Queue,
    opened: &Opened,
    offset: u64,
    limit: u64,
) -> std::io::Result<Result<Run>> {
    let AnyDisk::Qcow2(image) = &opened.image else {
        // A raw image has all of its bytes itself.
        return Ok(Ok(Run { end: limit, own: true }));
    };
    queue.block_on(async {
        let mut end = offset;
        let mut own = None;
        while end < limit {
            let extent = image.extent_in(0, end, limit).await?;
            if own.is_some_and(|own| own == extent.is_absent()) {
                break;
            }
            own = Some(!extent.is_absent());
            end = extent.offset + extent.len;
        }
        Ok(Run { end, own: own.unwrap_or(false) })
    })
}

/// The line of `alloc`.
pub fn alloc(
    queue: &mut Queue,
    opened: &Opened,
    offset: u64,
    len: u64,
) -> std::io::Result<Result<String>> {
    let size = opened.size();
    let len = len.min(size.saturating_sub(offset));
    let (mut at, mut own) = (offset, 0);
    while at < offset + len {
        let run = match run(queue, opened, at, offset + len)? {
            Ok(run) => run,
            Err(error) => return Ok(Err(error)),
        };
        own += if run.own { run.end - at } else { 0 };
        at = run.end;
    }
    Ok(Ok(format!("{own}/{len} bytes allocated at offset {}\n", human(offset as f64))))
}

/// The lines of `map`.
pub fn map(queue: &mut Queue, opened: &Opened) -> std::io::Result<Result<String>> {
    let size = opened.size();
    let mut lines = String::new();
    let mut at = 0;
    while at < size {
        let run = match run(queue, opened, at, size)? {
            Ok(run) => run,
            Err(error) => return Ok(Err(error)),
        };
        let len = run.end - at;
        let has = if run.own { "    allocated" } else { "not allocated" };
        let (words, place) = (human(len as f64), human(at as f64));
        writeln!(lines, "{words} ({len:#x}) bytes {has} at offset {place} ({at:#x})")
            .expect("a string takes everything");
        at = run.end;
    }
    Ok(Ok(lines))
}

/// Writes what lies below these bytes to the image, in whole clusters, before they are read. Nothing else is on its
/// way meanwhile.
pub fn copy(
    queue: &mut Queue,
    opened: &Opened,
    offset: u64,
    len: u64,
) -> std::io::Result<Result<()>> {
    let (AnyDisk::Qcow2(image), size) = (&opened.image, opened.size()) else {
        return Ok(Ok(()));
    };
    let Some(end) = offset.checked_add(len).filter(|end| *end <= size) else { return Ok(Ok(())) };
    let cluster = image.info().cluster_size;
    let end = end.next_multiple_of(cluster).min(size);
    let mut at = offset - offset % cluster;
    while at < end && len > 0 {
        let run = match run(queue, opened, at, end)? {
            Ok(run) => run,
            Err(error) => return Ok(Err(error)),
        };
        while !run.own && at < run.end {
            let part = (run.end - at).min(COPY.max(cluster));
            if let Err(error) = queue.block_on(copy_part(opened, at, part))? {
                return Ok(Err(error));
            }
            at += part;
        }
        at = run.end;
    }
    Ok(Ok(()))
}

async fn copy_part(opened: &Opened, offset: u64, len: u64) -> Result<()> {
    let bytes = usize::try_from(len).expect("a cluster or a mebibyte");
    let memory = IoMem::from(vec![0; bytes]);
    opened.disk.read(offset, memory.clone()).await?;
    if memory.to_vec().iter().all(|byte| *byte == 0) {
        opened.disk.write_zeroes(offset, len, Flags::empty()).await
    } else {
        opened.disk.write(offset, memory, Flags::empty()).await
    }
}
