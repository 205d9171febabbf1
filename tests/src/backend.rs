//! What the queues of tests run on: io_uring, or what the environment variable `BLKRING_TEST_BACKEND` says
//! (`ring`, `pool`, or `auto` for the pool where there is no ring).

use std::sync::LazyLock;

use blkring_engine::{Choice, ThreadPool};

/// One pool for all tests of a process.
static POOL: LazyLock<ThreadPool> = LazyLock::new(ThreadPool::default);

/// What the environment says.
///
/// # Panics
/// If it says something else.
pub fn choice() -> Choice {
    match std::env::var("BLKRING_TEST_BACKEND").as_deref() {
        Ok("pool") => Choice::Pool(POOL.clone()),
        Ok("auto") => Choice::Auto(POOL.clone()),
        Ok("ring") | Err(_) => Choice::Ring,
        Ok(other) => panic!("BLKRING_TEST_BACKEND is ring, pool or auto, not {other:?}"),
    }
}
