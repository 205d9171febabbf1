//! Which states a power cut leaves: those that a real disk is likely to leave, and those that hurt.

use blkring_engine::sim::{Cell, Choice, Rng, SimDisk};
use blkring_qcow2::{Access, Geometry, Header, HostOffset, L1Entry, RefTableEntry, table_get};

use super::make::IMAGE;

/// What a sector of the image holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Header,
    RefTable,
    RefBlock,
    L1,
    L2,
    Data,
}

const PARTS: usize = 6;

/// What becomes of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// What was durable.
    Old,
    /// What the running system saw.
    Seen,
    /// The newest that may be there, in flight or not.
    Newest,
    /// Each sector for itself.
    Torn,
}

/// The disk after a power cut, and in words how it was chosen.
pub(super) fn crash(disk: &SimDisk, rng: &mut Rng) -> (SimDisk, String) {
    match rng.below(12) {
        0 => (disk.crash_keeping_nothing(), "nothing volatile survived".to_owned()),
        1 => (disk.crash_keeping_all(), "everything that had landed survived".to_owned()),
        2 => {
            let after = disk.crash(&mut |options| options - 1);
            (after, "everything survived".to_owned())
        }
        3..=5 => (disk.crash_random(rng), "a random part survived".to_owned()),
        6 | 7 => one_op(disk, rng),
        _ => by_part(disk, rng),
    }
}

/// One op alone survives, or is lost alone.
fn one_op(disk: &SimDisk, rng: &mut Rng) -> (SimDisk, String) {
    let mut ops = Vec::new();
    disk.crash_by(&mut |choice| {
        ops.extend_from_slice(choice.ops);
        0
    });
    ops.sort_unstable();
    ops.dedup();
    if ops.is_empty() {
        return (disk.crash_keeping_nothing(), "there was nothing volatile".to_owned());
    }
    let chosen = ops[rng.index(ops.len())];
    if rng.one_in(2) {
        let after = disk.crash_by(&mut |choice| choice.last_of(|op| op == chosen));
        (after, format!("only #{chosen} survived"))
    } else {
        let after = disk.crash_by(&mut |choice| choice.last_of(|op| op != chosen));
        (after, format!("only #{chosen} was lost"))
    }
}

/// Each kind of structure has its own fate.
fn by_part(disk: &SimDisk, rng: &mut Rng) -> (SimDisk, String) {
    let parts = Parts::of(&disk.contents(IMAGE));
    let mut draw = || match rng.below(7) {
        0..=2 => Fate::Old,
        3 => Fate::Seen,
        4 | 5 => Fate::Newest,
        _ => Fate::Torn,
    };
    let fates: [Fate; PARTS] = std::array::from_fn(|_| draw());
    let size = draw();
    let mut choose = |choice: &Choice<'_>| {
        let fate = match choice.cell {
            Cell::Size => size,
            Cell::Sector(at) => fates[parts.part(at) as usize],
        };
        match fate {
            Fate::Old => 0,
            Fate::Seen => choice.live(),
            Fate::Newest => choice.options() - 1,
            Fate::Torn => rng.index(choice.options()),
        }
    };
    let after = disk.crash_by(&mut choose);
    let [header, reftable, refblock, l1, l2, data] = fates;
    let text = format!(
        "size {size:?}, header {header:?}, refcount table {reftable:?}, refcounts {refblock:?}, L1 {l1:?}, \
         L2 {l2:?}, data {data:?}"
    );
    (after, text)
}

/// Where the structures of the image are, as the running system sees it.
struct Parts {
    cluster: u64,
    /// By cluster; those beyond are data.
    parts: Vec<Part>,
}

impl Parts {
    fn of(file: &[u8]) -> Self {
        let Ok(header) = Header::parse(file, Access::Check) else {
            return Parts { cluster: 512, parts: Vec::new() };
        };
        let geometry = header.geometry();
        let cluster = geometry.cluster_size();
        let mut parts = Parts { cluster, parts: Vec::new() };
        parts.set(0, cluster, Part::Header);
        let table = header.reftable();
        let table_bytes = table.bytes(geometry);
        parts.set(table.offset.get(), table_bytes, Part::RefTable);
        for raw in entries(file, table.offset, table_bytes) {
            if let Ok(RefTableEntry::Block(block)) = RefTableEntry::decode(raw, geometry) {
                parts.set(geometry.host_offset(block).get(), cluster, Part::RefBlock);
            }
        }
        let l1 = header.l1();
        parts.set(l1.offset.get(), l1.bytes(), Part::L1);
        parts.tables(file, geometry, (l1.offset, l1.bytes()));
        parts
    }

    fn tables(&mut self, file: &[u8], geometry: &Geometry, (offset, bytes): (HostOffset, u64)) {
        for raw in entries(file, offset, bytes) {
            if let Ok(L1Entry::Table(table, _)) = L1Entry::decode(raw, geometry) {
                let at = geometry.host_offset(table).get();
                self.set(at, self.cluster, Part::L2);
            }
        }
    }

    fn set(&mut self, offset: u64, bytes: u64, part: Part) {
        let range = offset / self.cluster..(offset + bytes).div_ceil(self.cluster);
        for cluster in range.filter_map(|number| usize::try_from(number).ok()) {
            if cluster >= self.parts.len() {
                self.parts.resize(cluster + 1, Part::Data);
            }
            self.parts[cluster] = part;
        }
    }

    fn part(&self, at: u64) -> Part {
        let cluster = usize::try_from(at / self.cluster).ok();
        cluster.and_then(|cluster| self.parts.get(cluster)).copied().unwrap_or(Part::Data)
    }
}

fn entries(file: &[u8], offset: HostOffset, bytes: u64) -> impl Iterator<Item = u64> {
    let start = usize::try_from(offset.get()).unwrap_or(usize::MAX).min(file.len());
    let end = start.saturating_add(usize::try_from(bytes).unwrap_or(0)).min(file.len());
    let table = &file[start..end];
    (0..table.len() / 8).filter_map(|index| table_get(table, index))
}
