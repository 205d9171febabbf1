//! An image that is held still: what waits for what, and what the file and the requests are like meanwhile.

use std::cell::RefCell;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use blkring_engine::sim::{Event, Fault, Matcher, OpKind, Rule};
use blkring_engine::{Cache, Flags, IoMem, Quiesced, Request, Result};
use blkring_qcow2::{AllocPolicy, CheckLimits, CreateOptions, check};
use blkring_tests::crowd::Crowd;
use blkring_tests::image_world::{Answer, EIO, IMAGE, ImageWorld, Setup};
use blkring_tests::images::{Opened, create};

/// A guest cluster that was never written.
const NEW: u64 = 5;

type Held = Rc<RefCell<Option<Result<Quiesced>>>>;

fn quiesce(w: &mut ImageWorld, queue: usize) -> Held {
    let image = w.image.clone();
    w.world.start(queue, async move { image.quiesce().await })
}

fn is_still(held: &Held) -> bool {
    matches!(&*held.borrow(), Some(Ok(_)))
}

/// Lets go, if it was held.
fn resume(held: &Held) {
    held.take().expect("there is an answer").expect("it is held still").resume();
}

/// Requests of all kinds, some of them with shared work.
fn everything(w: &mut ImageWorld, queue: usize) -> Vec<Answer> {
    let zeros = Request::write_zeroes(512, 3 * 4096).with(Flags::FUA | Flags::MAY_UNMAP);
    vec![
        w.fill(queue, 8, 0x33),
        w.write(queue, 0, 1..2, 0x44),
        w.write_with(queue, 9, 0..1, 0x55, Flags::FUA),
        w.submit(queue, zeros),
        w.discard(queue, 1),
        w.flush(queue),
        w.submit(queue, Request::read(0, IoMem::from(vec![0; 4096]))),
    ]
}

/// While the image is held still, nothing that is asked reaches the disk; afterwards all of it does.
fn nothing_moves(w: &mut ImageWorld, held: &Held) {
    w.settle();
    assert!(is_still(held), "{}", w.report());
    assert!(w.disk.pending().is_empty(), "something is under way: {}", w.report());
    let (file, mark) = (w.disk.contents(IMAGE), w.disk.steps());
    let answers: Vec<Answer> = (0..2).flat_map(|queue| everything(w, queue)).collect();
    w.settle();
    assert_eq!(w.accepted_since(mark), [], "the disk was asked for something");
    assert!(w.disk.contents(IMAGE) == file && w.disk.durable_contents(IMAGE) == file);
    assert!(answers.iter().all(|answer| !answer.given()), "a request was answered");
    let copied = w.crash(|_| false);
    copied.is_sound().expect("a copy of the file is an image");
    resume(held);
    answers.iter().for_each(|answer| w.finish(answer));
    assert!(!w.accepted_since(mark).is_empty(), "the disk does what was asked");
}

/// Quiescing waits for a request, or the shared work of one, whose op is held on the disk.
fn waits_for(setup: &Setup, begun: impl Fn(&mut ImageWorld) -> Event) {
    for seed in 0..4 {
        let mut w = setup.clone().seed(seed).queues(2).make();
        w.prepare(0..2, 0x11);
        let op = begun(&mut w);
        let held = quiesce(&mut w, 1);
        w.settle();
        assert!(held.borrow().is_none(), "seed {seed}: {op} is under way");
        w.release(&op);
        nothing_moves(&mut w, &held);
        let closed = w.close(0);
        w.finish(&closed);
        let report = w.crash(|_| false).check();
        assert!(report.is_clean(), "seed {seed}: {report:?}");
    }
}

#[test]
fn it_waits_for_requests() {
    let setup = Setup::new(16);
    waits_for(&setup, |w| {
        w.write(0, 0, 0..1, 0x22);
        w.catch(w.is_data())
    });
    waits_for(&setup, |w| {
        w.submit(0, Request::read(0, IoMem::from(vec![0; 512])));
        w.catch(|op| op.kind == OpKind::Read)
    });
    // One of several parts.
    waits_for(&setup, |w| {
        w.submit(0, Request::write_zeroes(512, 3 * 4096));
        w.catch(w.is_data())
    });
}

#[test]
fn it_waits_for_shared_work() {
    let setup = Setup::new(16);
    waits_for(&setup, |w| {
        w.fill(0, NEW, 0x22);
        w.catch(w.is_count())
    });
    waits_for(&setup, |w| {
        let written = w.fill(0, NEW, 0x22);
        w.finish(&written);
        w.flush(0);
        w.catch(w.is_table())
    });
    waits_for(&setup.clone().backing(0xaa), |w| {
        w.write(0, NEW, 0..1, 0x22);
        w.catch(w.is_data())
    });
    waits_for(&setup.policy(AllocPolicy::PerAllocation), |w| {
        w.write(0, NEW, 0..1, 0x22);
        w.catch(|op| op.kind == OpKind::ZeroRange)
    });
}

/// What was answered before is in the file, and durable, although nobody had flushed it.
#[test]
fn it_flushes() {
    let mut w = Setup::new(16).queues(2).make();
    let written = w.fill(0, NEW, 0x22);
    w.finish(&written);
    let held = quiesce(&mut w, 1);
    w.settle();
    assert!(is_still(&held));
    w.crash(|_| false).reads_as(NEW, 0..8, &[0x22]).expect("it was written before");
    nothing_moves(&mut w, &held);
}

#[test]
fn a_second_one_waits_for_the_first() {
    let mut w = Setup::new(16).queues(2).make();
    let first = quiesce(&mut w, 0);
    w.settle();
    let second = quiesce(&mut w, 1);
    w.settle();
    assert!(is_still(&first) && second.borrow().is_none());
    resume(&first);
    nothing_moves(&mut w, &second);
}

#[test]
fn closing_waits_and_a_closed_image_is_not_held() {
    let mut w = Setup::new(16).queues(2).make();
    let held = quiesce(&mut w, 0);
    w.settle();
    let closed = w.close(1);
    w.settle();
    assert!(is_still(&held) && !closed.given());
    resume(&held);
    w.finish(&closed);
    let late = quiesce(&mut w, 0);
    w.settle();
    let error = late.take().expect("it is answered").expect_err("it is closed");
    assert_eq!(error.errno, libc::ESHUTDOWN);
}

/// Given up wherever it stands, it is as if nobody had asked.
#[test]
fn one_that_is_given_up_holds_nothing() {
    for held_op in [false, true] {
        let mut w = Setup::new(16).queues(2).make();
        w.prepare(0..2, 0x11);
        let op = held_op.then(|| {
            w.write(0, 0, 0..1, 0x22);
            w.catch(w.is_data())
        });
        {
            let image = w.image.clone();
            let mut asked = pin!(image.quiesce());
            assert!(asked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            w.settle();
            let polled = asked.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(polled.is_ready(), op.is_none());
            let Poll::Pending = polled else { continue };
        }
        let answers = everything(&mut w, 1);
        w.settle();
        assert!(answers.iter().any(Answer::given), "others wait for the held one only");
        w.release(&op.expect("it is held"));
        answers.iter().for_each(|answer| w.finish(answer));
    }
}

#[test]
fn a_queue_that_nobody_turns() {
    // With a write under way it keeps everybody waiting until it is removed.
    let mut w = Setup::new(16).queues(2).make();
    w.prepare(0..2, 0x11);
    w.write(0, 0, 0..1, 0x22);
    let op = w.catch(w.is_data());
    w.abandon(0);
    w.release(&op);
    let held = quiesce(&mut w, 1);
    w.settle();
    assert!(held.borrow().is_none(), "nobody has seen the write end");
    w.remove(0);
    w.settle();
    assert!(is_still(&held));
    // With a flush under way it does not.
    let mut w = Setup::new(16).queues(2).make();
    w.prepare(0..2, 0x11);
    let written = w.fill(0, NEW, 0x22);
    w.finish(&written);
    w.flush(0);
    let op = w.catch(w.is_table());
    w.abandon(0);
    w.release(&op);
    let held = quiesce(&mut w, 1);
    w.settle();
    assert!(is_still(&held));
}

#[test]
fn a_flush_that_fails_is_told_and_holds_nothing() {
    let mut w = Setup::new(16).queues(2).make();
    let written = w.fill(0, NEW, 0x22);
    w.finish(&written);
    w.disk.inject(Rule::new(Matcher::kind(OpKind::Sync), Fault::Error(EIO)));
    let held = quiesce(&mut w, 0);
    w.settle();
    let error = held.take().expect("it is answered").expect_err("the flush has failed");
    assert_eq!(error.errno, EIO);
    assert_eq!(w.read(1, NEW * 4096, 512), [0x22; 512]);
}

/// F44. The image is held still again and again under a crowd, and copied meanwhile. Each copy is whole.
#[test]
fn f44_copies_of_a_busy_image() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("disk.qcow2");
    let size = 8 << 20;
    create(&path, &CreateOptions::new(size));
    let mut own = Opened::writable(&path, Cache::Cached);
    let image = own.image.clone();
    let crowd = Crowd { queues: 3, lanes: 4, rounds: 150, fine: 4096, coarse: 1 << 18, seed: 44 };
    let busy = std::thread::spawn({
        let image = image.clone();
        move || crowd.run(&image, vec![0; size as usize])
    });
    let mut copies = 0;
    while !busy.is_finished() {
        let held = own.run(image.quiesce()).expect("it is held still");
        let file = std::fs::read(&path).expect("the file is there");
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(std::fs::read(&path).expect("the file is there") == file, "copy {copies}");
        held.resume();
        copies += 1;
        let report = check(&file, CheckLimits::default(), &mut |_| ()).expect("it can be checked");
        assert_eq!(report.corruptions + report.check_errors, 0, "copy {copies}: {report:?}");
        // The others are let in between.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let ended = busy.join().expect("the crowd is content");
    assert!(copies > 3 && ended.requests > 500, "{copies} copies, {} requests", ended.requests);
    assert!(own.read(0, size as usize) == ended.contents);
    own.close();
}
