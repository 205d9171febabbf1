//! The file system is asked where holes are while others write, zero and punch: what was written is never in a hole.

use std::sync::atomic::{AtomicU64, Ordering};

use blkring_engine::Flags;

use super::halves::write_part;
use crate::fs_suite::crew::{Go, Plan, Scene, run};
use crate::fs_suite::finding::Stop;
use crate::fs_suite::hand::Hand;
use crate::fs_suite::run::{Done, Job};
use crate::fs_suite::subject::Layout;

const BLOCKS: u64 = 64;
const STEPS: u64 = 300;
const LIMIT: u64 = BLOCKS * 4096;

struct SeekHole {
    steps: AtomicU64,
}

const PLAN: Plan = Plan { files: 2, queues: 3, hands: 4, layout: Layout::new(LIMIT) };

pub fn seek_hole(job: &Job) -> Result<Done, String> {
    run(job, "seek-hole", PLAN, |_| SeekHole { steps: AtomicU64::new(0) })
}

impl Scene for SeekHole {
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
        let (block, all) = (hand.subject.block(), 0..LIMIT);
        let blocks = hand.place(&all, block, block * (1 + hand.below(2)));
        match hand.below(8) {
            0 => _ = hand.zero(blocks, Flags::MAY_UNMAP).await?,
            1 => _ = hand.zero(blocks, Flags::empty()).await?,
            2 => write_part(hand, 1).await?,
            3..6 => _ = hand.write(blocks).await?,
            _ => {
                hand.run.count();
                let found = hand.extent(hand.place(&all, block, 0).start)?;
                if found < LIMIT {
                    hand.extent(found / block * block)?;
                }
            }
        }
        Ok(Go::On)
    }

    /// With a walk over all extents first.
    async fn judge(&self, hand: &Hand) -> Result<(), Stop> {
        let (mut at, grain) = (0, hand.subject.grain());
        while at < LIMIT {
            at = hand.extent(at)?.max(at + 1).next_multiple_of(grain);
        }
        hand.judge_all().await
    }
}
