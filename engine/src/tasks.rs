//! The tasks of one queue: requests of the targets that it drives, and futures of its owner.
//!
//! A request becomes a future of a type that is known when the target is attached, so its place is made once and
//! reused: starting a request allocates nothing once warm.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker};

use slab::Slab;

use crate::error::{IoError, Operation, Result};
use crate::lane::Lane;
use crate::request::Request;
use crate::target::{Context, Progress, Target};
use crate::wake::{TaskWaker, Wakeups};

/// A future of the owner of a queue.
pub(crate) type Spawned = Pin<Box<dyn Future<Output = ()>>>;

/// The futures of the requests of one target.
pub(crate) trait Pool {
    fn start(&mut self, request: Request) -> usize;
    fn poll(&mut self, place: usize, cx: &mut TaskContext<'_>) -> Poll<Result<()>>;
    /// Drops a request that still waits, and gives its ECANCELED; `None` if it does not.
    fn withdraw(&mut self, place: usize) -> Option<IoError>;
    /// Drops a request wherever it stands, and gives its ECANCELED.
    fn cancel(&mut self, place: usize) -> IoError;
    fn finish(&mut self, place: usize);
    /// The name of the target.
    fn path(&self) -> &Arc<str>;
    /// Lets the target begin what was left for a quiet moment; says whether it did.
    fn idle(&self) -> bool;
    /// Whether no request is started and unfinished.
    fn is_empty(&self) -> bool;
}

struct TypedPool<T, M, F> {
    target: Arc<T>,
    make: M,
    places: Vec<Place<F>>,
    free: Vec<usize>,
}

struct Place<F> {
    future: Pin<Box<Option<F>>>,
    progress: Arc<Progress>,
    /// What is done, and from which byte on, for the error of a request that is given up.
    what: (Operation, u64),
}

/// The pool for the requests of `target` on `lane`.
pub(crate) fn pool<T: Target>(target: Arc<T>, lane: Lane) -> Box<dyn Pool> {
    let make = move |target: Arc<T>, request, progress| {
        target.run(Context::new(lane.clone(), progress), request)
    };
    boxed(target, make)
}

fn boxed<T, M, F>(target: Arc<T>, make: M) -> Box<dyn Pool>
where
    T: Target,
    M: Fn(Arc<T>, Request, Arc<Progress>) -> F + 'static,
    F: Future<Output = Result<()>> + 'static,
{
    Box::new(TypedPool { target, make, places: Vec::new(), free: Vec::new() })
}

impl<T, M, F> Pool for TypedPool<T, M, F>
where
    T: Target,
    M: Fn(Arc<T>, Request, Arc<Progress>) -> F,
    F: Future<Output = Result<()>>,
{
    fn start(&mut self, request: Request) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place {
                future: Box::pin(None),
                progress: Arc::default(),
                what: (request.operation(), request.offset),
            });
            self.places.len() - 1
        });
        let place = &mut self.places[index];
        place.progress.reset();
        place.what = (request.operation(), request.offset);
        let future = (self.make)(self.target.clone(), request, place.progress.clone());
        place.future.set(Some(future));
        index
    }

    fn poll(&mut self, place: usize, cx: &mut TaskContext<'_>) -> Poll<Result<()>> {
        let future = self.places[place].future.as_mut().as_pin_mut();
        future.expect("a started request has its future until it is finished").poll(cx)
    }

    fn withdraw(&mut self, place: usize) -> Option<IoError> {
        (!self.places[place].progress.committed()).then(|| self.cancel(place))
    }

    fn cancel(&mut self, place: usize) -> IoError {
        self.finish(place);
        let (operation, offset) = self.places[place].what;
        IoError::new(self.path(), operation, offset, libc::ECANCELED)
    }

    fn finish(&mut self, place: usize) {
        self.places[place].future.set(None);
        self.free.push(place);
    }

    fn path(&self) -> &Arc<str> {
        self.target.path()
    }

    fn idle(&self) -> bool {
        self.target.idle()
    }

    fn is_empty(&self) -> bool {
        self.free.len() == self.places.len()
    }
}

/// What a task is.
pub(crate) enum Body {
    /// A request: pool, place in it, and the receipt that is answered.
    Request { pool: usize, place: usize, receipt: usize },
    /// A future of the owner; taken out while it is polled.
    Spawned(Option<Spawned>),
}

/// All tasks of a queue, with one lasting waker for each slot.
pub(crate) struct Tasks {
    bodies: Slab<Body>,
    wakers: Vec<(Arc<TaskWaker>, Waker)>,
    wakeups: Arc<Wakeups>,
}

impl Tasks {
    pub(crate) fn new(wakeups: Arc<Wakeups>) -> Self {
        Tasks { bodies: Slab::new(), wakers: Vec::new(), wakeups }
    }

    /// Adds a task and wakes it.
    pub(crate) fn add(&mut self, body: Body) -> usize {
        let key = self.bodies.insert(body);
        while self.wakers.len() <= key {
            let waker = TaskWaker::new(self.wakers.len(), self.wakeups.clone());
            self.wakers.push((waker.clone(), Waker::from(waker)));
        }
        self.wakers[key].1.wake_by_ref();
        key
    }

    pub(crate) fn get_mut(&mut self, key: usize) -> Option<&mut Body> {
        self.bodies.get_mut(key)
    }

    pub(crate) fn remove(&mut self, key: usize) -> Body {
        self.bodies.remove(key)
    }

    /// The waker to poll task `key` with. Wake-ups from here on lead to another poll.
    pub(crate) fn waker(&self, key: usize) -> Waker {
        let (task, waker) = &self.wakers[key];
        task.rearm();
        waker.clone()
    }

    /// The task that answers `receipt`, if it has started and not ended.
    pub(crate) fn of_receipt(&self, wanted: usize) -> Option<usize> {
        let mut all = self.bodies.iter();
        all.find_map(|(key, body)| {
            matches!(body, Body::Request { receipt, .. } if *receipt == wanted).then_some(key)
        })
    }

    pub(crate) fn keys(&self) -> Vec<usize> {
        self.bodies.iter().map(|(key, _)| key).collect()
    }
}
