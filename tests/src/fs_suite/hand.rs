//! A hand: one of many futures that use a file at once. Each queue has several.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use blkring_engine::sim::Rng;
use blkring_engine::{Disk, ExtentKind, Flags, IoError, IoMem, Lane, Request};

use super::finding::{Sign, Stop};
use super::history::{End, Pending, Tearing, words};
use super::meeting::stand_back;
use super::run::Run;
use super::sizes::Target;
use super::subject::Subject;

/// What was answered to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Done.
    Done,
    /// An error that this test expects.
    Refused,
}

/// How a file is to grow.
#[derive(Debug, Clone, Copy)]
pub enum Growth {
    /// With space (fallocate).
    Space,
    /// By a hole (ftruncate).
    Hole,
}

/// Which way into the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Door {
    /// Direct I/O.
    Direct,
    /// The page cache.
    Cached,
}

/// One of the futures. Everything that it does is in the history before it begins.
pub struct Hand {
    /// Of all hands of the file.
    pub number: usize,
    /// The file.
    pub subject: Arc<Subject>,
    /// The run.
    pub run: Arc<Run>,
    pub(super) file: usize,
    pub(super) rng: RefCell<Rng>,
    pub(super) disk: Disk,
    pub(super) cached: Option<Disk>,
    pub(super) lane: Lane,
    /// Requests of its queue that are not answered.
    pub(super) unfinished: Rc<Cell<usize>>,
}

impl Hand {
    /// A number below `limit`.
    pub fn below(&self, limit: u64) -> u64 {
        self.rng.borrow_mut().below(limit)
    }

    /// True once in `n` times.
    pub fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// A range of `len` bytes that begins at a multiple of `step` and lies within `within`.
    pub fn place(&self, within: &Range<u64>, step: u64, len: u64) -> Range<u64> {
        let places = (within.end - within.start - len) / step + 1;
        let start = within.start + self.below(places) * step;
        start..start + len
    }

    fn fails(&self, sign: Sign, text: impl Into<String>) -> Stop {
        Stop::found(sign, text).beside(self)
    }

    /// What a request has come to.
    fn answered(&self, result: Result<(), IoError>) -> Result<Answer, Stop> {
        self.run.beat();
        if let Some(text) = self.subject.order.found() {
            return Err(self.fails(Sign::Order, text));
        }
        match result {
            Ok(()) => Ok(Answer::Done),
            Err(error) if self.subject.layout.expected.contains(&error.errno) => {
                Ok(Answer::Refused)
            }
            Err(error) => Err(self.fails(Sign::Answer, error.to_string())),
        }
    }

    fn ended(&self, change: &Pending, result: Result<(), IoError>) -> Result<Answer, Stop> {
        let end = if result.is_ok() { End::Done } else { End::Unsure };
        let ended = self.subject.history.end(change, end);
        self.subject.sizes.end(change.number, ended, end);
        self.answered(result)
    }

    /// The end that a write gives the file: where a block is written whole for a part of it, that of the block.
    fn reach(&self, end: u64) -> u64 {
        end.next_multiple_of(self.subject.storage().alignment())
    }

    /// A write in the history, and its bytes.
    pub fn begin_write(&self, range: Range<u64>) -> (Pending, IoMem) {
        let target = Target::Reach(self.reach(range.end));
        let change = self.subject.history.begin_words(range);
        self.subject.sizes.begin(change.number, target);
        let bytes = words(&change);
        let mem = if self.one_in(8) { IoMem::from(bytes) } else { IoMem::aligned(&bytes) };
        (change, mem)
    }

    /// Writes words of its own, whole cells.
    ///
    /// # Errors
    /// What ends the hand.
    pub async fn write(&self, range: Range<u64>) -> Result<Answer, Stop> {
        self.write_with(range, Flags::empty()).await
    }

    /// The same with flags.
    ///
    /// # Errors
    /// What ends the hand.
    pub async fn write_with(&self, range: Range<u64>, flags: Flags) -> Result<Answer, Stop> {
        let start = range.start;
        let (change, mem) = self.begin_write(range);
        let result = if self.one_in(2) {
            self.disk.write(start, mem, flags).await
        } else {
            self.subject.storage().write(&self.lane, start, &mem, flags).await
        };
        self.ended(&change, result)
    }

    /// The same through the page cache.
    ///
    /// # Errors
    /// What ends the hand.
    pub async fn write_cached(&self, range: Range<u64>) -> Result<Answer, Stop> {
        let start = range.start;
        let (change, mem) = self.begin_write(range);
        let result = self.through(Door::Cached).write(start, mem, Flags::empty()).await;
        self.ended(&change, result)
    }

    fn through(&self, door: Door) -> &Disk {
        match door {
            Door::Direct => &self.disk,
            Door::Cached => self.cached.as_ref().expect("this test has opened its file twice"),
        }
    }

    /// Makes whole cells read as zeros.
    ///
    /// # Errors
    /// What ends the hand.
    pub async fn zero(&self, range: Range<u64>, flags: Flags) -> Result<Answer, Stop> {
        let (start, len) = (range.start, range.end - range.start);
        let change = self.subject.history.begin_zeros(range.clone());
        self.subject.sizes.begin(change.number, Target::Reach(range.end));
        let result = if self.one_in(2) {
            self.disk.write_zeroes(start, len, flags).await
        } else {
            self.subject.storage().write_zeroes(&self.lane, start, len, flags).await
        };
        self.ended(&change, result)
    }

    /// Gives whole cells back. What they hold afterwards is zeros or what they held.
    ///
    /// # Errors
    /// What ends the hand.
    pub async fn discard(&self, range: Range<u64>) -> Result<Answer, Stop> {
        let (start, len) = (range.start, range.end - range.start);
        let change = self.subject.history.begin_zeros(range);
        let result = self.disk.discard(start, len).await;
        self.subject.history.end(&change, End::Unsure);
        self.answered(result)
    }

    /// Makes the file at least `size` bytes long.
    ///
    /// # Errors
    /// What ends the hand.
    pub async fn grow(&self, size: u64, how: Growth) -> Result<Answer, Stop> {
        // An empty change: it has numbers, and no cells.
        let change = self.subject.history.begin_zeros(0..0);
        self.subject.sizes.begin(change.number, Target::Reach(size));
        let storage = self.subject.storage();
        let result = match how {
            Growth::Space => storage.grow(&self.lane, size).await,
            Growth::Hole => storage.grow_by_hole(&self.lane, size).await,
        };
        self.ended(&change, result)
    }

    /// Makes the file `size` bytes long, whole cells.
    ///
    /// # Errors
    /// What ends the hand.
    pub async fn resize(&self, size: u64) -> Result<Answer, Stop> {
        let subject = &self.subject;
        let change = subject.history.begin_zeros(size..subject.layout.limit);
        subject.sizes.begin(change.number, Target::Set(size));
        let result = subject.storage().resize(&self.lane, size).await;
        self.ended(&change, result)
    }

    /// Reads whole cells and judges them.
    ///
    /// # Errors
    /// What ends the hand.
    pub async fn read(&self, range: Range<u64>) -> Result<(), Stop> {
        self.read_through(Door::Direct, range, Tearing::Allowed).await
    }

    /// The same by one of the ways into the file.
    ///
    /// # Errors
    /// What ends the hand.
    pub async fn read_through(
        &self,
        door: Door,
        range: Range<u64>,
        tearing: Tearing,
    ) -> Result<(), Stop> {
        let mem = IoMem::aligned(&vec![0xEE; index(range.end - range.start)]);
        let look = self.subject.history.look(range.clone());
        let result = self.through(door).read(range.start, mem.clone()).await;
        self.answered(result)?;
        let judged = self.subject.history.judge(&look, &mem.to_vec(), tearing);
        judged.map_err(|text| self.fails(Sign::Bytes, text))
    }

    /// Asks for the extent at an offset. Where it is a hole, zeros must be allowed.
    ///
    /// # Errors
    /// What ends the hand.
    pub fn extent(&self, at: u64) -> Result<u64, Stop> {
        let (history, limit) = (&self.subject.history, self.subject.layout.limit);
        let all = history.look(at..limit);
        let extent = self.subject.storage().extent(at, limit);
        let extent = extent.map_err(|error| self.fails(Sign::Answer, error.to_string()))?;
        self.run.beat();
        let end = extent.offset + extent.len;
        if extent.kind == ExtentKind::Zero {
            // The cells that lie in it whole.
            let cells = (end / self.subject.grain() * self.subject.grain()).max(at);
            let hole = all.first_bytes(cells - at);
            let zeros = vec![0; index(cells - at)];
            let judged = history.judge(&hole, &zeros, Tearing::Allowed);
            let what = |text| format!("a hole from {at} to {end} is reported: {text}");
            judged.map_err(|text| self.fails(Sign::Bytes, what(text)))?;
        }
        Ok(end)
    }

    /// Makes what was answered durable, and asks whether it is.
    ///
    /// # Errors
    /// What ends the hand.
    pub async fn flush(&self) -> Result<(), Stop> {
        let asked = self.subject.order.now();
        let result = self.disk.flush().await;
        self.answered(result)?;
        match self.subject.order.volatile(asked, 0, u64::MAX) {
            None => Ok(()),
            Some(op) => Err(self.fails(
                Sign::Durability,
                format!("a flush was answered, and no fdatasync covers {op}, which had ended"),
            )),
        }
    }

    /// Asks whether a range that was written durably, and that nobody else writes, is durable.
    ///
    /// # Errors
    /// What ends the hand.
    pub fn is_durable(&self, range: &Range<u64>) -> Result<(), Stop> {
        let order = &self.subject.order;
        match order.volatile(order.now(), range.start, range.end) {
            None => Ok(()),
            Some(op) => Err(self.fails(
                Sign::Durability,
                format!("a durable write was answered, and no fdatasync covers {op}"),
            )),
        }
    }

    /// Hands in a write and drops the receipt after some turns of the queue.
    pub async fn drop_receipt(&self, range: Range<u64>, after: u64) {
        let start = range.start;
        let (_never_ended, mem) = self.begin_write(range);
        let receipt = self.disk.submit(Request::write(start, mem));
        for _ in 0..after {
            stand_back().await;
        }
        self.run.beat();
        drop(receipt);
    }

    /// Begins a write and drops its future after it was polled some times.
    pub async fn drop_write(&self, range: Range<u64>, after: u64) {
        let start = range.start;
        let (_never_ended, mem) = self.begin_write(range);
        let storage = self.subject.storage();
        let mut write = Box::pin(storage.write(&self.lane, start, &mem, Flags::empty()));
        for _ in 0..after {
            let poll = std::future::poll_fn(|cx| std::task::Poll::Ready(write.as_mut().poll(cx)));
            if poll.await.is_ready() {
                break;
            }
            stand_back().await;
        }
        self.run.beat();
    }

    /// Waits until all requests of its queue are answered.
    pub async fn settle(&self) {
        while self.unfinished.get() > 0 {
            stand_back().await;
        }
    }

    /// Reads the whole file, while nobody changes it, and judges every byte and the size.
    ///
    /// # Errors
    /// What ends the hand.
    pub async fn judge_all(&self) -> Result<(), Stop> {
        const PIECE: u64 = 1 << 20;
        let subject = &self.subject;
        let wrong = |text: String| self.fails(Sign::Size, text);
        let size = subject.size().map_err(wrong)?;
        subject.sizes.judge(size).map_err(wrong)?;
        let known = subject.storage().size();
        if known != size {
            return Err(wrong(format!("the file has {size} bytes, the engine says {known}")));
        }
        let limit = subject.layout.limit;
        for start in (0..limit).step_by(index(PIECE)) {
            let range = start..(start + PIECE).min(limit);
            self.read_through(Door::Direct, range, Tearing::Forbidden).await?;
        }
        Ok(())
    }
}

impl Stop {
    /// The same with the place where it was found.
    fn beside(self, hand: &Hand) -> Self {
        match self {
            Stop::Found(mut finding) => {
                let file = hand.subject.path.file_name().unwrap_or_default().display();
                finding.text = format!("{}, hand {} of {file}", finding.text, hand.number);
                Stop::Found(finding)
            }
            Stop::Ended => Stop::Ended,
        }
    }
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("the file fits into memory")
}
