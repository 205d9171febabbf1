//! A file under test, with what is known of it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use blkring_engine::{Access, Cache, LockMode, OpenError, OpenOptions, RawDisk, Storage, Variants};

use super::history::History;
use super::order::{Order, Overlap};
use super::run::Run;
use super::sizes::Sizes;

/// Bytes of a cell of the history, unless the file asks for smaller ones.
const GRAIN: u64 = 512;

/// Bytes of a block: at least the page of every machine here, and what direct I/O asks for.
const BLOCK: u64 = 4096;

/// How a file is used.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Bytes that the file has at most.
    pub limit: u64,
    /// Bytes of a cell, for files too large for small ones.
    pub grain: Option<u64>,
    /// Whether it is opened a second time, through the page cache.
    pub twice: bool,
    /// Whether others may touch the bytes of a write.
    pub overlap: Overlap,
    /// Error numbers that a request may be answered with.
    pub expected: &'static [i32],
}

impl Layout {
    /// A file of at most so many bytes.
    pub const fn new(limit: u64) -> Self {
        Layout { limit, grain: None, twice: false, overlap: Overlap::Allowed, expected: &[] }
    }
}

/// The file.
pub struct Subject {
    /// Where it is.
    pub path: PathBuf,
    /// Direct I/O, where there is any.
    pub raw: Arc<RawDisk>,
    /// The page cache, if it was opened twice.
    pub cached: Option<Arc<RawDisk>>,
    /// What its bytes may be.
    pub history: History,
    /// What its size may be.
    pub sizes: Sizes,
    /// Who is in the kernel.
    pub order: Arc<Order>,
    /// How it is used.
    pub layout: Layout,
    over: AtomicBool,
}

impl Subject {
    /// Makes the file. It has its largest size, so that a disk over it takes requests everywhere.
    ///
    /// # Errors
    /// A sentence.
    pub fn make(path: &Path, layout: Layout, variants: Variants) -> Result<Self, String> {
        let limit = layout.limit;
        File::create(path)
            .and_then(|file| file.set_len(limit))
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let storage = match open(path, Cache::Direct) {
            Err(OpenError::NoDirectIo { .. }) => open(path, Cache::Cached),
            opened => opened,
        };
        let storage = storage.map_err(|error| error.to_string())?;
        let cached = layout.twice.then(|| open(path, Cache::Cached)).transpose();
        let cached = cached.map_err(|error| error.to_string())?;
        let grain = match storage.alignment() {
            1 => GRAIN,
            alignment => GRAIN.min(alignment / 2),
        };
        let order = Arc::new(Order::new(layout.overlap));
        let storage = storage.with_variants(variants).with_watch(order.clone());
        Ok(Subject {
            path: path.to_path_buf(),
            raw: RawDisk::new(storage),
            cached: cached.map(|storage| RawDisk::new(storage.with_variants(variants))),
            history: History::new(limit, layout.grain.unwrap_or(grain)),
            sizes: Sizes::new(limit),
            order,
            layout,
            over: AtomicBool::new(false),
        })
    }

    /// Decides, for all its hands, whether the run goes on.
    pub fn decide(&self, run: &Run) {
        self.over.store(run.is_over(), Ordering::Release);
    }

    /// What was decided last.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Its storage.
    pub fn storage(&self) -> &Arc<Storage> {
        self.raw.storage()
    }

    /// Bytes of a cell: the smallest piece that is written.
    pub fn grain(&self) -> u64 {
        self.history.grain()
    }

    /// Bytes of a block, which direct I/O moves without reading it first.
    pub fn block(&self) -> u64 {
        BLOCK.max(self.storage().alignment())
    }

    /// Whether a part of a block is written by reading the block first.
    pub fn pads(&self) -> bool {
        self.storage().alignment() > self.grain()
    }

    /// Its size as the file system tells it.
    ///
    /// # Errors
    /// A sentence.
    pub fn size(&self) -> Result<u64, String> {
        let metadata = std::fs::metadata(&self.path);
        metadata.map(|found| found.len()).map_err(|error| format!("stat: {error}"))
    }
}

/// Without locks: a file may be opened twice here, and nobody else knows of it.
fn open(path: &Path, cache: Cache) -> Result<Storage, OpenError> {
    let options = OpenOptions::new().access(Access::ReadWrite).lock(LockMode::Off).cache(cache);
    Storage::open(path, &options)
}
