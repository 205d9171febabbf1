//! The points of the driver: each is passed, and an error there leaves an image that is whole.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::path::Path;
use std::sync::Arc;

use blkring_engine::faults::{Effect, Event, Faults, Ops, Rule};
use blkring_engine::{Access, Flags, IoMem, OpenOptions, Queue, Request, Storage};
use blkring_qcow2::{AllocPolicy, CreateOptions, FileOpener, Image, ImageOptions};
use blkring_tests::images::{self, Opened, backing};
use blkring_tests::tools::{self, ToolError};
use tempfile::TempDir;

const CLUSTER: u64 = 512;
const SIZE: u64 = 256 << 10;

/// What the work below passes.
const PASSED: &[Event] = &[
    Event::ReftableLoad,
    Event::RefblockLoad,
    Event::L2Load,
    Event::L2Update,
    Event::L1Update,
    Event::L1GrowAllocTable,
    Event::L1GrowWriteTable,
    Event::L1GrowActivateTable,
    Event::ReadAio,
    Event::ReadBackingAio,
    Event::WriteAio,
    Event::CowRead,
    Event::CowWrite,
    Event::ClusterAlloc,
    Event::ClusterFree,
    Event::RefblockAlloc,
    Event::RefblockAllocHookup,
    Event::RefblockUpdatePart,
    Event::FlushToOs,
    Event::FlushToDisk,
    Event::Pwritev,
    Event::PwritevDone,
];

fn make(directory: &Path) {
    fs::write(directory.join("base"), vec![0xBB; SIZE as usize]).unwrap();
    let options = CreateOptions::new(SIZE).cluster_size(CLUSTER).backing(backing("base", "raw"));
    images::create(&directory.join("image"), &options);
}

fn open(queue: &mut Queue, path: &Path, faults: &Arc<Faults>) -> Option<Arc<Image>> {
    let options = OpenOptions::new().access(Access::ReadWrite).faults(faults);
    let storage = Storage::open(path, &options).unwrap();
    let lane = queue.lane();
    let options = ImageOptions::new().writable().reserve_bytes(16 * CLUSTER);
    let options = options.policy(AllocPolicy::Ahead).cache_bytes(4096);
    let opener = FileOpener::new(OpenOptions::new());
    queue.block_on(Image::open(&lane, storage, &opener, options)).unwrap().ok()
}

/// Bytes that may be at each place of 256 bytes: those of the last write that succeeded, or of any that failed since.
struct Model(Vec<Vec<u8>>);

impl Model {
    fn note(&mut self, at: u64, len: u64, byte: u8, is_done: bool) {
        let places = (at / 256) as usize..((at + len) / 256) as usize;
        for place in self.0.get_mut(places).unwrap() {
            if is_done {
                place.clear();
            }
            place.push(byte);
        }
    }
}

/// Two sessions: everything is written, given back and written again, and the disk grows.
fn work(path: &Path, faults: &Arc<Faults>) -> Model {
    let mut model = Model(vec![vec![0xBB]; (SIZE / 256) as usize]);
    for session in 0..2u8 {
        let mut queue = images::queue();
        let Some(image) = open(&mut queue, path, faults) else { continue };
        let disk = queue.attach(&image).unwrap();
        let mut run = |request: Request| queue.block_on(disk.request(request)).unwrap().is_ok();
        for round in 0..300u64 {
            let (at, byte) = (round * 5 * CLUSTER % SIZE, 1 + (round % 119) as u8 + session * 120);
            let (at, len) = if round % 3 == 0 { (at + 256, 256) } else { (at, CLUSTER) };
            let done = run(Request::write(at, IoMem::from(vec![byte; len as usize])));
            model.note(at, len, byte, done);
            run(Request::read(at, IoMem::from(vec![0; 1024])));
            if round % 10 == 9 {
                let done = run(Request::write_zeroes(at - at % CLUSTER, CLUSTER));
                model.note(at - at % CLUSTER, CLUSTER, 0, done);
                run(Request::flush());
                run(Request::flush());
            }
        }
        let size = SIZE * (2 + u64::from(session));
        drop(queue.block_on(image.resize(size)).unwrap());
        drop(queue.block_on(disk.flush()).unwrap());
        // What an error has stopped is as after a power cut, and found by the next one.
        drop(queue.block_on(image.close()).unwrap());
    }
    model
}

fn judge(path: &Path, model: &Model, what: &str) {
    match tools::qemu_img(&["check".as_ref(), "-q".as_ref(), path.as_os_str()]) {
        Ok(_) | Err(ToolError::Failed { code: Some(3), .. }) => (),
        Err(error) => panic!("{what}: {error}"),
    }
    let mut opened = Opened::new(path, Default::default(), ImageOptions::new());
    let bytes = opened.read(0, SIZE as usize);
    for (number, (part, legal)) in bytes.chunks(256).zip(&model.0).enumerate() {
        let byte = part[0];
        let whole = part.iter().all(|one| *one == byte);
        assert!(whole && legal.contains(&byte), "{what}: place {number} has {byte}: {legal:?}");
    }
}

#[test]
fn every_point_is_passed() {
    if tools::missing("qemu-img") {
        return;
    }
    for event in PASSED {
        let directory = TempDir::new().unwrap();
        make(directory.path());
        let faults = Faults::new();
        faults.add(Rule::set_state(*event, 2));
        let path = directory.path().join("image");
        let model = work(&path, &faults);
        assert_eq!(faults.state(), 2, "nobody passed {event}");
        assert!(model.0.iter().all(|legal| legal.len() == 1), "{event}: nothing was to fail");
        if *event == Event::ClusterFree {
            judge(&path, &model, "without errors");
        }
    }
}

#[test]
fn an_error_behind_any_point_leaves_the_image_whole() {
    if tools::missing("qemu-img") {
        return;
    }
    let all = Ops::READ | Ops::WRITES | Ops::ZEROES | Ops::DISCARD;
    for event in PASSED {
        for (skip, errno) in [(0, libc::EIO), (1, libc::ENOSPC), (3, libc::EIO)] {
            let directory = TempDir::new().unwrap();
            make(directory.path());
            let faults = Faults::new();
            faults.add(Rule::new(all, Effect::Error(errno)).after_point(*event).after(skip));
            let path = directory.path().join("image");
            let model = work(&path, &faults);
            assert_eq!(faults.struck(), 1, "{event}: nothing failed");
            judge(&path, &model, &format!("an error {skip} operations after {event}"));
        }
    }
}

/// A request that is stopped where its cluster is copied keeps nobody from other clusters, and one of the same
/// cluster waits for it.
#[test]
fn a_request_that_is_stopped_keeps_only_its_own_cluster() {
    let directory = TempDir::new().unwrap();
    make(directory.path());
    let faults = Faults::new();
    let mut queue = images::queue();
    let image = open(&mut queue, &directory.path().join("image"), &faults).unwrap();
    let disk = queue.attach(&image).unwrap();
    faults.add(Rule::suspend(Event::CowWrite, "A"));
    let write = |at: u64, byte: u8| Request::write(at, IoMem::from(vec![byte; 100]));
    disk.queue(write(100, 1), 1).unwrap();
    while faults.stopped("A") == 0 {
        queue.wait().unwrap();
    }
    disk.queue(write(300, 2), 2).unwrap();
    queue
        .block_on(disk.write(8 * CLUSTER, IoMem::from(vec![3; 512]), Flags::empty()))
        .unwrap()
        .unwrap();
    for _ in 0..50 {
        queue.turn().unwrap();
    }
    assert_eq!(queue.completions().count(), 0, "both wait");
    assert_eq!(faults.release("A"), 1);
    queue.drain().unwrap();
    assert_eq!(queue.completions().filter(|one| one.code() == 0).count(), 2);
    let back = IoMem::from(vec![0; 512]);
    queue.block_on(disk.read(0, back.clone())).unwrap().unwrap();
    let mut expected = vec![0xBB; 512];
    expected[100..200].fill(1);
    expected[300..400].fill(2);
    assert_eq!(back.to_vec(), expected);
    queue.block_on(image.close()).unwrap().unwrap();
}
