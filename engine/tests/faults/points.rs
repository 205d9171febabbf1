//! Points: rules that they arm, states, and whoever is stopped there.

use blkring_engine::faults::{Effect, Event, Faults, Ops, Rule};
use blkring_engine::{IoMem, Request};

use super::places::{Place, drain, turn, turn_until};

fn codes(queue: &mut blkring_engine::Queue) -> Vec<(u64, i32)> {
    queue.completions().map(|one| (one.user_data, one.code())).collect()
}

#[test]
fn the_points_of_a_write_are_passed_in_order() {
    for place in Place::all() {
        let (faults, name) = (Faults::new(), place.name());
        let raw = place.disk(&faults);
        let mut queue = place.queue(8);
        let disk = queue.attach(&raw).unwrap();
        let unaligned = raw.storage().alignment() > 1;
        let mut expected = vec![Event::Pwritev, Event::PwritevDone];
        if unaligned {
            expected.splice(
                0..0,
                [
                    Event::PwritevRmwHead,
                    Event::PwritevRmwAfterHead,
                    Event::PwritevRmwTail,
                    Event::PwritevRmwAfterTail,
                ],
            );
        }
        for event in &expected {
            faults.add(Rule::suspend(*event, event.name()));
        }
        let len = 3 * usize::try_from(raw.storage().alignment()).unwrap();
        disk.queue(Request::write(1, IoMem::from(vec![1; len])), 0).unwrap();
        for event in &expected {
            turn_until(&mut queue, &place, |_| faults.stopped(event.name()) == 1);
            assert_eq!(faults.release(event.name()), 1, "{name}: {event}");
        }
        drain(&mut queue, &place);
        assert_eq!(codes(&mut queue), [(0, 0)], "{name}");
        faults.add(Rule::suspend(Event::PwritevZero, "Z"));
        disk.queue(Request::write_zeroes(0, 4096), 1).unwrap();
        turn(&mut queue, &place);
        assert_eq!(faults.release("Z"), 1, "{name}");
        drain(&mut queue, &place);
    }
}

#[test]
fn a_point_arms_rules_and_another_disarms_them() {
    let place = Place::Memory;
    let faults = Faults::new();
    let mut queue = place.queue(8);
    let disk = queue.attach(&place.disk(&faults)).unwrap();
    let mut run = |request| {
        disk.queue(request, 0).unwrap();
        drain(&mut queue, &place);
        codes(&mut queue)[0].1
    };
    let read = || Request::read(0, IoMem::from(vec![0; 512]));
    let write = || Request::write(0, IoMem::from(vec![0; 512]));
    let zero = || Request::write_zeroes(0, 512);
    let failing = |errno| Rule::new(Ops::READ, Effect::Error(errno)).always();
    faults.add(failing(libc::EIO).after_point(Event::Pwritev));
    faults.add(failing(libc::ENOSPC).after_point(Event::PwritevZero));
    assert_eq!(run(read()), 0);
    assert_eq!([run(write()), run(read()), run(read())], [0, -libc::EIO, -libc::EIO]);
    assert_eq!([run(zero()), run(read())], [0, -libc::ENOSPC]);
    assert_eq!([run(write()), run(read())], [0, -libc::EIO]);
}

#[test]
fn the_state_decides_which_rules_a_point_arms() {
    let place = Place::Memory;
    let faults = Faults::new();
    let mut queue = place.queue(8);
    let disk = queue.attach(&place.disk(&faults)).unwrap();
    // The third write arms the rule.
    faults.add(Rule::set_state(Event::Pwritev, 2).in_state(1));
    faults.add(Rule::set_state(Event::Pwritev, 3).in_state(2));
    let failing = Rule::new(Ops::WRITE, Effect::Error(libc::EIO)).always();
    faults.add(failing.after_point(Event::Pwritev).in_state(3));
    for (number, (code, state)) in [(0, 2), (0, 3), (-libc::EIO, 3)].into_iter().enumerate() {
        disk.queue(Request::write(0, IoMem::from(vec![0; 512])), 0).unwrap();
        drain(&mut queue, &place);
        assert_eq!(codes(&mut queue), [(0, code)], "write {number}");
        assert_eq!(faults.state(), state);
    }
}

#[test]
fn two_tags_stop_one_request_and_the_last_stopped_is_released_first() {
    let place = Place::Memory;
    let faults = Faults::new();
    let mut queue = place.queue(8);
    let disk = queue.attach(&place.disk(&faults)).unwrap();
    let write = |at| Request::write(at, IoMem::from(vec![1; 512]));
    faults.add(Rule::suspend(Event::Pwritev, "A"));
    faults.add(Rule::suspend(Event::Pwritev, "B"));
    disk.queue(write(0), 0).unwrap();
    disk.queue(write(512), 1).unwrap();
    turn(&mut queue, &place);
    assert_eq!(codes(&mut queue), [(1, 0)], "one request met both");
    assert_eq!((faults.release("A"), faults.stopped("B")), (1, 1));
    turn(&mut queue, &place);
    assert!(codes(&mut queue).is_empty());
    faults.release("B");
    drain(&mut queue, &place);
    assert_eq!(codes(&mut queue), [(0, 0)]);
    // Two requests under one tag.
    for number in [2, 3] {
        faults.add(Rule::suspend(Event::Pwritev, "A"));
        disk.queue(write(512 * number), number).unwrap();
        turn(&mut queue, &place);
    }
    assert_eq!(faults.stopped("A"), 2);
    for number in [3, 2] {
        assert!(faults.release_last("A"));
        drain_one(&mut queue, &place);
        assert_eq!(codes(&mut queue), [(number, 0)]);
    }
    assert!(!faults.release_last("A"));
    // A rule that has not struck is taken away by its tag.
    faults.add(Rule::suspend(Event::Pwritev, "A"));
    assert_eq!((faults.remove_tag("A"), faults.remove_tag("A")), (1, 0));
}

fn drain_one(queue: &mut blkring_engine::Queue, place: &Place) {
    let before = queue.unfinished();
    while queue.unfinished() == before {
        turn(queue, place);
    }
}

#[test]
fn one_that_was_stopped_at_a_point_ends_with_its_queue() {
    for place in Place::all() {
        let (faults, name) = (Faults::new(), place.name());
        let raw = place.disk(&faults);
        let mut queue = place.queue(8);
        let disk = queue.attach(&raw).unwrap();
        faults.add(Rule::suspend(Event::Pwritev, "A"));
        let receipt = disk.submit(Request::write(0, IoMem::from(vec![1; 512]))).unwrap();
        turn(&mut queue, &place);
        assert_eq!(faults.stopped("A"), 1, "{name}");
        drop(queue);
        assert_eq!(faults.stopped("A"), 0, "{name}");
        let mut receipt = std::pin::pin!(receipt);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let ready = std::future::Future::poll(receipt.as_mut(), &mut cx);
        let std::task::Poll::Ready(result) = ready else { panic!("{name}: no answer") };
        assert_eq!(result.unwrap_err().errno, libc::ECANCELED, "{name}");
        let statistics = raw.storage().statistics();
        assert_eq!(statistics.running + statistics.waiting, 0, "{name}");
    }
}
