//! Many queues make the file longer by writing behind its end, in pieces that begin and end anywhere in a block.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fs_suite::crew::{Go, Plan, Scene, run};
use crate::fs_suite::finding::Stop;
use crate::fs_suite::hand::Hand;
use crate::fs_suite::run::{Done, Job};
use crate::fs_suite::subject::Layout;

const LIMIT: u64 = 1 << 20;

struct Extending {
    next: AtomicU64,
}

const PLAN: Plan = Plan { files: 1, queues: 8, hands: 3, layout: Layout::new(LIMIT) };

pub fn extending(job: &Job) -> Result<Done, String> {
    run(job, "extending", PLAN, |_| Extending { next: AtomicU64::new(0) })
}

impl Scene for Extending {
    async fn prepare(&self, _hand: &Hand) -> Result<(), Stop> {
        self.next.store(0, Ordering::Relaxed);
        Ok(())
    }

    async fn step(&self, hand: &Hand) -> Result<Go, Stop> {
        let grain = hand.subject.grain();
        let len = match hand.below(3) {
            0 => hand.subject.block() * 4,
            _ => grain * (1 + hand.below(16)),
        };
        let start = self.next.fetch_add(len, Ordering::Relaxed);
        if start + len > LIMIT {
            return Ok(Go::Rest);
        }
        hand.run.count();
        hand.write(start..start + len).await?;
        if hand.one_in(8) {
            hand.read(hand.place(&(0..start + len), grain, len)).await?;
        }
        Ok(Go::On)
    }
}
