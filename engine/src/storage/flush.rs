//! Making what has completed durable.

use blkring_tracker::sync::atomic::Ordering;

use super::{RETRIES, Storage};
use crate::device::is_interruption;
use crate::error::{Operation, Result};
use crate::lane::Lane;
use crate::op::{Op, Verb};
use crate::variant::Variant;

impl Storage {
    /// Makes every change that has completed durable (fdatasync). Skipped if none has completed since a successful
    /// one began. After a failure every later flush fails with the same error until the file is opened again: the
    /// kernel may have dropped what it could not write.
    ///
    /// # Errors
    /// What the kernel says, now or at an earlier flush.
    pub async fn flush(&self, lane: &Lane) -> Result<()> {
        self.check_synced()?;
        let changes = self.device.changes();
        if self.synced.load(Ordering::Acquire) >= changes {
            return Ok(());
        }
        let changes = if self.variants.has(Variant::FlushCountsAtSubmission) {
            changes + self.tracker.statistics().running
        } else {
            changes
        };
        let mut tries = 0;
        loop {
            let outcome = lane.issue(Op::plain(&self.device, Verb::Sync, 0, 0)).await;
            tries += 1;
            if is_interruption(outcome.result) && tries < RETRIES {
                continue;
            }
            if outcome.result < 0 {
                return Err(self.error(Operation::Flush, 0, outcome.result));
            }
            // Another one may have failed meanwhile and taken our writes with it.
            self.check_synced()?;
            self.note_synced(changes);
            return Ok(());
        }
    }

    fn check_synced(&self) -> Result<()> {
        match self.device.failed_sync() {
            0 => Ok(()),
            errno => Err(self.error(Operation::Flush, 0, errno)),
        }
    }
}
