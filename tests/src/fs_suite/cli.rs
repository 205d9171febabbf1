//! The program: `cargo xtask fs-suite`.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use blkring_engine::Variants;
use clap::{Parser, ValueEnum};

use super::broken::{self, Verdict};
use super::ground::Place;
use super::list::{self, ROUNDS, TESTS, Test};
use super::run::INTERRUPTED;
use super::session::{Line, Outcome, Session};
use crate::fs::Fs;
use crate::report::{NOT_APPLICABLE, SKIPPED};

/// What it ends with.
const FAILED: u8 = 1;
/// Nothing could be tested.
const NOTHING: u8 = 3;
/// As shells tell of a program that was interrupted.
const ENDED_BY_USER: u8 = 130;

/// Tests of concurrent I/O against a file system
///
/// Several queues, each on a thread of its own, write, zero, punch, grow, cut, flush, read and copy files at once; every
/// byte and the size are checked. Without --dir the file systems are made on loop devices and mounted, which takes root,
/// and are gone afterwards. With --dir files are made in that directory, whatever file system it is of.
///
/// Exit codes: 0 nothing failed, 1 something failed, 2 the command line is wrong, 3 nothing could be tested, 130
/// interrupted.
#[derive(Debug, Parser)]
#[command(name = "fs-suite", bin_name = "cargo xtask fs-suite")]
struct Options {
    /// File systems to make and test
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "LIST",
        default_value = "xfs,ext4,btrfs,tmpfs"
    )]
    fs: Vec<FsName>,
    /// Test the file system of this directory instead
    #[arg(long, value_name = "DIR", conflicts_with = "fs")]
    dir: Option<PathBuf>,
    /// Seconds for each file system, which its tests share: those past the end of the file get more of them
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// The seed of an earlier run: the same requests, in an order that the threads make anew
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Only these tests, which then share the time
    #[arg(long, value_delimiter = ',', value_name = "TESTS")]
    only: Vec<String>,
    /// Print the names of the tests and what they do
    #[arg(long)]
    list: bool,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
    /// Test the tests: run each with an engine that breaks a rule it must notice
    #[arg(long)]
    variants: bool,
    /// Run the tests with an engine that breaks this rule: they are to fail
    #[arg(long = "break", value_name = "RULE", conflicts_with = "variants")]
    broken: Option<String>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum FsName {
    Xfs,
    Ext4,
    Btrfs,
    Tmpfs,
}

impl From<FsName> for Fs {
    fn from(name: FsName) -> Self {
        match name {
            FsName::Xfs => Fs::Xfs,
            FsName::Ext4 => Fs::Ext4,
            FsName::Btrfs => Fs::Btrfs,
            FsName::Tmpfs => Fs::Tmpfs,
        }
    }
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    let options = Options::parse();
    match run(&options) {
        Ok(code) => ExitCode::from(code),
        Err(message) => {
            eprintln!("fs-suite: {message}");
            ExitCode::from(2)
        }
    }
}

fn run(options: &Options) -> Result<u8, String> {
    if options.list {
        TESTS.iter().for_each(|test| println!("{:18} {}", test.name, test.about));
        return Ok(0);
    }
    let interrupt = || {
        // A second time ends it at once; what is left is removed by the next mount.
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(i32::from(ENDED_BY_USER));
        }
        eprintln!("interrupted: cleaning up");
    };
    ctrlc::set_handler(interrupt).map_err(|error| format!("signals: {error}"))?;
    let seed = options.seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    let tests = chosen(&options.only)?;
    let places = match &options.dir {
        Some(directory) => vec![Place::Directory(directory.clone())],
        None => options.fs.iter().map(|&name| Place::Made(name.into())).collect(),
    };
    if options.variants {
        return Ok(try_variants(options, &places, &tests, seed));
    }
    let mut session = Session::new(places, Duration::from_secs(options.seconds), seed);
    session.tests = tests;
    if let Some(name) = &options.broken {
        let variants = Variants::named(name);
        session.variants = variants.ok_or_else(|| format!("no rule is called {name}"))?;
    }
    Ok(run_session(options, &session))
}

fn chosen(only: &[String]) -> Result<Vec<&'static Test>, String> {
    if only.is_empty() {
        return Ok(TESTS.iter().collect());
    }
    let named =
        |name: &String| list::named(name).ok_or_else(|| format!("no test is called {name}"));
    only.iter().map(named).collect()
}

fn run_session(options: &Options, session: &Session) -> u8 {
    let seconds = session.time.as_secs();
    let most = ROUNDS * seconds / 60;
    let heading = format!(
        "{seconds} s for each file system, at most {most} rounds a test, seed {}",
        session.seed
    );
    if !options.json {
        println!("{heading}");
    }
    let lines = session.run(|line| match options.json {
        true => println!("{}", json(line)),
        false => print(line, seconds),
    });
    let count = |what: fn(&Outcome) -> bool| lines.iter().filter(|l| what(&l.outcome)).count();
    let passed = count(|outcome| matches!(outcome, Outcome::Passed));
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let absent = count(|outcome| matches!(outcome, Outcome::NotApplicable(_)));
    let skipped = count(|outcome| matches!(outcome, Outcome::Skipped(_)));
    if !options.json {
        println!(
            "{passed} passed, {failed} failed, {absent} not applicable, {skipped} skipped; seed {}",
            session.seed
        );
    }
    exit_code(passed, failed)
}

fn exit_code(good: usize, bad: usize) -> u8 {
    if bad > 0 {
        FAILED
    } else if INTERRUPTED.load(Ordering::Relaxed) {
        ENDED_BY_USER
    } else if good == 0 {
        NOTHING
    } else {
        0
    }
}

fn print(line: &Line, seconds: u64) {
    let Line { place, test, outcome, done, took, seed } = line;
    let counts = format!("{:>8} rounds {:>6.1} s", done.rounds, took.as_secs_f64());
    let begin = format!("{place:6} {test:18}");
    let outcome_name = outcome.to_string();
    match outcome {
        Outcome::Passed | Outcome::Interrupted => {
            let held = done.held_back;
            println!("{begin} {outcome_name:11} {counts}   {held} held back");
        }
        Outcome::Failed(why) => {
            println!("{begin} {outcome_name:11} {counts}");
            println!("       {why}");
            let place = match place.contains('/') {
                true => format!("--dir {place}"),
                false => format!("--fs {place}"),
            };
            println!(
                "       repeat: cargo xtask fs-suite {place} --only {test} --seconds {seconds} --seed {seed}"
            );
        }
        Outcome::NotApplicable(why) => println!("{begin} {NOT_APPLICABLE}{why}"),
        Outcome::Skipped(why) => println!("{begin} {SKIPPED}{}", first_clause(why)),
    }
}

/// Programs that fail say much.
fn first_clause(reason: &str) -> &str {
    reason.split("; ").next().unwrap_or(reason)
}

fn json(line: &Line) -> serde_json::Value {
    let reason = match &line.outcome {
        Outcome::Failed(why) | Outcome::NotApplicable(why) | Outcome::Skipped(why) => Some(why),
        Outcome::Passed | Outcome::Interrupted => None,
    };
    serde_json::json!({
        "place": line.place,
        "test": line.test,
        "outcome": line.outcome.to_string().to_lowercase(),
        "reason": reason,
        "rounds": line.done.rounds,
        "held-back": line.done.held_back,
        "together": line.done.together,
        "seconds": line.took.as_secs_f64(),
        "seed": line.seed,
    })
}

fn try_variants(options: &Options, places: &[Place], tests: &[&'static Test], seed: u64) -> u8 {
    let (mut missed, mut caught) = (0, 0);
    for place in places {
        for trial in broken::try_all(place, tests, seed, |trial| tell(options, trial)) {
            match trial.verdict() {
                Verdict::Caught => caught += 1,
                Verdict::Missed => missed += 1,
                Verdict::NotTried => (),
            }
        }
    }
    if !options.json {
        println!("{caught} caught, {missed} missed; seed {seed}");
    }
    exit_code(caught, missed)
}

fn tell(options: &Options, trial: &broken::Trial) {
    let line = &trial.line;
    if options.json {
        let mut value = json(line);
        value["variant"] = trial.variant.into();
        value["caught"] = (trial.verdict() == Verdict::Caught).into();
        println!("{value}");
        return;
    }
    let begin = format!("{:6} {:32} {:18}", line.place, trial.variant, line.test);
    let took = line.took.as_secs_f64();
    match (trial.verdict(), &line.outcome) {
        (Verdict::Caught, Outcome::Failed(why)) => {
            println!("{begin} caught {took:>6.1} s   {why}");
        }
        (Verdict::Missed, Outcome::Failed(why)) => {
            println!("{begin} MISSED {took:>6.1} s   it must show by {}: {why}", trial.sign);
        }
        (Verdict::Missed, _) => println!("{begin} MISSED {took:>6.1} s"),
        (_, Outcome::NotApplicable(why)) => println!("{begin} {NOT_APPLICABLE}{why}"),
        (_, Outcome::Skipped(why)) => println!("{begin} {SKIPPED}{}", first_clause(why)),
        (_, outcome) => println!("{begin} {outcome}"),
    }
}
