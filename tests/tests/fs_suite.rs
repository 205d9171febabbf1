//! The concurrency suite, for a few seconds on each file system; whether its tests notice broken rules; its program.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use blkring_tests::fs::Fs;
use blkring_tests::fs_suite::broken::{self, Verdict};
use blkring_tests::fs_suite::ground::{Place, Room};
use blkring_tests::fs_suite::list::{Need, TESTS, Test};
use blkring_tests::fs_suite::session::{Line, Outcome, Session};
use blkring_tests::program::root;
use blkring_tests::report::Skip;

/// Environment variable: seconds for each file system.
const SECONDS_ENV: &str = "BLKRING_FS_SUITE_SECONDS";
const SECONDS: u64 = 8;

/// These never have to wait for each other: extents are asked of the file system, and flushes exclude nobody.
const NEVER_HELD_BACK: [&str; 1] = ["flush"];

fn seconds() -> Duration {
    let given = std::env::var(SECONDS_ENV).ok().and_then(|text| text.parse().ok());
    Duration::from_secs(given.unwrap_or(SECONDS))
}

/// All tests at a place; what did not run is in the answer.
fn run(place: Place) -> Vec<Line> {
    let lines = Session::new(vec![place], seconds(), 1).run(|_| ());
    for line in &lines {
        println!("{line:?}");
        if let Outcome::Failed(why) = &line.outcome {
            panic!("{} on {}: {why}", line.test, line.place);
        }
        if matches!(line.outcome, Outcome::Passed) {
            assert!(line.done.rounds > 0, "{}: no round", line.test);
            assert!(line.done.together > 0, "{}: nothing ran together", line.test);
            let waits = !NEVER_HELD_BACK.contains(&line.test);
            assert!(!waits || line.done.held_back > 0, "{}: nothing had to wait", line.test);
        }
    }
    lines
}

fn run_made(fs: Fs, lacking: &[&str]) {
    let lines = run(Place::Made(fs));
    let skipped = lines.iter().find_map(|line| match &line.outcome {
        Outcome::Skipped(why) => Some(Skip::new(why.clone())),
        _ => None,
    });
    if let Some(skip) = skipped {
        return skip.report();
    }
    let absent = |line: &&Line| matches!(line.outcome, Outcome::NotApplicable(_));
    let absent: Vec<_> = lines.iter().filter(absent).map(|line| line.test).collect();
    assert_eq!(absent, lacking, "on {fs}");
}

#[test]
fn xfs() {
    run_made(Fs::Xfs, &[]);
}

#[test]
fn ext4() {
    run_made(Fs::Ext4, &["reflink"]);
}

#[test]
fn btrfs() {
    run_made(Fs::Btrfs, &[]);
}

#[test]
fn tmpfs() {
    run_made(Fs::Tmpfs, &["reflink"]);
}

#[test]
fn a_directory_takes_no_root() {
    let directory = tempfile::tempdir().unwrap();
    let lines = run(Place::Directory(directory.path().to_path_buf()));
    let passed = |line: &&Line| matches!(line.outcome, Outcome::Passed);
    assert!(lines.iter().filter(passed).count() >= 6, "{lines:?}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "files are left");
}

/// Those that run in any directory with direct I/O.
fn catch_in(place: &Place, tests: &[&'static Test]) {
    let trials = broken::try_all(place, tests, 1, |trial| println!("{trial:?}"));
    assert!(!trials.is_empty());
    for trial in &trials {
        let (variant, test) = (trial.variant, trial.line.test);
        match trial.verdict() {
            Verdict::Caught => (),
            Verdict::Missed => panic!("{variant} in {test}: {:?}", trial.line),
            Verdict::NotTried => return Skip::new(format!("{:?}", trial.line.outcome)).report(),
        }
    }
}

#[test]
fn broken_rules_are_noticed() {
    let plain = |test: &&Test| test.room == Room::Plenty && test.need != Need::Reflinks;
    let tests: Vec<_> = TESTS.iter().filter(plain).collect();
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    catch_in(&Place::Directory(directory), &tests);
}

#[test]
fn broken_rules_are_noticed_on_xfs() {
    let other = |test: &&Test| test.room == Room::Little || test.need == Need::Reflinks;
    let tests: Vec<_> = TESTS.iter().filter(other).collect();
    assert_eq!(tests.len(), 2);
    catch_in(&Place::Made(Fs::Xfs), &tests);
}

#[test]
fn the_documentation_has_the_table() {
    let text = std::fs::read_to_string(root().join("docs/fs-suite.md")).unwrap();
    let table = broken::table();
    assert!(text.contains(&table), "docs/fs-suite.md must contain:\n{table}");
    for test in TESTS {
        let row = format!("| `{}` | {} |", test.name, test.about);
        assert!(text.contains(&row), "docs/fs-suite.md must contain: {row}");
    }
}

fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fs-suite"));
    command.args(args).stdin(Stdio::null());
    command
}

fn output(args: &[&str]) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } =
        program(args).output().expect("the program is built with this test");
    let text = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    (status.code(), text)
}

#[test]
fn the_program_says_what_it_does() {
    let (code, text) = output(&["--list"]);
    assert_eq!((code, text.lines().count()), (Some(0), TESTS.len()), "{text}");
    let (code, text) = output(&["--help"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("Usage: cargo xtask fs-suite"), "{text}");
    assert_eq!(output(&["--only", "no-such-test"]).0, Some(2));
    assert_eq!(output(&["--fs", "fat"]).0, Some(2));
    assert_eq!(output(&["--dir", "/no/such/directory", "--seconds", "1"]).0, Some(3));
}

#[test]
fn the_program_tells_how_to_repeat_a_failure() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = directory.path().to_str().unwrap();
    let args = ["--dir", dir, "--only", "flush", "--seconds", "2", "--seed", "7"];
    let (code, text) = output(&args);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("1 passed, 0 failed, 0 not applicable, 0 skipped; seed 7"), "{text}");
    let (code, text) = output(&[&args[..], &["--break", "flush-skipped"]].concat());
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("--only flush --seconds 2 --seed 7"), "{text}");
    let (code, text) = output(&[&args[..], &["--json"]].concat());
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, value["outcome"].as_str()), (Some(0), Some("passed")));
}

#[test]
fn an_interrupt_cleans_up() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().to_str().unwrap();
    let child = program(&["--dir", dir, "--seconds", "600"]).stdout(Stdio::piped()).spawn();
    let child = child.unwrap();
    let id = rustix::process::Pid::from_child(&child);
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(child.wait_with_output()));
    // It has begun when its first file is there.
    while std::fs::read_dir(directory.path()).unwrap().count() == 0 {
        thread::sleep(Duration::from_millis(10));
    }
    thread::sleep(Duration::from_millis(300));
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let ended = receiver.recv_timeout(Duration::from_secs(60)).expect("it ends").unwrap();
    assert_eq!(ended.status.code(), Some(130));
    let text = String::from_utf8_lossy(&ended.stdout);
    assert!(text.contains("interrupted"), "{text}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "files are left");
}
