//! The memory of an operation lives until the kernel is done with it, whoever has stopped waiting.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a failed step fails the test")]

mod backend;

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use blkring_engine::{
    Access, BufferPool, Cache, Choice, OpenOptions, PoolOptions, Queue, QueueOptions, QueueSeed,
    Service, Storage, ThreadPool,
};

const SIZE: usize = 4 << 20;

type Task = Pin<Box<dyn Future<Output = ()>>>;

struct Reading {
    queue: Queue,
    /// The future that waits for the read.
    task: Rc<RefCell<Option<Task>>>,
    /// Has given out the memory of the read, and knows when it came back.
    pool: Arc<BufferPool>,
    storage: Arc<Storage>,
    _file: tempfile::NamedTempFile,
}

/// A queue that has just handed a large direct read to the kernel and reaped nothing since.
fn reading() -> Reading {
    reading_on(backend::choice())
}

fn reading_on(backend: Choice) -> Reading {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), vec![7; SIZE]).unwrap();
    let options = OpenOptions::new().access(Access::ReadWrite).cache(Cache::Direct);
    let storage = Arc::new(Storage::open(file.path(), &options).unwrap());
    let pool = BufferPool::new(SIZE);
    let mem = pool.try_take(SIZE).unwrap().mem();
    let options = QueueOptions::default().backend(backend);
    let mut queue = QueueSeed::new(options).unwrap().start().unwrap();
    let (lane, reader) = (queue.lane(), storage.clone());
    let read: Task = Box::pin(async move { reader.read(&lane, 0, &mem).await.unwrap() });
    let task = Rc::new(RefCell::new(Some(read)));
    let polled = task.clone();
    queue.spawn(poll_fn(move |cx| match polled.borrow_mut().as_mut() {
        Some(future) => future.as_mut().poll(cx),
        None => Poll::Ready(()),
    }));
    queue.turn().unwrap();
    Reading { queue, task, pool, storage, _file: file }
}

/// A released buffer is overwritten and the next to be given out. Were the kernel still reading into it, the bytes of
/// the file would appear there.
fn assert_left_alone(pool: &Arc<BufferPool>) {
    assert_eq!(pool.taken(), 0);
    let again = pool.try_take(SIZE).unwrap().mem();
    let at_release = again.to_vec();
    assert!(!at_release.contains(&7), "released buffers are poisoned in builds with assertions");
    std::thread::sleep(Duration::from_millis(50));
    assert!(again.to_vec() == at_release, "the kernel wrote to memory that was released");
}

#[test]
fn a_dropped_read_keeps_its_memory() {
    keeps_its_memory(reading());
}

#[test]
fn a_dropped_read_on_the_pool_keeps_its_memory() {
    let pool = ThreadPool::new(PoolOptions::default().threads(1));
    keeps_its_memory(reading_on(Choice::Pool(pool)));
}

fn keeps_its_memory(mut reading: Reading) {
    drop(reading.task.take());
    assert_eq!(reading.pool.taken(), SIZE, "the kernel still has it");
    assert_eq!(reading.storage.statistics().running, 1, "and the range is its own");
    while reading.pool.taken() > 0 {
        reading.queue.wait().unwrap();
    }
    assert_eq!(reading.storage.statistics().running, 0);
    assert_left_alone(&reading.pool);
}

#[test]
fn a_dropped_queue_waits_for_the_kernel() {
    let Reading { queue, task, pool, storage, _file } = reading();
    drop(task.take());
    drop(queue);
    assert_eq!(storage.statistics().running, 0);
    assert_left_alone(&pool);
}

#[test]
fn a_dropped_service_waits_for_the_kernel() {
    let Reading { storage, pool, task, mut queue, _file } = reading();
    drop(task.take());
    while pool.taken() > 0 {
        queue.wait().unwrap();
    }
    let service = Service::new(&backend::choice()).unwrap();
    let mem = pool.try_take(SIZE).unwrap().mem();
    let mut read = Box::pin(storage.read(service.lane(), 0, &mem));
    assert!(read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(read);
    drop(mem);
    assert_eq!(pool.taken(), SIZE, "the operation has its slot");
    // With its ops, which would otherwise go with the service.
    let lane = service.lane().clone();
    drop(service);
    assert_eq!(storage.statistics().running, 0);
    assert_left_alone(&pool);
    drop(lane);
}
