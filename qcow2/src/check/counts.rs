//! What the image says about each host cluster, and what was found.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use std::collections::BTreeMap;

use super::report::{CheckError, LimitKind};

/// Clusters of one page.
const PAGE_CLUSTERS: usize = 512;
/// Bytes of one page and of its place in the map.
const PAGE_BYTES: u64 = (PAGE_CLUSTERS * size_of::<Count>() + 64) as u64;

/// What a reference leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Data,
    Metadata,
}

/// One host cluster.
#[derive(Clone, Copy, Default)]
pub(super) struct Count {
    /// The refcount in the image.
    pub refcount: u16,
    /// Whether metadata lies in it.
    pub metadata: bool,
    /// The references found.
    pub references: u32,
}

/// The clusters about which there is anything to say. Pages are made as they are touched, so
/// that a hole of any size costs nothing, and up to a limit, so that neither do many of them.
pub(super) struct Counts {
    pages: BTreeMap<u64, Box<[Count; PAGE_CLUSTERS]>>,
    memory: u64,
}

impl Counts {
    pub fn new(memory: u64) -> Self {
        Self { pages: BTreeMap::new(), memory }
    }

    /// What is known about a cluster.
    pub fn get(&self, cluster: u64) -> Count {
        let (page, place) = split(cluster);
        let page = self.pages.get(&page);
        page.and_then(|page| page.get(place)).copied().unwrap_or_default()
    }

    pub fn set_refcount(&mut self, cluster: u64, refcount: u16) -> Result<(), CheckError> {
        if refcount != 0 {
            self.entry(cluster)?.refcount = refcount;
        }
        Ok(())
    }

    pub fn add_references(
        &mut self,
        cluster: u64,
        kind: Kind,
        times: u64,
    ) -> Result<(), CheckError> {
        let count = self.entry(cluster)?;
        let times = u32::try_from(times).unwrap_or(u32::MAX);
        count.references = count.references.saturating_add(times);
        count.metadata |= kind == Kind::Metadata;
        Ok(())
    }

    /// All clusters with a refcount or a reference, and some without, by number.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Count)> {
        self.pages.iter().flat_map(|(page, counts)| {
            let first = page * PAGE_CLUSTERS as u64;
            (first..).zip(counts.iter().copied())
        })
    }

    fn entry(&mut self, cluster: u64) -> Result<&mut Count, CheckError> {
        let (number, place) = split(cluster);
        let full = self.pages.len() as u64 >= self.memory / PAGE_BYTES;
        if full && !self.pages.contains_key(&number) {
            return Err(CheckError::Limit { kind: LimitKind::Memory, limit: self.memory });
        }
        let new = || Box::new([Count::default(); PAGE_CLUSTERS]);
        let page = self.pages.entry(number).or_insert_with(new);
        Ok(page.get_mut(place).expect("a place is a remainder of the page size"))
    }
}

fn split(cluster: u64) -> (u64, usize) {
    (cluster / PAGE_CLUSTERS as u64, (cluster % PAGE_CLUSTERS as u64) as usize)
}
