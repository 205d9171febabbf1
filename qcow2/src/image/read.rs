//! Reads: through the layers of the chain, from the top down.

use blkring_engine::faults::Event;
use blkring_engine::{IoMem, Lane, Result};

use super::decompress::Place;
use super::layer::Lookup;
use super::{Chain, Member};

/// Where a piece of a read ended up.
enum Found {
    /// Its bytes are in memory.
    Done(u64),
    /// Not in this member for so many bytes.
    Below(u64),
}

impl Chain {
    /// Fills `mem` with what the guest sees from `offset` on.
    pub(super) async fn read_guest(&self, lane: &Lane, offset: u64, mem: &IoMem) -> Result<()> {
        self.read_from(lane, 0, offset, mem).await
    }

    /// Fills `mem` with what lies under the top.
    pub(super) async fn read_backing(&self, lane: &Lane, offset: u64, mem: &IoMem) -> Result<()> {
        self.read_from(lane, 1, offset, mem).await
    }

    /// Fills `mem` from the chain, beginning `depth` members below the top. The chain is walked, not recursed into.
    async fn read_from(&self, lane: &Lane, depth: usize, offset: u64, mem: &IoMem) -> Result<()> {
        let mut done = 0;
        let (mut level, mut span) = (depth, mem.len() as u64);
        while done < mem.len() as u64 {
            let at = offset + done;
            let rest = mem.slice(index(done)..mem.len());
            match self.read_member(lane, level, at, &rest.slice(0..index(span))).await? {
                Found::Done(bytes) => {
                    done += bytes;
                    (level, span) = (depth, mem.len() as u64 - done);
                }
                Found::Below(bytes) => {
                    span = bytes;
                    level += 1;
                }
            }
        }
        Ok(())
    }

    async fn read_member(
        &self,
        lane: &Lane,
        level: usize,
        offset: u64,
        mem: &IoMem,
    ) -> Result<Found> {
        if level == 1 {
            self.top.storage.point(Event::ReadBackingAio).await;
        }
        let layer = match level.checked_sub(1) {
            None => &self.top,
            Some(below) => match self.backing.get(below) {
                None => return Ok(zeros(mem)),
                Some(member) if offset >= member.size() => return Ok(zeros(mem)),
                Some(Member::Raw(storage)) => {
                    storage.read(lane, offset, mem).await?;
                    return Ok(Found::Done(mem.len() as u64));
                }
                Some(Member::Qcow2(layer)) => layer,
            },
        };
        // A copy of the last cluster may reach beyond the disk.
        let left = layer.virtual_size().saturating_sub(offset);
        if left == 0 {
            return Ok(zeros(mem));
        }
        let wanted = left.min(mem.len() as u64);
        let mut held = None;
        loop {
            match layer.lookup(offset, wanted)? {
                Lookup::Load(job, pin) => {
                    held = Some(pin);
                    job.join().await?;
                }
                Lookup::Data(at, len, lease) => {
                    drop(held);
                    layer.storage.point(Event::ReadAio).await;
                    layer.storage.read(lane, at.get(), &mem.slice(0..index(len))).await?;
                    drop(lease);
                    return Ok(Found::Done(len));
                }
                Lookup::Compressed(data, len, lease) => {
                    drop(held);
                    let within = index(offset % layer.geometry.cluster_size());
                    let part = (within, &mem.slice(0..index(len)));
                    self.read_compressed(lane, layer, Place { level, data }, part, &lease).await?;
                    drop(lease);
                    return Ok(Found::Done(len));
                }
                Lookup::Zero(len) => return Ok(zeros(&mem.slice(0..index(len)))),
                Lookup::Unallocated(len) => return Ok(Found::Below(len)),
            }
        }
    }
}

fn zeros(mem: &IoMem) -> Found {
    mem.fill(0..mem.len(), 0);
    Found::Done(mem.len() as u64)
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("not more than the memory of the request")
}
