//! The steps of the suite, in order.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::place::Place;
use crate::publish;

/// A named part of the suite.
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) action: Action,
}

/// What a step does.
pub(crate) enum Action {
    /// Installs what the tests need.
    Install,
    /// Builds the released program and looks for test-only switches in it.
    Program,
    /// Runs cargo; the exit code is the result.
    Build(Cargo),
    /// Runs cargo; the tests that it ran are the result.
    Tests(Cargo),
    /// Builds the examples and runs them by these names: each verifies what it did.
    Examples(Cargo, Vec<String>),
    /// Packs and builds everything as for publishing.
    Publish(Cargo),
    /// Says why the step cannot run.
    Absent(String),
}

/// Arguments and environment of one cargo command.
#[derive(Default)]
pub(crate) struct Cargo {
    pub(crate) args: Vec<String>,
    pub(crate) env: Vec<(&'static str, String)>,
}

/// No step may take longer: a hang is a failure. Compiling everything on two slow cores takes a few minutes.
pub(crate) const LIMIT: Duration = Duration::from_secs(15 * 60);

/// The step that comes first, whatever is chosen.
pub(crate) const INSTALL: &str = "install";

/// Packages with integration tests.
const PACKAGES: [&str; 7] = ["tracker", "engine", "qcow2", "bench", "cli", "tests", "xtask"];

/// The model of the tracker's shell: a test of its own cfg, empty without it.
const LOOM: &str = "loom";

/// Everything, in the order in which it runs: cheap and telling first.
pub(crate) fn steps(place: &Place) -> Vec<Step> {
    let runner = Runner::find(place);
    let mut steps = vec![
        Step { name: INSTALL.into(), action: Action::Install },
        Step { name: "program".into(), action: Action::Program },
        Step { name: "build".into(), action: Action::Build(runner.build()) },
        Step { name: "unit".into(), action: Action::Tests(runner.tests(&["--lib", "--bins"])) },
    ];
    for target in integration_targets(&place.root) {
        let action = Action::Tests(runner.tests(&["--test", &target]));
        steps.push(Step { name: target, action });
    }
    steps.extend([
        Step {
            name: "doc".into(),
            action: Action::Tests(cargo("test --workspace --all-features --doc --no-fail-fast")),
        },
        Step {
            name: "examples".into(),
            action: Action::Examples(
                cargo("build --workspace --all-features --examples"),
                targets(&place.root, "examples").into_iter().collect(),
            ),
        },
        Step {
            name: "benches".into(),
            action: Action::Build(cargo("check --workspace --all-features --benches")),
        },
        Step { name: LOOM.into(), action: loom(place) },
        Step { name: "wake-ups".into(), action: Action::Tests(wake_ups(place)) },
        Step { name: "publish".into(), action: Action::Publish(publish(place)) },
    ]);
    steps
}

/// A cargo command without blanks in its arguments.
pub(crate) fn cargo(line: &str) -> Cargo {
    Cargo { args: line.split(' ').map(str::to_owned).collect(), env: Vec::new() }
}

/// What runs tests: nextest, which gives each a process of its own, or cargo alone.
#[derive(Clone, Copy)]
enum Runner {
    Nextest,
    Cargo,
}

impl Runner {
    fn find(place: &Place) -> Self {
        let mut ask = Command::new(program());
        ask.args(["nextest", "--version"]).current_dir(&place.root);
        ask.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match ask.status() {
            Ok(status) if status.success() => Self::Nextest,
            _ => Self::Cargo,
        }
    }

    /// The whole workspace with all features, those for tests included, is selected each time, so that nothing is
    /// built twice; the released program is built apart from it.
    fn base(self) -> Cargo {
        match self {
            Self::Nextest => {
                cargo("nextest run --workspace --all-features --no-fail-fast --no-tests=pass")
            }
            Self::Cargo => cargo("test --workspace --all-features --no-fail-fast"),
        }
    }

    fn build(self) -> Cargo {
        match self {
            // nextest refuses --no-run together with options of the run.
            Self::Nextest => cargo("nextest run --workspace --all-features --no-run"),
            Self::Cargo => cargo("test --workspace --all-features --no-run"),
        }
    }

    fn tests(self, targets: &[&str]) -> Cargo {
        let mut command = self.base();
        command.args.extend(targets.iter().map(|&target| target.to_owned()));
        command
    }
}

/// The cargo that started this program.
pub(crate) fn program() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The targets of integration tests. Those of one name in two packages are one step.
fn integration_targets(root: &Path) -> BTreeSet<String> {
    let mut names = targets(root, "tests");
    names.remove(LOOM);
    names
}

/// `PACKAGE/KIND/NAME.rs` and `PACKAGE/KIND/NAME/main.rs`, as cargo finds them, by name.
fn targets(root: &Path, kind: &str) -> BTreeSet<String> {
    let directories = PACKAGES.iter().map(|package| root.join(package).join(kind));
    let entries = directories.filter_map(|directory| fs::read_dir(directory).ok()).flatten();
    let paths = entries.flatten().map(|entry| entry.path());
    let targets = paths.filter(|path| {
        path.extension().is_some_and(|ending| ending == "rs") || path.join("main.rs").exists()
    });
    targets.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect()
}

fn publish(place: &Place) -> Cargo {
    let mut command = cargo("publish --workspace --dry-run --allow-dirty");
    command.env.push(("CARGO_TARGET_DIR", publish::directory(place).display().to_string()));
    command
}

/// The flag would rebuild everything twice in the target directory of the others.
fn loom(place: &Place) -> Action {
    let test = "tracker/tests/loom.rs";
    if !place.root.join(test).exists() {
        return Action::Absent(format!("{test} does not exist"));
    }
    Action::Tests(model(place, "--package blkring-tracker --test loom", LOOM))
}

/// The model of how queues and jobs are woken, which the engine keeps among its unit tests.
fn wake_ups(place: &Place) -> Cargo {
    let mut command = model(place, "--package blkring-engine --lib", LOOM);
    command.args.push("model::".to_owned());
    command
}

/// Tests with the locks and atomics of a model checker, in a target directory of their own.
fn model(place: &Place, tests: &str, checker: &str) -> Cargo {
    let mut command = cargo(&format!("test {tests} --release"));
    command.env.push(("RUSTFLAGS", format!("--cfg blkring_{checker}")));
    command.env.push(("CARGO_TARGET_DIR", place.target.join(checker).display().to_string()));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_names_of_their_own() {
        let steps = steps(&Place::find());
        let names: BTreeSet<_> = steps.iter().map(|step| step.name.as_str()).collect();
        assert_eq!(names.len(), steps.len());
        assert!(names.contains("tidy"), "the tests crate is searched: {names:?}");
        assert_eq!(steps.first().map(|step| step.name.as_str()), Some(INSTALL));
    }

    #[test]
    fn every_package_is_searched() {
        let root = Place::find().root;
        let text = fs::read_to_string(root.join("Cargo.toml")).unwrap();
        for package in PACKAGES {
            assert!(text.contains(&format!("\"{package}\"")), "{package} is no member");
        }
        let members = text.lines().find(|line| line.starts_with("members")).unwrap();
        assert_eq!(members.matches('"').count(), 2 * PACKAGES.len(), "a member is not searched");
    }
}
