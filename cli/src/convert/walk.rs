//! From begin to end of the source: what has to be done for the target, piece by piece.

use std::rc::Rc;

use super::error::CopyError;
use super::source::Sources;
use super::{Salvage, Under};
use crate::name::complain;
use crate::status::{Holds, Run, Survey};

/// The most that is copied in one piece, in bytes. Pieces end at multiples of it.
pub const PIECE: u64 = 2 << 20;

/// The most that one zero-write makes zero.
const ZEROS: u64 = 1 << 30;

/// So much is read in trust where the tables of the source cannot be.
const BLIND: u64 = 64 << 10;

/// A piece of work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// What is to be done.
    pub task: Task,
}

/// What is to be done with a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Read it and write what is there.
    Copy,
    /// The same, and what is there is compressed.
    Unpack,
    /// Make the target zero there.
    Zero,
    /// Nothing: the target reads so already.
    Skip,
}

/// The rules by which pieces are made.
pub struct Rules {
    /// What the target reads as where nothing is written.
    pub under: Under,
    /// Whether zeros are written like data.
    pub zeros: Zeros,
    /// Whether what cannot be read is zero.
    pub salvage: Salvage,
    /// Pieces begin at multiples of so many bytes, where the target takes whole clusters only.
    pub cluster: Option<u64>,
}

/// What becomes of zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zeros {
    /// They need no space.
    Sparse,
    /// They are written as everything else.
    Written,
}

/// Where the walk is.
pub struct Walk {
    sources: Rc<Sources>,
    rules: Rc<Rules>,
    /// What lies below the target, if the source is compared with that.
    below: Option<Survey>,
    at: u64,
    run: Option<Run>,
}

impl Walk {
    /// A walk from the begin on.
    pub fn new(sources: &Rc<Sources>, rules: &Rc<Rules>, below: Option<Survey>) -> Self {
        Walk { sources: sources.clone(), rules: rules.clone(), below, at: 0, run: None }
    }

    /// The next piece; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Piece>, CopyError> {
        if self.at >= self.sources.len() {
            return Ok(None);
        }
        let run = self.run().await?;
        let mut task = self.task(&run);
        let mut end = run.offset + run.len;
        if task == Task::Zero && self.rules.under == Under::Compared {
            (task, end) = self.beside(end).await;
        }
        if let Some(cluster) = self.rules.cluster {
            let whole = end / cluster * cluster;
            let last = end == self.sources.len();
            if matches!(task, Task::Copy | Task::Unpack) {
                end = end.next_multiple_of(cluster).min(self.sources.len());
            } else if whole <= self.at && !last {
                (task, end) = (Task::Copy, (self.at + cluster).min(self.sources.len()));
            } else if !last {
                end = whole;
            }
        }
        let most = match task {
            Task::Skip => end,
            Task::Zero => self.at + ZEROS,
            Task::Copy | Task::Unpack => (self.at / PIECE + 1) * PIECE,
        };
        let end = end.min(most);
        let piece = Piece { offset: self.at, len: end - self.at, task };
        self.at = end;
        Ok(Some(piece))
    }

    /// The rest of the run that the walk is in.
    async fn run(&mut self) -> Result<Run, CopyError> {
        let known = self.run.take().filter(|run| run.offset + run.len > self.at);
        let run = match known {
            Some(run) => run,
            None => match self.sources.run(self.at).await {
                Ok(run) => run,
                Err(error) if self.rules.salvage == Salvage::Yes => {
                    complain(format_args!("warning: {error}"));
                    let end = (self.at / BLIND + 1) * BLIND;
                    let len = end.min(self.sources.len()) - self.at;
                    let path = error.source.path;
                    Run { offset: self.at, len, holds: Holds::Data, depth: 0, at: None, path }
                }
                Err(error) => return Err(error),
            },
        };
        let passed = self.at - run.offset;
        let rest = Run { offset: self.at, len: run.len - passed, ..run };
        Ok(self.run.insert(rest).clone())
    }

    fn task(&self, run: &Run) -> Task {
        match (run.holds, self.rules.under) {
            // No file above the one that the target shares with the source has these bytes.
            (Holds::Absent, Under::Shared) => Task::Skip,
            (Holds::Compressed, _) => Task::Unpack,
            (holds, _) if !holds.is_zero() => Task::Copy,
            _ if self.rules.zeros == Zeros::Written => Task::Copy,
            (_, Under::Zeros) => Task::Skip,
            _ => Task::Zero,
        }
    }

    /// What to do with zeros over a file that may have them too, and up to where.
    async fn beside(&self, end: u64) -> (Task, u64) {
        let below = match &self.below {
            Some(below) if self.at < below.len() => below,
            // Beyond its end there are zeros.
            _ => return (Task::Skip, end),
        };
        match below.run(self.at, end.min(below.len())).await {
            // Zeros are right whatever it holds.
            Err(_) => (Task::Zero, end),
            Ok(run) if run.holds.is_zero() => (Task::Skip, end.min(run.offset + run.len)),
            Ok(run) => (Task::Zero, end.min(run.offset + run.len)),
        }
    }
}
