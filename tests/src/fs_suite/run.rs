//! One run of one test: how long it goes on, and what comes of it.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use blkring_engine::Variants;

use super::finding::{Finding, Stop};
use super::meeting::Meeting;
use super::time::Clock;

/// How long a run without any round may go on.
const GRACE: Duration = Duration::from_secs(30);

/// What a run is given.
#[derive(Debug, Clone)]
pub struct Job {
    /// Where its files are made.
    pub directory: PathBuf,
    /// Decides everything but the order of events.
    pub seed: u64,
    /// It ends after so long, and one round.
    pub time: Duration,
    /// It ends after so many rounds.
    pub rounds: u64,
    /// Rules of the engine that are broken.
    pub variants: Variants,
    /// A queue that sleeps for so long without being told of anything looks whether there is something to do.
    pub patience: Duration,
}

/// What came of a run.
#[derive(Debug, Clone, Default)]
pub struct Done {
    /// Rounds.
    pub rounds: u64,
    /// Operations that went to the kernel while others of the same file were there.
    pub together: u64,
    /// Requests that the engine held back because of others.
    pub held_back: u64,
    /// What is wrong.
    pub found: Option<Finding>,
}

/// Set when the user wants everything to end.
pub static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// What all threads of a run share.
pub struct Run {
    job: Job,
    clock: Clock,
    rounds: AtomicU64,
    beats: AtomicU64,
    broken: AtomicBool,
    found: Mutex<Option<Finding>>,
    /// One for each file.
    meetings: Vec<Meeting>,
}

impl Run {
    /// A run that begins now, with so many files and hands on each.
    pub fn new(job: &Job, files: usize, hands: usize) -> Self {
        Run {
            job: job.clone(),
            clock: Clock::start(),
            rounds: AtomicU64::new(0),
            beats: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            found: Mutex::new(None),
            meetings: (0..files).map(|_| Meeting::new(hands)).collect(),
        }
    }

    /// What it was given.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Where the hands of a file meet.
    pub fn meeting(&self, file: usize) -> &Meeting {
        &self.meetings[file]
    }

    /// A round is over.
    pub fn count(&self) {
        self.rounds.fetch_add(1, Ordering::Relaxed);
    }

    /// Rounds so far.
    pub fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }

    /// Something goes on.
    pub fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that changes while something goes on.
    pub fn beats(&self) -> u64 {
        self.beats.load(Ordering::Relaxed)
    }

    /// Since the begin.
    pub fn elapsed(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Whether the hands are to come to an end.
    pub fn is_over(&self) -> bool {
        self.is_broken()
            || INTERRUPTED.load(Ordering::Relaxed)
            || self.rounds() >= self.job.rounds
            || self.elapsed() >= self.job.time && !self.owes_a_round()
    }

    /// A run that is short of time makes one round all the same, if that takes no longer than `GRACE`.
    fn owes_a_round(&self) -> bool {
        self.rounds() == 0 && self.elapsed() < self.job.time + GRACE
    }

    /// Whether something was found.
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// A hand or a thread goes no further. The first finding counts.
    pub fn stop(&self, stop: Stop) {
        if let Stop::Found(finding) = stop {
            let mut found = self.found.lock().expect("nothing panics under this lock");
            found.get_or_insert(finding);
        }
        self.broken.store(true, Ordering::Release);
        self.meetings.iter().for_each(Meeting::break_up);
    }

    /// What was found.
    pub fn found(&self) -> Option<Finding> {
        self.found.lock().expect("nothing panics under this lock").clone()
    }
}
