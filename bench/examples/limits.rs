//! What the limits of a device's queue cost whoever takes them for limits of requests.
//!
//! ```text
//! limits DEVICE [MIB]
//! ```
//!
//! Reads the block device DEVICE from begin to end, MIB mebibytes at most (256), in direct requests of 1 MiB, one at a
//! time, at several values of `max_sectors_kb`, in three ways: each request as it is; cut into pieces of
//! `max_sectors_kb`, of which each waits for the one before; cut into the same pieces, submitted together. Needs root,
//! and sets `max_sectors_kb` back at the end. Nothing is written to the device.

use std::error::Error;
use std::fs;
use std::future::{Future, poll_fn};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::ExitCode;
use std::task::Poll;
use std::time::Instant;

use blkring_engine::{
    Cache, IoError, IoMem, Lane, OpenOptions, Queue, QueueOptions, QueueSeed, Storage,
};

/// Bytes of a request.
const REQUEST: u64 = 1 << 20;

/// The values of `max_sectors_kb`.
const LIMITS: [u64; 4] = [512, 128, 32, 4];

/// At the last limit, waiting for each piece takes so many times as long at least.
const GOAL: f64 = 4.0;

/// How a request is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Whole,
    Awaited,
    Together,
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (device, mebibytes) = match words.as_slice() {
        [device] => (device, 256),
        [device, mebibytes] => (device, mebibytes.parse()?),
        // A rate is no test, so there is nothing to do for whoever runs all examples.
        [] => {
            println!(
                "limits DEVICE [MIB]: reads DEVICE in whole requests and in pieces; needs root"
            );
            return Ok(ExitCode::SUCCESS);
        }
        _ => return Err("usage: limits DEVICE [MIB]".into()),
    };
    let limit = Limit::of(Path::new(device))?;
    let storage = Storage::open(Path::new(device), &OpenOptions::new().cache(Cache::Direct))?;
    let bytes = storage.size().min(mebibytes << 20) / REQUEST * REQUEST;
    if bytes == 0 {
        return Err("the device is shorter than one request".into());
    }
    let options = QueueOptions::with_requests(256);
    let mut bench = Bench { queue: QueueSeed::new(options)?.start()?, storage, bytes };
    println!("{} MiB in requests of 1 MiB, one at a time; MiB/s\n", bytes >> 20);
    println!("| max_sectors_kb | one request | pieces, each awaited | factor | pieces, together |");
    println!("|---:|---:|---:|---:|---:|");
    let mut last = 0.0;
    for kib in LIMITS {
        limit.set(kib)?;
        let rate = |bench: &mut Bench, way| bench.rate(way, kib << 10);
        // The first pass finds the disk asleep.
        rate(&mut bench, Way::Whole)?;
        let whole = rate(&mut bench, Way::Whole)?;
        let awaited = rate(&mut bench, Way::Awaited)?;
        let together = rate(&mut bench, Way::Together)?;
        last = whole / awaited;
        println!("| {kib} | {whole:.0} | {awaited:.0} | {last:.1} | {together:.0} |");
    }
    if last < GOAL {
        println!("\nThe factor at the last limit is below {GOAL}.");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

struct Bench {
    queue: Queue,
    storage: Storage,
    bytes: u64,
}

impl Bench {
    /// MiB a second of one pass.
    fn rate(&mut self, way: Way, piece: u64) -> Result<f64, Box<dyn Error>> {
        let mem = IoMem::aligned_zeroed(usize::try_from(REQUEST)?);
        let lane = self.queue.lane();
        let begin = Instant::now();
        for at in (0..self.bytes).step_by(usize::try_from(REQUEST)?) {
            let request = request(&self.storage, &lane, at, &mem, way, piece);
            self.queue.block_on(request)??;
        }
        Ok((self.bytes >> 20) as f64 / begin.elapsed().as_secs_f64())
    }
}

type Read<'a> = Pin<Box<dyn Future<Output = Result<(), IoError>> + 'a>>;

async fn request(
    storage: &Storage,
    lane: &Lane,
    at: u64,
    mem: &IoMem,
    way: Way,
    piece: u64,
) -> Result<(), IoError> {
    if way == Way::Whole {
        return storage.read(lane, at, mem).await;
    }
    let len = usize::try_from(piece.min(REQUEST)).expect("a piece is in memory");
    let mut together: Vec<Read<'_>> = Vec::new();
    for start in (0..mem.len()).step_by(len) {
        let part = mem.slice(start..(start + len).min(mem.len()));
        let offset = at + start as u64;
        let read: Read<'_> = Box::pin(async move { storage.read(lane, offset, &part).await });
        match way {
            Way::Together => together.push(read),
            _ => read.await?,
        }
    }
    all(together).await
}

/// Waits for all of them.
async fn all(mut reads: Vec<Read<'_>>) -> Result<(), IoError> {
    let mut result = Ok(());
    poll_fn(|cx| {
        reads.retain_mut(|read| match read.as_mut().poll(cx) {
            Poll::Ready(ended) => {
                if ended.is_err() {
                    result = ended;
                }
                false
            }
            Poll::Pending => true,
        });
        if reads.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    result
}

/// `max_sectors_kb` of a device, which has its old value again at the end.
struct Limit {
    path: PathBuf,
    before: String,
}

impl Limit {
    fn of(device: &Path) -> Result<Self, Box<dyn Error>> {
        let name = fs::canonicalize(device)?;
        let name = name.file_name().ok_or("this is no device")?.to_owned();
        let path = Path::new("/sys/block").join(name).join("queue/max_sectors_kb");
        let before = fs::read_to_string(&path)?;
        Ok(Limit { path, before })
    }

    fn set(&self, kib: u64) -> std::io::Result<()> {
        fs::write(&self.path, kib.to_string())
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        if let Err(error) = fs::write(&self.path, &self.before) {
            eprintln!("{} is not set back: {error}", self.path.display());
        }
    }
}
