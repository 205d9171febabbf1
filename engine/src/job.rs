//! Work that several requests wait for and none owns: a refill, a cut, a copy, a load of metadata.
//!
//! A job is a future that names no queue. Whoever waits for it also polls it, so that it goes on as long as one of
//! its waiters does; all are woken at each of its steps. Its ops go to the [`Service`](crate::Service), where any
//! queue reaps them.
//!
//! The lock *turn* makes sure that one waiter polls at a time. It is taken with `try_lock`: who finds it taken has
//! already left a waker, and the job's own waker wakes every waiter when there is more to do.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use blkring_tracker::sync::Mutex;
use slab::Slab;

type Body<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Shared work with a result that every waiter gets a copy of.
pub struct Job<T> {
    turn: Mutex<Option<Body<T>>>,
    waiters: Arc<Waiters>,
    result: Mutex<Option<T>>,
}

/// Who is to be woken. The lock *waiters* is held for a push or a take, never while a waker runs.
struct Waiters {
    wakers: Mutex<Slab<Option<Waker>>>,
}

impl Waiters {
    fn wake_all(&self) {
        let woken: Vec<Waker> =
            self.wakers.lock().iter_mut().filter_map(|(_, waker)| waker.take()).collect();
        woken.into_iter().for_each(Waker::wake);
    }
}

struct JobWaker(Weak<Waiters>);

impl Wake for JobWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if let Some(waiters) = self.0.upgrade() {
            waiters.wake_all();
        }
    }
}

impl<T: Clone + Send + 'static> Job<T> {
    /// A job that does `body` once somebody waits for it.
    pub fn new(body: impl Future<Output = T> + Send + 'static) -> Arc<Self> {
        Arc::new(Job {
            turn: Mutex::new(Some(Box::pin(body))),
            waiters: Arc::new(Waiters { wakers: Mutex::new(Slab::new()) }),
            result: Mutex::new(None),
        })
    }

    /// A future that polls the job and is ready with its result. Dropping it only stops waiting.
    pub fn join(self: &Arc<Self>) -> Join<T> {
        Join { job: self.clone(), place: None }
    }

    /// A future that polls the job and is ready when `done` says so or the job has ended. Whoever changes what `done`
    /// looks at calls [`Job::nudge`].
    pub fn until<D: FnMut() -> bool>(self: &Arc<Self>, done: D) -> Until<T, D> {
        Until { join: self.join(), done }
    }

    /// Wakes every waiter, for those that wait for less than the end.
    pub fn nudge(&self) {
        self.waiters.wake_all();
    }

    /// The result, once there is one.
    pub fn result(&self) -> Option<T> {
        self.result.lock().clone()
    }

    /// Drops the body where it stands. Only when none of its ops is in flight.
    pub fn abandon(&self) {
        let body = self.turn.lock().take();
        drop(body);
    }

    /// Polls the body if nobody else does.
    fn advance(&self) {
        let Some(mut turn) = self.turn.try_lock() else { return };
        let Some(body) = turn.as_mut() else { return };
        let waker = Waker::from(Arc::new(JobWaker(Arc::downgrade(&self.waiters))));
        if let Poll::Ready(result) = body.as_mut().poll(&mut Context::from_waker(&waker)) {
            let body = turn.take();
            drop(turn);
            drop(body);
            *self.result.lock() = Some(result);
            self.waiters.wake_all();
        }
    }
}

/// A waiter of a job.
#[must_use = "a job goes on when its waiters are polled"]
pub struct Join<T> {
    job: Arc<Job<T>>,
    place: Option<usize>,
}

impl<T> Join<T> {
    fn leave_waker(&mut self, waker: &Waker) {
        let mut wakers = self.job.waiters.wakers.lock();
        match self.place {
            Some(place) => wakers[place] = Some(waker.clone()),
            None => self.place = Some(wakers.insert(Some(waker.clone()))),
        }
    }
}

impl<T: Clone + Send + 'static> Future for Join<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        if let Some(result) = self.job.result() {
            return Poll::Ready(result);
        }
        // The waker first: a step that comes between the two must not be missed.
        self.leave_waker(cx.waker());
        self.job.advance();
        match self.job.result() {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}

/// A waiter for a part of a job.
#[must_use = "a job goes on when its waiters are polled"]
pub struct Until<T, D> {
    join: Join<T>,
    done: D,
}

impl<T: Clone + Send + 'static, D: FnMut() -> bool + Unpin> Future for Until<T, D> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if (this.done)() || Pin::new(&mut this.join).poll(cx).is_ready() || (this.done)() {
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl<T> Drop for Join<T> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.job.waiters.wakers.lock().remove(place);
        }
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
    fn a_waiter_that_is_never_polled_again_stops_nobody() {
        let mut steps = 0;
        let job = Job::new(poll_fn(move |cx| {
            steps += 1;
            cx.waker().wake_by_ref();
            if steps == 3 { Poll::Ready(steps) } else { Poll::Pending }
        }));
        let (mut first, mut second) = (job.join(), job.join());
        assert!(poll_once(&mut first).is_pending());
        assert!(poll_once(&mut second).is_pending());
        assert_eq!(poll_once(&mut second), Poll::Ready(3));
        assert_eq!(job.result(), Some(3));
    }

    #[test]
    fn each_step_wakes_every_waiter() {
        struct Count(std::sync::atomic::AtomicUsize);
        impl Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            }
        }
        let step: Arc<Mutex<Option<Waker>>> = Arc::default();
        let job = Job::new({
            let step = step.clone();
            poll_fn(move |cx| -> Poll<()> {
                *step.lock() = Some(cx.waker().clone());
                Poll::Pending
            })
        });
        let counts = [Arc::new(Count(0.into())), Arc::new(Count(0.into()))];
        let mut joins = [job.join(), job.join()];
        for (join, count) in joins.iter_mut().zip(&counts) {
            let waker = Waker::from(count.clone());
            assert!(Pin::new(join).poll(&mut Context::from_waker(&waker)).is_pending());
        }
        step.lock().take().unwrap().wake();
        for count in &counts {
            assert_eq!(count.0.load(std::sync::atomic::Ordering::SeqCst), 1);
        }
    }
}
