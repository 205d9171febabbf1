//! A target that is held still for a while.

use std::any::Any;
use std::fmt;

/// A target that is held still: none of its requests is under way, no work that they share either, and its file does not
/// change, until this is dropped. Requests that come meanwhile are accepted, and wait; they go on, in their order, when
/// this is dropped, on whatever thread that is.
///
/// [`RawDisk::quiesce`](crate::RawDisk::quiesce) makes one, and so does the image of `blkring-qcow2`.
#[must_use = "the target goes on when this is dropped"]
pub struct Quiesced {
    _held: Box<dyn Any + Send + Sync>,
}

impl Quiesced {
    /// For targets: as long as `held` lives, the target stands still.
    pub fn new(held: impl Any + Send + Sync) -> Self {
        Quiesced { _held: Box::new(held) }
    }

    /// Lets the target go on, as dropping this does.
    pub fn resume(self) {}
}

impl fmt::Debug for Quiesced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quiesced").finish_non_exhaustive()
    }
}
