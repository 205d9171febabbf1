//! What the guests ask for, and what they are told.

use std::cell::RefCell;
use std::rc::Rc;

use blkring_engine::sim::Rng;
use blkring_engine::{Completion, Flags, IoMem, Receipt, Result as IoResult, Ticket};

use crate::powercut::Growth;
use crate::powercut::model::{Answer, Time};
use crate::powercut::script::{self, Effect, Guest, Step};

use super::config::{Config, Mix};
use super::play::Play;
use super::queues::State;
use super::side::Side;

/// Steps that somebody holds a receipt before it is dropped, at most.
const LONGEST: u64 = 300;

/// How a guest hears of the end of a request.
pub(super) enum Way {
    /// It is listed.
    Listed(Ticket),
    /// A future of the queue waits for it.
    Awaited(Rc<RefCell<Option<IoResult<()>>>>),
    /// The receipt lies about until this step.
    Kept(Receipt, u64),
    /// Not at all.
    Dropped,
}

/// A request that is not answered yet.
pub(super) struct Outstanding {
    pub(super) queue: usize,
    pub(super) side: Side,
    pub(super) submitted: Time,
    pub(super) effect: Effect,
    mem: Option<IoMem>,
    fua: bool,
    pub(super) text: String,
    way: Way,
    /// It was to be given up.
    pub(super) withdrawn: bool,
}

impl Play<'_> {
    pub(super) fn submit_some(&mut self) {
        for place in 0..self.members.len() {
            let member = &self.members[place];
            let busy = self.outstanding.values().filter(|one| one.queue == member.number).count();
            let open = member.state != State::Retiring && busy < self.config.image.requests;
            if open && self.next < self.end && self.guest.one_in(8) {
                self.submit(place);
            }
        }
    }

    fn submit(&mut self, place: usize) {
        let number = self.next;
        self.next += 1;
        let every = self.config.raw_every;
        let side = if every > 0 && self.guest.one_in(every) { Side::Raw } else { Side::Image };
        let step = draw(&mut self.guest, self.config, side, number);
        let model = self.seen.of(side);
        let submitted = match step.effect.changes(number) {
            Some((sectors, token)) => model.submit(sectors, token),
            None => model.tick(),
        };
        let queue = self.members[place].number;
        let text = format!("{number} on queue {queue}, {side:?}: {}", step.text);
        self.tell(format!("{text} at {submitted}"));
        let fua = step.request.flags.contains(Flags::FUA);
        let handle = self.members[place].disk(side).clone();
        let has_room = "the queue has room for what the guest has in flight";
        let every = self.config.drop_every;
        let way = if every > 0 && self.guest.one_in(every) {
            let receipt = handle.submit(step.request).expect(has_room);
            let until = self.world.steps() + self.guest.below(LONGEST);
            Way::Kept(receipt, until)
        } else if self.guest.one_in(3) {
            let receipt = handle.submit(step.request).expect(has_room);
            Way::Awaited(self.world.start(queue, receipt))
        } else {
            Way::Listed(handle.queue(step.request, number).expect(has_room))
        };
        self.recorder.trace.requests += 1;
        let (effect, mem) = (step.effect, step.mem);
        let withdrawn = false;
        self.outstanding.insert(
            number,
            Outstanding { queue, side, submitted, effect, mem, fua, text, way, withdrawn },
        );
    }

    /// Somebody gives a request up.
    pub(super) fn withdraw_one(&mut self) {
        let place = self.fate.index(self.outstanding.len());
        let Some((number, one)) = self.outstanding.iter_mut().nth(place) else { return };
        let Some(member) = self.members.iter().find(|member| member.number == one.queue) else {
            return;
        };
        match &one.way {
            Way::Listed(ticket) => member.disk(one.side).withdraw(*ticket),
            Way::Kept(receipt, _) => receipt.withdraw(),
            Way::Awaited(_) | Way::Dropped => return,
        }
        one.withdrawn = true;
        let text = format!("{number} is withdrawn");
        self.tell(text);
    }

    /// Drops the receipts whose time has come; says whether there were any.
    pub(super) fn forget_receipts(&mut self, now: u64) -> bool {
        let mut any = false;
        for one in self.outstanding.values_mut() {
            if matches!(one.way, Way::Kept(_, until) if until <= now) {
                one.way = Way::Dropped;
                any = true;
            }
        }
        any
    }

    pub(super) fn take_answers(&mut self) -> Result<(), String> {
        let mut answers: Vec<(u64, Option<IoResult<()>>)> = Vec::new();
        for place in 0..self.members.len() {
            let queue = self.world.queue(self.members[place].number);
            answers.extend(
                queue
                    .completions()
                    .map(|Completion { user_data, result, .. }| (user_data, Some(result))),
            );
        }
        for (&number, one) in &self.outstanding {
            match &one.way {
                Way::Awaited(result) => {
                    let result = result.borrow().clone();
                    answers.extend(result.map(|result| (number, Some(result))));
                }
                Way::Dropped if self.world.queue(one.queue).unfinished() == 0 => {
                    answers.push((number, None));
                }
                Way::Dropped | Way::Listed(_) | Way::Kept(..) => (),
            }
        }
        answers.into_iter().try_for_each(|(number, result)| self.take_answer(number, result))
    }

    /// A request has ended. Without a result nobody was told how.
    fn take_answer(&mut self, number: u64, result: Option<IoResult<()>>) -> Result<(), String> {
        let one = self.outstanding.remove(&number).expect("a request is answered once");
        let code = result.as_ref().map(|result| result.as_ref().err().map_or(0, |e| e.errno));
        self.tell(format!("{number} ends: {code:?}"));
        self.recorder.note(&(number, code));
        let certain = !one.withdrawn && !self.config.may_fail();
        let done = if one.fua { Answer::Durable } else { Answer::Written };
        let answer = match result {
            Some(Ok(())) => done,
            None if certain => done,
            None => Answer::Failed,
            Some(Err(error)) if error.errno == libc::ECANCELED => {
                if !one.withdrawn {
                    return Err(format!("'{}' is given up, and nobody asked for it", one.text));
                }
                self.recorder.trace.withdrawn += 1;
                if let Some((sectors, _)) = one.effect.changes(number) {
                    self.seen.of(one.side).undo(sectors, one.submitted);
                }
                return Ok(());
            }
            Some(Err(error)) if !self.config.may_fail() => {
                return Err(format!("'{}' fails: {error}", one.text));
            }
            Some(Err(_)) => {
                self.recorder.trace.failed += 1;
                Answer::Failed
            }
        };
        self.judge(number, one, answer)
    }

    fn judge(&mut self, number: u64, one: Outstanding, answer: Answer) -> Result<(), String> {
        let (side, ok) = (one.side, answer != Answer::Failed);
        let model = self.seen.of(side);
        if let Some((sectors, _)) = one.effect.changes(number) {
            // What a raw disk holds after a discard is the host's affair.
            let may_be = side == Side::Raw && one.text.contains("discard");
            let answer = if may_be { Answer::Failed } else { answer };
            model.answer(sectors, one.submitted, answer);
        }
        match (one.effect, one.mem) {
            (Effect::Flush, _) if ok => model.flushed(one.submitted),
            (Effect::Read(sectors), Some(mem)) if ok && !matches!(one.way, Way::Dropped) => {
                let bytes = mem.to_vec();
                self.seen.judge((side, sectors), &bytes, one.submitted)?;
            }
            _ => (),
        }
        Ok(())
    }
}

/// Draws the request with this number.
fn draw(rng: &mut Rng, config: &Config, side: Side, number: u64) -> Step {
    let sectors = match side {
        Side::Image => config.image.sectors(),
        Side::Raw => config.raw_sectors,
    };
    let guest = Guest { config: &config.image, sectors };
    debug_assert_eq!(config.image.growth, Growth::None);
    let Mix { writes, durable, zeroes, discards, reads, .. } = config.mix;
    let mut choice = rng.below(config.mix.total());
    let mut is = |weight: u64| {
        let taken = choice < weight;
        choice = choice.wrapping_sub(weight);
        taken
    };
    if is(writes) {
        script::write(rng, guest, number, Flags::empty())
    } else if is(durable) {
        script::write(rng, guest, number, Flags::FUA)
    } else if is(zeroes) {
        let flags = [Flags::empty(), Flags::MAY_UNMAP, Flags::MAY_UNMAP | Flags::FUA];
        let flags = flags[rng.index(flags.len())];
        script::zero(rng, guest, flags)
    } else if is(discards) {
        discard(rng, guest, side)
    } else if is(reads) {
        script::read(rng, guest)
    } else {
        script::flush()
    }
}

/// What a raw disk discards it discards to the byte.
fn discard(rng: &mut Rng, guest: Guest<'_>, side: Side) -> Step {
    match side {
        Side::Image => script::discard(rng, guest),
        Side::Raw => {
            let zero = script::zero(rng, guest, Flags::empty());
            let (offset, len) = (zero.request.offset, zero.request.len());
            let text = zero.text.replace("zero", "discard");
            Step { request: blkring_engine::Request::discard(offset, len), text, ..zero }
        }
    }
}
