//! Many worlds, on all processors.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::config::Config;
use super::play::{Violation, play};
use super::trace::Trace;

/// What was played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Worlds.
    pub worlds: u64,
    /// Of all of them together, without the hash.
    pub sum: Trace,
}

/// A violation, with the seed that shows it.
#[derive(Debug, Clone)]
pub struct Found {
    /// The seed.
    pub seed: u64,
    /// What is wrong.
    pub violation: Violation,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Found { seed, violation } = self;
        writeln!(f, "{}", violation.report)?;
        write!(f, "to repeat: BLKRING_WORLDS_SEED={seed} cargo test -p blkring-tests --test worlds")
    }
}

/// Plays the worlds of all seeds, until something is found: that of the lowest seed among those that were played then.
///
/// # Errors
/// What was found.
pub fn search(
    seeds: Range<u64>,
    adjust: &(dyn Fn(&mut Config) + Sync),
) -> Result<Tally, Box<Found>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicU64::new(seeds.start);
    let shared: Mutex<(Tally, Option<Box<Found>>)> = Mutex::default();
    let lock = || shared.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while lock().1.is_none() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let result = one(seed, adjust);
                    let (tally, found) = &mut *lock();
                    match result {
                        Ok(trace) => tally.add(trace),
                        Err(violation) => {
                            if found.as_ref().is_none_or(|other| seed < other.seed) {
                                *found = Some(Box::new(Found { seed, violation }));
                            }
                        }
                    }
                }
            });
        }
    });
    let (tally, found) = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.map_or(Ok(tally), Err)
}

/// A panic anywhere below is a violation too.
fn one(seed: u64, adjust: &dyn Fn(&mut Config)) -> Result<Trace, Violation> {
    let played = catch_unwind(AssertUnwindSafe(|| play(seed, adjust)));
    played.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Err(Violation { report: format!("seed {seed}: a panic: {text}") })
    })
}

impl Tally {
    fn add(&mut self, trace: Trace) {
        self.worlds += 1;
        let sum = &mut self.sum;
        sum.steps += trace.steps;
        sum.requests += trace.requests;
        sum.withdrawn += trace.withdrawn;
        sum.failed += trace.failed;
        sum.delays += trace.delays;
        sum.came += trace.came;
        sum.gone += trace.gone;
    }
}
