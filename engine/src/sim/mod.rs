//! A simulated kernel and disk.

use crate::lane::Lane;
use crate::op::Op;

/// A file of the simulated disk.
pub struct SimFile {}

impl SimFile {
    pub(crate) fn accept(&self, lane: Lane, key: u64, op: Op) {
        lane.complete(key, -libc::EIO, Some(op));
    }
}
