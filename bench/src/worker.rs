//! One thread of the main job: its queue, and the requests in flight on it.

use std::time::{Duration, Instant};

use blkring_engine::{
    BufferPool, Completion, Disk, IoMem, Queue, QueueOptions, QueueSeed, Request,
};

use crate::job::{JobError, Mismatch, Phase, Settings, Subject};
use crate::pattern::Pattern;
use crate::plan::{BLOCK, Plan};
use blkring_engine::Histogram;

/// Completions of flushes carry this; all others the index of their slot.
const FLUSH: u64 = u64::MAX;

/// A thread's share of a phase.
#[derive(Default)]
pub(crate) struct Share {
    /// Latencies of the requests for data.
    pub(crate) latencies: Histogram,
    /// fdatasyncs that its queue issued.
    pub(crate) syncs: u64,
    /// Writes of its queue that are durable when they end.
    pub(crate) durable_writes: u64,
}

pub(crate) struct Worker<'a> {
    plan: &'a Plan,
    settings: &'a Settings,
    index: u64,
    /// The generation that each block has at the end.
    last: &'a [u32],
    /// The generation that each block of this worker has now, by its number divided by the number of queues.
    own: Vec<u32>,
    queue: Queue,
    disk: Disk,
    slots: Vec<Slot>,
    free: Vec<usize>,
    flushes: usize,
    block: Vec<u8>,
}

/// The place of one request in flight, with its memory.
struct Slot {
    memory: IoMem,
    step: Step,
    begun: Instant,
}

/// One request.
#[derive(Clone, Copy)]
struct Step {
    block: u64,
    generation: u32,
    direction: Direction,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

impl<'a> Worker<'a> {
    /// A queue of the calling thread, attached to `subject`.
    pub(crate) fn new(
        subject: &dyn Subject,
        plan: &'a Plan,
        settings: &'a Settings,
        index: u64,
        last: &'a [u32],
    ) -> Result<Self, JobError> {
        // Room for flushes beside the requests.
        let options = QueueOptions::with_requests(settings.depth.saturating_mul(2))
            .backend(settings.backend.clone());
        let mut queue = QueueSeed::new(options)?.start()?;
        let disk = subject.attach(&mut queue)?;
        let pool = BufferPool::new(usize::MAX);
        let len = usize::try_from(BLOCK).expect("small");
        let begun = Instant::now();
        let slot = |_| {
            let memory = pool.try_take(len).expect("the budget has no end").mem();
            let step = Step { block: 0, generation: 0, direction: Direction::Read };
            Slot { memory, step, begun }
        };
        let own = plan.blocks().div_ceil(plan.queues());
        Ok(Worker {
            plan,
            settings,
            index,
            last,
            own: vec![0; usize::try_from(own).expect("bounded by the plan")],
            queue,
            disk,
            slots: (0..settings.depth).map(slot).collect(),
            free: (0..settings.depth).collect(),
            flushes: 0,
            block: vec![0; len],
        })
    }

    /// Runs this worker's share of a phase. When it returns without an error, nothing is in flight.
    pub(crate) fn run(&mut self, phase: Phase) -> Result<Share, JobError> {
        let before = self.queue.counts();
        let mut share = Share::default();
        match phase {
            Phase::Fill => self.write(self.plan.fill(self.index), &mut share)?,
            Phase::Overwrite => self.write(self.plan.overwrite(self.index), &mut share)?,
            Phase::Read => {
                let (reads, queues) = (self.settings.reads, self.plan.queues());
                let count = reads / queues + u64::from(self.index < reads % queues);
                for block in self.plan.read(self.index, count) {
                    let generation = self.last[place(block)];
                    self.submit(
                        Step { block, generation, direction: Direction::Read },
                        &mut share,
                    )?;
                }
            }
        }
        while self.free.len() < self.slots.len() {
            self.reap(&mut share)?;
        }
        if phase != Phase::Read {
            self.flush(&mut share)?;
        }
        while self.flushes > 0 {
            self.reap(&mut share)?;
        }
        let after = self.queue.counts();
        share.syncs = after.syncs - before.syncs;
        share.durable_writes = after.durable_writes - before.durable_writes;
        Ok(share)
    }

    fn write(
        &mut self,
        blocks: impl Iterator<Item = u64>,
        share: &mut Share,
    ) -> Result<(), JobError> {
        for (count, block) in (1u64..).zip(blocks) {
            let generation = &mut self.own[place(block / self.plan.queues())];
            *generation += 1;
            let generation = *generation;
            self.submit(Step { block, generation, direction: Direction::Write }, share)?;
            if self.settings.flush_interval.is_some_and(|interval| count % interval == 0) {
                self.flush(share)?;
            }
        }
        Ok(())
    }

    /// Submits a request when there is a slot and no other one is in flight for its block: two writes at once would
    /// leave it open which one stays.
    fn submit(&mut self, step: Step, share: &mut Share) -> Result<(), JobError> {
        while self.free.is_empty()
            || (step.direction == Direction::Write && self.is_busy(step.block))
        {
            self.reap(share)?;
        }
        let index = self.free.pop().expect("checked above");
        let slot = &mut self.slots[index];
        let offset = step.block * BLOCK;
        let memory = slot.memory.clone();
        let request = match step.direction {
            Direction::Read => Request::read(offset, memory),
            Direction::Write => {
                Pattern::new(step.generation, self.plan.seed()).fill(offset, &mut self.block);
                memory.copy_in(0, &self.block);
                Request::write(offset, memory).with(self.settings.write_flags)
            }
        };
        slot.step = step;
        slot.begun = Instant::now();
        self.enqueue(request, index as u64, share)
    }

    fn flush(&mut self, share: &mut Share) -> Result<(), JobError> {
        self.flushes += 1;
        self.enqueue(Request::flush(), FLUSH, share)
    }

    fn enqueue(&mut self, request: Request, data: u64, share: &mut Share) -> Result<(), JobError> {
        let mut request = request;
        while let Err(full) = self.disk.queue(request, data) {
            request = full.0;
            self.reap(share)?;
        }
        Ok(())
    }

    fn is_busy(&self, block: u64) -> bool {
        let in_flight = |index: usize| !self.free.contains(&index);
        let mut slots = self.slots.iter().enumerate();
        slots.any(|(index, slot)| slot.step.block == block && in_flight(index))
    }

    /// Waits for something to happen and takes what has completed.
    fn reap(&mut self, share: &mut Share) -> Result<(), JobError> {
        self.queue.wait()?;
        for Completion { user_data, result, .. } in self.queue.completions() {
            result?;
            if user_data == FLUSH {
                self.flushes -= 1;
                continue;
            }
            let index = place(user_data);
            let slot = &self.slots[index];
            share.latencies.record(slot.begun.elapsed());
            if slot.step.direction == Direction::Read {
                slot.memory.copy_out(0, &mut self.block);
                check(slot.step.block, slot.step.generation, self.plan, &self.block)?;
            }
            self.free.push(index);
        }
        Ok(())
    }
}

/// Whether a block is what it should be.
pub(crate) fn check(
    block: u64,
    generation: u32,
    plan: &Plan,
    bytes: &[u8],
) -> Result<(), Mismatch> {
    match Pattern::new(generation, plan.seed()).compare(block * BLOCK, bytes) {
        None => Ok(()),
        Some(difference) => Err(Mismatch { difference, generation }),
    }
}

fn place(number: u64) -> usize {
    usize::try_from(number).expect("indexes of what is in memory")
}

impl Share {
    /// Adds the share of another thread.
    pub(crate) fn add(&mut self, other: &Share) {
        self.latencies.merge(&other.latencies);
        self.syncs += other.syncs;
        self.durable_writes += other.durable_writes;
    }

    /// The rate of the requests over `elapsed`.
    pub(crate) fn rate(&self, elapsed: Duration) -> f64 {
        self.latencies.count() as f64 / elapsed.as_secs_f64().max(1e-9)
    }
}
