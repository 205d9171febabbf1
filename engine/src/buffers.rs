//! Aligned buffers from a fixed budget, for what must be copied: bounces, read-modify-writes, copies on write.
//!
//! A buffer taken is a buffer that comes back: nobody waits for a second one while holding a first of the same
//! request ("a piece takes its copy and bounce buffers at once"), so that the budget may be as small as one buffer.

use std::alloc::Layout;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use blkring_tracker::sync::Mutex;

use crate::memory::{IoMem, Segment};

/// Buffers start and end at multiples of this many bytes.
pub const BUFFER_ALIGNMENT: usize = 4096;

/// What freed bytes are overwritten with in builds with assertions: no such byte may reach an image.
pub const POISON: u8 = 0xd5;

/// The pool. The lock *buffers* guards it.
pub struct BufferPool {
    state: Mutex<State>,
    budget: usize,
}

struct State {
    taken: usize,
    /// Allocations to be used again, largest last used first.
    idle: Vec<Allocation>,
    idle_bytes: usize,
    starving: Vec<Waker>,
}

/// Aligned memory of its own.
struct Allocation {
    address: usize,
    layout: Layout,
}

/// A buffer of the pool. Its bytes are reached through [`Buffer::mem`]; they are unspecified at first.
pub struct Buffer {
    shared: Arc<Shared>,
    len: usize,
}

struct Shared {
    allocation: Option<Allocation>,
    pool: Arc<BufferPool>,
}

impl BufferPool {
    /// A pool of `budget` bytes. One buffer larger than the budget is given out when nothing else is.
    pub fn new(budget: usize) -> Arc<Self> {
        let state = State { taken: 0, idle: Vec::new(), idle_bytes: 0, starving: Vec::new() };
        Arc::new(BufferPool { state: Mutex::new(state), budget })
    }

    /// The budget in bytes.
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// Bytes given out.
    pub fn taken(&self) -> usize {
        self.state.lock().taken
    }

    /// Waits for a buffer of `len` bytes.
    pub async fn take(self: &Arc<Self>, len: usize) -> Buffer {
        poll_fn(|cx| match self.try_take(len) {
            Some(buffer) => Poll::Ready(buffer),
            None => {
                let waker = cx.waker().clone();
                self.state.lock().starving.push(waker);
                // Between the two locks a buffer may have come back.
                self.try_take(len).map_or(Poll::Pending, Poll::Ready)
            }
        })
        .await
    }

    /// A buffer of `len` bytes if the budget has room now.
    pub fn try_take(self: &Arc<Self>, len: usize) -> Option<Buffer> {
        let size = len.max(1).next_multiple_of(BUFFER_ALIGNMENT);
        let mut state = self.state.lock();
        if state.taken > 0 && state.taken + size > self.budget {
            return None;
        }
        state.taken += size;
        let fitting = state.idle.iter().rposition(|a| a.layout.size() == size);
        let allocation = fitting.map(|at| state.idle.swap_remove(at));
        if allocation.is_some() {
            state.idle_bytes -= size;
        }
        drop(state);
        let allocation = allocation.unwrap_or_else(|| Allocation::new(size));
        Some(Buffer {
            shared: Arc::new(Shared { allocation: Some(allocation), pool: self.clone() }),
            len,
        })
    }

    fn give_back(&self, allocation: Allocation) {
        if cfg!(debug_assertions) {
            allocation.fill(POISON);
        }
        let size = allocation.layout.size();
        let mut state = self.state.lock();
        state.taken -= size;
        let keep = state.idle_bytes + size <= self.budget;
        let surplus = if keep {
            state.idle_bytes += size;
            state.idle.push(allocation);
            None
        } else {
            Some(allocation)
        };
        let starving = std::mem::take(&mut state.starving);
        drop(state);
        drop(surplus);
        starving.into_iter().for_each(Waker::wake);
    }
}

impl Allocation {
    fn new(size: usize) -> Self {
        let layout =
            Layout::from_size_align(size, BUFFER_ALIGNMENT).expect("sizes are bounded by requests");
        // SAFETY: the size is not zero. Test: `a_buffer_is_aligned_and_comes_back`.
        let address = unsafe { std::alloc::alloc_zeroed(layout) };
        if address.is_null() {
            std::alloc::handle_alloc_error(layout);
        }
        Allocation { address: address.expose_provenance(), layout }
    }

    fn fill(&self, byte: u8) {
        // SAFETY: the memory is this allocation's own, and no `IoMem` of it is left (`Shared::drop`).
        // Test: `a_dropped_read_keeps_its_memory`.
        unsafe {
            std::ptr::with_exposed_provenance_mut::<u8>(self.address)
                .write_bytes(byte, self.layout.size());
        }
    }
}

impl IoMem {
    /// Memory of its own, outside any budget, that holds `bytes` and is aligned for direct I/O.
    pub fn aligned(bytes: &[u8]) -> IoMem {
        let mem = IoMem::aligned_zeroed(bytes.len());
        mem.copy_in(0, bytes);
        mem
    }

    /// `len` zero bytes of its own, outside any budget, aligned for direct I/O.
    pub fn aligned_zeroed(len: usize) -> IoMem {
        let allocation = Allocation::new(len.max(1).next_multiple_of(BUFFER_ALIGNMENT));
        let segment = Segment { address: allocation.address, len };
        // SAFETY: the owner keeps the allocation, which is only reached through copies. Test:
        // `aligned_memory_is_its_own`.
        unsafe { IoMem::from_segments(&[segment], Arc::new(allocation)) }
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: made by `alloc_zeroed` with this layout, freed once. Test: as above, under a sanitizer.
        unsafe {
            std::alloc::dealloc(std::ptr::with_exposed_provenance_mut(self.address), self.layout);
        }
    }
}

impl Buffer {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it was asked for with length 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes, as memory of an op. The buffer returns to the pool when the last such memory is gone.
    pub fn mem(&self) -> IoMem {
        let allocation = self.shared.allocation.as_ref().expect("present until the drop");
        let segment = Segment { address: allocation.address, len: self.len };
        // SAFETY: the owner keeps the allocation; it is only reached through copies (`IoMem`), never by reference.
        // Test: `a_buffer_outlives_its_handle`.
        unsafe { IoMem::from_segments(&[segment], self.shared.clone()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(allocation) = self.allocation.take() {
            self.pool.give_back(allocation);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_comes_back() {
        let pool = BufferPool::new(8192);
        let buffer = pool.try_take(5000).unwrap();
        assert!(buffer.mem().segments().all(|s| s.address % BUFFER_ALIGNMENT == 0));
        assert!(pool.try_take(1).is_none(), "the budget is spent");
        drop(buffer);
        assert_eq!(pool.taken(), 0);
        let again = pool.try_take(8192).unwrap();
        if cfg!(debug_assertions) {
            assert_eq!(again.mem().to_vec(), vec![POISON; 8192]);
        }
    }

    #[test]
    fn aligned_memory_is_its_own() {
        let mem = IoMem::aligned(&[3; 700]);
        let other = IoMem::aligned_zeroed(700);
        assert!(mem.segments().all(|s| s.address % BUFFER_ALIGNMENT == 0 && s.len == 700));
        assert_eq!((mem.to_vec(), other.to_vec()), (vec![3; 700], vec![0; 700]));
    }

    #[test]
    fn a_buffer_outlives_its_handle() {
        let pool = BufferPool::new(4096);
        let mem = pool.try_take(16).unwrap().mem();
        mem.copy_in(0, &[7; 16]);
        assert_eq!(pool.taken(), 4096);
        assert_eq!(mem.to_vec(), [7; 16]);
        drop(mem);
        assert_eq!(pool.taken(), 0);
    }

    #[test]
    fn one_buffer_may_exceed_the_budget() {
        let pool = BufferPool::new(4096);
        let large = pool.try_take(1 << 20).unwrap();
        assert!(pool.try_take(1).is_none());
        drop(large);
        assert!(pool.try_take(1).is_some());
    }
}
