//! Data and counts of compressed clusters that cannot be written: the write fails, nothing else is hurt, and nothing
//! leaks that was not ready before. And what a crash leaves of such writes.

use blkring_engine::sim::{Event, Rng};
use blkring_qcow2::Compressor;
use blkring_tests::image_world::{Answer, ImageWorld, Setup};

const CLUSTER: u64 = 512;

/// Clusters that are filled first, so that many are ready.
const WARM: u64 = 100;

/// Ready clusters of which a few can be used without a refill.
const ENOUGH: u64 = 45;

/// Half of it cannot be compressed, so that data lies in one host cluster or in two.
fn bytes(seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let noise = (0..CLUSTER / 2).map(|_| rng.below(256) as u8);
    noise.chain(std::iter::repeat(seed as u8)).take(CLUSTER as usize).collect()
}

fn pack(world: &mut ImageWorld, cluster: u64, seed: u64) -> Answer {
    let mut compressor = Compressor::new(world.image.compression(), CLUSTER as usize).unwrap();
    let packed = compressor.compress(&bytes(seed)).unwrap();
    world.write_compressed(0, cluster, packed)
}

/// The ops that fail.
#[derive(Clone, Copy, Debug)]
enum Struck {
    Data,
    Counts,
}

fn is_struck(world: &ImageWorld, struck: Struck) -> Box<dyn Fn(&Event) -> bool> {
    match struck {
        Struck::Data => Box::new(world.is_data()),
        Struck::Counts => Box::new(world.is_count()),
    }
}

/// Whether everything that was flushed is there, with everything in flight or without.
fn judge(world: &ImageWorld, flushed: &[(u64, u64)], what: &str) {
    for crashed in [world.crash(|_| true), world.crash(|_| false)] {
        crashed.is_sound().unwrap_or_else(|error| panic!("{what}: {error}"));
        for &(cluster, seed) in flushed {
            let found = crashed.read(cluster * CLUSTER, CLUSTER).unwrap();
            assert!(found == bytes(seed), "{what}: cluster {cluster} has changed");
        }
    }
}

fn fails(struck: Struck, landed: u64) {
    let what = format!("{struck:?} fail after {landed} bytes");
    let mut world = Setup::new(600).cluster(CLUSTER).reserve(64).make();
    world.prepare(0..WARM, 1);
    let mut fresh = WARM;
    let (mut written, mut flushed) = (Vec::new(), 0);
    for round in 0..120 {
        while world.image.statistics().ready_clusters < ENOUGH {
            let filled = world.fill(0, fresh, 2);
            world.finish(&filled);
            world.settle();
            fresh += 1;
        }
        let answer = pack(&mut world, fresh, round);
        let op = world.catch(is_struck(&world, struck));
        world.fail(&op, landed);
        world.release(&op);
        // Others come into the same host clusters meanwhile.
        let beside = pack(&mut world, fresh + 1, round + 1000);
        assert!(world.runs_until(&answer) && answer.result().is_err(), "{what}: not struck");
        let wrote = world.runs_until(&beside) && beside.result().is_ok();
        judge(&world, &written[..flushed], &what);
        // Where the disk works again, so does the write.
        let again = pack(&mut world, fresh, round);
        world.finish(&again);
        written.push((fresh, round));
        if wrote {
            written.push((fresh + 1, round + 1000));
        }
        fresh += 2;
        if round % 5 == 4 {
            world.flush_twice();
            flushed = written.len();
            judge(&world, &written, &what);
            let statistics = world.image.statistics();
            let ready = statistics.ready_clusters + statistics.dirty_clusters;
            let leaks = world.crash(|_| true).check().leaks;
            // And the one that is open.
            assert!(leaks <= ready + 1, "{what}: {leaks} clusters leaked, {ready} are ready");
        }
    }
    let closed = world.close(0);
    world.finish(&closed);
    judge(&world, &written, &what);
    assert_eq!(world.crash(|_| true).check().leaks, 0, "{what}");
}

/// What the next opening leaves of a crash, in leaked clusters.
fn left_after(world: &ImageWorld) -> u64 {
    let mut again =
        Setup::new(600).cluster(CLUSTER).reserve(64).open(&world.disk.crash_keeping_all());
    let filled = again.fill(0, 500, 3);
    again.finish(&filled);
    let closed = again.close(0);
    again.finish(&closed);
    let after = again.crash(|_| true);
    after.is_sound().unwrap();
    after.check().leaks
}

/// Counts that came to the disk without their entries: those behind everything in use are found again, and among the
/// others is that of the cluster which was open at the last cut.
#[test]
fn what_a_crash_leaves_is_found_again() {
    let mut world = Setup::new(600).cluster(CLUSTER).reserve(64).make();
    world.prepare(0..10, 1);
    let mut cluster = 10;
    for _ in 0..3 {
        for _ in 0..40 {
            let packed = pack(&mut world, cluster, cluster);
            world.finish(&packed);
            cluster += 1;
        }
        world.settle();
        assert!(world.crash(|_| true).check().leaks > 15, "each needs half of a host cluster");
        let left = left_after(&world);
        assert!(left <= 1, "{left} clusters leaked");
        world.flush_twice();
        let left = left_after(&world);
        assert!(left <= 1, "{left} clusters leaked after a flush");
    }
}

#[test]
fn data_that_cannot_be_written() {
    for landed in [0, 512] {
        fails(Struck::Data, landed);
    }
}

#[test]
fn counts_that_cannot_be_written() {
    for landed in [0, 512] {
        fails(Struck::Counts, landed);
    }
}
