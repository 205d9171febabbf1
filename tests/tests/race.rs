//! The race that the project starts from, end to end: a zero-write that ends beyond the end of the file, on a kernel
//! that computes the new size before it waits for writes in flight, cuts off what those wrote behind it.

use blkring_engine::sim::{Kernel, Outcome, Rng, SimDisk, SimOptions, World};
use blkring_engine::{Flags, IoMem, QueueOptions, RawDisk, Variant, Variants};
use blkring_qcow2::AllocPolicy;
use blkring_tests::image_world::{ImageWorld, Setup};

const CLUSTER: u64 = 4096;
const CLUSTERS: u64 = 16;

/// What one world came to.
struct Run {
    lost: bool,
    held_back: u64,
}

/// Two queues write a new image, cluster by cluster in an order of their own: some whole, so that the payload alone
/// makes the file longer, some in part, so that a zero-write comes first.
fn write_an_image(seed: u64, variants: Variants) -> Run {
    let setup = Setup::new(CLUSTERS)
        .seed(seed)
        .kernel(Kernel::OldXfs)
        .queues(2)
        .policy(AllocPolicy::PerAllocation)
        .reserve(6)
        .variants(variants);
    let mut w = setup.make();
    let mut rng = Rng::new(seed ^ 0x0005_eed5);
    let mut order: Vec<u64> = (0..CLUSTERS).collect();
    for place in (1..order.len()).rev() {
        order.swap(place, rng.index(place + 1));
    }
    let byte = |cluster: u64| u8::try_from(cluster + 1).expect("few clusters");
    let mut written = Vec::new();
    for (number, &cluster) in order.iter().enumerate() {
        let sectors = if rng.one_in(2) { 0..8 } else { 3..4 };
        written.push((cluster, sectors.clone()));
        w.write(number % 2, cluster, sectors, byte(cluster));
    }
    w.world.drain().done();
    let held_back = w.image.statistics().storage_tracker.waited;
    let is_whole = |w: &mut ImageWorld| {
        written.iter().all(|(cluster, sectors)| {
            w.reads_as(*cluster, sectors.clone(), &[byte(*cluster)]).is_ok()
                && w.reads_as(*cluster, 0..3, &[byte(*cluster), 0]).is_ok()
        })
    };
    let lost = !is_whole(&mut w);
    if variants == Variants::default() {
        let closed = w.close(0);
        w.finish(&closed);
        let left = w.crash(|_| false);
        assert!(left.check().is_clean(), "seed {seed}: {:?}", left.check());
    }
    Run { lost, held_back }
}

/// How many of the seeds lose guest data, and how many requests were held back in all of them.
fn losses(seeds: u64, run: impl Fn(u64) -> Run) -> (u64, u64) {
    let runs: Vec<Run> = (0..seeds).map(run).collect();
    (runs.iter().filter(|run| run.lost).count() as u64, runs.iter().map(|r| r.held_back).sum())
}

const SEEDS: u64 = 200;

#[test]
fn nothing_is_lost() {
    let (lost, held_back) = losses(SEEDS, |seed| write_an_image(seed, Variants::default()));
    println!("serialised: {lost} of {SEEDS} seeds lose data, {held_back} requests were held back");
    assert_eq!(lost, 0);
    assert!(held_back > 0, "nothing ever had to wait: the test does not test");
}

#[test]
fn some_seeds_lose_data_where_growth_is_not_serialised() {
    for rule in [Variant::GrowthNotSerialised, Variant::ZeroWriteWidensToOwnRange] {
        let (lost, held_back) = losses(SEEDS, |seed| write_an_image(seed, Variants::only(rule)));
        println!(
            "{rule:?}: {lost} of {SEEDS} seeds lose data, {held_back} requests were held back"
        );
        assert!(lost > 0, "{rule:?} is not noticed");
        assert!(lost < SEEDS, "{rule:?} breaks more than the race");
    }
}

/// The growth of a refill against writes beyond: the same file, one queue that makes it longer in steps as a refill
/// does, and another one that writes behind its end.
fn grow_a_file(seed: u64, variants: Variants) -> Run {
    let disk = SimDisk::new(Kernel::OldXfs);
    disk.create_file("a", &[1; 4096]);
    let storage = disk.storage("a", SimOptions::default()).with_variants(variants);
    let raw = RawDisk::new(storage);
    let mut world = World::new(seed, &disk);
    let queues =
        [world.add_queue(QueueOptions::default()), world.add_queue(QueueOptions::default())];
    let lane = world.queue(queues[0]).lane();
    let grower = raw.clone();
    let grown = world.start(queues[0], async move {
        for step in 2..10 {
            grower.storage().grow(&lane, step * CLUSTER).await?;
        }
        Ok::<(), blkring_engine::IoError>(())
    });
    let lane = world.queue(queues[1]).lane();
    let writer = raw.clone();
    let written = world.start(queues[1], async move {
        for place in [3, 5, 9, 12, 11] {
            let bytes = IoMem::from(vec![7; 4096]);
            writer.storage().write(&lane, place * CLUSTER, &bytes, Flags::empty()).await?;
        }
        Ok::<(), blkring_engine::IoError>(())
    });
    let done = || grown.borrow().is_some() && written.borrow().is_some();
    assert_eq!(world.run(done, 1_000_000), Outcome::Done);
    for result in [grown.take(), written.take()] {
        result.expect("it is done").expect("nothing fails on this disk");
    }
    let contents = disk.contents("a");
    let is_there = |place: &u64| {
        let start = usize::try_from(place * CLUSTER).expect("small");
        contents.get(start..start + 4096).is_some_and(|bytes| bytes.iter().all(|&b| b == 7))
    };
    let lost = ![3, 5, 9, 12, 11].iter().all(is_there);
    Run { lost, held_back: raw.storage().statistics().waited }
}

#[test]
fn growth_against_writes_beyond() {
    let (lost, held_back) = losses(SEEDS, |seed| grow_a_file(seed, Variants::default()));
    println!("serialised: {lost} of {SEEDS} seeds lose data, {held_back} requests were held back");
    assert_eq!(lost, 0);
    assert!(held_back > 0, "nothing ever had to wait: the test does not test");
    let broken = Variants::only(Variant::GrowthNotSerialised);
    let (lost, held_back) = losses(SEEDS, |seed| grow_a_file(seed, broken));
    println!(
        "not serialised: {lost} of {SEEDS} seeds lose data, {held_back} requests were held back"
    );
    assert!(lost > 0 && lost < SEEDS);
}
