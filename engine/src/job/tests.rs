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

/// A waker that takes a turn of the jobs, as one of another executor may.
struct Turning(Arc<Jobs>, AtomicUsize);

impl Wake for Turning {
    fn wake(self: Arc<Self>) {
        self.0.run();
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn what_a_job_wakes_may_take_a_turn_of_the_jobs() {
    let jobs = Jobs::new(None);
    let first = jobs.start(async { 1 });
    let step: Arc<Mutex<Option<Arc<Job<i32>>>>> = Arc::default();
    let (nudged, mut steps) = (step.clone(), 0);
    // It wakes itself, and then its waiter, all within one poll.
    let second = jobs.start(poll_fn(move |cx| {
        steps += 1;
        cx.waker().wake_by_ref();
        if let Some(job) = &*nudged.lock() {
            job.nudge();
        }
        if steps == 3 { Poll::Ready(steps) } else { Poll::Pending }
    }));
    *step.lock() = Some(second.clone());
    let waker = Arc::new(Turning(jobs.clone(), AtomicUsize::new(0)));
    let task = Waker::from(waker.clone());
    let mut joins = [first.join(), second.join()];
    let poll_all = |joins: &mut [Join<i32>; 2]| {
        joins.iter_mut().all(|join| Pin::new(join).poll(&mut Context::from_waker(&task)).is_ready())
    };
    assert!(!poll_all(&mut joins));
    while jobs.run() {
        if second.result().is_none() {
            assert!(!poll_all(&mut joins));
        }
    }
    assert!(poll_all(&mut joins));
    assert_eq!((first.result(), second.result()), (Some(1), Some(3)));
    assert!(waker.1.load(Ordering::SeqCst) >= 2);
    drop(step.lock().take());
}

#[test]
fn a_job_that_is_given_up_while_it_is_polled_drops_what_it_held() {
    let jobs = Jobs::new(None);
    let held = Arc::new(());
    let (inside, owner) = (held.clone(), jobs.clone());
    let job = jobs.start(async move {
        owner.abandon();
        assert_eq!(Arc::strong_count(&inside), 2, "it is still being polled");
        std::future::pending::<()>().await;
        drop(inside);
    });
    jobs.run();
    assert_eq!(Arc::strong_count(&held), 1);
    assert_eq!(job.result(), None);
    assert!(!jobs.run());
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
