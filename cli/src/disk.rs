//! An opened image of any format.

use std::path::Path;
use std::sync::Arc;

use blkring_engine::tracker::Statistics;
use blkring_engine::{Access, Disk, LaneCounts, OpenOptions, Queue, RawDisk, Storage};
use blkring_qcow2::{AllocPolicy, FileOpener, Image, ImageOptions};

use crate::failure::Failure;
use crate::info::Qcow2Info;
use crate::options::{CacheMode, Format};
use crate::probe;

/// How to open an image.
#[derive(Debug, Clone, Copy)]
pub struct Opening {
    /// The format; probed if it was not given.
    pub format: Option<Format>,
    /// Whether it may be written.
    pub access: Access,
    /// How the host caches it.
    pub cache: CacheMode,
    /// How new clusters get their zeros.
    pub policy: AllocPolicy,
}

/// An opened image.
pub enum AnyDisk {
    /// A raw one.
    Raw(Arc<RawDisk>),
    /// A qcow2 one.
    Qcow2(Arc<Image>),
}

impl AnyDisk {
    /// Opens the image at `path`, reading by way of `queue`.
    pub fn open(queue: &mut Queue, path: &Path, opening: Opening) -> Result<Self, Failure> {
        let format = match opening.format {
            Some(format) => format,
            None => probed(path, opening.access)?,
        };
        let cache = opening.cache.cache();
        let options = OpenOptions::new().access(opening.access).cache(cache);
        let storage = Storage::open(path, &options).map_err(|error| Failure::open(path, &error))?;
        if format == Format::Raw {
            return Ok(AnyDisk::Raw(RawDisk::new(storage)));
        }
        let options = ImageOptions::new().policy(opening.policy);
        let options = match opening.access {
            Access::ReadOnly => options,
            Access::ReadWrite => options.writable(),
        };
        let lane = queue.lane();
        let opener = FileOpener { cache };
        let image = queue.block_on(Image::open(&lane, storage, &opener, options))?;
        image.map(AnyDisk::Qcow2).map_err(|error| Failure::open_image(path, &error))
    }

    /// Makes it reachable from `queue`.
    pub fn attach(&self, queue: &mut Queue) -> std::io::Result<Disk> {
        match self {
            AnyDisk::Raw(disk) => queue.attach(disk),
            AnyDisk::Qcow2(image) => queue.attach(image),
        }
    }

    /// Closes it: what a qcow2 image had reserved goes back. `queue` is attached to it.
    pub fn close(&self, queue: &mut Queue) -> Result<(), Failure> {
        match self {
            AnyDisk::Raw(_) => Ok(()),
            AnyDisk::Qcow2(image) => queue.block_on(image.close())?.map_err(Failure::Close),
        }
    }

    /// What was issued for it and is in no queue's counts.
    pub fn shared_counts(&self) -> LaneCounts {
        match self {
            AnyDisk::Raw(_) => LaneCounts::default(),
            AnyDisk::Qcow2(image) => image.service_counts(),
        }
    }

    /// What its trackers have seen: of guest ranges, if there is one, and of file ranges.
    pub fn trackers(&self) -> (Option<Statistics>, Statistics) {
        match self {
            AnyDisk::Raw(disk) => (None, disk.storage().statistics()),
            AnyDisk::Qcow2(image) => {
                let statistics = image.statistics();
                (Some(statistics.image_tracker), statistics.storage_tracker)
            }
        }
    }

    /// The lines that `info` of `io` prints.
    pub fn summary(&self) -> String {
        match self {
            AnyDisk::Raw(_) => {
                "format name: raw\ncluster size: 0 bytes\nvm state offset: 0 bytes\n".to_owned()
            }
            AnyDisk::Qcow2(image) => {
                let human = |bytes: u64| crate::io::human(bytes as f64);
                let info = image.info();
                // The first offset beyond what the L1 table's entries cover.
                let covered = info.cluster_size / 8 * info.cluster_size;
                let state = info.virtual_size.div_ceil(covered).saturating_mul(covered);
                let header = probe::header(
                    Path::new(&**image.storage().path()),
                    blkring_qcow2::Access::Read,
                );
                format!(
                    "format name: qcow2\ncluster size: {}\nvm state offset: {}\n{}",
                    human(info.cluster_size),
                    human(state),
                    header.map(|header| Qcow2Info::of(&header).human()).unwrap_or_default()
                )
            }
        }
    }
}

/// A file that does not say its format may be raw, and then whoever wrote its first bytes, a guest for instance,
/// decides what it is taken for: it is only opened for reading, and with a warning.
fn probed(path: &Path, access: Access) -> Result<Format, Failure> {
    let format = probe::format(path)?;
    match (format, access) {
        (Format::Qcow2, _) => (),
        (Format::Raw, Access::ReadWrite) => {
            let reason = "its format was probed and may be raw: give -f raw to write to it";
            return Err(Failure::cannot_open(path, reason));
        }
        (Format::Raw, Access::ReadOnly) => eprintln!(
            "WARNING: Image format was not specified for '{}' and probing guessed raw.",
            path.display()
        ),
    }
    Ok(format)
}
