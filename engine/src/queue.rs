//! A queue: one thread's ring, its executor, and the requests that it has accepted.
//!
//! A turn of a queue is flat: reap completions, take in new requests, poll the tasks that were woken, send what they
//! issued. Completions are collected before anything runs because of them.

#[cfg(feature = "sim")]
mod leftovers;
mod options;
mod ports;
mod removal;
mod rest;
mod services;

use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

pub use options::QueueOptions;
pub(crate) use ports::Port;
use ports::Ports;
pub use rest::Polling;
use services::Services;

use crate::backend::{Backend, BackendError, InUse};
use crate::faults::EnterFaults;
use crate::inbox::{Disk, Inbox, Incoming};
use crate::lane::{Lane, LaneCounts, LaneKind, Sent};
use crate::notify::Notify;
use crate::request::Completion;
use crate::service::Service;
use crate::statistics::QueueStatistics;
use crate::sys::EventFd;
use crate::target::{Facts, Target};
use crate::tasks::{Body, Tasks};
use crate::uring::{Completed, Issuer, RESERVED_KEYS};
use crate::wake::Wakeups;

/// The key of the queue's own wake-up event; those of services follow.
const WAKE_KEY: u64 = RESERVED_KEYS;

/// Rounds of polling in one turn at most, so that a turn ends although tasks keep each other awake.
const ROUNDS: usize = 16;

/// Disks answer, or are given up, within this time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A queue that has its ring and not yet its thread. Made before a sandbox is entered, if wanted.
pub struct QueueSeed {
    backend: Option<Backend>,
    event: Option<EventFd>,
    options: QueueOptions,
}

impl QueueSeed {
    /// Sets the ring up, disabled; with a pool its threads are started, unless they run.
    ///
    /// # Errors
    /// [`BackendError`], which says what is in the way.
    pub fn new(options: QueueOptions) -> std::result::Result<Self, BackendError> {
        let backend = Backend::new(&options.backend, options.depth, Issuer::One)?;
        let event = EventFd::new()?;
        Ok(QueueSeed { backend: Some(backend), event: Some(event), options })
    }

    /// A queue without a ring, for targets in memory and simulated ones. It never sleeps: its owner calls
    /// [`Queue::turn`].
    pub fn without_ring(options: QueueOptions) -> Self {
        QueueSeed { backend: None, event: None, options }
    }

    /// Gives the ring to the calling thread, which is its only issuer from here on.
    ///
    /// # Errors
    /// Of the kernel; EEXIST if the ring has another issuer.
    pub fn start(self) -> io::Result<Queue> {
        let wakeups = Wakeups::new(self.event, self.options.variants);
        let mut backend = self.backend;
        if let Some(backend) = &mut backend {
            backend.enable()?;
            let event = wakeups.event().expect("a queue with a ring has an event");
            backend.watch(event, WAKE_KEY)?;
        }
        Ok(Queue {
            inbox: Inbox::new(&self.options, wakeups.clone()),
            lane: Lane::new(
                self.options.depth as usize,
                LaneKind::Queue,
                Waker::from(wakeups.clone()),
                &self.options.backend,
            )
            .with_variants(self.options.variants),
            tasks: Tasks::new(wakeups.clone()),
            backend,
            wakeups,
            ports: Ports::default(),
            services: Services::default(),
            notify: None,
            batch: Vec::new(),
            completed: Vec::new(),
            enters: 0,
            sleeps: 0,
            polling: self.options.polling,
            patience: self.options.patience,
            turning: false,
            _one_thread: PhantomData,
        })
    }
}

/// One thread's way to any number of targets.
///
/// A queue stays on its thread: the kernel takes entries for its ring from that one only. What may be made on one thread
/// and used on another is its [`QueueSeed`].
///
/// ```compile_fail,E0277
/// let queue = blkring_engine::QueueSeed::new(Default::default()).unwrap().start().unwrap();
/// std::thread::spawn(move || drop(queue));
/// ```
///
/// ```
/// let seed = blkring_engine::QueueSeed::new(Default::default()).unwrap();
/// std::thread::spawn(move || drop(seed.start().unwrap())).join().unwrap();
/// ```
pub struct Queue {
    // The order of fields matters: tasks and ports, whose futures hold grants, are dropped after `Drop::drop` has
    // waited for the operations that they issued.
    inbox: Rc<Inbox>,
    lane: Lane,
    tasks: Tasks,
    ports: Ports,
    backend: Option<Backend>,
    wakeups: Arc<Wakeups>,
    services: Services,
    notify: Option<Notify>,
    batch: Vec<usize>,
    completed: Vec<Completed>,
    enters: u64,
    sleeps: u64,
    polling: Polling,
    patience: Duration,
    /// Whether the services count on this queue to look at what is ready.
    turning: bool,
    _one_thread: PhantomData<*const ()>,
}

/// What a turn left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Something was done or is ready: call again.
    Busy,
    /// Nothing to do until a completion or a wake-up comes.
    Idle,
}

impl Queue {
    /// Makes `target` reachable from this queue, which keeps it open until the last clone of the handle is dropped, its
    /// last request is answered, and another turn is taken.
    ///
    /// # Errors
    /// If the target's shared ring cannot be watched.
    pub fn attach<T: Target>(&mut self, target: &Arc<T>) -> io::Result<Disk> {
        if let Some(service) = target.service() {
            self.watch_service(service)?;
        }
        let number = self.ports.add(target, &self.lane);
        Ok(Disk {
            port: Rc::new(Port { inbox: self.inbox.clone(), number }),
            target: Arc::downgrade(target) as Weak<dyn Facts>,
            size: Target::size(&**target),
            topology: Target::topology(&**target),
            path: target.path().clone(),
        })
    }

    /// Sends and reaps the shared work of `service` in the turns of this queue, for as long as somebody else keeps it.
    /// Attaching a target does that for its own service.
    ///
    /// # Errors
    /// If its ring cannot be watched.
    pub fn watch_service(&mut self, service: &Arc<Service>) -> io::Result<()> {
        let Some(key) = self.services.add(service) else { return Ok(()) };
        let watched = self.watch(service.event(), key);
        if watched.is_err() {
            self.services.remove(key);
        }
        // Jobs that were started before this queue knew of them.
        self.wakeups.kick();
        watched
    }

    fn watch(&mut self, event: &EventFd, key: u64) -> io::Result<()> {
        let Some(backend) = &mut self.backend else { return Ok(()) };
        backend.watch(event, key)?;
        self.notify.as_ref().map_or(Ok(()), |notify| notify.watch(event))
    }

    /// Adds a future to this queue's executor.
    pub fn spawn(&mut self, future: impl Future<Output = ()> + 'static) {
        self.tasks.add(Body::Spawned(Some(Box::pin(future))));
    }

    /// Runs the queue until `future` is ready.
    ///
    /// # Errors
    /// If the ring fails as a whole.
    ///
    /// # Panics
    /// On a queue without a ring if nothing can ever wake the future.
    pub fn block_on<F: Future>(&mut self, future: F) -> io::Result<F::Output> {
        let mut future = std::pin::pin!(future);
        let key = self.tasks.add(Body::Spawned(Some(Box::pin(std::future::pending()))));
        let output = loop {
            let waker = self.tasks.waker(key);
            if let Poll::Ready(output) = future.as_mut().poll(&mut TaskContext::from_waker(&waker))
            {
                break output;
            }
            if self.rest_or_submit()? == Turn::Idle {
                assert!(self.backend.is_some(), "nothing can wake a queue without a ring");
            }
        };
        self.tasks.remove(key);
        Ok(output)
    }

    /// One turn, without waiting. All that was handed in since the last one, to whichever disks of the queue, goes to
    /// the kernel by one system call.
    ///
    /// # Errors
    /// If the ring fails as a whole.
    pub fn turn(&mut self) -> io::Result<Turn> {
        let turn = self.pass()?;
        self.submit()?;
        // What the kernel has refused for the moment completes nothing that would call for another turn.
        let refused = self.backend.as_mut().is_some_and(Backend::holds_entries);
        Ok(if refused { Turn::Busy } else { turn })
    }

    /// A turn whose ring entries are not submitted yet.
    fn pass(&mut self) -> io::Result<Turn> {
        if let Some(notify) = &self.notify {
            notify.take(self.wakeups.event());
        }
        self.wakeups.get_up();
        let gone = self.services.begin_turn();
        self.turning = true;
        let result = self.unwatch(&gone).and_then(|()| self.rounds());
        // What was let go is looked for last: from here on, whoever lets an op go signals the event.
        let resting = self.wakeups.lie_down() & self.end_turn() & !self.lane.has_unsent();
        Ok(if result? || !resting { Turn::Busy } else { Turn::Idle })
    }

    fn end_turn(&mut self) -> bool {
        self.turning = false;
        self.services.end_turn()
    }

    /// The ring lets go of the events of services that are gone.
    fn unwatch(&mut self, gone: &[u64]) -> io::Result<()> {
        match &mut self.backend {
            Some(backend) => gone.iter().try_for_each(|&key| backend.unwatch(key)),
            None => Ok(()),
        }
    }

    /// Reaps, then takes in, polls and sends until there is nothing left to do, or for long enough.
    fn rounds(&mut self) -> io::Result<bool> {
        let mut busy = self.reap()?;
        for _ in 0..ROUNDS {
            let progress = self.take_in() | self.poll_woken() | self.send()?;
            let progress = progress || self.begin_idle_work();
            busy |= progress;
            if !progress {
                break;
            }
        }
        Ok(busy)
    }

    /// Nothing is left to do, and nobody waits for this queue: what the targets keep for such moments may begin.
    fn begin_idle_work(&self) -> bool {
        let quiet = self.inbox.unfinished() == 0 && self.lane.unfinished() == 0;
        quiet && self.ports.idle()
    }

    /// Waits until there is something to do, then takes a turn. How it waits is said by [`QueueOptions::polling`].
    ///
    /// # Errors
    /// If the ring fails as a whole.
    pub fn wait(&mut self) -> io::Result<Turn> {
        match self.rest_or_submit()? {
            Turn::Idle => self.turn(),
            Turn::Busy => Ok(Turn::Busy),
        }
    }

    /// Turns until no accepted request is unanswered.
    ///
    /// # Errors
    /// If the ring fails as a whole.
    pub fn drain(&mut self) -> io::Result<()> {
        while self.inbox.unfinished() > 0 {
            self.rest_or_submit()?;
        }
        Ok(())
    }

    /// The completions of requests submitted with user data, oldest first. What the iterator has not handed out when
    /// it is dropped stays for the next call.
    pub fn completions(&mut self) -> impl Iterator<Item = Completion> + use<> {
        let inbox = self.inbox.clone();
        std::iter::from_fn(move || inbox.completions.borrow_mut().pop_front())
    }

    /// Requests accepted and not answered.
    pub fn unfinished(&self) -> usize {
        self.inbox.unfinished()
    }

    /// A descriptor that is readable when a turn has something to do: completions, wake-ups from other threads,
    /// shared work of a target. For the owner's epoll loop, level-triggered: poll it, never read it, and turn until
    /// [`Turn::Idle`] when it is readable, and whenever requests were handed in: of those it tells only when they are
    /// answered. It lives as long as the queue.
    ///
    /// Completions of shared work interrupt the thread that submitted it, so a blocking call of the owner may fail
    /// with EINTR and is to be made again.
    ///
    /// # Errors
    /// Of the kernel, or ENOTSUP for a queue without a ring.
    pub fn event_fd(&mut self) -> io::Result<BorrowedFd<'_>> {
        let (Some(backend), Some(wake)) = (&self.backend, self.wakeups.event()) else {
            return Err(io::Error::from_raw_os_error(libc::ENOTSUP));
        };
        let notify = match self.notify.take() {
            Some(notify) => notify,
            None => {
                let notify = Notify::new(backend, wake)?;
                for service in self.services.iter() {
                    notify.watch(service.event())?;
                }
                notify
            }
        };
        let notify: &Notify = self.notify.insert(notify);
        Ok(notify.as_fd())
    }

    /// Where operations for this queue's ring are issued: for what is done outside any target, such as opening an
    /// image with [`Queue::block_on`].
    pub fn lane(&self) -> Lane {
        self.lane.clone()
    }

    /// Whether a turn would do anything, as far as a queue without a ring can tell.
    #[cfg(feature = "sim")]
    pub(crate) fn has_work(&self) -> bool {
        self.wakeups.has_ready()
            || self.inbox.has_incoming()
            || self.lane.has_unsent()
            || self.services.iter().any(|service| service.has_work())
    }

    /// How many requests of each kind were answered, and how long they took. A copy: take it as often as numbers are
    /// shown, not for each request.
    pub fn statistics(&self) -> QueueStatistics {
        self.inbox.statistics()
    }

    /// What this queue has issued so far.
    pub fn counts(&self) -> LaneCounts {
        self.lane.counts()
    }

    /// What its operations are done by.
    pub fn backend(&self) -> InUse {
        self.backend.as_ref().map_or(InUse::Caller, Backend::in_use)
    }

    /// The set-up flags that the kernel took for this queue's ring, without their prefix; `None` without a ring.
    pub fn ring_flags(&self) -> Option<&'static str> {
        match self.backend() {
            InUse::Ring { flags } => Some(flags),
            _ => None,
        }
    }

    /// Has calls that submit to this queue's ring or wait for it fail, for tests. Nothing without a ring.
    pub fn fail_enters(&mut self, faults: &Arc<EnterFaults>) {
        if let Some(Backend::Ring(ring)) = &mut self.backend {
            ring.set_faults(faults);
        }
    }

    /// How often the kernel was entered for this queue's ring, or work handed to its pool.
    pub fn enters(&self) -> u64 {
        self.enters
    }

    fn reap(&mut self) -> io::Result<bool> {
        let mut busy = false;
        if let Some(backend) = &mut self.backend {
            if backend.holds_completions() {
                backend.enter(0)?;
                self.enters += 1;
            }
            backend.reap(&mut self.completed);
        }
        let mut completed = std::mem::take(&mut self.completed);
        for one in completed.drain(..) {
            busy = true;
            if one.key < RESERVED_KEYS {
                self.lane.complete(one.key, one.result, None);
            } else {
                self.note_event(one)?;
            }
        }
        self.completed = completed;
        Ok(busy)
    }

    fn note_event(&mut self, event: Completed) -> io::Result<()> {
        if event.key == WAKE_KEY {
            let own = self.wakeups.event().expect("a queue with a ring has an event");
            own.take();
        }
        if event.more {
            return Ok(());
        }
        // The kernel has ended the watch.
        let service = self.services.of_key(event.key);
        let own = self.wakeups.event().filter(|_| event.key == WAKE_KEY);
        match (&mut self.backend, own.or(service.as_ref().map(|service| service.event()))) {
            (Some(backend), Some(again)) => backend.watch(again, event.key),
            _ => Ok(()),
        }
    }

    fn take_in(&mut self) -> bool {
        let mut progress = false;
        loop {
            let Some(Incoming { port, request, receipt }) =
                self.inbox.incoming.borrow_mut().pop_front()
            else {
                break;
            };
            let place = self.ports.start(port, request);
            self.tasks.add(Body::Request { pool: port, place, receipt });
            progress = true;
        }
        self.ports.drop_abandoned(&self.inbox);
        for receipt in self.inbox.withdrawn() {
            if let Some(key) = self.tasks.of_receipt(receipt) {
                self.withdraw(key);
            }
        }
        progress
    }

    fn poll_woken(&mut self) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        self.wakeups.take(&mut batch);
        let progress = !batch.is_empty();
        for key in batch.drain(..) {
            self.poll_task(key);
        }
        self.batch = batch;
        progress
    }

    fn poll_task(&mut self, key: usize) {
        let waker = self.tasks.waker(key);
        let mut cx = TaskContext::from_waker(&waker);
        match self.tasks.get_mut(key) {
            None => (),
            Some(Body::Request { pool, place, receipt }) => {
                let (pool, place, receipt) = (*pool, *place, *receipt);
                if let Poll::Ready(result) = self.ports.poll(pool, place, &mut cx) {
                    self.ports.finish(pool, place);
                    self.tasks.remove(key);
                    self.inbox.answer(receipt, result);
                }
            }
            Some(Body::Spawned(future)) => {
                let Some(mut taken) = future.take() else { return };
                if taken.as_mut().poll(&mut cx).is_ready() {
                    self.tasks.remove(key);
                } else if let Some(Body::Spawned(place)) = self.tasks.get_mut(key) {
                    *place = Some(taken);
                }
            }
        }
    }

    /// Moves what this queue's tasks have issued to the ring, and takes a turn of the shared work of its targets.
    fn send(&mut self) -> io::Result<bool> {
        let mut progress = match &mut self.backend {
            Some(backend) => {
                backend.fill(&self.lane)?;
                false
            }
            None => self.lane.send(|_, _, _| Sent::Done(-libc::EBADF)) > 0,
        };
        for service in self.services.driven() {
            progress |= service.turn()?;
        }
        Ok(progress)
    }

    /// Submits what the ring holds, if anything.
    fn submit(&mut self) -> io::Result<()> {
        let holds = self.backend.as_mut().is_some_and(Backend::holds_entries);
        if holds { self.enter(0) } else { Ok(()) }
    }

    /// Submits and waits for `want` completions.
    fn enter(&mut self, want: u32) -> io::Result<()> {
        if let Some(backend) = &mut self.backend {
            backend.enter(want)?;
            self.enters += 1;
        }
        Ok(())
    }
}
