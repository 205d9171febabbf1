//! Locks of a model checker under parking_lot's signatures.

#[cfg(blkring_loom)]
use loom as checker;
#[cfg(blkring_shuttle)]
use shuttle as checker;

use std::fmt;
use std::ops::{Deref, DerefMut};

pub use checker::thread_local;

/// Atomics of the checker.
pub mod atomic {
    pub use super::checker::sync::atomic::{
        AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
        Ordering, fence,
    };
}

/// Threads of the checker.
pub mod thread {
    pub use super::checker::thread::{
        Builder, JoinHandle, LocalKey, Thread, ThreadId, current, park, spawn, yield_now,
    };
}

/// A lock of the checker. Never poisoned: a panic under it ends the model's run.
pub struct Mutex<T>(checker::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A lock around `value`.
    pub fn new(value: T) -> Self {
        Self(checker::sync::Mutex::new(value))
    }

    /// Takes the lock, waiting for it if need be.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().expect("a panic under a lock ends the run")))
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
    }

    /// The value, without locking: the lock is not shared.
    pub fn into_inner(self) -> T {
        self.0.into_inner().expect("a panic under a lock ends the run")
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

/// A held [`Mutex`].
pub struct MutexGuard<'a, T>(Option<checker::sync::MutexGuard<'a, T>>);

const HELD: &str = "empty only inside Condvar::wait";

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.0.as_ref().expect(HELD)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect(HELD)
    }
}

/// A condition variable of the checker.
#[derive(Debug)]
pub struct Condvar(checker::sync::Condvar);

impl Condvar {
    /// A condition variable nobody waits on.
    pub fn new() -> Self {
        Self(checker::sync::Condvar::new())
    }

    /// Gives up the lock, waits to be notified, takes the lock again.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.0.take().expect(HELD);
        guard.0 = Some(self.0.wait(held).expect("a panic under a lock ends the run"));
    }

    /// Wakes one waiter.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiters.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}
