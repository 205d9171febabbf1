//! The bytes of a file: durable pages, shared between a disk and those that crashes made of it, and above them the
//! volatile versions of single sectors.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::history::{History, Landing};

/// What lands, tears and survives as one, in bytes.
pub const SECTOR: u64 = 512;

const PAGE: u64 = 4096;
const SECTORS_OF_PAGE: u64 = PAGE / SECTOR;

type Page = [u8; PAGE as usize];
type Bytes = [u8; SECTOR as usize];

/// The content of a sector; `None` is zeros, which cost nothing.
pub(super) type Value = Option<Arc<Bytes>>;

#[derive(Clone, Default)]
pub(super) struct Sectors {
    /// Durable bytes by page; an absent page is zeros.
    pages: Arc<BTreeMap<u64, Arc<Page>>>,
    volatile: BTreeMap<u64, History<Value>>,
}

fn value_of(bytes: &Bytes) -> Value {
    (*bytes != [0; SECTOR as usize]).then(|| Arc::new(*bytes))
}

fn index(within: u64) -> usize {
    usize::try_from(within).expect("an offset within a buffer")
}

/// The sectors that [start, end) touches, each with the part of it that is covered.
fn parts(start: u64, end: u64) -> impl Iterator<Item = (u64, u64, u64)> {
    let sectors = start / SECTOR..end.div_ceil(SECTOR).max(start / SECTOR);
    sectors.map(move |sector| (sector, start.max(sector * SECTOR), end.min((sector + 1) * SECTOR)))
}

impl Sectors {
    /// Durable content.
    pub(super) fn new(bytes: &[u8]) -> Self {
        let mut pages = BTreeMap::new();
        for (number, chunk) in bytes.chunks(PAGE as usize).enumerate() {
            if chunk.iter().any(|&byte| byte != 0) {
                let mut page = [0; PAGE as usize];
                page[..chunk.len()].copy_from_slice(chunk);
                pages.insert(number as u64, Arc::new(page));
            }
        }
        Sectors { pages: Arc::new(pages), volatile: BTreeMap::new() }
    }

    /// The bytes as the running system sees them.
    pub(super) fn read(&self, offset: u64, to: &mut [u8]) {
        self.read_durable(offset, to);
        let end = offset + to.len() as u64;
        for (&sector, history) in self.volatile.range(offset / SECTOR..end.div_ceil(SECTOR)) {
            let Some(value) = history.last() else { continue };
            let start = offset.max(sector * SECTOR);
            let part =
                &mut to[index(start - offset)..index(end.min((sector + 1) * SECTOR) - offset)];
            let skip = index(start - sector * SECTOR);
            match value {
                Some(bytes) => part.copy_from_slice(&bytes[skip..skip + part.len()]),
                None => part.fill(0),
            }
        }
    }

    /// The bytes as they would be if the power went and nothing volatile survived.
    pub(super) fn read_durable(&self, offset: u64, to: &mut [u8]) {
        to.fill(0);
        let end = offset + to.len() as u64;
        for (&number, page) in self.pages.range(offset / PAGE..end.div_ceil(PAGE)) {
            let start = offset.max(number * PAGE);
            let part = &mut to[index(start - offset)..index(end.min((number + 1) * PAGE) - offset)];
            let skip = index(start - number * PAGE);
            part.copy_from_slice(&page[skip..skip + part.len()]);
        }
    }

    fn live(&self, sector: u64) -> Bytes {
        let mut bytes = [0; SECTOR as usize];
        self.read(sector * SECTOR, &mut bytes);
        bytes
    }

    /// Whether the running system reads zeros in this sector.
    pub(super) fn is_zero(&self, sector: u64) -> bool {
        match self.volatile.get(&sector).and_then(History::last) {
            Some(value) => value.is_none(),
            None => self.durable(sector).is_none(),
        }
    }

    fn durable(&self, sector: u64) -> Option<&[u8]> {
        let page = self.pages.get(&(sector / SECTORS_OF_PAGE))?;
        let at = index(sector % SECTORS_OF_PAGE * SECTOR);
        let bytes = &page[at..at + SECTOR as usize];
        bytes.iter().any(|&byte| byte != 0).then_some(bytes)
    }

    /// Whether the sectors of the page have been zeros for as long as anything is remembered.
    fn is_untouched(&self, page: u64) -> bool {
        let sectors = page * SECTORS_OF_PAGE..(page + 1) * SECTORS_OF_PAGE;
        !self.pages.contains_key(&page) && self.volatile.range(sectors).next().is_none()
    }

    fn push(&mut self, landing: Landing, sector: u64, value: Value) {
        if !self.volatile.contains_key(&sector)
            && self.durable(sector) == value.as_deref().map(|v| &v[..])
        {
            return;
        }
        self.volatile.entry(sector).or_default().push(landing, value);
    }

    /// The values that a write of `bytes` gives to the sectors that it touches.
    pub(super) fn written(&self, offset: u64, bytes: &[u8]) -> Vec<(u64, Value)> {
        let end = offset + bytes.len() as u64;
        parts(offset, end)
            .map(|(sector, start, stop)| {
                let part = &bytes[index(start - offset)..index(stop - offset)];
                if let Ok(whole) = <&Bytes>::try_from(part) {
                    return (sector, value_of(whole));
                }
                let mut merged = self.live(sector);
                let skip = index(start - sector * SECTOR);
                merged[skip..skip + part.len()].copy_from_slice(part);
                (sector, value_of(&merged))
            })
            .collect()
    }

    /// The values that zeroing [start, end) gives to the sectors where that makes a difference to anybody.
    pub(super) fn zeroed(&self, start: u64, end: u64) -> Vec<(u64, Value)> {
        let mut values = Vec::new();
        let mut at = start;
        while at < end {
            let stop = ((at / PAGE + 1) * PAGE).min(end);
            if !self.is_untouched(at / PAGE) {
                let zeros = [0; PAGE as usize];
                values.extend(self.written(at, &zeros[..index(stop - at)]));
            }
            at = stop;
        }
        values
    }

    pub(super) fn land(&mut self, landing: Landing, values: Vec<(u64, Value)>) {
        for (sector, value) in values {
            self.push(landing, sector, value);
        }
    }

    /// Makes durable what had landed up to `stamp`.
    pub(super) fn settle(&mut self, stamp: u64) {
        let mut settled = Vec::new();
        self.volatile.retain(|&sector, history| {
            settled.extend(history.settle(stamp).map(|value| (sector, value)));
            !history.is_empty()
        });
        self.make_durable(settled);
    }

    /// The same for the sectors that [start, end) touches.
    pub(super) fn settle_range(&mut self, start: u64, end: u64, stamp: u64) {
        let mut settled = Vec::new();
        let range = start / SECTOR..end.div_ceil(SECTOR).max(start / SECTOR);
        for (&sector, history) in self.volatile.range_mut(range) {
            settled.extend(history.settle(stamp).map(|value| (sector, value)));
        }
        for (sector, _) in &settled {
            if self.volatile[sector].is_empty() {
                self.volatile.remove(sector);
            }
        }
        self.make_durable(settled);
    }

    pub(super) fn lose(&mut self, stamp: u64) {
        self.volatile.values_mut().for_each(|history| history.lose(stamp));
    }

    fn make_durable(&mut self, values: Vec<(u64, Value)>) {
        if values.is_empty() {
            return;
        }
        let pages = Arc::make_mut(&mut self.pages);
        for (sector, value) in values {
            let number = sector / SECTORS_OF_PAGE;
            if value.is_none() && !pages.contains_key(&number) {
                continue;
            }
            let page = pages.entry(number).or_insert_with(|| Arc::new([0; PAGE as usize]));
            let at = index(sector % SECTORS_OF_PAGE * SECTOR);
            let place = &mut Arc::make_mut(page)[at..at + SECTOR as usize];
            match value {
                Some(bytes) => place.copy_from_slice(&*bytes),
                None => place.fill(0),
            }
        }
    }

    /// The content after a crash. For each sector with more than one possible value `choose` is given the ops whose
    /// values they are, landed ones first, and answers 0 for the durable value or the place of an op plus 1.
    pub(super) fn crash(
        &self,
        in_flight: &BTreeMap<u64, Vec<(u64, Value)>>,
        choose: &mut dyn FnMut(u64, &[u64], usize) -> usize,
    ) -> Sectors {
        let mut after = Sectors { pages: self.pages.clone(), volatile: BTreeMap::new() };
        let flying = in_flight.keys().filter(|sector| !self.volatile.contains_key(sector));
        let mut sectors: Vec<u64> = self.volatile.keys().chain(flying).copied().collect();
        sectors.sort_unstable();
        let (mut ops, mut chosen) = (Vec::new(), Vec::new());
        for sector in sectors {
            let landed = self.volatile.get(&sector).map_or(&[][..], History::versions);
            let flying = in_flight.get(&sector).map_or(&[][..], Vec::as_slice);
            ops.clear();
            ops.extend(landed.iter().map(super::history::Version::op));
            ops.extend(flying.iter().map(|(op, _)| op));
            let Some(choice) = choose(sector, &ops, landed.len()).checked_sub(1) else { continue };
            let value = match landed.get(choice) {
                Some(version) => version.value.clone(),
                None => flying[choice - landed.len()].1.clone(),
            };
            chosen.push((sector, value));
        }
        after.make_durable(chosen);
        after
    }

    /// Drops everything from `size` on, for content without volatile versions.
    pub(super) fn cut(&mut self, size: u64) {
        let first = size.div_ceil(PAGE);
        let tail = index(size % PAGE);
        let beyond = self.pages.range(first..).next().is_some();
        let partial = self
            .pages
            .get(&(size / PAGE))
            .is_some_and(|page| tail != 0 && page[tail..].iter().any(|&byte| byte != 0));
        if !beyond && !partial {
            return;
        }
        let pages = Arc::make_mut(&mut self.pages);
        pages.split_off(&first);
        if let Some(page) = pages.get_mut(&(size / PAGE)).filter(|_| tail != 0) {
            Arc::make_mut(page)[tail..].fill(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn land(sectors: &mut Sectors, stamp: u64, offset: u64, bytes: &[u8]) {
        let values = sectors.written(offset, bytes);
        sectors.land(Landing { stamp, op: stamp }, values);
    }

    fn read(sectors: &Sectors, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0xee; len];
        sectors.read(offset, &mut bytes);
        bytes
    }

    #[test]
    fn parts_of_sectors_merge_with_what_is_seen() {
        let mut sectors = Sectors::new(&[1; 5000]);
        land(&mut sectors, 1, 510, &[2; 4]);
        land(&mut sectors, 2, 4998, &[3; 4]);
        assert_eq!(read(&sectors, 508, 8), [1, 1, 2, 2, 2, 2, 1, 1]);
        assert_eq!(read(&sectors, 4996, 8), [1, 1, 3, 3, 3, 3, 0, 0]);
        sectors.settle(1);
        let mut durable = [0; 8];
        sectors.read_durable(508, &mut durable);
        assert_eq!(durable, [1, 1, 2, 2, 2, 2, 1, 1]);
        sectors.read_durable(4996, &mut durable);
        assert_eq!(durable, [1, 1, 1, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn a_crash_offers_every_version_of_every_sector() {
        let mut sectors = Sectors::new(&[1; 1024]);
        land(&mut sectors, 1, 0, &[2; 1024]);
        land(&mut sectors, 2, 512, &[3; 512]);
        let flying = BTreeMap::from([(1, vec![(9, value_of(&[4; 512]))])]);
        let mut seen = std::collections::BTreeSet::new();
        for first in 0..2 {
            for second in 0..4 {
                let after = sectors.crash(&flying, &mut |sector, ops, landed| match sector {
                    0 => {
                        assert_eq!((ops, landed), (&[1][..], 1));
                        first
                    }
                    _ => {
                        assert_eq!((ops, landed), (&[1, 2, 9][..], 2));
                        second
                    }
                });
                let bytes = read(&after, 0, 1024);
                seen.insert((bytes[0], bytes[512]));
            }
        }
        assert_eq!(seen.len(), 8);
        assert_eq!(read(&sectors, 511, 2), [2, 3], "the disk itself is as it was");
    }

    #[test]
    fn a_crash_copies_only_the_pages_that_it_changes() {
        let mut sectors = Sectors::new(&[1; 16 * 4096]);
        land(&mut sectors, 1, 2 * 4096, &[2; 4096]);
        let none = sectors.crash(&BTreeMap::new(), &mut |_, _, _| 0);
        assert!(Arc::ptr_eq(&none.pages, &sectors.pages));
        let all = sectors.crash(&BTreeMap::new(), &mut |_, _, landed| landed);
        let shared = |page: &u64| Arc::ptr_eq(&all.pages[page], &sectors.pages[page]);
        assert_eq!((0..16).filter(|page| !shared(page)).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn zeros_over_zeros_are_no_choice() {
        let mut sectors = Sectors::new(&[0; 1 << 20]);
        let zeroed = sectors.zeroed(0, 1 << 30);
        assert!(zeroed.is_empty());
        land(&mut sectors, 1, 4096, &[5; 512]);
        let zeroed = sectors.zeroed(100, 1 << 20);
        sectors.land(Landing { stamp: 2, op: 2 }, zeroed);
        assert!(sectors.is_zero(8));
        assert_eq!(sectors.volatile.len(), 1);
    }

    #[test]
    fn a_cut_leaves_nothing_beyond() {
        let mut sectors = Sectors::new(&[7; 3 * 4096]);
        sectors.cut(5000);
        assert_eq!(read(&sectors, 4998, 4), [7, 7, 0, 0]);
        assert_eq!(read(&sectors, 8192, 4), [0; 4]);
        sectors.cut(4096);
        assert_eq!(read(&sectors, 4095, 2), [7, 0]);
    }
}
