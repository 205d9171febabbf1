//! What a disk is made of, as far as whoever lays out requests wants to know.

use crate::storage::Cache;

/// The smallest unit in which guests may address a disk, in bytes.
const SECTOR: u32 = 512;

/// Units and limits of a disk, in bytes. None of them has to be kept: requests of any alignment and length are
/// accepted, and those that keep to these numbers cost least. What a virtual machine monitor tells its guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Topology {
    /// Requests in multiples of this need no read-modify-write here: a power of two, 512 at least.
    pub logical_block: u32,
    /// The unit that is written at once below: a power of two, not less than the logical block.
    pub physical_block: u32,
    /// What long transfers should be multiples of; 0 where nobody says.
    pub optimal_transfer: u32,
    /// Memory of requests that begins at multiples of this is not copied.
    pub memory_alignment: u32,
    /// Discards; `None` where they do nothing.
    pub discard: Option<RangeLimits>,
    /// Zero-writes that move no zeros; `None` where zeros have to be written out.
    pub zero: Option<RangeLimits>,
}

/// In which ranges something is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeLimits {
    /// Ranges take effect in whole multiples of this, counted from `alignment`: smaller ones give nothing back, or are
    /// written out.
    pub granularity: u64,
    /// Where the first whole unit begins.
    pub alignment: u64,
    /// The longest range of one request: a multiple of the granularity. What is below this engine may have a smaller
    /// one; it splits by itself.
    pub max: u64,
}

impl RangeLimits {
    /// Units of so many bytes from the start of the disk, as many in one request as an offset can count.
    pub fn units(granularity: u64) -> Self {
        let granularity = granularity.max(1);
        let max = i64::MAX as u64 / granularity * granularity;
        RangeLimits { granularity, alignment: 0, max }
    }

    /// The same from another start.
    pub(super) fn from(mut self, alignment: u64) -> Self {
        self.alignment = alignment;
        self
    }
}

impl Topology {
    /// A disk in sectors of 512 bytes of which nothing else is known.
    pub fn of_sectors() -> Self {
        Topology {
            logical_block: SECTOR,
            physical_block: SECTOR,
            optimal_transfer: 0,
            memory_alignment: 1,
            discard: None,
            zero: None,
        }
    }

    /// Of bytes with this alignment of offsets and of memory, in blocks of `block` bytes that can be given back.
    pub(crate) fn of_file(alignment: u64, memory_alignment: usize, block: u64) -> Self {
        let logical_block = narrow(alignment).max(SECTOR);
        let is_unit = block.is_power_of_two() && block >= u64::from(logical_block);
        let physical_block = if is_unit { narrow(block) } else { logical_block };
        let units = RangeLimits::units(physical_block.into());
        Topology {
            logical_block,
            physical_block,
            optimal_transfer: 0,
            memory_alignment: narrow(memory_alignment as u64),
            discard: Some(units),
            zero: Some(units),
        }
    }

    /// The same disk cut into clusters: what is given back or zeroed without writing is whole clusters.
    #[must_use]
    pub fn in_clusters(mut self, cluster: u64) -> Self {
        self.discard = Some(RangeLimits::units(cluster));
        self.zero = Some(RangeLimits::units(cluster));
        self
    }
}

/// The alignment that goes with `cache`: none is needed through the page cache.
pub(super) fn of_cache(cache: Cache, direct: (u64, usize)) -> (u64, usize) {
    if cache == Cache::Cached { (1, 1) } else { direct }
}

pub(super) fn narrow(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(1 << 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_file_are_powers_of_two() {
        let told = Topology::of_file(1, 1, 4096);
        assert_eq!((told.logical_block, told.physical_block), (512, 4096));
        let told = Topology::of_file(4096, 512, 1000);
        assert_eq!((told.logical_block, told.physical_block), (4096, 4096));
        assert_eq!(told.memory_alignment, 512);
        let limits = told.in_clusters(65536).discard.unwrap();
        assert_eq!((limits.granularity, limits.alignment), (65536, 0));
        assert_eq!(limits.max % 65536, 0);
        assert!(limits.max > i64::MAX as u64 - 65536);
    }
}
