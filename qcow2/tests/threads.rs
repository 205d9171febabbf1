//! An image starts no thread.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a failed step fails the test")]

use std::os::unix::fs::FileExt;

use blkring_engine::{Access, Flags, IoMem, OpenOptions, QueueOptions, QueueSeed, Storage};
use blkring_qcow2::{CreateOptions, FileOpener, Image, ImageOptions, Layout};

/// The threads of this process, by name, without those that the kernel runs for a ring when a call would block.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| {
        let name = std::fs::read_to_string(task.unwrap().path().join("comm")).ok()?;
        Some(name.trim_end().to_owned())
    });
    let mut names: Vec<String> = names.filter(|name| !name.starts_with("iou-wrk-")).collect();
    names.sort();
    names
}

/// Alone in its file, so that nothing else of this process starts a thread meanwhile.
#[test]
fn none_is_started_by_an_image() {
    let before = threads();
    let file = tempfile::NamedTempFile::new().unwrap();
    let layout = Layout::plan(&CreateOptions::new(64 << 20)).unwrap();
    file.as_file().set_len(layout.file_length).unwrap();
    for write in &layout.writes {
        file.as_file().write_all_at(&write.bytes, write.offset.get()).unwrap();
    }
    let mut queue = QueueSeed::new(QueueOptions::default()).unwrap().start().unwrap();
    let options = OpenOptions::new().access(Access::ReadWrite);
    let storage = Storage::open(file.path(), &options).unwrap();
    let (lane, opener) = (queue.lane(), FileOpener::default());
    let opened = Image::open(&lane, storage, &opener, ImageOptions::new().writable());
    let image = queue.block_on(opened).unwrap().unwrap();
    let disk = queue.attach(&image).unwrap();
    assert_eq!(threads(), before, "by opening");
    let all = async {
        for cluster in 0..64 {
            disk.write(cluster << 16, IoMem::from(vec![1; 65536]), Flags::empty()).await?;
        }
        disk.write_zeroes(1000, 300_000, Flags::MAY_UNMAP | Flags::FUA).await?;
        disk.discard(1 << 20, 1 << 20).await?;
        image.resize(128 << 20).await?;
        image.quiesce().await?.resume();
        disk.flush().await
    };
    queue.block_on(all).unwrap().unwrap();
    assert_eq!(threads(), before, "by requests");
    queue.block_on(image.close()).unwrap().unwrap();
    drop((disk, image, queue));
    assert_eq!(threads(), before, "by the end");
}
