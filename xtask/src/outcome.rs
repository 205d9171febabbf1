//! What a step came to, and how it is read from what cargo and the tests printed.

use std::collections::BTreeSet;

/// Numbers and reasons of one step.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
    pub(crate) not_applicable: usize,
    /// Why something failed, was skipped or is not applicable: whole lines for the end of the run.
    pub(crate) notes: Vec<String>,
}

impl Outcome {
    /// A step that is one check and passed.
    pub(crate) fn pass() -> Self {
        Self { passed: 1, ..Self::default() }
    }

    /// A step that failed as a whole.
    pub(crate) fn fail(reason: impl Into<String>) -> Self {
        Self { failed: 1, notes: vec![reason.into()], ..Self::default() }
    }

    /// A step that could not run.
    pub(crate) fn skip(reason: impl Into<String>) -> Self {
        let notes = vec![format!("{SKIPPED}{}", reason.into())];
        Self { skipped: 1, notes, ..Self::default() }
    }

    /// In CI a skip is a failure.
    pub(crate) fn strict(mut self) -> Self {
        self.failed += self.skipped;
        self.skipped = 0;
        self
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.not_applicable += other.not_applicable;
        self.notes.extend_from_slice(&other.notes);
    }

    /// Tests whose command succeeded: with none of them, nothing was shown.
    pub(crate) fn ended_well(&self) -> Self {
        match self {
            Self { passed: 0, failed: 0, skipped: 0, not_applicable: 0, .. } => {
                Self::skip("no test ran")
            }
            counted => counted.clone(),
        }
    }

    /// Tests whose command failed: a crash or a compiler's error is no test, but the step has failed all the same.
    pub(crate) fn ended_badly(&self, command: Self) -> Self {
        let mut outcome = self.clone();
        outcome.failed = outcome.failed.max(1);
        outcome.notes.extend(command.notes);
        outcome
    }

    /// One word for the step's line.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Self { failed: 1.., .. } => "FAILED",
            Self { passed: 0, skipped: 1.., .. } => "skipped",
            Self { passed: 0, not_applicable: 1.., .. } => "n/a",
            _ => "ok",
        }
    }
}

/// Starts of the lines that tests append to the report file; `tests/src/report.rs` writes them.
const SKIPPED: &str = "skipped: ";
const NOT_APPLICABLE: &str = "not applicable: ";

/// The outcome of a step that runs tests, from its output and the report that its tests wrote.
///
/// A test that reported a skip has passed for its harness; here it is skipped, and not passed.
pub(crate) fn of_tests(output: &str, report: &str) -> Outcome {
    let mut outcome = summaries(output);
    let skipped = reported(report, SKIPPED);
    // A test that reports both is counted once.
    let lacking: BTreeSet<&str> = &reported(report, NOT_APPLICABLE) - &skipped;
    outcome.passed = outcome.passed.saturating_sub(skipped.len() + lacking.len());
    if outcome.skipped > 0 {
        outcome.notes.push(format!("{SKIPPED}{} tests marked as ignored", outcome.skipped));
    }
    outcome.skipped += skipped.len();
    outcome.not_applicable = lacking.len();
    let lines: BTreeSet<&str> = report.lines().collect();
    outcome.notes.extend(lines.into_iter().map(str::to_owned));
    outcome
}

/// The names of the tests, in brackets at the ends of lines, that reported lines starting with `prefix`.
fn reported<'a>(report: &'a str, prefix: &str) -> BTreeSet<&'a str> {
    let lines = report.lines().filter(|line| line.starts_with(prefix));
    lines.map(|line| line.rsplit_once('[').map_or(line, |(_, name)| name)).collect()
}

/// The sum of `test result: ok. 3 passed; 0 failed; 1 ignored; ..` of cargo test and of
/// `Summary [ 0.004s] 4 tests run: 3 passed (1 slow), 1 failed, 0 skipped` of nextest.
///
/// nextest shows the output of a test that failed, in which the harness sums up that one test: not counted twice.
fn summaries(output: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let starting =
        |start| output.lines().map(str::trim).filter(move |line| line.starts_with(start));
    let nextest: Vec<&str> = starting("Summary [").collect();
    let lines = if nextest.is_empty() { starting("test result: ").collect() } else { nextest };
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        for pair in words.windows(2) {
            let [number, word] = pair else { continue };
            let Ok(number) = number.parse::<usize>() else { continue };
            match word.trim_end_matches([';', ',', ')']) {
                "passed" => outcome.passed += number,
                // "timed out", "exec failed"
                "failed" | "timed" | "exec" => outcome.failed += number,
                "ignored" | "skipped" => outcome.skipped += number,
                _ => {}
            }
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(outcome: &Outcome) -> (usize, usize, usize, usize) {
        (outcome.passed, outcome.failed, outcome.skipped, outcome.not_applicable)
    }

    #[test]
    fn both_harnesses_are_read() {
        let cargo = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.00s\n\
                     test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(numbers(&summaries(cargo)), (5, 1, 1, 0));
        let next = "------\n     Summary [   0.004s] 9 tests run: 5 passed (1 slow, 2 leaky), 2 failed, 1 timed out, 1 exec failed, 2 skipped";
        assert_eq!(numbers(&summaries(next)), (5, 4, 2, 0));
        let shown = format!("    test result: FAILED. 0 passed; 1 failed; 0 ignored\n{next}");
        assert_eq!(numbers(&summaries(&shown)), (5, 4, 2, 0));
        assert_eq!(numbers(&summaries("3 passed, it printed")), (0, 0, 0, 0));
    }

    #[test]
    fn a_reported_test_has_not_passed() {
        let output = "test result: ok. 5 passed; 0 failed; 0 ignored";
        let report =
            "skipped: no root [a]\nskipped: no tool [a]\nnot applicable: tmpfs lacks X [b]\n";
        let outcome = of_tests(output, report);
        assert_eq!(numbers(&outcome), (3, 0, 1, 1));
        assert_eq!(outcome.notes.len(), 3);
        assert_eq!(outcome.word(), "ok");
        assert_eq!(numbers(&outcome.strict()), (3, 1, 0, 1));
    }

    #[test]
    fn no_test_is_no_success() {
        let none = of_tests("test result: ok. 0 passed; 0 failed; 0 ignored", "");
        assert_eq!(none.ended_well().word(), "skipped");
        let failed = none.ended_badly(Outcome::fail("a compiler's error"));
        assert_eq!(numbers(&failed), (0, 1, 0, 0));
        let one = of_tests("test result: FAILED. 0 passed; 1 failed; 0 ignored", "");
        assert_eq!(numbers(&one.ended_badly(Outcome::fail("exit code 101"))), (0, 1, 0, 0));
        assert_eq!(numbers(&Outcome::pass().ended_well()), (1, 0, 0, 0));
    }

    #[test]
    fn words() {
        assert_eq!(Outcome::pass().word(), "ok");
        assert_eq!(Outcome::fail("x").word(), "FAILED");
        assert_eq!(Outcome::skip("x").word(), "skipped");
        assert_eq!(Outcome::skip("x").strict().word(), "FAILED");
        let lacking = Outcome { not_applicable: 1, ..Outcome::default() };
        assert_eq!(lacking.word(), "n/a");
    }
}
