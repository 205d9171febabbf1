//! The main job on disks in memory: what is right is verified, and every kind of damage is found where it is.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a failed step fails the test")]

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use blkring_bench::job::{self, Counters, JobError, Phase, Settings, Subject};
use blkring_bench::plan::{BLOCK, Plan, STRIDE};
use blkring_bench::verify::{seal, verify};
use blkring_engine::{
    Action, Choice, Context, Disk, Flags, IoError, Operation, Queue, QueueOptions, QueueSeed,
    RawDisk, Request, Result, Service, Storage, Target, Topology,
};

const SIZE: u64 = 32 * STRIDE;

fn memory(bytes: Vec<u8>) -> Arc<RawDisk> {
    let limit = bytes.len();
    RawDisk::new(Storage::in_memory("memory", bytes, limit))
}

fn blank() -> Arc<RawDisk> {
    memory(vec![0; usize::try_from(SIZE).unwrap()])
}

fn plan() -> Plan {
    Plan::new(SIZE, 3, 2000, 11).unwrap()
}

fn settings() -> Settings {
    Settings {
        depth: 8,
        reads: 1000,
        flush_interval: Some(100),
        write_flags: Flags::empty(),
        backend: Choice::Ring,
    }
}

fn queue() -> Queue {
    QueueSeed::new(QueueOptions::default()).unwrap().start().unwrap()
}

/// What is done wrong on the way to the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// The write of this number is answered and not done.
    LostWrite(u64),
    /// The write of this number goes to the next block.
    MisplacedWrite(u64),
    /// The write of this number fails.
    FailedWrite(u64),
}

/// A raw disk with a fault before it.
struct Faulty {
    disk: Arc<RawDisk>,
    fault: Fault,
    writes: AtomicU64,
}

impl Target for Faulty {
    async fn run(self: Arc<Self>, context: Context, request: Request) -> Result<()> {
        let mut request = request;
        if let Action::Write(_) = request.action {
            let number = self.writes.fetch_add(1, Ordering::Relaxed);
            match self.fault {
                Fault::LostWrite(at) if at == number => return Ok(()),
                Fault::MisplacedWrite(at) if at == number => request.offset ^= BLOCK,
                Fault::FailedWrite(at) if at == number => {
                    let offset = request.offset;
                    return Err(IoError::new(self.path(), Operation::Write, offset, libc::ENOSPC));
                }
                _ => (),
            }
        }
        self.disk.clone().run(context, request).await
    }

    fn service(&self) -> Option<&Arc<Service>> {
        None
    }

    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn topology(&self) -> Topology {
        self.disk.topology()
    }

    fn path(&self) -> &Arc<str> {
        self.disk.path()
    }
}

struct Tested(Arc<Faulty>);

impl Subject for Tested {
    fn attach(&self, queue: &mut Queue) -> io::Result<Disk> {
        queue.attach(&self.0)
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

fn tested(fault: Fault) -> Tested {
    Tested(Arc::new(Faulty { disk: blank(), fault, writes: AtomicU64::new(0) }))
}

fn verify_disk(disk: &Arc<RawDisk>) -> std::result::Result<Plan, JobError> {
    let mut queue = queue();
    let attached = queue.attach(disk).unwrap();
    verify(&mut queue, &attached).map(|(plan, _)| plan)
}

/// The bytes of a finished run.
fn finished() -> Vec<u8> {
    let tested = tested(Fault::Nothing);
    job::run(&tested, &plan(), &settings()).unwrap();
    let disk = &tested.0.disk;
    let mut queue = queue();
    let attached = queue.attach(disk).unwrap();
    seal(&mut queue, &attached, &plan()).unwrap();
    disk.storage().memory_contents().unwrap()
}

#[test]
fn a_run_is_verified_and_counted() {
    let tested = tested(Fault::Nothing);
    let reports = job::run(&tested, &plan(), &settings()).unwrap();
    let counted: Vec<_> =
        reports.iter().map(|report| (report.name, report.latencies.count())).collect();
    assert_eq!(counted, [("fill", 32), ("overwrite", 2000), ("read", 1000)]);
    assert_eq!(tested.0.writes.load(Ordering::Relaxed), 2032);
    // At least the flushes at the end of the phases, and one of each queue for each 100 of its overwrites.
    let syncs: Vec<u64> = reports.iter().map(|report| report.counters.syncs).collect();
    assert!((1..=3).contains(&syncs[0]) && (7..=21).contains(&syncs[1]), "{syncs:?}");
    assert_eq!(syncs[2], 0);
    assert_eq!(Phase::ALL.map(Phase::name), ["fill", "overwrite", "read"]);
    assert_eq!(verify_disk(&memory(finished())).unwrap(), plan());
}

#[test]
fn two_runs_write_the_same_bytes() {
    assert!(finished() == finished());
}

#[test]
fn any_flipped_byte_is_found_where_it_is() {
    let good = finished();
    let written = good.chunks(usize::try_from(BLOCK).unwrap()).rposition(|block| block[9] != 0);
    let written = written.unwrap() as u64 * BLOCK + 9;
    let never =
        good.chunks(usize::try_from(BLOCK).unwrap()).position(|b| b.iter().all(|b| *b == 0));
    let never = never.unwrap() as u64 * BLOCK + 4095;
    for at in [0, 9, 63, 64, 4095, 4096, SIZE / 2, written, never, SIZE - 1] {
        let mut bytes = good.clone();
        bytes[usize::try_from(at).unwrap()] ^= 0x40;
        match verify_disk(&memory(bytes)) {
            Err(JobError::Mismatch(mismatch)) => {
                let found = mismatch.difference;
                assert_eq!((found.offset, found.found), (at, found.expected ^ 0x40));
            }
            other => panic!("byte {at}: {other:?}"),
        }
    }
}

#[test]
fn what_is_no_finished_run_is_refused() {
    assert!(matches!(verify_disk(&blank()), Err(JobError::NoLabel)));
    assert!(matches!(verify_disk(&memory(vec![0; 512])), Err(JobError::NoLabel)));
    let mut bytes = finished();
    bytes.truncate(bytes.len() - 4096);
    let refused = verify_disk(&memory(bytes));
    assert!(matches!(refused, Err(JobError::Size { expected: SIZE, .. })), "{refused:?}");
}

/// Without overwrites no later write hides the fault, and so many reads meet every block.
#[test]
fn a_write_that_is_lost_or_misplaced_is_noticed() {
    let plan = Plan::new(SIZE, 3, 0, 11).unwrap();
    let settings = Settings { reads: 20_000, ..settings() };
    for fault in [Fault::LostWrite(5), Fault::LostWrite(31), Fault::MisplacedWrite(20)] {
        let failed = job::run(&tested(fault), &plan, &settings).err();
        assert!(matches!(failed, Some(JobError::Mismatch(_))), "{failed:?}");
    }
}

#[test]
fn an_error_of_one_queue_ends_the_run() {
    for at in [0, 31, 32, 2031] {
        match job::run(&tested(Fault::FailedWrite(at)), &plan(), &settings()) {
            Err(JobError::Request(error)) => assert_eq!(error.errno, libc::ENOSPC),
            other => panic!("{:?}", other.err()),
        }
    }
}
