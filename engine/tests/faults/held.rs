//! Operations that are kept: whoever goes away meanwhile, nothing hangs and nothing is left.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use blkring_engine::faults::{Effect, Faults, Ops, Rule};
use blkring_engine::{Flags, IoMem, QueueOptions, RawDisk, Request, Segment, Service};

use super::backend;
use super::places::{Place, drain, turn, turn_until};

fn hold(ops: Ops, tag: &str) -> Rule {
    Rule::new(ops, Effect::Hold(tag.to_owned())).always()
}

/// Memory whose owner is watched, aligned so that nothing else is written in its place.
fn watched(len: usize) -> (IoMem, std::sync::Weak<Vec<u8>>) {
    const ALIGNMENT: usize = 4096;
    let owner = Arc::new(vec![7u8; len + ALIGNMENT]);
    let address = owner.as_ptr().expose_provenance().next_multiple_of(ALIGNMENT);
    let weak = Arc::downgrade(&owner);
    // SAFETY: the vector lives in the owner and is never changed. Test: this one, under a sanitizer.
    let mem = unsafe { IoMem::from_segments(&[Segment { address, len }], owner) };
    (mem, weak)
}

fn is_idle(disk: &RawDisk) -> bool {
    let statistics = disk.storage().statistics();
    statistics.running + statistics.waiting + statistics.parked == 0
}

#[test]
fn what_is_kept_waits_and_the_rest_goes_on() {
    for place in Place::all() {
        let (faults, name) = (Faults::new(), place.name());
        let raw = place.disk(&faults);
        let mut queue = place.queue(8);
        let disk = queue.attach(&raw).unwrap();
        faults.add(hold(Ops::WRITES, "A").within(0..1).times(1));
        disk.queue(Request::write(0, IoMem::from(vec![1; 4096])), 0).unwrap();
        disk.queue(Request::write(4096, IoMem::from(vec![2; 4096])), 1).unwrap();
        turn_until(&mut queue, &place, |queue| queue.unfinished() == 1);
        let ended: Vec<u64> = queue.completions().map(|one| one.user_data).collect();
        assert_eq!((ended, faults.stopped("A")), (vec![1], 1), "{name}");
        assert_eq!(faults.release("A"), 1);
        drain(&mut queue, &place);
        assert_eq!(queue.completions().next().unwrap().code(), 0, "{name}");
        let back = IoMem::from(vec![0; 8192]);
        disk.queue(Request::read(0, back.clone()), 2).unwrap();
        drain(&mut queue, &place);
        assert_eq!(back.to_vec(), [vec![1; 4096], vec![2; 4096]].concat(), "{name}");
        assert!(is_idle(&raw), "{name}");
    }
}

#[test]
fn a_release_from_another_thread_wakes_a_queue_that_sleeps() {
    let place = &Place::all()[0];
    let faults = Faults::new();
    let mut queue = place.queue(8);
    let disk = queue.attach(&place.disk(&faults)).unwrap();
    faults.add(hold(Ops::READ, "A"));
    let releaser = {
        let faults = faults.clone();
        std::thread::spawn(move || {
            let mut released = 0;
            while released < 200 {
                released += faults.release("A");
                std::thread::yield_now();
            }
        })
    };
    for _ in 0..200 {
        // Sleeps in the kernel until it is let go.
        queue.block_on(disk.read(0, IoMem::from(vec![0; 512]))).unwrap().unwrap();
    }
    releaser.join().unwrap();
}

#[test]
fn a_dropped_receipt_keeps_what_is_kept() {
    for place in Place::all() {
        let (faults, name) = (Faults::new(), place.name());
        let raw = place.disk(&faults);
        let mut queue = place.queue(8);
        let disk = queue.attach(&raw).unwrap();
        faults.add(hold(Ops::WRITES, "A").times(1));
        let (mem, owner) = watched(4096);
        drop(disk.submit(Request::write(0, mem)).unwrap());
        turn(&mut queue, &place);
        assert!(owner.upgrade().is_some() && !is_idle(&raw), "{name}: it is still to be written");
        faults.release("A");
        drain(&mut queue, &place);
        assert!(owner.upgrade().is_none() && is_idle(&raw), "{name}");
        let back = IoMem::from(vec![0; 4096]);
        disk.queue(Request::read(0, back.clone()), 2).unwrap();
        drain(&mut queue, &place);
        assert_eq!(back.to_vec(), vec![7; 4096], "{name}");
    }
}

#[test]
fn a_dropped_future_keeps_what_is_kept() {
    for place in Place::all() {
        let (faults, name) = (Faults::new(), place.name());
        let raw = place.disk(&faults);
        let mut queue = place.queue(8);
        faults.add(hold(Ops::WRITES, "A").times(1));
        let (mem, owner) = watched(4096);
        {
            let (storage, lane) = (raw.storage().clone(), queue.lane());
            let mut write: Pin<Box<dyn Future<Output = _>>> =
                Box::pin(async move { storage.write(&lane, 0, &mem, Flags::empty()).await });
            let mut cx = Context::from_waker(Waker::noop());
            assert!(write.as_mut().poll(&mut cx).is_pending());
            turn(&mut queue, &place);
        }
        assert!(owner.upgrade().is_some() && !is_idle(&raw), "{name}");
        faults.release("A");
        turn(&mut queue, &place);
        while owner.upgrade().is_some() {
            turn(&mut queue, &place);
        }
        assert!(is_idle(&raw), "{name}");
    }
}

#[test]
fn what_is_kept_ends_with_its_queue() {
    for place in Place::all() {
        let (faults, name) = (Faults::new(), place.name());
        let raw = place.disk(&faults);
        let mut queue = place.queue(64);
        let disk = queue.attach(&raw).unwrap();
        faults.add(hold(Ops::WRITES, "A"));
        let mut owners = Vec::new();
        let mut receipts = Vec::new();
        for number in 0..32 {
            let (mem, owner) = watched(4096);
            owners.push(owner);
            receipts.push(disk.submit(Request::write(number * 4096, mem)).unwrap());
        }
        turn_until(&mut queue, &place, |_| faults.stopped("A") == 32);
        // Nothing is accepted any more, and what is kept goes on being kept until the queue is dropped.
        queue.retire();
        turn(&mut queue, &place);
        assert_eq!((queue.unfinished(), faults.stopped("A")), (32, 32), "{name}");
        drop(queue);
        for receipt in receipts {
            let mut receipt = std::pin::pin!(receipt);
            let ready = receipt.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let std::task::Poll::Ready(result) = ready else { panic!("{name}: no answer") };
            assert_eq!(result.unwrap_err().errno, libc::ECANCELED, "{name}");
        }
        assert!(owners.iter().all(|owner| owner.upgrade().is_none()), "{name}: memory is free");
        assert!(is_idle(&raw), "{name}: no grant is left");
        assert_eq!((faults.stopped("A"), faults.release("A")), (0, 0), "{name}");
        // Others go on.
        faults.clear();
        let mut queue = place.queue(8);
        let disk = queue.attach(&raw).unwrap();
        disk.queue(Request::write(0, IoMem::from(vec![1; 4096])), 0).unwrap();
        drain(&mut queue, &place);
        assert_eq!(queue.completions().next().unwrap().code(), 0, "{name}");
    }
}

#[test]
fn what_is_delayed_is_waited_for_by_a_queue_that_is_dropped() {
    let place = &Place::all()[0];
    let faults = Faults::new();
    let raw = place.disk(&faults);
    let mut queue = place.queue(64);
    let disk = queue.attach(&raw).unwrap();
    faults.add(Rule::new(Ops::WRITES, Effect::Delay(Duration::from_millis(50))).always());
    let mut owners = Vec::new();
    for number in 0..32 {
        let (mem, owner) = watched(4096);
        owners.push(owner);
        drop(disk.submit(Request::write(number * 4096, mem)).unwrap());
    }
    queue.turn().unwrap();
    assert!(owners.iter().all(|owner| owner.upgrade().is_some()));
    drop(queue);
    assert!(owners.iter().all(|owner| owner.upgrade().is_none()));
    let Place::File(file, _) = place else { unreachable!("the first place is a file") };
    let bytes = std::fs::read(file.path()).unwrap();
    assert!(bytes[..32 * 4096].iter().all(|byte| *byte == 7), "they were done");
}

#[test]
fn shared_work_that_is_kept_ends_with_its_service() {
    for place in Place::all() {
        let (faults, name) = (Faults::new(), place.name());
        let raw = place.disk(&faults);
        let storage = raw.storage().clone();
        let service = match place {
            Place::File(..) => Service::new(&backend::choice()).unwrap(),
            _ => Service::without_ring(8).unwrap(),
        };
        let mut queue = place.queue(8);
        queue.watch_service(&service).unwrap();
        faults.add(hold(Ops::WRITES, "A"));
        let (mem, owner) = watched(4096);
        let (lane, of_job) = (service.lane().clone(), storage.clone());
        let job = service.start(async move { of_job.write(&lane, 0, &mem, Flags::empty()).await });
        turn(&mut queue, &place);
        assert_eq!(faults.stopped("A"), 1, "{name}");
        drop(queue);
        assert_eq!(faults.stopped("A"), 1, "{name}: it is nobody's in particular");
        service.settle().unwrap();
        service.abandon_jobs();
        drop(job);
        assert!(owner.upgrade().is_none() && is_idle(&raw), "{name}");
        assert_eq!(faults.stopped("A"), 0, "{name}");
    }
}

#[test]
fn shared_work_that_is_let_go_wakes_a_queue_that_sleeps() {
    let place = &Place::all()[0];
    let faults = Faults::new();
    let storage = place.disk(&faults).storage().clone();
    let service = Service::new(&backend::choice()).unwrap();
    let mut queue = backend::started(QueueOptions::default());
    queue.watch_service(&service).unwrap();
    faults.add(hold(Ops::WRITES, "A"));
    for round in 0..100 {
        let (lane, storage) = (service.lane().clone(), storage.clone());
        let job = service.start(async move {
            storage.write(&lane, 0, &IoMem::from(vec![7; 512]), Flags::empty()).await
        });
        let releaser = {
            let faults = faults.clone();
            std::thread::spawn(move || while faults.release("A") == 0 {})
        };
        queue.block_on(job.join()).unwrap().unwrap();
        releaser.join().unwrap();
        assert_eq!(faults.stopped("A"), 0, "round {round}");
    }
}
