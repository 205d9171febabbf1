//! A crowd: several queues send random requests to one image and compare every read with a model.
//!
//! The disk is cut into *units*, and the units are dealt to *lanes* in turn: each lane sends one request at a time,
//! within units of its own, so what a unit must hold is known exactly. Units are smaller than clusters in the *fine*
//! part of the disk, where lanes of different queues share clusters and even blocks of the file, and larger than
//! clusters in the *coarse* part, where zero-writes and discards take whole clusters. They share L2 slices everywhere.

use std::collections::HashMap;
use std::future::poll_fn;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use blkring_engine::sim::Rng;
use blkring_engine::{Disk, Flags, IoMem};
use blkring_qcow2::Image;

use crate::images::Opened;

/// After so long without an end the crowd is taken for stuck.
const PATIENCE: Duration = Duration::from_secs(120);

/// The longest write, in bytes.
const LONGEST: u64 = 96 << 10;

/// How far a read reaches into the units of others, in bytes.
const REACH: u64 = 8 << 10;

/// How many send what.
#[derive(Debug, Clone, Copy)]
pub struct Crowd {
    /// Queues, each a thread.
    pub queues: usize,
    /// Lanes of each queue.
    pub lanes: usize,
    /// Requests of each lane.
    pub rounds: u64,
    /// Bytes of a fine unit.
    pub fine: u64,
    /// Bytes of a coarse unit.
    pub coarse: u64,
    /// Decides everything but the order of events.
    pub seed: u64,
}

/// What became of it.
#[derive(Debug)]
pub struct Ended {
    /// What the disk must hold now.
    pub contents: Vec<u8>,
    /// Requests sent.
    pub requests: u64,
    /// Requests that were sent while another queue had one in the driver.
    pub together: u64,
}

impl Crowd {
    /// Lets the queues loose on an image that holds `contents`, each on a thread of its own.
    ///
    /// # Panics
    /// When a request fails, when a read gives other bytes than the model, and when nothing ends for two minutes.
    pub fn run(self, image: &Arc<Image>, contents: Vec<u8>) -> Ended {
        assert_eq!(contents.len() as u64, image.info().virtual_size);
        self.run_within(image, contents)
    }

    /// The same on the first part of a disk that may grow meanwhile. Discards take whole clusters of that part.
    ///
    /// # Panics
    /// As [`Crowd::run`].
    pub fn run_within(self, image: &Arc<Image>, contents: Vec<u8>) -> Ended {
        let ground = Arc::new(Ground::new(self, contents, image.info().cluster_size));
        let (sender, receiver) = mpsc::channel();
        for queue in 0..self.queues {
            let (image, ground, sender) = (image.clone(), ground.clone(), sender.clone());
            thread::spawn(move || {
                // A panic is reported like a wrong byte; the unwinding stops at the thread's own things.
                let ended = catch_unwind(AssertUnwindSafe(|| drive(&image, &ground, queue)));
                drop((image, ground));
                // Nobody listens any more after another queue has failed.
                drop(sender.send(ended.unwrap_or_else(|_| Err(format!("queue {queue} panicked")))));
            });
        }
        let mut units = HashMap::new();
        for _ in 0..self.queues {
            match receiver.recv_timeout(PATIENCE) {
                Ok(Ok(own)) => units.extend(own),
                Ok(Err(message)) => panic!("{self:?}: {message}"),
                Err(_) => panic!("{self:?}: stuck: {:?}", image.statistics()),
            }
        }
        let ground = Arc::into_inner(ground).expect("the queues have let go of it");
        ground.end(units)
    }
}

/// What all lanes know.
struct Ground {
    crowd: Crowd,
    contents: Vec<u8>,
    cluster: u64,
    /// Where the coarse units begin.
    middle: u64,
    /// Requests in the driver, by queue.
    inside: Vec<AtomicU64>,
    requests: AtomicU64,
    together: AtomicU64,
}

/// The units of a lane that it has written, by where they begin.
type Units = HashMap<u64, Vec<u8>>;

impl Ground {
    fn new(crowd: Crowd, contents: Vec<u8>, cluster: u64) -> Self {
        let middle = contents.len() as u64 / 2 / crowd.coarse * crowd.coarse;
        Self {
            crowd,
            contents,
            cluster,
            middle,
            inside: (0..crowd.queues).map(|_| AtomicU64::new(0)).collect(),
            requests: AtomicU64::new(0),
            together: AtomicU64::new(0),
        }
    }

    fn size(&self) -> u64 {
        self.contents.len() as u64
    }

    /// A unit of lane number `lane` of all.
    fn unit(&self, lane: u64, rng: &mut Rng) -> Range<u64> {
        let lanes = (self.crowd.queues * self.crowd.lanes) as u64;
        let (part, unit) = match rng.below(3) {
            0 => (self.middle..self.size(), self.crowd.coarse),
            _ => (0..self.middle, self.crowd.fine),
        };
        let units = (part.end - part.start).div_ceil(unit);
        let own = (units + lanes - 1 - lane) / lanes;
        assert!(own > 0, "{:?}: too few units for so many lanes", self.crowd);
        let start = part.start + (rng.below(own) * lanes + lane) * unit;
        start..(start + unit).min(part.end)
    }

    /// What a discard of a range makes zero: the clusters that it covers whole.
    fn whole_clusters(&self, range: &Range<u64>) -> Range<u64> {
        let start = range.start.next_multiple_of(self.cluster);
        let end = if range.end == self.size() {
            range.end
        } else {
            range.end / self.cluster * self.cluster
        };
        start..end.max(start)
    }

    /// Counts a request of `queue` while it is in the driver.
    async fn counted<F: Future>(&self, queue: usize, request: F) -> F::Output {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let others = self.inside.iter().enumerate().filter(|(other, _)| *other != queue);
        if others.map(|(_, inside)| inside.load(Ordering::Relaxed)).any(|inside| inside > 0) {
            self.together.fetch_add(1, Ordering::Relaxed);
        }
        self.inside[queue].fetch_add(1, Ordering::Relaxed);
        let output = request.await;
        self.inside[queue].fetch_sub(1, Ordering::Relaxed);
        output
    }

    fn end(self, units: Units) -> Ended {
        let mut contents = self.contents;
        for (start, bytes) in units {
            let start = index(start);
            contents[start..start + bytes.len()].copy_from_slice(&bytes);
        }
        Ended {
            contents,
            requests: self.requests.into_inner(),
            together: self.together.into_inner(),
        }
    }
}

/// One queue: its lanes, until all have ended.
fn drive(image: &Arc<Image>, ground: &Arc<Ground>, queue: usize) -> Result<Units, String> {
    let mut opened = Opened::beside(image);
    let lanes = (0..ground.crowd.lanes).map(|lane| {
        let number = (lane * ground.crowd.queues + queue) as u64;
        let mut lane = Lane {
            ground: ground.clone(),
            disk: opened.disk.clone(),
            queue,
            number,
            rng: Rng::new(ground.crowd.seed ^ (number << 32)),
            units: Units::new(),
        };
        async move { lane.run().await.map(|()| lane.units) }
    });
    let ended = opened.run(join_all(lanes.collect()));
    ended.into_iter().try_fold(Units::new(), |mut units, own| {
        units.extend(own?);
        Ok(units)
    })
}

/// Runs futures side by side and waits for all of them.
pub async fn join_all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut open: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    let mut outputs: Vec<_> = open.iter().map(|_| None).collect();
    poll_fn(|cx| {
        for (place, output) in open.iter_mut().zip(&mut outputs) {
            let Some(future) = place else { continue };
            if let Poll::Ready(ready) = future.as_mut().poll(cx) {
                (*place, *output) = (None, Some(ready));
            }
        }
        if open.iter().all(Option::is_none) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    outputs.into_iter().map(|output| output.expect("all have ended")).collect()
}

struct Lane {
    ground: Arc<Ground>,
    disk: Disk,
    queue: usize,
    number: u64,
    rng: Rng,
    units: Units,
}

impl Lane {
    async fn run(&mut self) -> Result<(), String> {
        // Queues end at different times: the last ones go on alone.
        let rounds = self.ground.crowd.rounds * (4 + self.number % 3) / 5;
        for round in 0..rounds {
            let turn = self.turn().await;
            turn.map_err(|error| format!("lane {}, round {round}: {error}", self.number))?;
        }
        Ok(())
    }

    async fn turn(&mut self) -> Result<(), String> {
        let unit = self.ground.unit(self.number, &mut self.rng);
        let range = self.range(&unit);
        let (what, done) = self.change(&unit, range.clone()).await;
        done.map_err(|error| format!("{what} {range:?}: {error}"))?;
        if self.rng.one_in(2) {
            let compared = self.compare(&unit, range.clone()).await;
            compared.map_err(|error| format!("after {what} {range:?}: {error}"))?;
        }
        Ok(())
    }

    /// A part of a unit, often the whole, often whole sectors.
    fn range(&mut self, unit: &Range<u64>) -> Range<u64> {
        let len = unit.end - unit.start;
        let align = if self.rng.one_in(3) { 1 } else { 512.min(len) };
        match self.rng.below(4) {
            0 => unit.clone(),
            _ => {
                let start = self.rng.below(len) / align * align;
                let most = if self.rng.one_in(8) { len } else { LONGEST };
                let end = start + 1 + self.rng.below((len - start).min(most));
                unit.start + start..unit.start + end.next_multiple_of(align).min(len)
            }
        }
    }

    /// One random request, and its effect on the model.
    async fn change(
        &mut self,
        unit: &Range<u64>,
        range: Range<u64>,
    ) -> (&'static str, blkring_engine::Result<()>) {
        let (offset, len) = (range.start, range.end - range.start);
        let (ground, disk) = (self.ground.clone(), self.disk.clone());
        let fua = if self.rng.one_in(12) { Flags::FUA } else { Flags::empty() };
        match self.rng.below(16) {
            0 | 1 => {
                let flags = if self.rng.one_in(2) { Flags::MAY_UNMAP } else { Flags::empty() };
                self.set(unit, range, None);
                let request = disk.write_zeroes(offset, len, flags | fua);
                ("zero-write", ground.counted(self.queue, request).await)
            }
            2 => {
                let whole = ground.whole_clusters(&range);
                self.set(unit, whole, None);
                ("discard", ground.counted(self.queue, disk.discard(offset, len)).await)
            }
            3 if self.rng.one_in(4) => ("flush", ground.counted(self.queue, disk.flush()).await),
            3..=5 => ("read", Ok(())),
            _ => {
                let range = range.start..range.end.min(range.start + LONGEST);
                let seed = self.rng.next_u64();
                let bytes: Vec<u8> = range.clone().map(|at| noise(seed, at)).collect();
                self.set(unit, range, Some(&bytes));
                let mem = if seed & 1 == 0 { IoMem::aligned(&bytes) } else { IoMem::from(bytes) };
                ("write", ground.counted(self.queue, disk.write(offset, mem, fua)).await)
            }
        }
    }

    /// The bytes that a unit must hold.
    fn unit(&mut self, unit: &Range<u64>) -> &mut Vec<u8> {
        let ground = &self.ground;
        let initial = || ground.contents[index(unit.start)..index(unit.end)].to_vec();
        self.units.entry(unit.start).or_insert_with(initial)
    }

    fn set(&mut self, unit: &Range<u64>, range: Range<u64>, bytes: Option<&[u8]>) {
        if range.is_empty() {
            return;
        }
        let start = unit.start;
        let own = &mut self.unit(unit)[index(range.start - start)..index(range.end - start)];
        match bytes {
            Some(bytes) => own.copy_from_slice(bytes),
            None => own.fill(0),
        }
    }

    /// Reads a part of a unit, sometimes with what lies around it, and compares the part.
    async fn compare(&mut self, unit: &Range<u64>, range: Range<u64>) -> Result<(), String> {
        let reach = if self.rng.one_in(3) { self.rng.below(REACH) } else { 0 };
        let start = range.start.saturating_sub(reach);
        let end = (range.end + reach).min(self.ground.size());
        let mem = IoMem::aligned(&vec![0xEE; index(end - start)]);
        let (ground, disk) = (self.ground.clone(), self.disk.clone());
        let read = ground.counted(self.queue, disk.read(start, mem.clone())).await;
        read.map_err(|error| format!("read {start}..{end}: {error}"))?;
        let found = mem.slice(index(range.start - start)..index(range.end - start)).to_vec();
        let first = unit.start;
        let wanted = &self.unit(unit)[index(range.start - first)..index(range.end - first)];
        same(&found, wanted, range.start)
    }
}

/// Whether bytes are what they must be; if not, where they first differ.
///
/// # Errors
/// A description of the difference. `offset` is where the bytes begin.
pub fn same(found: &[u8], wanted: &[u8], offset: u64) -> Result<(), String> {
    if found == wanted {
        return Ok(());
    }
    let differs = found.iter().zip(wanted).position(|(a, b)| a != b);
    let Some(at) = differs else {
        return Err(format!("{} bytes instead of {}", found.len(), wanted.len()));
    };
    let count = found.iter().zip(wanted).filter(|(a, b)| a != b).count();
    Err(format!(
        "{count} wrong bytes, the first at {}: {:#04x} instead of {:#04x}",
        offset + at as u64,
        found[at],
        wanted[at],
    ))
}

/// A byte that is different for most seeds and places.
pub fn noise(seed: u64, at: u64) -> u8 {
    (seed.wrapping_add(at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("the disk fits into memory")
}
