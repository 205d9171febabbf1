//! Wake-ups across threads under loom: every interleaving of a queue's turn with those that wake it, up to loom's bounds.
//!
//! `RUSTFLAGS="--cfg blkring_loom" cargo test -p blkring-engine --lib --release model`
//!
//! Nobody really sleeps here. A queue that may rest notes so, and when all others have ended it must find its event
//! signalled, or nothing left to do.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use blkring_tracker::sync::atomic::{AtomicUsize, Ordering};
use blkring_tracker::sync::{Mutex, thread};

use crate::job::{Job, Jobs};
use crate::sys::EventFd;
use crate::variant::Variants;
use crate::wake::{TaskWaker, Wakeups};

/// Like `loom::model`, with at most so many switches away from a thread that could go on.
fn bounded(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(run);
}

/// Whether a queue may sleep until its event is signalled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Sleeps,
    Awake,
}

impl Rest {
    fn when(asleep: bool) -> Self {
        if asleep { Rest::Sleeps } else { Rest::Awake }
    }

    /// Nobody will signal any more: a queue with something left to do has to be awake, or is woken now.
    fn ends(self, event: &EventFd) {
        assert!(self == Rest::Awake || event.take() > 0, "asleep for ever");
    }
}

/// One task, and what it has been told.
struct Sleeper {
    wakeups: Arc<Wakeups>,
    task: Arc<TaskWaker>,
    told: Arc<AtomicUsize>,
    seen: usize,
    polls: usize,
}

impl Sleeper {
    fn new() -> Self {
        let event = EventFd::new().expect("a descriptor");
        let wakeups = Wakeups::new(Some(event), Variants::default());
        let task = TaskWaker::new(0, wakeups.clone());
        Sleeper { wakeups, task, told: Arc::new(AtomicUsize::new(0)), seen: 0, polls: 0 }
    }

    /// A thread that tells and wakes.
    fn teller(&self) -> thread::JoinHandle<()> {
        let (told, waker) = (self.told.clone(), Waker::from(self.task.clone()));
        thread::spawn(move || {
            told.fetch_add(1, Ordering::SeqCst);
            waker.wake_by_ref();
        })
    }

    /// As a turn of a queue.
    fn turn(&mut self) -> Rest {
        self.wakeups.get_up();
        let mut batch = Vec::new();
        self.wakeups.take(&mut batch);
        for _ in batch {
            self.task.rearm();
            self.polls += 1;
            self.seen = self.told.load(Ordering::SeqCst);
        }
        Rest::when(self.wakeups.lie_down())
    }

    fn sees(mut self, all: usize, mut rest: Rest) {
        while self.seen < all {
            rest.ends(self.wakeups.event().expect("made with one"));
            rest = self.turn();
        }
    }
}

#[test]
fn a_wake_up_of_a_task_is_never_lost() {
    loom::model(|| {
        let mut sleeper = Sleeper::new();
        let teller = sleeper.teller();
        sleeper.turn();
        let rest = sleeper.turn();
        teller.join().expect("teller");
        sleeper.sees(1, rest);
    });
}

#[test]
fn two_wake_ups_of_a_task_are_both_seen() {
    bounded(3, || {
        let mut sleeper = Sleeper::new();
        let tellers = [sleeper.teller(), sleeper.teller()];
        let rest = sleeper.turn();
        for teller in tellers {
            teller.join().expect("teller");
        }
        sleeper.sees(2, rest);
    });
}

/// A job that waits to be told so many times, the waker that it left, and what it was told.
#[derive(Clone)]
struct Told {
    count: Arc<AtomicUsize>,
    waker: Arc<Mutex<Option<Waker>>>,
}

impl Told {
    fn start(jobs: &Arc<Jobs>, all: usize) -> (Self, Arc<Job<()>>) {
        let told = Told { count: Arc::new(AtomicUsize::new(0)), waker: Arc::default() };
        let inside = told.clone();
        let job = jobs.start(poll_fn(move |cx| {
            let former = inside.waker.lock().replace(cx.waker().clone());
            drop(former);
            if inside.count.load(Ordering::SeqCst) == all { Poll::Ready(()) } else { Poll::Pending }
        }));
        (told, job)
    }

    fn tell(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        let waker = self.waker.lock().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// As a turn of a queue that watches these jobs.
fn turn(jobs: &Jobs) -> Rest {
    jobs.begin_turn();
    jobs.run();
    Rest::when(jobs.end_turn())
}

/// What is left is done by one queue, as long as one is awake or is woken.
fn ends(jobs: &Jobs, job: &Job<()>, event: &EventFd, mut rest: Rest) {
    while job.result().is_none() {
        rest.ends(event);
        rest = turn(jobs);
    }
    assert_eq!(jobs.len(), 0, "a job that has ended stays");
}

fn jobs() -> (Arc<Jobs>, Arc<EventFd>) {
    let event = Arc::new(EventFd::new().expect("a descriptor"));
    (Jobs::new(Some(event.clone())), event)
}

#[test]
fn a_wake_up_of_a_job_is_never_lost() {
    bounded(4, || {
        let (jobs, event) = jobs();
        let (told, job) = Told::start(&jobs, 1);
        let teller = thread::spawn(move || told.tell());
        turn(&jobs);
        let rest = turn(&jobs);
        teller.join().expect("teller");
        ends(&jobs, &job, &event, rest);
    });
}

/// Two queues poll the job while it is told twice: it is polled by one at a time, and once more afterwards.
#[test]
fn a_job_that_two_queues_poll_sees_every_wake_up() {
    bounded(2, || {
        let (jobs, event) = jobs();
        let (told, job) = Told::start(&jobs, 2);
        let other = {
            let jobs = jobs.clone();
            thread::spawn(move || turn(&jobs))
        };
        let teller = {
            let told = told.clone();
            thread::spawn(move || told.tell())
        };
        told.tell();
        let own = turn(&jobs);
        teller.join().expect("teller");
        let other = other.join().expect("other");
        let rest = Rest::when(own == Rest::Sleeps && other == Rest::Sleeps);
        ends(&jobs, &job, &event, rest);
    });
}

/// The end of a job and one that begins to wait for it.
#[test]
fn one_that_begins_to_wait_for_a_job_hears_of_its_end() {
    bounded(3, || {
        let (jobs, event) = jobs();
        let job = jobs.start(async {});
        let other = {
            let jobs = jobs.clone();
            thread::spawn(move || turn(&jobs))
        };
        let mut sleeper = Sleeper::new();
        let waker = Waker::from(sleeper.task.clone());
        let mut join = job.join();
        let first = std::pin::Pin::new(&mut join)
            .poll(&mut std::task::Context::from_waker(&waker))
            .is_ready();
        let rest = sleeper.turn();
        other.join().expect("other");
        ends(&jobs, &job, &event, Rest::Awake);
        if !first && sleeper.polls == 0 {
            rest.ends(sleeper.wakeups.event().expect("made with one"));
        }
    });
}
