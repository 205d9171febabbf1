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
