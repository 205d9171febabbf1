//! How an image world is made.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use blkring_engine::sim::{Kernel, SimDisk, SimOptions, World};
use blkring_engine::{Access, QueueOptions, Storage, Variants};
use blkring_qcow2::{
    AllocPolicy, Backing, CreateOptions, Image, ImageOptions, Layout, OpenError, Opener,
};

use super::ImageWorld;
use crate::snapshots;

/// The file of the image on the disk.
pub const IMAGE: &str = "image";

/// The file of its raw backing image, if it has one.
pub const BACKING: &str = "backing";

/// What a world is made of.
#[derive(Debug, Clone)]
pub struct Setup {
    seed: u64,
    cluster: u64,
    clusters: u64,
    backing: Option<u8>,
    kernel: Kernel,
    queues: usize,
    queue: QueueOptions,
    options: ImageOptions,
    storage_variants: Variants,
    /// Clusters that are written before, with what byte, and what is done to the image then.
    filled: Option<(u64, u8, Claims)>,
}

/// What an image that is not new says of its clusters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claims {
    /// A snapshot shares them.
    Snapshot,
    /// They have no other reference, and do not claim so.
    Cleared,
}

impl Setup {
    /// One queue on an image of `clusters` clusters of 4096 bytes, with a reservation of one cluster.
    pub fn new(clusters: u64) -> Self {
        Setup {
            seed: 0,
            cluster: 4096,
            clusters,
            backing: None,
            kernel: Kernel::Current,
            queues: 1,
            queue: QueueOptions::default(),
            options: ImageOptions::new().writable().reserve_bytes(1),
            storage_variants: Variants::default(),
            filled: None,
        }
    }

    /// The same with `byte` in the first clusters, and a snapshot taken then.
    #[must_use]
    pub fn with_snapshot(self, clusters: u64, byte: u8) -> Self {
        self.filled(clusters, byte, Claims::Snapshot)
    }

    /// The same with `byte` in the first clusters.
    #[must_use]
    pub fn filled(mut self, clusters: u64, byte: u8, claims: Claims) -> Self {
        self.filled = Some((clusters, byte, claims));
        self
    }

    /// The same with another order of free steps.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The same with clusters of `bytes`.
    #[must_use]
    pub fn cluster(mut self, bytes: u64) -> Self {
        self.cluster = bytes;
        self
    }

    /// The same over a backing file of the same size, all of whose bytes are `byte`.
    #[must_use]
    pub fn backing(mut self, byte: u8) -> Self {
        self.backing = Some(byte);
        self
    }

    /// The same on another kernel.
    #[must_use]
    pub fn kernel(mut self, kernel: Kernel) -> Self {
        self.kernel = kernel;
        self
    }

    /// The same with so many queues.
    #[must_use]
    pub fn queues(mut self, queues: usize) -> Self {
        self.queues = queues;
        self
    }

    /// The same with queues of this size.
    #[must_use]
    pub fn queue(mut self, queue: QueueOptions) -> Self {
        self.queue = queue;
        self
    }

    /// The same with a reservation of `clusters`.
    #[must_use]
    pub fn reserve(self, clusters: u64) -> Self {
        let bytes = clusters * self.cluster;
        self.options(|options| options.reserve_bytes(bytes))
    }

    /// The same with this policy.
    #[must_use]
    pub fn policy(self, policy: AllocPolicy) -> Self {
        self.options(|options| options.policy(policy))
    }

    /// The same with other options of the image.
    #[must_use]
    pub fn options(mut self, change: impl FnOnce(ImageOptions) -> ImageOptions) -> Self {
        self.options = change(self.options);
        self
    }

    /// The same with rules broken, of the image and of its storage.
    #[must_use]
    pub fn variants(mut self, variants: Variants) -> Self {
        self.options = self.options.variants(variants);
        self.storage_variants = variants;
        self
    }

    /// Makes the files, opens the image, and attaches the queues.
    ///
    /// # Panics
    /// If any of that fails.
    pub fn make(self) -> ImageWorld {
        let disk = self.make_disk();
        self.open(&disk)
    }

    /// Makes the files.
    pub fn make_disk(&self) -> SimDisk {
        let disk = SimDisk::new(self.kernel);
        let size = self.cluster * self.clusters;
        let backing = self.backing.map(|byte| {
            let len = usize::try_from(size).expect("small");
            disk.create_file(BACKING, &vec![byte; len]);
            Backing::new(BACKING, b"raw")
        });
        let create = CreateOptions::new(size).cluster_size(self.cluster).backing(backing);
        let layout = Layout::plan(&create).expect("the options are sound");
        let mut bytes = vec![0; usize::try_from(layout.file_length).expect("small")];
        for write in &layout.writes {
            let start = usize::try_from(write.offset.get()).expect("small");
            bytes[start..start + write.bytes.len()].copy_from_slice(&write.bytes);
        }
        disk.create_file(IMAGE, &bytes);
        if let Some((clusters, byte, claims)) = self.filled {
            self.fill(&disk, clusters, byte, claims);
        }
        disk
    }

    /// Has the driver as it is write the first clusters of a new image.
    fn fill(&self, disk: &SimDisk, clusters: u64, byte: u8, claims: Claims) {
        let plain = Setup { filled: None, ..self.clone() }.variants(Variants::default());
        let mut w = plain.open(disk);
        w.prepare(0..clusters, byte);
        let closed = w.close(0);
        w.finish(&closed);
        let mut file = disk.contents(IMAGE);
        match claims {
            Claims::Snapshot => snapshots::take(&mut file, "first"),
            Claims::Cleared => snapshots::clear_claims(&mut file),
        }
        drop(w);
        disk.create_file(IMAGE, &file);
    }

    /// Opens the image that is on a disk.
    ///
    /// # Panics
    /// If that fails.
    pub fn open(self, disk: &SimDisk) -> ImageWorld {
        let mut world = World::new(self.seed, disk);
        for _ in 0..self.queues {
            world.add_queue(self.queue.clone());
        }
        let storage =
            disk.storage(IMAGE, SimOptions::default()).with_variants(self.storage_variants);
        let image = open_image(&mut world, disk, storage, self.options).expect("the image opens");
        let handles = (0..self.queues)
            .map(|queue| world.queue(queue).attach(&image).expect("no ring to be watched"))
            .collect();
        ImageWorld {
            world,
            disk: disk.clone(),
            image,
            handles,
            abandoned: Default::default(),
            stops: BTreeMap::new(),
            ops: BTreeMap::new(),
            seen: 0,
            cluster: self.cluster,
        }
    }
}

/// Opens an image on the first queue of a world.
pub(super) fn open_image(
    world: &mut World,
    disk: &SimDisk,
    storage: Storage,
    options: ImageOptions,
) -> Result<std::sync::Arc<Image>, OpenError> {
    let lane = world.queue(0).lane();
    let opener = SimOpener { disk: disk.clone() };
    world.block_on(0, async move { Image::open(&lane, storage, &opener, options).await })
}

/// Opens backing files on a simulated disk.
pub struct SimOpener {
    /// The disk.
    pub disk: SimDisk,
}

impl Opener for SimOpener {
    fn open(
        &self,
        _referrer: &Path,
        name: &OsStr,
        access: Access,
    ) -> Result<Storage, blkring_engine::OpenError> {
        Ok(self
            .disk
            .storage(&name.to_string_lossy(), SimOptions { access, ..SimOptions::default() }))
    }
}
