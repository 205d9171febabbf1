//! Requests on their way, and what is told when they end.

use std::collections::HashMap;
use std::io::Read;
use std::time::Instant;

use blkring_engine::{BufferPool, Completion, Disk, IoError, IoMem, Queue, Request, WouldBlock};

use super::check::Check;
use super::command::{Dump, Fill, Kind, Transfer};
use super::session::{Next, Placement};
use super::text::{Style, dump, report};
use crate::failure::Failure;
use crate::name::{self, Name};
use crate::text::{describe, reason};

/// What was begun and has not ended.
#[derive(Default)]
pub struct Requests {
    /// By user data.
    pending: HashMap<u64, Pending>,
    /// The user data of the next request.
    next: u64,
}

/// A request on its way, with what is to be told at its end.
pub struct Pending {
    /// The verb of error messages.
    pub name: &'static str,
    /// The verb of reports.
    pub verb: &'static str,
    /// Where, in bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// How its end is told.
    pub style: Style,
    /// Of a read: where the bytes are, what they should be, whether they are printed.
    pub read: Option<(IoMem, Option<Check>, Dump)>,
    /// When it was begun.
    pub begun: Instant,
}

impl Requests {
    /// Whether everything has ended.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Hands a request to the queue, waiting for room if there is none.
    pub fn begin(
        &mut self,
        queue: &mut Queue,
        disk: &Disk,
        request: Request,
        pending: Pending,
    ) -> Result<u64, Failure> {
        let id = self.next;
        self.next += 1;
        let mut request = request;
        while let Err(WouldBlock(back)) = disk.queue(request, id) {
            request = back;
            queue.wait()?;
            self.take_completions(queue);
        }
        self.pending.insert(id, pending);
        Ok(id)
    }

    /// Waits for one request; what ends before it is told as well.
    pub fn wait_for(&mut self, queue: &mut Queue, id: u64) -> Result<Next, Failure> {
        let mut next = Next::Go;
        while self.pending.contains_key(&id) {
            queue.wait()?;
            let ended = self.take_completions(queue);
            if let Some((_, own)) = ended.into_iter().find(|ended| ended.0 == id) {
                next = own;
            }
        }
        Ok(next)
    }

    /// Waits for everything.
    pub fn drain(&mut self, queue: &mut Queue) -> Result<(), Failure> {
        while !self.pending.is_empty() {
            queue.wait()?;
            self.take_completions(queue);
        }
        Ok(())
    }

    /// Tells of what has ended.
    pub fn take_completions(&mut self, queue: &mut Queue) -> Vec<(u64, Next)> {
        let mut ended = Vec::new();
        for Completion { user_data, result, .. } in queue.completions() {
            if let Some(pending) = self.pending.remove(&user_data) {
                ended.push((user_data, pending.end(result)));
            }
        }
        ended
    }
}

impl Pending {
    /// A transfer that begins now; of a read with where its bytes go.
    pub fn of(transfer: &Transfer, read: Option<(IoMem, Option<Check>, Dump)>) -> Self {
        Pending {
            name: transfer.name,
            verb: if transfer.changes() { "wrote" } else { "read" },
            offset: transfer.offset,
            len: transfer.len(),
            style: transfer.style,
            read,
            begun: Instant::now(),
        }
    }

    /// Tells of its end.
    pub fn end(self, result: Result<(), IoError>) -> Next {
        let taken = self.begun.elapsed();
        if let Err(error) = result {
            let why = match error.reason {
                Some(reason) if name::own() == Name::Blkring => format!(" ({reason})"),
                _ => String::new(),
            };
            println!("{} failed: {}{why}", self.name, describe(error.errno));
            return Next::GoFailed;
        }
        let mut next = Next::Go;
        // Nobody copies what nobody looks at.
        if let Some((memory, check, dumped)) = self.read
            && (check.is_some() || dumped == Dump::Yes)
        {
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

impl Transfer {
    /// Whether it changes the image.
    pub fn changes(&self) -> bool {
        !matches!(self.kind, Kind::Read { .. } | Kind::State)
    }

    /// The memory of a request with what is to be written, aligned for direct I/O where the lengths and `placement`
    /// allow it.
    pub fn buffers(&self, placement: Placement) -> Result<IoMem, String> {
        if matches!(self.kind, Kind::Zero | Kind::State) {
            return Ok(IoMem::from(Vec::new()));
        }
        let pool = BufferPool::new(usize::MAX);
        let parts = self.lengths.iter().map(|len| {
            let len = usize::try_from(*len).unwrap_or(usize::MAX);
            let skip = if placement == Placement::Misaligned { MISALIGNMENT } else { 0 };
            let taken = len.checked_add(skip).and_then(|len| pool.try_take(len));
            let memory = taken.ok_or_else(|| "Out of memory".to_owned())?.mem();
            Ok(memory.slice(skip..skip + len))
        });
        let parts: Vec<IoMem> = parts.collect::<Result<_, String>>()?;
        let memory = match &parts[..] {
            [part] => part.clone(),
            parts => IoMem::concat(parts),
        };
        match &self.kind {
            Kind::Write(fill) | Kind::Compressed(fill) => fill.apply(&memory)?,
            Kind::Read { .. } | Kind::Zero | Kind::State => (),
        }
        Ok(memory)
    }
}

/// How far beyond an aligned address a misaligned buffer begins: no device has so small blocks.
const MISALIGNMENT: usize = 16;

impl Fill {
    fn apply(&self, memory: &IoMem) -> Result<(), String> {
        let path = match self {
            Fill::Byte(byte) => {
                memory.fill(0..memory.len(), *byte);
                return Ok(());
            }
            Fill::File(path) => path,
        };
        let bytes = beginning(path, memory.len());
        let bytes = bytes.map_err(|error| format!("{path}: {}", reason(&error)))?;
        if bytes.is_empty() {
            return Err(format!("{path}: file is empty"));
        }
        let mut at = 0;
        while at < memory.len() {
            let part = bytes.len().min(memory.len() - at);
            memory.copy_in(at, bytes.get(..part).unwrap_or_default());
            at += part;
        }
        Ok(())
    }
}

/// What a file has, of what it begins with no more than `most` bytes: it may have no end.
fn beginning(path: &str, most: usize) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}
