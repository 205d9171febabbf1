//! A stream of equal requests on one queue, as `qemu-img bench` makes them.
//!
//! The offset advances by a fixed step, modulo the size of the disk, so that a request may straddle the end; it then
//! fails, as any failed request does, and ends the run. All requests share one buffer.

use std::io;
use std::time::{Duration, Instant};

use blkring_engine::{Disk, Flags, IoError, IoMem, Queue, QueueOptions, Request};

/// What the requests do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Read.
    Read,
    /// Write the buffer as it is.
    Write,
}

/// What becomes of requests in flight when a flush is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// They end first, and nothing is submitted until the flush has ended.
    Yes,
    /// The flush is sent beside them.
    No,
}

/// Flushes between writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlushEvery {
    /// One is due whenever the number of requests not yet submitted is a multiple of this (not 0).
    pub interval: u32,
    /// What becomes of the writes in flight.
    pub drain: Drain,
}

/// What to do.
#[derive(Debug, Clone)]
pub struct Stream {
    /// Requests in all.
    pub count: u32,
    /// Requests in flight at most, flushes beside them not counted; at least 1.
    pub depth: u32,
    /// Bytes from the begin of one request to the begin of the next.
    pub step: u64,
    /// The begin of the first one.
    pub offset: u64,
    /// What they do.
    pub direction: Direction,
    /// How writes are done.
    pub flags: Flags,
    /// Flushes, if any.
    pub flush: Option<FlushEvery>,
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// A request failed.
    #[error(transparent)]
    Request(#[from] IoError),
    /// The queue as a whole failed.
    #[error("the queue failed: {0}")]
    Queue(#[from] io::Error),
}

/// The completions of flushes carry this; those of all others 0.
const FLUSH: u64 = 1;

impl Stream {
    /// Options of a queue for this stream.
    pub fn queue_options(&self) -> QueueOptions {
        // Twice the depth, so that flushes beside the requests find room.
        let requests = self.depth.min(self.count).max(1).saturating_mul(2);
        QueueOptions::with_requests(usize::try_from(requests).unwrap_or(usize::MAX))
    }

    /// Runs all requests, `memory` being the buffer of each, and says how long that took.
    ///
    /// # Errors
    /// [`StreamError`]: of the first request that failed, or of the queue.
    pub fn run(
        &self,
        queue: &mut Queue,
        disk: &Disk,
        memory: &IoMem,
    ) -> Result<Duration, StreamError> {
        let begun = Instant::now();
        let mut run = Run {
            stream: self,
            disk,
            memory,
            left: self.count,
            offset: self.offset,
            in_flight: 0,
            flushes: 0,
            due: false,
        };
        loop {
            run.submit();
            if run.is_over() {
                return Ok(begun.elapsed());
            }
            queue.wait()?;
            for completion in queue.completions() {
                completion.result?;
                match completion.user_data {
                    FLUSH => run.flushes -= 1,
                    _ => run.in_flight -= 1,
                }
            }
        }
    }
}

/// A stream on its way.
struct Run<'a> {
    stream: &'a Stream,
    disk: &'a Disk,
    memory: &'a IoMem,
    /// Requests not submitted yet.
    left: u32,
    /// Of the next request.
    offset: u64,
    in_flight: u32,
    flushes: u32,
    /// A flush is to be sent before anything else.
    due: bool,
}

impl Run<'_> {
    fn is_over(&self) -> bool {
        self.left == 0 && self.in_flight == 0 && self.flushes == 0 && !self.due
    }

    /// Submits whatever may be submitted now.
    fn submit(&mut self) {
        loop {
            let submitted = if self.due { self.submit_flush() } else { self.submit_transfer() };
            if !submitted {
                return;
            }
        }
    }

    fn drains(&self) -> bool {
        self.stream.flush.is_some_and(|flush| flush.drain == Drain::Yes)
    }

    fn submit_flush(&mut self) -> bool {
        if self.drains() && self.in_flight > 0 {
            return false;
        }
        let accepted = self.disk.queue(Request::flush(), FLUSH).is_ok();
        if accepted {
            self.due = false;
            self.flushes += 1;
        }
        accepted
    }

    fn submit_transfer(&mut self) -> bool {
        let held_back = self.drains() && self.flushes > 0;
        if held_back || self.left == 0 || self.in_flight >= self.stream.depth {
            return false;
        }
        let request = match self.stream.direction {
            Direction::Read => Request::read(self.offset, self.memory.clone()),
            Direction::Write => {
                Request::write(self.offset, self.memory.clone()).with(self.stream.flags)
            }
        };
        if self.disk.queue(request, 0).is_err() {
            return false;
        }
        self.left -= 1;
        self.in_flight += 1;
        self.offset = self.offset.saturating_add(self.stream.step);
        if self.disk.size() > 0 {
            self.offset %= self.disk.size();
        }
        self.due = self.stream.flush.is_some_and(|flush| self.left.is_multiple_of(flush.interval));
        true
    }
}
