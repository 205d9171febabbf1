//! What is made to go wrong.

use blkring_engine::sim::{Fault, Matcher, OpKind, Rng, Rule, SimDisk};

use crate::powercut::Errors;
use crate::powercut::make::IMAGE;
use crate::powercut::model::SECTOR;

use super::config::Config;
use super::side::RAW;

/// Ops that match are spared up to so many times before a fault strikes.
const SPARED: u64 = 200;

pub(super) fn inject(config: &Config, disk: &SimDisk, rng: &mut Rng) {
    for _ in 0..config.interruptions {
        interrupt(config, disk, rng);
    }
    if config.image.errors == Errors::None {
        return;
    }
    for _ in 0..1 + rng.below(8) {
        fail(config, disk, rng);
    }
    if config.image.errors == Errors::Sync {
        let what = Matcher::kind(OpKind::Sync).file(file(rng));
        disk.inject(Rule::new(what, Fault::Error(libc::EIO)).after(rng.below(20)));
    }
}

fn file(rng: &mut Rng) -> &'static str {
    if rng.one_in(4) { RAW } else { IMAGE }
}

/// A call that is cut short or did not run, and is made again.
fn interrupt(config: &Config, disk: &SimDisk, rng: &mut Rng) {
    let fault = match rng.below(4) {
        0 => Fault::Error(libc::EINTR),
        1 => Fault::Error(libc::EAGAIN),
        _ => short(config, rng),
    };
    let what = match fault {
        Fault::Short(_) => Matcher::writes().or(OpKind::Read),
        _ => Matcher::any(),
    };
    disk.inject(Rule::new(what, fault).after(rng.below(SPARED)));
}

/// No kernel moves nothing at all.
fn short(config: &Config, rng: &mut Rng) -> Fault {
    Fault::Short(config.image.alignment.max(SECTOR) * (1 + rng.below(4)))
}

fn fail(config: &Config, disk: &SimDisk, rng: &mut Rng) {
    let what = match rng.below(8) {
        0..=2 => Matcher::writes(),
        3 => Matcher::kind(OpKind::Grow).or(OpKind::ZeroRange).or(OpKind::PunchHole),
        4 => Matcher::kind(OpKind::Read),
        5 => Matcher::any(),
        // The refcount table, the first refcount block, the L1 table, and what follows.
        _ => {
            let start = (1 + rng.below(6)) * config.image.cluster;
            Matcher::writes().within(start..start + config.image.cluster)
        }
    };
    let errno = if rng.one_in(2) { libc::EIO } else { libc::ENOSPC };
    let fault = match rng.below(3) {
        0 => Fault::Partial(rng.below(8) * SECTOR, errno),
        1 => short(config, rng),
        _ => Fault::Error(errno),
    };
    let spared = if rng.one_in(2) { rng.below(SPARED) } else { rng.below(8) };
    let rule = Rule::new(what.file(file(rng)), fault).after(spared).times(1 + rng.below(2));
    disk.inject(rule);
}
