//! Copies that share blocks (FICLONE) are taken of the file while others write into it: a copy holds what was answered
//! before it was begun, and afterwards the file and the copy change apart from each other.

use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use blkring_engine::Flags;

use super::halves::write_part;
use crate::fs_suite::crew::{Go, Plan, Scene, run};
use crate::fs_suite::finding::{Sign, Stop};
use crate::fs_suite::hand::Hand;
use crate::fs_suite::history::Tearing;
use crate::fs_suite::run::{Done, Job};
use crate::fs_suite::subject::{Layout, Subject};

const BLOCKS: u64 = 32;
const STEPS: u64 = 300;
const LIMIT: u64 = BLOCKS * 4096;

struct Reflink {
    copy: PathBuf,
    steps: AtomicU64,
}

const PLAN: Plan = Plan { files: 1, queues: 3, hands: 4, layout: Layout::new(LIMIT) };

pub fn reflink(job: &Job) -> Result<Done, String> {
    let copy = job.directory.join("reflink-copy");
    let new = |_: &_| Reflink { copy: copy.clone(), steps: AtomicU64::new(0) };
    let done = run(job, "reflink", PLAN, new);
    match std::fs::remove_file(&copy) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", copy.display()))
        }
        _ => done,
    }
}

/// Why files in a directory share no blocks, if they do not.
///
/// # Errors
/// What goes wrong otherwise, in a sentence.
pub fn lacks_reflinks(directory: &std::path::Path) -> Result<Option<String>, String> {
    let make = || {
        let (from, to) = (tempfile::tempfile_in(directory)?, tempfile::tempfile_in(directory)?);
        from.set_len(4096)?;
        Ok(rustix::fs::ioctl_ficlone(&to, &from).err().map(|error| error.to_string()))
    };
    make().map_err(|error: std::io::Error| format!("{}: {error}", directory.display()))
}

impl Scene for Reflink {
    async fn prepare(&self, hand: &Hand) -> Result<(), Stop> {
        self.steps.store(0, Ordering::Relaxed);
        hand.resize(LIMIT).await.map(drop)
    }

    async fn step(&self, hand: &Hand) -> Result<Go, Stop> {
        if self.steps.fetch_add(1, Ordering::Relaxed) >= STEPS {
            return Ok(Go::Rest);
        }
        let (block, all) = (hand.subject.block(), 0..LIMIT);
        let blocks = hand.place(&all, block, block * (1 + hand.below(2)));
        if hand.number == 0 && hand.one_in(4) {
            hand.run.count();
            self.copy(&hand.subject).map_err(|text| Stop::found(Sign::Bytes, text))?;
            return Ok(Go::On);
        }
        match hand.below(8) {
            0 => _ = hand.zero(blocks, Flags::MAY_UNMAP).await?,
            1..4 => write_part(hand, 2).await?,
            4 => hand.read(blocks).await?,
            _ => _ = hand.write(blocks).await?,
        }
        Ok(Go::On)
    }
}

impl Reflink {
    /// Takes a copy and judges it twice: at once, and after the file may have changed.
    fn copy(&self, subject: &Subject) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("a copy: {error}");
        let from = File::open(&subject.path).map_err(failed)?;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        let mut copy = options.open(&self.copy).map_err(failed)?;
        let look = subject.history.look(0..LIMIT);
        rustix::fs::ioctl_ficlone(&copy, &from).map_err(|error| failed(error.into()))?;
        let mut bytes = Vec::new();
        copy.read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 != LIMIT {
            return Err(format!("a copy has {} bytes instead of {LIMIT}", bytes.len()));
        }
        let judged = subject.history.judge(&look, &bytes, Tearing::Allowed);
        judged.map_err(|text| format!("in a copy: {text}"))?;
        let again = std::fs::read(&self.copy).map_err(failed)?;
        if again != bytes {
            return Err("a copy changed after it was taken".to_owned());
        }
        Ok(())
    }
}
