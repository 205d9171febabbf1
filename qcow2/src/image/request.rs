//! The door of an image: what queues call. Check, admit, and on to the reads and writes.

use std::sync::Arc;

use blkring_engine::tracker::{Class, Guard, Span};
use blkring_engine::{
    Access, Action, Context, IoError, Operation, Request, Result, Service, Target, Topology,
};

use super::Image;
use super::write::Grant;

impl Target for Image {
    async fn run(self: Arc<Self>, context: Context, request: Request) -> Result<()> {
        let _inside = self.counters.enter(&request);
        self.check(&request)?;
        let result = self.run_checked(&context, &request).await;
        if result.is_err() {
            // An image that turned out to be damaged is marked before its guest is told.
            self.top.marked().await;
        }
        result
    }

    fn service(&self) -> Option<&Arc<Service>> {
        Some(&self.service)
    }

    fn idle(self: &Arc<Self>) -> bool {
        self.counters.is_idle() && self.closing.lock().is_none() && self.top.sync_when_idle()
    }

    fn size(&self) -> u64 {
        self.top.virtual_size()
    }

    fn topology(&self) -> Topology {
        let cluster = self.top.geometry.cluster_size();
        self.top.storage.topology().in_clusters(cluster)
    }

    fn path(&self) -> &Arc<str> {
        self.top.storage.path()
    }
}

impl Image {
    async fn run_checked(self: &Arc<Self>, context: &Context, request: &Request) -> Result<()> {
        let (offset, flags) = (request.offset, request.flags);
        match &request.action {
            Action::Read(mem) => {
                let _grant = self.admit(offset, mem.len() as u64, Class::Shared).await;
                self.check_open(request)?;
                self.chain.read_guest(&context.lane, offset, mem).await
            }
            Action::Write(mem) => {
                let guard = self.admit(offset, mem.len() as u64, Class::Shared).await;
                self.check_open(request)?;
                self.write_guest(context, offset, mem, flags, &mut Grant::Own(guard)).await
            }
            Action::WriteZeroes(len) => {
                let _parts = self.parts.begin(Span::new(0, 1), Class::Shared).await;
                self.check_open(request)?;
                self.zero_guest(context, offset, *len, flags).await
            }
            Action::Discard(len) => {
                let _parts = self.parts.begin(Span::new(0, 1), Class::Shared).await;
                self.check_open(request)?;
                self.discard_guest(context, offset, *len).await
            }
            Action::Flush => self.flush_metadata().await,
            _ => Err(self.error(Operation::Open, offset, libc::ENOTSUP)),
        }
    }

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
        if operation != Operation::Flush && end.is_none_or(|end| end > self.top.virtual_size()) {
            return Err(self.error(operation, request.offset, libc::EIO));
        }
        Ok(())
    }

    /// Waits for the grant of a range. The class is fixed here: what is mapped is not known yet.
    pub(super) async fn admit(&self, offset: u64, len: u64, class: Class) -> Guard {
        self.tracker.begin(Span::at(offset, len), class).await
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
