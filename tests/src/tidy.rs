//! The rules of this repository that no compiler knows, each a function from a file to complaints.
//!
//! Rules read lines, not syntax: they are meant to catch slips, and a construct that fools one is seen in review.
//! Forbidden words are written with `concat!` here, since these files are checked too.

use std::path::Path;

mod code;

/// A file of the repository: its path relative to the root, with `/`, and its text.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// Relative path.
    pub path: &'a str,
    /// Whole text.
    pub text: &'a str,
}

impl Source<'_> {
    fn is_rust(self) -> bool {
        self.path.ends_with(".rs")
    }

    /// A module of unit tests in a file of its own.
    fn is_unit_tests(self) -> bool {
        self.path.ends_with("/tests.rs")
    }

    /// Below one of these files or directories.
    fn is_in(self, places: &[&str]) -> bool {
        places.iter().any(|place| self.path.starts_with(place))
    }
}

/// A rule: complaints about one file, each starting with the line number or naming the file's fault.
pub type Rule = fn(Source<'_>) -> Vec<String>;

/// All rules that look at one file.
pub const RULES: &[(&str, Rule)] = &[
    ("file length", file_length),
    ("unfinished code", unfinished),
    ("clock", clock),
    ("sync module", sync_module),
    ("unwinding", unwinding),
    ("unsafety", unsafety),
    ("marks without a reason", marks),
    ("paths of one machine", machine_paths),
    ("silent skip", silent_skip),
];

/// The most lines of a Rust file.
const MAX_LINES: usize = 600;

/// Where no clock is read: what runs in simulated worlds, and the crate of these worlds.
const WORLDS: &[&str] = &["tracker/src/", "engine/src/", "qcow2/src/", "tests/"];

/// Exceptions: the one clock of the engine. A test that needs real threads and a deadline is added by name.
const CLOCK_FILES: &[&str] =
    &["engine/src/clock.rs", "tests/src/deadline.rs", "tests/src/fs_suite/time.rs"];

/// The engine files that hand memory to the kernel, and tests that call it themselves.
const UNSAFE_FILES: &[&str] = &[
    "engine/src/buffers.rs",
    "engine/src/lane.rs",
    "engine/src/memory.rs",
    "engine/src/pool/call.rs",
    "engine/src/sys.rs",
    "engine/src/sys/",
    "engine/src/uring.rs",
    "engine/examples/guest_memory.rs",
    "engine/tests/faults/held.rs",
    "engine/tests/pool.rs",
    "engine/tests/queue.rs",
    "tests/src/fs_suite/sleep.rs",
];

/// Sources of the crates whose locks, atomics and thread starts come through one module, and that module.
const CORE_SOURCES: &[&str] = &["tracker/src/", "engine/src/", "qcow2/src/"];
const SYNC_MODULE: &[&str] = &["tracker/src/sync.rs", "tracker/src/sync/"];

/// Runs every rule on a file.
pub fn check(source: Source<'_>) -> Vec<String> {
    let named = |(name, rule): &(&str, Rule)| {
        let complaints = rule(source);
        complaints.into_iter().map(|text| format!("{}: {name}: {text}", source.path)).collect()
    };
    RULES.iter().flat_map(|rule| -> Vec<String> { named(rule) }).collect()
}

fn file_length(source: Source<'_>) -> Vec<String> {
    let lines = source.text.lines().count();
    if source.is_rust() && lines > MAX_LINES {
        return vec![format!("{lines} lines, at most {MAX_LINES}: cut it where a reader would")];
    }
    Vec::new()
}

/// Complaints about lines of Rust code, comments removed, that contain a word of a list.
fn words(source: Source<'_>, forbidden: &[(&str, &str)]) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in code::lines(source.text) {
        for (word, instead) in forbidden {
            if line.contains(word) {
                complaints.push(format!("line {number}: {word}: {instead}"));
            }
        }
    }
    complaints
}

fn unfinished(source: Source<'_>) -> Vec<String> {
    if !source.is_rust() {
        return Vec::new();
    }
    let instead = "a stub is not a result: return a typed error or finish it";
    words(
        source,
        &[
            (concat!("todo", "!("), instead),
            (concat!("unimplemented", "!("), instead),
            (concat!("dbg", "!("), "remove it or make it a tracing event"),
        ],
    )
}

/// Unit tests may time what they test.
fn clock(source: Source<'_>) -> Vec<String> {
    let simulated = source.is_in(WORLDS) && !source.is_in(CLOCK_FILES);
    if !source.is_rust() || !simulated || source.is_unit_tests() {
        return Vec::new();
    }
    let source = Source { text: code::without_tests(source.text), ..source };
    let instead = "a simulated world has its own time: take it as a parameter";
    words(
        source,
        &[(concat!("Instant", "::now"), instead), (concat!("SystemTime", "::now"), instead)],
    )
}

/// Unit tests of a core crate may use what they like.
fn sync_module(source: Source<'_>) -> Vec<String> {
    if !source.is_in(CORE_SOURCES) || source.is_in(SYNC_MODULE) || source.is_unit_tests() {
        return Vec::new();
    }
    let forbidden = ["Mutex", "RwLock", "Condvar", "Once", "OnceLock", "Barrier", "mpsc", "atomic"];
    let mut complaints = Vec::new();
    for (number, statement) in code::statements(code::without_tests(source.text)) {
        let standard = statement.contains(concat!("std::", "sync::"));
        let taken = forbidden.iter().find(|word| code::has_word(&statement, word));
        if let (true, Some(word)) = (standard, taken) {
            complaints.push(format!("line {number}: std's {word}: use blkring_tracker::sync"));
        }
        let others = [
            concat!("parking", "_lot::"),
            concat!("std::", "thread::spawn"),
            concat!("use std::", "thread"),
            concat!("thread", "_local!"),
        ];
        for word in others.iter().filter(|word| statement.contains(**word)) {
            complaints.push(format!("line {number}: {word}: use blkring_tracker::sync"));
        }
    }
    complaints
}

/// An embedder may abort on a panic: nothing may depend on what comes after one.
fn unwinding(source: Source<'_>) -> Vec<String> {
    if !source.is_in(CORE_SOURCES) || source.is_unit_tests() {
        return Vec::new();
    }
    let source = Source { text: code::without_tests(source.text), ..source };
    let instead = "no code of the library relies on unwinding: return an error";
    words(
        source,
        &[
            (concat!("catch_", "unwind"), instead),
            (concat!("resume_", "unwind"), instead),
            (concat!("thread::", "panicking"), instead),
        ],
    )
}

fn unsafety(source: Source<'_>) -> Vec<String> {
    if !source.is_rust() || source.is_in(UNSAFE_FILES) {
        return Vec::new();
    }
    let word = concat!("un", "safe");
    code::lines(source.text)
        .filter(|(_, line)| code::has_word(&code::without_strings(line), word))
        .map(|(number, _)| format!("line {number}: belongs into {UNSAFE_FILES:?}"))
        .collect()
}

/// A mark for later says what and why in three words at least; an ignored test says why.
fn marks(source: Source<'_>) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in source.text.lines().enumerate().map(|(i, line)| (i + 1, line)) {
        for mark in [concat!("TO", "DO"), concat!("FIX", "ME")] {
            let Some((_, after)) = line.split_once(mark) else { continue };
            let reason = after.strip_prefix(':').unwrap_or_default();
            if reason.split_whitespace().count() < 3 {
                complaints.push(format!("line {number}: {mark} without a reason"));
            }
        }
        if source.is_rust() && line.contains(concat!("#[", "ignore]")) {
            complaints.push(format!("line {number}: an ignored test says why: `= \"..\"`"));
        }
    }
    complaints
}

/// A skip that is only printed is counted as passed.
fn silent_skip(source: Source<'_>) -> Vec<String> {
    if !source.is_rust() || source.is_in(&["tests/src/report.rs", "xtask/src/"]) {
        return Vec::new();
    }
    words(source, &[(concat!("\"skip", "ped: "), "use blkring_tests::report")])
}

fn machine_paths(source: Source<'_>) -> Vec<String> {
    let mut complaints = Vec::new();
    for (number, line) in source.text.lines().enumerate().map(|(i, line)| (i + 1, line)) {
        for path in [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")] {
            if line.contains(path) {
                complaints.push(format!("line {number}: {path} exists on one machine only"));
            }
        }
    }
    complaints
}

/// The tests that comments on unsafe code name: identifiers in backquotes after `Test:`, up to the end of the comment.
pub fn safety_tests(rust: &str) -> Vec<&str> {
    let mut named = Vec::new();
    let mut in_safety = false;
    let mut in_tests = false;
    for line in rust.lines().map(str::trim_start) {
        let comment = line.starts_with("//");
        in_safety = comment && (in_safety || line.contains("SAFETY:"));
        let (listed, text) = match line.split_once("Test:") {
            Some((_, after)) => (in_safety, after),
            None => (in_safety && in_tests, line),
        };
        in_tests = listed;
        if listed {
            named.extend(quoted(text).filter(|word| is_test_name(word)));
        }
    }
    named
}

fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn is_test_name(word: &str) -> bool {
    word.contains('_')
        && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// The paths of files and directories that a Markdown text names between backquotes.
///
/// What counts is a word with a `/` inside or at its end, or with the ending of a file of this repository, and
/// without blanks, wildcards or placeholders. An absolute path or one of Rust's (`a::b`) is none.
pub fn named_paths(markdown: &str) -> Vec<&str> {
    quoted(markdown).filter(|word| is_path(word)).collect()
}

fn is_path(word: &str) -> bool {
    let plain = !word.starts_with('/')
        && !word.contains("::")
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c));
    let endings = ["rs", "md", "toml", "sh", "yml"];
    let ending = Path::new(word).extension().and_then(|ending| ending.to_str());
    plain && (word.contains('/') || ending.is_some_and(|ending| endings.contains(&ending)))
}

#[cfg(test)]
mod tests;
