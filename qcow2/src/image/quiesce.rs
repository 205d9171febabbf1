//! Holding an image still: for a copy of its file, for handing it to another process, for a change of the file below it.
//!
//! What keeps requests out are the trackers, by one serialising request over everything in each. What keeps shared work
//! out is the cut slot: all that writes metadata holds it, and what does not has a request or its grant behind it. Both
//! belong to a job, so that they are given up whatever becomes of who asked.

use std::future::{Future, pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use blkring_engine::tracker::sync::Mutex;
use blkring_engine::tracker::{Class, Span};
use blkring_engine::{Access, Operation, Quiesced, Result};

use super::Image;
use super::cut::Holder;
use super::layer::Layer;

impl Image {
    /// Holds the image still: waits until no request and no shared work (a refill, a cut, a copy) is under way, makes
    /// durable what was written, and keeps everything that comes after from beginning until the answer is dropped. The
    /// file does not change meanwhile, and is whole: a copy of it is an image with all that was answered, whose check
    /// finds the reservation as leaks and nothing else. Run it on a queue that is attached to the image. Dropping
    /// the future gives it up.
    ///
    /// Requests that come meanwhile wait, flushes, [`Image::resize`] and [`Image::close`] included: who holds the answer
    /// must not wait for one of them before dropping it. A second call waits until the first has let go. What is
    /// asked without a request ([`Image::extent`]) may go on, and reads. When the answer is dropped, the next turn of any
    /// queue of the image lets the requests go on; the queues are woken for it.
    ///
    /// # Why it ends
    ///
    /// It waits for those requests only that were admitted before it: all others have a higher ticket and wait behind
    /// it. Each of these ends by its own operations, which its queue reaps, and by shared work, which every queue of
    /// the image drives. So it ends if every queue that has such a request is turned, or dropped. A queue that nobody
    /// turns keeps it waiting as long as it has a read or a write under way; a flush of that queue is shared work and
    /// does not. Then the requests are gone, and with them all who begin shared work: what is left of it is a finite
    /// set, and each ends by its own operations.
    ///
    /// # Errors
    /// What the flush met, and ESHUTDOWN once the image is closed; the image goes on then.
    pub async fn quiesce(self: &Arc<Self>) -> Result<Quiesced> {
        let still = Arc::new(Still::default());
        // From here on it is given up if this future is dropped.
        let held = LetGo(still.clone());
        let job = loop {
            let running = {
                // Under the lock, so that the job finds itself named when it takes the slot.
                let mut state = self.top.lock();
                match state.work.quiescing.clone().filter(|job| job.result().is_none()) {
                    Some(running) => running,
                    None => {
                        let job = self.service.start(self.standing_still(still.clone()));
                        state.work.quiescing = Some(job.clone());
                        break job;
                    }
                }
            };
            // Whatever becomes of the other one.
            drop(running.join().await);
        };
        let reached = still.clone();
        job.until(move || reached.is_reached()).await;
        match job.result() {
            Some(Err(error)) => Err(error),
            _ => Ok(Quiesced::new(held)),
        }
    }

    /// The job that holds the image still until `still` is let go.
    fn standing_still(&self, still: Arc<Still>) -> impl Future<Output = Result<()>> + Send + use<> {
        let (parts, requests, top) = (self.parts.clone(), self.tracker.clone(), self.top.clone());
        let wanted = still.clone();
        let steps = async move {
            let _parts = parts.begin(Span::new(0, 1), Class::Serialising).await;
            let _all = requests.begin(Span::to_infinity(0), Class::Serialising).await;
            let _slot = top.come_to_rest().await?;
            still.reach();
            let job = top.lock().work.quiescing.clone();
            if let Some(job) = job {
                job.nudge();
            }
            pending().await
        };
        until_let_go(wanted, Box::pin(steps))
    }
}

impl Layer {
    /// Waits for the shared work of a layer that no request is in any more. None begins while the answer is held.
    async fn come_to_rest(self: &Arc<Self>) -> Result<Slot> {
        if self.lock().work.closing.is_some() {
            return Err(self.error(Operation::Flush, 0, libc::ESHUTDOWN));
        }
        self.finish_work(Holder::Quiesce).await?;
        let slot = Slot(self.clone());
        // What nobody waits for any more may still be on its way to the file.
        drop(self.storage.hold().await);
        if self.storage.access() == Access::ReadWrite {
            self.sync().await?;
        }
        Ok(slot)
    }
}

/// The cut slot, which is given up when this is dropped.
struct Slot(Arc<Layer>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.give_slot_up();
    }
}

/// What who asked and the job tell each other.
#[derive(Default)]
struct Still(Mutex<Stage>);

#[derive(Default)]
enum Stage {
    /// On the way; with the waker of the job, once it was polled.
    #[default]
    Unpolled,
    Waits(Waker),
    Reached(Waker),
    LetGo,
}

impl Still {
    fn is_reached(&self) -> bool {
        matches!(*self.0.lock(), Stage::Reached(_))
    }

    /// The job stands still. It was polled before.
    fn reach(&self) {
        let mut stage = self.0.lock();
        *stage = match std::mem::take(&mut *stage) {
            Stage::Waits(waker) => Stage::Reached(waker),
            other => other,
        };
    }

    /// Whether nobody wants it any more; if so later, `waker` is called.
    fn is_let_go(&self, waker: &Waker) -> bool {
        // Wakers are foreign code: cloned before the lock, and dropped behind it.
        let waker = waker.clone();
        let mut stage = self.0.lock();
        let former = std::mem::take(&mut *stage);
        *stage = match &former {
            Stage::LetGo => Stage::LetGo,
            Stage::Reached(_) => Stage::Reached(waker),
            Stage::Unpolled | Stage::Waits(_) => Stage::Waits(waker),
        };
        let let_go = matches!(*stage, Stage::LetGo);
        drop(stage);
        drop(former);
        let_go
    }
}

/// Held by who asked.
struct LetGo(Arc<Still>);

impl Drop for LetGo {
    fn drop(&mut self) {
        let former = std::mem::replace(&mut *self.0.0.lock(), Stage::LetGo);
        if let Stage::Waits(waker) | Stage::Reached(waker) = former {
            waker.wake();
        }
    }
}

/// Runs `steps` until nobody wants them any more, and drops them then.
async fn until_let_go(
    still: Arc<Still>,
    mut steps: Pin<Box<impl Future<Output = Result<()>> + Send>>,
) -> Result<()> {
    poll_fn(move |cx: &mut Context<'_>| {
        if still.is_let_go(cx.waker()) {
            return Poll::Ready(Ok(()));
        }
        steps.as_mut().poll(cx)
    })
    .await
}
