//! What an op does to a file when it lands.

use crate::device::did_not_run;

use super::disk::{Kernel, State};
use super::fault::Fault;
use super::history::Landing;
use super::log::OpKind;
use super::pending::Pending;
use super::sectors::SECTOR;

impl State {
    /// The first step of those that have two.
    pub(super) fn begin(&self, op: &mut Pending) {
        op.begun = true;
        match op.kind {
            OpKind::Sync => op.covers = self.stamp,
            OpKind::Grow | OpKind::ZeroRange => {
                // The mistake of the old kernel: the size is looked at before the I/O in flight is over.
                op.target = (op.end() > self.files[op.file].size()).then(|| op.end());
            }
            _ => (),
        }
    }

    /// Whether this op has a step `Begin`.
    pub(super) fn has_begin(&self, kind: OpKind) -> bool {
        match kind {
            OpKind::Sync => true,
            OpKind::Grow | OpKind::ZeroRange => self.kernel == Kernel::OldXfs,
            _ => false,
        }
    }

    /// Does the op, unless a rule has it fail, and gives what its issuer will be told.
    pub(super) fn land(&mut self, op: &mut Pending) -> i32 {
        self.stamp += 1;
        op.stamp = self.stamp;
        let name = self.files[op.file].name.clone();
        let rule =
            self.rules.iter_mut().find_map(|rule| rule.strikes(&name, op).then_some(rule.fault));
        let all = op.transferable();
        let moved = |bytes: u64| bytes.min(all) & !(op.alignment - 1);
        match rule {
            Some(Fault::Error(errno)) => {
                if op.kind == OpKind::Sync && !did_not_run(-errno) {
                    self.files[op.file].lose(op.covers);
                }
                -errno
            }
            Some(Fault::Short(bytes)) => self.execute(op, moved(bytes)),
            Some(Fault::Partial(bytes, errno)) => {
                self.execute(op, moved(bytes));
                -errno
            }
            None => self.execute(op, all),
        }
    }

    /// `len` is that of the op, or less for a short transfer.
    fn execute(&mut self, op: &Pending, len: u64) -> i32 {
        let (start, end) = (op.offset(), op.end());
        if !op.is_aligned(len) {
            return -libc::EINVAL;
        }
        let of_device =
            matches!(op.kind, OpKind::Discard | OpKind::DiscardCall | OpKind::ZeroOutCall);
        if of_device && (start | end) & (SECTOR - 1) != 0 {
            return -libc::EINVAL;
        }
        if i64::try_from(end).is_err() {
            return -libc::EFBIG;
        }
        let needs_space = match op.kind {
            OpKind::Write | OpKind::WriteDurable => (start, start + len),
            OpKind::Grow | OpKind::ZeroRange => (start, end),
            _ => (0, 0),
        };
        if !self.has_room(op.file, needs_space) {
            return -libc::ENOSPC;
        }
        let landing = Landing { stamp: op.stamp, op: op.id };
        let file = &mut self.files[op.file];
        match op.kind {
            OpKind::Read => {
                let there = len.min(file.size().saturating_sub(start));
                let mut bytes = vec![0; count(there) as usize];
                file.sectors.read(start, &mut bytes);
                op.op.mem.as_ref().expect("a read has memory").copy_in(0, &bytes);
                return count(there);
            }
            OpKind::Write | OpKind::WriteDurable => {
                let mem = op.op.mem.as_ref().expect("a write has memory");
                let mut bytes = vec![0; count(len) as usize];
                mem.copy_out(0, &mut bytes);
                file.write(landing, start, &bytes);
                return count(len);
            }
            OpKind::Sync => file.settle(op.covers),
            OpKind::PunchHole => file.punch(landing, start, end),
            OpKind::Truncate => file.set_size(landing, start),
            OpKind::Discard | OpKind::DiscardCall => file.spoil(landing, start, end),
            OpKind::ZeroOutCall => file.zero(landing, start, end),
            OpKind::Grow | OpKind::ZeroRange => {
                file.allocate(start, end);
                if op.kind == OpKind::ZeroRange {
                    file.zero(landing, start, end);
                }
                match (op.begun, op.target) {
                    (true, Some(target)) => file.set_size(landing, target),
                    (true, None) => (),
                    (false, _) => file.extend(landing, end),
                }
            }
        }
        0
    }

    fn has_room(&self, file: usize, (start, end): (u64, u64)) -> bool {
        let Some(capacity) = self.capacity else { return true };
        let used: u64 = self.files.iter().map(super::file::FileState::blocks).sum();
        let missing = self.files[file].missing(start, end);
        missing == 0 || (used + missing) * 4096 <= capacity
    }

    /// The op's issuer is about to be told.
    pub(super) fn finish(&mut self, op: &Pending) {
        if op.kind == OpKind::WriteDurable && op.result > 0 {
            let end = op.offset() + u64::from(op.result.unsigned_abs());
            self.files[op.file].settle_write(op.offset(), end, op.stamp);
        }
    }
}

fn count(bytes: u64) -> i32 {
    i32::try_from(bytes).unwrap_or(0x7fff_f000)
}
