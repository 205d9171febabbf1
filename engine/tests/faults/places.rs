//! The same storage in several places.

use super::backend;
use std::sync::Arc;

use blkring_engine::faults::Faults;
use blkring_engine::sim::{SimDisk, SimOptions};
use blkring_engine::{
    Access, Cache, OpenOptions, Queue, QueueOptions, QueueSeed, RawDisk, Storage,
};
use tempfile::NamedTempFile;

/// Bytes of every disk.
pub const SIZE: usize = 1 << 20;

/// Where a disk is, with what must stay about.
pub enum Place {
    File(NamedTempFile, Cache),
    Memory,
    Sim(SimDisk),
}

impl Place {
    pub fn all() -> Vec<Place> {
        let file = || {
            // Temporary directories are often in memory, where there is no direct I/O.
            let file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
            file.as_file().set_len(SIZE as u64).unwrap();
            file
        };
        let sim = SimDisk::default();
        sim.create_file("disk", &vec![0; SIZE]);
        vec![
            Place::File(file(), Cache::Cached),
            Place::File(file(), Cache::Direct),
            Place::Memory,
            Place::Sim(sim),
        ]
    }

    pub fn name(&self) -> &'static str {
        match self {
            Place::File(_, Cache::Direct) => "direct",
            Place::File(..) => "cached",
            Place::Memory => "memory",
            Place::Sim(_) => "sim",
        }
    }

    pub fn storage(&self, faults: &Arc<Faults>) -> Storage {
        match self {
            Place::File(file, cache) => {
                let options = OpenOptions::new().access(Access::ReadWrite).cache(*cache);
                Storage::open(file.path(), &options.faults(faults)).unwrap()
            }
            Place::Memory => Storage::in_memory("memory", vec![0; SIZE], SIZE).with_faults(faults),
            Place::Sim(disk) => disk.storage("disk", SimOptions::aligned(512)).with_faults(faults),
        }
    }

    pub fn disk(&self, faults: &Arc<Faults>) -> Arc<RawDisk> {
        RawDisk::new(self.storage(faults))
    }

    /// A queue with a ring for files, without one otherwise.
    pub fn queue(&self, requests: usize) -> Queue {
        let options = QueueOptions::with_requests(requests);
        let seed = match self {
            Place::File(..) => return backend::started(options),
            _ => QueueSeed::without_ring(options),
        };
        seed.start().unwrap()
    }

    /// What the kernel does by itself and a simulated one does not.
    pub fn step(&self) {
        if let Place::Sim(disk) = self {
            while disk.advance(0) {}
        }
    }
}

/// Turns the queue until nothing is left to do, or nothing can be done: some requests may be kept.
pub fn turn(queue: &mut Queue, place: &Place) {
    for _ in 0..200 {
        queue.turn().unwrap();
        place.step();
        if matches!(place, Place::File(..)) {
            std::thread::yield_now();
        }
    }
}

/// Turns the queue until this is so.
pub fn turn_until(queue: &mut Queue, place: &Place, mut is_so: impl FnMut(&mut Queue) -> bool) {
    while !is_so(queue) {
        turn(queue, place);
    }
}

/// Turns the queue until every request is answered.
pub fn drain(queue: &mut Queue, place: &Place) {
    match place {
        Place::File(..) => queue.drain().unwrap(),
        _ => {
            while queue.unfinished() > 0 {
                queue.turn().unwrap();
                place.step();
            }
        }
    }
}
