//! The copy itself: pieces read and written beside each other, on one queue.
//!
//! The memory is that of the pieces in flight, whatever the speed of the target: a piece begins when it has passed
//! the gate, and gives its buffer back before the next one passes.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use blkring_engine::{
    BufferPool, Disk, Flags, IoError, IoMem, Queue, Receipt, Request, WouldBlock,
};
use blkring_qcow2::CompressedCluster;

use super::compressors::{Compressors, Packed};
use super::error::{CopyError, Step};
use super::flow::{Gate, Pass, Turns};
use super::readers::Readers;
use super::salvage;
use super::source::Sources;
use super::walk::{PIECE, Piece, Task, Walk, Zeros};
use super::write_back::WriteBack;
use super::zeros::{Part, alike, zeros};
use super::{Salvage, Sequence, Under};
use crate::failure::Failure;
use crate::progress::Progress;

/// How the copy is made.
pub struct Manner {
    /// Pieces in flight.
    pub pieces: usize,
    /// In which order they are written.
    pub sequence: Sequence,
    /// Zeros are looked for in units of so many bytes.
    pub unit: u64,
    /// What becomes of zeros.
    pub zeros: Zeros,
    /// What the target reads as where nothing is written.
    pub under: Under,
    /// Whether what cannot be read is zero.
    pub salvage: Salvage,
    /// Bytes in a second at most.
    pub rate: Option<u64>,
    /// What keeps the page cache small, if anything has to.
    pub write_back: Option<WriteBack>,
}

/// Where it goes.
pub struct Target {
    /// The image.
    pub disk: Disk,
    /// What each write carries.
    pub flags: Flags,
    /// What lies below it, if the source is compared with that.
    pub below: Option<Sources>,
}

/// Who helps.
#[derive(Default)]
pub struct Helpers {
    /// Those that read what is compressed, if the source may have such.
    pub readers: Option<Readers>,
    /// Those that compress what is written, if that is asked for.
    pub compressors: Option<Compressors>,
}

/// What is to be written for a piece.
#[derive(Default)]
struct Writes {
    plain: Vec<Request>,
    compressed: Vec<(u64, CompressedCluster)>,
}

/// What the pieces share.
struct Copy {
    sources: Rc<Sources>,
    helpers: Helpers,
    target: Target,
    manner: Manner,
    buffers: Arc<BufferPool>,
    turns: Turns,
    progress: RefCell<Progress>,
    done: Cell<u64>,
    failure: RefCell<Option<CopyError>>,
}

/// Copies what `walk` finds.
pub fn run(
    queue: &mut Queue,
    (sources, mut walk): (Rc<Sources>, Walk),
    (target, helpers): (Target, Helpers),
    mut manner: Manner,
    progress: Progress,
) -> Result<(), Failure> {
    let mut write_back = manner.write_back.take();
    let gate = Gate::new(manner.pieces);
    // A piece that is compared has two buffers.
    let buffers = manner.pieces * if target.below.is_some() { 2 } else { 1 };
    let copy = Rc::new(Copy {
        sources,
        helpers,
        target,
        buffers: BufferPool::new(buffers * usize::try_from(PIECE).expect("a piece is small")),
        turns: Turns::default(),
        progress: RefCell::new(progress),
        done: Cell::new(0),
        failure: RefCell::default(),
        manner,
    });
    let begin = Instant::now();
    let mut number = 0;
    while copy.failure.borrow().is_none() {
        let pass = queue.block_on(gate.enter())?;
        copy.hold_back(queue, begin)?;
        if let Some(write_back) = &mut write_back {
            let synced = write_back.written(copy.done.get());
            synced.map_err(|error| {
                Failure::Usage(format!("error while syncing the target: {error}"))
            })?;
        }
        match queue.block_on(walk.next())? {
            Ok(None) => break,
            Ok(Some(Piece { task: Task::Skip, len, .. })) => {
                copy.progress.borrow_mut().pass_over(len)
            }
            Ok(Some(piece)) => {
                queue.spawn(copy.clone().piece(piece, number, pass));
                number += 1;
            }
            Err(error) => copy.fail(error),
        }
    }
    queue.block_on(gate.empty())?;
    match copy.failure.take() {
        None => {
            copy.progress.borrow().end_whole();
            Ok(())
        }
        Some(error) => {
            copy.progress.borrow().end();
            Err(Failure::Copy(error))
        }
    }
}

impl Copy {
    fn fail(&self, error: CopyError) {
        self.failure.borrow_mut().get_or_insert(error);
    }

    /// Waits until no more has been done than the rate allows.
    fn hold_back(&self, queue: &mut Queue, begin: Instant) -> Result<(), Failure> {
        const NAP: Duration = Duration::from_millis(20);
        let Some(rate) = self.manner.rate else { return Ok(()) };
        let due = begin + Duration::from_secs_f64(self.done.get() as f64 / rate as f64);
        loop {
            queue.turn()?;
            self.progress.borrow_mut().look();
            let left = due.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(NAP));
        }
    }

    async fn piece(self: Rc<Self>, piece: Piece, number: u64, pass: Pass) {
        let (offset, len) = (piece.offset, piece.len);
        self.done.update(|done| done + len);
        let prepared = self.prepare(&piece).await;
        if self.manner.sequence == Sequence::Ascending {
            self.turns.wait(number).await;
        }
        let sent = match prepared {
            Ok(writes) if self.failure.borrow().is_none() => self.send(offset, writes).await,
            other => other.map(|_| VecDeque::new()),
        };
        self.turns.pass();
        let written = match sent {
            Ok(receipts) => {
                all(receipts).await.map_err(|error| CopyError::new(Step::Write, offset, error))
            }
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => self.progress.borrow_mut().add(len),
            Err(error) => self.fail(error),
        }
        drop(pass);
    }

    /// What is to be written for a piece.
    async fn prepare(&self, piece: &Piece) -> Result<Writes, CopyError> {
        let zero = |offset, len| {
            Request::write_zeroes(offset, len).with(self.target.flags | Flags::MAY_UNMAP)
        };
        if piece.task == Task::Zero {
            let plain = vec![zero(piece.offset, piece.len)];
            return Ok(Writes { plain, ..Writes::default() });
        }
        let mem = self.buffer(piece.len).await;
        self.read(piece, &mem).await?;
        let (offset, unit) = (piece.offset, self.manner.unit);
        let whole = vec![Part::Data(0..mem.len())];
        let parts = match (self.manner.zeros, &self.target.below) {
            (Zeros::Written, None) => whole,
            (Zeros::Sparse, None) => zeros(&mem, offset, unit),
            (_, Some(below)) => {
                let other = self.buffer(piece.len).await;
                match below.read(offset, &other).await {
                    Ok(()) => alike(&mem, &other, offset, unit),
                    Err(error) => return Err(CopyError::new(Step::Read, offset, error)),
                }
            }
        };
        let data = |range: Range<usize>| {
            let at = offset + range.start as u64;
            Request::write(at, mem.slice(range)).with(self.target.flags)
        };
        let mut writes = Writes::default();
        for part in parts {
            match (part, &self.helpers.compressors) {
                (Part::Data(range), None) => writes.plain.push(data(range)),
                (Part::Data(range), Some(compressors)) => {
                    for packed in compressors.compress(offset, &mem, range).await {
                        match packed {
                            Packed::Plain(range) => writes.plain.push(data(range)),
                            Packed::Compressed(at, one) => writes.compressed.push((at, one)),
                        }
                    }
                }
                (Part::Spare(range), _)
                    if matches!(self.manner.under, Under::Unknown | Under::Shared) =>
                {
                    writes.plain.push(zero(offset + range.start as u64, range.len() as u64));
                }
                (Part::Spare(_), _) => (),
            }
        }
        Ok(writes)
    }

    async fn buffer(&self, len: u64) -> IoMem {
        let len = usize::try_from(len).expect("a piece is small");
        self.buffers.take(len).await.mem()
    }

    async fn read(&self, piece: &Piece, mem: &IoMem) -> Result<(), CopyError> {
        let read = match (&self.helpers.readers, piece.task) {
            (Some(readers), Task::Unpack) => readers.read(piece.offset, mem).await,
            _ => self.sources.read(piece.offset, mem).await,
        };
        match read {
            Ok(()) => Ok(()),
            Err(_) if self.manner.salvage == Salvage::Yes => {
                salvage::read(&self.sources, piece.offset, mem).await;
                Ok(())
            }
            Err(error) => Err(CopyError::new(Step::Read, piece.offset, error)),
        }
    }

    /// Hands all requests to the queue, in order, and waits for none unless the queue is full. What is compressed is
    /// written here.
    async fn send(&self, offset: u64, writes: Writes) -> Result<VecDeque<Receipt>, CopyError> {
        let failed = |error| CopyError::new(Step::Write, offset, error);
        let mut receipts = VecDeque::new();
        for request in writes.plain {
            let mut request = Some(request);
            while let Some(one) = request.take() {
                match (self.target.disk.submit(one), receipts.is_empty()) {
                    (Ok(receipt), _) => receipts.push_back(receipt),
                    (Err(WouldBlock(one)), true) => {
                        self.target.disk.request(one).await.map_err(failed)?
                    }
                    (Err(WouldBlock(one)), false) => {
                        let oldest: Receipt = receipts.pop_front().expect("there is one");
                        oldest.await.map_err(failed)?;
                        request = Some(one);
                    }
                }
            }
        }
        if let Some(compressors) = &self.helpers.compressors {
            let written = compressors.write(writes.compressed).await;
            written.map_err(|(at, error)| CopyError::new(Step::Write, at, error))?;
        }
        Ok(receipts)
    }
}

async fn all(receipts: VecDeque<Receipt>) -> Result<(), IoError> {
    let mut result = Ok(());
    for receipt in receipts {
        result = result.and(receipt.await);
    }
    result
}
