//! The rules of this repository, applied to every file of it. The rules themselves are tested where they are.

use std::fs;
use std::io;
use std::path::Path;

use blkring_tests::program::root;
use blkring_tests::tidy::{Source, check, named_paths, safety_tests};

/// What holds no text of this project. (`.git` is a file in a linked worktree.)
const OTHER: [&str; 2] = [".git", "target"];

/// Licences and lists that others wrote or generated.
const FOREIGN: [&str; 3] = ["Cargo.lock", "LICENSE-APACHE", "LICENSE-MIT"];

/// Every file below `directory`, as its path relative to `root` and its text.
fn collect(root: &Path, directory: &Path, found: &mut Vec<(String, String)>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let path = entry.path();
        let name = entry.file_name();
        if OTHER.iter().any(|other| name == *other) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            collect(root, &path, found)?;
        } else if !FOREIGN.iter().any(|other| name == *other) {
            let relative = path.strip_prefix(root).expect("a file below the root");
            let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
            found.push((relative.to_string_lossy().into_owned(), text));
        }
    }
    Ok(())
}

/// The whole repository.
fn files() -> Vec<(String, String)> {
    let mut files = Vec::new();
    collect(root(), root(), &mut files).expect("the repository is readable");
    files
}

/// Tests that comments on unsafe code name and that are still to be written. The list may only become shorter.
const TESTS_TO_COME: [&str; 0] = [];

#[test]
fn unsafe_code_names_tests_that_exist() {
    let files = files();
    let exists = |test: &str| {
        let definition = format!("fn {test}(");
        files.iter().any(|(_, text)| text.contains(&definition))
    };
    let named: Vec<&str> = files.iter().flat_map(|(_, text)| safety_tests(text)).collect();
    let missing: Vec<&str> = named.iter().copied().filter(|test| !exists(test)).collect();
    let unknown: Vec<_> = missing.iter().filter(|test| !TESTS_TO_COME.contains(test)).collect();
    assert!(
        unknown.is_empty(),
        "named after `Test:` in SAFETY comments, but there are none: {unknown:?}"
    );
    let done: Vec<_> = TESTS_TO_COME.iter().filter(|test| !missing.contains(test)).collect();
    assert!(done.is_empty(), "no longer missing, so to be taken from TESTS_TO_COME: {done:?}");
}

#[test]
fn every_file_keeps_the_rules() {
    let files = files();
    assert!(
        files.iter().any(|(path, _)| path == "tests/tests/tidy.rs"),
        "the walk finds this file"
    );
    let complaints: Vec<String> =
        files.iter().flat_map(|(path, text)| check(Source { path, text })).collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn the_architecture_names_files_that_exist() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let named = named_paths(&text);
    assert!(named.len() > 10, "ARCHITECTURE.md names few files: {named:?}");
    let files = files();
    // A name alone is that of a file in the directory that the text speaks of: one of this name must be somewhere.
    let exists = |named: &str| {
        let somewhere = format!("/{named}");
        root().join(named).exists()
            || !named.contains('/') && files.iter().any(|(path, _)| path.ends_with(&somewhere))
    };
    let missing: Vec<_> = named.into_iter().filter(|named| !exists(named)).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names files that do not exist: {missing:?}");
}
