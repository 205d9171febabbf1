//! The ladders of calls that zero a range without writing zeros, and that give a range back: which is tried, which error
//! number leads to the next, and what is never tried again.
//!
//! | an error number | means | and so |
//! |---|---|---|
//! | ENODEV, ENOSYS, EOPNOTSUPP, ENOTTY | there is no such call here | the next one, and never this one again |
//! | EINVAL; EBUSY of a first try to unmap | not this range, or not now | the next one, this time |
//! | any other | it failed | the answer of the request |

use blkring_tracker::Guard;
use blkring_tracker::sync::atomic::{AtomicU8, Ordering};

use super::{Discarding, Medium, Storage};
use crate::error::is_unsupported;
use crate::lane::Lane;
use crate::op::{Allocate, Op, Verb};
use crate::request::Flags;
use crate::sys::device::Change;

/// The calls that turned out not to be there. Nothing is ordered by it: at worst one is asked for once more.
#[derive(Default)]
pub(super) struct Modes(AtomicU8);

/// A call that may not be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    Punch,
    /// The same where it does not matter what is read afterwards. It is there if that is.
    DiscardHole,
    ZeroRange,
    /// Plain fallocate.
    Allocate,
    /// BLKZEROOUT.
    ZeroOut,
    /// The discard command of a ring.
    Discard,
    /// BLKDISCARD.
    BlkDiscard,
}

impl Call {
    fn bit(self) -> u8 {
        match self {
            Call::Punch | Call::DiscardHole => 1,
            Call::ZeroRange => 2,
            Call::Allocate => 4,
            Call::ZeroOut => 8,
            Call::Discard => 16,
            Call::BlkDiscard => 32,
        }
    }

    fn verb(self) -> Verb {
        match self {
            Call::Punch => Verb::Allocate(Allocate::PunchHole),
            Call::DiscardHole => Verb::Allocate(Allocate::Discard),
            Call::ZeroRange => Verb::Allocate(Allocate::ZeroRange),
            Call::Allocate => Verb::Allocate(Allocate::Grow),
            Call::ZeroOut => Verb::Call(Change::ZeroOut),
            Call::Discard => Verb::Discard,
            Call::BlkDiscard => Verb::Call(Change::Discard),
        }
    }
}

impl Modes {
    fn has(&self, call: Call) -> bool {
        self.0.load(Ordering::Relaxed) & call.bit() == 0
    }

    fn give_up(&self, call: Call) {
        self.0.fetch_or(call.bit(), Ordering::Relaxed);
    }

    /// Those of a kernel whose rings have no command for a range of a device.
    #[cfg(feature = "variants")]
    pub(super) fn calls_only() -> Self {
        let modes = Modes::default();
        [Call::Punch, Call::ZeroRange, Call::Discard].iter().for_each(|&call| modes.give_up(call));
        modes
    }

    /// Whether there may be a call for a zero-write without fallback.
    fn may_zero_fast(&self, medium: Medium) -> bool {
        match medium {
            Medium::File => {
                self.has(Call::ZeroRange) || self.has(Call::Punch) && self.has(Call::Allocate)
            }
            Medium::BlockDevice => self.has(Call::Punch),
        }
    }

    /// Whether a discard may do anything.
    pub(super) fn may_discard(&self, medium: Medium) -> bool {
        match medium {
            Medium::File => self.has(Call::Punch),
            Medium::BlockDevice => self.has(Call::Discard) || self.has(Call::BlkDiscard),
        }
    }
}

/// What became of a call, if it is the end of the ladder.
type Answer = Option<i32>;

/// Offset and length.
type Range = (u64, u64);

const NOT_THERE: i32 = -libc::EOPNOTSUPP;

impl Storage {
    /// Whether a zero-write without fallback may succeed.
    pub(super) fn may_zero_fast(&self) -> bool {
        !self.is_barred() && self.modes.may_zero_fast(self.medium)
    }

    /// Whether no zero-write without fallback is possible: on a device it gives space back, which is not to be.
    pub(super) fn is_barred(&self) -> bool {
        self.discarding == Discarding::Ignored && self.medium == Medium::BlockDevice
    }

    /// The calls that zero without writing, in turn. EOPNOTSUPP if there is none.
    pub(super) async fn zero_fast(
        &self,
        lane: &Lane,
        range: Range,
        flags: Flags,
        guard: Guard,
    ) -> (i32, Guard) {
        match self.medium {
            Medium::File => self.zero_file(lane, range, flags, guard).await,
            Medium::BlockDevice => self.zero_device(lane, range, flags, guard).await,
        }
    }

    async fn zero_file(
        &self,
        lane: &Lane,
        range: Range,
        flags: Flags,
        guard: Guard,
    ) -> (i32, Guard) {
        let (mut answer, mut guard) = (None, guard);
        let inside = range.0 + range.1 <= self.size();
        if flags.contains(Flags::MAY_UNMAP) && inside {
            let passing = [libc::EINVAL, libc::EBUSY];
            (answer, guard) = self.call(lane, Call::Punch, range, &passing, guard).await;
        }
        if answer.is_none() {
            (answer, guard) = self.call(lane, Call::ZeroRange, range, &[libc::EINVAL], guard).await;
        }
        if answer.is_none() && self.modes.has(Call::Allocate) {
            (answer, guard) = self.call(lane, Call::Punch, range, &[libc::EINVAL], guard).await;
            // A hole reads as zeros; now space is put aside for it again, and the file grows if it is to.
            if answer.is_some_and(|result| result >= 0) {
                (answer, guard) = self.call(lane, Call::Allocate, range, &[], guard).await;
                return (answer.unwrap_or(NOT_THERE), guard);
            }
        }
        if answer.is_none() && range.0 >= self.size() {
            (answer, guard) = self.call(lane, Call::Allocate, range, &[], guard).await;
        }
        (answer.unwrap_or(NOT_THERE), guard)
    }

    /// On a device PUNCH_HOLE never writes zeros, and the other calls may: the kernel decides. So it is what there is
    /// without fallback, although it may give the space back.
    async fn zero_device(
        &self,
        lane: &Lane,
        range: Range,
        flags: Flags,
        guard: Guard,
    ) -> (i32, Guard) {
        let (mut answer, mut guard) = (None, guard);
        if flags.intersects(Flags::MAY_UNMAP | Flags::NO_FALLBACK) {
            let passing = [libc::EINVAL, libc::EBUSY];
            (answer, guard) = self.call(lane, Call::Punch, range, &passing, guard).await;
        }
        if flags.contains(Flags::NO_FALLBACK) {
            return (answer.unwrap_or(NOT_THERE), guard);
        }
        for call in [Call::ZeroRange, Call::ZeroOut] {
            if answer.is_none() {
                (answer, guard) = self.call(lane, call, range, &[libc::EINVAL], guard).await;
            }
        }
        (answer.unwrap_or(NOT_THERE), guard)
    }

    /// The calls that give a range back, in turn. EOPNOTSUPP if there is none.
    pub(super) async fn give_back(&self, lane: &Lane, range: Range, guard: Guard) -> (i32, Guard) {
        let calls: &[Call] = match self.medium {
            Medium::File => &[Call::DiscardHole],
            Medium::BlockDevice => &[Call::Discard, Call::BlkDiscard],
        };
        let (mut answer, mut guard) = (None, guard);
        for &call in calls {
            if answer.is_none() {
                (answer, guard) = self.call(lane, call, range, &[], guard).await;
            }
        }
        (answer.unwrap_or(NOT_THERE), guard)
    }

    /// Tries one call. No answer if it is not there, or fails with one of the error numbers `passing`.
    async fn call(
        &self,
        lane: &Lane,
        call: Call,
        (offset, len): Range,
        passing: &[i32],
        guard: Guard,
    ) -> (Answer, Guard) {
        if !self.modes.has(call) {
            return (None, guard);
        }
        let op = || Op::plain(&self.device, call.verb(), offset, len);
        let (result, guard) = self.issue(lane, guard, op).await;
        if is_unsupported(-result) {
            tracing::debug!(path = %self.path(), ?call, errno = -result, "not there: not asked for again");
            self.modes.give_up(call);
            return (None, guard);
        }
        (Some(result).filter(|result| !passing.contains(&-result)), guard)
    }
}
