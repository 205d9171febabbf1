//! Streams of requests: what is sent, in which order, and at what cost.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use blkring_bench::stream::{Direction, Drain, FlushEvery, Stream, StreamError};
use blkring_engine::{
    Action, Context, Flags, IoMem, Queue, QueueSeed, RawDisk, Request, Result, Service, Storage,
    Target, Topology,
};

const BLOCK: usize = 4096;

fn writes(count: u32, depth: u32) -> Stream {
    Stream {
        count,
        depth,
        step: BLOCK as u64,
        offset: 0,
        direction: Direction::Write,
        flags: Flags::empty(),
        flush: None,
    }
}

fn flushing(count: u32, depth: u32, interval: u32, drain: Drain) -> Stream {
    Stream { flush: Some(FlushEvery { interval, drain }), ..writes(count, depth) }
}

fn queue_for(stream: &Stream) -> Queue {
    QueueSeed::without_ring(stream.queue_options()).start().unwrap()
}

/// Notes when requests begin and end; each takes a turn of its queue.
struct Recorder {
    events: Mutex<Vec<(&'static str, Option<u64>)>>,
    path: Arc<str>,
    size: u64,
}

impl Target for Recorder {
    fn run(
        self: Arc<Self>,
        _context: Context,
        request: Request,
    ) -> impl Future<Output = Result<()>> {
        let place = (!matches!(request.action, Action::Flush)).then_some(request.offset);
        let mut begun = false;
        std::future::poll_fn(move |cx| {
            let event = if begun { "end" } else { "begin" };
            self.events.lock().unwrap().push((event, place));
            if begun {
                return Poll::Ready(Ok(()));
            }
            begun = true;
            cx.waker().wake_by_ref();
            Poll::Pending
        })
    }

    fn service(&self) -> Option<&Arc<Service>> {
        None
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn topology(&self) -> Topology {
        Topology::of_sectors()
    }

    fn path(&self) -> &Arc<str> {
        &self.path
    }
}

/// What a stream does to a disk of so many blocks, and the most transfers in flight at once.
fn record(stream: &Stream, blocks: u64) -> (Vec<(&'static str, Option<u64>)>, usize) {
    let size = blocks * BLOCK as u64;
    let recorder = Arc::new(Recorder { events: Mutex::default(), path: "recorder".into(), size });
    let mut queue = queue_for(stream);
    let disk = queue.attach(&recorder).unwrap();
    stream.run(&mut queue, &disk, &IoMem::from(vec![0; BLOCK])).unwrap();
    let events = recorder.events.lock().unwrap().clone();
    let (mut running, mut most) = (0usize, 0);
    for (event, place) in &events {
        match (*event, place) {
            (_, None) => (),
            ("begin", _) => running += 1,
            _ => running -= 1,
        }
        most = most.max(running);
    }
    assert_eq!(running, 0, "a run ends when all requests have ended");
    (events, most)
}

fn offsets(events: &[(&str, Option<u64>)]) -> Vec<u64> {
    let begins = events.iter().filter(|(event, _)| *event == "begin");
    begins.filter_map(|(_, place)| place.map(|offset| offset / BLOCK as u64)).collect()
}

#[test]
fn offsets_advance_by_the_step_and_wrap_around() {
    let stream = Stream { step: 3 * BLOCK as u64, offset: BLOCK as u64, ..writes(7, 1) };
    assert_eq!(offsets(&record(&stream, 8).0), [1, 4, 7, 2, 5, 0, 3]);
}

#[test]
fn the_depth_is_reached_and_not_exceeded() {
    for depth in [1, 2, 7, 64] {
        assert_eq!(record(&writes(100, depth), 100).1, depth as usize);
    }
    assert_eq!(record(&writes(3, 1 << 31), 100).1, 3);
}

/// Numbers of writes begun before each flush, as the installed qemu-img was seen to place its fdatasyncs.
fn writes_before_flushes(stream: &Stream) -> Vec<usize> {
    let (events, _) = record(stream, 100);
    let flushes = events.iter().enumerate().filter(|(_, e)| **e == ("begin", None));
    flushes.map(|(at, _)| offsets(&events[..at]).len()).collect()
}

#[test]
fn flushes_are_due_when_what_is_left_divides_by_the_interval() {
    assert_eq!(writes_before_flushes(&flushing(10, 2, 4, Drain::Yes)), [2, 6, 10]);
    assert_eq!(writes_before_flushes(&flushing(10, 2, 5, Drain::Yes)), [5, 10]);
    assert_eq!(writes_before_flushes(&flushing(10, 2, 3, Drain::Yes)), [1, 4, 7, 10]);
    assert_eq!(writes_before_flushes(&flushing(1, 4, 4, Drain::Yes)), [1]);
    assert_eq!(writes_before_flushes(&flushing(10, 2, 4, Drain::No)).len(), 3);
}

#[test]
fn a_draining_flush_is_alone_and_one_that_does_not_drain_is_not() {
    let alone = |drain| {
        let (events, _) = record(&flushing(64, 8, 16, drain), 100);
        let mut running = 0;
        let mut flush_ends = 0;
        for (event, place) in events {
            match (event, place) {
                ("begin", Some(_)) => running += 1,
                (_, Some(_)) => running -= 1,
                ("begin", None) if running > 0 => return false,
                ("begin", None) => (),
                (_, None) => flush_ends += 1,
            }
        }
        assert_eq!(flush_ends, 4);
        true
    };
    assert!(alone(Drain::Yes));
    assert!(!alone(Drain::No));
}

#[test]
fn bytes_arrive_and_a_request_across_the_end_ends_the_run() {
    let disk = RawDisk::new(Storage::in_memory("memory", vec![0; 8 * BLOCK], 8 * BLOCK));
    let run = |stream: &Stream| {
        let mut queue = queue_for(stream);
        let attached = queue.attach(&disk).unwrap();
        stream.run(&mut queue, &attached, &IoMem::from(vec![7; BLOCK]))
    };
    run(&writes(4, 2)).unwrap();
    let contents = disk.storage().memory_contents().unwrap();
    assert!(contents.iter().enumerate().all(|(at, byte)| *byte == 7 * u8::from(at < 4 * BLOCK)));
    let error = run(&Stream { offset: 7 * BLOCK as u64 + 1, ..writes(4, 2) }).unwrap_err();
    let StreamError::Request(error) = error else { panic!("{error}") };
    assert_eq!((error.errno, error.offset), (libc::EIO, 7 * BLOCK as u64 + 1));
}

/// Once its places are made, a queue serves requests without the allocator: reads and overwrites, in memory and on a
/// ring.
#[test]
fn a_warm_stream_allocates_nothing() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(64 * BLOCK as u64).unwrap();
    let options = blkring_engine::OpenOptions::new().access(blkring_engine::Access::ReadWrite);
    let memory = Storage::in_memory("memory", vec![0; 64 * BLOCK], 64 * BLOCK);
    let on_file = Storage::open(file.path(), &options).unwrap();
    for (storage, ring) in [(memory, false), (on_file, true)] {
        let disk = RawDisk::new(storage);
        for direction in [Direction::Read, Direction::Write] {
            let stream = Stream { direction, ..writes(2000, 16) };
            let seed = if ring {
                QueueSeed::new(stream.queue_options()).unwrap()
            } else {
                QueueSeed::without_ring(stream.queue_options())
            };
            let mut queue = seed.start().unwrap();
            let attached = queue.attach(&disk).unwrap();
            let buffer = IoMem::from(vec![3; BLOCK]);
            stream.run(&mut queue, &attached, &buffer).unwrap();
            let allocations = allocation_counter::measure(|| {
                stream.run(&mut queue, &attached, &buffer).unwrap();
            });
            assert_eq!(allocations.count_total, 0, "{direction:?}, ring: {ring}");
        }
    }
}
