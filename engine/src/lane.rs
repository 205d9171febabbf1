//! A lane: ops on their way to one ring and back.
//!
//! An op enters the slab when there is a slot, waits to be sent, is sent by whoever drives the ring, and stays in the
//! slab, owning its memory, file and grant, until its completion comes back. The future that waits for it may be
//! dropped at any time; that releases nothing the kernel still works on.
//!
//! One lock (*lane*) guards the slab. It is held for a few instructions and never while foreign code runs: owners of
//! memory are dropped outside it, and wakers cloned, called and dropped.

mod kept;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use blkring_tracker::Guard;
use blkring_tracker::sync::Mutex;
use slab::Slab;

use crate::backend::Choice;
use crate::device::Kind;
use crate::op::{Op, Verb};
use crate::target::Progress;
use crate::variant::{Variant, Variants};
use kept::Judged;
pub(crate) use kept::{Delayed, Place};

/// The way to one ring. Clones share it.
#[derive(Clone)]
pub struct Lane {
    shared: Arc<Shared>,
    /// Told when an op takes a slot: its request no longer only waits.
    progress: Option<Arc<Progress>>,
    variants: Variants,
}

struct Shared {
    state: Mutex<State>,
    kind: LaneKind,
    /// Makes whoever sends look again: an op that was kept is to be sent.
    kick: Waker,
    choice: Choice,
}

/// Whose ops a lane carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LaneKind {
    /// Those of one queue.
    Queue,
    /// Those of shared work.
    Service,
}

struct State {
    ops: Slab<Entry>,
    unsent: VecDeque<usize>,
    /// Ops that have not completed at most; a ring of one slot works. A completed op keeps no slot, whether its
    /// outcome is ever looked at or not.
    depth: usize,
    /// Those that found no slot. All are woken for each slot that comes free: no slot is handed to a future that
    /// may never be polled again.
    starving: Vec<Waker>,
    /// Ops that have not completed.
    running: usize,
    /// Ops that ever had a slot.
    entered: u64,
    /// Whether ops that are kept end, and none is kept any more.
    closed: bool,
    counts: LaneCounts,
}

/// What went through a lane, for statistics and exact tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaneCounts {
    /// Reads sent.
    pub reads: u64,
    /// Writes sent, durable ones included.
    pub writes: u64,
    /// Writes sent that are durable when they end.
    pub durable_writes: u64,
    /// Bytes of the writes sent.
    pub bytes_written: u64,
    /// fdatasyncs sent.
    pub syncs: u64,
    /// fallocates sent, in any mode.
    pub allocates: u64,
    /// ftruncates sent.
    pub truncates: u64,
    /// Discards of block devices sent, by commands of the ring.
    pub discards: u64,
    /// Calls sent that a ring has no command for: BLKDISCARD and BLKZEROOUT of block devices.
    pub calls: u64,
}

struct Entry {
    /// Taken by in-memory and simulated devices when they accept it; here while a kernel works on it.
    op: Option<Op>,
    iovecs: Vec<libc::iovec>,
    outcome: Option<Outcome>,
    waker: Option<Waker>,
    abandoned: bool,
    /// Tells it from others that had the same key.
    serial: u64,
    judged: Judged,
}

// SAFETY: the iovecs are numbers for the kernel; nothing here dereferences them, and the memory they point at is kept
// by the op's `IoMem`, which is Send. Test: the `issued_ops_move_between_threads` test would not compile without it.
unsafe impl Send for Entry {}

/// What came back for an op.
pub(crate) struct Outcome {
    /// As the kernel puts it: a count, zero, or a negative error number.
    pub(crate) result: i32,
    pub(crate) guard: Option<Guard>,
}

impl Lane {
    /// `kick` is woken when something becomes unsent that was not issued by a task that was woken. The queue or service
    /// was set up with `choice`.
    pub(crate) fn new(depth: usize, kind: LaneKind, kick: Waker, choice: &Choice) -> Self {
        let state = State {
            ops: Slab::with_capacity(depth.min(1024)),
            unsent: VecDeque::with_capacity(depth.min(1024)),
            depth: depth.max(1),
            starving: Vec::new(),
            running: 0,
            entered: 0,
            closed: false,
            counts: LaneCounts::default(),
        };
        let shared =
            Arc::new(Shared { state: Mutex::new(state), kind, kick, choice: choice.clone() });
        Lane { shared, progress: None, variants: Variants::default() }
    }

    /// The same lane with rules broken, for tests.
    pub(crate) fn with_variants(self, variants: Variants) -> Self {
        Lane { variants, ..self }
    }

    /// The same lane, for the ops of one request.
    pub(crate) fn of_request(&self, progress: Arc<Progress>) -> Lane {
        Lane { progress: Some(progress), ..self.clone() }
    }

    /// A future that takes a slot when first polled and is ready when the op has completed.
    pub(crate) fn issue(&self, op: Op) -> Issued {
        Issued { lane: self.clone(), stage: Stage::Waiting(op) }
    }

    /// What has gone through so far.
    pub fn counts(&self) -> LaneCounts {
        self.shared.state.lock().counts
    }

    /// Ops sent or to be sent that have not completed.
    pub(crate) fn unfinished(&self) -> usize {
        self.shared.state.lock().running
    }

    /// What its queue or service was set up with.
    pub fn choice(&self) -> &Choice {
        &self.shared.choice
    }

    /// Ops in the slab, those whose outcome nobody has looked at included.
    #[cfg(feature = "sim")]
    pub(crate) fn held(&self) -> usize {
        self.shared.state.lock().ops.len()
    }

    pub(crate) fn kind(&self) -> LaneKind {
        self.shared.kind
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.shared.state.lock().unsent.is_empty()
    }

    /// Sends what is unsent. Ops for files go to `submit`, which is given the key to come back with; other devices
    /// take theirs at once. Stops early if `submit` has no room.
    pub(crate) fn send(
        &self,
        mut submit: impl FnMut(u64, &Op, &mut Vec<libc::iovec>) -> Sent,
    ) -> usize {
        let mut sent = 0;
        loop {
            let mut state = self.shared.state.lock();
            let Some(key) = state.unsent.pop_front() else { return sent };
            let entry = &mut state.ops[key];
            let op = entry.op.as_ref().expect("an unsent op is in its entry");
            if op.device.has_hooks() && entry.judged != Judged::Done {
                drop(state);
                self.judge(key);
                continue;
            }
            if let Kind::File(_) = op.device.kind {
                match submit(key as u64, op, &mut entry.iovecs) {
                    Sent::Taken => (),
                    Sent::NoRoom => {
                        state.unsent.push_front(key);
                        return sent;
                    }
                    Sent::Done(result) => {
                        drop(state);
                        self.complete(key as u64, result, None);
                    }
                }
            } else {
                let op = entry.op.take().expect("checked above");
                drop(state);
                self.accept(key, op);
            }
            sent += 1;
        }
    }

    /// Hands an op to a device that is not a file of the kernel.
    fn accept(&self, key: usize, op: Op) {
        let device = op.device.clone();
        match &device.kind {
            Kind::File(_) => unreachable!("ops of files go to the ring"),
            Kind::Memory(memory) => {
                let result = memory.execute(&op);
                self.complete(key as u64, result, Some(op));
            }
            #[cfg(feature = "sim")]
            Kind::Sim(file) => file.accept(self.clone(), key as u64, op),
        }
    }

    /// Takes note of a completion: the device first, then the memory is let go, then whoever waits is woken.
    pub(crate) fn complete(&self, key: u64, result: i32, returned: Option<Op>) {
        let key = usize::try_from(key).expect("keys come from the slab");
        let op = returned.or_else(|| self.shared.state.lock().ops[key].op.take());
        let op = op.expect("an op completes once");
        op.device.note(&op, result);
        let Op { mem, guard, .. } = op;
        drop(mem);
        let mut state = self.shared.state.lock();
        state.running -= 1;
        let starving = std::mem::take(&mut state.starving);
        let entry = &mut state.ops[key];
        let mut forgotten = None;
        let waker = if entry.abandoned {
            state.ops.remove(key);
            forgotten = guard;
            None
        } else {
            entry.outcome = Some(Outcome { result, guard });
            entry.waker.take()
        };
        drop(state);
        drop(forgotten);
        starving.into_iter().chain(waker).for_each(Waker::wake);
    }
}

/// Whether a ring took an op.
pub(crate) enum Sent {
    /// Its completion will come.
    Taken,
    /// Not now; the op stays where it is.
    NoRoom,
    /// Done already, with this result.
    Done(i32),
}

/// A future for one op. Dropping it gives up the outcome, not the op: once it has a slot it runs to its completion.
#[must_use = "an op is issued when its future is polled"]
pub(crate) struct Issued {
    lane: Lane,
    stage: Stage,
}

enum Stage {
    Waiting(Op),
    Running(usize),
    Finished,
}

impl Future for Issued {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let this = &mut *self;
        // Before the lock, so that it is dropped behind it if it is not kept.
        let waker = cx.waker().clone();
        let mut state = this.lane.shared.state.lock();
        match std::mem::replace(&mut this.stage, Stage::Finished) {
            Stage::Waiting(op) if state.running >= state.depth => {
                state.starving.push(waker);
                this.stage = Stage::Waiting(op);
                Poll::Pending
            }
            Stage::Waiting(op) => {
                if let Some(progress) = &this.lane.progress {
                    progress.commit();
                }
                this.stage = Stage::Running(state.enter(op, waker));
                Poll::Pending
            }
            Stage::Running(key) => {
                let entry = &mut state.ops[key];
                if let Some(outcome) = entry.outcome.take() {
                    state.ops.remove(key);
                    return Poll::Ready(outcome);
                }
                let former = entry.waker.replace(waker);
                this.stage = Stage::Running(key);
                drop(state);
                drop(former);
                Poll::Pending
            }
            Stage::Finished => panic!("an issued op is polled again after it was ready"),
        }
    }
}

impl Drop for Issued {
    fn drop(&mut self) {
        let Stage::Running(key) = self.stage else { return };
        let mut state = self.lane.shared.state.lock();
        let entry = &mut state.ops[key];
        let (waker, outcome) = (entry.waker.take(), entry.outcome.take());
        let released = match &mut entry.op {
            Some(op) if self.lane.variants.has(Variant::DroppedReceiptReleasesRange) => {
                op.guard.take()
            }
            _ => None,
        };
        if outcome.is_some() {
            state.ops.remove(key);
        } else {
            entry.abandoned = true;
        }
        drop(state);
        drop((waker, outcome, released));
    }
}

impl State {
    fn enter(&mut self, op: Op, waker: Waker) -> usize {
        #[cfg(feature = "variants")]
        let op = Op { watched: op.device.watcher.begins(&op), ..op };
        self.counts.note(&op);
        self.entered += 1;
        let entry = Entry {
            op: Some(op),
            iovecs: Vec::new(),
            outcome: None,
            waker: Some(waker),
            abandoned: false,
            serial: self.entered,
            judged: Judged::Until(0),
        };
        let key = self.ops.insert(entry);
        self.unsent.push_back(key);
        self.running += 1;
        key
    }
}

impl LaneCounts {
    fn note(&mut self, op: &Op) {
        match op.verb {
            Verb::Read => self.reads += 1,
            Verb::Write | Verb::WriteDurable => {
                self.writes += 1;
                self.bytes_written += op.len;
                self.durable_writes += u64::from(matches!(op.verb, Verb::WriteDurable));
            }
            Verb::Sync => self.syncs += 1,
            Verb::Allocate(_) => self.allocates += 1,
            Verb::Truncate => self.truncates += 1,
            Verb::Discard => self.discards += 1,
            Verb::Call(_) => self.calls += 1,
        }
    }

    /// The counts of two lanes together.
    #[must_use]
    pub fn plus(self, other: LaneCounts) -> LaneCounts {
        LaneCounts {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            durable_writes: self.durable_writes + other.durable_writes,
            bytes_written: self.bytes_written + other.bytes_written,
            syncs: self.syncs + other.syncs,
            allocates: self.allocates + other.allocates,
            truncates: self.truncates + other.truncates,
            discards: self.discards + other.discards,
            calls: self.calls + other.calls,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Wake;

    use blkring_tracker::sync::atomic::{AtomicUsize, Ordering};

    use crate::device::Device;
    use crate::memory::IoMem;
    use crate::memory_disk::MemoryDisk;

    fn poll(issued: &mut Pin<Box<Issued>>) -> Poll<Outcome> {
        issued.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// A waker that looks at the lane when it is dropped or called.
    struct Foreign {
        lane: Lane,
        locked: Arc<AtomicUsize>,
        ran: Arc<AtomicUsize>,
    }

    impl Foreign {
        fn look(&self) {
            self.ran.fetch_add(1, Ordering::SeqCst);
            let locked = self.lane.shared.state.try_lock().is_none();
            self.locked.fetch_add(usize::from(locked), Ordering::SeqCst);
        }
    }

    impl Wake for Foreign {
        fn wake(self: Arc<Self>) {
            self.look();
        }
    }

    impl Drop for Foreign {
        fn drop(&mut self) {
            self.look();
        }
    }

    #[test]
    fn wakers_are_called_and_dropped_outside_the_lock() {
        let lane = Lane::new(1, LaneKind::Queue, Waker::noop().clone(), &Choice::default());
        let disk = Kind::Memory(MemoryDisk::new(vec![7; 512], 512));
        let device = Device::new("memory".into(), disk, 512);
        let (locked, ran) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let issue = || {
            let mem = IoMem::from(vec![0; 512]);
            Box::pin(lane.issue(Op::transfer(&device, Verb::Read, 0, mem)))
        };
        // The waker handed in is dropped by the call, so the clone that is kept is its last.
        let poll_foreign = |issued: &mut Pin<Box<Issued>>| {
            let waker = Foreign { lane: lane.clone(), locked: locked.clone(), ran: ran.clone() };
            let waker = Waker::from(Arc::new(waker));
            issued.as_mut().poll(&mut Context::from_waker(&waker))
        };
        let mut replaced = issue();
        assert!(poll_foreign(&mut replaced).is_pending());
        assert!(poll_foreign(&mut replaced).is_pending());
        assert_eq!(ran.load(Ordering::SeqCst), 1, "the former waker is dropped");
        drop(replaced);
        assert_eq!(ran.load(Ordering::SeqCst), 2, "so is that of a future that is dropped");
        let mut starving = issue();
        assert!(poll_foreign(&mut starving).is_pending());
        lane.send(|_, _, _| unreachable!("no file is about"));
        assert_eq!(ran.load(Ordering::SeqCst), 4, "called and dropped");
        assert!(poll_foreign(&mut starving).is_pending());
        lane.send(|_, _, _| unreachable!("no file is about"));
        assert!(poll_foreign(&mut starving).is_ready());
        assert_eq!(ran.load(Ordering::SeqCst), 7);
        assert_eq!(locked.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn issued_ops_move_between_threads() {
        let lane = Lane::new(1, LaneKind::Queue, Waker::noop().clone(), &Choice::default());
        let disk = Kind::Memory(MemoryDisk::new(vec![7; 512], 512));
        let device = Device::new("memory".into(), disk, 512);
        let mem = IoMem::from(vec![0; 512]);
        let mut issued = Box::pin(lane.issue(Op::transfer(&device, Verb::Read, 0, mem.clone())));
        assert!(poll(&mut issued).is_pending());
        let sender = std::thread::spawn(move || {
            assert_eq!(lane.send(|_, _, _| unreachable!("no file is about")), 1);
            issued
        });
        let mut issued = sender.join().unwrap();
        let Poll::Ready(outcome) = poll(&mut issued) else { panic!("it was sent") };
        assert_eq!(outcome.result, 512);
        assert_eq!(mem.to_vec(), [7; 512]);
    }
}
