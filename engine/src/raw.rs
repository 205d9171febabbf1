//! A raw disk: a storage as the target of queues.

use std::io;
use std::sync::Arc;

use blkring_tracker::{Class, Guard, Span, Tracker};

use crate::error::{IoError, Operation, Result};
use crate::faults::Event;
use crate::lane::Lane;
use crate::quiesce::Quiesced;
use crate::request::{Action, Request};
use crate::service::Service;
use crate::size_watch::{DiskSize, SizeWatch};
use crate::storage::{Access, Storage, Topology};
use crate::target::{Context, Target};

/// The size of a raw disk is a multiple of so many bytes: where the file ends before, the rest reads as zeros.
const SECTOR: u64 = 512;

/// Guest offsets are file offsets. The size is that of the file when it was opened, in whole sectors, until it is
/// changed by [`RawDisk::resize`] or looked at again by [`RawDisk::refresh_size`].
pub struct RawDisk {
    storage: Arc<Storage>,
    size: Arc<DiskSize>,
    /// Requests that one grant of the storage does not cover: [`RawDisk::quiesce`] waits for them as a whole.
    parts: Arc<Tracker>,
}

impl RawDisk {
    /// The disk in `storage`.
    pub fn new(storage: Storage) -> Arc<Self> {
        let size = DiskSize::new(storage.size().next_multiple_of(SECTOR));
        Arc::new(RawDisk { storage: Arc::new(storage), size, parts: Tracker::new() })
    }

    /// What it is stored in.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    /// Gives the file another size, in whole sectors: what is beyond is cut off, what is new is a hole.
    ///
    /// # Errors
    /// As of [`Storage::resize`]; EINVAL if the size is beyond the largest offset.
    pub async fn resize(&self, lane: &Lane, size: u64) -> Result<()> {
        let whole = size.checked_next_multiple_of(SECTOR);
        let size =
            whole.ok_or_else(|| self.storage.error(Operation::Resize, size, libc::EINVAL))?;
        let _parts = self.enter().await;
        self.storage.resize(lane, size).await?;
        self.size.set(size);
        Ok(())
    }

    /// Holds the disk still: waits until no request is under way, has what was written made durable, and keeps
    /// everything that comes after from beginning, [`RawDisk::resize`] included, until the answer is dropped. Operations
    /// go to `lane`. Dropping the future gives it up.
    ///
    /// It waits for those requests only that began before it, since all others wait behind it, and each of them ends by
    /// its own operations. So it ends if every queue with such a request is turned, or dropped. One that nobody turns
    /// keeps it waiting. A second call waits until the first has let go.
    ///
    /// # Errors
    /// What the flush met; the disk goes on then.
    pub async fn quiesce(&self, lane: &Lane) -> Result<Quiesced> {
        let parts = self.parts.begin(Span::new(0, 1), Class::Serialising).await;
        let all = self.storage.hold().await;
        if self.storage.access() == Access::ReadWrite {
            self.storage.flush(lane).await?;
        }
        Ok(Quiesced::new((all, parts)))
    }

    /// To be held for the length of what one grant of the storage does not cover.
    async fn enter(&self) -> Guard {
        self.parts.begin(Span::new(0, 1), Class::Shared).await
    }

    /// Looks at the size of the file or device, which somebody else may have changed (a volume was extended, the medium
    /// of a device replaced), and gives it, in whole sectors. From here on it is that of the disk, and whoever watches
    /// it is told. The kernel sends no event to those who have a device open; to be called when the one who changes it
    /// says so, or at intervals.
    ///
    /// # Errors
    /// As of [`Storage::refresh_size`].
    pub async fn refresh_size(&self) -> Result<u64> {
        let size = self.storage.refresh_size().await?.next_multiple_of(SECTOR);
        self.size.set(size);
        Ok(size)
    }

    /// Hears of every size that the disk gets from here on, by whichever queue and thread.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn watch_size(&self) -> io::Result<SizeWatch> {
        self.size.watch()
    }

    fn check(&self, operation: Operation, request: &Request) -> Result<()> {
        let end = request.offset.checked_add(request.len());
        if end.is_some_and(|end| end <= self.size()) {
            return Ok(());
        }
        Err(IoError::new(self.storage.path(), operation, request.offset, libc::EIO))
    }
}

impl Target for RawDisk {
    async fn run(self: Arc<Self>, context: Context, request: Request) -> Result<()> {
        let (storage, lane) = (&self.storage, &context.lane);
        let (offset, flags) = (request.offset, request.flags);
        match &request.action {
            Action::Read(mem) => {
                self.check(Operation::Read, &request)?;
                storage.point(Event::ReadAio).await;
                storage.read(lane, offset, mem).await
            }
            Action::Write(mem) => {
                self.check(Operation::Write, &request)?;
                storage.point(Event::WriteAio).await;
                storage.write(lane, offset, mem, flags).await
            }
            Action::WriteZeroes(len) => {
                let _parts = self.enter().await;
                self.check(Operation::WriteZeroes, &request)?;
                storage.write_zeroes(lane, offset, *len, flags).await
            }
            Action::Discard(len) => {
                let _parts = self.enter().await;
                self.check(Operation::Discard, &request)?;
                storage.discard(lane, offset, *len).await
            }
            Action::Flush => {
                let _parts = self.enter().await;
                storage.flush(lane).await
            }
        }
    }

    fn service(&self) -> Option<&Arc<Service>> {
        None
    }

    fn size(&self) -> u64 {
        self.size.get()
    }

    fn topology(&self) -> Topology {
        self.storage.topology()
    }

    fn path(&self) -> &Arc<str> {
        self.storage.path()
    }
}
