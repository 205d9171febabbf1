//! A raw image whose format was only probed.
//!
//! Whoever writes its first sector decides what it is taken for when it is next opened. So a write that would make it
//! look like another format is refused, as qemu-img and qemu-io refuse it; all others go through.

use std::sync::Arc;

use blkring_engine::tracker::{Class, Span, Tracker};
use blkring_engine::{
    Action, Context, IoError, IoMem, Operation, RawDisk, Request, Result, Service, Target, Topology,
};

use crate::options::Format;
use crate::probe::{Guess, SECTOR, guess};

/// The image behind its guard.
pub struct ProbedRaw {
    disk: Arc<RawDisk>,
    /// Changes of the first sector, one after the other: each is judged by what it would leave there.
    changes: Arc<Tracker>,
}

impl ProbedRaw {
    /// Guards `disk`.
    pub fn new(disk: Arc<RawDisk>) -> Arc<Self> {
        Arc::new(ProbedRaw { disk, changes: Tracker::new() })
    }

    /// What is behind the guard.
    pub fn disk(&self) -> &Arc<RawDisk> {
        &self.disk
    }

    /// Runs a change of the first sector, unless it would change the answer of the next probe. The memory is the
    /// program's own, and nobody changes it meanwhile.
    async fn judge(&self, context: Context, request: Request) -> Result<()> {
        let sector = Span::at(0, SECTOR as u64);
        let _one_by_one = self.changes.begin(sector, Class::Serialising).await;
        let here = IoMem::from(vec![0; SECTOR]);
        self.disk.storage().read(&context.lane, 0, &here).await?;
        let from = usize::try_from(request.offset).expect("within the first sector");
        let len = usize::try_from(request.len()).unwrap_or(usize::MAX).min(SECTOR - from);
        match &request.action {
            Action::Write(mem) => {
                let mut bytes = vec![0; len];
                mem.copy_out(0, &mut bytes);
                here.copy_in(from, &bytes);
            }
            _ => here.fill(from..from + len, 0),
        }
        if guess(&here.to_vec()) != Guess::Known(Format::Raw) {
            let path = self.disk.path();
            return Err(IoError::new(path, Operation::Write, request.offset, libc::EPERM));
        }
        Arc::clone(&self.disk).run(context, request).await
    }
}

impl Target for ProbedRaw {
    async fn run(self: Arc<Self>, context: Context, request: Request) -> Result<()> {
        let changes = !matches!(request.action, Action::Read(_) | Action::Flush);
        if changes && request.offset < SECTOR as u64 && !request.is_empty() {
            self.judge(context, request).await
        } else {
            Arc::clone(&self.disk).run(context, request).await
        }
    }

    fn service(&self) -> Option<&Arc<Service>> {
        self.disk.service()
    }

    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn topology(&self) -> Topology {
        self.disk.topology()
    }

    fn path(&self) -> &Arc<str> {
        self.disk.path()
    }
}
