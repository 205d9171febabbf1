//! Zero-writes and allocations that end beyond the end of the file, against writes beyond them.
//!
//! The hands take block after block of a file that begins empty, and zero it, allocate it or write it. So whatever makes
//! the file longer does so while others write behind it.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use blkring_engine::Flags;

use crate::crowd::join_all;
use crate::fs_suite::crew::{Go, Plan, Scene, run};
use crate::fs_suite::finding::Stop;
use crate::fs_suite::hand::{Growth, Hand};
use crate::fs_suite::run::{Done, Job};
use crate::fs_suite::subject::{Layout, Subject};

const BLOCKS: u64 = 128;

/// What makes the file longer.
#[derive(Clone, Copy)]
enum Grower {
    ZeroWrite,
    Allocation,
    /// A zero-write or allocation of a block, sent behind the writes of the blocks after it.
    Earlier,
    /// Any of them, and holes.
    All,
}

struct PostEof {
    grower: Grower,
    block: u64,
    next: AtomicU64,
}

const PLAN: Plan = Plan { files: 2, queues: 3, hands: 4, layout: Layout::new(BLOCKS * 4096) };

fn start(job: &Job, name: &str, grower: Grower) -> Result<Done, String> {
    run(job, name, PLAN, |subject: &Subject| PostEof {
        grower,
        block: subject.block(),
        next: AtomicU64::new(0),
    })
}

pub fn zero(job: &Job) -> Result<Done, String> {
    start(job, "post-eof-zero", Grower::ZeroWrite)
}

pub fn allocate(job: &Job) -> Result<Done, String> {
    start(job, "post-eof-allocate", Grower::Allocation)
}

pub fn earlier(job: &Job) -> Result<Done, String> {
    start(job, "append-allocate", Grower::Earlier)
}

pub fn growth(job: &Job) -> Result<Done, String> {
    start(job, "growth", Grower::All)
}

impl Scene for PostEof {
    async fn prepare(&self, _hand: &Hand) -> Result<(), Stop> {
        self.next.store(0, Ordering::Relaxed);
        Ok(())
    }

    async fn step(&self, hand: &Hand) -> Result<Go, Stop> {
        match self.grower {
            Grower::ZeroWrite | Grower::Allocation => {
                let Some(range) = self.take(hand, 1 + hand.below(2)) else { return Ok(Go::Rest) };
                if hand.one_in(2) {
                    hand.write(range).await?;
                } else if matches!(self.grower, Grower::ZeroWrite) {
                    zero_write(hand, range).await?;
                } else {
                    grow(hand, range.end, Growth::Space).await?;
                }
            }
            Grower::Earlier => {
                let Some(range) = self.take(hand, 4) else { return Ok(Go::Rest) };
                self.earlier(hand, range).await?;
            }
            Grower::All => {
                let Some(range) = self.take(hand, 1) else { return Ok(Go::Rest) };
                match hand.below(5) {
                    0 => zero_write(hand, range).await?,
                    1 => grow(hand, range.end, Growth::Hole).await?,
                    2 => _ = hand.write(range).await?,
                    _ => grow(hand, range.end, Growth::Space).await?,
                }
            }
        }
        Ok(Go::On)
    }
}

impl PostEof {
    /// The next blocks of the file.
    fn take(&self, hand: &Hand, blocks: u64) -> Option<Range<u64>> {
        let start = self.next.fetch_add(blocks, Ordering::Relaxed) * self.block;
        let end = start + blocks * self.block;
        (end <= hand.subject.layout.limit).then_some(start..end)
    }

    /// Three writes are on their way when the block before them is zeroed or allocated.
    async fn earlier(&self, hand: &Hand, range: Range<u64>) -> Result<(), Stop> {
        type Step<'a> = std::pin::Pin<Box<dyn Future<Output = Result<(), Stop>> + 'a>>;
        let first = range.start..range.start + self.block;
        let mut steps: Vec<Step<'_>> = Vec::new();
        for start in (first.end..range.end).step_by(usize::try_from(self.block).expect("small")) {
            let write = hand.write(start..start + self.block);
            steps.push(Box::pin(async { write.await.map(drop) }));
        }
        if hand.one_in(2) {
            steps.push(Box::pin(zero_write(hand, first)));
        } else {
            steps.push(Box::pin(grow(hand, first.end, Growth::Space)));
        }
        join_all(steps).await.into_iter().collect()
    }
}

/// A round, if it is beyond the end of the file.
async fn zero_write(hand: &Hand, range: Range<u64>) -> Result<(), Stop> {
    if range.end > hand.subject.storage().size() {
        hand.run.count();
    }
    let flags = if hand.one_in(4) { Flags::MAY_UNMAP } else { Flags::empty() };
    hand.zero(range, flags).await.map(drop)
}

async fn grow(hand: &Hand, size: u64, how: Growth) -> Result<(), Stop> {
    if size > hand.subject.storage().size() {
        hand.run.count();
    }
    hand.grow(size, how).await.map(drop)
}
