//! Flushes and durable writes beside other writes: what had ended when a flush was asked for is durable when it is
//! answered.

use std::sync::atomic::{AtomicU64, Ordering};

use blkring_engine::Flags;

use crate::fs_suite::crew::{Go, Plan, Scene, run};
use crate::fs_suite::finding::Stop;
use crate::fs_suite::hand::Hand;
use crate::fs_suite::run::{Done, Job};
use crate::fs_suite::subject::Layout;

const QUEUES: usize = 3;
const HANDS: usize = 2;
/// Blocks of each hand.
const BLOCKS: u64 = 8;
const STEPS: u64 = 80;
const LIMIT: u64 = (QUEUES * HANDS) as u64 * BLOCKS * 4096;

struct Flush {
    steps: AtomicU64,
}

const PLAN: Plan = Plan { files: 2, queues: QUEUES, hands: HANDS, layout: Layout::new(LIMIT) };

pub fn flush(job: &Job) -> Result<Done, String> {
    run(job, "flush", PLAN, |_| Flush { steps: AtomicU64::new(0) })
}

impl Scene for Flush {
    async fn prepare(&self, hand: &Hand) -> Result<(), Stop> {
        self.steps.store(0, Ordering::Relaxed);
        if hand.one_in(2) {
            hand.resize(LIMIT).await?;
        }
        Ok(())
    }

    async fn step(&self, hand: &Hand) -> Result<Go, Stop> {
        if self.steps.fetch_add(1, Ordering::Relaxed) >= STEPS {
            return Ok(Go::Rest);
        }
        let (block, own) = (hand.subject.block(), hand.number as u64 * BLOCKS);
        let own = own * block..(own + BLOCKS) * block;
        let range = hand.place(&own, block, block * (1 + hand.below(3)));
        match hand.below(8) {
            0 => _ = hand.zero(range, Flags::empty()).await?,
            1 => {
                // What was written there before is made durable by whoever writes durably last.
                hand.flush().await?;
                hand.write_with(range.clone(), Flags::FUA).await?;
                hand.is_durable(&range)?;
                hand.run.count();
            }
            2 | 3 => {
                hand.run.count();
                hand.flush().await?;
            }
            _ => _ = hand.write(range).await?,
        }
        Ok(Go::On)
    }
}
