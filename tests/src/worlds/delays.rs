//! Ops that are late.

use blkring_engine::sim::{Matcher, OpKind, Point, Rng, SimDisk};

use crate::powercut::make::IMAGE;

/// Steps that a delay lasts at most.
const LONGEST: u64 = 500;

/// What is held now, by the name of the hold and the step at which it ends.
#[derive(Default)]
pub(super) struct Delays {
    begun: u64,
    open: Vec<(String, u64)>,
}

impl Delays {
    /// Some of the ops that are pending become late, and now and then some that come.
    pub(super) fn begin(&mut self, disk: &SimDisk, rng: &mut Rng, now: u64) {
        self.begun += 1;
        let name = format!("delay {}", self.begun);
        let what = match rng.below(8) {
            0 | 1 => Matcher::kind(OpKind::Read),
            2..=4 => Matcher::writes(),
            5 => Matcher::kind(OpKind::Sync),
            6 => Matcher::kind(OpKind::ZeroRange).or(OpKind::Grow).or(OpKind::PunchHole),
            _ => Matcher::any(),
        };
        let what = if rng.one_in(2) { what.file(IMAGE) } else { what };
        let what = if rng.one_in(2) {
            let start = rng.below(64) * 512;
            what.within(start..start + 512 * (1 + rng.below(8)))
        } else {
            what
        };
        let point = match rng.below(4) {
            0 => Point::Begin,
            1 => Point::Complete,
            _ => Point::Land,
        };
        disk.hold(&name, what, point);
        if rng.one_in(2) {
            disk.hold_no_more(&name);
        }
        self.open.push((name, now + 10 + rng.below(LONGEST)));
    }

    /// Ends those whose time has come.
    pub(super) fn expire(&mut self, disk: &SimDisk, now: u64) {
        self.open.retain(|(name, end)| {
            let lasts = *end > now;
            if !lasts {
                disk.release(name);
            }
            lasts
        });
    }

    /// Ends all; says whether there were any.
    pub(super) fn end(&mut self, disk: &SimDisk) -> bool {
        self.open.drain(..).map(|(name, _)| disk.release(&name)).count() > 0
    }

    pub(super) fn count(&self) -> u64 {
        self.begun
    }
}
