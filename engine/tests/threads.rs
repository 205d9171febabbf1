//! No thread is started unless somebody asks for it.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a failed step fails the test")]

use blkring_engine::{
    Access, Cache, Flags, IoMem, OpenOptions, QueueOptions, QueueSeed, RawDisk, Storage,
};

/// The threads of this process, by name. Those that the kernel runs for a ring, when a call would block, are its own:
/// nobody starts them here, and they share nothing with the process but its memory.
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
fn none_is_started() {
    let before = threads();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    for cache in [Cache::Cached, Cache::Direct] {
        let options = OpenOptions::new().access(Access::ReadWrite).cache(cache);
        let raw = RawDisk::new(Storage::open(file.path(), &options).unwrap());
        let seed = QueueSeed::new(QueueOptions::default()).unwrap();
        assert_eq!(threads(), before, "by opening");
        let mut queue = seed.start().unwrap();
        let (disk, lane) = (queue.attach(&raw).unwrap(), queue.lane());
        queue.event_fd().unwrap();
        let all = async {
            disk.write(0, IoMem::from(vec![1; 65536]), Flags::empty()).await?;
            disk.write(100, IoMem::from(vec![1; 1000]), Flags::FUA).await?;
            disk.read(0, IoMem::from(vec![1; 65536])).await?;
            disk.write_zeroes(1000, 9000, Flags::empty()).await?;
            disk.discard(0, 65536).await?;
            raw.resize(&lane, 2 << 20).await?;
            raw.quiesce(&lane).await?.resume();
            disk.flush().await
        };
        queue.block_on(all).unwrap().unwrap();
        assert_eq!(threads(), before, "by requests");
        drop((disk, queue, raw));
        assert_eq!(threads(), before, "by the end");
    }
}
