//! What the image says about each host cluster, and what was found.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use std::collections::BTreeMap;

use super::report::{CheckError, LimitKind};

/// Clusters of one page.
const PAGE_CLUSTERS: usize = 512;
/// Bytes of one page and of its place in the map.
const PAGE_BYTES: u64 = (PAGE_CLUSTERS * size_of::<Cell>() + 64) as u64;
/// Bytes of one entry among the large refcounts.
const LARGE_BYTES: u64 = 64;
/// The flag of metadata in the references of a cell.
const METADATA: u32 = 1 << 31;

/// What a reference leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Data,
    Metadata,
}

/// One host cluster, as it is kept.
#[derive(Clone, Copy, Default)]
struct Cell {
    /// The refcount; if it is the largest number, the one among the large refcounts.
    refcount: u32,
    /// The references found, and whether metadata lies in it.
    references: u32,
}

/// One host cluster.
#[derive(Clone, Copy)]
pub(super) struct Count {
    /// The refcount in the image.
    pub refcount: u64,
    /// Whether metadata lies in it.
    pub metadata: bool,
    /// The references found.
    pub references: u32,
}

/// The clusters about which there is anything to say. Pages are made as they are touched, so
/// that a hole of any size costs nothing, and up to a limit, so that neither do many of them.
pub(super) struct Counts {
    pages: BTreeMap<u64, Box<[Cell; PAGE_CLUSTERS]>>,
    /// Refcounts that no cell can hold.
    large: BTreeMap<u64, u64>,
    memory: u64,
}

impl Counts {
    pub fn new(memory: u64) -> Self {
        Self { pages: BTreeMap::new(), large: BTreeMap::new(), memory }
    }

    /// What is known about a cluster.
    pub fn get(&self, cluster: u64) -> Count {
        let (page, place) = split(cluster);
        let page = self.pages.get(&page);
        let cell = page.and_then(|page| page.get(place)).copied().unwrap_or_default();
        self.count(cluster, cell)
    }

    fn count(&self, cluster: u64, cell: Cell) -> Count {
        let large = if cell.refcount == u32::MAX { self.large.get(&cluster) } else { None };
        Count {
            refcount: large.copied().unwrap_or(u64::from(cell.refcount)),
            metadata: cell.references & METADATA != 0,
            references: cell.references & !METADATA,
        }
    }

    pub fn set_refcount(&mut self, cluster: u64, refcount: u64) -> Result<(), CheckError> {
        if refcount != 0 {
            let small = u32::try_from(refcount).unwrap_or(u32::MAX);
            self.entry(cluster)?.refcount = small;
            if small == u32::MAX {
                self.large.insert(cluster, refcount);
            }
        }
        Ok(())
    }

    pub fn add_references(
        &mut self,
        cluster: u64,
        kind: Kind,
        times: u64,
    ) -> Result<(), CheckError> {
        let cell = self.entry(cluster)?;
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        let flag = if kind == Kind::Metadata { METADATA } else { cell.references & METADATA };
        let references = (cell.references & !METADATA).saturating_add(times);
        cell.references = references.min(METADATA - 1) | flag;
        Ok(())
    }

    /// All clusters with a refcount or a reference, and some without, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Count)> {
        self.pages.iter().flat_map(|(page, counts)| {
            let first = page * PAGE_CLUSTERS as u64;
            (first..)
                .zip(counts.iter())
                .map(|(cluster, cell)| (cluster, self.count(cluster, *cell)))
        })
    }

    fn entry(&mut self, cluster: u64) -> Result<&mut Cell, CheckError> {
        let (number, place) = split(cluster);
        let large = self.large.len() as u64 * LARGE_BYTES;
        let full = (self.pages.len() as u64 + 1) * PAGE_BYTES + large > self.memory;
        let too_large = large > self.memory;
        if too_large || full && !self.pages.contains_key(&number) {
            return Err(CheckError::Limit { kind: LimitKind::Memory, limit: self.memory });
        }
        let new = || Box::new([Cell::default(); PAGE_CLUSTERS]);
        let page = self.pages.entry(number).or_insert_with(new);
        Ok(page.get_mut(place).expect("a place is a remainder of the page size"))
    }
}

fn split(cluster: u64) -> (u64, usize) {
    (cluster / PAGE_CLUSTERS as u64, (cluster % PAGE_CLUSTERS as u64) as usize)
}
