//! One case: its lives, step by step, with power cuts.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;

use blkring_engine::sim::{Fault, Matcher, OpKind, Rng, Rule, SimDisk, World};
use blkring_engine::{Completion, Disk, IoMem, Operation, QueueOptions, Variants};
use blkring_qcow2::{Image, Preallocation};

use super::config::{Config, Errors, Growth, Packed};
use super::judge::{Law, check_structure, contents};
use super::make::{IMAGE, Made, make, open};
use super::model::{Answer, Model, SECTOR, Time, Token, name, read_token};
use super::script::{Effect, Guest, draw};
use super::states::crash;

mod packing;

use packing::Packing;
pub(super) use packing::{Packer, is_taken};

/// A rule that was found broken.
#[derive(Debug, Clone)]
pub struct Violation {
    /// What is wrong, and how it came about.
    pub report: String,
}

/// Steps of the world in one life, at most.
const PATIENCE: u64 = 200_000;

/// Events of the disk in a report.
const EVENTS: usize = 60;

/// How many states of a case are judged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sampling {
    /// Steps of the disk per state, on average.
    pub(super) every: u64,
}

/// Runs the case of `seed`; `states` counts what was judged.
pub(super) fn run(
    seed: u64,
    adjust: &dyn Fn(&mut Config),
    sampling: Sampling,
    states: &mut u64,
) -> Result<(), Violation> {
    let mut rng = Rng::new(seed);
    let mut config = Config::draw(&mut rng);
    config.draw_format(&mut Rng::new(!seed));
    let mut past = Rng::new(seed ^ 0x5a5a);
    config.draw_past(&mut past);
    adjust(&mut config);
    if config.variants == Variants::default() {
        // The steps of a broken one stay those that it is known to be found by.
        config.draw_freed(&mut Rng::new(seed ^ 0x0f4e_ed00));
    }
    config.settle();
    let Made { mut disk, tokens, snapshots } = make(&config, &mut rng, &mut past);
    let mut model = Model::new(&tokens);
    let mut first = 1;
    for number in 0..config.lives {
        let begin = (model, snapshots.as_slice());
        let mut life = Life::begin(&config, &disk, begin, first, (&mut rng, sampling));
        let ended = life.live();
        *states += life.states;
        if let Err(text) = ended {
            return Err(life.violation(seed, number, &text));
        }
        let (after, _) = crash(&life.disk, &mut rng);
        let seen = contents(&after, &config);
        let seen = seen
            .and_then(|(_, all)| all.into_iter().collect::<Result<Vec<Token>, _>>().map_err(name));
        match seen {
            Ok(tokens) => model = Model::new(&tokens),
            Err(text) => return Err(life.violation(seed, number, &text)),
        }
        first = life.next;
        disk = after;
    }
    Ok(())
}

/// A request that is not answered yet.
struct Outstanding {
    queue: usize,
    submitted: Time,
    effect: Effect,
    mem: Option<IoMem>,
    fua: bool,
    text: String,
    /// The image refused to go on when it was submitted.
    late: bool,
}

/// The answer to a change of the size, once there is one.
type Grown = Rc<RefCell<Option<blkring_engine::Result<()>>>>;

/// From opening the image to a power cut.
struct Life<'a> {
    config: &'a Config,
    disk: SimDisk,
    world: World,
    image: Arc<Image>,
    handles: Vec<Disk>,
    model: Model,
    /// What each snapshot holds.
    snapshots: &'a [Vec<Token>],
    /// Decides what the guest does.
    guest: Rng,
    /// Decides where the power is cut.
    fate: Rng,
    sampling: Sampling,
    outstanding: BTreeMap<u64, Outstanding>,
    /// The next request, and the first that is not made any more.
    next: u64,
    end: u64,
    states: u64,
    /// An fdatasync has failed: nothing more may succeed.
    refuses: bool,
    /// Sectors that the disk has, and to how many it may have come.
    sectors: u64,
    most_sectors: u64,
    /// It is growing to so many.
    growing: Option<(u64, Grown)>,
    packer: Packer,
    /// Clusters that are written in compressed form.
    packings: Vec<Packing>,
    /// Leaked when the life began.
    leaks: u64,
    peak_held_back: u64,
    /// What the guest did, each with the number of steps that the disk had made.
    story: Vec<(u64, String)>,
    last_cut: String,
}

impl<'a> Life<'a> {
    fn begin(
        config: &'a Config,
        disk: &SimDisk,
        (model, snapshots): (Model, &'a [Vec<Token>]),
        first: u64,
        (rng, sampling): (&mut Rng, Sampling),
    ) -> Self {
        let leaks = check_structure(disk, config).expect("judged before");
        let mut world = World::new(rng.next_u64(), disk);
        for _ in 0..config.queues {
            let options = QueueOptions::with_requests(config.requests.max(4));
            world.add_queue(options.depth(config.queue_depth));
        }
        let image = open(&mut world, config, config.options()).expect("the image can be opened");
        let handles = (0..config.queues)
            .map(|queue| world.queue(queue).attach(&image).expect("a queue without a ring"))
            .collect();
        let sectors = image.info().virtual_size / SECTOR;
        let (guest, mut fate) = (rng.fork(), rng.fork());
        inject(config, disk, &mut fate);
        Life {
            config,
            disk: disk.clone(),
            world,
            image,
            handles,
            model,
            snapshots,
            guest,
            fate,
            sampling,
            outstanding: BTreeMap::new(),
            next: first,
            end: first + config.length,
            states: 0,
            refuses: false,
            sectors,
            most_sectors: sectors,
            growing: None,
            packer: Packer::new(config),
            packings: Vec::new(),
            leaks,
            peak_held_back: 0,
            story: Vec::new(),
            last_cut: String::new(),
        }
    }

    /// Runs to the end.
    fn live(&mut self) -> Result<(), String> {
        let mut closing = None;
        for _ in 0..PATIENCE {
            let submitted = self.submit_some();
            let idle =
                self.outstanding.is_empty() && self.growing.is_none() && self.packings.is_empty();
            if self.next == self.end && idle && closing.is_none() {
                if self.guest.one_in(2) {
                    return Ok(());
                }
                let image = self.image.clone();
                self.tell("close".to_owned());
                let now = self.model.tick();
                let result = self.world.start(0, async move { image.close().await });
                closing = Some((now, result));
            }
            let before = self.disk.steps();
            let stepped = self.world.step();
            self.take_answers()?;
            self.take_growth()?;
            self.take_packed()?;
            if self.disk.steps() != before {
                self.maybe_cut()?;
            }
            let closed = closing
                .as_ref()
                .and_then(|(now, result)| result.borrow().clone().map(|result| (*now, result)));
            if let Some((now, result)) = closed {
                return self.closed(now, result);
            }
            if !stepped && !submitted {
                let waiting: Vec<_> = self.outstanding.values().map(|o| o.text.clone()).collect();
                return Err(format!("a hang: nothing can make a step; unanswered: {waiting:?}"));
            }
        }
        Err("a hang: no end of steps".to_owned())
    }

    fn closed(&mut self, now: Time, result: blkring_engine::Result<()>) -> Result<(), String> {
        self.tell(format!("closed: {result:?}"));
        match result {
            Ok(()) => {
                self.model.flushed(now);
                let now = check_structure(&self.disk, self.config)?;
                let before = self.leaks;
                if now > before && self.config.errors == Errors::None {
                    return Err(format!("I5: closed, {now} clusters leaked instead of {before}"));
                }
                (0..8).try_for_each(|_| self.cut())
            }
            Err(error) if self.config.errors == Errors::None => {
                Err(format!("closing fails: {error}"))
            }
            Err(_) => Ok(()),
        }
    }

    /// Submits what the guest wants to do now.
    fn submit_some(&mut self) -> bool {
        let mut any = false;
        for queue in 0..self.config.queues {
            let busy = self.outstanding.values().filter(|one| one.queue == queue).count();
            if self.next == self.end || busy >= self.config.requests || !self.guest.one_in(12) {
                continue;
            }
            self.submit(queue);
            any = true;
        }
        if self.sectors < self.config.sectors()
            && self.growing.is_none()
            && self.next < self.end
            && self.guest.one_in(100)
        {
            self.grow();
        }
        self.maybe_pack();
        any || self.next < self.end
    }

    /// The disk begins to grow, by a few sectors or by all that is left.
    fn grow(&mut self) {
        let left = self.config.sectors() - self.sectors;
        let sectors =
            self.sectors + if self.guest.one_in(3) { left } else { 1 + self.guest.below(left) };
        let preallocation = match self.guest.below(8) {
            0 => Preallocation::Metadata,
            1 => Preallocation::Falloc,
            2 => Preallocation::Full,
            _ => Preallocation::Off,
        };
        self.tell(format!("grow from {} to {sectors}, {preallocation:?}", self.sectors));
        let (image, size) = (self.image.clone(), sectors * SECTOR);
        let grown = async move { image.resize_with(size, preallocation).await };
        let result = self.world.start(0, grown);
        self.most_sectors = self.most_sectors.max(sectors);
        self.growing = Some((sectors, result));
    }

    fn take_growth(&mut self) -> Result<(), String> {
        let answer = self.growing.as_ref().and_then(|(_, result)| result.borrow().clone());
        let (Some(answer), Some((sectors, _))) = (answer, &self.growing) else { return Ok(()) };
        let sectors = *sectors;
        self.tell(format!("grown to {sectors}: {answer:?}"));
        self.growing = None;
        match answer {
            Ok(()) => self.sectors = sectors,
            Err(error) if self.config.errors == Errors::None => {
                return Err(format!("growing fails: {error}"));
            }
            Err(_) => (),
        }
        Ok(())
    }

    fn submit(&mut self, queue: usize) {
        let number = self.next;
        self.next += 1;
        let guest = Guest { config: self.config, sectors: self.sectors };
        let step = draw(&mut self.guest, guest, number);
        let submitted = match step.effect.changes(number) {
            Some((sectors, token)) => self.model.submit(sectors, token),
            None => self.model.tick(),
        };
        let text = format!("{number} on queue {queue} at {submitted}: {}", step.text);
        self.tell(text.clone());
        let fua = step.request.flags.contains(blkring_engine::Flags::FUA);
        let late = self.refuses;
        if late {
            // A few more see that nothing works any more.
            self.end = self.end.min(self.next + 6);
        }
        let queued = self.handles[queue].queue(step.request, number);
        queued.expect("the queue has room for what the guest has in flight");
        let (effect, mem) = (step.effect, step.mem);
        self.outstanding
            .insert(number, Outstanding { queue, submitted, effect, mem, fua, text, late });
    }

    fn take_answers(&mut self) -> Result<(), String> {
        for queue in 0..self.config.queues {
            let answers: Vec<Completion> = self.world.queue(queue).completions().collect();
            for answer in answers {
                self.take_answer(&answer)?;
            }
        }
        Ok(())
    }

    fn take_answer(&mut self, answer: &Completion) -> Result<(), String> {
        let number = answer.user_data;
        let one = self.outstanding.remove(&number).expect("a request is answered once");
        let ok = match &answer.result {
            Ok(()) => true,
            Err(error) if self.config.errors == Errors::None => {
                return Err(format!("'{}' fails: {error}", one.text));
            }
            Err(error) => {
                // The guest has been told that an fdatasync failed.
                self.refuses |= error.operation == Operation::Flush;
                false
            }
        };
        if ok && one.late && one.effect.needs_disk() {
            return Err(format!("'{}' succeeds although an fdatasync had failed", one.text));
        }
        let state = match (ok, one.fua) {
            (false, _) => Answer::Failed,
            (true, false) => Answer::Written,
            (true, true) => Answer::Durable,
        };
        if let Some((sectors, _)) = one.effect.changes(number) {
            self.model.answer(sectors, one.submitted, state);
        }
        let now = self.model.tick();
        self.tell(format!("{number} answered at {now}: {:?}", answer.code()));
        match (&one.effect, &one.mem) {
            (Effect::Flush, _) if ok => self.model.flushed(one.submitted),
            (Effect::Read(sectors), Some(mem)) if ok => {
                let bytes = mem.to_vec();
                let found = bytes.chunks(SECTOR as usize).map(read_token);
                for (sector, found) in sectors.clone().zip(found) {
                    self.judge_read(sector, found, one.submitted)?;
                }
            }
            _ => (),
        }
        if !self.outstanding.values().any(|one| matches!(one.effect, Effect::Read(_))) {
            self.model.compact();
        }
        Ok(())
    }

    fn judge_read(
        &self,
        sector: usize,
        found: Result<Token, Token>,
        submitted: Time,
    ) -> Result<(), String> {
        match found {
            Ok(token) if self.model.shows(sector, token, submitted) => Ok(()),
            Ok(token) | Err(token) => Err(format!(
                "a read shows {} in sector {sector}; versions: {}",
                name(token),
                self.model.history(sector)
            )),
        }
    }

    fn maybe_cut(&mut self) -> Result<(), String> {
        let held_back = self.image.statistics().held_back_clusters;
        self.peak_held_back = self.peak_held_back.max(held_back);
        if self.fate.one_in(self.sampling.every) { self.cut() } else { Ok(()) }
    }

    /// Cuts the power and judges what is left; this life goes on as if nothing had happened.
    fn cut(&mut self) -> Result<(), String> {
        self.states += 1;
        let (after, how) = crash(&self.disk, &mut self.fate);
        self.last_cut = how;
        let sectors = self.sectors..=self.most_sectors;
        let (config, model, snapshots) = (self.config, &self.model, self.snapshots);
        let law = Law { config, model, snapshots, leaks: self.leak_bound(), sectors };
        let judged = law.judge(&after, &mut self.fate);
        judged.map_err(|text| format!("power cut, {}: {text}", self.last_cut))
    }

    /// Reserved, claimed, unlinked, and linked or decremented but not durably.
    fn leak_bound(&self) -> u64 {
        let statistics = self.image.statistics();
        let per_cluster = usize::try_from(self.config.cluster / SECTOR).expect("small");
        // Linked and not durably, and copies of shared ones.
        let copies = u64::from(!self.snapshots.is_empty());
        let tables = (1 + copies) * self.config.tables();
        let failures = match self.config.errors {
            Errors::None => 0,
            Errors::Some | Errors::Sync => self.config.clusters,
        };
        // Clusters of zeros over the backing file, old and new tables.
        let growth = match self.config.growth {
            Growth::None => 0,
            Growth::From(_) => self.config.clusters + 8,
        };
        let open = self.model.open_clusters(per_cluster);
        self.leaks
            + growth
            + statistics.ready_clusters
            + statistics.dirty_clusters
            + self.peak_held_back
            + 2 * self.config.reserve
            + open
            + self.packed_leaks(open)
            + tables
            + failures
            + 2
    }

    fn tell(&mut self, text: String) {
        self.story.push((self.disk.steps(), text));
    }

    fn violation(&self, seed: u64, life: u64, text: &str) -> Violation {
        let mut report = format!("seed {seed}, life {life}: {text}\n{:#?}\n", self.config);
        let log = self.disk.log();
        let first = log.len().saturating_sub(EVENTS);
        let mut story = self.story.iter().peekable();
        while story.next_if(|(step, _)| *step < first as u64).is_some() {}
        for (number, event) in log.iter().enumerate().skip(first) {
            while let Some((_, text)) = story.next_if(|(step, _)| *step <= number as u64) {
                // Writing to a string does not fail.
                _ = writeln!(report, "        {text}");
            }
            _ = writeln!(report, "{number:5} {event}");
        }
        story.for_each(|(_, text)| _ = writeln!(report, "        {text}"));
        Violation { report }
    }
}

/// Has operations of the disk fail.
fn inject(config: &Config, disk: &SimDisk, rng: &mut Rng) {
    disk.clear_faults();
    if config.errors == Errors::None {
        return;
    }
    for _ in 0..1 + rng.below(8) {
        let what = match rng.below(8) {
            0..=2 => Matcher::writes(),
            3 => Matcher::kind(OpKind::Grow).or(OpKind::ZeroRange),
            4 => Matcher::kind(OpKind::Read),
            5 => Matcher::any(),
            // The refcount table, the first refcount block, the L1 table.
            _ => {
                let start = (1 + rng.below(3)) * config.cluster;
                Matcher::writes().within(start..start + config.cluster)
            }
        };
        let errno = if rng.one_in(2) { libc::EIO } else { libc::ENOSPC };
        let fault = match rng.below(3) {
            0 => Fault::Partial(rng.below(8) * SECTOR, errno),
            // No kernel moves nothing at all.
            1 => Fault::Short(config.alignment.max(SECTOR) * (1 + rng.below(4))),
            _ => Fault::Error(errno),
        };
        let spared = if rng.one_in(2) { rng.below(80) } else { rng.below(8) };
        disk.inject(Rule::new(what.file(IMAGE), fault).after(spared).times(1 + rng.below(2)));
    }
    if config.errors == Errors::Sync {
        let what = Matcher::kind(OpKind::Sync).file(IMAGE);
        disk.inject(Rule::new(what, Fault::Error(libc::EIO)).after(rng.below(12)));
    }
}
