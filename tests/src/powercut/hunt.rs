//! Many cases, on all processors.

use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::config::Config;
use super::run::{Sampling, Violation, run};

/// What to look for, and where.
pub struct Hunt<'a> {
    /// The seeds.
    pub seeds: Range<u64>,
    /// Steps of the disk per state that is judged, on average.
    pub every: u64,
    /// Enough states; no case begins after that.
    pub states: u64,
    /// Changes to what the seed draws.
    pub adjust: &'a (dyn Fn(&mut Config) + Sync),
}

/// What was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Cases.
    pub cases: u64,
    /// States after a power cut.
    pub states: u64,
}

/// A violation and what it took to find it.
#[derive(Debug, Clone)]
pub struct Found {
    /// The seed of the case.
    pub seed: u64,
    /// What was looked at until then.
    pub tally: Tally,
    /// What is wrong.
    pub violation: Violation,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.violation.report)?;
        let Tally { cases, states } = self.tally;
        writeln!(f, "found with seed {} in case {cases}, after {states} states", self.seed)?;
        let seed = self.seed;
        write!(
            f,
            "to repeat: BLKRING_SEED={seed} cargo test -p blkring-tests --test powercut regressions -- --nocapture"
        )
    }
}

/// Runs cases until enough states are judged, all seeds are used, or a violation is found (the one of the lowest
/// seed among those that were running).
///
/// # Errors
/// What was found.
pub fn hunt(hunt: &Hunt<'_>) -> Result<Tally, Box<Found>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, cases, states) =
        (AtomicU64::new(hunt.seeds.start), AtomicU64::new(0), AtomicU64::new(0));
    let found: Mutex<Option<(u64, Violation)>> = Mutex::new(None);
    let lock = || found.lock().unwrap_or_else(PoisonError::into_inner);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while states.load(Ordering::Relaxed) < hunt.states && lock().is_none() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= hunt.seeds.end {
                        return;
                    }
                    let (judged, result) = one(seed, hunt);
                    cases.fetch_add(1, Ordering::Relaxed);
                    states.fetch_add(judged, Ordering::Relaxed);
                    let Err(violation) = result else { continue };
                    let mut found = lock();
                    if found.as_ref().is_none_or(|(other, _)| seed < *other) {
                        *found = Some((seed, violation));
                    }
                }
            });
        }
    });
    let tally = Tally { cases: cases.into_inner(), states: states.into_inner() };
    match found.into_inner().unwrap_or_else(PoisonError::into_inner) {
        None => Ok(tally),
        Some((seed, violation)) => Err(Box::new(Found { seed, tally, violation })),
    }
}

/// Runs one case again, with many states.
///
/// # Errors
/// What was found.
pub fn repeat(
    seed: u64,
    every: u64,
    adjust: &(dyn Fn(&mut Config) + Sync),
) -> Result<Tally, Box<Found>> {
    hunt(&Hunt { seeds: seed..seed + 1, every, states: u64::MAX, adjust })
}

/// A panic anywhere below is a violation too.
fn one(seed: u64, hunt: &Hunt<'_>) -> (u64, Result<(), Violation>) {
    let mut states = 0;
    let sampling = Sampling { every: hunt.every };
    let ran = catch_unwind(AssertUnwindSafe(|| run(seed, hunt.adjust, sampling, &mut states)));
    let result = ran.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Err(Violation { report: format!("seed {seed}: a panic: {text}") })
    });
    (states, result)
}
