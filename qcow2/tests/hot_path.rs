//! The hot path allocates nothing once warm: reads and overwrites of mapped clusters, from submission to completion.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod backend;

use std::path::Path;

use allocation_counter::measure;
use blkring_engine::{
    Access, BufferPool, Flags, IoMem, OpenOptions, Queue, QueueOptions, Request, Storage,
};
use blkring_qcow2::{CreateOptions, FileOpener, Image, ImageOptions, Layout};

const REQUESTS: u64 = 32;

/// One round: as many requests as fit, each at another place, and their completions.
fn round(queue: &mut Queue, disk: &blkring_engine::Disk, mem: &IoMem) {
    for i in 0..REQUESTS {
        let offset = i * 5 * 65536 % disk.size() + 4096;
        let request = if i % 2 == 0 {
            Request::read(offset, mem.clone())
        } else {
            Request::write(offset, mem.clone())
        };
        disk.queue(request, i).unwrap();
    }
    let mut answered = 0;
    while answered < REQUESTS {
        queue.wait().unwrap();
        answered += queue.completions().inspect(|c| assert_eq!(c.code(), 0)).count() as u64;
    }
}

fn warm_allocations(path: &Path) -> u64 {
    let layout = Layout::plan(&CreateOptions::new(64 << 20)).unwrap();
    let mut bytes = vec![0; usize::try_from(layout.file_length).unwrap()];
    for write in &layout.writes {
        let at = usize::try_from(write.offset.get()).unwrap();
        bytes.resize(bytes.len().max(at + write.bytes.len()), 0);
        bytes[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
    }
    std::fs::write(path, &bytes).unwrap();
    let options = QueueOptions::with_requests(usize::try_from(REQUESTS).unwrap());
    let mut queue = backend::started(options);
    let storage = Storage::open(path, &OpenOptions::new().access(Access::ReadWrite)).unwrap();
    let lane = queue.lane();
    let opener = FileOpener::default();
    let opening = Image::open(&lane, storage, &opener, ImageOptions::new().writable());
    let image = queue.block_on(opening).unwrap().unwrap();
    let disk = queue.attach(&image).unwrap();
    let buffer = BufferPool::new(4096).try_take(4096).unwrap();
    let mem = buffer.mem();
    queue
        .block_on(async {
            for i in 0..REQUESTS {
                disk.write(i * 5 * 65536 + 4096, mem.clone(), Flags::empty()).await.unwrap();
            }
            disk.flush().await.unwrap();
        })
        .unwrap();
    for _ in 0..50 {
        round(&mut queue, &disk, &mem);
    }
    // Lists grow to the largest number of tasks that were ever woken at once, which is a matter of timing: warm is
    // when a run of rounds needs no more. An allocation for each request would show in every run.
    let mut run = || {
        let rounds = || (0..100).for_each(|_| round(&mut queue, &disk, &mem));
        measure(rounds).count_total
    };
    let counted = (0..20).map(|_| run()).min().unwrap();
    queue.block_on(image.close()).unwrap().unwrap();
    counted
}

#[test]
fn reads_and_overwrites_allocate_nothing() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(warm_allocations(&directory.path().join("image")), 0);
}

/// Zeros over a part of a cluster are written, and take no memory by the size of the request.
#[test]
fn a_zero_write_takes_no_memory_for_its_zeros() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = CreateOptions::new(64 << 20).cluster_size(2 << 20);
    let layout = Layout::plan(&options).unwrap();
    let mut bytes = vec![0; usize::try_from(layout.file_length).unwrap()];
    for write in &layout.writes {
        let at = usize::try_from(write.offset.get()).unwrap();
        bytes[at..at + write.bytes.len()].copy_from_slice(&write.bytes);
    }
    std::fs::write(file.path(), &bytes).unwrap();
    let mut queue = backend::started(QueueOptions::default());
    let storage =
        Storage::open(file.path(), &OpenOptions::new().access(Access::ReadWrite)).unwrap();
    let (lane, opener) = (queue.lane(), FileOpener::default());
    let opening = Image::open(&lane, storage, &opener, ImageOptions::new().writable());
    let image = queue.block_on(opening).unwrap().unwrap();
    let disk = queue.attach(&image).unwrap();
    let (start, len) = (512, (2 << 20) - 1024);
    let written = IoMem::from(vec![7; 2 << 20]);
    queue.block_on(disk.write(0, written, Flags::empty())).unwrap().unwrap();
    let mut zero = || {
        measure(|| {
            queue.block_on(disk.write_zeroes(start, len, Flags::empty())).unwrap().unwrap();
        })
        .bytes_total
    };
    zero();
    let bytes = zero();
    assert!(bytes < 32 << 10, "{bytes} bytes");
    let back = IoMem::from(vec![1; 2 << 20]);
    queue.block_on(disk.read(0, back.clone())).unwrap().unwrap();
    let back = back.to_vec();
    assert!(back[512..(2 << 20) - 512].iter().all(|&byte| byte == 0));
    assert!(back[..512].iter().chain(&back[(2 << 20) - 512..]).all(|&byte| byte == 7));
}
