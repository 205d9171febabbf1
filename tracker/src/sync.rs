//! The one door through which locks, atomics, thread-locals and thread starts of the core crates come.
//!
//! In production these are parking_lot's locks and the standard library's atomics and threads. Built with
//! `--cfg blkring_loom` or `--cfg blkring_shuttle` they are those of a model checker, with the same signatures:
//! `lock()` returns the guard itself, `Condvar::wait` borrows it.
//!
//! [`Arc`] is the standard library's in every build: only that one may stand before `self` in a method. It is never
//! used to order anything else.

#[cfg(all(blkring_loom, blkring_shuttle))]
compile_error!("one model checker at a time: blkring_loom or blkring_shuttle");

#[cfg(any(blkring_loom, blkring_shuttle))]
mod model;

#[cfg(any(blkring_loom, blkring_shuttle))]
pub use self::model::{Condvar, Mutex, MutexGuard, atomic, thread, thread_local};

#[cfg(not(any(blkring_loom, blkring_shuttle)))]
pub use parking_lot::{Condvar, Mutex, MutexGuard};

#[cfg(not(any(blkring_loom, blkring_shuttle)))]
pub use std::thread_local;

pub use std::sync::{Arc, Weak};

/// Atomics. Every use says in a comment what its ordering is for.
#[cfg(not(any(blkring_loom, blkring_shuttle)))]
pub mod atomic {
    pub use std::sync::atomic::{
        AtomicBool, AtomicI32, AtomicI64, AtomicU8, AtomicU16, AtomicU32, AtomicU64, AtomicUsize,
        Ordering, fence,
    };
}

/// Thread starts.
#[cfg(not(any(blkring_loom, blkring_shuttle)))]
pub mod thread {
    pub use std::thread::{
        Builder, JoinHandle, LocalKey, Thread, ThreadId, current, park, spawn, yield_now,
    };
}
