//! One file by direct I/O and through the page cache at once: each half is written by one of them, and both are read by
//! both.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fs_suite::crew::{Go, Plan, Scene, run};
use crate::fs_suite::finding::Stop;
use crate::fs_suite::hand::{Door, Hand};
use crate::fs_suite::history::Tearing;
use crate::fs_suite::run::{Done, Job};
use crate::fs_suite::subject::Layout;

/// The halves lie in different pages, however large a page of the cache may be.
const HALF: u64 = 2 << 20;
/// Blocks in use in each half.
const BLOCKS: u64 = 6;
const STEPS: u64 = 200;
const LIMIT: u64 = HALF + BLOCKS * 4096;

struct Mixed {
    steps: AtomicU64,
}

const PLAN: Plan =
    Plan { files: 1, queues: 3, hands: 4, layout: Layout { twice: true, ..Layout::new(LIMIT) } };

pub fn mixed(job: &Job) -> Result<Done, String> {
    run(job, "mixed", PLAN, |_| Mixed { steps: AtomicU64::new(0) })
}

impl Scene for Mixed {
    async fn prepare(&self, hand: &Hand) -> Result<(), Stop> {
        self.steps.store(0, Ordering::Relaxed);
        hand.resize(LIMIT).await.map(drop)
    }

    async fn step(&self, hand: &Hand) -> Result<Go, Stop> {
        if self.steps.fetch_add(1, Ordering::Relaxed) >= STEPS {
            return Ok(Go::Rest);
        }
        let (block, grain) = (hand.subject.block(), hand.subject.grain());
        let used = |start: u64| start..start + BLOCKS * block;
        let (cached, direct) = (used(0), used(HALF));
        match hand.below(8) {
            0..3 => _ = hand.write(hand.place(&direct, grain, grain)).await?,
            3 => _ = hand.write(hand.place(&direct, block, block)).await?,
            4 | 5 => _ = hand.write_cached(hand.place(&cached, grain, grain)).await?,
            rest => {
                let door = if rest == 6 { Door::Direct } else { Door::Cached };
                let half = if hand.one_in(2) { &cached } else { &direct };
                hand.run.count();
                let range = hand.place(half, block, block);
                hand.read_through(door, range, Tearing::Allowed).await?;
            }
        }
        Ok(Go::On)
    }

    async fn judge(&self, hand: &Hand) -> Result<(), Stop> {
        hand.judge_all().await?;
        hand.read_through(Door::Cached, 0..LIMIT, Tearing::Forbidden).await
    }
}
