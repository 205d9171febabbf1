//! Making ranges read as zeros, and giving them back.

use std::sync::LazyLock;

use blkring_tracker::{Class, Guard, Span};

use super::{Discarding, Medium, Storage};
use crate::buffers::BufferPool;
use crate::error::{Operation, Result, is_unsupported};
use crate::faults::Event;
use crate::lane::Lane;
use crate::memory::IoMem;
use crate::op::Verb;
use crate::request::Flags;
use crate::variant::Variant;

/// The most that one zero-filled write covers, in bytes.
const FALLBACK_CHUNK: u64 = 16 << 20;

/// The buffer of zeros that such a write repeats.
const ZERO_BUFFER: usize = 64 << 10;

impl Storage {
    /// Makes [offset, offset + len) read as zeros; the file grows to the end of the range. With
    /// [`Flags::MAY_UNMAP`] the space may be given back, with [`Flags::NO_FALLBACK`] no zero is ever written out,
    /// with [`Flags::FUA`] the result is durable. A zero-write that fails may have zeroed a part of its range.
    ///
    /// A zero-write that ends beyond the end of the file waits for everything in flight from its start or the end of
    /// the file, whichever is lower, and everything there waits for it: kernels before Linux 5.5 computed the new
    /// size of an XFS file before they waited for direct I/O, and cut off what that had written.
    ///
    /// On a block device only whole logical blocks are zeroed without writing; what is left of the range at its ends is
    /// written. Without fallback the space may be given back there whatever the flags say: the kernel has one call that
    /// never writes zeros, and that is what it does. With [`Discarding::Ignored`] it is not made. Where a device or its
    /// kernel has no fallocate, a call is made that blocks the thread of the queue (BLKZEROOUT).
    ///
    /// # Errors
    /// ENOTSUP with `NO_FALLBACK` where no call does it, or not for ends within a block; ENOSPC beyond the end of a
    /// block device; EBADF, EFBIG, and what the kernel says.
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
        if self.medium == Medium::BlockDevice && end > self.size() {
            return Err(self.error(Operation::WriteZeroes, offset, libc::ENOSPC));
        }
        let (first, last) = self.whole_units(offset, end);
        let is_whole = (first, last) == (offset, end);
        if flags.contains(Flags::NO_FALLBACK) && (!is_whole || self.is_barred()) {
            return Err(self.error(Operation::WriteZeroes, offset, libc::ENOTSUP));
        }
        if offset < first {
            self.write(lane, offset, &zeros(first - offset), Flags::empty()).await?;
        }
        if first < last {
            self.zero_units(lane, (first, last), flags).await?;
        }
        if last < end {
            self.write(lane, last, &zeros(end - last), Flags::empty()).await?;
        }
        self.point(Event::PwritevDone).await;
        if flags.contains(Flags::FUA) { self.flush(lane).await } else { Ok(()) }
    }

    /// Gives [offset, offset + len) back to the host; its contents are unspecified afterwards. Success where the
    /// host cannot do it, and with [`Discarding::Ignored`]. Of a block device whole logical blocks are given back; before
    /// Linux 6.12 by a call that blocks the thread of the queue (BLKDISCARD).
    ///
    /// # Errors
    /// EBADF, EFBIG, and what the kernel says.
    pub async fn discard(&self, lane: &Lane, offset: u64, len: u64) -> Result<()> {
        self.check_writable(Operation::Discard, offset)?;
        let end = self.check_range(Operation::Discard, offset, len)?.min(self.size());
        let (first, last) = self.whole_units(offset, end.max(offset));
        let may = self.discarding == Discarding::Done && self.modes.may_discard(self.medium);
        if first >= last || !may {
            return Ok(());
        }
        let guard = self.tracker.begin(Span::new(first, last), Class::Shared).await;
        let (result, _guard) = self.give_back(lane, (first, last - first), guard).await;
        match result {
            0.. => Ok(()),
            _ if is_unsupported(-result) => Ok(()),
            _ => Err(self.error(Operation::Discard, first, result)),
        }
    }

    /// The units that are zeroed or given back at once and lie whole in a range: from where to where. Without any, an
    /// empty range within it, at a border of units if there is one.
    fn whole_units(&self, start: u64, end: u64) -> (u64, u64) {
        let unit = match self.medium {
            Medium::File => 1,
            Medium::BlockDevice => u64::from(self.topology.logical_block),
        };
        let first = start.next_multiple_of(unit).min(end);
        (first, (end / unit * unit).max(first))
    }

    /// Zeros whole units, by the first call that does it, or by writing.
    async fn zero_units(&self, lane: &Lane, (start, end): (u64, u64), flags: Flags) -> Result<()> {
        let mut flags = flags;
        flags.set(
            Flags::MAY_UNMAP,
            flags.contains(Flags::MAY_UNMAP) && self.discarding == Discarding::Done,
        );
        let guard = self.admit_zeroes(start, end).await;
        self.point(Event::PwritevZero).await;
        let (result, guard) = self.zero_fast(lane, (start, end - start), flags, guard).await;
        let result = if self.variants.has(Variant::LadderErrnoIgnored) { 0 } else { result };
        match result {
            0.. => Ok(()),
            failed if !is_unsupported(-failed) => {
                Err(self.error(Operation::WriteZeroes, start, failed))
            }
            _ if flags.contains(Flags::NO_FALLBACK) => {
                Err(self.error(Operation::WriteZeroes, start, libc::ENOTSUP))
            }
            _ => self.zero_slowly(lane, (start, end - start), guard).await,
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
