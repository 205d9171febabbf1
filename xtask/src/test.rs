//! One run of the suite.

use std::fs;
use std::io::{self, Write as _};
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::command::{self, Ended};
use crate::install;
use crate::outcome::{self, Outcome};
use crate::place::Place;
use crate::publish;
use crate::suite::{self, Action, Cargo, INSTALL, LIMIT, Step};
use crate::table::{self, Row};
use crate::variants;

/// Lines of a failed step's output that are shown at once; all of it is in its log.
const TAIL: usize = 60;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Take a skip for a failure
    #[arg(long)]
    ci: bool,
    /// Run these steps only (`cargo xtask list` names them)
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<String>,
}

/// Runs the steps that were chosen and prints the table.
pub(crate) fn run(place: &Place, options: &Options) -> ExitCode {
    let steps = suite::steps(place);
    if let Some(unknown) =
        options.only.iter().find(|name| !steps.iter().any(|step| step.name == **name))
    {
        eprintln!("no step is named {unknown}; `cargo xtask list` names them");
        return ExitCode::from(2);
    }
    if let Err(error) = fs::create_dir_all(place.logs()) {
        eprintln!("{}: {error}", place.logs().display());
        return ExitCode::FAILURE;
    }
    let chosen = |step: &&Step| {
        options.only.is_empty() || step.name == INSTALL || options.only.contains(&step.name)
    };
    let mut run = Run { place, options, program_is_built: false };
    let rows: Vec<Row> = steps.iter().filter(chosen).map(|step| run.step(step)).collect();
    print!("\n{}", table::render(&rows));
    match rows.iter().any(|row| row.outcome.failed > 0) {
        true => ExitCode::FAILURE,
        false => ExitCode::SUCCESS,
    }
}

struct Run<'a> {
    place: &'a Place,
    options: &'a Options,
    /// Tests are pointed to the released program only if this run built it: an old one proves nothing.
    program_is_built: bool,
}

impl Run<'_> {
    /// One line with result and time; more if it failed.
    fn step(&mut self, step: &Step) -> Row {
        print!("{:24} ", step.name);
        // Only for who watches: the line is completed when the step has ended.
        drop(io::stdout().flush());
        let start = Instant::now();
        let mut outcome = self.outcome(step);
        if self.options.ci {
            outcome = outcome.strict();
        }
        let time = start.elapsed();
        println!("{:8} {:6.1}s  {}", outcome.word(), time.as_secs_f64(), counts(&outcome));
        if outcome.failed > 0 {
            self.explain(step, &outcome);
        }
        Row { name: step.name.clone(), outcome, time }
    }

    fn outcome(&mut self, step: &Step) -> Outcome {
        match &step.action {
            Action::Install => install::install(self.place),
            Action::Program => self.program(step),
            Action::Build(cargo) => self.cargo(step, cargo),
            Action::Tests(cargo) => self.tests(step, cargo),
            Action::Examples(cargo, names) => self.examples(step, cargo, names),
            Action::Publish(cargo) => match publish::clean(self.place) {
                Ok(()) => self.cargo(step, cargo),
                Err(error) => Outcome::fail(format!("cannot clean up: {error}")),
            },
            Action::Absent(reason) => Outcome::skip(reason),
        }
    }

    fn program(&mut self, step: &Step) -> Outcome {
        let built = self.cargo(step, &suite::cargo("build --release --package blkring"));
        if built.failed > 0 {
            return built;
        }
        self.program_is_built = true;
        let names = variants::check(self.place);
        if names.failed + names.skipped > 0 {
            return names;
        }
        let listed = self.cargo(step, &suite::cargo(variants::FEATURES));
        match fs::read_to_string(self.log(step)) {
            Ok(tree) if listed.failed == 0 => variants::check_features(&tree),
            _ => listed,
        }
    }

    fn tests(&self, step: &Step, cargo: &Cargo) -> Outcome {
        if let Err(error) = fs::write(self.place.report(), "") {
            return Outcome::fail(format!("{}: {error}", self.place.report().display()));
        }
        let ended = self.cargo(step, cargo);
        let output = fs::read(self.log(step)).unwrap_or_default();
        let report = fs::read(self.place.report()).unwrap_or_default();
        let text = String::from_utf8_lossy;
        let counted = outcome::of_tests(&text(&output), &text(&report));
        if ended.failed > 0 { counted.ended_badly(ended) } else { counted.ended_well() }
    }

    fn examples(&self, step: &Step, cargo: &Cargo, names: &[String]) -> Outcome {
        let mut outcome = self.cargo(step, cargo);
        if outcome.failed == 0 {
            outcome = Outcome::default();
            names.iter().for_each(|name| outcome.add(&self.example(name)));
        }
        outcome.ended_well()
    }

    /// An example ends well if what it did is as it should be.
    fn example(&self, name: &str) -> Outcome {
        let command = Command::new(self.place.target.join("debug/examples").join(name));
        let log = self.place.logs().join(format!("example-{name}"));
        match command::run(command, &log, LIMIT) {
            Ok(Ended::Exit(status)) if status.success() => Outcome::pass(),
            other => {
                let output = fs::read_to_string(&log).unwrap_or_default();
                Outcome::fail(format!("example {name}: {other:?}: {output}"))
            }
        }
    }

    /// Runs a cargo command; passed or failed by its exit code.
    fn cargo(&self, step: &Step, cargo: &Cargo) -> Outcome {
        let mut command = Command::new(suite::program());
        command.args(&cargo.args).current_dir(&self.place.root);
        command.env("CARGO_TERM_COLOR", "never").env("PATH", install::search_path());
        command.env("BLKRING_REPORT", self.place.report());
        if self.options.ci {
            command.env("BLKRING_CI", "1");
        }
        if self.program_is_built {
            command.env("BLKRING_PROGRAM", self.place.program());
        }
        command.envs(cargo.env.iter().map(|(name, value)| (name, value)));
        match command::run(command, &self.log(step), LIMIT) {
            Ok(Ended::Exit(status)) if status.success() => Outcome::pass(),
            Ok(Ended::Exit(status)) => {
                Outcome::fail(format!("cargo {}: {status}", cargo.args.join(" ")))
            }
            Ok(Ended::TimedOut(limit)) => {
                Outcome::fail(format!("killed after {} s", limit.as_secs()))
            }
            Err(error) => Outcome::fail(format!("cargo {}: {error}", cargo.args.join(" "))),
        }
    }

    fn log(&self, step: &Step) -> std::path::PathBuf {
        self.place.logs().join(&step.name)
    }

    fn explain(&self, step: &Step, outcome: &Outcome) {
        outcome.notes.iter().for_each(|note| println!("    {note}"));
        let Ok(output) = fs::read(self.log(step)) else { return };
        let output = String::from_utf8_lossy(&output);
        let lines: Vec<&str> = output.lines().collect();
        println!("    the end of {}:", self.log(step).display());
        lines.iter().skip(lines.len().saturating_sub(TAIL)).for_each(|line| println!("    {line}"));
    }
}

/// `12 passed, 1 skipped`: what is not zero.
fn counts(outcome: &Outcome) -> String {
    let Outcome { passed, failed, skipped, not_applicable, .. } = outcome;
    let all = [
        (passed, "passed"),
        (failed, "failed"),
        (skipped, "skipped"),
        (not_applicable, "not applicable"),
    ];
    let some = all.iter().filter(|(number, _)| **number > 0);
    some.map(|(number, word)| format!("{number} {word}")).collect::<Vec<_>>().join(", ")
}
