//! A qcow2 image in a simulated world, driven by hand: the test says which op of the disk goes how far, cuts the
//! power at that moment, says what survives, and judges what a reader finds afterwards.
//!
//! Queues always run as far as they can. Of the ops that the test does not stop, the seed picks the next one.

mod crashed;
mod setup;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use blkring_engine::sim::{Cell, Event, Fault, Matcher, OpKind, Rule, SimDisk, Stage, World};
use blkring_engine::{Disk, Flags, IoMem, Request, Result, Turn};
use blkring_qcow2::{CompressedCluster, Image};

pub use crashed::{Crashed, Places};
pub use setup::{BACKING, Claims, IMAGE, Setup, SimOpener};

/// What a scenario came to: a description of what is wrong, if something is.
pub type Verdict = std::result::Result<(), String>;

/// The error number that injected faults give.
pub const EIO: i32 = 5;

/// Bytes of a sector of the guest.
pub const SECTOR: u64 = 512;

/// An image, the queues on it, and the disk below.
pub struct ImageWorld {
    /// The queues.
    pub world: World,
    /// The disk.
    pub disk: SimDisk,
    /// The image.
    pub image: Arc<Image>,
    handles: Vec<Disk>,
    abandoned: BTreeSet<usize>,
    /// How far each of these ops may go.
    stops: BTreeMap<u64, Stage>,
    /// Every op so far, as it was accepted, with the stage that it has reached.
    ops: BTreeMap<u64, (Event, Stage)>,
    seen: u64,
    cluster: u64,
}

/// The answer to a request, once there is one.
#[derive(Clone)]
pub struct Answer(Rc<RefCell<Option<Result<()>>>>);

impl Answer {
    /// Whether the request was answered.
    pub fn given(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// The answer.
    ///
    /// # Panics
    /// If there is none.
    pub fn result(&self) -> Result<()> {
        self.0.borrow().clone().expect("the request was not answered")
    }
}

impl ImageWorld {
    /// Submits a request on a queue.
    pub fn submit(&mut self, queue: usize, request: Request) -> Answer {
        let receipt = self.handles[queue].submit(request).expect("the queue has room");
        Answer(self.world.start(queue, receipt))
    }

    /// Writes `byte` over sectors of a guest cluster.
    pub fn write(&mut self, queue: usize, cluster: u64, sectors: Range<u64>, byte: u8) -> Answer {
        self.write_with(queue, cluster, sectors, byte, Flags::empty())
    }

    /// The same with flags.
    pub fn write_with(
        &mut self,
        queue: usize,
        cluster: u64,
        sectors: Range<u64>,
        byte: u8,
        flags: Flags,
    ) -> Answer {
        let len = usize::try_from((sectors.end - sectors.start) * SECTOR).expect("small");
        let offset = cluster * self.cluster + sectors.start * SECTOR;
        self.submit(queue, Request::write(offset, IoMem::from(vec![byte; len])).with(flags))
    }

    /// Writes `byte` over a whole guest cluster.
    pub fn fill(&mut self, queue: usize, cluster: u64, byte: u8) -> Answer {
        let sectors = self.cluster / SECTOR;
        self.write(queue, cluster, 0..sectors, byte)
    }

    /// Discards a whole guest cluster.
    pub fn discard(&mut self, queue: usize, cluster: u64) -> Answer {
        self.submit(queue, Request::discard(cluster * self.cluster, self.cluster))
    }

    /// Zeroes a whole guest cluster and keeps its host cluster.
    pub fn zero(&mut self, queue: usize, cluster: u64) -> Answer {
        self.submit(queue, Request::write_zeroes(cluster * self.cluster, self.cluster))
    }

    /// Zeroes sectors of a guest cluster.
    pub fn zero_part(&mut self, queue: usize, cluster: u64, sectors: Range<u64>) -> Answer {
        let offset = cluster * self.cluster + sectors.start * SECTOR;
        self.submit(queue, Request::write_zeroes(offset, (sectors.end - sectors.start) * SECTOR))
    }

    /// Writes a whole guest cluster in compressed form.
    pub fn write_compressed(
        &mut self,
        queue: usize,
        cluster: u64,
        packed: CompressedCluster,
    ) -> Answer {
        let (image, offset) = (self.image.clone(), cluster * self.cluster);
        let write = async move { image.write_compressed(offset, packed).await };
        Answer(self.world.start(queue, write))
    }

    /// Flushes.
    pub fn flush(&mut self, queue: usize) -> Answer {
        self.submit(queue, Request::flush())
    }

    /// Closes the image, from a queue.
    pub fn close(&mut self, queue: usize) -> Answer {
        let image = self.image.clone();
        Answer(self.world.start(queue, async move { image.close().await }))
    }

    /// A queue's way to the image, for requests of other kinds.
    pub fn handle(&self, queue: usize) -> &Disk {
        &self.handles[queue]
    }

    /// The queue makes no further turn.
    pub fn abandon(&mut self, queue: usize) {
        self.world.abandon(queue);
        self.abandoned.insert(queue);
    }

    /// Takes an abandoned queue out of the world.
    pub fn remove(&mut self, queue: usize) {
        drop(self.world.remove(queue));
        self.abandoned.insert(queue);
    }

    /// Runs until an op that matches and is not stopped yet is accepted, and stops it there.
    ///
    /// # Panics
    /// If the world comes to rest before.
    pub fn catch(&mut self, what: impl Fn(&Event) -> bool) -> Event {
        self.try_catch(what).unwrap_or_else(|| panic!("no such op\n{}", self.report()))
    }

    /// The same, but where the world comes to rest before, syncs that are stopped go on. Syncs that run side by side
    /// are answered together, so an op behind one of them may have to wait for all.
    pub fn catch_behind_syncs(&mut self, what: impl Fn(&Event) -> bool) -> Event {
        if let Some(found) = self.try_catch(&what) {
            return found;
        }
        self.stops.retain(|op, _| self.ops[op].0.kind != OpKind::Sync);
        self.catch(what)
    }

    /// The same as [`ImageWorld::catch`]; `None` if the world comes to rest before.
    pub fn try_catch(&mut self, what: impl Fn(&Event) -> bool) -> Option<Event> {
        loop {
            self.turn_queues();
            let found = self
                .ops
                .values()
                .find(|(event, stage)| {
                    *stage == Stage::Accepted && !self.stops.contains_key(&event.op) && what(event)
                })
                .map(|(event, _)| event.clone());
            if let Some(event) = found {
                self.stops.insert(event.op, Stage::Accepted);
                return Some(event);
            }
            if !self.step() {
                return None;
            }
        }
    }

    /// Lets a stopped op go on to a stage, and waits until it is there.
    ///
    /// # Panics
    /// If it cannot get there.
    pub fn advance(&mut self, op: &Event, stage: Stage) {
        self.stops.insert(op.op, stage);
        while self.ops[&op.op].1 != stage {
            assert!(self.step_op(op.op), "{op} has no stage {stage:?}");
        }
    }

    /// Lets a stopped op go on to its end, and only it.
    pub fn advance_to_end(&mut self, op: &Event) {
        while self.step_op(op.op) {}
    }

    /// Stops nothing about this op any more.
    pub fn release(&mut self, op: &Event) {
        self.stops.remove(&op.op);
    }

    /// Stops nothing any more.
    pub fn release_all(&mut self) {
        self.stops.clear();
    }

    /// Runs until nothing that is not stopped can make a step.
    pub fn settle(&mut self) {
        while self.step() {}
    }

    /// Runs until the request is answered; false if the world comes to rest before.
    pub fn runs_until(&mut self, answer: &Answer) -> bool {
        // An answer may need turns of queues only.
        while !answer.given() && self.step() {}
        answer.given()
    }

    /// Runs until the request is answered.
    ///
    /// # Panics
    /// If the world comes to rest before, or the answer is an error.
    pub fn finish(&mut self, answer: &Answer) {
        assert!(self.runs_until(answer), "{}", self.report());
        answer.result().expect("the request succeeds");
    }

    /// Fills whole guest clusters, flushes, and lets everything come to rest.
    pub fn prepare(&mut self, clusters: Range<u64>, byte: u8) {
        for cluster in clusters {
            let written = self.fill(0, cluster, byte);
            self.finish(&written);
        }
        self.flush_twice();
    }

    /// Flushes and lets everything come to rest, twice: what is unlinked is recycled or freed then.
    pub fn flush_twice(&mut self) {
        for _ in 0..2 {
            let flushed = self.flush(0);
            self.finish(&flushed);
            self.settle();
        }
    }

    /// Discards guest clusters, whose host clusters are recycled or freed then.
    pub fn give_up(&mut self, clusters: Range<u64>) {
        for cluster in clusters {
            let gone = self.discard(0, cluster);
            self.finish(&gone);
        }
        self.flush_twice();
    }

    /// Begins a write into a new guest cluster and stops the refill that it needs at the sync behind it: what the
    /// refill made can be taken, and is pending.
    pub fn refill_without_sync(&mut self, cluster: u64) -> (Answer, Event) {
        let waits = self.write(0, cluster, 0..1, 0x77);
        let sync = self.catch(|op| op.kind == OpKind::Sync);
        assert_eq!(self.image.statistics().ready_clusters, 1, "one cluster is there, and pending");
        (waits, sync)
    }

    /// Has the first write that touches this op's range fail, after some of its bytes landed.
    pub fn fail(&self, op: &Event, landed: u64) {
        let what = Matcher::writes().file(IMAGE).within(op.offset..op.offset + op.len);
        self.disk.inject(Rule::new(what, Fault::Partial(landed, EIO)));
    }

    /// A write to the L1 table.
    pub fn is_l1(&self) -> impl Fn(&Event) -> bool + use<> {
        let l1 = self.places().l1;
        move |event| {
            event.kind == OpKind::Write && crashed::touches(std::slice::from_ref(&l1), event)
        }
    }

    /// What the guest reads now.
    ///
    /// # Panics
    /// If the read is not answered.
    pub fn read(&mut self, queue: usize, offset: u64, len: u64) -> Vec<u8> {
        let mem = IoMem::from(vec![0x5a; usize::try_from(len).expect("small")]);
        let answer = self.submit(queue, Request::read(offset, mem.clone()));
        self.finish(&answer);
        mem.to_vec()
    }

    /// Whether every sector of these reads, now, as one of the legal bytes all over.
    pub fn reads_as(&mut self, cluster: u64, sectors: Range<u64>, legal: &[u8]) -> Verdict {
        let offset = cluster * self.cluster + sectors.start * SECTOR;
        let bytes = self.read(0, offset, (sectors.end - sectors.start) * SECTOR);
        crashed::judge(&bytes, offset, legal).map_err(|what| format!("live: {what}"))
    }

    /// Cuts the power. `survives` picks the ops whose values are kept where they were not durable, in flight or
    /// landed; where several are, the latest one. The file is as long as any op made it.
    pub fn crash(&self, survives: impl Fn(&Event) -> bool) -> Crashed {
        let disk = self.disk.crash_by(&mut |choice| match choice.cell {
            Cell::Size => choice.last_of(|_| true),
            Cell::Sector(_) => choice.last_of(|op| survives(&self.ops[&op].0)),
        });
        Crashed::new(disk, self.cluster)
    }

    /// Where the metadata of the file is, by what its tables say now.
    pub fn places(&self) -> Places {
        Places::of(&self.disk.contents(IMAGE))
    }

    /// A write to the image's file that is not to its metadata.
    pub fn is_data(&self) -> impl Fn(&Event) -> bool + use<> {
        let places = self.places();
        move |event| event.kind == OpKind::Write && &*event.file == IMAGE && !places.hit(event)
    }

    /// A write to an L2 table.
    pub fn is_table(&self) -> impl Fn(&Event) -> bool + use<> {
        let tables = self.places().tables;
        move |event| event.kind == OpKind::Write && crashed::touches(&tables, event)
    }

    /// A write to a refcount block.
    pub fn is_count(&self) -> impl Fn(&Event) -> bool + use<> {
        let blocks = self.places().blocks;
        move |event| event.kind == OpKind::Write && crashed::touches(&blocks, event)
    }

    /// Ops accepted since the log had `first` entries, in order.
    pub fn accepted_since(&self, first: u64) -> Vec<Event> {
        let accepted = |event: &Event| event.stage == Stage::Accepted;
        self.disk.log_since(first).into_iter().filter(accepted).collect()
    }

    /// What is pending, for messages.
    pub fn report(&self) -> String {
        let pending: Vec<String> = self.disk.pending().iter().map(ToString::to_string).collect();
        format!("pending: {pending:#?}")
    }

    /// One op makes a step, after the queues have done what they can; false if no op may.
    fn step(&mut self) -> bool {
        self.turn_queues();
        let pending = self.disk.pending();
        let free: Vec<usize> =
            (0..pending.len()).filter(|&place| self.may_step(pending[place].op)).collect();
        if free.is_empty() {
            return false;
        }
        let place = free[self.world.rng().index(free.len())];
        self.advance_place(place);
        true
    }

    fn step_op(&mut self, op: u64) -> bool {
        let place = self.disk.pending().iter().position(|event| event.op == op);
        place.is_some_and(|place| {
            self.advance_place(place);
            true
        })
    }

    fn advance_place(&mut self, place: usize) {
        assert!(self.disk.advance(place), "nothing else holds ops");
        self.learn();
        self.turn_queues();
    }

    fn may_step(&self, op: u64) -> bool {
        self.stops.get(&op).is_none_or(|stop| *stop != self.ops[&op].1)
    }

    fn turn_queues(&mut self) {
        let mut busy = true;
        while busy {
            busy = false;
            for queue in (0..self.handles.len()).filter(|q| !self.abandoned.contains(q)) {
                let turn = self.world.queue(queue).turn();
                busy |=
                    turn.expect("a queue without a ring asks nothing of the kernel") == Turn::Busy;
            }
        }
        self.learn();
    }

    fn learn(&mut self) {
        for event in self.disk.log_since(self.seen) {
            self.seen += 1;
            let stage = event.stage;
            let known = self.ops.entry(event.op).or_insert((event, stage));
            known.1 = stage;
        }
    }
}

/// Runs a scenario on the driver as it is, which must pass, and on each broken one, which must not.
///
/// # Panics
/// If one does otherwise, or a scenario is not what it says.
pub fn fails_only_with(
    setup: &Setup,
    broken: &[blkring_engine::Variants],
    scenario: impl Fn(&mut ImageWorld) -> Verdict,
) {
    for seed in 0..8 {
        let setup = setup.clone().seed(seed);
        let verdict = scenario(&mut setup.clone().make());
        assert_eq!(verdict, Ok(()), "seed {seed}");
        for &variants in broken {
            let verdict = scenario(&mut setup.clone().variants(variants).make());
            assert!(verdict.is_err(), "seed {seed}: {variants:?} was not noticed");
        }
    }
}
