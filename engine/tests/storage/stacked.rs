//! Schedule 15: an order of waits over two trackers and a resource that cannot deadlock, and six that can.

use std::sync::Arc;

use blkring_engine::sim::{Outcome, Rng};
use blkring_engine::tracker::{Class, Guard, Span, Tracker};
use blkring_engine::{Flags, Lane, Storage};

use super::setup::{Setup, mem};

/// What a request of an image goes through. The resource is an exclusive one: a cluster in flight, or the refill.
#[derive(Clone)]
struct Levels {
    image: Arc<Tracker>,
    resource: Arc<Tracker>,
    /// Stands for the tracker of a storage, whose own one cannot be misused from outside.
    below: Arc<Tracker>,
    storage: Arc<Storage>,
    lane: Lane,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Script {
    /// Image grant, image widening, resource, storage grant, storage widening.
    Disciplined,
    /// The same, with growth of the real storage at its end.
    Grows,
    /// (a) Image widening while owning the resource.
    WidensUnderResource,
    /// (b) Resource wanted under a storage grant.
    ResourceUnderStorage,
    /// (c) Inner request in the same tracker.
    InnerRequest,
    /// (d) Image widening under a storage grant.
    WidensUnderStorage,
    /// (e) Image admission under a storage grant.
    AdmissionUnderStorage,
    /// (f) Resource before image admission.
    ResourceFirst,
}

fn unit(rng: &mut Rng) -> Span {
    let start = rng.below(2);
    Span::new(start, start + 1)
}

fn class(rng: &mut Rng) -> Class {
    if rng.one_in(2) { Class::Shared } else { Class::Serialising }
}

impl Levels {
    async fn io(&self) {
        self.storage.read(&self.lane, 0, &mem(512, 0)).await.unwrap();
    }

    async fn image(&self, rng: &mut Rng) -> Guard {
        let guard = self.image.begin(unit(rng), class(rng)).await;
        self.io().await;
        guard
    }

    async fn widen(&self, guard: Guard) -> Guard {
        let guard = guard.widen(Span::new(0, 2)).await.guard;
        self.io().await;
        guard
    }

    async fn resource(&self) -> Guard {
        let guard = self.resource.begin(Span::new(0, 1), Class::Serialising).await;
        self.io().await;
        guard
    }

    async fn below(&self, rng: &mut Rng) -> Guard {
        let guard = self.below.begin(unit(rng), class(rng)).await;
        self.io().await;
        guard
    }

    async fn run(self, script: Script, mut rng: Rng) {
        let rng = &mut rng;
        match script {
            Script::Disciplined | Script::Grows => {
                let mut image = self.image(rng).await;
                if rng.one_in(2) {
                    image = self.widen(image).await;
                }
                let _resource = self.resource().await;
                if script == Script::Grows {
                    let end = self.storage.size();
                    self.storage.write_zeroes(&self.lane, end, 512, Flags::empty()).await.unwrap();
                    let beyond = end + rng.below(3) * 512;
                    let bytes = mem(700, 1);
                    self.storage.write(&self.lane, beyond, &bytes, Flags::empty()).await.unwrap();
                } else {
                    let below = self.below(rng).await;
                    let _below = below.widen(Span::to_infinity(0)).await.guard;
                    self.io().await;
                }
                drop(image);
            }
            Script::WidensUnderResource => {
                let image = self.image(rng).await;
                let _resource = self.resource().await;
                drop(self.widen(image).await);
            }
            Script::ResourceUnderStorage => {
                let _image = self.image(rng).await;
                let _below = self.below(rng).await;
                drop(self.resource().await);
            }
            Script::InnerRequest => {
                let _image = self.image(rng).await;
                drop(self.image(rng).await);
            }
            Script::WidensUnderStorage => {
                let image = self.image(rng).await;
                let _below = self.below(rng).await;
                drop(self.widen(image).await);
            }
            Script::AdmissionUnderStorage => {
                let _below = self.below(rng).await;
                drop(self.image(rng).await);
            }
            Script::ResourceFirst => {
                let _resource = self.resource().await;
                drop(self.image(rng).await);
            }
        }
    }
}

/// Whether a world of two queues ends in which four requests follow scripts of the given kinds.
fn ends(seed: u64, scripts: &[Script]) -> bool {
    let mut rng = Rng::new(seed);
    let mut bench = Setup::new(seed, &[0; 4096]).aligned(512).queues(2).old_xfs().build();
    let levels = Levels {
        image: Tracker::new(),
        resource: Tracker::new(),
        below: Tracker::new(),
        storage: bench.storage.clone(),
        lane: bench.lanes[0].clone(),
    };
    let mut tasks = Vec::new();
    for i in 0..4 {
        let script = scripts[rng.index(scripts.len())];
        let levels = Levels { lane: bench.lanes[i % 2].clone(), ..levels.clone() };
        tasks.push(bench.world.start(i % 2, levels.run(script, rng.fork())));
    }
    let done = || tasks.iter().all(|task| task.borrow().is_some());
    match bench.world.run(done, 100_000) {
        Outcome::Done => true,
        Outcome::Stuck(_) => false,
        Outcome::OutOfSteps => panic!("seed {seed} neither ends nor is stuck"),
    }
}

#[test]
fn schedule_15_the_order_of_waits() {
    for seed in 0..600 {
        assert!(ends(seed, &[Script::Disciplined, Script::Grows]), "seed {seed}");
    }
    for offender in [
        Script::WidensUnderResource,
        Script::ResourceUnderStorage,
        Script::InnerRequest,
        Script::WidensUnderStorage,
        Script::AdmissionUnderStorage,
        Script::ResourceFirst,
    ] {
        let seeds = 300;
        let stuck =
            (0..seeds).filter(|&seed| !ends(seed, &[Script::Disciplined, offender])).count();
        println!("{offender:?}: {stuck} of {seeds} worlds deadlock");
        assert!(stuck > 0, "{offender:?} should deadlock now and then");
    }
}
