//! F90: made on one thread, used on a second, dropped on a third. What may go from thread to thread does, and the rest
//! does not compile: see the documentation of `Queue` and of `Disk`.

use std::sync::Arc;
use std::thread;

use blkring_engine::{
    Access, Cache, Flags, IoMem, OpenOptions, QueueOptions, QueueSeed, RawDisk, Storage,
};
use blkring_qcow2::{CreateOptions, Image, ImageOptions};
use blkring_tests::images::{Opened, create, queue, try_open};

/// Runs on a thread of its own, to its end.
fn elsewhere<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(work).join().expect("the thread is content"))
}

#[test]
fn f90_a_ring_made_on_one_thread_is_started_on_another() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.raw");
    std::fs::write(&path, vec![0; 65536]).unwrap();
    let raw = elsewhere(|| {
        let options = OpenOptions::new().access(Access::ReadWrite);
        RawDisk::new(Storage::open(&path, &options).unwrap())
    });
    let seed = elsewhere(|| QueueSeed::new(QueueOptions::default()).unwrap());
    let raw = elsewhere(move || {
        let mut queue = seed.start().unwrap();
        let disk = queue.attach(&raw).unwrap();
        let write = disk.write(512, IoMem::from(vec![9; 512]), Flags::FUA);
        queue.block_on(write).unwrap().unwrap();
        raw
    });
    elsewhere(move || drop(raw));
    assert_eq!(std::fs::read(&path).unwrap()[512..1024], [9; 512]);
    // One that is never started is dropped anywhere.
    let seed = elsewhere(|| QueueSeed::new(QueueOptions::default()).unwrap());
    elsewhere(move || drop(seed));
}

#[test]
fn f90_an_image_opened_on_one_thread_is_used_on_a_second_and_dropped_on_a_third() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("disk.qcow2");
    create(&path, &CreateOptions::new(1 << 20));
    let open = || -> Arc<Image> {
        let options = ImageOptions::new().writable();
        try_open(&mut queue(), &path, Cache::Cached, options).unwrap()
    };
    let image = elsewhere(open);
    let image = elsewhere(move || {
        let mut opened = Opened::beside(&image);
        let disk = opened.disk.clone();
        let write = disk.write(0, IoMem::from(vec![9; 65536]), Flags::FUA);
        opened.run(write).unwrap();
        image
    });
    elsewhere(move || {
        assert_eq!(Arc::strong_count(&image), 1, "the queue has let go");
        drop(image);
    });
    // The file, and its lock, are free.
    let image = elsewhere(open);
    let mut opened = Opened::beside(&image);
    drop(image);
    assert_eq!(opened.read(0, 65536), vec![9; 65536]);
    opened.close();
}
