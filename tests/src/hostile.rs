//! An image from a stranger, and everything that a guest may ask of it.

use std::io;
use std::path::Path;

use blkring_engine::{
    Access, Action, Flags, IoMem, OpenOptions, Queue, QueueOptions, QueueSeed, Request, Storage,
};
use blkring_qcow2::{CreateOptions, FileOpener, Image, ImageOptions, Layout, OpenError};

/// A file in memory grows up to this, in bytes.
const ROOM: usize = 4 << 20;

/// What became of an image.
pub struct Tried {
    /// Whether it could be opened for writing.
    pub opened: Result<(), OpenError>,
    /// The error numbers of the requests that failed, with what they were.
    pub failed: Vec<(String, i32)>,
    /// The file as it is afterwards, if it was in memory.
    pub contents: Option<Vec<u8>>,
}

/// A queue for files in memory.
///
/// # Panics
/// Never: it asks nothing of the kernel.
pub fn queue_in_memory() -> Queue {
    let seed = QueueSeed::without_ring(QueueOptions::default());
    seed.start().expect("a queue without a ring asks nothing of the kernel")
}

/// Opens the image of these bytes for writing and sends `requests`, one after the other, a flush, and the close.
///
/// # Panics
/// If anything hangs.
pub fn try_in_memory(bytes: &[u8], requests: impl FnOnce(&Image) -> Vec<Request>) -> Tried {
    let storage = Storage::in_memory("hostile", bytes.to_vec(), ROOM);
    try_on(&mut queue_in_memory(), storage, requests)
}

/// The same with a file.
///
/// # Panics
/// If the ring fails.
pub fn try_on(
    queue: &mut Queue,
    storage: Storage,
    requests: impl FnOnce(&Image) -> Vec<Request>,
) -> Tried {
    let lane = queue.lane();
    let opener = FileOpener::default();
    let options = ImageOptions::new().writable();
    let opened = queue.block_on(Image::open(&lane, storage, &opener, options));
    let image = match opened.expect("the ring works") {
        Err(error) => return Tried { opened: Err(error), failed: Vec::new(), contents: None },
        Ok(image) => image,
    };
    let mut failed = Vec::new();
    let disk = queue.attach(&image).expect("the service can be watched");
    for request in requests(&image).into_iter().chain([Request::flush()]) {
        let what = name(&request);
        let done = queue.block_on(disk.request(request)).expect("the ring works");
        if let Err(error) = done {
            assert!(error.to_string().contains(&**image.storage().path()), "{error}");
            failed.push((what, error.errno));
        }
    }
    if let Err(error) = queue.block_on(image.close()).expect("the ring works") {
        failed.push(("close".to_owned(), error.errno));
    }
    let contents = image.storage().memory_contents();
    Tried { opened: Ok(()), failed, contents }
}

fn name(request: &Request) -> String {
    let verb = match request.action {
        Action::Read(_) => "read",
        Action::Write(_) => "write",
        Action::WriteZeroes(_) => "zero-write",
        Action::Discard(_) => "discard",
        _ => "flush",
    };
    format!("{verb} {} {}", request.offset, request.len())
}

/// Requests of every kind, at the ends of the disk, around the first clusters and in each of the first tables.
pub fn everything(image: &Image) -> Vec<Request> {
    let (size, cluster) = (image.info().virtual_size, image.info().cluster_size);
    let table = cluster / 8 * cluster;
    let places = [0, cluster, 3 * cluster - 100, table, 2 * table + cluster, size / 2, size];
    let mut requests = Vec::new();
    for at in places.into_iter().filter(|at| *at < size).chain([size.saturating_sub(2000)]) {
        let within = |len: u64| len.min(size - at);
        let bytes = |len: u64| vec![0x6B; usize::try_from(within(len)).expect("small")];
        let long = (2 * cluster).min(200_000);
        requests.push(Request::read(at, IoMem::from(bytes(long))));
        requests.push(Request::write(at, IoMem::from(bytes(100))));
        requests.push(Request::write_zeroes(at, within(3000)));
        requests.push(Request::write(at, IoMem::from(bytes(long))).with(Flags::FUA));
        requests.push(Request::write_zeroes(at, within(long)).with(Flags::MAY_UNMAP));
        requests.push(Request::discard(at, within(3 * cluster)));
        requests.push(Request::write(at, IoMem::from(bytes(3000))));
        requests.push(Request::read(at, IoMem::from(bytes(long))));
    }
    requests
}

/// A sound image in memory: data in the first tables, and every kind of entry.
///
/// # Panics
/// If it cannot be made.
pub fn sample(cluster_size: u64) -> Vec<u8> {
    let table = cluster_size / 8 * cluster_size;
    let options = CreateOptions::new(4 * table).cluster_size(cluster_size);
    let layout = Layout::plan(&options).expect("the options are sound");
    let mut bytes = vec![0; usize::try_from(layout.file_length).expect("small")];
    for write in &layout.writes {
        let start = usize::try_from(write.offset.get()).expect("small");
        bytes[start..start + write.bytes.len()].copy_from_slice(&write.bytes);
    }
    let tried = try_in_memory(&bytes, |_| {
        let cluster = usize::try_from(cluster_size).expect("small");
        let mut requests = Vec::new();
        for start in [0, table, 2 * table] {
            requests.push(Request::write(start, IoMem::from(vec![0x42; 3 * cluster])));
            requests.push(Request::write_zeroes(start + cluster_size, cluster_size));
            requests.push(Request::discard(start + 2 * cluster_size, cluster_size));
        }
        requests
    });
    assert!(tried.opened.is_ok() && tried.failed.is_empty(), "{:?}", tried.failed);
    tried.contents.expect("it was in memory")
}

/// Runs `requests` on a file through a ring, as a process of its own does: what memory that took at most, in KiB.
///
/// # Errors
/// If the kernel does not say.
///
/// # Panics
/// If the file cannot be opened at all.
pub fn measured(path: &Path) -> io::Result<(Tried, u64)> {
    let mut queue = crate::images::queue();
    // The ring and what the process needs anyway.
    let before = peak()?;
    let options = OpenOptions::new().access(Access::ReadWrite);
    let storage = Storage::open(path, &options).unwrap_or_else(|error| panic!("{error}"));
    let tried = try_on(&mut queue, storage, everything);
    Ok((tried, peak()? - before))
}

/// The largest resident size of this process so far, in KiB.
fn peak() -> io::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let parsed = number.and_then(|number| number.trim().parse().ok());
    parsed.ok_or_else(|| io::Error::other("no VmHWM in /proc/self/status"))
}
