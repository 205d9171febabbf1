//! Two threads in step.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Lets both threads through when both have come. It spins, so that they go on at the same moment.
pub struct Gate<'a> {
    shared: &'a Shared,
    passed: u64,
}

#[derive(Default)]
struct Shared {
    arrived: AtomicU64,
    broken: AtomicBool,
}

impl Gate<'_> {
    /// Waits for the other one.
    ///
    /// # Panics
    /// If the other one has panicked.
    pub fn pass(&mut self) {
        self.passed += 1;
        self.shared.arrived.fetch_add(1, Ordering::SeqCst);
        while self.shared.arrived.load(Ordering::SeqCst) < 2 * self.passed {
            assert!(!self.shared.broken.load(Ordering::SeqCst), "the other thread has failed");
            thread::yield_now();
        }
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.shared.broken.store(true, Ordering::SeqCst);
        }
    }
}

/// Runs both, each on a thread of its own with its side of a gate.
///
/// # Panics
/// If one of them does.
pub fn duo(first: impl FnOnce(Gate<'_>) + Send, second: impl FnOnce(Gate<'_>) + Send) {
    let shared = Shared::default();
    thread::scope(|scope| {
        scope.spawn(|| first(Gate { shared: &shared, passed: 0 }));
        scope.spawn(|| second(Gate { shared: &shared, passed: 0 }));
    });
}
