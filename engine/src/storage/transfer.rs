//! Reads and writes: aligned ones go straight to the file, others through a buffer.

use blkring_tracker::{Class, Guard, Span};

use super::{Flushing, Storage};
use crate::buffers::Buffer;
use crate::error::{Operation, Result};
use crate::faults::Event;
use crate::lane::{Lane, LaneKind};
use crate::memory::IoMem;
use crate::op::{Op, Verb};
use crate::request::Flags;
use crate::uring::MAX_SEGMENTS;
use crate::variant::Variant;

/// The largest piece that goes through a buffer at once, in bytes.
const BOUNCE: u64 = 256 << 10;

impl Storage {
    /// Fills `mem` from `offset`; what lies beyond the end of the file reads as zeros.
    ///
    /// Dropping the future gives up the answer; operations in flight keep their memory and their range.
    ///
    /// # Errors
    /// EFBIG beyond 2^63-1, and what the kernel says.
    pub async fn read(&self, lane: &Lane, offset: u64, mem: &IoMem) -> Result<()> {
        self.check_range(Operation::Read, offset, mem.len() as u64)?;
        if mem.is_empty() {
            return Ok(());
        }
        if self.is_aligned(offset, mem) {
            let guard = self.tracker.begin(Span::at(offset, mem.len() as u64), Class::Shared).await;
            return self.transfer(lane, Verb::Read, offset, mem, guard).await.0;
        }
        for (start, end) in self.pieces(offset, mem.len() as u64) {
            let buffer = self.bounce(lane, start, end).await;
            let (from, to) = self.padded(start, end);
            let guard = self.tracker.begin(Span::new(from, to), Class::Shared).await;
            self.transfer(lane, Verb::Read, from, &buffer.mem(), guard).await.0?;
            copy(
                &buffer.mem(),
                index(start - from),
                mem,
                index(start - offset),
                index(end - start),
            );
        }
        Ok(())
    }

    /// Writes `mem` at `offset`, durably with [`Flags::FUA`]. A range that is not aligned is read, changed and
    /// written while everything else in its blocks waits; an error of that read fails the write.
    ///
    /// # Errors
    /// EBADF on a read-only storage, EFBIG beyond 2^63-1, and what the kernel says.
    pub async fn write(&self, lane: &Lane, offset: u64, mem: &IoMem, flags: Flags) -> Result<()> {
        self.check_writable(Operation::Write, offset)?;
        let end = self.check_range(Operation::Write, offset, mem.len() as u64)?;
        if mem.is_empty() {
            return Ok(());
        }
        let durable = flags.contains(Flags::FUA) && self.flushing == Flushing::Done;
        let verb = if durable { Verb::WriteDurable } else { Verb::Write };
        if self.is_aligned(offset, mem) {
            let guard = self.tracker.begin(Span::new(offset, end), Class::Shared).await;
            self.point(Event::Pwritev).await;
            let result = self.transfer(lane, verb, offset, mem, guard).await.0;
            self.point(Event::PwritevDone).await;
            return result;
        }
        let (from, to) = self.padded(offset, end);
        let buffer = self.bounce(lane, offset, end).await;
        let class = if (from, to) == (offset, end) || self.variants.has(Variant::RmwNotSerialised) {
            Class::Shared
        } else {
            Class::Serialising
        };
        let mut guard = self.tracker.begin(Span::new(from, to), class).await;
        for (start, end) in self.pieces(offset, mem.len() as u64) {
            let result;
            (result, guard) =
                self.write_padded(lane, verb, (start, end), (offset, mem), &buffer, guard).await;
            result?;
        }
        self.point(Event::PwritevDone).await;
        Ok(())
    }

    /// Writes the bytes [start, end) of a request by way of `buffer`, with the bytes around them read first. The
    /// inner read runs under the grant of the write.
    async fn write_padded(
        &self,
        lane: &Lane,
        verb: Verb,
        (start, end): (u64, u64),
        (offset, mem): (u64, &IoMem),
        buffer: &Buffer,
        guard: Guard,
    ) -> (Result<()>, Guard) {
        let (from, to) = self.padded(start, end);
        let whole = buffer.mem().slice(0..index(to - from));
        let mut guard = guard;
        let unit = self.alignment;
        let blocks = if to - from <= 2 * unit {
            [(from != start || to != end).then_some((from, to)), None]
        } else {
            [(from != start).then_some((from, from + unit)), (to != end).then_some((to - unit, to))]
        };
        for (first, last) in blocks.into_iter().flatten() {
            let block = whole.slice(index(first - from)..index(last - from));
            let head = first == from && from != start;
            self.point(if head { Event::PwritevRmwHead } else { Event::PwritevRmwTail }).await;
            let result;
            (result, guard) = self.transfer(lane, Verb::Read, first, &block, guard).await;
            let after = if head { Event::PwritevRmwAfterHead } else { Event::PwritevRmwAfterTail };
            self.point(after).await;
            if result.is_err() {
                return (result, guard);
            }
        }
        copy(mem, index(start - offset), &whole, index(start - from), index(end - start));
        self.point(Event::Pwritev).await;
        self.transfer(lane, verb, from, &whole, guard).await
    }

    /// Moves all bytes of `mem`, however many ops that takes, under `guard`.
    pub(super) async fn transfer(
        &self,
        lane: &Lane,
        verb: Verb,
        offset: u64,
        mem: &IoMem,
        guard: Guard,
    ) -> (Result<()>, Guard) {
        let operation = if verb == Verb::Read { Operation::Read } else { Operation::Write };
        let mut guard = guard;
        let mut done = 0;
        while done < mem.len() {
            let at = offset + done as u64;
            let rest = mem.slice(done..mem.len());
            let result;
            (result, guard) = self
                .issue(lane, guard, || Op::transfer(&self.device, verb, at, rest.clone()))
                .await;
            match usize::try_from(result) {
                Err(_) => return (Err(self.error(operation, at, result)), guard),
                Ok(0) if verb != Verb::Read => {
                    return (Err(self.error(operation, at, libc::ENOSPC)), guard);
                }
                Ok(moved) => done += moved,
            }
            // The end of the file: nothing was ever written beyond it. Where it is in the middle of a block, asking
            // again from there would not be aligned.
            if verb == Verb::Read && self.is_end(result, offset + done as u64) {
                mem.fill(done..mem.len(), 0);
                break;
            }
        }
        (Ok(()), guard)
    }

    /// Whether a read that moved `moved` bytes, up to `at`, stopped because the file ends there.
    fn is_end(&self, moved: i32, at: u64) -> bool {
        moved == 0 || at & (self.alignment - 1) != 0
    }

    /// Whether this can go to the file as it is. Memory in more segments than one call takes is moved by several,
    /// each of which would have to end at a block as well: that goes through a buffer.
    fn is_aligned(&self, offset: u64, mem: &IoMem) -> bool {
        (offset | mem.len() as u64) & (self.alignment - 1) == 0
            && mem.is_aligned(self.memory_alignment)
            && (self.alignment == 1 || mem.segments().nth(MAX_SEGMENTS).is_none())
    }

    /// The range with its ends moved out to whole blocks.
    fn padded(&self, start: u64, end: u64) -> (u64, u64) {
        (start & !(self.alignment - 1), end.next_multiple_of(self.alignment))
    }

    /// A range cut at multiples of the bounce size.
    fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (step, end) = (BOUNCE.max(self.alignment), offset + len);
        let mut at = offset;
        std::iter::from_fn(move || {
            let start = at;
            at = ((start / step + 1) * step).min(end);
            (start < end).then_some((start, at))
        })
    }

    /// A buffer for the largest padded piece of a range.
    async fn bounce(&self, lane: &Lane, start: u64, end: u64) -> Buffer {
        let (from, to) = self.padded(start, end);
        let pool = match lane.kind() {
            LaneKind::Queue => &self.buffers,
            LaneKind::Service => &self.shared_buffers,
        };
        pool.take(index((to - from).min(BOUNCE.max(self.alignment)))).await
    }
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("lengths of requests fit the memory they are in")
}

/// Copies between two memories through a small array.
fn copy(from: &IoMem, at: usize, to: &IoMem, to_at: usize, len: usize) {
    let mut small = [0; 4096];
    let mut done = 0;
    while done < len {
        let part = (len - done).min(small.len());
        from.copy_out(at + done, &mut small[..part]);
        to.copy_in(to_at + done, &small[..part]);
        done += part;
    }
}
