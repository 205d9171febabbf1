//! Some tests at some places, one after the other.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use blkring_engine::sim::Rng;
use blkring_engine::{Access, Cache, LockMode, OpenError, OpenOptions, Storage, Variants};

use super::finding::Finding;
use super::ground::{Ground, Place, Room};
use super::list::{Need, ROUNDS, TESTS, Test};
use super::run::{Done, INTERRUPTED, Job};
use super::scenes::reflink::lacks_reflinks;
use super::time::Clock;
use crate::report::Skip;

/// How a queue that nobody tells of anything is taken for one whose wake-up was lost.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What a test has come to at a place.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// Nothing was found.
    Passed,
    /// Something is wrong.
    Failed(String),
    /// There is no such thing there, and why.
    NotApplicable(String),
    /// This machine cannot do it, and why.
    Skipped(String),
    /// The user has ended it.
    Interrupted,
}

/// A line of the report.
#[derive(Debug, Clone)]
pub struct Line {
    /// The name of the place.
    pub place: String,
    /// The test.
    pub test: &'static str,
    /// What it has come to.
    pub outcome: Outcome,
    /// What was counted.
    pub done: Done,
    /// How long it took.
    pub took: Duration,
    /// What decided everything but the order of events.
    pub seed: u64,
}

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Session {
    /// Where.
    pub places: Vec<Place>,
    /// Which tests.
    pub tests: Vec<&'static Test>,
    /// For each place.
    pub time: Duration,
    /// Decides everything but the order of events.
    pub seed: u64,
    /// Rules of the engine that are broken.
    pub variants: Variants,
    /// After so long without an event a queue looks whether it has something to do.
    pub patience: Duration,
}

impl Session {
    /// All tests.
    pub fn new(places: Vec<Place>, time: Duration, seed: u64) -> Self {
        let tests = TESTS.iter().collect();
        let variants = Variants::default();
        Session { places, tests, time, seed, variants, patience: PATIENCE }
    }

    /// Runs everything, and tells of each test as it ends.
    pub fn run(&self, mut tell: impl FnMut(&Line)) -> Vec<Line> {
        let mut lines = Vec::new();
        for place in &self.places {
            // Each kind of room is made once, when a test first asks for it.
            for room in [Room::Plenty, Room::Little] {
                let tests = self.tests.iter().filter(|test| test.room == room);
                let mut ground: Option<Result<Ground, Skip>> = None;
                for test in tests {
                    let line = self.run_one(place, test, &mut ground);
                    tell(&line);
                    lines.push(line);
                }
            }
        }
        lines
    }

    fn run_one(
        &self,
        place: &Place,
        test: &'static Test,
        ground: &mut Option<Result<Ground, Skip>>,
    ) -> Line {
        let clock = Clock::start();
        let line = |outcome, done, took| Line {
            place: place.name(),
            test: test.name,
            outcome,
            done,
            took,
            seed: self.seed,
        };
        let without = |outcome| line(outcome, Done::default(), Duration::ZERO);
        if INTERRUPTED.load(Ordering::Relaxed) {
            return without(Outcome::Interrupted);
        }
        if let Some(why) = place.lacks(test.room) {
            return without(Outcome::NotApplicable(why.to_owned()));
        }
        let ground = match ground.get_or_insert_with(|| place.prepare(test.room)) {
            Ok(ground) => ground,
            Err(skip) => return without(Outcome::Skipped(skip.to_string())),
        };
        match lacks(ground, test.need) {
            Ok(None) => (),
            Ok(Some(why)) => return without(Outcome::NotApplicable(why)),
            Err(why) => return without(Outcome::Failed(why)),
        }
        let result = (test.run)(&self.job(place, test, ground.path().to_path_buf()));
        let took = clock.elapsed();
        match result {
            Err(why) => line(Outcome::Failed(why), Done::default(), took),
            Ok(done) => {
                let outcome = match &done.found {
                    Some(finding) => Outcome::Failed(finding.to_string()),
                    None if INTERRUPTED.load(Ordering::Relaxed) => Outcome::Interrupted,
                    None => Outcome::Passed,
                };
                line(outcome, done, took)
            }
        }
    }

    fn job(&self, place: &Place, test: &Test, directory: PathBuf) -> Job {
        let all: u32 = self.tests.iter().map(|test| test.weight).sum();
        let name = format!("{}{}", place.name(), test.name);
        let seed =
            name.bytes().fold(self.seed, |seed, byte| Rng::new(seed ^ u64::from(byte)).next_u64());
        Job {
            directory,
            seed,
            time: self.time * test.weight / all.max(1),
            rounds: ROUNDS * self.time.as_secs().max(1) / 60,
            variants: self.variants,
            patience: self.patience,
        }
    }
}

impl Line {
    /// What was found.
    pub fn found(&self) -> Option<&Finding> {
        self.done.found.as_ref()
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::Passed => "passed",
            Outcome::Failed(_) => "FAILED",
            Outcome::NotApplicable(_) => "not applicable",
            Outcome::Skipped(_) => "skipped",
            Outcome::Interrupted => "interrupted",
        })
    }
}

/// Why files there are not what a test needs, if they are not.
fn lacks(ground: &Ground, need: Need) -> Result<Option<String>, String> {
    match need {
        Need::Nothing => Ok(None),
        Need::Reflinks => {
            let lacks = lacks_reflinks(ground.path())?;
            Ok(lacks.map(|error| format!("files share no blocks there ({error})")))
        }
        Need::Blocks => {
            let file = tempfile::NamedTempFile::new_in(ground.path())
                .map_err(|error| format!("{}: {error}", ground.path().display()))?;
            let options = OpenOptions::new().access(Access::ReadWrite).lock(LockMode::Off);
            match Storage::open(file.path(), &options.cache(Cache::Direct)) {
                Ok(storage) if storage.alignment() > 1 => Ok(None),
                Ok(_) => Ok(Some("direct I/O takes any byte there".to_owned())),
                Err(OpenError::NoDirectIo { .. }) => {
                    Ok(Some("there is no direct I/O there".to_owned()))
                }
                Err(error) => Err(error.to_string()),
            }
        }
    }
}
