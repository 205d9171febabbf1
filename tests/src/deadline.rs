//! The one clock of tests: whether something took longer than it may.

use std::time::{Duration, Instant};

/// Does `work`, which must not take longer than `limit`.
///
/// # Panics
/// If it did, with what it was.
pub fn within<T>(limit: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let output = work();
    let took = begin.elapsed();
    assert!(took <= limit, "{what} took {took:?}, more than {limit:?}");
    output
}

/// Does `work`, which must not take longer than `limit` at least once in three tries: whatever else the machine does
/// makes things slower, never faster.
///
/// # Panics
/// If it never was fast enough.
pub fn at_best_within<T>(limit: Duration, what: &str, mut work: impl FnMut() -> T) -> T {
    for _ in 0..2 {
        let begin = Instant::now();
        let output = work();
        if begin.elapsed() <= limit {
            return output;
        }
    }
    within(limit, what, work)
}
