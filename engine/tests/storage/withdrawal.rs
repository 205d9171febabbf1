//! Withdrawing and retiring: what only waits is answered with ECANCELED, what has begun goes on.

use blkring_engine::sim::{Matcher, Point};
use blkring_engine::{Disk, QueueOptions, Request};

use super::setup::{FILE, Setup, attached, mem};

/// The codes of all answers of a queue, by user data.
fn answers(world: &mut blkring_engine::sim::World, queue: usize) -> Vec<(u64, i32)> {
    let mut answers: Vec<_> =
        world.queue(queue).completions().map(|c| (c.user_data, c.code())).collect();
    answers.sort_unstable();
    answers
}

fn rmw(handle: &Disk, byte: u8, user_data: u64) -> blkring_engine::Ticket {
    handle.queue(Request::write(100, mem(10, byte)), user_data).unwrap()
}

#[test]
fn what_waits_in_the_tracker_is_withdrawn_and_what_runs_is_not() {
    let (mut world, handles, raw) = attached(Setup::new(1, &[0; 8192]).aligned(4096).queues(1));
    world.disk().hold("all", Matcher::any(), Point::Land);
    let first = rmw(&handles[0], 1, 1);
    let second = rmw(&handles[0], 2, 2);
    let third = rmw(&handles[0], 3, 3);
    world.settle();
    assert_eq!(raw.storage().statistics().waiting, 2);
    handles[0].withdraw(first);
    handles[0].withdraw(second);
    world.settle();
    let answered: Vec<_> = world.queue(0).completions().collect();
    let [one] = &answered[..] else { panic!("{answered:?}") };
    assert_eq!((one.user_data, one.code()), (2, -libc::ECANCELED));
    let message = one.result.as_ref().unwrap_err().to_string();
    assert!(message.starts_with(&format!("{FILE}: write at offset 100: ")), "{message}");
    assert_eq!(raw.storage().statistics().waiting, 1);
    world.disk().release("all");
    world.drain().done();
    assert_eq!(answers(&mut world, 0), [(1, 0), (3, 0)]);
    assert_eq!(world.disk().contents(FILE)[100..110], [3; 10]);
    assert_eq!(raw.storage().statistics().cancelled, 1);
    _ = third;
}

#[test]
fn a_request_between_two_operations_is_not_withdrawn() {
    let (mut world, handles, _) = attached(Setup::new(1, &[0; 8192]).aligned(4096).queues(1));
    // Its read is over, its write held before anything.
    world.disk().hold("write", Matcher::writes(), Point::Begin);
    let receipt = handles[0].submit(Request::write(100, mem(10, 1))).unwrap();
    world.settle();
    assert_eq!(world.disk().held("write"), 1);
    receipt.withdraw();
    world.settle();
    assert_eq!(world.queue(0).unfinished(), 1);
    world.disk().release("write");
    world.drain().done();
    assert_eq!(world.disk().contents(FILE)[100..110], [1; 10]);
}

#[test]
fn what_waits_for_a_slot_or_a_buffer_is_withdrawn() {
    let mut setup = Setup::new(1, &[0; 65536]).aligned(4096).queues(1);
    setup.queue = QueueOptions::with_requests(8).depth(1);
    setup.options.buffer_budget = 4096;
    let (mut world, handles, raw) = attached(setup);
    world.disk().hold("all", Matcher::any(), Point::Begin);
    rmw(&handles[0], 1, 1);
    // Waits for the buffer, in another block; the second for the slot.
    let buffer = handles[0].queue(Request::write(8192 + 5, mem(10, 2)), 2).unwrap();
    let slot = handles[0].queue(Request::flush(), 3).unwrap();
    world.settle();
    handles[0].withdraw(buffer);
    handles[0].withdraw(slot);
    world.settle();
    assert_eq!(answers(&mut world, 0), [(2, -libc::ECANCELED), (3, -libc::ECANCELED)]);
    world.disk().release("all");
    world.drain().done();
    assert_eq!(answers(&mut world, 0), [(1, 0)]);
    assert_eq!(raw.storage().buffers().taken(), 0);
}

#[test]
fn retiring_ends_what_runs_and_cancels_what_waits() {
    for seed in 0..50 {
        let (mut world, handles, raw) =
            attached(Setup::new(seed, &[0; 65536]).aligned(4096).queues(2));
        for i in 0..10 {
            rmw(&handles[(i % 2) as usize], i as u8 + 1, i);
        }
        let mut steps = 0;
        let some = || {
            steps += 1;
            steps > seed
        };
        _ = world.run(some, 1000);
        world.queue(0).retire();
        assert!(handles[0].queue(Request::flush(), 99).is_err(), "nothing more is accepted");
        world.drain().done();
        let retired = answers(&mut world, 0);
        assert_eq!(retired.len(), 5, "each request has one answer");
        let (ended, cancelled) = (
            retired.iter().filter(|a| a.1 == 0).count(),
            retired.iter().filter(|a| a.1 == -libc::ECANCELED).count(),
        );
        assert_eq!(ended + cancelled, 5);
        drop(world.remove(0));
        assert!(answers(&mut world, 1).iter().all(|a| a.1 == 0), "the other queue goes on");
        let statistics = raw.storage().statistics();
        assert_eq!(statistics.running + statistics.waiting + statistics.parked, 0);
        if seed == 0 {
            assert_eq!(cancelled, 5, "nothing had begun");
        }
    }
}

#[test]
fn a_request_that_is_answered_takes_no_later_one_back() {
    let (mut world, handles, _) = attached(Setup::new(1, &[0; 8192]).aligned(4096).queues(1));
    let old = rmw(&handles[0], 1, 1);
    world.drain().done();
    let new = rmw(&handles[0], 2, 2);
    handles[0].withdraw(old);
    // An answer that was given and not taken yet.
    let given = handles[0].submit(Request::write(4096, mem(10, 3))).unwrap();
    world.drain().done();
    given.withdraw();
    drop(given);
    rmw(&handles[0], 4, 4);
    world.drain().done();
    assert_eq!(answers(&mut world, 0), [(1, 0), (2, 0), (4, 0)]);
    _ = new;
}
