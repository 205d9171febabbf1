//! Work that several requests wait for and none owns: a refill, a cut, a copy, a load of metadata.
//!
//! A job is a future that names no queue. It is started on a [`Service`](crate::Service) and driven by every queue
//! that is attached to it: whichever takes its turn next polls the jobs that were woken. So it goes on as long as any
//! queue does, whatever becomes of those that wait for it. Its ops go to the lane of the service.
//!
//! Three locks, each held for a moment and never while foreign code runs: *jobs* (which there are, which are ready),
//! *stage* (where the body is), *outcome* (the result and who waits for it). A body is taken out while it is polled, so
//! that one queue polls it at a time; whoever finds it taken leaves word there, and the job is ready again when the body
//! is put back. So a body may start and await other jobs, and what it wakes may take a turn of another queue at once.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use blkring_tracker::sync::Mutex;
use blkring_tracker::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use slab::Slab;

use crate::sys::EventFd;

type Body<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Shared work with a result that every waiter gets a copy of.
pub struct Job<T> {
    stage: Mutex<Stage<T>>,
    outcome: Mutex<Outcome<T>>,
}

/// Where the body of a job is.
enum Stage<T> {
    /// Here.
    Resting(Body<T>),
    /// With the queue that polls it.
    Polled(Meanwhile),
    /// Nowhere: it has ended, or was given up.
    Gone,
}

/// Whether somebody wanted to poll a body that was being polled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Meanwhile {
    Quiet,
    Woken,
}

/// A body outside its job. Dropping this puts it back, after a panic as well.
struct Taken<'a, T> {
    job: &'a Job<T>,
    body: Option<Body<T>>,
    waker: &'a Waker,
}

struct Outcome<T> {
    result: Option<T>,
    waiters: Slab<Option<Waker>>,
}

/// Woken, some queue looks at what the service has. Jobs hold the lane that holds this.
struct Kick(Weak<Jobs>);

impl Wake for Kick {
    fn wake(self: Arc<Self>) {
        if let Some(jobs) = self.0.upgrade() {
            jobs.kick();
        }
    }
}

/// A job as its driver sees it.
trait Work: Send + Sync {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<()>;
    fn abandon(&self);
}

/// The jobs of one service.
pub(crate) struct Jobs {
    state: Mutex<JobsState>,
    /// Queues that are in a turn and will look at what is ready before they rest. A waker that finds none signals
    /// the event.
    turning: AtomicUsize,
    event: Option<Arc<EventFd>>,
}

#[derive(Default)]
struct JobsState {
    active: Slab<Active>,
    ready: VecDeque<usize>,
}

struct Active {
    work: Arc<dyn Work>,
    waker: Arc<JobWaker>,
}

struct JobWaker {
    jobs: Weak<Jobs>,
    key: usize,
    queued: AtomicBool,
}

impl Wake for JobWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::SeqCst)
            && let Some(jobs) = self.jobs.upgrade()
        {
            jobs.make_ready(self.key);
        }
    }
}

impl Jobs {
    pub(crate) fn new(event: Option<Arc<EventFd>>) -> Arc<Self> {
        Arc::new(Jobs { state: Mutex::default(), turning: AtomicUsize::new(0), event })
    }

    /// Starts a job; the next turn of any queue polls it.
    pub(crate) fn start<T: Clone + Send + 'static>(
        self: &Arc<Self>,
        body: impl Future<Output = T> + Send + 'static,
    ) -> Arc<Job<T>> {
        let outcome = Outcome { result: None, waiters: Slab::new() };
        let job = Arc::new(Job {
            stage: Mutex::new(Stage::Resting(Box::pin(body))),
            outcome: Mutex::new(outcome),
        });
        let key = {
            let mut state = self.state.lock();
            let entry = state.active.vacant_entry();
            let key = entry.key();
            let waker = JobWaker { jobs: Arc::downgrade(self), key, queued: AtomicBool::new(true) };
            entry.insert(Active { work: job.clone(), waker: Arc::new(waker) });
            key
        };
        self.make_ready(key);
        job
    }

    fn make_ready(&self, key: usize) {
        self.state.lock().ready.push_back(key);
        self.kick();
    }

    /// What has a queue look at what is ready or unsent.
    pub(crate) fn kicker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::new(Kick(Arc::downgrade(self))))
    }

    fn kick(&self) {
        // After adding: either this sees a queue in its turn, or that queue sees what was added (`end_turn`).
        if self.turning.load(Ordering::SeqCst) == 0
            && let Some(event) = &self.event
        {
            event.signal();
        }
    }

    /// Polls the jobs that are ready now. Says whether there were any.
    pub(crate) fn run(&self) -> bool {
        let count = self.state.lock().ready.len();
        for _ in 0..count {
            let next = {
                let mut state = self.state.lock();
                let key = state.ready.pop_front();
                key.and_then(|key| {
                    let active = state.active.get(key)?;
                    Some((key, active.work.clone(), active.waker.clone()))
                })
            };
            let Some((key, work, waker)) = next else { continue };
            // A swap, so that the poll sees what a waker did before it found the job queued already.
            waker.queued.swap(false, Ordering::SeqCst);
            let task = Waker::from(waker.clone());
            if work.poll(&mut Context::from_waker(&task)).is_ready() {
                self.forget(key, &waker);
            }
        }
        count > 0
    }

    /// Takes a job that has ended out. Two queues may find it ended, and its key may be another's by then.
    fn forget(&self, key: usize, waker: &Arc<JobWaker>) {
        let mut state = self.state.lock();
        if state.active.get(key).is_some_and(|active| Arc::ptr_eq(&active.waker, waker)) {
            state.active.remove(key);
        }
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.state.lock().ready.is_empty()
    }

    /// Jobs that have not ended.
    #[cfg(any(feature = "sim", blkring_loom))]
    pub(crate) fn len(&self) -> usize {
        self.state.lock().active.len()
    }

    pub(crate) fn begin_turn(&self) {
        self.turning.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends a turn. Says whether nothing is ready, so that the queue may rest. What is ready nevertheless was promised
    /// to this queue, whose owner may never turn it again: the others are told.
    pub(crate) fn end_turn(&self) -> bool {
        self.turning.fetch_sub(1, Ordering::SeqCst);
        let rest = !self.has_ready();
        if !rest && let Some(event) = &self.event {
            event.signal();
        }
        rest
    }

    /// Drops all jobs where they stand. None of their ops is in flight.
    pub(crate) fn abandon(&self) {
        let state = std::mem::take(&mut *self.state.lock());
        for (_, active) in state.active {
            active.work.abandon();
        }
    }
}

impl<T: Clone + Send + 'static> Work for Job<T> {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut taken = match self.take(cx.waker()) {
            Ok(taken) => taken,
            Err(answer) => return answer,
        };
        let body = taken.body.as_mut().expect("it was just taken");
        let Poll::Ready(result) = body.as_mut().poll(cx) else { return Poll::Pending };
        drop(taken.body.take());
        self.outcome.lock().result = Some(result);
        self.nudge();
        Poll::Ready(())
    }

    fn abandon(&self) {
        let former = std::mem::replace(&mut *self.stage.lock(), Stage::Gone);
        drop(former);
    }
}

impl<T> Job<T> {
    /// The body, to be polled. If another queue has it, it is told; that one sees to the rest.
    fn take<'a>(&'a self, waker: &'a Waker) -> std::result::Result<Taken<'a, T>, Poll<()>> {
        let mut stage = self.stage.lock();
        match std::mem::replace(&mut *stage, Stage::Polled(Meanwhile::Quiet)) {
            Stage::Resting(body) => Ok(Taken { job: self, body: Some(body), waker }),
            Stage::Polled(_) => {
                *stage = Stage::Polled(Meanwhile::Woken);
                Err(Poll::Pending)
            }
            Stage::Gone => {
                *stage = Stage::Gone;
                Err(Poll::Ready(()))
            }
        }
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        let mut stage = self.job.stage.lock();
        let meanwhile = match (&*stage, self.body.take()) {
            (Stage::Polled(meanwhile), Some(body)) => {
                let meanwhile = *meanwhile;
                *stage = Stage::Resting(body);
                meanwhile
            }
            (Stage::Polled(_), None) => {
                *stage = Stage::Gone;
                Meanwhile::Quiet
            }
            // It was given up meanwhile; the body goes when the lock is free.
            (_, body) => {
                drop(stage);
                drop(body);
                return;
            }
        };
        drop(stage);
        if meanwhile == Meanwhile::Woken {
            self.waker.wake_by_ref();
        }
    }
}

impl<T: Clone + Send + 'static> Job<T> {
    /// A future that is ready with the result. Dropping it only stops waiting.
    pub fn join(self: &Arc<Self>) -> Join<T> {
        Join { job: self.clone(), place: None }
    }

    /// A future that is ready when `done` says so or the job has ended. Whoever changes what `done` looks at calls
    /// [`Job::nudge`] afterwards.
    pub fn until<D: FnMut() -> bool>(self: &Arc<Self>, done: D) -> Until<T, D> {
        Until { join: self.join(), done }
    }

    /// The result, once there is one.
    pub fn result(&self) -> Option<T> {
        self.outcome.lock().result.clone()
    }

    /// Wakes every waiter.
    pub fn nudge(&self) {
        let woken: Vec<Waker> =
            self.outcome.lock().waiters.iter_mut().filter_map(|(_, waker)| waker.take()).collect();
        woken.into_iter().for_each(Waker::wake);
    }
}

/// A waiter of a job.
#[must_use = "a waiter waits when it is polled"]
pub struct Join<T> {
    job: Arc<Job<T>>,
    place: Option<usize>,
}

impl<T: Clone + Send + 'static> Future for Join<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = &mut *self;
        // Wakers are foreign code: cloned before the lock, and dropped behind it.
        let waker = Some(cx.waker().clone());
        let mut outcome = this.job.outcome.lock();
        if let Some(result) = &outcome.result {
            return Poll::Ready(result.clone());
        }
        let former = match this.place {
            Some(place) => std::mem::replace(&mut outcome.waiters[place], waker),
            None => {
                this.place = Some(outcome.waiters.insert(waker));
                None
            }
        };
        drop(outcome);
        drop(former);
        Poll::Pending
    }
}

impl<T> Drop for Join<T> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let waker = self.job.outcome.lock().waiters.remove(place);
            // The lock is free again.
            drop(waker);
        }
    }
}

/// A waiter for a part of a job.
#[must_use = "a waiter waits when it is polled"]
pub struct Until<T, D> {
    join: Join<T>,
    done: D,
}

impl<T: Clone + Send + 'static, D: FnMut() -> bool + Unpin> Future for Until<T, D> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        // The waker first, the question second: a change in between is not missed.
        if Pin::new(&mut this.join).poll(cx).is_ready() || (this.done)() {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
