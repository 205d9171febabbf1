//! A session: an image on a queue, and the requests that it still waits for.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use blkring_engine::{
    Access, BufferPool, Completion, Disk, Flags, IoError, IoMem, Queue, Request, WouldBlock,
};

use super::check::Check;
use super::command::{self, COMMANDS, Command, Dump, Fill, Kind, Transfer, Wait, usage};
use super::text::{Style, dump, human, report};
use crate::disk::AnyDisk;
use crate::failure::Failure;
use crate::name;
use crate::options::CacheMode;
use crate::text::{describe, reason};

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

/// The state between commands.
pub struct Session<'a> {
    queue: Queue,
    disk: Disk,
    image: &'a AnyDisk,
    access: Access,
    cache: CacheMode,
    /// What was begun and has not ended, by user data.
    pending: HashMap<u64, Pending>,
    /// The user data of the next request.
    next: u64,
}

/// A request on its way, with what is to be told at its end.
struct Pending {
    name: &'static str,
    verb: &'static str,
    offset: u64,
    len: u64,
    style: Style,
    read: Option<(IoMem, Option<Check>, Dump)>,
    begun: Instant,
}

impl<'a> Session<'a> {
    /// A session on `disk`, which is `image` on `queue`.
    pub fn new(
        queue: Queue,
        disk: Disk,
        image: &'a AnyDisk,
        access: Access,
        cache: CacheMode,
    ) -> Self {
        Session { queue, disk, image, access, cache, pending: HashMap::new(), next: 0 }
    }

    /// Runs one line.
    ///
    /// # Errors
    /// If the queue fails as a whole. What a request meets is printed.
    pub fn execute(&mut self, line: &str) -> Result<Next, Failure> {
        let command = match command::parse(line) {
            Ok(None) => return Ok(Next::Go),
            Ok(Some(command)) => command,
            Err(complaint) => {
                complaint.print();
                return Ok(Next::GoFailed);
            }
        };
        match command {
            Command::Transfer(transfer) => self.transfer(&transfer),
            Command::Discard { offset, len, style } => self.discard(offset, len, style),
            Command::AioFlush => self.drain(),
            Command::Flush => self.flush(),
            Command::Length => {
                println!("{}", human(self.disk.size() as f64));
                Ok(Next::Go)
            }
            Command::Info => {
                print!("{}", self.image.summary());
                Ok(Next::Go)
            }
            Command::Sleep(milliseconds) => self.sleep(Duration::from_millis(milliseconds)),
            Command::Help(Some(entry)) => {
                println!("{}", usage(entry));
                Ok(Next::Go)
            }
            Command::Help(None) => {
                COMMANDS.iter().for_each(|entry| println!("{}", usage(entry)));
                Ok(Next::Go)
            }
            Command::Quit => Ok(Next::Quit),
        }
    }

    /// Waits for what was begun, and closes the image.
    ///
    /// # Errors
    /// If the queue fails as a whole, or the image cannot be closed.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.drain()?;
        self.image.close(&mut self.queue)
    }

    /// How a request for bytes fails is no failure of a command that does not wait for it.
    fn transfer(&mut self, transfer: &Transfer) -> Result<Next, Failure> {
        let write = !matches!(transfer.kind, Kind::Read { .. });
        if write && self.refuses_writes() {
            return Ok(Next::GoFailed);
        }
        let memory = match buffers(transfer) {
            Ok(memory) => memory,
            Err(complaint) => {
                eprintln!("{complaint}");
                return Ok(Next::GoFailed);
            }
        };
        let flags = if write { transfer.flags | self.cache.write_flags() } else { Flags::empty() };
        let offset = transfer.offset;
        let (request, read) = match transfer.kind {
            Kind::Read { check, dump } => {
                (Request::read(offset, memory.clone()), Some((memory, check, dump)))
            }
            Kind::Write(_) => (Request::write(offset, memory).with(flags), None),
            Kind::Zero => (Request::write_zeroes(offset, transfer.len()).with(flags), None),
        };
        let id = self.begin(
            request,
            Pending {
                name: transfer.name,
                verb: if write { "wrote" } else { "read" },
                offset,
                len: transfer.len(),
                style: transfer.style,
                read,
                begun: Instant::now(),
            },
        )?;
        match transfer.wait {
            Wait::Now => self.wait_for(id),
            Wait::Later => Ok(Next::Go),
        }
    }

    fn discard(&mut self, offset: u64, len: u64, style: Style) -> Result<Next, Failure> {
        if self.refuses_writes() {
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
        let id = self.begin(Request::discard(offset, len), pending)?;
        self.wait_for(id)
    }

    fn flush(&mut self) -> Result<Next, Failure> {
        if !self.cache.flushes() || self.access == Access::ReadOnly {
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
        let id = self.begin(Request::flush(), pending)?;
        self.wait_for(id)
    }

    fn refuses_writes(&self) -> bool {
        if self.access == Access::ReadOnly {
            name::complain("Block node is read-only");
        }
        self.access == Access::ReadOnly
    }

    /// Hands a request to the queue, waiting for room if there is none.
    fn begin(&mut self, request: Request, pending: Pending) -> Result<u64, Failure> {
        let id = self.next;
        self.next += 1;
        let mut request = request;
        while let Err(WouldBlock(back)) = self.disk.queue(request, id) {
            request = back;
            self.queue.wait()?;
            self.take_completions();
        }
        self.pending.insert(id, pending);
        Ok(id)
    }

    fn wait_for(&mut self, id: u64) -> Result<Next, Failure> {
        let mut next = Next::Go;
        while self.pending.contains_key(&id) {
            self.queue.wait()?;
            if let Some(failed) = self.take_completions().into_iter().find(|ended| ended.0 == id) {
                next = failed.1;
            }
        }
        Ok(next)
    }

    fn drain(&mut self) -> Result<Next, Failure> {
        while !self.pending.is_empty() {
            self.queue.wait()?;
            self.take_completions();
        }
        Ok(Next::Go)
    }

    /// The queue goes on while the session sleeps: what was begun ends and is told.
    fn sleep(&mut self, duration: Duration) -> Result<Next, Failure> {
        /// How long a request that ends may stay unnoticed.
        const STEP: Duration = Duration::from_millis(1);
        let end = Instant::now() + duration;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if self.pending.is_empty() || left.is_zero() {
                std::thread::sleep(left);
                return Ok(Next::Go);
            }
            self.queue.turn()?;
            self.take_completions();
            std::thread::sleep(left.min(STEP));
        }
    }

    /// Tells of what has ended.
    fn take_completions(&mut self) -> Vec<(u64, Next)> {
        let mut ended = Vec::new();
        for Completion { user_data, result, .. } in self.queue.completions() {
            if let Some(pending) = self.pending.remove(&user_data) {
                ended.push((user_data, pending.end(result)));
            }
        }
        ended
    }
}

impl Pending {
    fn end(self, result: Result<(), IoError>) -> Next {
        let taken = self.begun.elapsed();
        if let Err(error) = result {
            println!("{} failed: {}", self.name, describe(error.errno));
            return Next::GoFailed;
        }
        let mut next = Next::Go;
        if let Some((memory, check, dumped)) = self.read {
            let bytes = memory.to_vec();
            if let Some(complaint) = check.and_then(|check| check.complaint(self.offset, &bytes)) {
                println!("{complaint}");
                next = Next::GoFailed;
            }
            if dumped == Dump::Yes && self.style != Style::Quiet {
                print!("{}", dump(self.offset, &bytes));
            }
        }
        print!("{}", report(self.style, self.verb, self.offset, self.len, taken));
        next
    }
}

/// The memory of a request, aligned for direct I/O where the lengths allow it, with what is to be written.
fn buffers(transfer: &Transfer) -> Result<IoMem, String> {
    if matches!(transfer.kind, Kind::Zero) {
        return Ok(IoMem::from(Vec::new()));
    }
    let lengths = transfer.lengths.iter().map(|len| usize::try_from(*len).unwrap_or(usize::MAX));
    let lengths: Vec<usize> = lengths.collect();
    let pool = BufferPool::new(usize::MAX);
    let parts = lengths.into_iter().map(|len| {
        pool.try_take(len).map(|buffer| buffer.mem()).ok_or_else(|| "Out of memory".to_owned())
    });
    let parts: Vec<IoMem> = parts.collect::<Result<_, _>>()?;
    let memory = match parts {
        ref parts if parts.len() == 1 => parts[0].clone(),
        parts => IoMem::concat(&parts),
    };
    match &transfer.kind {
        Kind::Write(Fill::Byte(byte)) => memory.fill(0..memory.len(), *byte),
        Kind::Write(Fill::File(path)) => {
            let bytes =
                std::fs::read(path).map_err(|error| format!("{path}: {}", reason(&error)))?;
            if bytes.is_empty() {
                return Err(format!("{path}: file is empty"));
            }
            let mut at = 0;
            while at < memory.len() {
                let part = bytes.len().min(memory.len() - at);
                memory.copy_in(at, bytes.get(..part).unwrap_or_default());
                at += part;
            }
        }
        Kind::Read { .. } | Kind::Zero => (),
    }
    Ok(memory)
}
