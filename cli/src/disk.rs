//! An opened image of any format.

use std::sync::Arc;

use blkring_engine::tracker::Statistics;
use blkring_engine::{
    Access, Claim, Disk, LaneCounts, LockMode, OpenError, OpenOptions, Queue, RawDisk, Storage,
};
use blkring_qcow2::{AllocPolicy, FileOpener, Image, ImageOptions, OpenError as ImageError};

use crate::chain::Member;
use crate::failure::Failure;
use crate::image_name::ImageName;
use crate::info::Qcow2Info;
use crate::options::{CacheMode, Format, Share};
use crate::probe;
use crate::probed::ProbedRaw;
use crate::reason::Reason;
use crate::snapshots;

mod below;

use below::Files;

/// How to open an image.
#[derive(Debug, Clone, Copy)]
pub struct Opening {
    /// Whether it may be written.
    pub access: Access,
    /// How the host caches it.
    pub cache: CacheMode,
    /// How new clusters get their zeros.
    pub policy: AllocPolicy,
    /// Whether others may have it open.
    pub share: Share,
    /// Whether the files are locked.
    pub locking: LockMode,
    /// What is claimed of a raw image.
    pub raw: RawClaim,
    /// Whether faults between the image and whoever uses it can be had.
    pub on_top: OnTop,
}

/// What becomes of a wish for faults in what is asked of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnTop {
    /// There are none to be had.
    Refused,
    /// Whoever opens the image sees to them.
    Made,
}

/// What is claimed of a raw image, whose bytes say nothing of each other: as the programs of QEMU do for the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawClaim {
    /// Nobody else's business is in the way of one who reads or writes.
    Shared,
    /// What is read stays as it is.
    Kept,
    /// The size changes.
    Resized,
}

impl Opening {
    /// For reading, through the page cache.
    pub fn read_only() -> Self {
        Opening {
            access: Access::ReadOnly,
            cache: CacheMode::Writeback,
            policy: AllocPolicy::default(),
            share: Share::Locked,
            locking: LockMode::Auto,
            raw: RawClaim::Shared,
            on_top: OnTop::Refused,
        }
    }

    /// The same with what the image's own options say.
    fn wished(mut self, image: &ImageName) -> Result<Self, Failure> {
        let wishes = image.wishes();
        if wishes.read_only == Some(true) && self.access == Access::ReadWrite {
            return Err(Failure::open(image, Reason::words("Block node is read-only")));
        }
        self.share = image.share(self.share);
        if self.share == Share::Forced && self.access == Access::ReadWrite {
            let text = "force-share=on can only be used with read-only images";
            return Err(Failure::open(image, Reason::words(text)));
        }
        self.locking = wishes.locking.unwrap_or(self.locking);
        self.cache = self.cache.wished(wishes.direct, wishes.no_flush);
        Ok(self)
    }

    fn writes(&self) -> bool {
        self.access == Access::ReadWrite
    }

    fn file(&self) -> OpenOptions {
        let options = OpenOptions::new().access(self.access).cache(self.cache.cache());
        let options = options.flushing(self.cache.flushing()).lock(self.locking);
        match self.share {
            Share::Locked => options,
            Share::Forced => options.force_share(),
        }
    }

    /// The file of an image of this format.
    fn top(&self, format: Format) -> OpenOptions {
        let exclusive = Claim::exclusive(self.access);
        match (format, self.raw) {
            (Format::Qcow2, _) => self.file(),
            (Format::Raw, RawClaim::Kept) if self.share == Share::Locked => {
                self.file().claim(exclusive)
            }
            (Format::Raw, RawClaim::Resized) => self.file().claim(exclusive.sharing()),
            (Format::Raw, _) => self.file().claim(Claim::shared(self.access)),
        }
    }
}

/// An opened image. Clones are cheap.
#[derive(Clone)]
pub enum AnyDisk {
    /// A raw one.
    Raw(Arc<RawDisk>),
    /// A raw one whose format nobody gave, open for writing.
    Probed(Arc<ProbedRaw>),
    /// A qcow2 one.
    Qcow2(Arc<Image>),
}

impl AnyDisk {
    /// Opens an image, reading by way of `queue`. If nobody gave its format it is probed; a raw image is then guarded
    /// against writes that would change the answer.
    pub fn open(queue: &mut Queue, image: &ImageName, opening: Opening) -> Result<Self, Failure> {
        let opening = opening.wished(image)?;
        let path = image.path();
        let probed = || probe::format(path).map_err(|reason| Failure::open(image, reason));
        let format = image.format().map_or_else(probed, Ok)?;
        let wishes = image.wishes();
        if wishes.above.is_some() && opening.on_top == OnTop::Refused {
            let text = "driver=blkdebug: only the file of an image can have faults here";
            return Err(Failure::open(image, Reason::words(text)));
        }
        let options = beside(opening.top(format), image)?;
        let storage = Storage::open(path, &options).map_err(|error| match error {
            // The others ask the kernel first.
            OpenError::NotRegular { path: name, .. } if path.is_dir() && opening.writes() => {
                Failure::open(image, Reason::File { path: name.to_string(), errno: libc::EISDIR })
            }
            other => Failure::open_storage(image, &other),
        })?;
        match format {
            Format::Qcow2 if opening.writes() && storage.is_block_device() => {
                let text = "writing qcow2 images on block devices is not supported yet";
                Err(Failure::open(image, Reason::words(text)))
            }
            Format::Qcow2 => Self::open_qcow2(queue, image, storage, opening),
            Format::Raw if image.wishes().snapshot.is_some() => Err(snapshots::missing(
                "Block format 'raw' used by device '' does not support temporarily loading internal snapshots",
            )),
            Format::Raw if !image.wishes().below.is_empty() => {
                Err(Failure::open(image, Reason::no_backing_files()))
            }
            Format::Raw => {
                let disk = RawDisk::new(storage);
                if image.format().is_some() || opening.access == Access::ReadOnly {
                    return Ok(AnyDisk::Raw(disk));
                }
                warn_of_probing(image);
                Ok(AnyDisk::Probed(ProbedRaw::new(disk)))
            }
        }
    }

    fn open_qcow2(
        queue: &mut Queue,
        image: &ImageName,
        storage: Storage,
        opening: Opening,
    ) -> Result<Self, Failure> {
        let options = ImageOptions::new().policy(opening.policy);
        let options = image.wishes().snapshot.iter().cloned().fold(options, ImageOptions::snapshot);
        let options = match opening.access {
            Access::ReadOnly => options,
            Access::ReadWrite => options.writable(),
        };
        let lane = queue.lane();
        let files = FileOpener::new(opening.file());
        let opener = Files::new(files, &image.wishes().below);
        let opened = queue.block_on(Image::open(&lane, storage, &opener, options))?;
        let opened = opened.map_err(|error| match error {
            ImageError::NoSnapshot { .. } => snapshots::missing("Can't find snapshot"),
            error => Failure::open(image, Reason::image(image.path(), &error, opener.opened())),
        })?;
        opener.all_met().map_err(|reason| Failure::open(image, reason))?;
        Ok(AnyDisk::Qcow2(opened))
    }

    /// Makes it reachable from `queue`.
    pub fn attach(&self, queue: &mut Queue) -> std::io::Result<Disk> {
        match self {
            AnyDisk::Raw(disk) => queue.attach(disk),
            AnyDisk::Probed(disk) => queue.attach(disk),
            AnyDisk::Qcow2(image) => queue.attach(image),
        }
    }

    /// Closes it: what a qcow2 image had reserved goes back. `queue` is attached to it.
    pub fn close(&self, queue: &mut Queue) -> Result<(), Failure> {
        match self {
            AnyDisk::Raw(_) | AnyDisk::Probed(_) => Ok(()),
            AnyDisk::Qcow2(image) => queue.block_on(image.close())?.map_err(Failure::Close),
        }
    }

    /// What was issued for it and is in no queue's counts.
    pub fn shared_counts(&self) -> LaneCounts {
        match self {
            AnyDisk::Raw(_) | AnyDisk::Probed(_) => LaneCounts::default(),
            AnyDisk::Qcow2(image) => image.service_counts(),
        }
    }

    /// What its trackers have seen: of guest ranges, if there is one, and of file ranges.
    pub fn trackers(&self) -> (Option<Statistics>, Statistics) {
        match self {
            AnyDisk::Raw(disk) => (None, disk.storage().statistics()),
            AnyDisk::Probed(disk) => (None, disk.disk().storage().statistics()),
            AnyDisk::Qcow2(image) => {
                let statistics = image.statistics();
                (Some(statistics.image_tracker), statistics.storage_tracker)
            }
        }
    }

    /// The lines that `info` of `io` prints.
    pub fn summary(&self) -> String {
        match self {
            AnyDisk::Raw(_) | AnyDisk::Probed(_) => {
                "format name: raw\ncluster size: 0 bytes\nvm state offset: 0 bytes\n".to_owned()
            }
            AnyDisk::Qcow2(image) => {
                let human = |bytes: u64| crate::io::human(bytes as f64);
                let info = image.info();
                // The first offset beyond what the L1 table's entries cover.
                let covered = info.cluster_size / 8 * info.cluster_size;
                let state = info.virtual_size.div_ceil(covered).saturating_mul(covered);
                let path = image.storage().file_path();
                let member = Member::look(path, Some(Format::Qcow2)).ok();
                let header =
                    member.as_ref().and_then(|member| Some((member, member.header.as_ref()?)));
                let known = header.and_then(|(member, header)| Qcow2Info::of(member, header).ok());
                format!(
                    "format name: qcow2\ncluster size: {}\nvm state offset: {}\n{}",
                    human(info.cluster_size),
                    human(state),
                    known.map(|info| info.human()).unwrap_or_default()
                )
            }
        }
    }
}

/// What is wished for the file of an image besides: faults, and a log.
fn beside(options: OpenOptions, image: &ImageName) -> Result<OpenOptions, Failure> {
    let wishes = image.wishes();
    let options = match &wishes.injection {
        Some(injection) => options.faults(&injection.faults()),
        None => options,
    };
    let Some(log) = &wishes.log else { return Ok(options) };
    let log = log.begin().map_err(|reason| Failure::open(image, reason))?;
    Ok(options.write_log(&log))
}

/// A file that does not say its format may be raw, and then whoever wrote its first bytes, a guest for instance,
/// decides what it is taken for.
fn warn_of_probing(image: &ImageName) {
    eprintln!(
        "WARNING: Image format was not specified for '{}' and probing guessed raw.\n         \
         Automatically detecting the format is dangerous for raw images, write operations on block 0 will be \
         restricted.\n         Specify the 'raw' format explicitly to remove the restrictions.",
        crate::bytes::of_path(image.path())
    );
}
