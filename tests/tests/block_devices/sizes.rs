//! Devices and files that others make longer or shorter, and who hears of it.

use std::fs::File;
use std::future::Future;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::task::Poll;

use blkring_engine::{Cache, Flags, IoMem, RawDisk, SizeWatch, Storage};
use blkring_tests::mounts::SectorSize;
use blkring_tests::report::or_skip;

use super::setup::{MIB, Opened, device, queue, writable};

/// Whether a poll would tell of it: the kernel says what the event has counted.
fn is_readable(watch: &SizeWatch) -> bool {
    let path = format!("/proc/self/fdinfo/{}", watch.as_raw_fd());
    let text = std::fs::read_to_string(path).unwrap();
    let count = text.lines().find_map(|line| line.strip_prefix("eventfd-count:")).unwrap();
    count.trim() != "0"
}

#[test]
fn a_device_that_grows_is_heard_of() {
    let Some(device) = device(SectorSize::S512) else { return };
    for cache in [Cache::Cached, Cache::Direct] {
        let Some(()) = or_skip(device.resize(16 * MIB)) else { return };
        let raw = RawDisk::new(Storage::open(device.path(), &writable(cache)).unwrap());
        let mut queue = queue();
        let disk = queue.attach(&raw).unwrap();
        let watch = raw.watch_size().unwrap();
        let bytes = IoMem::from(vec![7; 4096]);
        let beyond = 20 * MIB;
        let refused = queue.block_on(disk.write(beyond, bytes.clone(), Flags::empty())).unwrap();
        assert_eq!(refused.unwrap_err().errno, libc::EIO);
        assert_eq!(queue.block_on(raw.refresh_size()).unwrap().unwrap(), 16 * MIB);
        assert!(!is_readable(&watch) && watch.take().is_none(), "nothing has changed");

        let Some(()) = or_skip(device.resize(32 * MIB)) else { return };
        assert_eq!((disk.size(), watch.take()), (16 * MIB, None), "nobody has looked");
        // Another thread looks, as one that is told by a management program would.
        let looking = Arc::clone(&raw);
        let size = std::thread::spawn(move || {
            let mut queue = super::setup::queue();
            queue.block_on(looking.refresh_size()).unwrap()
        });
        assert_eq!(size.join().unwrap().unwrap(), 32 * MIB);
        assert!(is_readable(&watch));
        assert_eq!(watch.take(), Some(32 * MIB));
        assert!(!is_readable(&watch) && watch.take().is_none(), "told once");
        assert_eq!((disk.size(), raw.storage().size()), (32 * MIB, 32 * MIB));
        queue.block_on(disk.write(beyond, bytes, Flags::FUA)).unwrap().unwrap();

        let Some(()) = or_skip(device.resize(16 * MIB)) else { return };
        queue.block_on(raw.refresh_size()).unwrap().unwrap();
        assert_eq!((watch.take(), disk.size()), (Some(16 * MIB), 16 * MIB));
        let back = IoMem::from(vec![0; 512]);
        let error = queue.block_on(disk.read(beyond, back)).unwrap().unwrap_err();
        assert_eq!(error.errno, libc::EIO);
        drop((disk, watch));
    }
}

#[test]
fn a_device_does_not_grow_by_our_doing() {
    let Some(device) = device(SectorSize::S512) else { return };
    let mut opened = Opened::new(device.path(), Cache::Direct);
    let grown = opened.run(|s, lane| async move { s.grow(&lane, 17 * MIB).await });
    assert!(grown.unwrap_err().is_no_space());
    let cut = opened.run(|s, lane| async move { s.resize(&lane, MIB).await });
    assert_eq!(cut.unwrap_err().errno, libc::ENOTSUP);
    opened.run(|s, lane| async move { s.resize(&lane, 16 * MIB).await }).unwrap();
    opened.run(|s, lane| async move { s.grow(&lane, MIB).await }).unwrap();
    let beyond = opened.zero(16 * MIB - 512, 1024, Flags::empty());
    assert!(beyond.unwrap_err().is_no_space());
    assert_eq!(opened.queue.counts().allocates, 0);
}

/// A file has what was written to it since it was opened, and what others did to it: neither is lost.
#[test]
fn a_file_that_others_change_is_looked_at_again() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(MIB).unwrap();
    let raw = RawDisk::new(Storage::open(file.path(), &writable(Cache::Cached)).unwrap());
    let mut queue = queue();
    let disk = queue.attach(&raw).unwrap();
    let (first, second) = (raw.watch_size().unwrap(), raw.watch_size().unwrap());
    File::options().write(true).open(file.path()).unwrap().set_len(3 * MIB - 100).unwrap();
    assert_eq!(queue.block_on(raw.refresh_size()).unwrap().unwrap(), 3 * MIB, "in whole sectors");
    queue
        .block_on(disk.write(3 * MIB - 512, IoMem::from(vec![7; 512]), Flags::empty()))
        .unwrap()
        .unwrap();
    // The disk is made longer by a queue of it: everybody else hears of that in the same way.
    let lane = queue.lane();
    queue.block_on(raw.resize(&lane, 4 * MIB)).unwrap().unwrap();
    for watch in [&first, &second] {
        assert!(is_readable(watch));
        assert_eq!((watch.take(), watch.take()), (Some(4 * MIB), None), "the last is told");
    }
    drop(first);
    queue.block_on(raw.resize(&lane, 2 * MIB)).unwrap().unwrap();
    assert_eq!(second.take(), Some(2 * MIB));
    assert_eq!(file.as_file().metadata().unwrap().len(), 2 * MIB);
}

fn ready<T>(poll: Poll<T>) -> Option<T> {
    match poll {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// A look at the size waits for a write that makes the file longer, and never forgets it.
#[test]
fn a_look_at_the_size_does_not_undo_a_growing_write() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut opened = Opened::new(file.path(), Cache::Cached);
    for round in 0..200u64 {
        let offset = round * 4096;
        let size = opened.run(|storage, lane| async move {
            let bytes = IoMem::from(vec![7; 4096]);
            let mut write = std::pin::pin!(storage.write(&lane, offset, &bytes, Flags::empty()));
            let mut look = std::pin::pin!(storage.refresh_size());
            let (mut written, mut size) = (None, None);
            // The write is begun before the look.
            std::future::poll_fn(|cx| {
                if written.is_none() {
                    written = ready(write.as_mut().poll(cx));
                }
                if size.is_none() {
                    size = ready(look.as_mut().poll(cx));
                }
                if written.is_some() && size.is_some() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            written.unwrap().unwrap();
            size.unwrap().unwrap()
        });
        assert_eq!(size, offset + 4096);
        assert_eq!(opened.storage.size(), offset + 4096);
    }
}
