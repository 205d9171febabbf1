//! A raw disk: a storage as the target of queues.

use std::sync::Arc;

use crate::error::{IoError, Operation, Result};
use crate::request::{Action, Request};
use crate::service::Service;
use crate::storage::Storage;
use crate::target::{Context, Target};

/// Guest offsets are file offsets; the size is that of the file when it was opened.
pub struct RawDisk {
    storage: Arc<Storage>,
    size: u64,
}

impl RawDisk {
    /// The disk in `storage`.
    pub fn new(storage: Storage) -> Arc<Self> {
        let size = storage.size();
        Arc::new(RawDisk { storage: Arc::new(storage), size })
    }

    /// What it is stored in.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    fn check(&self, operation: Operation, request: &Request) -> Result<()> {
        let end = request.offset.checked_add(request.len());
        if end.is_some_and(|end| end <= self.size) {
            return Ok(());
        }
        Err(IoError::new(self.storage.path(), operation, request.offset, libc::EIO))
    }
}

impl Target for RawDisk {
    async fn run(self: Arc<Self>, context: Context, request: Request) -> Result<()> {
        let (storage, lane) = (&self.storage, &context.lane);
        let (offset, flags) = (request.offset, request.flags);
        match &request.action {
            Action::Read(mem) => {
                self.check(Operation::Read, &request)?;
                storage.read(lane, offset, mem).await
            }
            Action::Write(mem) => {
                self.check(Operation::Write, &request)?;
                storage.write(lane, offset, mem, flags).await
            }
            Action::WriteZeroes(len) => {
                self.check(Operation::WriteZeroes, &request)?;
                storage.write_zeroes(lane, offset, *len, flags).await
            }
            Action::Discard(len) => {
                self.check(Operation::Discard, &request)?;
                storage.discard(lane, offset, *len).await
            }
            Action::Flush => storage.flush(lane).await,
        }
    }

    fn service(&self) -> Option<&Arc<Service>> {
        None
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn path(&self) -> &Arc<str> {
        self.storage.path()
    }
}
