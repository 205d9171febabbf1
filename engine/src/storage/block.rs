//! Block devices: what the kernel tells of them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::open::Cache;
use super::topology::{RangeLimits, Topology, narrow};
use crate::sys::device::{self, Fact};

/// Offset and memory alignment of direct I/O where a kernel before Linux 6.1 does not tell: the logical block for both,
/// which devices have always taken.
pub(super) fn alignment(file: &File, told: Option<(u32, u32)>) -> io::Result<(u64, usize)> {
    let block = device::fact(file, Fact::LogicalBlock)?;
    let (memory, offset) = told.unwrap_or((block, block));
    Ok((offset.max(block).into(), memory.max(1) as usize))
}

/// Whether the device refuses to be written, however it was opened.
pub(super) fn is_read_only(file: &File) -> io::Result<bool> {
    Ok(device::fact(file, Fact::ReadOnly)? != 0)
}

/// The geometry of the device in `file`, for I/O of this alignment.
pub(super) fn topology(file: &File, cache: Cache, memory_alignment: usize) -> io::Result<Topology> {
    let logical_block = device::fact(file, Fact::LogicalBlock)?;
    let physical_block = device::fact(file, Fact::PhysicalBlock)?.max(logical_block);
    let limits = Limits::of(file)?;
    let granularity = limits.number("queue/discard_granularity").unwrap_or(0);
    let units = |granularity: u64| RangeLimits::units(granularity.max(logical_block.into()));
    let discards = limits.number("queue/discard_max_bytes") != Some(0) && granularity > 0;
    let zeroes = limits.number("queue/write_zeroes_max_bytes") != Some(0);
    let first = limits.number("discard_alignment").unwrap_or(0);
    Ok(Topology {
        logical_block,
        physical_block,
        optimal_transfer: device::fact(file, Fact::OptimalTransfer)?,
        memory_alignment: if cache == Cache::Cached { 1 } else { narrow(memory_alignment as u64) },
        discard: discards.then(|| units(granularity).from(first)),
        zero: zeroes.then(|| units(logical_block.into())),
    })
}

/// The numbers that sysfs has of a device; none where it is not mounted.
struct Limits(PathBuf);

impl Limits {
    fn of(file: &File) -> io::Result<Self> {
        let number = file.metadata()?.rdev();
        let (major, minor) = (libc::major(number), libc::minor(number));
        Ok(Limits(PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))))
    }

    /// A partition has the queue of its disk.
    fn number(&self, name: &str) -> Option<u64> {
        let read = |path: PathBuf| fs::read_to_string(path).ok();
        let text = read(self.0.join(name)).or_else(|| read(self.0.join("..").join(name)))?;
        text.trim().parse().ok()
    }
}
