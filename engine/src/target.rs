//! What a queue drives: an image or a raw storage.

use std::future::Future;
use std::sync::Arc;

use blkring_tracker::sync::atomic::{AtomicBool, Ordering};

use crate::error::Result;
use crate::lane::Lane;
use crate::request::Request;
use crate::service::Service;
use crate::storage::Topology;

/// Something that answers requests. One target is driven by any number of queues.
pub trait Target: Send + Sync + 'static {
    /// Runs one request to its end. The future lives in the queue that calls this; its own ops go to
    /// [`Context::lane`], work that it shares with others to the [`Service`].
    fn run(
        self: Arc<Self>,
        context: Context,
        request: Request,
    ) -> impl Future<Output = Result<()>> + 'static;

    /// Where shared work issues its ops, if the target has any.
    fn service(&self) -> Option<&Arc<Service>>;

    /// Begins shared work that was left for a quiet moment, if there is any, and says whether it did. A queue asks in
    /// a turn that finds nothing to do, while none of its requests is unanswered; other queues may be busy.
    fn idle(self: &Arc<Self>) -> bool {
        false
    }

    /// The size in bytes that requests may reach.
    fn size(&self) -> u64;

    /// Its units and limits.
    fn topology(&self) -> Topology;

    /// The name in messages.
    fn path(&self) -> &Arc<str>;
}

/// What a handle of a target tells of it.
pub(crate) trait Facts {
    fn size(&self) -> u64;
    fn topology(&self) -> Topology;
}

impl<T: Target> Facts for T {
    fn size(&self) -> u64 {
        Target::size(self)
    }

    fn topology(&self) -> Topology {
        Target::topology(self)
    }
}

/// What a request knows of its queue.
#[derive(Clone)]
pub struct Context {
    /// The queue's lane. An operation that takes a slot of it commits the request.
    pub lane: Lane,
    progress: Arc<Progress>,
}

impl Context {
    pub(crate) fn new(lane: Lane, progress: Arc<Progress>) -> Self {
        Context { lane: lane.of_request(progress.clone()), progress }
    }

    /// For requests that shared work makes, with the lane of its service. They are nobody's, so nobody withdraws them.
    pub fn of_service(lane: &Lane) -> Self {
        Context::new(lane.clone(), Arc::default())
    }

    /// The request no longer only waits: from here on it cannot be withdrawn. To be called after admission and
    /// before the first op or cluster is taken.
    pub fn commit(&self) {
        self.progress.commit();
    }
}

/// Whether a request may still be withdrawn.
#[derive(Default)]
pub(crate) struct Progress(AtomicBool);

impl Progress {
    pub(crate) fn commit(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn committed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn reset(&self) {
        self.0.store(false, Ordering::Release);
    }
}
