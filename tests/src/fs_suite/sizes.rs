//! What size a file may have, after many have changed it at once.

use std::sync::Mutex;

use super::history::End;

/// What a change does to the size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The size is this, whatever it was.
    Set(u64),
    /// The size is this at least.
    Reach(u64),
}

#[derive(Debug, Clone, Copy)]
struct Change {
    target: Target,
    begun: u64,
    ended: Option<u64>,
    sure: bool,
}

/// The changes of the size of one file, with the numbers that its history gives them.
pub struct Sizes(Mutex<Vec<Change>>);

impl Sizes {
    /// A file of this size.
    pub fn new(size: u64) -> Self {
        let sizes = Sizes(Mutex::default());
        sizes.reset(size);
        sizes
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Vec<Change>> {
        self.0.lock().expect("nothing in here panics under the lock")
    }

    /// The size is this, for certain.
    pub fn reset(&self, size: u64) {
        let now = Change { target: Target::Set(size), begun: 0, ended: Some(0), sure: true };
        *self.locked() = vec![now];
    }

    /// The change of this number begins.
    pub fn begin(&self, number: u64, target: Target) {
        self.locked().push(Change { target, begun: number, ended: None, sure: false });
    }

    /// The change that began with this number has ended.
    pub fn end(&self, number: u64, ended: u64, end: End) {
        let mut changes = self.locked();
        if let Some(change) = changes.iter_mut().rev().find(|change| change.begun == number) {
            change.ended = Some(ended);
            change.sure = end == End::Done;
        }
    }

    /// Judges a size that was found while nothing was under way: some order of the changes must lead to it.
    ///
    /// # Errors
    /// Why none does.
    pub fn judge(&self, size: u64) -> Result<(), String> {
        let changes = self.locked();
        let mut reasons = Vec::new();
        for last in changes.iter().filter(|last| may_be_last_set(last, &changes)) {
            match reached_from(last, &changes, size) {
                Ok(()) => return Ok(()),
                Err(reason) => reasons.push(reason),
            }
        }
        Err(format!("the file has {size} bytes: {}", reasons.join("; or ")))
    }
}

/// Whether `after` began when `before` was over.
fn follows(after: &Change, before: &Change) -> bool {
    before.ended.is_some_and(|ended| after.begun > ended)
}

fn may_be_last_set(last: &Change, changes: &[Change]) -> bool {
    let set = |change: &Change| matches!(change.target, Target::Set(_));
    set(last) && !changes.iter().any(|other| set(other) && other.sure && follows(other, last))
}

fn reached_from(last: &Change, changes: &[Change], size: u64) -> Result<(), String> {
    let Target::Set(from) = last.target else { return Ok(()) };
    if size < from {
        return Err(format!("change {} makes it {from} and nothing shorter", last.begun));
    }
    let reaching = |change: &Change| match change.target {
        Target::Reach(size) => Some((*change, size)),
        Target::Set(_) => None,
    };
    let mut exact = size == from;
    for (change, reach) in changes.iter().filter_map(reaching) {
        if change.sure && follows(&change, last) && size < reach {
            return Err(format!("change {} has reached {reach}", change.begun));
        }
        if !follows(last, &change) {
            // A change that failed may have been done in part.
            exact |= reach == size || !change.sure && size <= reach;
        }
    }
    if exact { Ok(()) } else { Err(format!("nothing ends there after change {}", last.begun)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(changes: &[(Target, u64, u64)]) -> Sizes {
        let sizes = Sizes::new(0);
        for (target, begun, ended) in changes {
            sizes.begin(*begun, *target);
            sizes.end(*begun, *ended, End::Done);
        }
        sizes
    }

    #[test]
    fn growth_adds_up() {
        let sizes = sizes(&[(Target::Reach(10), 1, 4), (Target::Reach(30), 2, 3)]);
        assert!(sizes.judge(30).is_ok());
        assert!(sizes.judge(10).is_err(), "cut off");
        assert!(sizes.judge(40).is_err(), "nobody asked for it");
    }

    #[test]
    fn a_set_size_beside_a_write_is_either() {
        let beside = sizes(&[(Target::Reach(30), 1, 4), (Target::Set(20), 2, 3)]);
        assert!(beside.judge(20).is_ok() && beside.judge(30).is_ok());
        let before = sizes(&[(Target::Reach(30), 1, 2), (Target::Set(20), 3, 4)]);
        assert!(before.judge(20).is_ok() && before.judge(30).is_err());
        let after = sizes(&[(Target::Set(20), 1, 2), (Target::Reach(30), 3, 4)]);
        assert!(after.judge(20).is_err() && after.judge(30).is_ok());
    }

    #[test]
    fn what_failed_may_have_grown_it_in_part() {
        let sizes = Sizes::new(8);
        sizes.begin(1, Target::Reach(30));
        sizes.end(1, 2, End::Unsure);
        assert!(sizes.judge(8).is_ok() && sizes.judge(20).is_ok() && sizes.judge(31).is_err());
    }
}
