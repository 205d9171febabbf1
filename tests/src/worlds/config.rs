//! What a world is made of, drawn from the seed.

use blkring_engine::sim::Rng;

use crate::powercut::{self, Errors, Growth, Packed, Past};

/// How often the guests ask for what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    /// Writes.
    pub writes: u64,
    /// Durable writes.
    pub durable: u64,
    /// Zero-writes of any kind.
    pub zeroes: u64,
    /// Discards.
    pub discards: u64,
    /// Reads.
    pub reads: u64,
    /// Flushes.
    pub flushes: u64,
}

const MIXES: [Mix; 4] = [
    Mix { writes: 9, durable: 2, zeroes: 3, discards: 2, reads: 4, flushes: 2 },
    Mix { writes: 6, durable: 0, zeroes: 1, discards: 5, reads: 6, flushes: 4 },
    Mix { writes: 8, durable: 1, zeroes: 0, discards: 0, reads: 8, flushes: 3 },
    Mix { writes: 4, durable: 1, zeroes: 6, discards: 4, reads: 3, flushes: 1 },
];

impl Mix {
    pub(super) fn total(&self) -> u64 {
        self.writes + self.durable + self.zeroes + self.discards + self.reads + self.flushes
    }
}

/// How a world is made. "Once in so many" steps or requests is 0 for never.
#[derive(Debug, Clone)]
pub struct Config {
    /// The image, its options, its queues and its failures.
    pub image: powercut::Config,
    /// Sectors of the raw disk beside it.
    pub raw_sectors: u64,
    /// What the guests ask for.
    pub mix: Mix,
    /// Requests in all.
    pub length: u64,
    /// Once in so many requests it is one to the raw disk.
    pub raw_every: u64,
    /// Once in so many steps some ops are made late.
    pub delay_every: u64,
    /// Once in so many requests nobody waits for the answer.
    pub drop_every: u64,
    /// Once in so many steps a request is withdrawn.
    pub withdraw_every: u64,
    /// Once in so many steps a queue pauses.
    pub pause_every: u64,
    /// Once in so many steps a queue comes or goes.
    pub change_every: u64,
    /// Calls that are interrupted or move fewer bytes, which no guest may notice.
    pub interruptions: u64,
}

impl Config {
    /// The world of a seed.
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let mut image = powercut::Config::draw(rng);
        image.draw_format(&mut rng.fork());
        image.draw_past(&mut rng.fork());
        image.growth = Growth::None;
        image.packed = Packed::None;
        image.lives = 1;
        image.queues = 2 + rng.index(3);
        image.requests = one_of(rng, &[1, 2, 4, 8]);
        if rng.one_in(2) {
            // So small that everything meets.
            image.clusters = 3 + rng.below(10);
        }
        if image.past == Past::None && rng.one_in(8) {
            image.past = Past::ClaimsCleared;
        }
        image.errors = match rng.below(8) {
            0 | 1 => Errors::Some,
            2 => Errors::Sync,
            _ => Errors::None,
        };
        let mut sometimes = |choices: &[u64]| if rng.one_in(3) { 0 } else { one_of(rng, choices) };
        let (delay_every, drop_every) = (sometimes(&[20, 60, 200]), sometimes(&[3, 10]));
        let (withdraw_every, pause_every) = (sometimes(&[30, 100]), sometimes(&[100, 300]));
        let (change_every, interruptions) = (sometimes(&[200, 600]), sometimes(&[1, 5]));
        Config {
            image,
            raw_sectors: 16 + rng.below(80),
            mix: one_of(rng, &MIXES),
            length: 40 + rng.below(80),
            raw_every: one_of(rng, &[0, 3, 6]),
            delay_every,
            drop_every,
            withdraw_every,
            pause_every,
            change_every,
            interruptions,
        }
    }

    /// What does not go together is left out.
    pub(super) fn settle(&mut self) {
        if self.image.past == Past::ClaimsCleared {
            self.image.free_space = powercut::FreeSpace::None;
        }
        self.image.settle();
    }

    /// Whether a request may fail.
    pub(super) fn may_fail(&self) -> bool {
        self.image.errors != Errors::None
    }
}

fn one_of<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.index(choices.len())]
}
