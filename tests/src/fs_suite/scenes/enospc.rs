//! A small file system is filled by writes, zero-writes and allocations until there is no room for more of them: what was
//! answered as done is there, and what was refused has harmed nothing.

use std::sync::atomic::{AtomicU64, Ordering};

use blkring_engine::Flags;

use crate::fs_suite::crew::{Go, Plan, Scene, run};
use crate::fs_suite::finding::Stop;
use crate::fs_suite::hand::{Answer, Growth, Hand};
use crate::fs_suite::run::{Done, Job};
use crate::fs_suite::subject::Layout;

/// More than the file system has room for.
const LIMIT: u64 = 96 << 20;
const GRAIN: u64 = 4096;
/// The most bytes of a request.
const LONGEST: u64 = 512 << 10;
/// A file was filled when so many requests were refused.
const REFUSED: u64 = 24;

struct Enospc {
    next: AtomicU64,
    refused: AtomicU64,
}

const PLAN: Plan = Plan {
    files: 1,
    queues: 3,
    hands: 2,
    layout: Layout { grain: Some(GRAIN), expected: &[libc::ENOSPC], ..Layout::new(LIMIT) },
};

pub fn enospc(job: &Job) -> Result<Done, String> {
    let new = |_: &_| Enospc { next: AtomicU64::new(0), refused: AtomicU64::new(0) };
    run(job, "enospc", PLAN, new)
}

impl Scene for Enospc {
    async fn prepare(&self, _hand: &Hand) -> Result<(), Stop> {
        self.next.store(0, Ordering::Relaxed);
        self.refused.store(0, Ordering::Relaxed);
        Ok(())
    }

    async fn step(&self, hand: &Hand) -> Result<Go, Stop> {
        let len = GRAIN * (1 + hand.below(LONGEST / GRAIN));
        let start = self.next.fetch_add(len, Ordering::Relaxed);
        if start + len > LIMIT || self.refused.load(Ordering::Relaxed) >= REFUSED {
            return Ok(Go::Rest);
        }
        let range = start..start + len;
        let answer = match hand.below(4) {
            0 => hand.zero(range, Flags::NO_FALLBACK).await?,
            1 => hand.grow(range.end, Growth::Space).await?,
            _ => hand.write(range).await?,
        };
        if answer == Answer::Refused {
            hand.run.count();
            self.refused.fetch_add(1, Ordering::Relaxed);
            // Something that is there already is written in place, and needs no room.
            let written = hand.place(&(0..start.max(GRAIN)), GRAIN, GRAIN);
            hand.read(written).await?;
        }
        Ok(Go::On)
    }
}
