//! A bounded pool of threads that do what a ring would: for machines where the ring cannot be had, and for whoever
//! asks for it.
//!
//! A pool is shared by any number of queues and images. Its threads start when the first of them is set up, all at
//! once, so that nothing is started later, inside a sandbox; they end, and are waited for, when the last of them and
//! the last handle are gone. Work is done in the order in which it comes, by whichever thread is free.
//!
//! One lock (*pool*) guards the list of work. It is held for a few instructions, never during a system call of the
//! work itself.

mod call;
mod mailbox;
mod side;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;

use blkring_tracker::sync::atomic::{AtomicBool, Ordering};
use blkring_tracker::sync::thread::{self, JoinHandle};
use blkring_tracker::sync::{Condvar, Mutex};

use call::Call;
use mailbox::Mailbox;
pub(crate) use side::Pooled;

use crate::sys;

/// The most threads of a pool.
pub const MAX_THREADS: usize = 1024;

/// The stack of a thread, in bytes: it makes system calls and nothing else.
const STACK: usize = 256 << 10;

/// How large a pool is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PoolOptions {
    /// Threads, 1 to [`MAX_THREADS`]: operations that are done at a time.
    pub threads: usize,
    /// The threads are called so, with a number behind it. Linux shows 15 bytes of a name.
    pub name: String,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions { threads: 16, name: "blkring-io".to_owned() }
    }
}

impl PoolOptions {
    /// So many threads.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Threads of this name.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }
}

/// Threads for the work of queues and images. Clones share them. See [`Choice`](crate::Choice).
#[derive(Clone)]
pub struct ThreadPool {
    owner: Arc<Owner>,
}

/// What a pool does at the moment, and has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolCounts {
    /// Threads that run: none before the pool is first needed.
    pub threads: usize,
    /// Operations that wait for a thread.
    pub waiting: usize,
    /// Operations that a thread is busy with.
    pub running: usize,
    /// Operations at most that threads were busy with at a time.
    pub most_running: usize,
    /// Operations done.
    pub done: u64,
}

/// Ends the threads when the last handle is gone. Threads hold the shared part alone.
struct Owner {
    shared: Arc<Shared>,
    options: PoolOptions,
    /// Whether it was said why there is no ring.
    told: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    state: Mutex<State>,
    /// Told when there is work or the pool ends.
    work: Condvar,
}

#[derive(Default)]
struct State {
    work: VecDeque<Work>,
    ending: bool,
    idle: usize,
    counts: PoolCounts,
}

/// An op for a thread to do: what to call, and where the result goes.
struct Work {
    call: Call,
    key: u64,
    mailbox: Arc<Mailbox>,
}

impl ThreadPool {
    /// A pool that starts its threads when a queue or an image is first set up with it.
    ///
    /// # Panics
    /// Unless [`PoolOptions::threads`] is within its bounds.
    pub fn new(options: PoolOptions) -> Self {
        assert!(
            (1..=MAX_THREADS).contains(&options.threads),
            "a pool has 1 to {MAX_THREADS} threads"
        );
        let shared = Arc::new(Shared { state: Mutex::default(), work: Condvar::new() });
        let (told, threads) = (AtomicBool::new(false), Mutex::default());
        ThreadPool { owner: Arc::new(Owner { shared, options, told, threads }) }
    }

    /// Starts the threads, unless they run. To be called before a sandbox is entered that forbids it, if no queue and
    /// no image is set up before.
    ///
    /// # Errors
    /// Of the kernel, if not even one thread could be started. With one the pool works.
    pub fn start(&self) -> io::Result<()> {
        let mut threads = self.owner.threads.lock();
        if !threads.is_empty() {
            return Ok(());
        }
        let started = sys::with_signals_blocked(|| self.start_all(&mut threads));
        self.owner.shared.state.lock().counts.threads = threads.len();
        match started {
            Err(error) if threads.is_empty() => Err(error),
            _ => Ok(()),
        }
    }

    fn start_all(&self, threads: &mut Vec<JoinHandle<()>>) -> io::Result<()> {
        let options = &self.owner.options;
        for number in 0..options.threads {
            let shared = self.owner.shared.clone();
            let builder = thread::Builder::new().name(format!("{}-{number}", options.name));
            threads.push(builder.stack_size(STACK).spawn(move || shared.run())?);
        }
        Ok(())
    }

    /// What it does and has done.
    pub fn counts(&self) -> PoolCounts {
        let state = self.owner.shared.state.lock();
        PoolCounts { waiting: state.work.len(), ..state.counts }
    }

    /// Whether `other` is a handle of the same pool.
    pub fn is_same(&self, other: &ThreadPool) -> bool {
        Arc::ptr_eq(&self.owner, &other.owner)
    }

    /// Says once for each pool why its threads do what a ring would.
    pub(crate) fn tell(&self, reason: &dyn fmt::Display) {
        if !self.owner.told.swap(true, Ordering::Relaxed) {
            tracing::warn!("{reason}; a pool of {} threads is used instead", self.counts().threads);
        }
    }

    /// Hands over work, which is done in this order.
    fn submit(&self, work: impl ExactSizeIterator<Item = Work>) {
        let count = work.len();
        let mut state = self.owner.shared.state.lock();
        state.work.extend(work);
        let woken = count.min(state.idle);
        drop(state);
        for _ in 0..woken {
            self.owner.shared.work.notify_one();
        }
    }
}

impl fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadPool")
            .field("options", &self.owner.options)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

impl Default for ThreadPool {
    fn default() -> Self {
        ThreadPool::new(PoolOptions::default())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.shared.state.lock().ending = true;
        self.shared.work.notify_all();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the pool has panicked");
            }
        }
    }
}

impl Shared {
    /// What a thread does, until the pool ends and no work is left.
    fn run(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(work) = state.work.pop_front() {
                state.counts.running += 1;
                state.counts.most_running = state.counts.most_running.max(state.counts.running);
                drop(state);
                let result = work.call.perform();
                state = self.state.lock();
                // Counted before anybody is told, so that the counts are right for whoever waits.
                state.counts.running -= 1;
                state.counts.done += 1;
                drop(state);
                work.mailbox.put(work.key, result);
                drop(work);
                state = self.state.lock();
            } else if state.ending {
                return;
            } else {
                state.idle += 1;
                self.work.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}
