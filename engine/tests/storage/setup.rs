//! What the tests share: a world around one file, and futures that a test can drop from outside.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use blkring_engine::sim::{Kernel, SimDisk, SimOptions, World};
use blkring_engine::{Disk, Flags, IoMem, Lane, QueueOptions, RawDisk, Request, Storage, Variants};

pub const FILE: &str = "a";

pub fn mem(len: usize, byte: u8) -> IoMem {
    IoMem::from(vec![byte; len])
}

/// One file, one storage on it, some queues.
pub struct Bench {
    pub world: World,
    pub disk: SimDisk,
    pub storage: Arc<Storage>,
    pub lanes: Vec<Lane>,
}

pub struct Setup {
    pub seed: u64,
    pub kernel: Kernel,
    pub content: Vec<u8>,
    pub options: SimOptions,
    pub queues: usize,
    pub queue: QueueOptions,
    pub variants: Variants,
}

impl Setup {
    pub fn new(seed: u64, content: &[u8]) -> Self {
        Setup {
            seed,
            kernel: Kernel::Current,
            content: content.to_vec(),
            options: SimOptions::default(),
            queues: 1,
            queue: QueueOptions::default(),
            variants: Variants::default(),
        }
    }

    pub fn aligned(mut self, alignment: u64) -> Self {
        self.options = SimOptions::aligned(alignment);
        self
    }

    pub fn queues(mut self, queues: usize) -> Self {
        self.queues = queues;
        self
    }

    pub fn variants(mut self, variants: Variants) -> Self {
        self.variants = variants;
        self
    }

    pub fn old_xfs(mut self) -> Self {
        self.kernel = Kernel::OldXfs;
        self
    }

    pub fn build(self) -> Bench {
        let disk = SimDisk::new(self.kernel);
        disk.create_file(FILE, &self.content);
        let storage = Arc::new(disk.storage(FILE, self.options).with_variants(self.variants));
        let mut world = World::new(self.seed, &disk);
        let lanes = (0..self.queues)
            .map(|_| {
                let queue = world.add_queue(self.queue.clone());
                world.queue(queue).lane()
            })
            .collect();
        Bench { world, disk, storage, lanes }
    }
}

impl Bench {
    /// Runs an operation of the storage on a queue to its end.
    pub fn run<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        operation: impl FnOnce(Arc<Storage>, Lane) -> F,
    ) -> T {
        let future = operation(self.storage.clone(), self.lanes[0].clone());
        self.world.block_on(0, future)
    }

    /// Starts an operation on a queue.
    pub fn start<T: 'static, F: Future<Output = T> + 'static>(
        &mut self,
        queue: usize,
        operation: impl FnOnce(Arc<Storage>, Lane) -> F,
    ) -> Rc<RefCell<Option<T>>> {
        let future = operation(self.storage.clone(), self.lanes[queue].clone());
        self.world.start(queue, future)
    }

    /// Nothing is in flight and nothing is held.
    pub fn assert_idle(&self) {
        let statistics = self.storage.statistics();
        assert_eq!(statistics.running + statistics.waiting + statistics.parked, 0);
        assert_eq!(self.storage.buffers().taken(), 0);
        assert!(self.disk.pending().is_empty());
    }
}

/// A raw disk on the bench's storage geometry, with a handle for each queue.
pub fn attached(setup: Setup) -> (World, Vec<Disk>, Arc<RawDisk>) {
    let disk = SimDisk::new(setup.kernel);
    disk.create_file(FILE, &setup.content);
    let raw = RawDisk::new(disk.storage(FILE, setup.options).with_variants(setup.variants));
    let mut world = World::new(setup.seed, &disk);
    let handles = (0..setup.queues)
        .map(|_| {
            let queue = world.add_queue(setup.queue.clone());
            world.queue(queue).attach(&raw).unwrap()
        })
        .collect();
    (world, handles, raw)
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A future that runs in a queue and can be dropped from outside.
pub struct Droppable {
    future: Rc<RefCell<Option<Task>>>,
    pub polls: Rc<Cell<usize>>,
}

impl Droppable {
    pub fn start(
        world: &mut World,
        queue: usize,
        future: impl Future<Output = ()> + 'static,
    ) -> Self {
        let future: Task = Box::pin(future);
        let this = Droppable { future: Rc::new(RefCell::new(Some(future))), polls: Rc::default() };
        let (future, polls) = (this.future.clone(), this.polls.clone());
        world.queue(queue).spawn(poll_fn(move |cx| {
            polls.set(polls.get() + 1);
            let Some(mut inner) = future.take() else { return Poll::Ready(()) };
            let poll = inner.as_mut().poll(cx);
            if poll.is_pending() {
                *future.borrow_mut() = Some(inner);
            }
            poll
        }));
        this
    }

    pub fn is_over(&self) -> bool {
        self.future.borrow().is_none()
    }

    pub fn drop_now(&self) {
        drop(self.future.take());
    }
}

/// The operations that tests go through when all kinds matter.
pub fn all_requests(block: u64) -> Vec<Request> {
    let len = usize::try_from(block).unwrap();
    vec![
        Request::read(block, mem(len, 0)),
        Request::read(block + 5, mem(len / 2, 0)),
        Request::write(block, mem(len, 1)),
        Request::write(block + 5, mem(len, 2)),
        Request::write(block, mem(len, 3)).with(Flags::FUA),
        Request::write(block + 512, mem(512, 4)).with(Flags::FUA),
        Request::write_zeroes(block, block),
        Request::write_zeroes(block, block).with(Flags::MAY_UNMAP | Flags::FUA),
        Request::write_zeroes(block, 100 * block),
        Request::discard(block, block),
    ]
}
