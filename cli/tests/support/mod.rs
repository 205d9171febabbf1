//! What the tests of the program share.
#![allow(dead_code, reason = "each target of tests uses its own part")]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a run of a program gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub stdout: String,
    pub stderr: String,
    pub code: Option<i32>,
}

/// Runs the program under test in `dir`.
pub fn blkring<S: AsRef<OsStr>>(dir: &Path, args: &[S]) -> Run {
    let output = Command::new(env!("CARGO_BIN_EXE_blkring"))
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .expect("the program is there");
    Run {
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        code: output.status.code(),
    }
}

/// The same, with success expected; what it printed.
#[track_caller]
pub fn blkring_ok<S: AsRef<OsStr>>(dir: &Path, args: &[S]) -> String {
    let run = blkring(dir, args);
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{}", run.stdout);
    run.stdout
}

/// A directory with an image of zeros, `size` bytes long, that is removed at the end.
pub struct Scratch {
    dir: tempfile::TempDir,
}

impl Scratch {
    pub fn new() -> Self {
        Scratch { dir: tempfile::tempdir().expect("a temporary directory can be made") }
    }

    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn file(&self, name: &str, size: u64) -> PathBuf {
        let path = self.dir().join(name);
        let file = std::fs::File::create(&path).expect("the directory is writable");
        file.set_len(size).expect("a file may have holes");
        path
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.dir().join(name)).expect("the file was made before")
    }
}
