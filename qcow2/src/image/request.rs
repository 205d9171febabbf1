//! The door of an image: what queues call. Check, admit, and on to the reads and writes.

use std::sync::Arc;

use blkring_engine::tracker::{Class, Guard, Span};
use blkring_engine::{
    Access, Action, Context, IoError, Operation, Request, Result, Service, Target,
};

use super::Image;
use super::cut::Holder;
use super::layer::Layer;
use super::state::{SharedJob, State};
use super::write::Grant;
use crate::address::HostOffset;

impl Target for Image {
    async fn run(self: Arc<Self>, context: Context, request: Request) -> Result<()> {
        let _inside = self.counters.enter(&request);
        self.check(&request)?;
        let (offset, flags) = (request.offset, request.flags);
        match &request.action {
            Action::Read(mem) => {
                let _grant = self.admit(offset, mem.len() as u64, Class::Shared).await;
                self.check_open(&request)?;
                self.chain.read_guest(&context.lane, offset, mem).await
            }
            Action::Write(mem) => {
                let guard = self.admit(offset, mem.len() as u64, Class::Shared).await;
                self.check_open(&request)?;
                self.write_guest(&context, offset, mem, flags, &mut Grant::Own(guard)).await
            }
            Action::WriteZeroes(len) => {
                let _parts = self.parts.begin(Span::new(0, 1), Class::Shared).await;
                self.check_open(&request)?;
                self.zero_guest(&context, offset, *len, flags).await
            }
            Action::Discard(len) => {
                let _parts = self.parts.begin(Span::new(0, 1), Class::Shared).await;
                self.check_open(&request)?;
                self.discard_guest(&context, offset, *len).await
            }
            Action::Flush => self.flush_metadata().await,
            _ => Err(self.error(Operation::Open, offset, libc::ENOTSUP)),
        }
    }

    fn service(&self) -> Option<&Arc<Service>> {
        Some(&self.service)
    }

    fn size(&self) -> u64 {
        self.info.virtual_size
    }

    fn path(&self) -> &Arc<str> {
        self.top.storage.path()
    }
}

impl Image {
    fn error(&self, operation: Operation, offset: u64, errno: i32) -> IoError {
        self.top.error(operation, offset, errno)
    }

    /// To be asked again once a request is admitted: closing may have begun while it waited.
    fn check_open(&self, request: &Request) -> Result<()> {
        if self.closing.lock().is_some() {
            return Err(self.error(operation(request), request.offset, libc::ESHUTDOWN));
        }
        Ok(())
    }

    fn check(&self, request: &Request) -> Result<()> {
        let operation = operation(request);
        self.check_open(request)?;
        let changes = !matches!(operation, Operation::Read | Operation::Flush);
        if changes && self.top.storage.access() == Access::ReadOnly {
            return Err(self.error(operation, request.offset, libc::EPERM));
        }
        let end = request.offset.checked_add(request.len());
        if operation != Operation::Flush && end.is_none_or(|end| end > self.info.virtual_size) {
            return Err(self.error(operation, request.offset, libc::EIO));
        }
        Ok(())
    }

    /// Waits for the grant of a range. The class is fixed here: what is mapped is not known yet.
    pub(super) async fn admit(&self, offset: u64, len: u64, class: Class) -> Guard {
        self.tracker.begin(Span::at(offset, len), class).await
    }

    /// Marks the image as damaged: a mapping leads into its own structures. Nothing is written to it any more.
    pub(super) async fn mark_corrupt(&self, at: HostOffset) -> IoError {
        let (error, marking) = {
            let mut state = self.top.lock();
            self.top.found_corrupt(&mut state, at)
        };
        drop(marking.join().await);
        error
    }
}

fn operation(request: &Request) -> Operation {
    match request.action {
        Action::Read(_) => Operation::Read,
        Action::WriteZeroes(_) => Operation::WriteZeroes,
        Action::Discard(_) => Operation::Discard,
        Action::Flush => Operation::Flush,
        _ => Operation::Write,
    }
}

impl Layer {
    /// Something would be written over the image's own structures at `at`: nothing is written any more, and the job
    /// that marks the image begins. Who holds the slot must not wait for it.
    pub(super) fn found_corrupt(
        self: &Arc<Self>,
        state: &mut State,
        at: HostOffset,
    ) -> (IoError, SharedJob) {
        let error = self.error(Operation::Map, at.get(), libc::EIO);
        state.failure.get_or_insert(error.clone());
        let layer = self.clone();
        let begin = || self.service.start(layer.mark_corrupt(at));
        (error, state.work.marking.get_or_insert_with(begin).clone())
    }

    /// Sets the corrupt bit, durably. Under the slot: a refill may be about to name another refcount table.
    async fn mark_corrupt(self: Arc<Self>, at: HostOffset) -> Result<()> {
        let path = self.storage.path();
        tracing::error!(%path, offset = at.get(), "something leads into metadata: marked corrupt");
        self.take_slot(Holder::Marking, |_, _| ()).await;
        let bytes = {
            let mut header = self.header.lock();
            header.mark_corrupt();
            header.fixed_bytes()
        };
        let result = self.write_header(&bytes).await;
        if let Err(error) = &result {
            tracing::error!(%error, "the corrupt bit could not be written");
        }
        self.give_slot_up();
        result
    }
}
