//! Two trackers, one above the other, and a resource between them: schedule 15 of the tracker. The order of waits keeps
//! everybody alive; each way to leave it has an interleaving in which nobody can go on.
//!
//! Requests are scripts of futures of the real tracker, polled by hand. An explorer tries every order of steps.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use blkring_engine::sim::Rng;
use blkring_tracker::{Class, Guard, Span, Tracker};

/// One thing that a request does, and holds from then on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    /// Is admitted by the image's tracker; a second time it is an inner request.
    Image(u64, u64, Class),
    /// Widens what it holds there.
    WidenImage(u64, u64),
    /// Takes what there is one of: a cluster in flight, a refill.
    Resource,
    /// Is admitted by the storage's tracker.
    Storage(u64, u64, Class),
    /// Widens what it holds there to infinity.
    WidenStorage,
}

use Act::{Image, Resource, Storage, WidenImage, WidenStorage};
use Class::{Serialising, Shared};

type Script = Vec<Act>;

/// What the requests of one run share.
struct Stack {
    image: Arc<Tracker>,
    storage: Arc<Tracker>,
    resource: Rc<Lock>,
}

#[derive(Default)]
struct Lock {
    taken: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

struct Held(Rc<Lock>);

impl Lock {
    async fn take(self: Rc<Self>) -> Held {
        poll_fn(|cx| {
            if !self.taken.replace(true) {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
        Held(self)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.taken.set(false);
        self.0.waiting.take().into_iter().for_each(Waker::wake);
    }
}

/// Lets others have a step.
async fn step() {
    let mut ready = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut ready, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Does a script and gives everything back, the last first.
async fn request(stack: Rc<Stack>, script: Script) {
    let (mut images, mut storages): (Vec<Guard>, Vec<Guard>) = (Vec::new(), Vec::new());
    let mut resource = None;
    for act in script {
        match act {
            Image(start, end, class) => {
                images.push(stack.image.begin(Span::new(start, end), class).await);
            }
            WidenImage(start, end) => {
                let guard = images.pop().expect("admitted before");
                images.push(guard.widen(Span::new(start, end)).await.guard);
            }
            Resource => resource = Some(stack.resource.clone().take().await),
            Storage(start, end, class) => {
                storages.push(stack.storage.begin(Span::new(start, end), class).await);
            }
            WidenStorage => {
                let guard = storages.pop().expect("admitted before");
                storages.push(guard.widen(Span::to_infinity(0)).await.guard);
            }
        }
        step().await;
    }
    drop(storages);
    drop(resource);
    drop(images);
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    woken: Arc<Flag>,
}

/// Runs scripts; `choose(n)` picks one of the `n` that may make a step. False if they get stuck.
fn run(scripts: &[&Script], mut choose: impl FnMut(usize) -> usize) -> bool {
    let stack =
        Rc::new(Stack { image: Tracker::new(), storage: Tracker::new(), resource: Rc::default() });
    let start = |script: &&Script| Task {
        future: Box::pin(request(stack.clone(), (*script).clone())),
        woken: Arc::new(Flag(AtomicBool::new(true))),
    };
    let mut tasks: Vec<Task> = scripts.iter().map(start).collect();
    while !tasks.is_empty() {
        let is_woken = |task: &Task| task.woken.0.load(Ordering::Relaxed);
        let ready: Vec<usize> = (0..tasks.len()).filter(|&n| is_woken(&tasks[n])).collect();
        if ready.is_empty() {
            return false;
        }
        let number = ready[if ready.len() == 1 { 0 } else { choose(ready.len()) }];
        let task = &mut tasks[number];
        task.woken.0.store(false, Ordering::Relaxed);
        let waker = Waker::from(task.woken.clone());
        if task.future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
            drop(tasks.remove(number));
        }
    }
    for tracker in [&stack.image, &stack.storage] {
        tracker.self_check();
        assert_eq!(tracker.statistics().in_flight(), 0);
    }
    true
}

/// How many interleavings of the scripts end, and how many get stuck: all there are.
fn explore(scripts: &[&Script]) -> (u64, u64) {
    let (mut ended, mut stuck) = (0, 0);
    // The choices of this run, and how many there were to choose from.
    let mut path: Vec<(usize, usize)> = Vec::new();
    loop {
        let mut depth = 0;
        let done = run(scripts, |options| {
            if depth == path.len() {
                path.push((0, options));
            }
            depth += 1;
            path[depth - 1].0
        });
        if done {
            ended += 1
        } else {
            stuck += 1
        }
        while path.last().is_some_and(|&(choice, options)| choice + 1 == options) {
            path.pop();
        }
        match path.last_mut() {
            None => return (ended, stuck),
            Some((choice, _)) => *choice += 1,
        }
    }
}

/// Some interleavings get stuck, and some do not.
fn gets_stuck(first: &[Act], second: &[Act]) {
    let (ended, stuck) = explore(&[&first.to_vec(), &second.to_vec()]);
    println!("{stuck} of {} interleavings get stuck", ended + stuck);
    assert!(stuck > 0, "{first:?} and {second:?} never get stuck");
    assert!(ended > 0, "{first:?} and {second:?} never end");
}

#[test]
fn family_a_image_widening_while_owning_the_resource() {
    gets_stuck(
        &[Image(0, 1, Shared), Resource, WidenImage(0, 2)],
        &[Image(1, 2, Shared), Resource],
    );
}

#[test]
fn family_b_resource_under_a_storage_grant() {
    let refill = [Resource, Storage(0, 1, Shared), WidenStorage];
    gets_stuck(&[Image(0, 1, Shared), Storage(0, 1, Shared), Resource], &refill);
}

#[test]
fn family_c_inner_request_in_the_same_tracker() {
    gets_stuck(
        &[Image(0, 1, Shared), Image(0, 1, Shared)],
        &[Image(0, 1, Serialising), Storage(0, 1, Shared)],
    );
}

#[test]
fn family_d_image_widening_under_a_storage_grant() {
    gets_stuck(
        &[Image(0, 1, Shared), Storage(0, 1, Shared), WidenImage(0, 2)],
        &[Image(1, 2, Shared), Storage(0, 1, Serialising)],
    );
}

#[test]
fn family_e_image_admission_under_a_storage_grant() {
    gets_stuck(
        &[Storage(0, 1, Shared), Image(0, 1, Shared)],
        &[Image(0, 1, Serialising), Storage(0, 1, Serialising)],
    );
}

#[test]
fn family_f_resource_before_image_admission() {
    gets_stuck(
        &[Resource, Image(0, 1, Serialising)],
        &[Image(0, 1, Shared), Resource, Storage(0, 1, Shared)],
    );
}

/// Requests that keep the order, and a refill in the background.
fn disciplined() -> Vec<Script> {
    let images: [&[Act]; 4] = [
        &[Image(0, 1, Shared)],
        &[Image(0, 2, Serialising)],
        &[Image(0, 1, Shared), WidenImage(0, 2)],
        &[Image(1, 2, Shared), WidenImage(0, 2)],
    ];
    let below: [&[Act]; 4] = [
        &[Storage(0, 1, Shared)],
        &[Resource, Storage(0, 1, Shared), WidenStorage],
        &[Resource, Storage(1, 2, Shared)],
        &[Storage(1, 2, Shared), WidenStorage],
    ];
    let refill = vec![Resource, Storage(1, 2, Shared), WidenStorage];
    let pairs = images.iter().flat_map(|image| below.iter().map(move |b| [*image, *b].concat()));
    pairs.chain([refill]).collect()
}

#[test]
fn the_order_of_waits_ends_in_every_interleaving() {
    let scripts = disciplined();
    let mut total = 0;
    let mut all_end = |chosen: &[&Script]| {
        let (ended, stuck) = explore(chosen);
        assert_eq!(stuck, 0, "{chosen:?}");
        total += ended;
    };
    for (number, first) in scripts.iter().enumerate() {
        for (offset, second) in scripts[number..].iter().enumerate() {
            all_end(&[first, second]);
            // Of the triples, those with a refill in the background.
            if offset < 4 {
                all_end(&[first, second, scripts.last().expect("the refill")]);
            }
        }
    }
    println!("{total} interleavings");
    assert!(total > 10_000);
}

#[test]
fn the_order_of_waits_ends_for_many() {
    let scripts = disciplined();
    for seed in 0..20_000 {
        let mut rng = Rng::new(seed);
        let count = 3 + rng.index(3);
        let chosen: Vec<&Script> = (0..count).map(|_| &scripts[rng.index(scripts.len())]).collect();
        assert!(run(&chosen, |options| rng.index(options)), "seed {seed}: {chosen:?}");
    }
}
