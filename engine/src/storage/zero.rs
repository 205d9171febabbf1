//! Making ranges read as zeros, and giving them back: the ladder of kernel calls.

use blkring_tracker::sync::atomic::{AtomicU8, Ordering};
use blkring_tracker::{Class, Guard, Span};

use super::Storage;
use crate::error::{Operation, Result, is_unsupported};
use crate::lane::Lane;
use crate::memory::IoMem;
use crate::op::{Allocate, Op, Verb};
use crate::request::Flags;
use crate::variant::Variant;

/// The most that one zero-filled write covers, in bytes.
const FALLBACK_CHUNK: u64 = 16 << 20;

/// The buffer of zeros that such a write repeats.
const ZERO_BUFFER: u64 = 64 << 10;

/// The calls that this file's kernel does not have.
#[derive(Default)]
pub(super) struct Modes(AtomicU8);

const NO_PUNCH: u8 = 1;
const NO_ZERO_RANGE: u8 = 2;
const NO_ALLOCATE: u8 = 4;

impl Modes {
    fn lacks(&self, mode: u8) -> bool {
        self.0.load(Ordering::Relaxed) & mode != 0
    }

    fn give_up(&self, mode: u8) {
        self.0.fetch_or(mode, Ordering::Relaxed);
    }

    /// Whether a zero-write without fallback may succeed.
    pub(super) fn may_be_fast(&self) -> bool {
        !self.lacks(NO_ZERO_RANGE) || !self.lacks(NO_PUNCH | NO_ALLOCATE)
    }
}

impl Storage {
    /// Makes [offset, offset + len) read as zeros; the file grows to the end of the range. With
    /// [`Flags::MAY_UNMAP`] the space may be given back, with [`Flags::NO_FALLBACK`] no zero is ever written out,
    /// with [`Flags::FUA`] the result is durable.
    ///
    /// A zero-write that ends beyond the end of the file waits for everything in flight from its start or the end of
    /// the file, whichever is lower, and everything there waits for it: kernels before Linux 5.5 computed the new
    /// size of an XFS file before they waited for direct I/O, and cut off what that had written.
    ///
    /// # Errors
    /// ENOTSUP with `NO_FALLBACK` where no call does it; EBADF, EFBIG, and what the kernel says.
    pub async fn write_zeroes(
        &self,
        lane: &Lane,
        offset: u64,
        len: u64,
        flags: Flags,
    ) -> Result<()> {
        self.check_writable(Operation::WriteZeroes, offset)?;
        let end = self.check_range(Operation::WriteZeroes, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let zeros = if flags.contains(Flags::NO_FALLBACK) {
            None
        } else {
            // Taken before the grant, whether it will be needed or not: see the order of waits.
            let buffer =
                self.buffers.take(usize::try_from(ZERO_BUFFER.min(len)).expect("small")).await;
            Some(buffer.mem())
        };
        let guard = self.admit_zeroes(offset, end).await;
        let (result, guard) = self.zero_fast(lane, (offset, len), flags, guard).await;
        match (result, zeros) {
            (0.., _) => (),
            (failed, Some(zeros)) if is_unsupported(-failed) => {
                self.zero_slowly(lane, (offset, len), zeros, guard).await?;
            }
            (failed, None) if is_unsupported(-failed) => {
                return Err(self.error(Operation::WriteZeroes, offset, libc::ENOTSUP));
            }
            (failed, _) => return Err(self.error(Operation::WriteZeroes, offset, failed)),
        }
        if flags.contains(Flags::FUA) { self.flush(lane).await } else { Ok(()) }
    }

    /// Gives [offset, offset + len) back to the host; its contents are unspecified afterwards. Success where the
    /// host cannot do it.
    ///
    /// # Errors
    /// EBADF, EFBIG, and what the kernel says.
    pub async fn discard(&self, lane: &Lane, offset: u64, len: u64) -> Result<()> {
        self.check_writable(Operation::Discard, offset)?;
        let end = self.check_range(Operation::Discard, offset, len)?.min(self.size());
        if offset >= end || self.zeroing.lacks(NO_PUNCH) {
            return Ok(());
        }
        let guard = self.tracker.begin(Span::new(offset, end), Class::Shared).await;
        let (result, _guard) =
            self.allocate(lane, Allocate::PunchHole, (offset, end - offset), guard).await;
        match result {
            0.. => Ok(()),
            _ if is_unsupported(-result) => {
                self.zeroing.give_up(NO_PUNCH);
                Ok(())
            }
            _ => Err(self.error(Operation::Discard, offset, result)),
        }
    }

    /// Admission of a zero-write: alone to infinity if the file may grow.
    async fn admit_zeroes(&self, offset: u64, end: u64) -> Guard {
        let guard = self.tracker.begin(Span::new(offset, end), Class::Shared).await;
        let size = self.size();
        if end <= size || self.variants.has(Variant::GrowthNotSerialised) {
            return guard;
        }
        let span = if self.variants.has(Variant::ZeroWriteWidensToOwnRange) {
            Span::new(offset, end)
        } else {
            Span::to_infinity(offset.min(size))
        };
        tracing::debug!(path = %self.path(), offset, size, "widen");
        let mut guard = guard.widen(span).await.guard;
        // The size may have changed while this waited. Whatever it is now, the grant must reach from there.
        while self.size() < guard.span().start
            && !self.variants.has(Variant::ZeroWriteWidensToOwnRange)
        {
            guard = guard.widen(Span::to_infinity(self.size())).await.guard;
        }
        guard
    }

    /// The calls that zero without writing, in turn. ENOTSUP if there is none.
    async fn zero_fast(
        &self,
        lane: &Lane,
        range: (u64, u64),
        flags: Flags,
        guard: Guard,
    ) -> (i32, Guard) {
        let modes = &self.zeroing;
        let mut guard = guard;
        let mut result;
        let inside = range.0 + range.1 <= self.size();
        if flags.contains(Flags::MAY_UNMAP) && inside && !modes.lacks(NO_PUNCH) {
            (result, guard) = self.allocate(lane, Allocate::PunchHole, range, guard).await;
            if !is_unsupported(-result) && !matches!(-result, libc::EINVAL | libc::EBUSY) {
                return (result, guard);
            }
        }
        if !modes.lacks(NO_ZERO_RANGE) {
            (result, guard) = self.allocate(lane, Allocate::ZeroRange, range, guard).await;
            if is_unsupported(-result) {
                modes.give_up(NO_ZERO_RANGE);
            } else if result != -libc::EINVAL {
                return (result, guard);
            }
        }
        if !modes.lacks(NO_PUNCH | NO_ALLOCATE) {
            (result, guard) = self.allocate(lane, Allocate::PunchHole, range, guard).await;
            if is_unsupported(-result) {
                modes.give_up(NO_PUNCH);
            } else if result >= 0 {
                return self.allocate_or_give_up(lane, range, guard).await;
            } else if result != -libc::EINVAL {
                return (result, guard);
            }
        }
        if range.0 >= self.size() && !modes.lacks(NO_ALLOCATE) {
            return self.allocate_or_give_up(lane, range, guard).await;
        }
        (-libc::EOPNOTSUPP, guard)
    }

    async fn allocate_or_give_up(
        &self,
        lane: &Lane,
        range: (u64, u64),
        guard: Guard,
    ) -> (i32, Guard) {
        let (result, guard) = self.allocate(lane, Allocate::Grow, range, guard).await;
        if is_unsupported(-result) {
            self.zeroing.give_up(NO_ALLOCATE);
        }
        (result, guard)
    }

    async fn allocate(
        &self,
        lane: &Lane,
        mode: Allocate,
        range: (u64, u64),
        guard: Guard,
    ) -> (i32, Guard) {
        let (offset, len) = range;
        self.issue(lane, guard, || Op::plain(&self.device, Verb::Allocate(mode), offset, len)).await
    }

    /// Writes zeros, padded to whole blocks by writing only within the range where it is aligned.
    async fn zero_slowly(
        &self,
        lane: &Lane,
        range: (u64, u64),
        zeros: IoMem,
        guard: Guard,
    ) -> Result<()> {
        let (offset, len) = range;
        zeros.fill(0..zeros.len(), 0);
        if (offset | len) & (self.alignment - 1) != 0 {
            drop(guard);
            return Box::pin(self.write(lane, offset, &repeated(&zeros, len), Flags::empty()))
                .await;
        }
        let mut guard = guard;
        let mut done = 0;
        while done < len {
            let part = (len - done).min(FALLBACK_CHUNK);
            let result;
            let at = offset + done;
            (result, guard) =
                self.transfer(lane, Verb::Write, at, &repeated(&zeros, part), guard).await;
            result?;
            done += part;
        }
        Ok(())
    }
}

/// `len` bytes of zeros out of one buffer of them.
fn repeated(zeros: &IoMem, len: u64) -> IoMem {
    let unit = zeros.len() as u64;
    let mut parts = vec![zeros.clone(); usize::try_from(len / unit).expect("bounded by the chunk")];
    let rest = usize::try_from(len % unit).expect("less than a buffer");
    if rest > 0 {
        parts.push(zeros.slice(0..rest));
    }
    IoMem::concat(&parts)
}
