//! Writes of parts of blocks. With direct I/O the block around each is read, changed and written: whoever writes another
//! part of it at the same time must not be undone.

use std::sync::atomic::{AtomicU64, Ordering};

use blkring_engine::Flags;

use crate::fs_suite::crew::{Go, Plan, Scene, run};
use crate::fs_suite::finding::Stop;
use crate::fs_suite::hand::Hand;
use crate::fs_suite::run::{Done, Job};
use crate::fs_suite::subject::Layout;

const BLOCKS: u64 = 16;
const STEPS: u64 = 400;

/// What the hands do to the blocks.
#[derive(Clone, Copy)]
enum Deed {
    /// Write their parts.
    Write,
    /// Punch holes and zero as well, also parts.
    Punch,
}

struct Halves {
    deed: Deed,
    steps: AtomicU64,
}

const PLAN: Plan = Plan { files: 2, queues: 3, hands: 4, layout: Layout::new(BLOCKS * 4096) };

pub fn halves(job: &Job) -> Result<Done, String> {
    run(job, "half-blocks", PLAN, |_| Halves { deed: Deed::Write, steps: AtomicU64::new(0) })
}

pub fn punch(job: &Job) -> Result<Done, String> {
    run(job, "punch-hole", PLAN, |_| Halves { deed: Deed::Punch, steps: AtomicU64::new(0) })
}

impl Scene for Halves {
    async fn prepare(&self, hand: &Hand) -> Result<(), Stop> {
        self.steps.store(0, Ordering::Relaxed);
        hand.resize(hand.subject.layout.limit).await.map(drop)
    }

    async fn step(&self, hand: &Hand) -> Result<Go, Stop> {
        if self.steps.fetch_add(1, Ordering::Relaxed) >= STEPS {
            return Ok(Go::Rest);
        }
        match self.deed {
            Deed::Write => write_part(hand, 2).await?,
            Deed::Punch => punch_or_not(hand).await?,
        }
        Ok(Go::On)
    }
}

/// Writes one or more cells within a few of the blocks, and sometimes reads them and what lies around them.
pub(super) async fn write_part(hand: &Hand, blocks: u64) -> Result<(), Stop> {
    let (block, grain) = (hand.subject.block(), hand.subject.grain());
    let all = 0..blocks.min(BLOCKS) * block;
    let range = hand.place(&all, grain, grain * (1 + hand.below(3)));
    hand.run.count();
    hand.write(range.clone()).await?;
    if hand.one_in(3) {
        hand.read(range.start / block * block..range.end.next_multiple_of(block)).await?;
    }
    Ok(())
}

/// Few blocks for many hands, so that they meet.
async fn punch_or_not(hand: &Hand) -> Result<(), Stop> {
    let (block, grain) = (hand.subject.block(), hand.subject.grain());
    let all = 0..BLOCKS / 2 * block;
    let blocks = hand.place(&all, block, block * (1 + hand.below(2)));
    let part = hand.place(&all, grain, grain * (1 + hand.below(7)));
    match hand.below(8) {
        0 => {
            hand.run.count();
            hand.zero(blocks, Flags::MAY_UNMAP).await?;
        }
        1 => {
            hand.run.count();
            hand.zero(part, Flags::MAY_UNMAP).await?;
        }
        2 => {
            hand.run.count();
            hand.discard(blocks).await?;
        }
        3 => _ = hand.zero(part, Flags::empty()).await?,
        4 => _ = hand.write(part).await?,
        5 => hand.read(part).await?,
        _ => _ = hand.write(blocks).await?,
    }
    Ok(())
}
