//! What the queues of these tests run on: io_uring, or what the environment variable `BLKRING_TEST_BACKEND` says
//! (`ring`, `pool`, or `auto` for the pool where there is no ring).
#![allow(dead_code, reason = "not every test target needs all of it")]

use std::sync::LazyLock;

use blkring_engine::{Choice, Queue, QueueOptions, QueueSeed, ThreadPool};

/// One pool for all tests of a process.
static POOL: LazyLock<ThreadPool> = LazyLock::new(ThreadPool::default);

pub fn choice() -> Choice {
    match std::env::var("BLKRING_TEST_BACKEND").as_deref() {
        Ok("pool") => Choice::Pool(POOL.clone()),
        Ok("auto") => Choice::Auto(POOL.clone()),
        Ok("ring") | Err(_) => Choice::Ring,
        Ok(other) => panic!("BLKRING_TEST_BACKEND is ring, pool or auto, not {other:?}"),
    }
}

/// Default options on it.
pub fn options() -> QueueOptions {
    QueueOptions::default().backend(choice())
}

/// A queue of the calling thread with room for so many requests.
pub fn queue(requests: usize) -> Queue {
    started(QueueOptions::with_requests(requests))
}

/// The same with these options.
pub fn started(options: QueueOptions) -> Queue {
    QueueSeed::new(options.backend(choice())).unwrap().start().unwrap()
}
