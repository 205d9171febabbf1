//! A request that was stopped at a point, until everything that stopped it has let it go.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use blkring_tracker::sync::Mutex;

/// One that is stopped; clones are of the same.
#[derive(Debug, Clone)]
pub(super) struct Suspended(Arc<Mutex<Waiting>>);

#[derive(Debug)]
struct Waiting {
    /// How many tags have not let it go.
    tags: usize,
    waker: Option<Waker>,
}

impl PartialEq for Suspended {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Suspended {
    pub(super) fn new(tags: usize) -> Self {
        Suspended(Arc::new(Mutex::new(Waiting { tags, waker: None })))
    }

    /// One tag lets it go.
    pub(super) fn release(&self) {
        let waker = {
            let mut waiting = self.0.lock();
            waiting.tags = waiting.tags.saturating_sub(1);
            if waiting.tags == 0 { waiting.waker.take() } else { None }
        };
        waker.into_iter().for_each(Waker::wake);
    }

    pub(super) async fn wait(&self) {
        poll_fn(|cx| {
            // Before the lock, so that the former one is dropped behind it.
            let waker = cx.waker().clone();
            let mut waiting = self.0.lock();
            if waiting.tags == 0 {
                return Poll::Ready(());
            }
            let former = waiting.waker.replace(waker);
            drop(waiting);
            drop(former);
            Poll::Pending
        })
        .await;
    }
}
