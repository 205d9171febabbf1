//! The targets of a queue, each until the last handle of it is dropped and its last request has ended: an image that
//! nobody uses any more is not to stay open, and locked, because a queue goes on.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};

use crate::error::{IoError, Result};
use crate::inbox::Inbox;
use crate::lane::Lane;
use crate::request::Request;
use crate::target::Target;
use crate::tasks::{Pool, pool};

/// The targets by number. Numbers are used again.
#[derive(Default)]
pub(crate) struct Ports {
    pools: Vec<Option<Box<dyn Pool>>>,
    free: Vec<usize>,
    /// Those without a handle whose requests have not all ended.
    abandoned: Vec<usize>,
}

/// What all handles of one port share.
pub(crate) struct Port {
    pub(crate) inbox: Rc<Inbox>,
    pub(crate) number: usize,
}

impl Drop for Port {
    fn drop(&mut self) {
        self.inbox.abandon(self.number);
    }
}

impl Ports {
    pub(super) fn add<T: Target>(&mut self, target: &Arc<T>, lane: &Lane) -> usize {
        let pool = Some(pool(target.clone(), lane.clone()));
        if let Some(number) = self.free.pop() {
            self.pools[number] = pool;
            return number;
        }
        self.pools.push(pool);
        self.pools.len() - 1
    }

    fn get(&mut self, number: usize) -> &mut dyn Pool {
        let pool = self.pools[number].as_deref_mut();
        pool.expect("a port stays while it has handles or requests")
    }

    pub(super) fn start(&mut self, number: usize, request: Request) -> usize {
        self.get(number).start(request)
    }

    pub(super) fn poll(
        &mut self,
        number: usize,
        place: usize,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<()>> {
        self.get(number).poll(place, cx)
    }

    /// The ECANCELED of a request that still waited and is dropped now; `None` if it goes on.
    pub(super) fn withdraw(&mut self, number: usize, place: usize) -> Option<IoError> {
        self.get(number).withdraw(place)
    }

    /// Drops a request wherever it stands, and gives its ECANCELED.
    pub(super) fn cancel(&mut self, number: usize, place: usize) -> IoError {
        self.get(number).cancel(place)
    }

    pub(super) fn finish(&mut self, number: usize, place: usize) {
        self.get(number).finish(place);
    }

    /// An error of a request that was not started.
    pub(super) fn error(&mut self, number: usize, request: &Request, errno: i32) -> IoError {
        let path = self.get(number).path();
        IoError::new(path, request.operation(), request.offset, errno)
    }

    /// Lets all targets begin what they keep for a quiet moment; says whether one did.
    pub(super) fn idle(&self) -> bool {
        self.pools.iter().flatten().fold(false, |begun, pool| begun | pool.idle())
    }

    /// Drops the targets that nobody can reach and that have nothing left to do. To be called when every accepted
    /// request was started.
    pub(super) fn drop_abandoned(&mut self, inbox: &Inbox) {
        inbox.take_abandoned(&mut self.abandoned);
        for number in std::mem::take(&mut self.abandoned) {
            if self.get(number).is_empty() {
                self.pools[number] = None;
                self.free.push(number);
            } else {
                self.abandoned.push(number);
            }
        }
    }
}
