//! Ops that the faults of their device are asked about, and those that are kept by them.

use std::fmt;
use std::sync::{Arc, Weak};

use super::{Entry, Lane, Shared};
use crate::faults::{Ops, Verdict};
use crate::variant::Variants;

/// One op of a lane, for those that have kept it. It may be gone: then nothing happens to it.
#[derive(Clone)]
pub(crate) struct Place {
    lane: Weak<Shared>,
    key: usize,
    serial: u64,
}

/// How far the faults of its device are with an op.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Judged {
    /// The rules up to this one have had their say.
    Until(u64),
    /// They are being asked.
    Now,
    /// It was let go before the lane knew that it is kept.
    LetGo,
    /// It is kept until it is let go, and behind this rule then.
    Kept(u64),
    /// The same, and the time comes by itself.
    Delayed(u64),
    /// It may be sent.
    Done,
}

/// What becomes of delayed ops when a lane is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Delayed {
    /// Their time comes: somebody waits for it.
    Wait,
    /// They end with those that are kept.
    End,
}

impl Lane {
    /// Asks the faults of its device what becomes of an unsent op. Whoever took it off the list has it to itself.
    pub(super) fn judge(&self, key: usize) {
        let mut state = self.shared.state.lock();
        let entry = &mut state.ops[key];
        let op = entry.op.as_ref().expect("an unsent op is in its entry");
        let (device, seen) = (op.device.clone(), op.seen());
        let Judged::Until(mut passed) = entry.judged else {
            unreachable!("what is kept is not on the list")
        };
        let place = Place { lane: Arc::downgrade(&self.shared), key, serial: entry.serial };
        entry.judged = Judged::Now;
        drop(state);
        let verdict = match device.faults() {
            Some(faults) => faults.judge(&place, &seen, &mut passed),
            None => Verdict::Pass,
        };
        // Now, so that it covers no more than the fdatasync will.
        let is_sync = verdict == Verdict::Pass && seen.op == Ops::FLUSH;
        let logged = device.log().filter(|_| is_sync).map(|log| log.sync_begins());
        let mut state = self.shared.state.lock();
        let closed = state.closed;
        let entry = &mut state.ops[key];
        match verdict {
            Verdict::Pass => {
                entry.judged = Judged::Done;
                let op = entry.op.as_mut().expect("it was there before");
                op.logged = logged;
            }
            Verdict::Short(bytes) => {
                entry.judged = Judged::Done;
                let op = entry.op.as_mut().expect("it was there before");
                op.shorten(bytes);
            }
            Verdict::Kept | Verdict::Delayed if entry.judged == Judged::LetGo => {
                entry.judged = Judged::Until(passed);
            }
            Verdict::Delayed => {
                entry.judged = Judged::Delayed(passed);
                return;
            }
            Verdict::Kept if !closed => {
                entry.judged = Judged::Kept(passed);
                return;
            }
            Verdict::Kept => {
                drop(state);
                device.faults().into_iter().for_each(|faults| faults.forget(&place));
                return self.complete(key as u64, -libc::ECANCELED, None);
            }
            Verdict::Fail(errno) => {
                drop(state);
                return self.complete(key as u64, -errno, None);
            }
        }
        state.unsent.push_front(key);
    }

    /// Ends the ops that are kept with ECANCELED, and keeps none from here on. Those that are delayed too, unless
    /// somebody waits for them.
    pub(crate) fn close(&self, delayed: Delayed) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        let ends = |entry: &Entry| match entry.judged {
            Judged::Kept(_) => true,
            Judged::Delayed(_) => delayed == Delayed::End,
            _ => false,
        };
        let kept = state.ops.iter().filter(|(_, entry)| ends(entry));
        let kept: Vec<_> = kept.map(|(key, entry)| (key, entry.serial)).collect();
        drop(state);
        for (key, serial) in kept {
            let place = Place { lane: Arc::downgrade(&self.shared), key, serial };
            place.cancel();
        }
    }
}

impl Place {
    /// Runs `change` on the op, if it is still there.
    fn with<T>(&self, change: impl FnOnce(&mut Entry) -> Option<T>) -> Option<(Lane, T)> {
        let lane =
            Lane { shared: self.lane.upgrade()?, progress: None, variants: Variants::default() };
        let result = {
            let mut state = lane.shared.state.lock();
            let entry = state.ops.get_mut(self.key).filter(|entry| entry.serial == self.serial);
            entry.and_then(change)
        };
        Some((lane, result?))
    }

    /// The op may go on.
    pub(crate) fn release(&self) {
        let released = self.with(|entry| match entry.judged {
            Judged::Now => {
                entry.judged = Judged::LetGo;
                None
            }
            Judged::Kept(passed) | Judged::Delayed(passed) => {
                entry.judged = Judged::Until(passed);
                Some(())
            }
            Judged::Until(_) | Judged::LetGo | Judged::Done => None,
        });
        if let Some((lane, ())) = released {
            lane.shared.state.lock().unsent.push_back(self.key);
            lane.shared.kick.wake_by_ref();
        }
    }

    /// The op ends, if it is kept.
    fn cancel(&self) {
        let canceled = self.with(|entry| match entry.judged {
            Judged::Kept(_) | Judged::Delayed(_) => {
                entry.judged = Judged::Done;
                entry.op.as_ref().map(|op| op.device.clone())
            }
            _ => None,
        });
        if let Some((lane, device)) = canceled {
            device.faults().into_iter().for_each(|faults| faults.forget(self));
            lane.complete(self.key as u64, -libc::ECANCELED, None);
        }
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.lane.ptr_eq(&other.lane) && self.serial == other.serial
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({})", self.serial)
    }
}
