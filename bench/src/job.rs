//! The main job: queues, each with a thread of its own, fill an image, overwrite it and read it, phase by phase.

use std::io;
use std::time::{Duration, Instant};

use blkring_engine::{BackendError, Choice, Disk, Flags, IoError, Queue};
use crossbeam::channel::{Receiver, Sender, bounded};

use crate::pattern::Difference;
use crate::plan::Plan;
use crate::worker::{Share, Worker};
use blkring_engine::Histogram;

/// What is measured: an image that threads attach their queues to.
pub trait Subject: Sync {
    /// Makes it reachable from a queue of the calling thread.
    ///
    /// # Errors
    /// Of [`Queue::attach`].
    fn attach(&self, queue: &mut Queue) -> io::Result<Disk>;

    /// What has happened to it so far, outside the queues.
    fn counters(&self) -> Counters;
}

/// Counts of what happened to a subject.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// fdatasyncs of shared work.
    pub syncs: u64,
    /// Writes of shared work that are durable when they end.
    pub durable_writes: u64,
    /// Requests that waited for others, at any tracker.
    pub waits: u64,
}

/// How the job is run, as far as that changes nothing in the image.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Requests of each queue in flight at most; at least 1.
    pub depth: usize,
    /// Reads of all queues together.
    pub reads: u64,
    /// Each queue flushes after so many of its writes (not 0), and at the end of a phase in any case.
    pub flush_interval: Option<u64>,
    /// How writes are done.
    pub write_flags: Flags,
    /// What the queues are done by.
    pub backend: Choice,
}

/// A part of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// One block of each stride is written.
    Fill,
    /// Blocks are written at random.
    Overwrite,
    /// Blocks are read at random, and verified.
    Read,
}

impl Phase {
    /// In the order in which they run.
    pub const ALL: [Phase; 3] = [Phase::Fill, Phase::Overwrite, Phase::Read];

    /// As tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Fill => "fill",
            Phase::Overwrite => "overwrite",
            Phase::Read => "read",
        }
    }
}

/// What came of a phase.
#[derive(Clone)]
pub struct PhaseReport {
    /// As tables call it.
    pub name: &'static str,
    /// From its begin until the last queue had ended its share, flushes included.
    pub elapsed: Duration,
    /// Requests a second.
    pub rate: f64,
    /// Bytes of each request.
    pub bytes: u64,
    /// Latencies of the requests, flushes not included.
    pub latencies: Histogram,
    /// What happened meanwhile; what the queues issued is included.
    pub counters: Counters,
}

/// A byte of the image is not what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "guest offset {} holds {:#04x} instead of {:#04x} (generation {generation} of its block)",
    .difference.offset, .difference.found, .difference.expected
)]
pub struct Mismatch {
    /// Where, and what.
    pub difference: Difference,
    /// How often the block was written.
    pub generation: u32,
}

/// Why a job failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// There is nothing that does I/O.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A queue failed as a whole.
    #[error("a queue failed: {0}")]
    Queue(#[from] io::Error),
    /// A request failed.
    #[error(transparent)]
    Request(#[from] IoError),
    /// The image is not what was written.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The image has no label: it was not written by this job, or not to the end.
    #[error("block 0 holds no label of a finished run")]
    NoLabel,
    /// The image has another size than its label says.
    #[error("the disk has {found} bytes, and its label says {expected}")]
    Size {
        /// What the label says.
        expected: u64,
        /// What the disk has.
        found: u64,
    },
}

/// Runs all phases on `subject`, which reads as zeros and has the size of the plan.
///
/// # Errors
/// [`JobError`]: the first one that any queue met.
///
/// # Panics
/// If a thread of the job does.
pub fn run(
    subject: &dyn Subject,
    plan: &Plan,
    settings: &Settings,
) -> Result<Vec<PhaseReport>, JobError> {
    let last = plan.generations();
    let ran = crossbeam::scope(|scope| {
        let threads = (0..plan.queues()).map(|index| {
            let (command, commands) = bounded(1);
            let (answer, answers) = bounded(1);
            let last = &last;
            scope.spawn(move |_| {
                serve(Worker::new(subject, plan, settings, index, last), &commands, &answer);
            });
            (command, answers)
        });
        let threads: Vec<Thread> = threads.collect();
        gather(&threads)?;
        Phase::ALL.into_iter().map(|phase| run_phase(phase, subject, &threads)).collect()
    });
    match ran {
        Ok(reports) => reports,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// What a thread says: first that it is ready, then its share of each phase. An error is the last thing it says.
type Answer = Result<Share, JobError>;

/// A thread of the job as seen from outside.
type Thread = (Sender<Phase>, Receiver<Answer>);

/// The life of a thread: a worker that runs its share of each phase when told to.
fn serve(
    worker: Result<Worker<'_>, JobError>,
    commands: &Receiver<Phase>,
    answers: &Sender<Answer>,
) {
    let (mut worker, mut answer) = match worker {
        Ok(worker) => (Some(worker), Ok(Share::default())),
        Err(error) => (None, Err(error)),
    };
    loop {
        let failed = answer.is_err();
        if answers.send(answer).is_err() || failed {
            return;
        }
        let (Some(worker), Ok(phase)) = (&mut worker, commands.recv()) else { return };
        answer = worker.run(phase);
    }
}

/// The shares of all threads together, or the first error. The other threads have answered as well then.
fn gather(threads: &[Thread]) -> Answer {
    let mut all = Ok(Share::default());
    for (_, answers) in threads {
        match (answers.recv(), &mut all) {
            (Ok(Ok(share)), Ok(all)) => all.add(&share),
            (Ok(Err(error)), Ok(_)) => all = Err(error),
            (Ok(_), Err(_)) => (),
            // It panicked: the scope tells.
            (Err(_), _) => (),
        }
    }
    all
}

fn run_phase(
    phase: Phase,
    subject: &dyn Subject,
    threads: &[Thread],
) -> Result<PhaseReport, JobError> {
    let before = subject.counters();
    let begun = Instant::now();
    // A thread that is gone, so that nothing can be sent to it, gives no answer below.
    threads.iter().for_each(|(command, _)| command.send(phase).unwrap_or_default());
    let all = gather(threads)?;
    let elapsed = begun.elapsed();
    let after = subject.counters();
    Ok(PhaseReport {
        name: phase.name(),
        elapsed,
        rate: all.rate(elapsed),
        bytes: crate::plan::BLOCK,
        counters: Counters {
            syncs: after.syncs - before.syncs + all.syncs,
            durable_writes: after.durable_writes - before.durable_writes + all.durable_writes,
            waits: after.waits - before.waits,
        },
        latencies: all.latencies,
    })
}
