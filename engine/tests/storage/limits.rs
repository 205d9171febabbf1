//! A ring of one slot, buffers for one request, a queue of one request: everything ends all the same.

use blkring_engine::sim::{Fault, Matcher, OpKind, Rule};
use blkring_engine::{QueueOptions, Request};

use super::setup::{Droppable, Setup, all_requests, attached, mem};

#[test]
fn one_slot_and_one_buffer_are_enough() {
    for seed in 0..60 {
        let mut setup = Setup::new(seed, &[0x11; 1 << 20]).aligned(4096).queues(2);
        setup.queue = QueueOptions::with_requests(64).depth(1);
        setup.options.buffer_budget = 4096;
        let (mut world, handles, raw) = attached(setup);
        if seed % 2 == 0 {
            for kind in [OpKind::ZeroRange, OpKind::PunchHole, OpKind::Grow] {
                let fault = Fault::Error(libc::EOPNOTSUPP);
                world.disk().inject(Rule::new(Matcher::kind(kind), fault).always());
            }
        }
        let mut submitted = 0;
        for round in 0..4u64 {
            for mut request in all_requests(4096) {
                request.offset += (round % 2) * 4096;
                let handle = &handles[(submitted % 2) as usize];
                handle.queue(request, submitted).unwrap();
                submitted += 1;
            }
            // Zeros in no whole block, where they have to be written.
            handles[0].queue(Request::write_zeroes(5000, 3000), submitted).unwrap();
            handles[1].queue(Request::flush(), submitted + 1).unwrap();
            submitted += 2;
        }
        world.drain().done();
        let answers: Vec<i32> = (0..2)
            .flat_map(|queue| world.queue(queue).completions().collect::<Vec<_>>())
            .map(|completion| completion.code())
            .collect();
        assert_eq!(answers.len() as u64, submitted);
        assert!(answers.iter().all(|&code| code == 0), "seed {seed}: {answers:?}");
        assert_eq!(raw.storage().buffers().taken(), 0);
        let statistics = raw.storage().statistics();
        assert_eq!(statistics.running + statistics.waiting + statistics.parked, 0);
    }
}

#[test]
fn a_ring_of_one_slot_has_one_operation_at_a_time() {
    let mut setup = Setup::new(1, &[0; 1 << 20]);
    setup.queue = QueueOptions::with_requests(64).depth(1);
    let (mut world, handles, _) = attached(setup);
    for i in 0..32 {
        handles[0].queue(Request::write(i * 4096, mem(4096, 1)), i).unwrap();
    }
    let disk = world.disk().clone();
    let mut most = 0;
    let outcome = world.run(
        || {
            most = most.max(disk.pending().len());
            false
        },
        100_000,
    );
    assert!(matches!(outcome, blkring_engine::sim::Outcome::Stuck(_)));
    assert_eq!(most, 1);
    assert_eq!(world.queue(0).completions().count(), 32);
}

#[test]
fn an_outcome_that_nobody_takes_holds_no_slot() {
    let mut setup = Setup::new(1, &[0x11; 8192]).queues(2);
    setup.queue = QueueOptions::with_requests(8).depth(1);
    let mut bench = setup.build();
    // On a lane that several queues share, one of them may stop polling what it has begun.
    let lane = bench.lanes[0].clone();
    let storage = bench.storage.clone();
    let begun = lane.clone();
    let first = Droppable::start(&mut bench.world, 1, async move {
        storage.read(&begun, 0, &mem(512, 0)).await.unwrap();
    });
    bench.world.run(|| first.polls.get() == 1, 100).done();
    bench.world.abandon(1);
    bench.run(|s, lane| async move { s.read(&lane, 4096, &mem(512, 0)).await }).unwrap();
    assert!(!first.is_over());
    assert_eq!(bench.disk.count(OpKind::Read), 2);
}
