//! The threads of a run. Each has a queue, and several hands on each file. They change the file side by side until they
//! are to rest; then one of them judges the file, and they begin again.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use blkring_engine::sim::Rng;
use blkring_engine::{Queue, QueueOptions, QueueSeed, Turn};

use super::finding::{Sign, Stop};
use super::hand::Hand;
use super::run::{Done, Job, Run};
use super::sleep;
use super::subject::{Layout, Subject};

/// How many do it.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Files that are used at once, each by all queues.
    pub files: usize,
    /// Queues, each with a thread.
    pub queues: usize,
    /// Hands of each queue on each file.
    pub hands: usize,
    /// How each file is used.
    pub layout: Layout,
}

/// Whether a hand goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Go {
    /// With another step.
    On,
    /// No: it is time to judge the file.
    Rest,
}

/// What a test does with a file.
pub trait Scene: Send + Sync + Sized + 'static {
    /// Makes the file ready, which is empty, while nobody else does anything.
    fn prepare(&self, hand: &Hand) -> impl Future<Output = Result<(), Stop>>;

    /// One step of one hand, beside all others.
    fn step(&self, hand: &Hand) -> impl Future<Output = Result<Go, Stop>>;

    /// What a hand does when it comes to rest.
    fn leave(&self, _hand: &Hand) -> impl Future<Output = Result<(), Stop>> {
        std::future::ready(Ok(()))
    }

    /// Judges the file, while nobody else does anything.
    fn judge(&self, hand: &Hand) -> impl Future<Output = Result<(), Stop>> {
        hand.judge_all()
    }
}

/// If nothing at all goes on for so long, something is stuck.
const STUCK: Duration = Duration::from_secs(60);

/// How long a queue sleeps at most when something was found: it may be one that nobody wakes.
const HURRY: Duration = Duration::from_millis(20);

/// Runs a test on new files in the directory of the job, which are gone afterwards.
///
/// # Errors
/// Why it could not begin.
pub fn run<S: Scene>(
    job: &Job,
    name: &str,
    plan: Plan,
    make: impl Fn(&Subject) -> S,
) -> Result<Done, String> {
    let run = Arc::new(Run::new(job, plan.files, plan.queues * plan.hands));
    let mut tables = Vec::new();
    for file in 0..plan.files {
        let path = job.directory.join(format!("{name}-{file}"));
        let subject = Arc::new(Subject::make(&path, plan.layout, job.variants)?);
        tables.push(Table { scene: Arc::new(make(&subject)), subject });
    }
    let tables = Arc::new(tables);
    let threads: Vec<_> = (0..plan.queues)
        .map(|queue| {
            let (run, tables) = (run.clone(), tables.clone());
            let name = format!("fs-suite-{queue}");
            let drive = move || {
                if let Err(error) = Driver::new(&run, queue, plan).and_then(|d| d.drive(&tables)) {
                    run.stop(Stop::found(Sign::Answer, format!("queue {queue}: {error}")));
                }
            };
            thread::Builder::new().name(name).spawn(drive)
        })
        .collect();
    for thread in threads {
        let ended = thread.map_err(|error| format!("a thread: {error}"))?.join();
        if ended.is_err() {
            run.stop(Stop::found(Sign::Answer, "a thread of the test has panicked"));
        }
    }
    let sum = |count: fn(&Subject) -> u64| tables.iter().map(|table| count(&table.subject)).sum();
    let done = Done {
        rounds: run.rounds(),
        together: sum(|subject| subject.order.together()),
        held_back: sum(|subject| subject.storage().statistics().waited),
        found: run.found(),
    };
    let paths: Vec<_> = tables.iter().map(|table| table.subject.path.clone()).collect();
    drop(tables);
    paths.iter().try_for_each(|path| remove(path))?;
    Ok(done)
}

fn remove(path: &Path) -> Result<(), String> {
    std::fs::remove_file(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// A file and what is done with it.
struct Table<S> {
    subject: Arc<Subject>,
    scene: Arc<S>,
}

/// One thread.
struct Driver {
    run: Arc<Run>,
    queue: Queue,
    number: usize,
    plan: Plan,
    /// Hands that have not ended.
    live: Rc<Cell<usize>>,
    unfinished: Rc<Cell<usize>>,
}

impl Driver {
    fn new(run: &Arc<Run>, number: usize, plan: Plan) -> io::Result<Self> {
        let options = QueueOptions::default().variants(run.job().variants);
        let seed = QueueSeed::new(options).map_err(io::Error::other)?;
        Ok(Driver {
            run: run.clone(),
            queue: seed.start()?,
            number,
            plan,
            live: Rc::default(),
            unfinished: Rc::default(),
        })
    }

    fn drive<S: Scene>(mut self, tables: &[Table<S>]) -> io::Result<()> {
        for (file, table) in tables.iter().enumerate() {
            let disk = self.queue.attach(&table.subject.raw)?;
            let cached = table.subject.cached.as_ref();
            let cached = cached.map(|raw| self.queue.attach(raw)).transpose()?;
            for place in 0..self.plan.hands {
                let number = place * self.plan.queues + self.number;
                let seed = self.run.job().seed ^ ((file << 16 | number) as u64) << 32;
                let hand = Hand {
                    number,
                    subject: table.subject.clone(),
                    run: self.run.clone(),
                    file,
                    rng: RefCell::new(Rng::new(seed)),
                    disk: disk.clone(),
                    cached: cached.clone(),
                    lane: self.queue.lane(),
                    unfinished: self.unfinished.clone(),
                };
                self.live.set(self.live.get() + 1);
                let (scene, run, live) = (table.scene.clone(), self.run.clone(), self.live.clone());
                self.queue.spawn(async move {
                    if let Err(stop) = work(&*scene, &hand).await {
                        run.stop(stop);
                    }
                    live.set(live.get() - 1);
                });
            }
        }
        self.turn_until_all_ended()
    }

    /// The loop of an owner: turns while there is something to do, and sleeps until an event tells of more.
    fn turn_until_all_ended(&mut self) -> io::Result<()> {
        let event = self.queue.event_fd()?.as_raw_fd();
        let mut last = (self.run.beats(), self.run.elapsed());
        loop {
            while self.queue.turn()? == Turn::Busy {
                self.unfinished.set(self.queue.unfinished());
            }
            self.unfinished.set(self.queue.unfinished());
            if self.live.get() == 0 {
                return Ok(());
            }
            let broken = self.run.is_broken();
            let patience = if broken { HURRY } else { self.run.job().patience };
            if sleep::until_readable(event, patience)? {
                continue;
            }
            let (beats, now) = (self.run.beats(), self.run.elapsed());
            if beats != last.0 {
                last = (beats, now);
            }
            if self.queue.turn()? == Turn::Busy && !broken {
                let text = format!(
                    "queue {} slept for {patience:?}, and then had something to do of which no event told",
                    self.number
                );
                self.run.stop(Stop::found(Sign::Silence, text));
            }
            if now.saturating_sub(last.1) > STUCK {
                let text = format!("nothing went on for {STUCK:?}");
                self.run.stop(Stop::found(Sign::Stuck, text));
                return Ok(());
            }
        }
    }
}

/// All that a hand does.
async fn work<S: Scene>(scene: &S, hand: &Hand) -> Result<(), Stop> {
    let first = hand.number == 0;
    let meeting = hand.run.meeting(hand.file);
    let mut over = false;
    loop {
        if first {
            hand.rewind().await?;
            scene.prepare(hand).await?;
        }
        meeting.meet().await?;
        while !over && scene.step(hand).await? == Go::On {
            over = hand.run.is_over();
        }
        scene.leave(hand).await?;
        meeting.meet().await?;
        if first {
            scene.judge(hand).await?;
            hand.subject.decide(&hand.run);
        }
        meeting.meet().await?;
        if hand.subject.is_over() {
            return Ok(());
        }
        over = false;
    }
}

impl Hand {
    /// The file is empty and everything about it forgotten.
    async fn rewind(&self) -> Result<(), Stop> {
        self.resize(0).await?;
        self.subject.history.reset();
        self.subject.sizes.reset(0);
        self.subject.order.forget();
        Ok(())
    }
}
