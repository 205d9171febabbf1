//! A world: queues and a disk, and a seed that decides who makes the next step.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::future::Future;
use std::rc::Rc;

use crate::queue::{Queue, QueueOptions, QueueSeed, Turn};

use super::disk::SimDisk;
use super::rng::Rng;

/// One thread drives everything in it; the same seed makes the same steps.
///
/// ```
/// use blkring_engine::sim::{SimDisk, SimOptions, World};
/// use blkring_engine::{Flags, IoMem, QueueOptions, RawDisk};
///
/// let disk = SimDisk::default();
/// disk.create_file("a", &[0; 8192]);
/// let mut world = World::new(1, &disk);
/// let queue = world.add_queue(QueueOptions::default());
/// let raw = RawDisk::new(disk.storage("a", SimOptions::default()));
/// let handle = world.queue(queue).attach(&raw).unwrap();
/// let written = world.block_on(queue, async move {
///     handle.write(0, IoMem::from(vec![1; 512]), Flags::empty()).await?;
///     handle.flush().await
/// });
/// written.unwrap();
/// assert_eq!(disk.durable_contents("a")[..512], [1; 512]);
/// ```
pub struct World {
    rng: Rng,
    disk: SimDisk,
    queues: Vec<Option<Member>>,
    steps: u64,
}

struct Member {
    queue: Queue,
    abandoned: bool,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "a run may be stuck"]
pub enum Outcome {
    /// What was waited for has happened.
    Done,
    /// Nothing can ever make a step again. The text says what is pending and what the queues hold.
    Stuck(String),
    /// Not yet.
    OutOfSteps,
}

impl Outcome {
    /// Asserts that the run ended as it should.
    ///
    /// # Panics
    /// If not, with the report.
    pub fn done(self) {
        assert_eq!(self, Outcome::Done);
    }
}

/// Steps after which [`World::block_on`] and [`World::drain`] give up.
const PATIENCE: u64 = 10_000_000;

impl World {
    /// A world around `disk`, without queues.
    pub fn new(seed: u64, disk: &SimDisk) -> Self {
        World { rng: Rng::new(seed), disk: disk.clone(), queues: Vec::new(), steps: 0 }
    }

    /// Adds a queue and gives its number.
    pub fn add_queue(&mut self, options: QueueOptions) -> usize {
        let queue = QueueSeed::without_ring(options).start();
        let queue = queue.expect("a queue without a ring asks nothing of the kernel");
        self.queues.push(Some(Member { queue, abandoned: false }));
        self.queues.len() - 1
    }

    /// A queue, to attach targets to it and to submit.
    ///
    /// # Panics
    /// If there is none of this number.
    pub fn queue(&mut self, number: usize) -> &mut Queue {
        &mut self.member(number).queue
    }

    fn member(&mut self, number: usize) -> &mut Member {
        self.queues[number].as_mut().expect("the queue was not removed")
    }

    /// The disk.
    pub fn disk(&self) -> &SimDisk {
        &self.disk
    }

    /// The numbers that decide. Taking some changes what happens next, reproducibly.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.rng
    }

    /// Steps so far: turns of queues and steps of ops.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The queue is never turned again, as if its thread had stopped.
    pub fn abandon(&mut self, number: usize) {
        self.member(number).abandoned = true;
    }

    /// An abandoned queue is turned again.
    pub fn resume(&mut self, number: usize) {
        self.member(number).abandoned = false;
    }

    /// Takes a queue out of the world. Dropping it drops its futures; what its ops hold stays until they complete.
    pub fn remove(&mut self, number: usize) -> Queue {
        self.queues[number].take().expect("a queue is removed once").queue
    }

    /// Steps until `until` says so, at most `max_steps`.
    pub fn run(&mut self, mut until: impl FnMut() -> bool, max_steps: u64) -> Outcome {
        for _ in 0..max_steps {
            if until() {
                return Outcome::Done;
            }
            if !self.step() {
                return Outcome::Stuck(self.report());
            }
        }
        if until() { Outcome::Done } else { Outcome::OutOfSteps }
    }

    /// Steps until nothing can make a step: everything that may end has ended.
    ///
    /// # Panics
    /// If that does not come.
    pub fn settle(&mut self) {
        let settled = self.run(|| false, PATIENCE);
        assert!(matches!(settled, Outcome::Stuck(_)), "the world does not come to rest");
    }

    /// Steps until no driven queue has an unanswered request.
    pub fn drain(&mut self) -> Outcome {
        for _ in 0..PATIENCE {
            if self.driven().all(|queue| queue.unfinished() == 0) {
                return Outcome::Done;
            }
            if !self.step() {
                return Outcome::Stuck(self.report());
            }
        }
        Outcome::OutOfSteps
    }

    /// Has a queue run `future` and steps until it is ready.
    ///
    /// # Panics
    /// If the world gets stuck before, with the report.
    pub fn block_on<T: 'static>(
        &mut self,
        number: usize,
        future: impl Future<Output = T> + 'static,
    ) -> T {
        let result = self.start(number, future);
        let done = || result.borrow().is_some();
        self.run(done, PATIENCE).done();
        result.take().expect("waited for above")
    }

    /// Has a queue run `future`; its output comes into the cell.
    pub fn start<T: 'static>(
        &mut self,
        number: usize,
        future: impl Future<Output = T> + 'static,
    ) -> Rc<RefCell<Option<T>>> {
        let result = Rc::new(RefCell::new(None));
        let place = result.clone();
        self.queue(number).spawn(async move {
            let output = future.await;
            *place.borrow_mut() = Some(output);
        });
        result
    }

    /// One step, chosen among the queues that have something to do and the ops that may go on. False if there is
    /// none.
    pub fn step(&mut self) -> bool {
        let busy: Vec<usize> =
            (0..self.queues.len()).filter(|&number| self.is_busy(number)).collect();
        let ops = self.disk.ready();
        if busy.is_empty() && ops == 0 {
            return self.turn_all();
        }
        self.steps += 1;
        let choice = self.rng.index(busy.len() + ops);
        match busy.get(choice) {
            Some(&number) => {
                self.turn(number);
            }
            None => {
                self.disk.advance(choice - busy.len());
            }
        }
        true
    }

    fn is_busy(&self, number: usize) -> bool {
        self.queues[number].as_ref().is_some_and(|m| !m.abandoned && m.queue.has_work())
    }

    fn driven(&self) -> impl Iterator<Item = &Queue> {
        self.queues.iter().flatten().filter(|member| !member.abandoned).map(|member| &member.queue)
    }

    fn turn(&mut self, number: usize) -> Turn {
        self.queue(number).turn().expect("a queue without a ring asks nothing of the kernel")
    }

    /// Nobody claims to have work; whether that is true is not left to their word.
    fn turn_all(&mut self) -> bool {
        let mut progress = false;
        for number in 0..self.queues.len() {
            let driven = self.queues[number].as_ref().is_some_and(|member| !member.abandoned);
            progress |= driven && self.turn(number) == Turn::Busy;
        }
        progress
    }

    fn report(&self) -> String {
        let mut report = String::from("nothing can make a step\n");
        for (number, member) in self.queues.iter().enumerate() {
            let Some(Member { queue, abandoned }) = member else { continue };
            let unfinished = queue.unfinished();
            let state = if *abandoned { "abandoned" } else { "idle" };
            // Writing to a string does not fail.
            _ = writeln!(report, "queue {number}: {state}, {unfinished} requests unanswered");
        }
        for op in self.disk.pending() {
            _ = writeln!(report, "held: {op}");
        }
        report
    }
}
