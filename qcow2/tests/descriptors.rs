//! A queue outlives images by far: nothing of one that was closed is kept. Alone in its program, since it counts the
//! descriptors of the process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod backend;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use blkring_engine::{Access, Flags, IoMem, OpenOptions, Queue, QueueOptions, Storage, Turn};
use blkring_qcow2::{CreateOptions, FileOpener, Image, ImageOptions, Layout};

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn queue() -> Queue {
    backend::started(QueueOptions::default())
}

/// Opens the image, writes by way of both queues, closes it, and lets go of all handles.
fn cycle(queues: &mut [Queue; 2], path: &Path) {
    let storage = Storage::open(path, &OpenOptions::new().access(Access::ReadWrite)).unwrap();
    let (lane, opener) = (queues[0].lane(), FileOpener::default());
    let opening = Image::open(&lane, storage, &opener, ImageOptions::new().writable());
    let image = queues[0].block_on(opening).unwrap().unwrap();
    for queue in queues.iter_mut() {
        let disk = queue.attach(&image).unwrap();
        let write = async { disk.write(4096, IoMem::from(vec![7; 512]), Flags::empty()).await };
        queue.block_on(write).unwrap().unwrap();
    }
    // No handle is left, and the image can be closed all the same.
    queues[0].block_on(image.close()).unwrap().unwrap();
    drop(image);
    for queue in queues {
        while queue.turn().unwrap() == Turn::Busy {}
    }
}

#[test]
fn a_queue_keeps_no_descriptor_of_an_image_that_is_gone() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let options = CreateOptions::new(1 << 20);
    let layout = Layout::plan(&options).unwrap();
    file.as_file().set_len(layout.file_length).unwrap();
    for write in &layout.writes {
        file.as_file().write_all_at(&write.bytes, write.offset.get()).unwrap();
    }
    let mut queues = [queue(), queue()];
    // One of them is polled by its owner.
    queues[1].event_fd().unwrap();
    cycle(&mut queues, file.path());
    let before = descriptors();
    for _ in 0..50 {
        cycle(&mut queues, file.path());
    }
    assert_eq!(descriptors(), before);
}
