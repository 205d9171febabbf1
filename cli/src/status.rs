//! What the ranges of an opened image hold, without reading them.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard};

use blkring_engine::{Extent, ExtentKind, IoError, Storage};
use blkring_qcow2::{GuestBytes, GuestExtent, Image};

use crate::disk::AnyDisk;

/// Disks count in whole sectors of so many bytes, and file systems count what a file takes in such units.
pub const SECTOR: u64 = 512;

/// What a run of bytes holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holds {
    /// Bytes that may be anything.
    Data,
    /// Bytes that may be anything, compressed.
    Compressed,
    /// A place for bytes that is a hole of the file: zeros.
    Hole,
    /// Zeros that are known as such.
    Zero,
    /// No file of the chain has these bytes: zeros.
    Absent,
}

impl Holds {
    /// Whether all bytes are zero for sure.
    pub fn is_zero(self) -> bool {
        matches!(self, Holds::Hole | Holds::Zero | Holds::Absent)
    }
}

/// A run of bytes of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// First byte.
    pub offset: u64,
    /// Bytes, at least one.
    pub len: u64,
    /// What they are.
    pub holds: Holds,
    /// How many files below the topmost the one is that says so.
    pub depth: usize,
    /// Where in that file they are, if they are there as they are.
    pub at: Option<u64>,
    /// The file.
    pub path: Arc<str>,
}

/// When holes inside allocated clusters are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holes {
    /// In every file.
    Wanted,
    /// Only in files of which two clusters in use, and a tenth of them, are not there on the host: qemu-img does so.
    WhereMany,
}

/// Looks at one image.
pub struct Survey {
    disk: AnyDisk,
    holes: Holes,
    /// How many files of the chain are asked, from the topmost on.
    depth: usize,
    /// By file: whether it has many holes.
    sparse: Mutex<HashMap<Arc<str>, bool>>,
}

impl Survey {
    /// Of an image with all below it.
    pub fn new(disk: &AnyDisk, holes: Holes) -> Self {
        let depth = match disk {
            AnyDisk::Qcow2(image) => image.depth(),
            _ => 1,
        };
        Survey { disk: disk.clone(), holes, depth, sparse: Mutex::default() }
    }

    /// The same for the topmost `depth` files: what is in none of them is [`Holds::Absent`], and need not be zero.
    #[must_use]
    pub fn above(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// Bytes of the disk, in whole sectors.
    pub fn len(&self) -> u64 {
        self.disk.virtual_size()
    }

    /// The run that begins at `offset` and ends at `limit` at the latest. To be awaited on a queue that the image is
    /// attached to.
    pub async fn run(&self, offset: u64, limit: u64) -> Result<Run, IoError> {
        match &self.disk {
            AnyDisk::Qcow2(image) => self.qcow2_run(image, offset, limit).await,
            raw => {
                let storage = raw.storage();
                let extent = storage.extent(offset, limit)?;
                Ok(Run {
                    offset,
                    len: extent.len,
                    holds: match extent.kind {
                        ExtentKind::Data => Holds::Data,
                        ExtentKind::Zero => Holds::Zero,
                    },
                    depth: 0,
                    at: Some(offset),
                    path: storage.path().clone(),
                })
            }
        }
    }

    async fn qcow2_run(&self, image: &Image, offset: u64, limit: u64) -> Result<Run, IoError> {
        let found = image.extent_above(self.depth, offset, limit).await?;
        let GuestExtent { len, depth, bytes, ref storage, .. } = found;
        let path = storage.path().clone();
        let run = |holds, at, len| Run { offset, len, holds, depth, at, path };
        Ok(match bytes {
            GuestBytes::Data(at) if !self.looks_into(image, depth, storage).await? => {
                run(Holds::Data, Some(at), len)
            }
            GuestBytes::Data(at) => match storage.extent(at, at + len)? {
                Extent { kind: ExtentKind::Data, len, .. } => run(Holds::Data, Some(at), len),
                Extent { kind: ExtentKind::Zero, len, .. } => run(Holds::Hole, Some(at), len),
            },
            GuestBytes::Zero(at) => run(Holds::Zero, at, len),
            GuestBytes::Absent => run(Holds::Absent, None, len),
            _ => run(Holds::Compressed, None, len),
        })
    }

    async fn looks_into(
        &self,
        image: &Image,
        depth: usize,
        storage: &Storage,
    ) -> Result<bool, IoError> {
        let Some(cluster) = image.cluster_size_at(depth) else { return Ok(false) };
        if self.holes == Holes::Wanted {
            return Ok(true);
        }
        if let Some(&known) = self.known().get(storage.path()) {
            return Ok(known);
        }
        // What cannot be counted is not looked into.
        let used = image.counted_clusters(depth).await.ok().flatten().unwrap_or(0);
        let there = storage.file_path().metadata().map_or(u64::MAX, |file| file.blocks() * SECTOR);
        let there = there / cluster;
        let many = used >= (there + 2).max(there / 9 * 10 + there % 9 * 10 / 9);
        self.known().insert(storage.path().clone(), many);
        Ok(many)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<Arc<str>, bool>> {
        self.sparse.lock().expect("nobody panics while holding it")
    }
}

impl AnyDisk {
    /// Bytes of the disk, in whole sectors.
    pub fn virtual_size(&self) -> u64 {
        match self {
            AnyDisk::Qcow2(image) => image.info().virtual_size,
            raw => raw.storage().size().next_multiple_of(SECTOR),
        }
    }

    /// The topmost file.
    pub fn storage(&self) -> &Arc<Storage> {
        match self {
            AnyDisk::Raw(disk) => disk.storage(),
            AnyDisk::Probed(disk) => disk.disk().storage(),
            AnyDisk::Qcow2(image) => image.storage(),
        }
    }

    /// Whether a file with this device and inode number is part of it.
    pub fn has_file(&self, identity: (u64, u64)) -> bool {
        match self {
            AnyDisk::Qcow2(image) => {
                let files = (0..image.depth()).filter_map(|depth| image.storage_at(depth));
                files.into_iter().any(|storage| storage.identity() == identity)
            }
            raw => raw.storage().identity() == identity,
        }
    }
}
