//! Copy on write: a cluster is written whole, payload and what was around it, before it is linked.

use std::sync::Arc;

use blkring_engine::faults::Event;
use blkring_engine::tracker::Guard;
use blkring_engine::{Flags, IoMem, Result};

use super::claim::Claim;
use super::plan::{Around, Careful};
use super::state::SharedJob;
use super::{Chain, Image};

impl Image {
    /// The job that writes the cluster `one`, with the bytes of `mem` (a write at `offset`) that fall into it. It
    /// goes on although the queue of the write is never polled again, and keeps the grant of the write meanwhile.
    pub(super) fn copy_job(
        self: &Arc<Self>,
        one: Careful,
        offset: u64,
        mem: &IoMem,
        grant: Arc<Guard>,
    ) -> SharedJob {
        let size = self.top.geometry.cluster_size();
        let within = offset % size;
        let len = (size - within).min(mem.len() as u64);
        let payload = mem.slice(0..index(len));
        let chain = self.chain.clone();
        self.service.start(async move {
            let claim = Claim::adopt(&chain.top, one.id, one.guest, 1);
            let result = chain.write_whole(&one, within, payload).await;
            if result.is_ok() {
                claim.publish();
            }
            drop(grant);
            result
        })
    }
}

impl Chain {
    async fn write_whole(&self, one: &Careful, within: u64, payload: IoMem) -> Result<()> {
        let size = self.top.geometry.cluster_size();
        let host = self.top.geometry.host_offset(one.host).get();
        let (head, end) = (index(within), index(within) + payload.len());
        let lane = self.top.service.lane();
        let storage = &self.top.storage;
        if payload.len() as u64 == size {
            storage.point(Event::WriteAio).await;
            return self.top.storage.write(lane, host, &payload, Flags::empty()).await;
        }
        let buffer = self.buffers.take(index(size)).await;
        let whole = buffer.mem();
        let start = self.top.geometry.guest_offset(one.guest).get();
        let copies = matches!(one.around, Around::Backing | Around::Guest);
        if copies {
            storage.point(Event::CowRead).await;
        }
        for part in [0..head, end..whole.len()] {
            let at = start + part.start as u64;
            match one.around {
                _ if part.is_empty() => (),
                Around::Zeros => whole.fill(part, 0),
                Around::Backing => self.read_backing(lane, at, &whole.slice(part)).await?,
                Around::Guest => self.read_guest(lane, at, &whole.slice(part)).await?,
            }
        }
        let parts = [whole.slice(0..head), payload, whole.slice(end..whole.len())];
        storage.point(Event::WriteAio).await;
        if copies {
            storage.point(Event::CowWrite).await;
        }
        self.top.storage.write(lane, host, &IoMem::concat(&parts), Flags::empty()).await
    }
}

fn index(bytes: u64) -> usize {
    usize::try_from(bytes).expect("not more than a cluster")
}
