//! Zeros to write: one block of them, named as often as it takes. So a zero-write takes no memory for its zeros, and waits
//! for none.

use blkring_engine::IoMem;

/// Bytes of the block.
const BLOCK: usize = 64 << 10;

/// Zeros for the writes of one image. Nothing is ever read into them.
pub(super) struct Zeros(IoMem);

impl Default for Zeros {
    fn default() -> Self {
        Zeros(IoMem::aligned_zeroed(BLOCK))
    }
}

impl Zeros {
    /// `len` bytes to be written, aligned for direct I/O at the start.
    pub(super) fn of(&self, len: usize) -> IoMem {
        if len <= BLOCK {
            return self.0.slice(0..len);
        }
        IoMem::concat(&vec![self.0.clone(); len.div_ceil(BLOCK)]).slice(0..len)
    }
}
