//! Faults on purpose: operations that fail, move less than asked, come late, or are kept until they are let go; and
//! points of a driver where requests are stopped.
//!
//! [`Faults`] belong to a storage ([`Storage::with_faults`](crate::Storage::with_faults),
//! [`OpenOptions::faults`](crate::OpenOptions)), whatever it is on, and are asked for each operation just before it is
//! sent. Rules are tried in the order in which they were added. One that keeps or delays an operation lets it go on to the
//! next rule afterwards; one that fails or shortens it is the last.
//!
//! ```
//! use blkring_engine::faults::{Effect, Faults, Ops, Rule};
//! use blkring_engine::{IoMem, QueueOptions, QueueSeed, RawDisk, Storage};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let faults = Faults::new();
//! faults.add(Rule::new(Ops::READ, Effect::Error(5)).within(4096..8192));
//! let storage = Storage::in_memory("scratch", vec![0; 1 << 20], 1 << 20).with_faults(&faults);
//! let mut queue = QueueSeed::new(QueueOptions::default())?.start()?;
//! let disk = queue.attach(&RawDisk::new(storage))?;
//! let mem = IoMem::from(vec![0; 512]);
//! assert_eq!(queue.block_on(disk.read(4096, mem.clone()))?.unwrap_err().errno, 5);
//! queue.block_on(disk.read(4096, mem))??;
//! # Ok(())
//! # }
//! ```

mod enter;
mod event;
mod rule;
mod suspend;
mod timer;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use blkring_tracker::sync::Mutex;

pub use enter::EnterFaults;
pub use event::Event;
pub use rule::{Effect, Ops, Rule, Seen};

use crate::lane::Place;
use rule::Action;
use suspend::Suspended;
use timer::Timer;

/// Names a rule among those of its [`Faults`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleId(u64);

/// Something was stopped or let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice<'a> {
    /// An operation or a request was stopped under this tag.
    Stopped(&'a str),
    /// One that was stopped under this tag is about to go on.
    Released(&'a str),
}

type Observer = Box<dyn Fn(Notice<'_>) + Send + Sync>;

/// Rules, and what they have stopped. Clones of the `Arc` share them; several storages may.
///
/// The lock *faults* guards rules and lists. A [chosen](Rule::chosen) rule is called under it; wakers, observers and
/// lanes are not.
pub struct Faults {
    state: Mutex<State>,
    timer: Mutex<Option<Timer>>,
    observer: Mutex<Option<Arc<Observer>>>,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<(RuleId, Rule)>,
    last: u64,
    /// The state that rules for points look at, less 1.
    number: u32,
    /// The rules that the last point has armed.
    armed: Vec<RuleId>,
    stopped: Vec<Stopped>,
    /// How often rules have struck operations.
    struck: u64,
}

/// One that waits for its tag.
#[derive(Debug)]
struct Stopped {
    tag: String,
    who: Who,
}

#[derive(Debug)]
enum Who {
    /// An operation of a lane.
    Op(Place),
    /// Whoever passes a point, by number.
    Passer(Suspended),
}

/// What becomes of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes on.
    Pass,
    /// It ends with this error number.
    Fail(i32),
    /// It moves so many bytes at most.
    Short(u64),
    /// It is kept until the lane is told to let it go.
    Kept,
    /// The same, and that comes by itself.
    Delayed,
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Faults").field(&*self.state.lock()).finish()
    }
}

impl Faults {
    /// No rules yet.
    pub fn new() -> Arc<Faults> {
        Arc::new(Faults {
            state: Mutex::default(),
            timer: Mutex::new(None),
            observer: Mutex::new(None),
        })
    }

    /// Adds a rule behind the others.
    pub fn add(&self, rule: Rule) -> RuleId {
        let mut state = self.state.lock();
        state.last += 1;
        let id = RuleId(state.last);
        state.rules.push((id, rule));
        id
    }

    /// Takes a rule away, and says whether it was still there: one that has struck as often as it may is not. What it
    /// has stopped stays so.
    pub fn remove(&self, id: RuleId) -> bool {
        let taken = {
            let mut state = self.state.lock();
            let at = state.rules.iter().position(|(known, _)| *known == id);
            at.map(|at| state.rules.remove(at))
        };
        taken.is_some()
    }

    /// Takes away the rules that would stop somebody under this tag; says how many.
    pub fn remove_tag(&self, tag: &str) -> usize {
        let taken: Vec<_> = {
            let mut state = self.state.lock();
            state.rules.extract_if(.., |(_, rule)| rule.is_of(tag)).collect()
        };
        taken.len()
    }

    /// Takes all rules away and releases everything.
    pub fn clear(&self) {
        let (rules, stopped) = {
            let mut state = self.state.lock();
            state.armed.clear();
            (std::mem::take(&mut state.rules), std::mem::take(&mut state.stopped))
        };
        drop(rules);
        stopped.into_iter().for_each(|one| self.let_go(one));
    }

    /// Lets go everything that was stopped under this tag; says how many that were.
    pub fn release(&self, tag: &str) -> usize {
        let mut count = 0;
        while self.release_last(tag) {
            count += 1;
        }
        count
    }

    /// Lets go what was stopped last under this tag; says whether there was anything.
    pub fn release_last(&self, tag: &str) -> bool {
        let taken = {
            let mut state = self.state.lock();
            let at = state.stopped.iter().rposition(|one| one.tag == tag);
            at.map(|at| state.stopped.remove(at))
        };
        let found = taken.is_some();
        taken.into_iter().for_each(|one| self.let_go(one));
        found
    }

    /// How much is stopped under this tag now.
    pub fn stopped(&self, tag: &str) -> usize {
        self.state.lock().stopped.iter().filter(|one| one.tag == tag).count()
    }

    /// How often rules have struck operations.
    pub fn struck(&self) -> u64 {
        self.state.lock().struck
    }

    /// The state that rules for points look at; 1 in the beginning.
    pub fn state(&self) -> u32 {
        self.state.lock().number.wrapping_add(1)
    }

    /// From here on `observer` is told of what is stopped and released, on the thread where that happens.
    pub fn observe(&self, observer: impl Fn(Notice<'_>) + Send + Sync + 'static) {
        let former = self.observer.lock().replace(Arc::new(Box::new(observer)));
        drop(former);
    }

    fn tell(&self, notice: Notice<'_>) {
        let observer = self.observer.lock().clone();
        if let Some(observer) = observer {
            observer(notice);
        }
    }

    fn let_go(&self, one: Stopped) {
        self.tell(Notice::Released(&one.tag));
        match one.who {
            Who::Op(place) => place.release(),
            Who::Passer(passer) => passer.release(),
        }
    }

    /// What an operation that is about to be sent meets. `passed` is the number of the last rule that kept it.
    pub(crate) fn judge(&self, place: &Place, seen: &Seen, passed: &mut u64) -> Verdict {
        let effect = self.state.lock().strike(seen, passed);
        match effect {
            None => Verdict::Pass,
            Some(Effect::Error(errno)) => Verdict::Fail(errno.abs()),
            Some(Effect::Short(bytes)) => Verdict::Short(bytes),
            Some(Effect::Delay(by)) => self.delay(place, by),
            Some(Effect::Hold(tag)) => {
                let who = Who::Op(place.clone());
                self.state.lock().stopped.push(Stopped { tag: tag.clone(), who });
                self.tell(Notice::Stopped(&tag));
                Verdict::Kept
            }
        }
    }
    fn delay(&self, place: &Place, by: Duration) -> Verdict {
        let mut timer = self.timer.lock();
        if timer.is_none() {
            match Timer::start() {
                Ok(started) => *timer = Some(started),
                Err(error) => {
                    tracing::warn!(%error, "there is no thread for delays: nothing is delayed");
                    return Verdict::Pass;
                }
            }
        }
        let timer = timer.as_ref().expect("started above");
        timer.add(place.clone(), by);
        Verdict::Delayed
    }

    /// An operation that was kept has ended in another way.
    pub(crate) fn forget(&self, place: &Place) {
        let is_its = |one: &mut Stopped| matches!(&one.who, Who::Op(kept) if kept == place);
        let taken: Vec<_> = self.state.lock().stopped.extract_if(.., |one| is_its(one)).collect();
        drop(taken);
    }

    /// What something meets that is asked of no storage, for those who put faults elsewhere: whoever asks has to do what
    /// it says. Nothing is kept or delayed for it.
    pub fn strike(&self, seen: &Seen) -> Option<Effect> {
        self.state.lock().strike(seen, &mut 0)
    }

    /// Somebody passes a point, and waits there if a rule says so. Dropping the future ends the wait.
    pub async fn pass(&self, event: Event) {
        let (passer, tags) = self.state.lock().pass(event);
        let Some(passer) = passer else { return };
        for tag in &tags {
            self.tell(Notice::Stopped(tag));
        }
        let _on_the_list = OnTheList { faults: self, passer: &passer };
        passer.wait().await;
    }
}

/// Takes a passer that is given up off the list.
struct OnTheList<'a> {
    faults: &'a Faults,
    passer: &'a Suspended,
}

impl Drop for OnTheList<'_> {
    fn drop(&mut self) {
        let mut state = self.faults.state.lock();
        let is_its = |one: &mut Stopped| matches!(&one.who, Who::Passer(one) if one == self.passer);
        let taken: Vec<_> = state.stopped.extract_if(.., |one| is_its(one)).collect();
        drop(state);
        drop(taken);
    }
}

impl State {
    fn strike(&mut self, seen: &Seen, passed: &mut u64) -> Option<Effect> {
        let State { rules, armed, .. } = self;
        let open = rules
            .iter_mut()
            .filter(|(id, rule)| id.0 > *passed && (rule.at.is_none() || armed.contains(id)));
        let mut open = open.filter_map(|(id, rule)| Some((*id, rule.strike(seen)?)));
        let (id, effect) = open.next()?;
        drop(open);
        *passed = id.0;
        self.struck += 1;
        self.rules.retain(|(_, rule)| !rule.is_spent());
        Some(effect)
    }

    /// Arms rules, sets the state, and gives a passer that was stopped, with its tags.
    fn pass(&mut self, event: Event) -> (Option<Suspended>, Vec<String>) {
        let number = self.number.wrapping_add(1);
        let mut next = None;
        let (mut tags, mut armed) = (Vec::new(), Vec::new());
        // The newest first, as it is told.
        for (id, rule) in self.rules.iter_mut().rev() {
            match &rule.action {
                Action::Fixed(_) | Action::Chosen(_) => {
                    if rule.arms_at(event, number) {
                        armed.push(*id);
                    }
                }
                Action::SetState(new) => {
                    let new = *new;
                    if rule.is_passed(event, number) {
                        next = Some(new);
                    }
                }
                Action::Suspend(tag) => {
                    let tag = tag.clone();
                    if rule.is_passed(event, number) {
                        tags.push(tag);
                    }
                }
            }
        }
        if !armed.is_empty() {
            self.armed = armed;
        }
        if let Some(next) = next {
            self.number = next.wrapping_sub(1);
        }
        self.rules.retain(|(_, rule)| !rule.is_spent());
        let passer = (!tags.is_empty()).then(|| Suspended::new(tags.len()));
        let stopped = passer.iter().flat_map(|passer| {
            tags.iter().map(|tag| Stopped { tag: tag.clone(), who: Who::Passer(passer.clone()) })
        });
        self.stopped.extend(stopped);
        (passer, tags)
    }
}
