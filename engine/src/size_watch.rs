//! Telling embedders that a disk has another size.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Weak};

use blkring_tracker::sync::Mutex;
use blkring_tracker::sync::atomic::{AtomicU64, Ordering};

use crate::sys::EventFd;

/// The size of a disk, and who wants to hear when it changes. For targets: [`Disk::size`](crate::Disk::size) tells what
/// [`Target::size`](crate::Target::size) does, and watches are told of what is set here.
pub struct DiskSize {
    bytes: AtomicU64,
    /// The lock *watchers*, held for a few instructions.
    watchers: Mutex<Vec<Weak<Watched>>>,
}

struct Watched {
    event: EventFd,
    /// The size that was told last.
    told: AtomicU64,
}

/// Hears of the sizes of one disk, see [`RawDisk::watch_size`](crate::RawDisk::watch_size). Its descriptor is readable
/// when the disk has another size than was taken last, for any event loop, on any thread.
pub struct SizeWatch {
    watched: Arc<Watched>,
    size: Arc<DiskSize>,
}

impl DiskSize {
    /// A size in bytes that nobody watches yet.
    pub fn new(bytes: u64) -> Arc<Self> {
        Arc::new(DiskSize { bytes: AtomicU64::new(bytes), watchers: Mutex::default() })
    }

    /// The size now, in bytes.
    pub fn get(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// Another size, of which all are told if it is another one.
    pub fn set(&self, bytes: u64) {
        if self.bytes.swap(bytes, Ordering::AcqRel) == bytes {
            return;
        }
        let mut watchers = self.watchers.lock();
        watchers.retain(|watcher| watcher.strong_count() > 0);
        let told: Vec<_> = watchers.iter().filter_map(Weak::upgrade).collect();
        drop(watchers);
        told.iter().for_each(|watched| watched.event.signal());
    }

    /// Hears of every size from here on.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn watch(self: &Arc<Self>) -> io::Result<SizeWatch> {
        let told = AtomicU64::new(self.get());
        let watched = Arc::new(Watched { event: EventFd::new()?, told });
        self.watchers.lock().push(Arc::downgrade(&watched));
        Ok(SizeWatch { watched, size: self.clone() })
    }
}

impl SizeWatch {
    /// The size in bytes, if it is another one than was taken last, or than it was when the watch began. Of several
    /// changes since then only the last is told.
    pub fn take(&self) -> Option<u64> {
        // Before the look, so that a change behind it makes the descriptor readable again.
        self.watched.event.take();
        let size = self.size.get();
        (self.watched.told.swap(size, Ordering::AcqRel) != size).then_some(size)
    }
}

impl AsFd for SizeWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watched.event.as_fd()
    }
}

impl AsRawFd for SizeWatch {
    fn as_raw_fd(&self) -> RawFd {
        self.watched.event.as_raw_fd()
    }
}
