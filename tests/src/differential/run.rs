//! Runs a script on both sides.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::mask;
use super::script::{IMAGE, Script, Step};
use crate::beside::{self, Run};
use crate::program;

/// The first thing that was not the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The step, or what was looked at in the end.
    pub place: String,
    /// What the installed programs gave.
    pub theirs: String,
    /// What the program gave.
    pub ours: String,
}

/// Two directories, and the programs that work in each.
struct Sides {
    root: TempDir,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Theirs,
    Ours,
}

impl Side {
    fn program(self, name: &str) -> PathBuf {
        match self {
            Side::Theirs => PathBuf::from(name),
            Side::Ours => program::called(name),
        }
    }
}

impl Sides {
    fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let root = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let sides = Sides { root: root.expect("a temporary directory") };
        for side in [Side::Theirs, Side::Ours] {
            fs::create_dir(sides.dir(side)).expect("the directory is new");
        }
        sides
    }

    fn dir(&self, side: Side) -> PathBuf {
        self.root.path().join(if side == Side::Theirs { "theirs" } else { "ours" })
    }

    fn run(&self, tools: Side, place: Side, program: &str, words: &[&str]) -> Run {
        beside::run(&tools.program(program), &self.dir(place), words)
    }

    fn step(&self, script: &Script, side: Side, step: &Step) -> Option<String> {
        let (program, words) = step.words()?;
        let policy = format!("--alloc-policy={}", script.policy);
        let mut all: Vec<&str> = words.iter().map(String::as_str).collect();
        if side == Side::Ours && program == "qemu-io" {
            all.insert(0, &policy);
        }
        let run = self.run(side, side, program, &all);
        let printed = mask::output(script, step, &run.stdout);
        Some(format!("{printed}stderr: {}\nexit code: {:?}\n", run.stderr, run.code))
    }

    fn swap(&self) {
        let (a, b) = (self.dir(Side::Theirs).join(IMAGE), self.dir(Side::Ours).join(IMAGE));
        let between = self.root.path().join("between");
        for (from, to) in [(&a, &between), (&b, &a), (&between, &b)] {
            // An image that could not be made is on neither side.
            if from.exists() {
                fs::rename(from, to).expect("on one file system");
            }
        }
    }

    /// What the guest reads from the image of a side, by the tools of either.
    fn contents(&self, tools: Side, place: Side) -> Result<Vec<u8>, String> {
        let raw = self.dir(place).join("raw");
        let run = self.run(tools, place, "qemu-img", &["convert", "-O", "raw", IMAGE, "raw"]);
        let bytes = fs::read(&raw);
        match (run.code, bytes) {
            (Some(0), Ok(bytes)) => Ok(bytes),
            _ => Err(run.stderr),
        }
    }
}

/// Runs a script.
///
/// # Errors
/// The first difference.
///
/// # Panics
/// If files cannot be made.
pub fn run(script: &Script) -> Result<(), Box<Difference>> {
    let sides = Sides::new();
    for step in &script.before {
        let (program, words) = step.words().expect("nothing is swapped before");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        for side in [Side::Theirs, Side::Ours] {
            let run = sides.run(Side::Theirs, side, program, &words);
            assert_eq!(run.code, Some(0), "{step}: {run:?}");
        }
    }
    for step in &script.steps {
        let theirs = sides.step(script, Side::Theirs, step);
        let ours = sides.step(script, Side::Ours, step);
        if theirs != ours {
            return Err(Box::new(Difference {
                place: step.to_string(),
                theirs: theirs.unwrap_or_default(),
                ours: ours.unwrap_or_default(),
            }));
        }
        if *step == Step::Swap {
            sides.swap();
        }
    }
    compare_contents(&sides)
}

fn compare_contents(sides: &Sides) -> Result<(), Box<Difference>> {
    if !sides.dir(Side::Theirs).join(IMAGE).exists() {
        return Ok(());
    }
    let expected = sides.contents(Side::Theirs, Side::Theirs);
    for (tools, place) in
        [(Side::Theirs, Side::Ours), (Side::Ours, Side::Theirs), (Side::Ours, Side::Ours)]
    {
        let found = sides.contents(tools, place);
        if found != expected {
            let shown = |bytes: &Result<Vec<u8>, String>| match (bytes, &expected, &found) {
                (Ok(bytes), Ok(a), Ok(b)) => {
                    let at = a.iter().zip(b).position(|(a, b)| a != b);
                    format!("{} bytes, the first difference at {at:?}", bytes.len())
                }
                (Ok(bytes), ..) => format!("{} bytes", bytes.len()),
                (Err(text), ..) => text.clone(),
            };
            return Err(Box::new(Difference {
                place: format!(
                    "contents of the image of {place:?}, read by the tools of {tools:?}"
                ),
                theirs: shown(&expected),
                ours: shown(&found),
            }));
        }
    }
    Ok(())
}
