//! How an image is made and opened, drawn from the seed.

use blkring_engine::Variants;
use blkring_engine::sim::{Kernel, Rng};
use blkring_qcow2::{AllocPolicy, Freed, ImageOptions, Version};

use super::model::SECTOR;

/// What lies under the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// Nothing.
    None,
    /// A raw file of zeros.
    Zeros,
    /// A raw file of bytes that are not zero, as long as the disk.
    Raw,
    /// One that ends within a cluster of the image.
    ShortRaw,
    /// A qcow2 image of bytes that are not zero.
    Qcow2,
}

/// What the clusters of the file that nothing uses hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FreeSpace {
    /// There are none: the file ends with its tables.
    None,
    /// Random bytes, counted as free.
    Garbage,
    /// Random bytes, and the refcount block is almost full: the next one is made soon.
    NearlyFull,
    /// The refcount table is almost full as well.
    TableNearlyFull,
}

/// Whether the virtual disk grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Growth {
    /// It is as long as it gets from the start.
    None,
    /// It begins with so many sectors, and grows in steps.
    From(u64),
}

/// Which clusters are compressed. They share host clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packed {
    /// None is.
    None,
    /// Two of three are from the beginning, and the guest writes more of them.
    Most,
    /// Those that the guest writes so.
    Later,
}

/// Whether operations of the disk fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errors {
    /// None does.
    None,
    /// Some writes, allocations and reads do.
    Some,
    /// And a sync.
    Sync,
}

/// What was in the image before its first life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Past {
    /// It is new.
    None,
    /// So many snapshots, with writes before each.
    Snapshots(u64),
    /// Writes, and no entry claims to have its cluster alone.
    ClaimsCleared,
}

/// How an image is made, opened and used.
#[derive(Debug, Clone)]
pub struct Config {
    /// Bytes of a cluster.
    pub cluster: u64,
    /// Clusters of the virtual disk, as long as it gets.
    pub clusters: u64,
    /// How it gets there.
    pub growth: Growth,
    /// The version of the format.
    pub version: Version,
    /// Bits of a refcount.
    pub refcount_bits: u32,
    /// What is below.
    pub base: Base,
    /// Which clusters are compressed.
    pub packed: Packed,
    /// What it has been through.
    pub past: Past,
    /// What the free space holds.
    pub free_space: FreeSpace,
    /// Alignment of the storage in bytes.
    pub alignment: u64,
    /// Which kernel is below.
    pub kernel: Kernel,
    /// Failing operations.
    pub errors: Errors,
    /// How clusters are zeroed.
    pub policy: AllocPolicy,
    /// Clusters reserved at most.
    pub reserve: u64,
    /// Unlinked clusters held back at most.
    pub held_back: u64,
    /// Operations of shared work in flight at most.
    pub depth: usize,
    /// Operations of each queue in flight at most.
    pub queue_depth: u32,
    /// Requests of each queue in flight at most.
    pub requests: usize,
    /// Queues.
    pub queues: usize,
    /// Requests of each life.
    pub length: u64,
    /// Lives.
    pub lives: u64,
    /// What becomes of the space of freed clusters.
    pub freed: Freed,
    /// Broken rules.
    pub variants: Variants,
}

impl Config {
    /// The configuration of a seed.
    pub fn draw(rng: &mut Rng) -> Self {
        let cluster = if rng.one_in(4) { 4096 } else { 512 };
        // An L2 table of a small cluster maps 64 clusters: two or three tables.
        let clusters = if cluster == 512 { 70 + rng.below(90) } else { 16 + rng.below(8) };
        let pick = |rng: &mut Rng, choices: &[u64]| choices[rng.index(choices.len())];
        let mut config = Config {
            cluster,
            clusters,
            growth: Growth::None,
            version: Version::V3,
            refcount_bits: 16,
            packed: Packed::None,
            base: *one_of(
                rng,
                &[Base::None, Base::None, Base::Zeros, Base::Raw, Base::ShortRaw, Base::Qcow2],
            ),
            past: Past::None,
            free_space: *one_of(
                rng,
                &[FreeSpace::None, FreeSpace::None, FreeSpace::Garbage, FreeSpace::Garbage],
            ),
            alignment: pick(rng, &[1, 512, 512, 4096]),
            kernel: if rng.one_in(3) { Kernel::OldXfs } else { Kernel::Current },
            errors: Errors::None,
            policy: if rng.one_in(3) { AllocPolicy::PerAllocation } else { AllocPolicy::Ahead },
            reserve: pick(rng, &[1, 1, 2, 4, 16]),
            held_back: pick(rng, &[1, 3, 1000, 1000]),
            depth: usize::try_from(pick(rng, &[1, 2, 8, 8])).expect("small"),
            queue_depth: if rng.one_in(4) { 1 } else { 8 },
            requests: usize::try_from(pick(rng, &[1, 3, 6])).expect("small"),
            queues: 1 + rng.index(2),
            length: 20 + rng.below(40),
            lives: 1 + rng.below(3),
            freed: Freed::Kept,
            variants: Variants::default(),
        };
        if rng.one_in(5) {
            config.errors = if rng.one_in(5) { Errors::Sync } else { Errors::Some };
        }
        if cluster == 512 && rng.one_in(6) {
            config.free_space =
                if rng.one_in(4) { FreeSpace::TableNearlyFull } else { FreeSpace::NearlyFull };
        }
        config
    }

    /// Draws version, refcount width and growth, by numbers of their own.
    pub fn draw_format(&mut self, rng: &mut Rng) {
        if rng.one_in(6) {
            self.version = Version::V2;
        } else if rng.one_in(3) {
            self.refcount_bits = *one_of(rng, &[1, 1, 2, 8, 64, 64]);
        }
        if rng.one_in(4) {
            self.growth = Growth::From(1 + rng.below(self.sectors() - 1));
        }
    }

    /// What does not go together is left out.
    pub fn settle(&mut self) {
        if let Growth::From(sectors) = &mut self.growth {
            *sectors = (*sectors).min(self.cluster * self.clusters / SECTOR);
        }
        let full = matches!(self.free_space, FreeSpace::NearlyFull | FreeSpace::TableNearlyFull);
        if full || self.packed == Packed::Most {
            // Counts of full blocks are made from nothing, and what takes snapshots here knows no compressed clusters.
            self.past = Past::None;
        }
        if self.past != Past::None {
            // What takes snapshots here knows no others.
            (self.version, self.refcount_bits) = (Version::V3, 16);
            self.growth = Growth::None;
        }
        if self.version == Version::V2 {
            self.refcount_bits = 16;
        }
        if self.refcount_bits < 16
            && matches!(self.free_space, FreeSpace::NearlyFull | FreeSpace::TableNearlyFull)
        {
            // The file would be large.
            self.free_space = FreeSpace::Garbage;
        }
    }

    /// Draws what the image has been through, from a generator of its own.
    pub fn draw_past(&mut self, rng: &mut Rng) {
        let room = matches!(self.free_space, FreeSpace::None | FreeSpace::Garbage);
        if room && rng.one_in(3) {
            self.past = Past::Snapshots(1 + rng.below(3));
        }
    }

    /// Draws what becomes of freed space, from a generator of its own.
    pub fn draw_freed(&mut self, rng: &mut Rng) {
        if rng.one_in(3) {
            self.freed = Freed::GivenBack;
        }
    }

    /// L2 tables of the image.
    pub fn tables(&self) -> u64 {
        self.clusters.div_ceil(self.cluster / 8)
    }

    /// Bytes of the virtual disk, as long as it gets.
    pub fn size(&self) -> u64 {
        self.cluster * self.clusters
    }

    /// Sectors of it.
    pub fn sectors(&self) -> u64 {
        self.size() / SECTOR
    }

    /// Sectors that it begins with.
    pub fn first_sectors(&self) -> u64 {
        match self.growth {
            Growth::None => self.sectors(),
            Growth::From(sectors) => sectors,
        }
    }

    /// Sectors that the backing file has.
    pub fn backing_sectors(&self) -> u64 {
        match self.base {
            Base::None => 0,
            Base::Zeros | Base::Raw | Base::Qcow2 => self.sectors(),
            Base::ShortRaw => self.sectors() / 2 + 1,
        }
    }

    /// The options that the image is opened with for writing.
    pub fn options(&self) -> ImageOptions {
        ImageOptions::new()
            .writable()
            .policy(self.policy)
            .cache_bytes(0)
            .buffer_bytes(1)
            .depth(self.depth)
            .reserve_bytes(self.reserve * self.cluster)
            .held_back_bytes(self.held_back * self.cluster)
            .freed(self.freed)
            .variants(self.variants)
    }
}

fn one_of<'a, T>(rng: &mut Rng, choices: &'a [T]) -> &'a T {
    &choices[rng.index(choices.len())]
}
