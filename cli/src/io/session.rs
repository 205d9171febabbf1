//! A session: a queue, the image that is open on it, and the requests that it still waits for.

use std::time::{Duration, Instant};

use blkring_engine::{Access, Flags, IoError, Queue, QueueOptions, Request};

use super::blocks;
use super::breakpoints;
use super::command::{self, Command, Kind, Present, Transfer, Wait};
use super::compressed;
use super::help;
use super::opened::{Closed, Opened};
use super::pending::{Pending, Requests};
use super::text::{Style, human};
use super::truncate;
use super::wish::{Change, CopyOnRead, Discard, Wish};
use crate::backend;
use crate::disk::AnyDisk;
use crate::failure::Failure;
use crate::image_name::Syntax;
use crate::name;
use crate::text::describe;

/// What comes after a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// The next one.
    Go,
    /// The next one; this one failed.
    GoFailed,
    /// Nothing.
    Quit,
}

/// How the words for images that are opened by commands are read, and what holds for every request.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// How a word for an image is read.
    pub syntax: Syntax,
    /// Where buffers begin.
    pub placement: Placement,
}

/// Where buffers begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Where direct I/O wants them.
    Aligned,
    /// Elsewhere, so that direct I/O has to copy.
    Misaligned,
}

/// The state between commands.
pub struct Session {
    queue: Queue,
    settings: Settings,
    opened: Option<Opened>,
    requests: Requests,
}

impl Session {
    /// A session in which no image is open.
    ///
    /// # Errors
    /// If there is no ring.
    pub fn new(settings: Settings) -> Result<Self, Failure> {
        let queue = new_queue()?;
        Ok(Session { queue, settings, opened: None, requests: Requests::default() })
    }

    /// Opens the first image.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub fn begin_with(&mut self, wish: &Wish) -> Result<(), Failure> {
        if backend::asked() != wish.aio {
            // Nothing is open on the queue that there is.
            backend::ask_for(wish.aio);
            self.queue = new_queue()?;
        }
        self.opened = Some(Opened::open(&mut self.queue, wish)?);
        Ok(())
    }

    /// Whether something was begun and has not ended.
    pub fn is_busy(&self) -> bool {
        !self.requests.is_empty()
    }

    /// Lets what was begun go on, for a moment.
    ///
    /// # Errors
    /// If the queue fails as a whole.
    pub fn turn(&mut self) -> Result<(), Failure> {
        self.queue.turn()?;
        self.requests.take_completions(&mut self.queue);
        Ok(())
    }

    /// Runs one line.
    ///
    /// # Errors
    /// If the queue fails as a whole. What a request meets is printed.
    pub fn execute(&mut self, line: &str) -> Result<Next, Failure> {
        let present = if self.opened.is_some() { Present::Image } else { Present::Nothing };
        let command = match command::parse(line, present) {
            Ok(None) => return Ok(Next::Go),
            Ok(Some(command)) => command,
            Err(complaint) => {
                complaint.print();
                return Ok(Next::GoFailed);
            }
        };
        let Some(mut opened) = self.opened.take() else { return self.without(command) };
        let next = self.with(&mut opened, command);
        match next {
            Ok(After::Keep(next)) => {
                self.opened = Some(opened);
                Ok(next)
            }
            Ok(After::Close) => self.close(opened)?.map_or_else(told, |_| Ok(Next::Go)),
            Ok(After::Reopen(change)) => match self.close(opened)? {
                Ok(closed) => match Opened::reopen(&mut self.queue, closed, &change) {
                    Ok(again) => {
                        self.opened = Some(again);
                        Ok(Next::Go)
                    }
                    Err(failure) => told(failure),
                },
                Err(failure) => told(failure),
            },
            Err(failure) => Err(failure),
        }
    }

    /// Waits for what was begun, and closes the image.
    ///
    /// # Errors
    /// If the queue fails as a whole, or the image cannot be closed.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.requests.drain(&mut self.queue)?;
        match self.opened.take() {
            Some(opened) => opened.close(&mut self.queue).map(drop),
            None => Ok(()),
        }
    }

    /// Closes the image when everything has ended, and begins a new queue, on which nothing of the image is
    /// left. The inner error is of the image.
    fn close(&mut self, opened: Opened) -> Result<Result<Closed, Failure>, Failure> {
        self.requests.drain(&mut self.queue)?;
        let closed = opened.close(&mut self.queue);
        self.queue = new_queue()?;
        Ok(closed)
    }

    /// A command while no image is open: only those come here that need none.
    fn without(&mut self, command: Command) -> Result<Next, Failure> {
        match command {
            Command::Open(wish) => {
                let wish = Wish { syntax: self.settings.syntax, ..wish };
                self.begin_with(&wish).map_or_else(told, |()| Ok(Next::Go))
            }
            other => self.anywhere(other),
        }
    }

    /// A command that has nothing to do with an image.
    fn anywhere(&mut self, command: Command) -> Result<Next, Failure> {
        match command {
            Command::Sleep(milliseconds) => self.sleep(Duration::from_millis(milliseconds)),
            Command::Help(None) => {
                print!("{}", help::list());
                Ok(Next::Go)
            }
            Command::Help(Some((entry, name))) => {
                print!("{}", help::about(&name, entry));
                Ok(Next::Go)
            }
            Command::Say(text) => {
                println!("{text}");
                Ok(Next::Go)
            }
            Command::Unsupported { what } => {
                println!("{what}: Operation not supported");
                Ok(Next::GoFailed)
            }
            Command::Abort => std::process::abort(),
            Command::Raise(signal) => {
                raise(signal);
                Ok(Next::Go)
            }
            _ => Ok(Next::Quit),
        }
    }

    fn with(&mut self, opened: &mut Opened, command: Command) -> Result<After, Failure> {
        let next = match command {
            Command::Transfer(transfer) => self.transfer(opened, &transfer)?,
            Command::Discard { offset, len, style } => self.discard(opened, offset, len, style)?,
            Command::AioFlush => {
                self.requests.drain(&mut self.queue)?;
                Next::Go
            }
            Command::Flush => self.flush(opened)?,
            Command::Truncate { size, mode } => {
                self.requests.drain(&mut self.queue)?;
                complained(truncate::run(&mut self.queue, opened, size, &mode)?)
            }
            Command::Length => {
                println!("{}", human(opened.size() as f64));
                Next::Go
            }
            Command::Info => {
                print!("{}", opened.image.summary());
                Next::Go
            }
            Command::Alloc { offset, len } => {
                let lines = blocks::alloc(&mut self.queue, opened, offset, len)?;
                printed("is_allocated", lines)
            }
            Command::Map => printed("map", blocks::map(&mut self.queue, opened)?),
            Command::Break { event, tag } => breakpoints::set(opened, &event, &tag),
            Command::RemoveBreak(tag) => breakpoints::remove(opened, &tag),
            Command::Resume(tag) => breakpoints::resume(opened, &tag),
            Command::WaitBreak(tag) => self.wait_break(opened, &tag)?,
            Command::Close => return Ok(After::Close),
            Command::Reopen(change) => return Ok(After::Reopen(change)),
            Command::Open(_) => {
                name::complain("file open already, try 'help close'");
                Next::GoFailed
            }
            other => self.anywhere(other)?,
        };
        Ok(After::Keep(next))
    }

    /// How a request for bytes fails is no failure of a command that does not wait for it.
    fn transfer(&mut self, opened: &Opened, transfer: &Transfer) -> Result<Next, Failure> {
        let write = transfer.changes();
        if write && refuses_writes(opened) {
            return Ok(Next::GoFailed);
        }
        let memory = match transfer.buffers(self.settings.placement) {
            Ok(memory) => memory,
            Err(complaint) => {
                eprintln!("{complaint}");
                return Ok(Next::GoFailed);
            }
        };
        let offset = transfer.offset;
        let mut flags =
            if write { transfer.flags | opened.cache().write_flags() } else { Flags::empty() };
        if opened.discard == Discard::Ignored {
            flags.remove(Flags::MAY_UNMAP);
        }
        let (request, read) = match transfer.kind {
            Kind::Read { check, dump } => {
                (Request::read(offset, memory.clone()), Some((memory, check, dump)))
            }
            Kind::Write(_) => (Request::write(offset, memory).with(flags), None),
            Kind::Zero => (Request::write_zeroes(offset, transfer.len()).with(flags), None),
            Kind::State => return Ok(unsupported(opened, transfer)),
            Kind::Compressed(_) => {
                self.requests.drain(&mut self.queue)?;
                let pending = Pending::of(transfer, None);
                let result = compressed::write(&mut self.queue, opened, offset, &memory)?;
                return Ok(pending.end(result));
            }
        };
        if read.is_some() && opened.copy_on_read == CopyOnRead::Yes {
            self.requests.drain(&mut self.queue)?;
            if let Err(error) = blocks::copy(&mut self.queue, opened, offset, transfer.len())? {
                println!("{} failed: {}", transfer.name, describe(error.errno));
                return Ok(Next::GoFailed);
            }
        }
        let pending = Pending::of(transfer, read);
        let id = self.requests.begin(&mut self.queue, &opened.disk, request, pending)?;
        match transfer.wait {
            Wait::Now => self.requests.wait_for(&mut self.queue, id),
            Wait::Later => Ok(Next::Go),
        }
    }

    fn discard(
        &mut self,
        opened: &Opened,
        offset: u64,
        len: u64,
        style: Style,
    ) -> Result<Next, Failure> {
        if refuses_writes(opened) {
            return Ok(Next::GoFailed);
        }
        let pending = Pending {
            name: "discard",
            verb: "discard",
            offset,
            len,
            style,
            read: None,
            begun: Instant::now(),
        };
        let inside = offset.checked_add(len).is_some_and(|end| end <= opened.size());
        if opened.discard == Discard::Ignored && inside {
            return Ok(pending.end(Ok(())));
        }
        let request = Request::discard(offset, len);
        let id = self.requests.begin(&mut self.queue, &opened.disk, request, pending)?;
        self.requests.wait_for(&mut self.queue, id)
    }

    fn flush(&mut self, opened: &Opened) -> Result<Next, Failure> {
        if !opened.cache().flushes() || opened.access() == Access::ReadOnly {
            return Ok(Next::Go);
        }
        let pending = Pending {
            name: "flush",
            verb: "flush",
            offset: 0,
            len: 0,
            style: Style::Quiet,
            read: None,
            begun: Instant::now(),
        };
        let request = Request::flush();
        let id = self.requests.begin(&mut self.queue, &opened.disk, request, pending)?;
        self.requests.wait_for(&mut self.queue, id)
    }

    /// The queue goes on until a request waits under this tag.
    fn wait_break(&mut self, opened: &Opened, tag: &str) -> Result<Next, Failure> {
        let Some(faults) = opened.faults() else { return Ok(breakpoints::cannot_wait()) };
        while faults.stopped(tag) == 0 {
            self.queue.wait()?;
            self.requests.take_completions(&mut self.queue);
        }
        Ok(Next::Go)
    }

    /// The queue goes on while the session sleeps: what was begun ends and is told.
    fn sleep(&mut self, duration: Duration) -> Result<Next, Failure> {
        /// How long a request that ends may stay unnoticed.
        const STEP: Duration = Duration::from_millis(1);
        let begun = Instant::now();
        loop {
            let left = duration.saturating_sub(begun.elapsed());
            if !self.is_busy() || left.is_zero() {
                std::thread::sleep(left);
                return Ok(Next::Go);
            }
            self.turn()?;
            std::thread::sleep(left.min(STEP));
        }
    }
}

fn new_queue() -> Result<Queue, Failure> {
    backend::queue(QueueOptions::default())
}

/// What becomes of the open image after a command.
enum After {
    Keep(Next),
    Close,
    Reopen(Change),
}

/// A failure of a command: the session goes on.
fn told(failure: Failure) -> Result<Next, Failure> {
    name::complain(failure.text(name::own()));
    Ok(Next::GoFailed)
}

fn complained(result: Result<(), String>) -> Next {
    match result {
        Ok(()) => Next::Go,
        Err(text) => {
            name::complain(text);
            Next::GoFailed
        }
    }
}

fn printed(what: &str, result: Result<String, IoError>) -> Next {
    match result {
        Ok(text) => {
            print!("{text}");
            Next::Go
        }
        Err(error) => {
            println!("{what} failed: {}", describe(error.errno));
            Next::GoFailed
        }
    }
}

fn refuses_writes(opened: &Opened) -> bool {
    if opened.access() == Access::ReadOnly {
        name::complain("Block node is read-only");
    }
    opened.access() == Access::ReadOnly
}

/// What raw images have not; of qcow2 images it is said what is missing.
fn unsupported(opened: &Opened, transfer: &Transfer) -> Next {
    println!("{} failed: Operation not supported", transfer.name);
    if matches!(opened.image, AnyDisk::Qcow2(_)) {
        name::complain("-b: the state of a virtual machine cannot be read or written here");
    }
    Next::GoFailed
}

/// Sends a signal to this process; one that there is not is passed over.
fn raise(signal: i32) {
    let known = rustix::process::Signal::from_named_raw(signal);
    let sent = known.map(|signal| rustix::process::kill_process(rustix::process::getpid(), signal));
    if let Some(Err(error)) = sent {
        name::complain(format!("signal {signal}: {error}"));
    }
}
