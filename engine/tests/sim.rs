//! The simulated disk keeps its word: what its module doc says of durability, crashes, faults and order.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a failed step fails the test")]

use std::collections::BTreeSet;
use std::sync::Arc;

use blkring_engine::sim::{
    Fault, Kernel, Matcher, OpKind, Outcome, Point, Rng, Rule, SimDisk, SimOptions, Stage, World,
};
use blkring_engine::{Disk, Flags, IoMem, QueueOptions, RawDisk, Request};

fn bytes(len: usize, byte: u8) -> IoMem {
    IoMem::from(vec![byte; len])
}

/// A world with one file and `queues` queues on it.
fn world(
    seed: u64,
    kernel: Kernel,
    content: &[u8],
    queues: usize,
) -> (World, Vec<Disk>, Arc<RawDisk>) {
    let disk = SimDisk::new(kernel);
    disk.create_file("a", content);
    let raw = RawDisk::new(disk.storage("a", SimOptions::default()));
    let mut world = World::new(seed, &disk);
    let handles = (0..queues)
        .map(|_| {
            let queue = world.add_queue(QueueOptions::default());
            world.queue(queue).attach(&raw).unwrap()
        })
        .collect();
    (world, handles, raw)
}

#[test]
fn the_same_seed_makes_the_same_steps() {
    let trace = |seed| {
        let (mut world, handles, _) = world(seed, Kernel::Current, &[0; 65536], 2);
        for i in 0..20u64 {
            let handle = &handles[(i % 2) as usize];
            handle.queue(Request::write(i * 1000, bytes(1500, i as u8)), i).unwrap();
            if i % 5 == 4 {
                handle.queue(Request::flush(), 100 + i).unwrap();
            }
        }
        world.drain().done();
        (world.disk().log(), world.disk().contents("a"))
    };
    assert_eq!(trace(3), trace(3));
    let different: BTreeSet<String> = (0..10).map(|seed| format!("{:?}", trace(seed).0)).collect();
    assert_eq!(different.len(), 10);
}

#[test]
fn only_what_landed_before_a_sync_began_is_durable() {
    let (mut world, handles, _) = world(1, Kernel::Current, &[0; 4096], 1);
    let disk = world.disk().clone();
    handles[0].queue(Request::write(0, bytes(512, 1)), 0).unwrap();
    world.drain().done();
    assert_eq!(disk.durable_contents("a"), [0; 4096], "a write alone is volatile");
    disk.hold("sync", Matcher::kind(OpKind::Sync), Point::Land);
    handles[0].queue(Request::flush(), 1).unwrap();
    world.settle();
    assert_eq!(disk.held("sync"), 1);
    handles[0].queue(Request::write(512, bytes(512, 2)), 2).unwrap();
    handles[0].queue(Request::write(0, bytes(100, 3)), 3).unwrap();
    world.settle();
    disk.release("sync");
    world.drain().done();
    let durable = disk.durable_contents("a");
    assert_eq!((durable[0], durable[511], durable[512]), (1, 1, 0));
    let live = disk.contents("a");
    assert_eq!((live[0], live[511], live[512]), (3, 1, 2));
}

#[test]
fn a_durable_write_settles_itself_and_the_size_it_needs() {
    let (mut world, _, raw) = world(1, Kernel::Current, &[0; 1024], 1);
    let storage = raw.storage().clone();
    let lane = world.queue(0).lane();
    world.block_on(0, async move {
        storage.write(&lane, 4096, &bytes(512, 1), Flags::empty()).await.unwrap();
        storage.write(&lane, 2048, &bytes(512, 2), Flags::FUA).await.unwrap();
    });
    let durable = world.disk().durable_contents("a");
    assert!(durable.len() >= 2560);
    assert_eq!(durable[2048..2560], [2; 512]);
    assert!(durable.get(4096).is_none_or(|&byte| byte == 0), "the other write is volatile");
}

#[test]
fn a_crash_tears_what_is_in_flight_and_cuts_at_the_size() {
    let (mut world, _, raw) = world(1, Kernel::Current, &[0; 1024], 1);
    let disk = world.disk().clone();
    disk.hold("write", Matcher::writes(), Point::Land);
    let (storage, lane) = (raw.storage().clone(), world.queue(0).lane());
    let written = world
        .start(0, async move { storage.write(&lane, 512, &bytes(1024, 7), Flags::empty()).await });
    world.settle();
    let mut seen = BTreeSet::new();
    let mut rng = Rng::new(1);
    for _ in 0..200 {
        let after = disk.crash(&mut |options| rng.index(options)).contents("a");
        seen.insert((after.len(), after[512], after.get(1024).copied()));
    }
    let all = [(1024, 0, None), (1024, 7, None)];
    let grown = [(0, 0), (0, 7), (7, 0), (7, 7)].map(|(first, last)| (1536, first, Some(last)));
    assert_eq!(seen, all.into_iter().chain(grown).collect());
    assert_eq!(disk.crash_keeping_nothing().contents("a"), [0; 1024]);
    assert_eq!(disk.crash_keeping_all().contents("a"), [0; 1024], "it has not landed");
    disk.release("write");
    world.settle();
    written.take().unwrap().unwrap();
    assert_eq!(disk.crash_keeping_nothing().contents("a"), [0; 1024]);
    assert_eq!(disk.crash_keeping_all().contents("a"), disk.contents("a"));
    // What a small size cut off does not come back when the file grows again.
    let mut size_only = disk.crash_by(&mut |choice| match choice.cell {
        blkring_engine::sim::Cell::Size => 0,
        blkring_engine::sim::Cell::Sector(_) => choice.live(),
    });
    size_only = grown_to(&size_only, 4096);
    assert_eq!(size_only.contents("a")[1024..], [0; 3072]);
}

fn grown_to(disk: &SimDisk, size: u64) -> SimDisk {
    let storage = disk.storage("a", SimOptions::default());
    let mut world = World::new(0, disk);
    let queue = world.add_queue(QueueOptions::default());
    let lane = world.queue(queue).lane();
    world.block_on(queue, async move { storage.grow(&lane, size).await }).unwrap();
    disk.clone()
}

#[test]
fn the_old_kernel_cuts_off_what_was_written_meanwhile() {
    for (kernel, survives) in [(Kernel::Current, true), (Kernel::OldXfs, false)] {
        let disk = SimDisk::new(kernel);
        disk.create_file("a", &[1; 4096]);
        // Two opens of one file: nothing keeps their operations apart.
        let [first, second] = [(); 2].map(|()| disk.storage("a", SimOptions::default()));
        let mut world = World::new(0, &disk);
        let queue = world.add_queue(QueueOptions::default());
        let lane = world.queue(queue).lane();
        disk.hold("grow", Matcher::kind(OpKind::Grow), Point::Land);
        let grown = world.start(queue, {
            let lane = lane.clone();
            async move { first.grow(&lane, 8192).await }
        });
        world.settle();
        world
            .block_on(queue, async move {
                second.write(&lane, 16384, &bytes(512, 2), Flags::empty()).await
            })
            .unwrap();
        assert_eq!(disk.contents("a").len(), 16896);
        disk.release("grow");
        world.settle();
        grown.take().unwrap().unwrap();
        assert_eq!(disk.contents("a").len(), if survives { 16896 } else { 8192 });
    }
}

#[test]
fn faults_strike_when_they_should() {
    let (mut world, handles, raw) = world(1, Kernel::Current, &[0; 65536], 1);
    let disk = world.disk().clone();
    disk.inject(Rule::new(Matcher::writes().within(8192..12288), Fault::Error(libc::EIO)).after(1));
    disk.inject(Rule::new(Matcher::writes().within(0..1), Fault::Partial(700, libc::ENOSPC)));
    for (user_data, offset) in [(0, 4096), (1, 8192), (2, 8192), (3, 8192), (4, 0)] {
        handles[0].queue(Request::write(offset, bytes(4096, 1)), user_data).unwrap();
        world.drain().done();
    }
    let codes: Vec<_> = world.queue(0).completions().map(|c| (c.user_data, c.code())).collect();
    assert_eq!(codes, [(0, 0), (1, 0), (2, -libc::EIO), (3, 0), (4, -libc::ENOSPC)]);
    assert_eq!(disk.contents("a")[..700], [1; 700]);
    assert_eq!(disk.contents("a")[700..4096], [0; 3396]);
    disk.set_capacity(65536);
    let (storage, lane) = (raw.storage().clone(), world.queue(0).lane());
    let grown = world.block_on(0, async move {
        let full = storage.grow(&lane, 65537).await;
        storage.discard(&lane, 0, 4096).await.unwrap();
        (full, storage.grow(&lane, 65537).await)
    });
    assert!(grown.0.unwrap_err().is_no_space());
    grown.1.unwrap();
    assert_eq!(disk.used(), 65536);
}

#[test]
fn a_failed_sync_loses_what_it_covered() {
    let (mut world, handles, _) = world(1, Kernel::Current, &[0; 4096], 1);
    let disk = world.disk().clone();
    handles[0].queue(Request::write(0, bytes(512, 1)), 0).unwrap();
    world.drain().done();
    disk.inject(Rule::new(Matcher::kind(OpKind::Sync), Fault::Error(libc::EIO)));
    handles[0].queue(Request::flush(), 1).unwrap();
    world.drain().done();
    // Another open of the file does not know of the failure. Its sync succeeds, and covers nothing of it.
    let again = disk.storage("a", SimOptions::default());
    let lane = world.queue(0).lane();
    world.block_on(0, async move { again.flush(&lane).await }).unwrap();
    assert_eq!(disk.contents("a")[..512], [1; 512]);
    assert_eq!(disk.durable_contents("a")[..512], [0; 512]);
}

#[test]
fn what_can_never_go_on_is_reported() {
    let (mut world, handles, _) = world(1, Kernel::Current, &[0; 4096], 2);
    world.disk().hold("all", Matcher::any(), Point::Begin);
    handles[0].queue(Request::write(0, bytes(512, 1)), 0).unwrap();
    let Outcome::Stuck(report) = world.drain() else { panic!("must be stuck") };
    assert!(report.contains("held: #1 Write a 0+512"), "{report}");
    world.disk().release("all");
    world.abandon(0);
    world.drain().done();
    assert_eq!(world.queue(0).unfinished(), 1);
    world.resume(0);
    world.drain().done();
    let stages: Vec<_> = world.disk().log().into_iter().map(|event| event.stage).collect();
    assert_eq!(stages, [Stage::Accepted, Stage::Landed, Stage::Completed(512)]);
}
