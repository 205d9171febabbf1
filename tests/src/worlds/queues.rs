//! Queues that pause, come and go.

use std::sync::Arc;

use blkring_engine::sim::World;
use blkring_engine::{Disk, QueueOptions, RawDisk};
use blkring_qcow2::Image;

use super::config::Config;
use super::play::{Orphan, Play};
use super::side::Side;

/// Queues at most.
const MOST: usize = 4;

/// Steps that a pause lasts at most.
const LONGEST: u64 = 400;

/// A queue, and the disks as it reaches them.
pub(super) struct Member {
    /// Its number in the world.
    pub(super) number: usize,
    pub(super) image: Disk,
    pub(super) raw: Disk,
    pub(super) state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Driven,
    /// It makes no turn before this step.
    Paused(u64),
    /// It accepts nothing more, and goes when all is answered.
    Retiring,
}

impl Member {
    pub(super) fn options(config: &Config) -> QueueOptions {
        QueueOptions::with_requests(config.image.requests.max(4)).depth(config.image.queue_depth)
    }

    pub(super) fn attach(
        world: &mut World,
        number: usize,
        (image, raw): (&Arc<Image>, &Arc<RawDisk>),
    ) -> Self {
        let queue = world.queue(number);
        let image = queue.attach(image).expect("a queue without a ring");
        let raw = queue.attach(raw).expect("a queue without a ring");
        Member { number, image, raw, state: State::Driven }
    }

    pub(super) fn disk(&self, side: Side) -> &Disk {
        match side {
            Side::Image => &self.image,
            Side::Raw => &self.raw,
        }
    }
}

impl Play<'_> {
    pub(super) fn meddle_with_queues(&mut self, now: u64) {
        self.resume(now);
        self.remove_retired();
        if self.happens(self.config.pause_every) {
            let place = self.fate.index(self.members.len());
            let until = now + 10 + self.fate.below(LONGEST);
            let member = &mut self.members[place];
            if member.state == State::Driven {
                member.state = State::Paused(until);
                self.world.abandon(member.number);
            }
        }
        if self.happens(self.config.change_every) {
            self.change();
        }
    }

    /// One comes or one goes. The last one stays.
    fn change(&mut self) {
        let staying = self.members.iter().filter(|one| one.state != State::Retiring).count();
        if self.members.len() < MOST && (staying < 2 || self.fate.one_in(2)) {
            let number = self.world.add_queue(Member::options(self.config));
            let member = Member::attach(&mut self.world, number, (&self.image, &self.raw));
            self.members.push(member);
            self.recorder.trace.came += 1;
            self.tell(format!("queue {number} comes"));
        } else if staying > 1 {
            let place = self.fate.index(self.members.len());
            if self.fate.one_in(2) { self.retire(place) } else { self.drop_queue(place) }
        }
    }

    fn retire(&mut self, place: usize) {
        let member = &mut self.members[place];
        if member.state != State::Driven {
            return;
        }
        member.state = State::Retiring;
        let number = member.number;
        self.world.queue(number).retire();
        self.outstanding
            .values_mut()
            .filter(|one| one.queue == number)
            .for_each(|one| one.withdrawn = true);
        self.tell(format!("queue {number} retires"));
    }

    pub(super) fn remove_retired(&mut self) {
        let ended = |one: &Member, play: &Self| {
            one.state == State::Retiring
                && !play.outstanding.values().any(|request| request.queue == one.number)
        };
        while let Some(place) = self.members.iter().position(|one| ended(one, self)) {
            self.take_out(place);
        }
    }

    /// The queue is dropped as it is, with what its requests have in flight.
    fn drop_queue(&mut self, place: usize) {
        // What it has answered is answered.
        let number = self.members[place].number;
        self.tell(format!("queue {number} is dropped"));
        self.take_out(place);
        let lost: Vec<u64> = self
            .outstanding
            .iter()
            .filter(|(_, one)| one.queue == number)
            .map(|(request, _)| *request)
            .collect();
        for request in lost {
            let one = self.outstanding.remove(&request).expect("listed above");
            if let Some((sectors, _)) = one.effect.changes(request) {
                let (side, submitted) = (one.side, one.submitted);
                self.orphans.push(Orphan { side, sectors, submitted });
            }
        }
    }

    fn take_out(&mut self, place: usize) {
        let member = self.members.remove(place);
        self.recorder.trace.gone += 1;
        let number = member.number;
        drop(member);
        drop(self.world.remove(number));
        self.recorder.note(&("gone", number));
    }

    fn resume(&mut self, now: u64) -> bool {
        let mut any = false;
        for member in &mut self.members {
            if matches!(member.state, State::Paused(until) if until <= now) {
                member.state = State::Driven;
                self.world.resume(member.number);
                any = true;
            }
        }
        any
    }

    pub(super) fn resume_all(&mut self) -> bool {
        self.resume(u64::MAX)
    }
}
