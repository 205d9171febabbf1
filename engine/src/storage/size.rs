//! Growing and cutting a file, each alone from the lower of the old end and its start to infinity.

use blkring_tracker::{Class, Guard, Span};

use super::{Medium, Storage};
use crate::device::Kind;
use crate::error::{IoError, Operation, Result, is_unsupported};
use crate::lane::Lane;
use crate::op::{Allocate, Op, Verb};
use crate::variant::Variant;

impl Storage {
    /// Makes the file at least `size` bytes long, with space for what is new. It can only grow: whatever others have
    /// written beyond `size` meanwhile stays.
    ///
    /// # Errors
    /// ENOSPC, always on a block device, and what else the kernel says; the size is then what it was.
    pub async fn grow(&self, lane: &Lane, size: u64) -> Result<()> {
        self.check_writable(Operation::Resize, size)?;
        self.check_range(Operation::Resize, size, 0)?;
        if self.size() >= size {
            // Nothing to do, and nobody to wait for.
            return Ok(());
        }
        self.check_growth()?;
        let guard = self.alone_from_end(size).await;
        let old = self.size();
        if old >= size {
            return Ok(());
        }
        let (result, guard) = self
            .issue(lane, guard, || {
                Op::plain(&self.device, Verb::Allocate(Allocate::Grow), old, size - old)
            })
            .await;
        match result {
            0.. => Ok(()),
            // The file system cannot allocate. An absolute size is safe here: nobody else grows or writes beyond.
            _ if is_unsupported(-result) => self.set_size(lane, size, guard).await,
            _ => Err(self.error(Operation::Resize, old, result)),
        }
    }

    /// Makes the file at least `size` bytes long, as [`Storage::grow`] does, by a hole: the file system puts no space
    /// aside for it.
    ///
    /// # Errors
    /// As of [`Storage::grow`].
    pub async fn grow_by_hole(&self, lane: &Lane, size: u64) -> Result<()> {
        self.check_writable(Operation::Resize, size)?;
        self.check_range(Operation::Resize, size, 0)?;
        if self.size() >= size {
            return Ok(());
        }
        self.check_growth()?;
        let guard = self.alone_from_end(size).await;
        // An absolute size is safe here: nobody else grows or writes beyond.
        if self.size() >= size { Ok(()) } else { self.set_size(lane, size, guard).await }
    }

    /// Sets the size, cutting off or adding a hole.
    ///
    /// # Errors
    /// What the kernel says; ENOTSUP for another size than that of a block device.
    pub async fn resize(&self, lane: &Lane, size: u64) -> Result<()> {
        self.check_writable(Operation::Resize, size)?;
        self.check_range(Operation::Resize, size, 0)?;
        if self.medium == Medium::BlockDevice {
            return if size == self.size() { Ok(()) } else { Err(self.fixed(libc::ENOTSUP)) };
        }
        let guard = self.alone_from_end(size).await;
        self.set_size(lane, size, guard).await
    }

    /// Looks at how large the file or device is, which somebody else may have changed, and gives that. For a file it
    /// waits for everything in flight, and everything else waits for it: what is being written may make it longer.
    ///
    /// # Errors
    /// What the kernel says; what was known of the size is kept then.
    pub async fn refresh_size(&self) -> Result<u64> {
        let Kind::File(file) = &self.device.kind else { return Ok(self.size()) };
        let _guard = match self.medium {
            Medium::File => {
                Some(self.tracker.begin(Span::to_infinity(0), Class::Serialising).await)
            }
            Medium::BlockDevice => None,
        };
        let size = self.medium.size(file).map_err(|error| {
            self.error(Operation::Resize, 0, error.raw_os_error().unwrap_or(libc::EIO))
        })?;
        self.device.learn_size(size);
        Ok(size)
    }

    /// A block device is as long as it is.
    fn check_growth(&self) -> Result<()> {
        match self.medium {
            Medium::File => Ok(()),
            Medium::BlockDevice => Err(self.fixed(libc::ENOSPC)),
        }
    }

    fn fixed(&self, errno: i32) -> IoError {
        self.error(Operation::Resize, self.size(), errno).because("a block device")
    }

    async fn set_size(&self, lane: &Lane, size: u64, guard: Guard) -> Result<()> {
        let (result, _guard) =
            self.issue(lane, guard, || Op::plain(&self.device, Verb::Truncate, size, 0)).await;
        if result < 0 {
            return Err(self.error(Operation::Resize, size, result));
        }
        Ok(())
    }

    /// A grant over everything from the lower of the end of the file and `size`, to infinity.
    async fn alone_from_end(&self, size: u64) -> Guard {
        if self.variants.has(Variant::GrowthNotSerialised) {
            return self.tracker.begin(Span::new(self.size(), self.size()), Class::Shared).await;
        }
        let from = self.size().min(size);
        let guard = self.tracker.begin(Span::to_infinity(from), Class::Serialising).await;
        self.reach_end(guard).await
    }

    /// Somebody may have cut the file while the grant was waited for. What lies between its end and the grant is part
    /// of a change of the size as well. A second time that is answered with the whole file, so that it ends.
    pub(super) async fn reach_end(&self, mut guard: Guard) -> Guard {
        for reach in [self.size(), 0] {
            if self.size() >= guard.span().start {
                break;
            }
            guard = guard.widen(Span::to_infinity(reach)).await.guard;
        }
        guard
    }
}
