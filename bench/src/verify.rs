//! Verifying an image of the main job, byte by byte, by its label alone.

use std::time::Instant;

use blkring_engine::{BufferPool, Completion, Disk, Flags, IoMem, Queue, Request};

use crate::job::{Counters, JobError, Mismatch, PhaseReport};
use crate::label;
use crate::pattern::Difference;
use crate::plan::{BLOCK, Plan};
use crate::worker::check;
use blkring_engine::Histogram;

/// Bytes of one read: a multiple of the block.
const CHUNK: u64 = 256 << 10;
/// Reads in flight.
const DEPTH: usize = 8;

/// Writes the label, when everything else is written, and makes it durable.
///
/// # Errors
/// Of the requests, or of the queue.
pub fn seal(queue: &mut Queue, disk: &Disk, plan: &Plan) -> Result<(), JobError> {
    let mem = aligned(BLOCK);
    mem.copy_in(0, &label::encode(plan));
    queue.block_on(async {
        disk.write(0, mem, Flags::empty()).await?;
        disk.flush().await
    })??;
    Ok(())
}

/// Reads the whole of `disk` and compares every byte with what the label says; the plan, and how long the reads took.
///
/// # Errors
/// [`JobError::Mismatch`] where a byte differs, [`JobError::NoLabel`] if there is no label; of the requests, or of the
/// queue.
pub fn verify(queue: &mut Queue, disk: &Disk) -> Result<(Plan, PhaseReport), JobError> {
    let begun = Instant::now();
    let plan = read_label(queue, disk)?;
    let mut pass = Pass {
        generations: plan.generations(),
        plan,
        latencies: Histogram::default(),
        bytes: vec![0; usize::try_from(CHUNK).expect("small")],
    };
    let mut slots: Vec<(IoMem, u64, Instant)> =
        (0..DEPTH).map(|_| (aligned(CHUNK), 0, begun)).collect();
    let mut free: Vec<usize> = (0..DEPTH).collect();
    let mut chunks = (0..plan.size()).step_by(usize::try_from(CHUNK).expect("small"));
    loop {
        while let Some(slot) = free.pop() {
            let Some(offset) = chunks.next() else {
                free.push(slot);
                break;
            };
            let len = usize::try_from(CHUNK.min(plan.size() - offset)).expect("small");
            let mem = slots[slot].0.slice(0..len);
            slots[slot].1 = offset;
            slots[slot].2 = Instant::now();
            queue.turn()?;
            if disk.queue(Request::read(offset, mem), slot as u64).is_err() {
                unreachable!("every queue has room for a few requests");
            }
        }
        if free.len() == DEPTH {
            break;
        }
        queue.wait()?;
        for Completion { user_data, result, .. } in queue.completions() {
            result?;
            let slot = usize::try_from(user_data).expect("an index of slots");
            let (mem, offset, begun) = &slots[slot];
            pass.latencies.record(begun.elapsed());
            pass.look_at(*offset, mem)?;
            free.push(slot);
        }
    }
    let elapsed = begun.elapsed();
    let report = PhaseReport {
        name: "verify",
        elapsed,
        rate: pass.latencies.count() as f64 / elapsed.as_secs_f64().max(1e-9),
        bytes: CHUNK,
        latencies: pass.latencies,
        counters: Counters::default(),
    };
    Ok((plan, report))
}

fn aligned(len: u64) -> IoMem {
    let len = usize::try_from(len).expect("small");
    BufferPool::new(len).try_take(len).expect("a fresh pool has its first buffer").mem()
}

fn read_label(queue: &mut Queue, disk: &Disk) -> Result<Plan, JobError> {
    let mem = aligned(BLOCK);
    if disk.size() < BLOCK {
        return Err(JobError::NoLabel);
    }
    queue.block_on(disk.read(0, mem.clone()))??;
    let plan = label::decode(&mem.to_vec()).ok_or(JobError::NoLabel)?;
    if plan.size() != disk.size() {
        return Err(JobError::Size { expected: plan.size(), found: disk.size() });
    }
    Ok(plan)
}

/// The state of a verification.
struct Pass {
    plan: Plan,
    generations: Vec<u32>,
    latencies: Histogram,
    bytes: Vec<u8>,
}

impl Pass {
    fn look_at(&mut self, offset: u64, mem: &IoMem) -> Result<(), Mismatch> {
        let len = usize::try_from(CHUNK.min(self.plan.size() - offset)).expect("small");
        let bytes = &mut self.bytes[..len];
        mem.copy_out(0, bytes);
        let blocks = bytes.chunks(usize::try_from(BLOCK).expect("small"));
        for (block, bytes) in (offset / BLOCK..).zip(blocks) {
            if block == 0 {
                let expected = label::encode(&self.plan);
                if let Some(difference) = Difference::first(0, &expected, bytes) {
                    return Err(Mismatch { difference, generation: 1 });
                }
                continue;
            }
            let generation = self.generations[usize::try_from(block).expect("one of these")];
            check(block, generation, &self.plan, bytes)?;
        }
        Ok(())
    }
}
