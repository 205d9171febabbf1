//! What does the program's I/O: io_uring, or a pool of threads.
//!
//! `threads` is the pool. `io_uring` and `native` are the ring, which has taken the place of Linux AIO in the kernel, and
//! without a ring they fail. Who asks for none of them gets the ring, or the pool where there is none, and is told so.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard};

use blkring_engine::{Choice, InUse, PoolOptions, Queue, QueueOptions, QueueSeed, ThreadPool};

use crate::failure::Failure;
use crate::name;
use crate::options::Aio;

/// Threads of the pool. They wait for the disk, so they are more than there are processors.
const THREADS: usize = 32;

/// One for the whole program. Its threads end with the program.
static POOL: LazyLock<ThreadPool> =
    LazyLock::new(|| ThreadPool::new(PoolOptions::default().threads(THREADS)));

/// What was asked for, for all queues from then on.
static ASKED: Mutex<Option<Aio>> = Mutex::new(None);

/// From here on all queues are made on this.
pub fn ask_for(aio: Option<Aio>) {
    *lock() = aio;
}

fn lock() -> MutexGuard<'static, Option<Aio>> {
    ASKED.lock().expect("nobody panics while it is held")
}

/// What was asked for.
pub fn asked() -> Option<Aio> {
    *lock()
}

/// What queues and images are to use.
pub fn choice() -> Choice {
    match asked() {
        Some(Aio::Threads) => Choice::Pool(POOL.clone()),
        Some(Aio::Native | Aio::IoUring) => Choice::Ring,
        None => Choice::Auto(POOL.clone()),
    }
}

/// A queue of the calling thread.
///
/// # Errors
/// If there is no ring and no thread for it.
pub fn queue(options: QueueOptions) -> Result<Queue, Failure> {
    let queue = QueueSeed::new(options.backend(choice()))?.start()?;
    tell(&queue.backend());
    Ok(queue)
}

/// Says once why the pool is used, unless it was asked for.
fn tell(backend: &InUse) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if let InUse::Pool { instead: Some(unavailable) } = backend
        && !TOLD.swap(true, Ordering::Relaxed)
    {
        name::complain(format_args!("{unavailable}; threads are used instead"));
    }
}

/// As `bench --stats` says it.
pub fn description(backend: &InUse) -> String {
    let asked = asked().map(|aio| format!(" ({} was asked for)", aio.name())).unwrap_or_default();
    match backend {
        InUse::Ring { .. } => format!("io_uring{asked}"),
        InUse::Pool { instead: None } => format!("threads, {THREADS} of them{asked}"),
        InUse::Pool { instead: Some(unavailable) } => {
            format!("threads, {THREADS} of them, since {unavailable}")
        }
        _ => "none".to_owned(),
    }
}
