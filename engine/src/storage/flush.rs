//! Making what has completed durable.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use blkring_tracker::sync::Mutex;
use blkring_tracker::sync::atomic::Ordering;

use super::{Flushing, RETRIES, Storage};
use crate::device::may_be_asked_again;
use crate::error::{Operation, Result};
use crate::lane::{Lane, LaneKind};
use crate::op::{Op, Verb};
use crate::variant::Variant;

impl Storage {
    /// Makes every change that has completed durable (fdatasync). Skipped if none has completed since a successful
    /// one began. After a failure every later flush fails with the same error until the file is opened again: the
    /// kernel may have dropped what it could not write. Nothing is done with [`Flushing::Ignored`].
    ///
    /// # Errors
    /// What the kernel says, now or at an earlier flush.
    pub async fn flush(&self, lane: &Lane) -> Result<()> {
        self.check_synced()?;
        if self.flushing == Flushing::Ignored {
            return Ok(());
        }
        if self.variants.has(Variant::FlushSkipped) {
            return Ok(());
        }
        let changes = self.device.changes();
        if self.synced.load(Ordering::Acquire) >= changes {
            return Ok(());
        }
        let changes = if self.variants.has(Variant::FlushCountsAtSubmission) {
            changes + self.tracker.statistics().running
        } else {
            changes
        };
        let running = self.syncs.begin(lane.kind());
        let mut tries = 0;
        loop {
            let outcome = lane.issue(Op::plain(&self.device, Verb::Sync, 0, 0)).await;
            tries += 1;
            if may_be_asked_again(outcome.result, lane.kind()) && tries < RETRIES {
                continue;
            }
            if outcome.result < 0 {
                return Err(self.error(Operation::Flush, 0, outcome.result));
            }
            // Another one may have failed meanwhile and taken our writes with it: the kernel tells of a failure
            // once. So those that ran beside this one have their say first.
            running.others().await;
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

/// The fdatasyncs of shared work in flight. Those of queues are not among them: nobody waits for a ring that its
/// owner may have left.
#[derive(Default)]
pub(super) struct Syncs(Mutex<Running>);

#[derive(Default)]
struct Running {
    last: u64,
    numbers: Vec<u64>,
    waiting: Vec<Waker>,
}

/// One of them.
struct Sync<'a> {
    syncs: &'a Syncs,
    number: Option<u64>,
}

impl Syncs {
    fn begin(&self, kind: LaneKind) -> Sync<'_> {
        let number = (kind == LaneKind::Service).then(|| {
            let mut running = self.0.lock();
            running.last += 1;
            let number = running.last;
            running.numbers.push(number);
            number
        });
        Sync { syncs: self, number }
    }
}

impl Sync<'_> {
    /// Waits for all that run now. Each wait ends: what is waited for has an op in the kernel, and one
    /// that has completed is not waited for any more.
    async fn others(&self) {
        let Some(own) = self.number else { return };
        let latest = {
            let mut running = self.syncs.0.lock();
            running.numbers.retain(|&number| number != own);
            let woken = std::mem::take(&mut running.waiting);
            let latest = running.last;
            drop(running);
            woken.into_iter().for_each(Waker::wake);
            latest
        };
        poll_fn(|cx| {
            let waker = cx.waker().clone();
            let mut running = self.syncs.0.lock();
            if running.numbers.iter().all(|&number| number > latest) {
                return Poll::Ready(());
            }
            running.waiting.push(waker);
            Poll::Pending
        })
        .await;
    }
}

impl Drop for Sync<'_> {
    fn drop(&mut self) {
        let Some(own) = self.number else { return };
        let mut running = self.syncs.0.lock();
        running.numbers.retain(|&number| number != own);
        let woken = std::mem::take(&mut running.waiting);
        drop(running);
        woken.into_iter().for_each(Waker::wake);
    }
}
