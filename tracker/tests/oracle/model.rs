//! The rules of the table, written down as plainly as possible: one list, everything recomputed by definition.

use blkring_tracker::Span;
use blkring_tracker::table::{
    Class, MAX_WIDENINGS, Overtaken, Patience, Phase, Request, Statistics,
};

#[derive(Clone, Debug)]
pub struct Member {
    pub ticket: u64,
    pub span: Span,
    pub class: Class,
    pub phase: Phase,
    /// What it may touch, or could before it parked.
    pub granted: Option<(Span, Class)>,
    pub overtaken: Overtaken,
    pub widenings: u32,
    /// Requests it has seen end in the present wait.
    pub seen: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub members: Vec<Member>,
    next_ticket: u64,
    counts: Statistics,
}

/// What a call did: the ticket that is busy has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    Runs,
    Waits,
    Busy,
}

fn conflict(a: (Span, Class), b: (Span, Class)) -> bool {
    let share_a_byte = a.0.start.max(b.0.start) < a.0.end.min(b.0.end);
    share_a_byte && (a.1 == Class::Serialising || b.1 == Class::Serialising)
}

impl Member {
    fn asks(&self) -> (Span, Class) {
        (self.span, self.class)
    }

    fn runs(&self) -> bool {
        self.phase == Phase::Running
    }

    pub fn can_widen(&self) -> bool {
        self.runs() && self.widenings < MAX_WIDENINGS
    }

    /// Whether `request` of the table is this one, in every respect that the rules fix. What a parked one was
    /// overtaken by is fixed once it runs.
    pub fn is(&self, request: &Request, blockers: usize) -> bool {
        let overtaken = !self.runs() || request.overtaken == self.overtaken;
        self.ticket == request.id.ticket()
            && self.span == request.span
            && self.class == request.class
            && self.phase == request.phase
            && self.widenings == request.widenings
            && blockers == request.blockers as usize
            && overtaken
    }
}

impl Model {
    /// How many `ticket`, not running, waits for.
    pub fn blockers(&self, member: &Member) -> usize {
        if member.runs() { 0 } else { self.in_the_way(member.ticket, member.asks()) }
    }

    fn in_the_way(&self, ticket: u64, asks: (Span, Class)) -> usize {
        self.members
            .iter()
            .filter(|other| other.ticket != ticket && conflict(other.asks(), asks))
            .filter(|other| other.runs() || other.ticket < ticket)
            .count()
    }

    pub fn begin(&mut self, span: Span, class: Class, patience: Patience) -> Outcome {
        let blocked = self.in_the_way(self.next_ticket, (span, class)) > 0;
        if blocked && patience == Patience::NoWait {
            self.counts.busy += 1;
            return Outcome::Busy;
        }
        self.members.push(Member {
            ticket: self.next_ticket,
            span,
            class,
            phase: Phase::Waiting,
            granted: None,
            overtaken: Overtaken::No,
            widenings: 0,
            seen: 0,
        });
        self.next_ticket += 1;
        if blocked {
            self.counts.waited += 1;
            self.counts.waits += 1;
            return Outcome::Waits;
        }
        self.counts.at_once += 1;
        self.admit(self.members.len() - 1);
        Outcome::Runs
    }

    /// Returns what became of the widener and who else was admitted.
    pub fn widen(&mut self, at: usize, asked: Span, patience: Patience) -> (Outcome, Vec<u64>) {
        let member = &self.members[at];
        let has = member.span;
        let wanted = match (has.is_empty(), asked.is_empty()) {
            (_, true) => has,
            (true, false) => asked,
            (false, false) => Span::new(has.start.min(asked.start), has.end.max(asked.end)),
        };
        if wanted == has && member.class == Class::Serialising {
            return (Outcome::Runs, Vec::new());
        }
        let wants = (wanted, Class::Serialising);
        let blocked = self.in_the_way(member.ticket, wants) > 0;
        if blocked && patience == Patience::NoWait {
            self.counts.busy += 1;
            return (Outcome::Busy, Vec::new());
        }
        let member = &mut self.members[at];
        (member.span, member.class) = wants;
        member.widenings += 1;
        member.overtaken = Overtaken::No;
        if !blocked {
            self.admit(at);
            return (Outcome::Runs, Vec::new());
        }
        member.phase = Phase::Parked;
        member.seen = 0;
        self.counts.waits += 1;
        (Outcome::Waits, self.settle())
    }

    /// Returns who was admitted.
    pub fn end(&mut self, at: usize) -> Vec<u64> {
        let gone = self.members.remove(at);
        if gone.runs() {
            self.counts.ended += 1;
            for member in self.members.iter_mut().filter(|member| !member.runs()) {
                member.seen += 1;
            }
        } else {
            self.counts.cancelled += 1;
            self.counts.longest_wait = self.counts.longest_wait.max(gone.seen);
        }
        self.settle()
    }

    /// Admits, lowest ticket first, whoever waits for nobody, until there is none.
    fn settle(&mut self) -> Vec<u64> {
        let mut admitted = Vec::new();
        while let Some(at) = (0..self.members.len())
            .find(|&at| !self.members[at].runs() && self.blockers(&self.members[at]) == 0)
        {
            let seen = self.members[at].seen;
            self.counts.longest_wait = self.counts.longest_wait.max(seen);
            self.admit(at);
            admitted.push(self.members[at].ticket);
        }
        admitted
    }

    /// Lets a member run on what it asks for, and tells the parked ones whose old grant that touches.
    fn admit(&mut self, at: usize) {
        let asks = self.members[at].asks();
        self.members[at].phase = Phase::Running;
        self.members[at].granted = Some(asks);
        for (i, other) in self.members.iter_mut().enumerate() {
            let held = other.granted.filter(|_| i != at);
            if held.is_some_and(|held| conflict(held, asks)) {
                assert!(!other.runs(), "two in conflict would run");
                other.overtaken = Overtaken::Yes;
            }
        }
    }

    pub fn statistics(&self) -> Statistics {
        let phase = |phase| self.members.iter().filter(|m| m.phase == phase).count() as u64;
        Statistics {
            running: phase(Phase::Running),
            waiting: phase(Phase::Waiting),
            parked: phase(Phase::Parked),
            serialising: self.members.iter().filter(|m| m.class == Class::Serialising).count()
                as u64,
            ..self.counts
        }
    }
}
