//! The file is made shorter and longer while others write into it, below, across and beyond its end.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fs_suite::crew::{Go, Plan, Scene, run};
use crate::fs_suite::finding::Stop;
use crate::fs_suite::hand::Hand;
use crate::fs_suite::run::{Done, Job};
use crate::fs_suite::subject::Layout;

const BLOCKS: u64 = 48;
/// The file is never cut below this block.
const KEPT: u64 = 16;
const STEPS: u64 = 240;

struct Truncate {
    steps: AtomicU64,
}

const PLAN: Plan = Plan { files: 2, queues: 3, hands: 4, layout: Layout::new(BLOCKS * 4096) };

pub fn truncate(job: &Job) -> Result<Done, String> {
    run(job, "truncate", PLAN, |_| Truncate { steps: AtomicU64::new(0) })
}

impl Scene for Truncate {
    async fn prepare(&self, _hand: &Hand) -> Result<(), Stop> {
        self.steps.store(0, Ordering::Relaxed);
        Ok(())
    }

    async fn step(&self, hand: &Hand) -> Result<Go, Stop> {
        if self.steps.fetch_add(1, Ordering::Relaxed) >= STEPS {
            return Ok(Go::Rest);
        }
        let (block, grain) = (hand.subject.block(), hand.subject.grain());
        let limit = hand.subject.layout.limit;
        match hand.below(8) {
            0 | 1 => {
                let step = if hand.one_in(3) { grain } else { block };
                let size = hand.place(&(KEPT * block..limit), step, 0).start;
                hand.run.count();
                hand.resize(size).await?;
            }
            2 => {
                let len = block * (1 + hand.below(3));
                hand.read(hand.place(&(0..limit), block, len)).await?;
            }
            3 => _ = hand.write(hand.place(&(0..limit), grain, grain)).await?,
            _ => {
                let len = block * (1 + hand.below(2));
                hand.write(hand.place(&(0..limit), block, len)).await?;
            }
        }
        Ok(Go::On)
    }
}
