//! How an image is opened.

use blkring_engine::{Access, Choice, Variants};

use crate::snapshot::SnapshotKey;

/// How new clusters get their zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum AllocPolicy {
    /// Ahead of use, many at a time: an allocating write then costs what an overwrite costs.
    #[default]
    Ahead,
    /// By one zero-write over each newly allocated run, as QEMU does it. Falls back to writing the padding where a
    /// zero-write without fallback is not possible.
    PerAllocation,
}

impl AllocPolicy {
    /// By its name in options.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "ahead" => Some(AllocPolicy::Ahead),
            "per-allocation" => Some(AllocPolicy::PerAllocation),
            _ => None,
        }
    }
}

/// What becomes of the space of clusters that nothing refers to any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Freed {
    /// The image keeps it, and uses it again.
    #[default]
    Kept,
    /// The host gets it back (a hole in the file), when the removal is durable; but for as much as is reserved ahead.
    /// That is a part of a flush, so flushes after large discards take longer.
    GivenBack,
}

/// Options of an image.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ImageOptions {
    /// Whether it may be written.
    pub access: Access,
    /// How space is made ready.
    pub policy: AllocPolicy,
    /// Bytes of L2 tables kept in memory for each file of the chain. One slice always works.
    pub cache_bytes: u64,
    /// The largest reservation ahead, in bytes. One cluster always works.
    pub reserve_bytes: u64,
    /// Bytes of unlinked clusters held back at most before a flush is made to let them go.
    pub held_back_bytes: u64,
    /// What becomes of the space of clusters that nothing refers to any more.
    pub freed: Freed,
    /// Bytes for copies, and as many for compressed data that is read. One buffer always works.
    pub buffer_bytes: usize,
    /// Operations of shared work in flight at most, where there is no ring.
    pub depth: usize,
    /// What the shared work of the image is done by: by default what does the work of the queue that opens it.
    pub backend: Option<Choice>,
    /// Backing files below the image at most; a longer chain is refused.
    pub max_chain: usize,
    /// Read this snapshot instead of what the guest has now; such an image cannot be written. The size is that of now.
    pub snapshot: Option<SnapshotKey>,
    /// Broken rules, for tests.
    #[cfg(feature = "variants")]
    pub variants: Variants,
}

impl Default for ImageOptions {
    fn default() -> Self {
        ImageOptions {
            access: Access::ReadOnly,
            policy: AllocPolicy::Ahead,
            cache_bytes: 32 << 20,
            reserve_bytes: 16 << 20,
            held_back_bytes: 64 << 20,
            freed: Freed::Kept,
            buffer_bytes: 8 << 20,
            depth: 64,
            backend: None,
            max_chain: 200,
            snapshot: None,
            #[cfg(feature = "variants")]
            variants: Variants::default(),
        }
    }
}

impl ImageOptions {
    /// Read-only, with the default sizes.
    pub fn new() -> Self {
        ImageOptions::default()
    }

    /// The same, for reading and writing.
    #[must_use]
    pub fn writable(mut self) -> Self {
        self.access = Access::ReadWrite;
        self
    }

    /// The same, for reading a snapshot.
    #[must_use]
    pub fn snapshot(mut self, key: SnapshotKey) -> Self {
        self.snapshot = Some(key);
        self
    }

    /// The same with this policy.
    #[must_use]
    pub fn policy(mut self, policy: AllocPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// The same with so many bytes of cached L2 tables.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: u64) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// The same with so many bytes reserved ahead at most.
    #[must_use]
    pub fn reserve_bytes(mut self, bytes: u64) -> Self {
        self.reserve_bytes = bytes;
        self
    }

    /// The same with so many bytes of unlinked clusters held back.
    #[must_use]
    pub fn held_back_bytes(mut self, bytes: u64) -> Self {
        self.held_back_bytes = bytes;
        self
    }

    /// The same with the space of freed clusters kept or given back.
    #[must_use]
    pub fn freed(mut self, freed: Freed) -> Self {
        self.freed = freed;
        self
    }

    /// The same with so many bytes for copies.
    #[must_use]
    pub fn buffer_bytes(mut self, bytes: usize) -> Self {
        self.buffer_bytes = bytes;
        self
    }

    /// The same with shared work done by this.
    #[must_use]
    pub fn backend(mut self, backend: Choice) -> Self {
        self.backend = Some(backend);
        self
    }

    /// The same with so many operations of shared work in flight.
    #[must_use]
    pub fn depth(mut self, depth: usize) -> Self {
        self.depth = depth;
        self
    }

    /// The rules that are broken: none, without the feature `variants`.
    #[cfg(not(feature = "variants"))]
    pub(super) fn broken(&self) -> Variants {
        Variants::default()
    }

    /// The rules that are broken.
    #[cfg(feature = "variants")]
    pub(super) fn broken(&self) -> Variants {
        self.variants
    }

    /// The same with rules broken.
    #[cfg(feature = "variants")]
    #[must_use]
    pub fn variants(mut self, variants: Variants) -> Self {
        self.variants = variants;
        self
    }
}
