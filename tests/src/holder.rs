//! A process that has an image open, and the bytes that it has locked.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// How often, and how far apart, the locks of a process are looked at until they are those that are waited for.
const TRIES: u32 = 2000;
const PAUSE: Duration = Duration::from_millis(5);

/// A process that keeps an image open until this is dropped.
pub struct Holder(Child);

impl Holder {
    /// Starts `program`, a qemu-io by name and manner, on an image, and waits until it has locked exactly `bytes`.
    ///
    /// # Panics
    /// If it cannot be started, or locks something else.
    pub fn start(program: &Path, dir: &Path, arguments: &[&str], bytes: &[u32]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(dir);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::inherit());
        let holder = Self(command.spawn().expect("the program was found before"));
        let wanted: BTreeSet<u32> = bytes.iter().copied().collect();
        let mut found = BTreeSet::new();
        for _ in 0..TRIES {
            found = holder.bytes();
            if found == wanted {
                return holder;
            }
            thread::sleep(PAUSE);
        }
        panic!("{} {arguments:?} locks {found:?}, not {wanted:?}", program.display());
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// The bytes that it has locked in any file, by its open file descriptions.
    pub fn bytes(&self) -> BTreeSet<u32> {
        let directory = format!("/proc/{}/fdinfo", self.pid());
        let descriptors = std::fs::read_dir(directory).into_iter().flatten().flatten();
        // A descriptor may be closed meanwhile.
        let texts = descriptors.filter_map(|one| std::fs::read_to_string(one.path()).ok());
        let mut bytes = BTreeSet::new();
        for text in texts {
            for line in text.lines().filter(|line| line.contains("OFDLCK")) {
                let mut words = line.split_whitespace().rev();
                let mut number = || words.next().and_then(|word| word.parse::<u32>().ok());
                if let (Some(last), Some(first)) = (number(), number()) {
                    bytes.extend(first..=last);
                }
            }
        }
        bytes
    }
}

impl Drop for Holder {
    /// Has it close the image and end. (Of a process that is killed the kernel keeps the locks until it has taken the
    /// ring of that process apart, which comes some time after the end.)
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        for _ in 0..TRIES {
            if self.0.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            thread::sleep(PAUSE);
        }
        let killed = self.0.kill();
        let ended = self.0.wait();
        assert!(thread::panicking(), "it does not end with its input: {killed:?} {ended:?}");
    }
}
