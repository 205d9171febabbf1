//! Threads that work for a copy, and the answers that its tasks wait for.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::thread::{self, JoinHandle};

use crossbeam::channel::{Receiver, Sender, bounded};

/// Threads that do jobs of one kind. They end, and are waited for, when the team is dropped.
pub struct Team<J> {
    /// `None` once the team is asked to end.
    jobs: Option<Sender<J>>,
    threads: Vec<JoinHandle<()>>,
}

impl<J: Send + 'static> Team<J> {
    /// `threads` threads, each of which runs `work` until there are no more jobs. So many jobs as `room` says may
    /// wait for a thread; whoever has one more is held up.
    ///
    /// # Errors
    /// If there can be no such thread.
    pub fn start(
        name: &str,
        (threads, room): (usize, usize),
        work: impl Fn(Receiver<J>) + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let (jobs, taken) = bounded(room);
        let mut team = Team { jobs: Some(jobs), threads: Vec::new() };
        for number in 0..threads {
            let (work, taken) = (work.clone(), taken.clone());
            let thread = thread::Builder::new().name(format!("{name}-{number}"));
            team.threads.push(thread.spawn(move || work(taken))?);
        }
        Ok(team)
    }

    /// Hands a job to whichever thread is free next.
    pub fn send(&self, job: J) {
        let jobs = self.jobs.as_ref().expect("it is taken at the end only");
        // If all threads are gone, by a panic, the answer to the job tells.
        drop(jobs.send(job));
    }
}

impl<J> Drop for Team<J> {
    fn drop(&mut self) {
        drop(self.jobs.take());
        for thread in self.threads.drain(..) {
            // A thread that panicked has told so itself.
            drop(thread.join());
        }
    }
}

enum State<T> {
    Open(Option<Waker>),
    Given(T),
    Lost,
}

/// The answer to a job, to be given by a thread.
pub struct Answer<T>(Arc<Mutex<State<T>>>);

/// What waits for an answer.
pub struct Awaited<T>(Arc<Mutex<State<T>>>);

/// Both ends of an answer.
pub fn answer<T>() -> (Answer<T>, Awaited<T>) {
    let state = Arc::new(Mutex::new(State::Open(None)));
    (Answer(state.clone()), Awaited(state))
}

fn lock<T>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    state.lock().expect("nobody panics while holding it")
}

impl<T> Answer<T> {
    /// Gives it.
    pub fn give(self, value: T) {
        self.close(State::Given(value));
    }

    fn close(&self, state: State<T>) {
        let mut now = lock(&self.0);
        let State::Open(waker) = &mut *now else { return };
        let waker = waker.take();
        *now = state;
        drop(now);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        self.close(State::Lost);
    }
}

impl<T> Future for Awaited<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = lock(&self.0);
        match std::mem::replace(&mut *state, State::Lost) {
            State::Given(value) => Poll::Ready(value),
            State::Open(_) => {
                *state = State::Open(Some(context.waker().clone()));
                Poll::Pending
            }
            State::Lost => panic!("a thread of the copy ended before its job"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn wait<T>(awaited: Awaited<T>) -> T {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut awaited = pin!(awaited);
        loop {
            match awaited.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(value) => return value,
                Poll::Pending => thread::park(),
            }
        }
    }

    #[test]
    fn jobs_are_answered_and_threads_end() {
        let ended = Arc::new(AtomicUsize::new(0));
        let counter = ended.clone();
        let team = Team::start("test", (3, 2), move |jobs: Receiver<(u64, Answer<u64>)>| {
            for (number, answer) in jobs {
                answer.give(number * number);
            }
            counter.fetch_add(1, Ordering::SeqCst);
        })
        .unwrap();
        let awaited: Vec<_> = (0..100)
            .map(|number| {
                let (answer, awaited) = answer();
                team.send((number, answer));
                awaited
            })
            .collect();
        let squares: Vec<u64> = awaited.into_iter().map(wait).collect();
        assert_eq!(squares, (0..100).map(|number| number * number).collect::<Vec<_>>());
        drop(team);
        assert_eq!(ended.load(Ordering::SeqCst), 3);
    }

    #[test]
    #[should_panic(expected = "ended before its job")]
    fn a_lost_answer_is_noticed() {
        let team =
            Team::start("test", (1, 1), |jobs: Receiver<Answer<()>>| drop(jobs.recv())).unwrap();
        let (first, awaited) = answer();
        team.send(first);
        wait(awaited);
    }
}
