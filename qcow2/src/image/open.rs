//! Opening an image and the chain below it.
//!
//! Nothing is allocated from a size in the file before that size was checked against the file's length. The chain is
//! walked in a loop; a file that comes up twice, or too many of them, are refused.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use blkring_engine::faults::Event;
use blkring_engine::tracker::Tracker;
use blkring_engine::tracker::sync::Mutex;
use blkring_engine::{
    Access, BackendError, BufferPool, IoError, IoMem, Lane, LockError, OpenError as StorageError,
    OpenOptions, Service, Storage,
};

use super::claim::ClaimId;
use super::decompress::Decompressed;
use super::l1::L1;
use super::layer::Layer;
use super::options::ImageOptions;
use super::reclaim::reclaim;
use super::refcounts::Refcounts;
use super::slices::SliceCache;
use super::state::{Pools, State};
use super::statistics::Counters;
use super::tables::{
    Budget, find_snapshot, note_metadata, read_header, read_snapshots, read_table,
};
use super::zeros::Zeros;
use super::{Chain, Image, ImageInfo, Member};
use crate::address::{HostCluster, HostOffset};
use crate::header::{self, Header, HeaderError};
use crate::snapshot::{SnapshotError, SnapshotKey};

/// Opens the files that an image names. A name comes from the image and is not to be trusted: the embedder decides
/// which files it may lead to.
pub trait Opener: Send + Sync {
    /// Opens the file that the image at `referrer` calls `name`, which is any bytes but NUL.
    ///
    /// # Errors
    /// Of the file, or of a policy that does not allow it.
    fn open(&self, referrer: &Path, name: &OsStr, access: Access) -> Result<Storage, StorageError>;

    /// The format of `file`, which was just opened: `raw` or `qcow2`. `named` is what the image above it says; it may
    /// say nothing, and then the image is refused unless this answers. Whoever looks into the file for an answer
    /// trusts what wrote it: a guest with a raw disk can make it look like an image that names any file of the host.
    ///
    /// # Errors
    /// Of the file, if it was looked at.
    fn format(&self, file: &Storage, named: Option<&str>) -> Result<Option<String>, StorageError> {
        let _ = file;
        Ok(named.map(str::to_owned))
    }
}

/// Opens regular files by path, relative names from the directory of the image that names them.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct FileOpener {
    /// How files are opened, but for the access.
    pub options: OpenOptions,
}

impl FileOpener {
    /// Opens files with these options, but for the access.
    pub fn new(options: OpenOptions) -> Self {
        FileOpener { options }
    }
}

impl Opener for FileOpener {
    fn open(&self, referrer: &Path, name: &OsStr, access: Access) -> Result<Storage, StorageError> {
        let directory = referrer.parent().map(PathBuf::from).unwrap_or_default();
        Storage::open(&directory.join(name), &self.options.clone().access(access))
    }
}

/// Why an image could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A file of the chain could not be opened.
    #[error("{0}")]
    Storage(#[from] blkring_engine::OpenError),
    /// A file of the chain could not be read.
    #[error("{0}")]
    Io(#[from] IoError),
    /// Not a qcow2 image, damaged, or one with a feature that is not supported.
    #[error("{path}: {source}")]
    Header {
        /// The file.
        path: Arc<str>,
        /// What is wrong.
        source: HeaderError,
    },
    /// The snapshot table of an image to be written cannot be believed.
    #[error("{path}: {source}")]
    Snapshots {
        /// The file.
        path: Arc<str>,
        /// What is wrong.
        source: SnapshotError,
    },
    /// There is no such snapshot.
    #[error("{path}: there is no snapshot {key:?}")]
    NoSnapshot {
        /// The file.
        path: Arc<str>,
        /// Which was asked for.
        key: SnapshotKey,
    },
    /// A snapshot is to be written.
    #[error("{path}: a snapshot can only be read")]
    WrittenSnapshot {
        /// The file.
        path: Arc<str>,
    },
    /// A table ends beyond the end of the file.
    #[error("{path}: the {table} ends at {end}, beyond the end of the file")]
    Truncated {
        /// The file.
        path: Arc<str>,
        /// Which table.
        table: &'static str,
        /// Where it ends.
        end: HostOffset,
    },
    /// Two structures of an image to be written share a cluster: a change of one would destroy the other.
    #[error("{path}: two structures of the image share the cluster at {at}")]
    Overlap {
        /// The file.
        path: Arc<str>,
        /// Where the cluster is.
        at: HostOffset,
    },
    /// A file below an image could not be opened or is damaged.
    #[error("{source} (backing file of {image})")]
    Backing {
        /// The image that names it.
        image: Arc<str>,
        /// What is wrong; it names the backing file.
        source: Box<OpenError>,
    },
    /// The image does not say what format its backing file has, and nor does the [`Opener`]. It is never guessed: a
    /// raw guest could write anything there.
    #[error("{path}: the format of the backing file '{name}' is not given")]
    NoBackingFormat {
        /// The image.
        path: Arc<str>,
        /// Its backing file.
        name: String,
    },
    /// The backing file has a format that is not supported.
    #[error("{path}: the format '{format}' of the backing file '{name}' is not supported")]
    BackingFormat {
        /// The image.
        path: Arc<str>,
        /// Its backing file.
        name: String,
        /// The format.
        format: String,
    },
    /// A file is its own backing file, perhaps by way of others.
    #[error("{path}: the backing chain leads back to itself")]
    Loop {
        /// The file that came up twice.
        path: Arc<str>,
    },
    /// The chain has too many files.
    #[error("{path}: more than {limit} backing files")]
    TooDeep {
        /// The last file that was looked at.
        path: Arc<str>,
        /// How many are allowed.
        limit: usize,
    },
    /// The image and its chain have more tables than this driver keeps in memory.
    #[error("{path}: {count} {what}, more than {limit}")]
    TooLarge {
        /// The file that was too much.
        path: Arc<str>,
        /// Of what there is too much.
        what: &'static str,
        /// How much there is.
        count: u64,
        /// How much is allowed.
        limit: u64,
    },
    /// There is no io_uring for the shared work, and no pool was allowed or could be started.
    #[error("{0}")]
    Backend(#[from] BackendError),
}

impl OpenError {
    /// The error number that a program would report.
    pub fn errno(&self) -> i32 {
        match self {
            OpenError::Storage(error) => error.errno(),
            OpenError::Backing { source, .. } => source.errno(),
            OpenError::Io(error) => error.errno,
            OpenError::Header { source, .. } => source.errno(),
            OpenError::Snapshots { source, .. } => source.errno(),
            OpenError::NoSnapshot { .. } => libc::ENOENT,
            OpenError::WrittenSnapshot { .. } => libc::EROFS,
            OpenError::Truncated { .. }
            | OpenError::Overlap { .. }
            | OpenError::Loop { .. }
            | OpenError::NoBackingFormat { .. } => libc::EINVAL,
            OpenError::TooDeep { .. } => libc::ELOOP,
            OpenError::TooLarge { .. } => libc::EFBIG,
            OpenError::BackingFormat { .. } => libc::ENOTSUP,
            OpenError::Backend(error) => error.errno(),
        }
    }

    /// The same of a file that `image` names.
    fn below(self, image: &Storage) -> Self {
        OpenError::Backing { image: image.path().clone(), source: Box::new(self) }
    }
}

/// The formats that a file below an image may have.
enum Format {
    Raw,
    Qcow2,
}

/// What is below an image, as it says itself.
struct Below {
    image: Arc<Storage>,
    name: OsString,
    /// Its format, if the image says it.
    named: Option<String>,
}

impl Below {
    fn of(layer: &Layer) -> Option<Self> {
        let header = layer.header.lock();
        let name = OsStr::from_bytes(header.backing_name()?).to_owned();
        Some(Below { image: layer.storage.clone(), name, named: header.backing_format().map(text) })
    }

    /// Opens the file, unless it is among those that were `seen`.
    fn open(
        &self,
        opener: &dyn Opener,
        seen: &mut HashSet<(u64, u64)>,
    ) -> Result<Storage, OpenError> {
        let storage = match opener.open(self.image.file_path(), &self.name, Access::ReadOnly) {
            // A chain that leads back to a file that this one has locked.
            Err(StorageError::Lock(LockError::Conflict { path, file, .. }))
                if seen.contains(&file) =>
            {
                return Err(OpenError::Loop { path });
            }
            opened => opened.map_err(|error| OpenError::from(error).below(&self.image))?,
        };
        if !seen.insert(storage.identity()) {
            return Err(OpenError::Loop { path: storage.path().clone() });
        }
        Ok(storage)
    }

    /// What the opened `file` is.
    fn format(&self, opener: &dyn Opener, file: &Storage) -> Result<Format, OpenError> {
        let format = opener.format(file, self.named.as_deref());
        let format = format.map_err(|error| OpenError::from(error).below(&self.image))?;
        let (path, name) = (self.image.path().clone(), self.name.to_string_lossy().into_owned());
        match format.as_deref() {
            Some("raw") => Ok(Format::Raw),
            Some("qcow2") => Ok(Format::Qcow2),
            Some(other) => Err(OpenError::BackingFormat { path, name, format: other.to_owned() }),
            None => Err(OpenError::NoBackingFormat { path, name }),
        }
    }
}

impl Image {
    /// Opens the qcow2 image in `storage` and its chain. The reads go to `lane`: run this with
    /// [`Queue::block_on`](blkring_engine::Queue::block_on).
    ///
    /// # Errors
    /// [`OpenError`], which names the file and what is wrong with it.
    pub async fn open(
        lane: &Lane,
        storage: Storage,
        opener: &dyn Opener,
        options: ImageOptions,
    ) -> Result<Arc<Image>, OpenError> {
        let service = if storage.needs_ring() {
            Service::new(options.backend.as_ref().unwrap_or(lane.choice()))?
        } else {
            Service::without_ring(options.depth)?
        };
        let mut seen = HashSet::from([storage.identity()]);
        let access = match options.access {
            Access::ReadOnly => header::Access::Read,
            Access::ReadWrite => header::Access::Write,
        };
        let mut budget = Budget::default();
        let top = open_layer(lane, storage, &service, access, &options, &mut budget).await?;
        // Files below the image are read as they are.
        let options = ImageOptions { snapshot: None, ..options };
        let info = info_of(&top.header.lock());
        let mut backing = Vec::new();
        let mut below = Below::of(&top);
        while let Some(file) = below.take() {
            if backing.len() == options.max_chain {
                let path = file.image.path().clone();
                return Err(OpenError::TooDeep { path, limit: options.max_chain });
            }
            let storage = file.open(opener, &mut seen)?;
            match file.format(opener, &storage)? {
                Format::Raw => backing.push(Member::Raw(Arc::new(storage))),
                Format::Qcow2 => {
                    let access = header::Access::Read;
                    let layer =
                        open_layer(lane, storage, &service, access, &options, &mut budget).await;
                    let layer = layer.map_err(|error| error.below(&file.image))?;
                    below = Below::of(&layer);
                    backing.push(Member::Qcow2(layer));
                }
            }
        }
        if access == header::Access::Write {
            // What a killed process has written may be in the page cache alone. From here on all that was read counts
            // as durable.
            top.storage.flush(lane).await?;
        }
        Ok(Arc::new(Image {
            tracker: Tracker::new(),
            counters: Counters::default(),
            parts: Tracker::new(),
            closing: Mutex::new(None),
            chain: Arc::new(Chain {
                top: top.clone(),
                backing,
                buffers: BufferPool::new(options.buffer_bytes),
                decompressed: Decompressed::new(options.buffer_bytes),
                zeros: Zeros::default(),
            }),
            service,
            info,
            top,
        }))
    }
}

fn info_of(header: &Header) -> ImageInfo {
    ImageInfo {
        virtual_size: header.geometry().virtual_size(),
        cluster_size: header.geometry().cluster_size(),
        version: header.version(),
        snapshots: header.snapshots(),
        backing_name: header.backing_name().map(text),
        backing_format: header.backing_format().map(text),
    }
}

/// Bytes as people are shown them.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

async fn open_layer(
    lane: &Lane,
    storage: Storage,
    service: &Arc<Service>,
    access: header::Access,
    options: &ImageOptions,
    budget: &mut Budget,
) -> Result<Arc<Layer>, OpenError> {
    let writable = access == header::Access::Write;
    let mut header = read_header(lane, &storage, access).await?;
    let geometry = *header.geometry();
    if writable && header.clear_autoclear() {
        let mem = IoMem::aligned(&header.fixed_bytes());
        storage.write(lane, 0, &mem, Default::default()).await?;
        storage.flush(lane).await?;
    }
    if let Some(key) = &options.snapshot {
        let path = storage.path().clone();
        if writable {
            return Err(OpenError::WrittenSnapshot { path });
        }
        header.set_l1(find_snapshot(lane, &storage, &header, key).await?);
    }
    let l1 = header.l1();
    let raw = read_table(lane, &storage, "L1 table", (l1.offset, l1.bytes()), budget).await?;
    let table = if writable {
        let table = header.reftable();
        let place = (table.offset, table.bytes(&geometry));
        storage.point(Event::ReftableLoad).await;
        read_table(lane, &storage, "refcount table", place, budget).await?
    } else {
        Vec::new()
    };
    let end = HostCluster::new(geometry.clusters_for(storage.size()));
    let slices =
        usize::try_from(options.cache_bytes / geometry.slice_bytes()).unwrap_or(usize::MAX);
    let entries = usize::try_from(geometry.slice_entries()).expect("a slice is small");
    let mut state = State {
        clock: Default::default(),
        leases: Default::default(),
        l1: L1::new(raw),
        slices: SliceCache::new(slices, entries),
        loads: Default::default(),
        copies: Default::default(),
        metadata: HashSet::new(),
        refcounts: Refcounts::new(table, end),
        pools: Pools::default(),
        in_flight: Default::default(),
        last_claim: ClaimId::default(),
        unlinks: Default::default(),
        packing: Default::default(),
        raises: Default::default(),
        work: Default::default(),
        failure: None,
        variants: options.broken(),
    };
    if writable {
        let inactive = read_snapshots(lane, &storage, &header).await?;
        note_metadata(&mut state, &header, &inactive, storage.path())?;
        reclaim(lane, &storage, &mut state, (&header, &inactive)).await?;
    }
    Ok(Layer::new(Arc::new(storage), service.clone(), header, state, options))
}
