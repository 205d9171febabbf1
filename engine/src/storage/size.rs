//! Growing and cutting a file, each alone from the lower of the old end and its start to infinity.

use blkring_tracker::{Class, Guard, Span};

use super::Storage;
use crate::error::{Operation, Result, is_unsupported};
use crate::lane::Lane;
use crate::op::{Allocate, Op, Verb};
use crate::variant::Variant;

impl Storage {
    /// Makes the file at least `size` bytes long, with space for what is new. It can only grow: whatever others have
    /// written beyond `size` meanwhile stays.
    ///
    /// # Errors
    /// ENOSPC and what else the kernel says; the size is then what it was.
    pub async fn grow(&self, lane: &Lane, size: u64) -> Result<()> {
        self.check_writable(Operation::Resize, size)?;
        self.check_range(Operation::Resize, size, 0)?;
        if self.size() >= size {
            // Nothing to do, and nobody to wait for.
            return Ok(());
        }
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
    /// What the kernel says; the size is then what it was.
    pub async fn grow_by_hole(&self, lane: &Lane, size: u64) -> Result<()> {
        self.check_writable(Operation::Resize, size)?;
        self.check_range(Operation::Resize, size, 0)?;
        if self.size() >= size {
            return Ok(());
        }
        let guard = self.alone_from_end(size).await;
        // An absolute size is safe here: nobody else grows or writes beyond.
        if self.size() >= size { Ok(()) } else { self.set_size(lane, size, guard).await }
    }

    /// Sets the size, cutting off or adding a hole.
    ///
    /// # Errors
    /// What the kernel says.
    pub async fn resize(&self, lane: &Lane, size: u64) -> Result<()> {
        self.check_writable(Operation::Resize, size)?;
        self.check_range(Operation::Resize, size, 0)?;
        let guard = self.alone_from_end(size).await;
        self.set_size(lane, size, guard).await
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
