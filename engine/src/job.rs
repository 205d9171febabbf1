//! Work that several requests wait for and none owns: a refill, a cut, a copy, a load of metadata.
//!
//! A job is a future that names no queue. It is started on a [`Service`](crate::Service) and driven by every queue
//! that is attached to it: whichever takes its turn next polls the jobs that were woken. So it goes on as long as any
//! queue does, whatever becomes of those that wait for it. Its ops go to the lane of the service.
//!
//! Three locks, each held for a moment but the second: *jobs* (which there are, which are ready), *body* (held while
//! a job is polled, so that one queue polls it at a time), *outcome* (the result and who waits for it). A body may
//! start and await other jobs; it never polls one.

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
    body: Mutex<Option<Body<T>>>,
    outcome: Mutex<Outcome<T>>,
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
        let job =
            Arc::new(Job { body: Mutex::new(Some(Box::pin(body))), outcome: Mutex::new(outcome) });
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
            waker.queued.store(false, Ordering::SeqCst);
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
        let mut body = self.body.lock();
        // Another queue may have finished it in between.
        let Some(future) = body.as_mut() else { return Poll::Ready(()) };
        let Poll::Ready(result) = future.as_mut().poll(cx) else { return Poll::Pending };
        let finished = body.take();
        drop(body);
        drop(finished);
        self.outcome.lock().result = Some(result);
        self.nudge();
        Poll::Ready(())
    }

    fn abandon(&self) {
        let body = self.body.lock().take();
        drop(body);
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
mod tests {
    use super::*;
    use std::future::poll_fn;

    fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
        Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_job_goes_on_although_nobody_waits() {
        let jobs = Jobs::new(None);
        let mut steps = 0;
        let job = jobs.start(poll_fn(move |cx| {
            steps += 1;
            cx.waker().wake_by_ref();
            if steps == 3 { Poll::Ready(steps) } else { Poll::Pending }
        }));
        for _ in 0..2 {
            assert!(jobs.run());
            assert_eq!(job.result(), None);
        }
        assert!(jobs.run());
        assert_eq!(job.result(), Some(3));
        assert_eq!(poll_once(&mut job.join()), Poll::Ready(3));
    }

    #[test]
    fn a_job_that_two_queues_find_ended_takes_no_other_with_it() {
        let jobs = Jobs::new(None);
        let _first = jobs.start(async {});
        let (key, waker) = {
            let state = jobs.state.lock();
            let (key, active) = state.active.iter().next().unwrap();
            (key, active.waker.clone())
        };
        jobs.run();
        let second = jobs.start(async {});
        assert!(jobs.state.lock().active.contains(key), "the key is used again");
        jobs.forget(key, &waker);
        jobs.run();
        assert_eq!(second.result(), Some(()));
    }

    #[test]
    fn what_a_turn_leaves_is_told_to_the_other_queues() {
        let event = Arc::new(EventFd::new().unwrap());
        let jobs = Jobs::new(Some(event.clone()));
        jobs.begin_turn();
        let _job = jobs.start(async {});
        assert_eq!(event.take(), 0, "the turn will see to it");
        assert!(!jobs.end_turn());
        assert_eq!(event.take(), 1);
        jobs.begin_turn();
        jobs.run();
        assert!(jobs.end_turn());
        assert_eq!(event.take(), 0);
    }

    #[test]
    fn the_end_wakes_every_waiter_and_a_nudge_those_that_ask_for_less() {
        let jobs = Jobs::new(None);
        let step: Arc<Mutex<Option<Waker>>> = Arc::default();
        let seen = step.clone();
        let job = jobs.start(poll_fn(move |cx| match seen.lock().replace(cx.waker().clone()) {
            None => Poll::Pending,
            Some(_) => Poll::Ready(()),
        }));
        jobs.run();
        let part = Arc::new(AtomicBool::new(false));
        let asked = part.clone();
        let mut until = job.until(move || asked.load(Ordering::SeqCst));
        let mut join = job.join();
        assert!(poll_once(&mut until).is_pending());
        part.store(true, Ordering::SeqCst);
        job.nudge();
        assert!(poll_once(&mut until).is_ready());
        assert!(poll_once(&mut join).is_pending());
        let waker = step.lock().clone();
        waker.unwrap().wake();
        assert!(jobs.run());
        assert!(poll_once(&mut join).is_ready());
        assert!(!jobs.run(), "nothing is left");
    }

    /// A waker that looks at the job when it is dropped or called.
    struct Foreign {
        job: Arc<Job<()>>,
        locked: Arc<AtomicUsize>,
        ran: Arc<AtomicUsize>,
    }

    impl Foreign {
        fn look(&self) {
            self.ran.fetch_add(1, Ordering::SeqCst);
            let locked = self.job.outcome.try_lock().is_none();
            self.locked.fetch_add(usize::from(locked), Ordering::SeqCst);
        }
    }

    impl Wake for Foreign {
        fn wake(self: Arc<Self>) {
            self.look();
        }
    }

    impl Drop for Foreign {
        fn drop(&mut self) {
            self.look();
        }
    }

    #[test]
    fn wakers_are_called_and_dropped_outside_the_locks() {
        let jobs = Jobs::new(None);
        let job = jobs.start(async {});
        let (locked, ran) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
        let poll_foreign = |join: &mut Join<()>| {
            let waker = Foreign { job: job.clone(), locked: locked.clone(), ran: ran.clone() };
            Pin::new(join).poll(&mut Context::from_waker(&Waker::from(Arc::new(waker))))
        };
        let mut join = job.join();
        assert!(poll_foreign(&mut join).is_pending());
        assert!(poll_foreign(&mut join).is_pending());
        assert_eq!(ran.load(Ordering::SeqCst), 1, "the former waker is dropped");
        drop(join);
        assert_eq!(ran.load(Ordering::SeqCst), 2, "so is that of a waiter that is dropped");
        let mut join = job.join();
        assert!(poll_foreign(&mut join).is_pending());
        jobs.run();
        assert_eq!(ran.load(Ordering::SeqCst), 4, "called and dropped");
        assert!(poll_foreign(&mut join).is_ready());
        assert_eq!((ran.load(Ordering::SeqCst), locked.load(Ordering::SeqCst)), (5, 0));
    }

    #[test]
    fn an_abandoned_job_drops_what_it_held() {
        let jobs = Jobs::new(None);
        let held = Arc::new(());
        let inside = held.clone();
        let _job = jobs.start(async move {
            std::future::pending::<()>().await;
            drop(inside);
        });
        jobs.run();
        assert_eq!(Arc::strong_count(&held), 2);
        jobs.abandon();
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
