//! What the guest does.

use std::ops::Range;

use blkring_engine::sim::Rng;
use blkring_engine::{Flags, IoMem, Request};
use blkring_qcow2::Version;

use super::config::{Config, Growth};
use super::model::{SECTOR, Token, fill, token};

/// A request, and what it does to the sectors of the guest.
pub(crate) struct Step {
    pub(crate) request: Request,
    /// For a read: where its bytes come.
    pub(crate) mem: Option<IoMem>,
    pub(crate) effect: Effect,
    pub(crate) text: String,
}

/// What a request changes.
#[derive(Debug, Clone)]
pub(crate) enum Effect {
    /// Nothing.
    Read(Range<usize>),
    /// These sectors.
    Write(Range<usize>),
    /// These sectors become zeros.
    Zero(Range<usize>),
    /// What was answered is made durable.
    Flush,
}

/// What a guest knows of its disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Guest<'a> {
    pub(crate) config: &'a Config,
    /// Sectors that it has now.
    pub(crate) sectors: u64,
}

impl Guest<'_> {
    fn clusters(&self) -> u64 {
        (self.sectors * SECTOR).div_ceil(self.config.cluster)
    }

    fn per_cluster(&self) -> u64 {
        self.config.cluster / SECTOR
    }

    /// Sectors below this are left as they are by a discard: only what covers them hides the backing file.
    fn kept(&self) -> u64 {
        match self.config.version {
            Version::V2 => self.config.backing_sectors().next_multiple_of(self.per_cluster()),
            Version::V3 => 0,
        }
    }
}

/// Draws the request with this number.
pub(crate) fn draw(rng: &mut Rng, config: Guest<'_>, number: u64) -> Step {
    match rng.below(20) {
        0..=8 => write(rng, config, number, Flags::empty()),
        9 | 10 => write(rng, config, number, Flags::FUA),
        11 => zero(rng, config, Flags::empty()),
        12 => zero(rng, config, Flags::MAY_UNMAP),
        13 if rng.one_in(2) => zero(rng, config, Flags::MAY_UNMAP | Flags::FUA),
        13..=15 => discard(rng, config),
        16 => read(rng, config),
        _ => flush(),
    }
}

/// Half of everything happens in a few clusters, so that things meet.
fn cluster(rng: &mut Rng, config: Guest<'_>) -> u64 {
    let clusters = config.clusters();
    if rng.one_in(2) {
        let hot = [1, 2, clusters - 1];
        hot[rng.index(hot.len())].min(clusters - 1)
    } else {
        rng.below(clusters)
    }
}

/// A range of sectors: within a cluster, a whole one, or over several.
fn range(rng: &mut Rng, config: Guest<'_>) -> Range<usize> {
    let (per_cluster, all) = (config.per_cluster(), config.sectors);
    let start = cluster(rng, config) * per_cluster;
    let (from, len) = match rng.below(5) {
        0 | 1 => (start + rng.below(per_cluster), 1),
        2 => (start, per_cluster),
        3 => (start + rng.below(per_cluster), 1 + rng.below(3 * per_cluster)),
        _ => (start, per_cluster * (1 + rng.below(3))),
    };
    index(from.min(all - 1))..index((from + len).min(all))
}

fn index(sector: u64) -> usize {
    usize::try_from(sector).expect("the disks here are small")
}

fn bytes(sectors: &Range<usize>) -> (u64, u64) {
    (sectors.start as u64 * SECTOR, sectors.len() as u64 * SECTOR)
}

pub(crate) fn write(rng: &mut Rng, config: Guest<'_>, number: u64, flags: Flags) -> Step {
    let sectors = range(rng, config);
    let text = format!("write {sectors:?} {flags:?}");
    let content: Vec<u8> = sectors.clone().flat_map(|s| fill(token(number, s))).collect();
    let request = Request::write(bytes(&sectors).0, memory(rng, &content)).with(flags);
    Step { request, mem: None, effect: Effect::Write(sectors), text }
}

/// Memory with this content, aligned or not.
fn memory(rng: &mut Rng, content: &[u8]) -> IoMem {
    if rng.one_in(2) {
        return IoMem::aligned(content);
    }
    // Not by chance: where an allocator puts things is no part of a seed.
    const OFF: usize = 8;
    IoMem::aligned(&[&[0; OFF], content].concat()).slice(OFF..OFF + content.len())
}

pub(crate) fn zero(rng: &mut Rng, config: Guest<'_>, flags: Flags) -> Step {
    let sectors = range(rng, config);
    let text = format!("zero {sectors:?} {flags:?}");
    let (offset, len) = bytes(&sectors);
    let request = Request::write_zeroes(offset, len).with(flags);
    Step { request, mem: None, effect: Effect::Zero(sectors), text }
}

pub(crate) fn discard(rng: &mut Rng, config: Guest<'_>) -> Step {
    let per_cluster = index(config.per_cluster());
    let all = 0..index(config.sectors);
    let mut sectors = if rng.one_in(8) { all.clone() } else { range(rng, config) };
    if sectors.end == all.end && config.config.growth != Growth::None {
        // Whether a part of a cluster at the end is discarded depends on when the disk grows.
        sectors.end = (all.end / per_cluster * per_cluster).max(sectors.start);
    }
    let text = format!("discard {sectors:?}");
    let (offset, len) = bytes(&sectors);
    // Parts of clusters stay as they are.
    let start = sectors.start.next_multiple_of(per_cluster).max(index(config.kept()));
    let end = sectors.end / per_cluster * per_cluster;
    let effect = Effect::Zero(start..end.max(start));
    Step { request: Request::discard(offset, len), mem: None, effect, text }
}

pub(crate) fn read(rng: &mut Rng, config: Guest<'_>) -> Step {
    let sectors = range(rng, config);
    let text = format!("read {sectors:?}");
    let (offset, len) = bytes(&sectors);
    let mem = memory(rng, &vec![0xee; index(len)]);
    let request = Request::read(offset, mem.clone());
    Step { request, mem: Some(mem), effect: Effect::Read(sectors), text }
}

pub(crate) fn flush() -> Step {
    let text = "flush".to_owned();
    Step { request: Request::flush(), mem: None, effect: Effect::Flush, text }
}

impl Effect {
    /// Whether it changes anything or makes it durable.
    pub(crate) fn needs_disk(&self) -> bool {
        match self {
            Effect::Write(sectors) | Effect::Zero(sectors) => !sectors.is_empty(),
            Effect::Flush => true,
            Effect::Read(_) => false,
        }
    }

    /// The sectors that it changes, and to what.
    pub(crate) fn changes(&self, number: u64) -> Option<(Range<usize>, impl Fn(usize) -> Token)> {
        let (sectors, writes) = match self {
            Effect::Write(sectors) => (sectors, true),
            Effect::Zero(sectors) => (sectors, false),
            Effect::Read(_) | Effect::Flush => return None,
        };
        let value = move |sector| if writes { token(number, sector) } else { 0 };
        Some((sectors.clone(), value))
    }
}
