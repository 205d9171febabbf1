//! Failures of the call that submits to a ring and waits for it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use blkring_tracker::sync::Mutex;

/// Error numbers for the next calls of `io_uring_enter`, one each. A call that fails so has taken nothing, as with the
/// kernel: what was pushed stays where it is.
#[derive(Debug)]
pub struct EnterFaults {
    next: Mutex<VecDeque<i32>>,
}

impl EnterFaults {
    /// The next calls fail with these, in turn; 0 lets one through.
    pub fn new(errnos: &[i32]) -> Arc<Self> {
        Arc::new(EnterFaults { next: Mutex::new(errnos.iter().copied().collect()) })
    }

    /// More of them.
    pub fn add(&self, errnos: &[i32]) {
        self.next.lock().extend(errnos);
    }

    /// How many are left.
    pub fn left(&self) -> usize {
        self.next.lock().len()
    }

    pub(crate) fn strike(&self) -> Option<io::Error> {
        let errno = self.next.lock().pop_front().filter(|errno| *errno != 0)?;
        Some(io::Error::from_raw_os_error(errno))
    }
}
