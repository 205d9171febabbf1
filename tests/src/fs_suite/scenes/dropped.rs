//! Requests that nobody waits for: receipts and futures are dropped at any moment, beside others on the same blocks that
//! are waited for. What is dropped happens or does not, and nobody gets in before the kernel is done with it.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fs_suite::crew::{Go, Plan, Scene, run};
use crate::fs_suite::finding::Stop;
use crate::fs_suite::hand::Hand;
use crate::fs_suite::meeting::stand_back;
use crate::fs_suite::order::Overlap;
use crate::fs_suite::run::{Done, Job};
use crate::fs_suite::subject::Layout;

const BLOCKS: u64 = 4;
const STEPS: u64 = 300;
const LIMIT: u64 = BLOCKS * 4096;

struct Dropped {
    steps: AtomicU64,
}

const PLAN: Plan = Plan {
    files: 2,
    queues: 3,
    hands: 4,
    layout: Layout { overlap: Overlap::Forbidden, ..Layout::new(LIMIT) },
};

pub fn dropped(job: &Job) -> Result<Done, String> {
    run(job, "dropped", PLAN, |_| Dropped { steps: AtomicU64::new(0) })
}

impl Scene for Dropped {
    async fn prepare(&self, hand: &Hand) -> Result<(), Stop> {
        self.steps.store(0, Ordering::Relaxed);
        hand.resize(LIMIT).await.map(drop)
    }

    async fn step(&self, hand: &Hand) -> Result<Go, Stop> {
        if self.steps.fetch_add(1, Ordering::Relaxed) >= STEPS {
            return Ok(Go::Rest);
        }
        let (block, grain) = (hand.subject.block(), hand.subject.grain());
        let part = hand.place(&(0..2 * block), grain, grain);
        match hand.below(4) {
            0 => {
                hand.run.count();
                hand.drop_receipt(part, turns(hand)).await;
            }
            1 => {
                hand.run.count();
                hand.drop_write(part, turns(hand)).await;
            }
            2 => hand.read(0..2 * block).await?,
            _ => _ = hand.write(part).await?,
        }
        Ok(Go::On)
    }

    async fn leave(&self, hand: &Hand) -> Result<(), Stop> {
        hand.settle().await;
        Ok(())
    }

    async fn judge(&self, hand: &Hand) -> Result<(), Stop> {
        while hand.subject.order.running() > 0 {
            stand_back().await;
        }
        hand.subject.history.end_all();
        hand.judge_all().await
    }
}

/// Few or many: the kernel may have begun with the read before the write, with the write, or be done.
fn turns(hand: &Hand) -> u64 {
    hand.below(4) * hand.below(16)
}
