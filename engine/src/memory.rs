//! The memory of a request: segments of bytes with an owner that keeps them alive.
//!
//! Guest memory is never seen as a Rust slice: a guest may write to it at any time. Everything that looks at bytes
//! copies them first. The address of a segment is kept as a number; only the copying functions below and the
//! kernel turn it into a pointer.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// One run of bytes at a fixed address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Address of the first byte.
    pub address: usize,
    /// Length in bytes.
    pub len: usize,
}

#[derive(Clone)]
enum Segments {
    One(Segment),
    Many(Arc<[Segment]>),
}

/// Scattered memory together with what keeps it alive. Clones and slices share the owner; none of them copies bytes.
#[derive(Clone)]
pub struct IoMem {
    segments: Segments,
    /// Bytes of the segments before the window.
    skip: usize,
    len: usize,
    _owner: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for IoMem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoMem").field("len", &self.len).finish_non_exhaustive()
    }
}

impl IoMem {
    /// Memory described by `segments`, kept alive by `owner`.
    ///
    /// # Safety
    /// Every segment stays mapped, readable and (if it is the target of a read) writable until `owner` is dropped.
    /// Others may write to it meanwhile, as guests do; nobody may hold a Rust reference into it.
    pub unsafe fn from_segments(segments: &[Segment], owner: Arc<dyn Any + Send + Sync>) -> Self {
        let len = segments.iter().map(|s| s.len).sum();
        let segments = match segments {
            [one] => Segments::One(*one),
            many => Segments::Many(many.into()),
        };
        IoMem { segments, skip: 0, len, _owner: owner }
    }

    /// Several pieces of memory as one, in order.
    pub fn concat(parts: &[IoMem]) -> Self {
        let segments: Vec<Segment> = parts.iter().flat_map(IoMem::segments).collect();
        let owner: Arc<dyn Any + Send + Sync> = Arc::new(parts.to_vec());
        let len = parts.iter().map(|p| p.len).sum();
        IoMem { segments: Segments::Many(segments.into()), skip: 0, len, _owner: owner }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes `range` of this memory, sharing its owner.
    ///
    /// # Panics
    /// If the range does not lie within it: a bug of the caller.
    pub fn slice(&self, range: Range<usize>) -> IoMem {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "slice outside the memory of a request"
        );
        IoMem { skip: self.skip + range.start, len: range.end - range.start, ..self.clone() }
    }

    /// The segments of this window, none of them empty.
    pub fn segments(&self) -> impl Iterator<Item = Segment> + '_ {
        let all: &[Segment] = match &self.segments {
            Segments::One(one) => std::slice::from_ref(one),
            Segments::Many(many) => many,
        };
        let (mut skip, mut left) = (self.skip, self.len);
        all.iter().filter_map(move |segment| {
            let passed = skip.min(segment.len);
            skip -= passed;
            let len = (segment.len - passed).min(left);
            left -= len;
            (len > 0).then_some(Segment { address: segment.address + passed, len })
        })
    }

    /// Copies bytes starting at `at` into `to`.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) {
        let mut done = 0;
        for segment in self.slice(at..at + to.len()).segments() {
            // SAFETY: the owner keeps the segment mapped (`from_segments`), and the window is within it by `slice`.
            // Test: `copies_cross_segments` under a sanitizer.
            unsafe {
                std::ptr::copy(pointer(segment), to[done..].as_mut_ptr(), segment.len);
            }
            done += segment.len;
        }
    }

    /// Copies `from` into this memory, starting at `at`.
    pub fn copy_in(&self, at: usize, from: &[u8]) {
        let mut done = 0;
        for segment in self.slice(at..at + from.len()).segments() {
            // SAFETY: as in `copy_out`; the memory of a read is writable by the contract of `from_segments`.
            unsafe {
                std::ptr::copy(from[done..].as_ptr(), pointer(segment), segment.len);
            }
            done += segment.len;
        }
    }

    /// Fills the bytes `range` with `byte`.
    pub fn fill(&self, range: Range<usize>, byte: u8) {
        for segment in self.slice(range).segments() {
            // SAFETY: as in `copy_in`.
            unsafe {
                std::ptr::write_bytes(pointer(segment), byte, segment.len);
            }
        }
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        self.copy_out(0, &mut bytes);
        bytes
    }

    /// Whether every segment starts and ends at a multiple of `alignment` (a power of two), as direct I/O asks.
    pub(crate) fn is_aligned(&self, alignment: usize) -> bool {
        self.segments().all(|s| (s.address | s.len) & (alignment - 1) == 0)
    }
}

fn pointer(segment: Segment) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(segment.address)
}

impl From<Vec<u8>> for IoMem {
    /// Memory that holds the bytes of `bytes`, for writes.
    fn from(bytes: Vec<u8>) -> Self {
        let mut bytes = bytes.into_boxed_slice();
        let segment = Segment { address: bytes.as_mut_ptr().expose_provenance(), len: bytes.len() };
        // SAFETY: the box lives in the owner, at an address that does not change, and nobody else can reach it.
        // Test: `copies_cross_segments`.
        unsafe { IoMem::from_segments(&[segment], Arc::new(Owned(bytes))) }
    }
}

/// Keeps a box alive without anybody being able to borrow from it again.
struct Owned(#[expect(dead_code, reason = "held only to be dropped")] Box<[u8]>);

#[cfg(test)]
mod tests {
    use super::*;

    fn scattered() -> IoMem {
        IoMem::concat(&[IoMem::from(vec![1; 3]), IoMem::from(vec![2; 5]), IoMem::from(vec![3; 2])])
    }

    #[test]
    fn copies_cross_segments() {
        let mem = scattered();
        assert_eq!(mem.to_vec(), [1, 1, 1, 2, 2, 2, 2, 2, 3, 3]);
        mem.copy_in(2, &[9, 8, 7, 6, 5, 4, 0]);
        assert_eq!(mem.to_vec(), [1, 1, 9, 8, 7, 6, 5, 4, 0, 3]);
        mem.fill(7..10, 0xee);
        assert_eq!(mem.slice(6..9).to_vec(), [5, 0xee, 0xee]);
    }

    #[test]
    fn a_slice_of_a_slice_shares_bytes() {
        let mem = scattered();
        let inner = mem.slice(1..9).slice(1..6);
        inner.fill(0..5, 0);
        assert_eq!(mem.to_vec(), [1, 1, 0, 0, 0, 0, 0, 2, 3, 3]);
        assert_eq!(inner.segments().map(|s| s.len).collect::<Vec<_>>(), [1, 4]);
    }
}
