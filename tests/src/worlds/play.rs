//! One world, from its start to its end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;

use blkring_engine::RawDisk;
use blkring_engine::sim::{Outcome, Rng, SimDisk, SimOptions, World};
use blkring_qcow2::Image;

use crate::powercut::judge::check_structure;
use crate::powercut::make::{Made, make, open};
use crate::powercut::model::{Model, Time};

use super::config::Config;
use super::delays::Delays;
use super::faults;
use super::queues::Member;
use super::requests::Outstanding;
use super::side::{RAW, Seen, Side, raw_content};
use super::trace::{Recorder, Trace};

/// A rule that was found broken.
#[derive(Debug, Clone)]
pub struct Violation {
    /// What is wrong, and how it came about.
    pub report: String,
}

/// Steps of a world, at most.
const PATIENCE: u64 = 200_000;

/// Events of the disk in a report.
const EVENTS: usize = 80;

/// Plays the world of `seed`, changed by `adjust`.
///
/// # Errors
/// What is wrong with it.
pub fn play(seed: u64, adjust: &dyn Fn(&mut Config)) -> Result<Trace, Violation> {
    let mut rng = Rng::new(seed);
    let mut config = Config::draw(&mut rng);
    adjust(&mut config);
    config.settle();
    let mut play = Play::begin(&config, &mut rng);
    match play.live().and_then(|()| play.end()) {
        Ok(()) => Ok(play.recorder.end(play.world.steps())),
        Err(text) => Err(play.violation(seed, &text)),
    }
}

/// A request whose queue has gone without an answer: it may have been done, or not.
pub(super) struct Orphan {
    pub(super) side: Side,
    pub(super) sectors: Range<usize>,
    pub(super) submitted: Time,
}

pub(super) struct Play<'a> {
    pub(super) config: &'a Config,
    pub(super) disk: SimDisk,
    pub(super) world: World,
    pub(super) image: Arc<Image>,
    pub(super) raw: Arc<RawDisk>,
    pub(super) seen: Seen,
    /// The queues that are there.
    pub(super) members: Vec<Member>,
    /// Decides what the guests do.
    pub(super) guest: Rng,
    /// Decides what happens to them.
    pub(super) fate: Rng,
    pub(super) delays: Delays,
    pub(super) outstanding: BTreeMap<u64, Outstanding>,
    pub(super) orphans: Vec<Orphan>,
    /// The next request, and the first that is not made any more.
    pub(super) next: u64,
    pub(super) end: u64,
    /// Leaked at the start.
    pub(super) leaks: u64,
    pub(super) recorder: Recorder,
    told: u64,
    /// What the guests did, each with the number of steps that the disk had made.
    story: Vec<(u64, String)>,
}

impl<'a> Play<'a> {
    fn begin(config: &'a Config, rng: &mut Rng) -> Self {
        let Made { disk, tokens, .. } = make(&config.image, rng, &mut rng.clone().fork());
        let (raw_tokens, raw_bytes) = raw_content(config);
        disk.create_file(RAW, &raw_bytes);
        let leaks = check_structure(&disk, &config.image).expect("made sound");
        let mut world = World::new(rng.next_u64(), &disk);
        let members: Vec<usize> =
            (0..config.image.queues).map(|_| world.add_queue(Member::options(config))).collect();
        let options = config.image.options();
        let image = open(&mut world, &config.image, options).expect("the image can be opened");
        let storage = disk.storage(RAW, SimOptions::aligned(config.image.alignment));
        let raw = RawDisk::new(storage.with_variants(config.image.variants));
        let members = members
            .into_iter()
            .map(|number| Member::attach(&mut world, number, (&image, &raw)))
            .collect();
        let (guest, mut fate) = (rng.fork(), rng.fork());
        faults::inject(config, &disk, &mut fate);
        let told = disk.steps();
        Play {
            config,
            disk,
            world,
            image,
            raw,
            seen: Seen { image: Model::new(&tokens), raw: Model::new(&raw_tokens) },
            members,
            guest,
            fate,
            delays: Delays::default(),
            outstanding: BTreeMap::new(),
            orphans: Vec::new(),
            next: 1,
            end: 1 + config.length,
            leaks,
            recorder: Recorder::default(),
            told,
            story: Vec::new(),
        }
    }

    /// Until every request is answered.
    fn live(&mut self) -> Result<(), String> {
        for _ in 0..PATIENCE {
            self.submit_some();
            self.meddle();
            let stepped = self.world.step();
            self.record();
            self.take_answers()?;
            if self.next == self.end && self.outstanding.is_empty() {
                return Ok(());
            }
            if !stepped && !self.let_go() && self.next == self.end {
                let waiting: Vec<&str> =
                    self.outstanding.values().map(|one| one.text.as_str()).collect();
                return Err(format!("a hang: nothing can make a step; unanswered: {waiting:?}"));
            }
        }
        Err("a hang: no end of steps".to_owned())
    }

    /// What the guests have not asked for.
    fn meddle(&mut self) {
        let now = self.world.steps();
        self.delays.expire(&self.disk, now);
        if self.happens(self.config.delay_every) {
            self.delays.begin(&self.disk, &mut self.fate, now);
        }
        if self.happens(self.config.withdraw_every) {
            self.withdraw_one();
        }
        self.forget_receipts(now);
        self.meddle_with_queues(now);
    }

    /// Once in so many times.
    pub(super) fn happens(&mut self, every: u64) -> bool {
        every > 0 && self.fate.one_in(every)
    }

    /// Ends everything that keeps somebody from going on; says whether there was anything.
    pub(super) fn let_go(&mut self) -> bool {
        self.delays.end(&self.disk) | self.resume_all() | self.forget_receipts(u64::MAX)
    }

    /// Steps until nothing can make one any more.
    pub(super) fn settle(&mut self) -> Result<(), String> {
        loop {
            let settled = self.world.run(|| false, PATIENCE);
            self.record();
            match settled {
                Outcome::Stuck(_) if self.let_go() => (),
                Outcome::Stuck(_) => return self.take_answers(),
                _ => return Err("a hang: the world does not come to rest".to_owned()),
            }
        }
    }

    pub(super) fn record(&mut self) {
        for event in self.disk.log_since(self.told) {
            self.told += 1;
            self.recorder.event(&event);
        }
    }

    pub(super) fn tell(&mut self, text: String) {
        self.story.push((self.disk.steps(), text));
    }

    fn violation(&self, seed: u64, text: &str) -> Violation {
        let mut report = format!("seed {seed}: {text}\n{:#?}\n", self.config);
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
