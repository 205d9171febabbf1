//! An allocating write and a flush, counted.

use std::io;
use std::path::Path;

use blkring_engine::{Cache, Flags, IoMem, LaneCounts};
use blkring_qcow2::ImageOptions;

use crate::images::Opened;
use crate::ring_trace::{Opcodes, RingTrace};

/// Bytes of a cluster of the image.
const CLUSTER: u64 = 65536;

/// Pairs of a write and a flush that are counted.
pub const PAIRS: u64 = 16;

/// A file that is looked for where the counting begins: a mark in a list of system calls.
pub const BEGIN: &str = "/blkring-counts-begin";

/// The same where it ends.
pub const END: &str = "/blkring-counts-end";

/// An image with a reservation that lasts, synced, at rest.
pub struct Ready {
    opened: Opened,
    /// The next guest cluster that was never written.
    next: u64,
}

impl Ready {
    /// Opens the image and writes to it until it is.
    ///
    /// # Panics
    /// If a request fails.
    pub fn new(path: &Path) -> Self {
        let opened = Opened::new(path, Cache::Direct, ImageOptions::new().writable());
        let mut ready = Self { opened, next: 0 };
        // A refill begins when half of what the last one brought is gone: go on until one has just been.
        let mut before = 0;
        loop {
            ready.pair();
            let now = ready.opened.image.statistics().ready_clusters;
            if now > before && now > 4 * PAIRS {
                break;
            }
            before = now;
        }
        // What the refill left to be synced, and the flush that may have been beside it.
        for _ in 0..2 {
            ready.pair();
        }
        ready
    }

    /// Writes 4 KiB into a new cluster and flushes.
    ///
    /// # Panics
    /// If that fails, or the L2 slice is full.
    pub fn pair(&mut self) {
        let disk = self.opened.disk.clone();
        let offset = self.next * CLUSTER + 8192;
        self.next += 1;
        assert!(self.next < 512, "all of it lies in one L2 slice");
        let mem = IoMem::aligned(&[0x5C; 4096]);
        let done = self.opened.run(async {
            disk.write(offset, mem, Flags::empty()).await?;
            disk.flush().await
        });
        done.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Closes the image.
    ///
    /// # Panics
    /// If that fails.
    pub fn close(self) {
        self.opened.close();
    }

    /// Requests of the queue and shared work.
    pub fn counts(&self) -> (LaneCounts, LaneCounts) {
        (self.opened.queue.counts(), self.opened.image.service_counts())
    }
}

/// What was sent in between, by name.
pub fn between(before: LaneCounts, after: LaneCounts) -> Opcodes {
    let counts = [
        ("READ", after.reads - before.reads),
        ("WRITE", after.writes - before.writes),
        ("FSYNC", after.syncs - before.syncs),
        ("FALLOCATE", after.allocates - before.allocates),
        ("FTRUNCATE", after.truncates - before.truncates),
    ];
    counts.map(|(name, count)| (name.to_owned(), count)).into_iter().collect()
}

/// The count of one opcode.
pub fn opcode(counts: &Opcodes, name: &str) -> u64 {
    counts.get(name).copied().unwrap_or(0)
}

fn mark(name: &str) {
    assert!(!Path::new(name).exists(), "{name} is a name that nobody uses");
}

/// Counts [`PAIRS`] pairs on an image; the sums by opcode, as the kernel and as the driver counts them.
///
/// # Errors
/// If the kernel cannot be asked.
///
/// # Panics
/// If the two do not agree.
pub fn table(path: &Path) -> io::Result<String> {
    let mut ready = Ready::new(path);
    let trace = RingTrace::new().map_err(|skip| io::Error::other(skip.to_string()))?;
    let before = ready.counts();
    trace.begin()?;
    mark(BEGIN);
    for _ in 0..PAIRS {
        ready.pair();
    }
    mark(END);
    let mut kernel = Opcodes::new();
    for (name, count) in trace.end()? {
        // One vector or many: a read is a read.
        *kernel.entry(name.trim_end_matches('V').to_owned()).or_default() += count;
    }
    let after = ready.counts();
    let (own, shared) = (between(before.0, after.0), between(before.1, after.1));
    let mut table = format!("{:12}{:>8}{:>8}{:>8}\n", "opcode", "kernel", "queue", "shared");
    for name in kernel.keys().chain(own.keys().filter(|name| !kernel.contains_key(*name))) {
        let [kernel, own, shared] = [&kernel, &own, &shared].map(|counts| opcode(counts, name));
        table += &format!("{name:12}{kernel:>8}{own:>8}{shared:>8}\n");
        // Polls of events are the engine's own: they touch no file.
        assert!(name == "POLL_ADD" || kernel == own + shared, "{table}");
    }
    ready.close();
    Ok(table)
}
