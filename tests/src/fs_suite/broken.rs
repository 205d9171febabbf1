//! Whether the tests notice: each broken rule with each test that must notice it.

use std::sync::atomic::Ordering;
use std::time::Duration;

use blkring_engine::variant::NAMES;
use blkring_engine::{Variant, Variants};

use super::finding::Sign;
use super::ground::Place;
use super::list::{Catch, TESTS, Test, VARIANTS};
use super::run::INTERRUPTED;
use super::session::{Line, Outcome, Session};

/// Long enough for every test to notice, and far longer than it takes.
const TIME: Duration = Duration::from_secs(60);

/// A wake-up that is lost is noticed after so long. Short, since nothing else ends the sleep.
const PATIENCE: Duration = Duration::from_millis(500);

/// What came of one broken rule in one test.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The rule.
    pub variant: &'static str,
    /// The sign by which the test must notice it.
    pub sign: Sign,
    /// How the test ended.
    pub line: Line,
}

/// How a trial ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The test noticed, by the sign that it must show.
    Caught,
    /// The test passed, or failed for another reason.
    Missed,
    /// The test did not run.
    NotTried,
}

impl Trial {
    /// How it ended.
    pub fn verdict(&self) -> Verdict {
        match (&self.line.outcome, self.line.found()) {
            (Outcome::Failed(_), Some(found)) if found.sign == self.sign => Verdict::Caught,
            (Outcome::Failed(_) | Outcome::Passed, _) => Verdict::Missed,
            _ => Verdict::NotTried,
        }
    }
}

/// The name of a variant.
pub fn name(variant: Variant) -> &'static str {
    NAMES[variant as usize]
}

/// What is broken, for the table.
pub fn meaning(variant: Variant) -> &'static str {
    match variant {
        Variant::GrowthNotSerialised => "what changes the size does not exclude others",
        Variant::ZeroWriteWidensToOwnRange => {
            "a zero-write past the end excludes its own range only, not all beyond"
        }
        Variant::RmwNotSerialised => "a read-modify-write does not exclude its neighbours",
        Variant::FlushSkipped => "a flush is answered without an fdatasync",
        Variant::FlushCountsAtSubmission => {
            "a flush is skipped by counting writes when they are submitted"
        }
        Variant::LadderErrnoIgnored => "errors of the calls that zero are taken for success",
        Variant::WakeupLost => "a wake-up from another thread does not end a sleep",
        Variant::DroppedReceiptReleasesRange => {
            "what is dropped gives its range back while the kernel works on it"
        }
        _ => "a rule of the qcow2 driver",
    }
}

/// The pairs of a broken rule and a test that must notice it.
pub fn pairs() -> impl Iterator<Item = (Variant, &'static Test, &'static Catch)> {
    VARIANTS.iter().flat_map(|&variant| {
        TESTS.iter().flat_map(move |test| {
            let catches = test.catches.iter().filter(move |one| one.variant == variant);
            catches.map(move |one| (variant, test, one))
        })
    })
}

/// Tries all pairs of these tests at a place, and tells of each.
pub fn try_all(
    place: &Place,
    tests: &[&'static Test],
    seed: u64,
    mut tell: impl FnMut(&Trial),
) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (variant, test, catch) in pairs() {
        let chosen = tests.iter().any(|chosen| chosen.name == test.name);
        if !chosen || INTERRUPTED.load(Ordering::Relaxed) {
            continue;
        }
        let mut session = Session::new(vec![place.clone()], TIME, seed);
        session.tests = vec![test];
        session.variants = Variants::only(variant);
        session.patience = PATIENCE;
        for line in session.run(|_| ()) {
            let trial = Trial { variant: name(variant), sign: catch.sign, line };
            tell(&trial);
            trials.push(trial);
        }
    }
    trials
}

/// The table of the documentation: which broken rule is noticed by which tests, by what sign.
pub fn table() -> String {
    let mut rows = vec![
        "| broken rule | what is wrong | noticed by | sign |".to_owned(),
        "|---|---|---|---|".to_owned(),
    ];
    for &variant in VARIANTS {
        let own = || pairs().filter(move |(one, _, _)| *one == variant);
        let tests: Vec<_> = own().map(|(_, test, _)| format!("`{}`", test.name)).collect();
        let mut signs: Vec<_> = own().map(|(_, _, catch)| catch.sign.to_string()).collect();
        signs.dedup();
        rows.push(format!(
            "| `{}` | {} | {} | {} |",
            name(variant),
            meaning(variant),
            tests.join(", "),
            signs.join(", "),
        ));
    }
    rows.join("\n") + "\n"
}
