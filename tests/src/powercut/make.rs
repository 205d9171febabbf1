//! Making the files of a case, and opening the image.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use blkring_engine::sim::{Rng, SimDisk, SimOptions, World};
use blkring_engine::{Access, Flags, IoMem, QueueOptions, Request, Storage, Variants};
use blkring_qcow2::{
    Backing, CreateOptions, Image, ImageOptions, Layout, OpenError, Opener, RefcountWidth,
    table_set,
};

use super::config::{Base, Config, FreeSpace, Packed, Past};
use super::model::{SECTOR, Token, packed_token};
use super::run::Packer;
use crate::snapshots;

/// The image.
pub(crate) const IMAGE: &str = "image";
const BASE: &str = "base";

/// What every sector of a backing file with bytes is filled with.
const BASE_TOKEN: Token = 0xaaaa_aaaa_aaaa_aaaa;

/// Free clusters with garbage.
const GARBAGE: u64 = 24;

/// Opens files of a simulated disk.
pub(crate) struct SimOpener {
    pub(crate) disk: SimDisk,
    pub(crate) alignment: u64,
}

impl Opener for SimOpener {
    fn open(
        &self,
        _referrer: &Path,
        name: &OsStr,
        access: Access,
    ) -> Result<Storage, blkring_engine::OpenError> {
        let options = SimOptions { access, ..SimOptions::aligned(self.alignment) };
        Ok(self.disk.storage(&name.to_string_lossy(), options))
    }
}

/// Opens the image of a world on its first queue.
pub(crate) fn open(
    world: &mut World,
    config: &Config,
    options: ImageOptions,
) -> Result<Arc<Image>, OpenError> {
    let disk = world.disk().clone();
    let sim = SimOptions {
        access: options.access,
        buffer_budget: 1,
        ..SimOptions::aligned(config.alignment)
    };
    let storage = disk.storage(IMAGE, sim).with_variants(config.variants);
    open_file(world, storage, SimOpener { disk, alignment: config.alignment }, options)
}

fn open_file(
    world: &mut World,
    storage: Storage,
    opener: SimOpener,
    options: ImageOptions,
) -> Result<Arc<Image>, OpenError> {
    let lane = world.queue(0).lane();
    world.block_on(0, async move { Image::open(&lane, storage, &opener, options).await })
}

/// What a case begins with.
pub(crate) struct Made {
    pub(crate) disk: SimDisk,
    /// What the guest sees in each sector.
    pub(crate) tokens: Vec<Token>,
    /// The same for each snapshot.
    pub(crate) snapshots: Vec<Vec<Token>>,
}

/// Makes the disk of a case. What the image has been through is drawn from a generator of its own.
pub(crate) fn make(config: &Config, rng: &mut Rng, past: &mut Rng) -> Made {
    let disk = SimDisk::new(config.kernel);
    let index = |sectors| usize::try_from(sectors).expect("the disks here are small");
    let (sectors, first) = (index(config.sectors()), index(config.first_sectors()));
    let filled = if config.base == Base::Zeros { 0 } else { index(config.backing_sectors()) };
    let format = match config.base {
        Base::None => None,
        Base::Zeros => {
            disk.create_file(BASE, &vec![0; sectors * SECTOR as usize]);
            Some("raw")
        }
        Base::Raw | Base::ShortRaw => {
            disk.create_file(BASE, &vec![0xaa; filled * SECTOR as usize]);
            Some("raw")
        }
        Base::Qcow2 => {
            make_base(&disk, config);
            Some("qcow2")
        }
    };
    let backing = format.map(|format| Backing::new(BASE, format));
    disk.create_file(IMAGE, &image_of(config, config.first_sectors(), backing));
    // What is beyond the end is zero when it is there.
    let filled = filled.min(first);
    let mut tokens: Vec<Token> =
        (0..sectors).map(|s| if s < filled { BASE_TOKEN } else { 0 }).collect();
    let snapshots = live_through(config, &disk, &mut tokens, past);
    let mut file = disk.contents(IMAGE);
    use_space(config, rng, &mut file);
    disk.create_file(IMAGE, &file);
    if config.packed == Packed::Most {
        pack(&disk, config, &mut tokens[..first]);
    }
    Made { disk, tokens, snapshots }
}

/// Has the image go through its past: what each snapshot holds.
fn live_through(
    config: &Config,
    disk: &SimDisk,
    tokens: &mut [Token],
    rng: &mut Rng,
) -> Vec<Vec<Token>> {
    let rounds = match config.past {
        Past::None => 0,
        Past::Snapshots(count) => count,
        Past::ClaimsCleared => 1,
    };
    let mut snapshots = Vec::new();
    for round in 0..rounds {
        use_before(config, disk, tokens, 0xb000_0000 + round, rng);
        let mut file = disk.contents(IMAGE);
        if config.past == Past::ClaimsCleared {
            snapshots::clear_claims(&mut file);
        } else {
            snapshots::take(&mut file, &format!("snapshot {round}"));
            snapshots.push(tokens.to_vec());
        }
        disk.create_file(IMAGE, &file);
    }
    // Half of the images are written after the last snapshot: their first table is their own.
    if !snapshots.is_empty() && rng.one_in(2) {
        use_before(config, disk, tokens, 0xbf00_0000, rng);
    }
    snapshots
}

/// Writes and frees some clusters, by the driver as it is.
fn use_before(config: &Config, disk: &SimDisk, tokens: &mut [Token], value: Token, rng: &mut Rng) {
    let mut world = World::new(rng.next_u64(), disk);
    world.add_queue(QueueOptions::default());
    let sound = Config { variants: Variants::default(), ..config.clone() };
    let image = open(&mut world, &sound, ImageOptions::new().writable());
    let image = image.expect("the image is sound");
    let handle = world.queue(0).attach(&image).expect("a queue without a ring");
    let per_cluster = config.cluster / SECTOR;
    for number in 0..12 {
        let first = rng.below(config.clusters);
        let count = (1 + rng.below(3)).min(config.clusters - first);
        let (offset, len) = (first * config.cluster, count * config.cluster);
        let (request, value) = match rng.below(8) {
            _ if number == 0 => (write_of(0, config.cluster, value), value),
            0 => (Request::write_zeroes(offset, len), 0),
            1 => (Request::write_zeroes(offset, len).with(Flags::MAY_UNMAP), 0),
            _ => (write_of(offset, len, value), value),
        };
        let sectors = if number == 0 {
            0..per_cluster
        } else {
            first * per_cluster..(first + count) * per_cluster
        };
        let sectors = usize::try_from(sectors.start).expect("small")
            ..usize::try_from(sectors.end).expect("small");
        tokens[sectors].fill(value);
        let handle = handle.clone();
        let done = world.block_on(0, async move { handle.request(request).await });
        done.expect("nothing fails here");
    }
    let closed = world.block_on(0, async move { image.close().await });
    closed.expect("nothing fails here");
}

fn write_of(offset: u64, len: u64, value: Token) -> Request {
    let words = usize::try_from(len / 8).expect("small");
    let bytes: Vec<u8> = std::iter::repeat_n(value.to_le_bytes(), words).flatten().collect();
    Request::write(offset, IoMem::from(bytes))
}

/// Two of three clusters of a new image are written in compressed form, by the driver.
fn pack(disk: &SimDisk, config: &Config, tokens: &mut [Token]) {
    let mut world = World::new(1, disk);
    world.add_queue(QueueOptions::default());
    let image = open(&mut world, config, ImageOptions::new().writable());
    let image = image.expect("a new image can be opened");
    let _attached = world.queue(0).attach(&image).expect("a queue without a ring");
    let cluster = usize::try_from(config.cluster).expect("small");
    let mut packer = Packer::new(config);
    let per_cluster = cluster / SECTOR as usize;
    for (number, sectors) in tokens.chunks_mut(per_cluster).enumerate() {
        if number % 3 == 2 || sectors.len() < per_cluster {
            continue;
        }
        for (sector, one) in (number * per_cluster..).zip(&mut *sectors) {
            *one = packed_token(0, sector);
        }
        let packed = packer.pack(sectors.iter().copied());
        let (image, offset) = (image.clone(), (number * cluster) as u64);
        let written =
            world.block_on(0, async move { image.write_compressed(offset, packed).await });
        written.expect("nothing fails here");
    }
    world.block_on(0, async move { image.close().await }).expect("nothing fails here");
}

fn image_of(config: &Config, sectors: u64, backing: Option<Backing>) -> Vec<u8> {
    let options = CreateOptions::new(sectors * SECTOR)
        .version(config.version)
        .refcount_bits(config.refcount_bits)
        .cluster_size(config.cluster)
        .backing(backing);
    let layout = Layout::plan(&options).expect("an image of this size can be made");
    let mut file = vec![0; usize::try_from(layout.file_length).expect("small")];
    for write in &layout.writes {
        let at = usize::try_from(write.offset.get()).expect("small");
        file[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
    }
    file
}

/// A qcow2 image full of bytes, written by the driver.
fn make_base(disk: &SimDisk, config: &Config) {
    disk.create_file(BASE, &image_of(config, config.sectors(), None));
    let mut world = World::new(1, disk);
    world.add_queue(QueueOptions::default());
    let opener = SimOpener { disk: disk.clone(), alignment: 1 };
    let storage = disk.storage(BASE, SimOptions::default());
    let options = ImageOptions::new().writable();
    let image = open_file(&mut world, storage, opener, options).expect("a new image can be opened");
    let handle = world.queue(0).attach(&image).expect("a queue without a ring");
    let bytes = vec![0xaa; usize::try_from(config.size()).expect("small")];
    let written = world.block_on(0, async move {
        handle.write(0, IoMem::from(bytes), Flags::empty()).await?;
        image.close().await
    });
    written.expect("nothing fails here");
}

/// Fills the free space behind a new image.
fn use_space(config: &Config, rng: &mut Rng, file: &mut Vec<u8>) {
    let cluster = usize::try_from(config.cluster).expect("small");
    if config.free_space == FreeSpace::None {
        return;
    }
    let used = file.len().div_ceil(cluster);
    let per_block = cluster * 8 / config.refcount_bits as usize;
    let counted = match config.free_space {
        FreeSpace::None | FreeSpace::Garbage => used,
        FreeSpace::NearlyFull => per_block - 6,
        FreeSpace::TableNearlyFull => {
            let blocks = cluster / 8;
            count_blocks(file, cluster, used, blocks);
            per_block * blocks - 6
        }
    };
    let garbage = usize::try_from(GARBAGE).expect("small");
    file.resize((counted + garbage) * cluster, 0);
    if config.past == Past::None {
        count_clusters(file, config, counted);
    }
    for sector in file[counted * cluster..].chunks_mut(SECTOR as usize) {
        let number = rng.next_u64() | 1 << 63;
        sector.as_chunks_mut::<8>().0.iter_mut().for_each(|word| *word = number.to_be_bytes());
    }
}

/// The refcount table of a new image: the first cluster behind the header.
const TABLE: usize = 1;

/// Makes refcount blocks `1..blocks`, behind what is in use.
fn count_blocks(file: &mut Vec<u8>, cluster: usize, used: usize, blocks: usize) {
    file.resize((used + blocks - 1) * cluster, 0);
    for index in 1..blocks {
        let place = (used + index - 1) * cluster;
        let table = &mut file[TABLE * cluster..][..cluster];
        table_set(table, index, place as u64).expect("the table has room");
    }
}

/// Sets the counts of all clusters below `counted` to one. What nothing names is leaked, which is no damage.
fn count_clusters(file: &mut [u8], config: &Config, counted: usize) {
    let cluster = usize::try_from(config.cluster).expect("small");
    let width = RefcountWidth::of_bits(config.refcount_bits).expect("a width of the format");
    let per_block = cluster * 8 / width.bits() as usize;
    for first in (0..counted).step_by(per_block) {
        let entry = TABLE * cluster + first / per_block * 8;
        let entry = u64::from_be_bytes(file[entry..entry + 8].try_into().expect("eight bytes"));
        let place = usize::try_from(entry).expect("small");
        let block = &mut file[place..place + cluster];
        for index in 0..per_block.min(counted - first) {
            width.set(block, index, 1).expect("within the block");
        }
    }
}
