//! Worlds with one of everything: one buffer, one cached slice, rings of one slot, a reservation of one cluster. Whatever
//! the seed, every request ends, the guest reads what it wrote, and a closed image is clean. With faults on the disk
//! every request still ends.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Poll;

use blkring_engine::sim::{Fault, Matcher, OpKind, Outcome, Rng, Rule};
use blkring_engine::{Disk, Flags, IoError, IoMem, QueueOptions, Request};
use blkring_qcow2::AllocPolicy;
use blkring_tests::image_world::{IMAGE, ImageWorld, Setup};

const BELOW: u8 = 0xaa;

/// The answer to a request that was taken back.
const ECANCELED: i32 = 125;

/// Worlds of each kind.
const SEEDS: u64 = 2000;

/// Guests at work at once. Neighbours share a cluster.
const GUESTS: u64 = 6;

/// Requests of each guest, one after the other.
const REQUESTS: u64 = 12;

struct World {
    w: ImageWorld,
    cluster: u64,
    backing: Option<u8>,
}

fn world(seed: u64, rng: &mut Rng) -> World {
    let cluster = [512, 4096][rng.index(2)];
    let backing = rng.one_in(2).then_some(BELOW);
    let policy = [AllocPolicy::Ahead, AllocPolicy::PerAllocation][rng.index(2)];
    // With clusters of 512 bytes, several L2 tables.
    let clusters = if cluster == 512 { 200 } else { 40 };
    let mut setup = Setup::new(clusters)
        .cluster(cluster)
        .seed(seed)
        .queues(2)
        .queue(QueueOptions::with_requests(1 + rng.index(3)).depth(1))
        .options(|options| options.cache_bytes(1).buffer_bytes(1).depth(1).held_back_bytes(1))
        .policy(policy)
        .reserve(1);
    if let Some(byte) = backing {
        setup = setup.backing(byte);
    }
    World { w: setup.make(), cluster, backing }
}

/// One guest: requests within its own part of the disk, and what it should read there.
struct Guest {
    disk: Disk,
    rng: Rng,
    start: u64,
    len: u64,
    cluster: u64,
    model: Vec<u8>,
    patience: Patience,
}

/// Whether guests take requests back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    Endless,
    /// After a moment, once in a while.
    Short,
}

/// What a guest came to.
type Work = Result<(u64, Vec<u8>), IoError>;

impl Guest {
    async fn work(mut self) -> Work {
        for round in 0..REQUESTS {
            let at = self.rng.below(self.len);
            let most = (self.len - at).min(self.cluster * 3);
            let len = 1 + self.rng.below(most);
            self.act(round, at, len).await?;
        }
        Ok((self.start, self.model))
    }

    async fn act(&mut self, round: u64, at: u64, len: u64) -> Result<(), IoError> {
        let offset = self.start + at;
        let size = |bytes: u64| usize::try_from(bytes).expect("small");
        let range = size(at)..size(at + len);
        let durable = if self.rng.one_in(4) { Flags::FUA } else { Flags::empty() };
        match self.rng.below(10) {
            0 => self.disk.flush().await,
            1 => {
                if self.request(Request::discard(offset, len)).await? {
                    self.zero_whole(offset, len);
                }
                Ok(())
            }
            what @ 2..=3 => {
                let unmap = if what == 2 { Flags::MAY_UNMAP } else { Flags::empty() };
                let request = Request::write_zeroes(offset, len).with(durable | unmap);
                if self.request(request).await? {
                    self.model[range].fill(0);
                }
                Ok(())
            }
            4..=5 => {
                let mem = IoMem::from(vec![0x5a; size(len)]);
                self.disk.read(offset, mem.clone()).await?;
                assert!(mem.to_vec() == self.model[range], "{len} bytes at {offset}");
                Ok(())
            }
            _ => {
                let byte = u8::try_from(round + 1).expect("few requests");
                let write = Request::write(offset, IoMem::from(vec![byte; size(len)]));
                if self.request(write.with(durable)).await? {
                    self.model[range].fill(byte);
                }
                Ok(())
            }
        }
    }

    /// Whether the request was done; it may have been taken back in time, and has done nothing then.
    async fn request(&mut self, request: Request) -> Result<bool, IoError> {
        if self.patience == Patience::Endless || !self.rng.one_in(3) {
            return self.disk.request(request).await.map(|()| true);
        }
        let Ok(receipt) = self.disk.submit(request) else { return Ok(false) };
        for _ in 0..self.rng.below(20) {
            let mut rested = false;
            std::future::poll_fn(|cx| {
                cx.waker().wake_by_ref();
                if std::mem::replace(&mut rested, true) { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        }
        receipt.withdraw();
        match receipt.await {
            Err(error) if error.errno == ECANCELED => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// A discard zeroes the clusters that it covers whole.
    fn zero_whole(&mut self, offset: u64, len: u64) {
        let first = offset.next_multiple_of(self.cluster);
        let mut end = (offset + len) / self.cluster * self.cluster;
        if offset + len == self.disk.size() {
            end = offset + len;
        }
        if first < end {
            let place = |at: u64| usize::try_from(at - self.start).expect("small");
            self.model[place(first)..place(end)].fill(0);
        }
    }
}

/// The result of a guest, when it has one.
type Place = Rc<RefCell<Option<Work>>>;

/// Guests at work; the results when all have ended.
///
/// # Panics
/// If the world gets stuck, with what it hangs on.
fn work(seed: u64, world: &mut World, rng: &mut Rng, patience: Patience) -> Vec<Work> {
    let results = start(world, rng, patience);
    let done = || results.iter().all(|result| result.borrow().is_some());
    let outcome = world.w.world.run(done, 2_000_000);
    assert_eq!(outcome, Outcome::Done, "seed {seed}");
    results.into_iter().map(|result| result.take().expect("it is done")).collect()
}

/// Sets guests to work, on both queues in turn.
fn start(world: &mut World, rng: &mut Rng, patience: Patience) -> Vec<Place> {
    let size = world.w.handle(0).size();
    // Not whole clusters, and not whole sectors.
    let part = size / GUESTS - 77;
    let old = world.backing.unwrap_or(0);
    (0..GUESTS)
        .map(|number| {
            let queue = usize::try_from(number % 2).expect("small");
            let guest = Guest {
                disk: world.w.handle(queue).clone(),
                rng: rng.fork(),
                start: number * part,
                len: part,
                cluster: world.cluster,
                model: vec![old; usize::try_from(part).expect("small")],
                patience,
            };
            world.w.world.start(queue, guest.work())
        })
        .collect()
}

/// Closes, and compares what is left with what the guests know.
fn close_and_compare(seed: u64, mut w: ImageWorld, queue: usize, results: Vec<Work>) {
    let closed = w.close(queue);
    assert!(w.runs_until(&closed), "seed {seed}: closing does not end");
    closed.result().expect("nothing fails on this disk");
    let left = w.crash(|_| false);
    let report = left.check();
    assert!(report.is_clean(), "seed {seed}: {report:?}");
    for result in results {
        let (start, model) = result.expect("nothing fails on this disk");
        let bytes = left.read(start, model.len() as u64).expect("the image is whole");
        assert!(bytes == model, "seed {seed}: the part at {start}");
    }
}

#[test]
fn every_request_ends_and_every_byte_is_right() {
    for patience in [Patience::Endless, Patience::Short] {
        for seed in 0..SEEDS {
            let mut rng = Rng::new(seed);
            let mut world = world(seed, &mut rng);
            let results = work(seed, &mut world, &mut rng, patience);
            close_and_compare(seed, world.w, 0, results);
        }
    }
}

/// One queue is retired while its guests are at work, and removed when it has answered all.
#[test]
fn a_queue_leaves_in_the_middle() {
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed ^ 0x001e_a7e5);
        let mut world = world(seed, &mut rng);
        let mut results = start(&mut world, &mut rng, Patience::Endless);
        let mut steps = rng.below(1500);
        let w = &mut world.w;
        while steps > 0 && w.world.step() {
            steps -= 1;
        }
        w.world.queue(0).retire();
        while w.world.queue(0).unfinished() > 0 {
            assert!(w.world.step(), "seed {seed}: a retired queue has unanswered requests");
        }
        w.remove(0);
        // Those of the queue that is left.
        results = results.into_iter().skip(1).step_by(2).collect();
        let done = || results.iter().all(|result| result.borrow().is_some());
        assert_eq!(w.world.run(done, 2_000_000), Outcome::Done, "seed {seed}");
        let results = results.into_iter().map(|r| r.take().expect("it is done")).collect();
        close_and_compare(seed, world.w, 1, results);
    }
}

/// One or several ops fail, or there is no more space from some moment on.
fn faults(w: &ImageWorld, rng: &mut Rng) {
    let kinds = [OpKind::Write, OpKind::Read, OpKind::Sync, OpKind::ZeroRange, OpKind::Grow];
    let what = Matcher::kind(kinds[rng.index(kinds.len())]).file(IMAGE);
    let fault = match rng.below(3) {
        0 => Fault::Error(5),
        1 => Fault::Partial(512, 5),
        _ => Fault::Error(28),
    };
    let rule = Rule::new(what, fault).after(rng.below(60));
    w.disk.inject(if rng.one_in(2) { rule } else { rule.times(1 + rng.below(20)) });
    if rng.one_in(4) {
        w.disk.set_capacity(w.disk.used() + 4096 * rng.below(30));
    }
}

#[test]
fn every_request_ends_whatever_fails() {
    let mut failed = 0;
    for seed in 0..SEEDS {
        let mut rng = Rng::new(seed ^ 0x00fa_0175);
        let mut world = world(seed, &mut rng);
        faults(&world.w, &mut rng);
        let results = work(seed, &mut world, &mut rng, Patience::Short);
        failed += results.iter().filter(|result| result.is_err()).count();
        let World { mut w, .. } = world;
        w.disk.clear_faults();
        let closed = w.close(0);
        assert!(w.runs_until(&closed), "seed {seed}: closing does not end\n{}", w.report());
        w.crash(|_| true).is_sound().unwrap_or_else(|what| panic!("seed {seed}: {what}"));
        w.crash(|_| false).is_sound().unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
    println!("{failed} guests met an error");
    assert!(failed > 100);
}
