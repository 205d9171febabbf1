//! Which operations are struck, when, and what becomes of their requests.

use std::time::Duration;

use blkring_engine::faults::{Effect, Faults, Notice, Ops, Rule};
use blkring_engine::{Disk, Flags, IoError, IoMem, Queue, Request};

use super::places::{Place, SIZE, drain};

fn mem(len: usize, byte: u8) -> IoMem {
    IoMem::from(vec![byte; len])
}

/// One request from begin to end.
fn run(queue: &mut Queue, place: &Place, disk: &Disk, request: Request) -> Result<(), IoError> {
    disk.queue(request, 0).unwrap();
    drain(queue, place);
    queue.completions().next().unwrap().result
}

fn code(result: Result<(), IoError>) -> i32 {
    result.err().map_or(0, |error| error.errno)
}

#[test]
fn only_what_is_meant_is_struck() {
    for place in Place::all() {
        let (faults, name) = (Faults::new(), place.name());
        let disk = place.disk(&faults);
        let mut queue = place.queue(8);
        let disk = queue.attach(&disk).unwrap();
        let mut run = |request| code(run(&mut queue, &place, &disk, request));
        let write = |at| Request::write(at, mem(4096, 1));
        let read = |at| Request::read(at, mem(4096, 0));
        // By kind and range, once.
        faults.add(Rule::new(Ops::WRITES, Effect::Error(libc::EIO)).within(8192..8193));
        assert_eq!([run(write(4096)), run(read(8192)), run(write(12288))], [0; 3], "{name}");
        assert_eq!([run(write(8192)), run(write(8192))], [libc::EIO, 0], "{name}");
        // The third and the fourth.
        faults.add(Rule::new(Ops::READ, Effect::Error(libc::ENOSPC)).after(2).times(2));
        let results = [0; 6].map(|at| run(read(at)));
        assert_eq!(results, [0, 0, libc::ENOSPC, libc::ENOSPC, 0, 0], "{name}");
        // Always, until it is taken away; the first of two rules counts.
        let always = faults.add(Rule::new(Ops::TRANSFERS, Effect::Error(libc::ENOMEM)).always());
        faults.add(Rule::new(Ops::READ, Effect::Error(libc::EIO)));
        assert_eq!([0; 3].map(|at| run(read(at))), [libc::ENOMEM; 3], "{name}");
        assert_eq!(run(write(0)), libc::ENOMEM, "{name}");
        assert!(faults.remove(always) && !faults.remove(always));
        assert_eq!([0; 2].map(|at| run(read(at))), [libc::EIO, 0], "{name}");
        assert_eq!(faults.struck(), 8, "{name}");
        // A durable write is one of its own kind; a discard is no zero-write; a zero-write has several ways.
        faults.add(Rule::new(Ops::DURABLE_WRITE, Effect::Error(libc::EIO)));
        assert_eq!([run(write(0)), run(write(0).with(Flags::FUA))], [0, libc::EIO], "{name}");
    }
}

#[test]
fn discards_and_zero_writes_and_flushes_are_told_apart() {
    for place in Place::all() {
        let (faults, name) = (Faults::new(), place.name());
        let disk = place.disk(&faults);
        let mut queue = place.queue(8);
        let disk = queue.attach(&disk).unwrap();
        let mut run = |request| code(run(&mut queue, &place, &disk, request));
        faults.add(Rule::new(Ops::DISCARD, Effect::Error(libc::EIO)));
        assert_eq!(run(Request::write_zeroes(0, 4096).with(Flags::MAY_UNMAP)), 0, "{name}");
        assert_eq!(run(Request::discard(0, 4096)), libc::EIO, "{name}");
        faults.add(Rule::new(Ops::ZEROES, Effect::Error(libc::EIO)));
        assert_eq!(run(Request::discard(0, 4096)), 0, "{name}");
        assert_eq!(run(Request::write_zeroes(0, 4096)), libc::EIO, "{name}");
        faults.add(Rule::new(Ops::FLUSH, Effect::Error(libc::EIO)));
        assert_eq!(run(Request::write(0, mem(512, 1))), 0, "{name}");
        assert_eq!(run(Request::flush()), libc::EIO, "{name}");
        assert_eq!(run(Request::flush()), libc::EIO, "a failed sync is not retried: {name}");
    }
}

#[test]
fn an_interrupted_operation_is_sent_again_and_a_short_one_goes_on() {
    for place in Place::all() {
        let (faults, name) = (Faults::new(), place.name());
        let disk = place.disk(&faults);
        let mut queue = place.queue(8);
        let disk = queue.attach(&disk).unwrap();
        for errno in [libc::EINTR, libc::EAGAIN] {
            faults.add(Rule::new(Ops::TRANSFERS, Effect::Error(errno)).times(3));
        }
        // Nothing, and less than a block: a block is moved all the same.
        for bytes in [0, 1, 512, 5000, 1 << 30] {
            faults.add(Rule::new(Ops::TRANSFERS, Effect::Short(bytes)).times(2));
        }
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        let write = Request::write(5000, IoMem::from(bytes.clone()));
        run(&mut queue, &place, &disk, write).unwrap();
        let back = mem(bytes.len(), 0);
        run(&mut queue, &place, &disk, Request::read(5000, back.clone())).unwrap();
        assert!(back.to_vec() == bytes, "{name}");
        assert_eq!(faults.struck(), 16, "{name}: every rule has had its turn");
        // What has no bytes to move is not shortened.
        faults.add(Rule::new(Ops::all(), Effect::Short(1)));
        run(&mut queue, &place, &disk, Request::flush()).unwrap();
        assert_eq!(faults.struck(), 16, "{name}");
    }
}

#[test]
fn a_chosen_effect_depends_on_what_is_seen() {
    let faults = Faults::new();
    let place = Place::Memory;
    let disk = place.disk(&faults);
    let mut queue = place.queue(8);
    let disk = queue.attach(&disk).unwrap();
    faults.add(Rule::chosen(Ops::READ, |seen| {
        (seen.offset + seen.len > 8192).then_some(Effect::Error(libc::EIO))
    }));
    let mut read = |at| code(run(&mut queue, &place, &disk, Request::read(at, mem(4096, 0))));
    assert_eq!([read(0), read(4096), read(4097), read(8192)], [0, 0, libc::EIO, libc::EIO]);
    faults.clear();
    assert_eq!(read(8192), 0);
}

#[test]
fn a_delayed_operation_comes_late_and_wakes_a_queue_that_sleeps() {
    for place in Place::all() {
        let (faults, name) = (Faults::new(), place.name());
        let disk = place.disk(&faults);
        let mut queue = place.queue(8);
        let disk = queue.attach(&disk).unwrap();
        let by = Duration::from_millis(30);
        // Delayed, then interrupted, then done.
        faults.add(Rule::new(Ops::WRITE, Effect::Delay(by)));
        faults.add(Rule::new(Ops::WRITE, Effect::Error(libc::EINTR)));
        disk.queue(Request::write(0, mem(4096, 7)), 1).unwrap();
        disk.queue(Request::read(4096, mem(4096, 0)), 2).unwrap();
        drain(&mut queue, &place);
        let order: Vec<u64> = queue.completions().map(|one| one.user_data).collect();
        assert_eq!(order, [2, 1], "{name}: the read does not wait");
        assert_eq!(faults.struck(), 2, "{name}");
        let names = std::fs::read_dir("/proc/self/task").unwrap();
        let names = names.map(|one| std::fs::read_to_string(one.unwrap().path().join("comm")));
        let named = names.filter(|name| name.as_deref().unwrap_or_default() == "blkring-delay\n");
        assert!(named.count() >= 1, "the thread has a name");
    }
}

#[test]
fn an_observer_is_told() {
    let faults = Faults::new();
    let (sender, told) = std::sync::mpsc::channel();
    faults.observe(move |notice| {
        let text = match notice {
            Notice::Stopped(tag) => format!("stopped {tag}"),
            Notice::Released(tag) => format!("released {tag}"),
        };
        sender.send(text).unwrap();
    });
    let place = Place::Memory;
    let disk = place.disk(&faults);
    let mut queue = place.queue(8);
    let disk = queue.attach(&disk).unwrap();
    faults.add(Rule::new(Ops::WRITE, Effect::Hold("A".to_owned())));
    disk.queue(Request::write(0, mem(SIZE, 7)), 1).unwrap();
    super::places::turn(&mut queue, &place);
    assert_eq!((faults.stopped("A"), faults.stopped("B")), (1, 0));
    assert_eq!((faults.release("B"), faults.release("A"), faults.release("A")), (0, 1, 0));
    drain(&mut queue, &place);
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ["stopped A", "released A"]);
}
