//! `qemu-img` twice: the installed one, and this program called by that name.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::beside::{Run, run};
use crate::{program, tools};

/// A directory with both programs at hand. It is removed at the end.
pub struct Twins {
    dir: tempfile::TempDir,
    theirs: PathBuf,
    ours: PathBuf,
}

impl Twins {
    /// None, with a report, where there is no qemu-img or no qemu-io.
    ///
    /// # Panics
    /// If there can be no directory.
    pub fn new() -> Option<Self> {
        if tools::missing("qemu-img") || tools::missing("qemu-io") {
            return None;
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        let theirs = tools::find("qemu-img").expect("found above");
        Some(Twins { dir, theirs, ours: program::blkring().to_owned() })
    }

    /// Where both run.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A file of it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes a raw file of holes with runs of bytes that are no zeros, nor like each other: (offset, length).
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn raw(&self, name: &str, size: u64, runs: &[(u64, usize)]) {
        let file = File::create(self.path(name)).expect("the directory is writable");
        file.set_len(size).expect("a file may have holes");
        for &(offset, len) in runs {
            let mut seed = offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let bytes: Vec<u8> = (0..len)
                .map(|_| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (seed >> 56) as u8 | 1
                })
                .collect();
            file.write_all_at(&bytes, offset).expect("room for it");
        }
    }

    /// Runs the installed qemu-img, which must succeed.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn theirs(&self, line: &str) -> String {
        let run = self.run(&self.theirs, line, "");
        assert_eq!(run.code, Some(0), "{line}: {run:?}");
        run.stdout
    }

    /// Runs ours, which must succeed.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn ours(&self, line: &str) -> String {
        let run = self.run(&self.ours, line, "");
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{line}: {run:?}");
        run.stdout
    }

    /// Ours, however it ends.
    pub fn ours_ends(&self, line: &str) -> Run {
        self.run(&self.ours, line, "")
    }

    /// Changes an image by commands of the installed qemu-io.
    ///
    /// # Panics
    /// If they fail.
    #[track_caller]
    pub fn io(&self, options: &str, image: &str, commands: &[&str]) {
        let commands = commands.iter().flat_map(|command| ["-c", command]);
        let words: Vec<&str> = options.split_whitespace().chain(commands).chain([image]).collect();
        let qemu_io = tools::find("qemu-io").expect("found above");
        let ended = run(&qemu_io, self.dir(), &words);
        assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
    }

    /// Runs a line with both, OUT being `theirs` for the one and `ours` for the other. They must print and complain
    /// the same, and end with the same code. `before` is done to either OUT first.
    ///
    /// # Panics
    /// If something differs.
    #[track_caller]
    pub fn same_after(&self, line: &str, before: impl Fn(&Path)) -> Run {
        let runs = [(&self.theirs, "theirs"), (&self.ours, "ours")].map(|(program, out)| {
            drop(fs::remove_file(self.path(out)));
            before(&self.path(out));
            self.run(program, line, out)
        });
        let [theirs, ours] = runs;
        assert_eq!(ours, theirs, "left is ours: {line}");
        ours
    }

    /// The same with no OUT to begin with.
    #[track_caller]
    pub fn same(&self, line: &str) -> Run {
        self.same_after(line, |_| ())
    }

    /// Both copies that [`Twins::same`] has made hold the same, and ours, if it is qcow2, is whole.
    ///
    /// # Panics
    /// If they differ.
    #[track_caller]
    pub fn copies_agree(&self, line: &str) {
        self.theirs("compare theirs ours");
        let bytes = ["theirs", "ours"].map(|name| fs::read(self.path(name)).expect("made above"));
        if bytes[0].starts_with(b"QFI") {
            assert!(bytes[1].starts_with(b"QFI"), "{line}");
            self.theirs("check -q -f qcow2 ours");
        } else {
            assert!(bytes[0] == bytes[1], "{line}: {} and {}", bytes[0].len(), bytes[1].len());
        }
    }

    fn run(&self, program: &Path, line: &str, out: &str) -> Run {
        let words = line.split_whitespace().map(|word| word.replace("OUT", out));
        let output = Command::new(program)
            .arg0("qemu-img")
            .args(words)
            .current_dir(self.dir())
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .expect("the program was found before");
        let plain = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            if out.is_empty() { text.into_owned() } else { text.replace(out, "OUT") }
        };
        // The format driver of the other says more of a damaged image.
        let stderr = plain(&output.stderr);
        let own = stderr.lines().filter(|line| !line.starts_with("qcow2: Image is corrupt: "));
        let stderr = own.collect::<Vec<_>>().join("\n");
        Run { stdout: plain(&output.stdout), stderr, code: output.status.code() }
    }
}
