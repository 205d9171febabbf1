//! Making ranges read as zeros, and giving them back: the ladder of kernel calls.

use std::sync::LazyLock;

use blkring_tracker::sync::atomic::{AtomicU8, Ordering};
use blkring_tracker::{Class, Guard, Span};

use super::Storage;
use crate::buffers::BufferPool;
use crate::error::{Operation, Result, is_unsupported};
use crate::faults::Event;
use crate::lane::Lane;
use crate::memory::IoMem;
use crate::op::{Allocate, Op, Verb};
use crate::request::Flags;
use crate::variant::Variant;

/// The most that one zero-filled write covers, in bytes.
const FALLBACK_CHUNK: u64 = 16 << 20;

/// The buffer of zeros that such a write repeats.
const ZERO_BUFFER: usize = 64 << 10;

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
        let guard = self.admit_zeroes(offset, end).await;
        self.point(Event::PwritevZero).await;
        let (result, guard) = self.zero_fast(lane, (offset, len), flags, guard).await;
        match result {
            0.. => drop(guard),
            failed if !is_unsupported(-failed) => {
                return Err(self.error(Operation::WriteZeroes, offset, failed));
            }
            _ if flags.contains(Flags::NO_FALLBACK) => {
                return Err(self.error(Operation::WriteZeroes, offset, libc::ENOTSUP));
            }
            _ => self.zero_slowly(lane, (offset, len), guard).await?,
        }
        self.point(Event::PwritevDone).await;
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
            self.allocate(lane, Allocate::Discard, (offset, end - offset), guard).await;
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
        let guard = guard.widen(span).await.guard;
        if self.variants.has(Variant::ZeroWriteWidensToOwnRange) {
            return guard;
        }
        self.reach_end(guard).await
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
            if is_unsupported(-result) {
                modes.give_up(NO_PUNCH);
            } else if !matches!(-result, libc::EINVAL | libc::EBUSY) {
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

    /// Writes zeros. What is not aligned goes the way of a write, which is admitted anew and takes its buffer first:
    /// nobody waits for a buffer under a grant.
    async fn zero_slowly(
        &self,
        lane: &Lane,
        (offset, len): (u64, u64),
        guard: Guard,
    ) -> Result<()> {
        let aligned = (offset | len) & (self.alignment - 1) == 0;
        let mut held = Some(guard).filter(|_| aligned);
        let mut done = 0;
        while done < len {
            let part = (len - done).min(FALLBACK_CHUNK);
            let (at, zeros) = (offset + done, zeros(part));
            held = match held {
                Some(guard) => {
                    let (result, guard) = self.transfer(lane, Verb::Write, at, &zeros, guard).await;
                    result?;
                    Some(guard)
                }
                None => {
                    self.write(lane, at, &zeros, Flags::empty()).await?;
                    None
                }
            };
            done += part;
        }
        Ok(())
    }
}

/// Zeros for all writes of them; nothing ever reads into this memory.
static ZEROS: LazyLock<IoMem> = LazyLock::new(|| {
    let buffer =
        BufferPool::new(0).try_take(ZERO_BUFFER).expect("a first buffer may exceed its budget");
    buffer.mem().fill(0..ZERO_BUFFER, 0);
    buffer.mem()
});

/// `len` bytes of zeros out of one buffer of them.
fn zeros(len: u64) -> IoMem {
    let len = usize::try_from(len).expect("bounded by the chunk");
    let mut parts = vec![ZEROS.clone(); len / ZERO_BUFFER];
    parts.push(ZEROS.slice(0..len % ZERO_BUFFER));
    IoMem::concat(&parts)
}
