//! An image with faults in what is asked of it.

use std::sync::Arc;

use blkring_engine::faults::{Effect, Event, Faults, Ops, Seen};
use blkring_engine::{
    Action, Context, Flags, IoError, Operation, Request, Result, Service, Target, Topology,
};

use crate::disk::AnyDisk;

/// Rules are asked of each request before the image is.
pub struct Injected {
    image: AnyDisk,
    faults: Arc<Faults>,
}

impl Injected {
    /// These faults before this image.
    pub fn new(image: &AnyDisk, faults: &Arc<Faults>) -> Arc<Self> {
        Arc::new(Injected { image: image.clone(), faults: faults.clone() })
    }

    /// The points that a request passes on its way.
    async fn ask(&self, request: &Request) -> Result<()> {
        let (op, operation, before) = match &request.action {
            Action::Read(_) => (Ops::READ, Operation::Read, None),
            Action::Write(_) if request.flags.contains(Flags::FUA) => {
                (Ops::DURABLE_WRITE, Operation::Write, Some(Event::Pwritev))
            }
            Action::Write(_) => (Ops::WRITE, Operation::Write, Some(Event::Pwritev)),
            Action::WriteZeroes(_) => {
                (Ops::ZERO_RANGE, Operation::WriteZeroes, Some(Event::PwritevZero))
            }
            Action::Discard(_) => (Ops::DISCARD, Operation::Discard, None),
            _ => (Ops::FLUSH, Operation::Flush, Some(Event::FlushToDisk)),
        };
        if let Some(event) = before {
            self.faults.pass(event).await;
        }
        let seen = Seen::new(op, request.offset, request.len());
        match self.faults.strike(&seen) {
            Some(Effect::Error(errno)) => {
                Err(IoError::new(self.path(), operation, request.offset, errno))
            }
            _ => Ok(()),
        }
    }

    async fn hand_on(&self, context: Context, request: Request) -> Result<()> {
        match &self.image {
            AnyDisk::Raw(disk) => Arc::clone(disk).run(context, request).await,
            AnyDisk::Probed(disk) => Arc::clone(disk).run(context, request).await,
            AnyDisk::Qcow2(image) => Arc::clone(image).run(context, request).await,
        }
    }
}

impl Target for Injected {
    async fn run(self: Arc<Self>, context: Context, request: Request) -> Result<()> {
        self.ask(&request).await?;
        let writes = matches!(request.action, Action::Write(_) | Action::WriteZeroes(_));
        let result = self.hand_on(context, request).await;
        if writes {
            self.faults.pass(Event::PwritevDone).await;
        }
        result
    }

    fn service(&self) -> Option<&Arc<Service>> {
        match &self.image {
            AnyDisk::Qcow2(image) => image.service(),
            AnyDisk::Raw(_) | AnyDisk::Probed(_) => None,
        }
    }

    fn idle(self: &Arc<Self>) -> bool {
        match &self.image {
            AnyDisk::Qcow2(image) => image.idle(),
            AnyDisk::Raw(_) | AnyDisk::Probed(_) => false,
        }
    }

    fn size(&self) -> u64 {
        match &self.image {
            AnyDisk::Raw(disk) => disk.size(),
            AnyDisk::Probed(disk) => disk.size(),
            AnyDisk::Qcow2(image) => image.size(),
        }
    }

    fn topology(&self) -> Topology {
        match &self.image {
            AnyDisk::Raw(disk) => disk.topology(),
            AnyDisk::Probed(disk) => disk.topology(),
            AnyDisk::Qcow2(image) => image.topology(),
        }
    }

    fn path(&self) -> &Arc<str> {
        self.image.storage().path()
    }
}
