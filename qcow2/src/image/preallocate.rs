//! Space for guest clusters before anybody writes them.
//!
//! The clusters come from the pool and are linked as they are: zeros, counted, and as durable as any others. Whether
//! the file has room for them on its disk is a matter of how it grows meanwhile.

use std::sync::Arc;

use blkring_engine::tracker::{Class, Span};
use blkring_engine::{Access, Context, Flags, IoMem, Operation, Result};

use super::Image;
use super::options::AllocPolicy;
use super::plan::{Plan, Prepare};
use super::write::Grant;

/// Bytes that are mapped in one step at most.
const STEP: u64 = 64 << 20;

/// What is made ready of the space for a new disk, or for the new part of one that grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Preallocation {
    /// Nothing.
    #[default]
    Off,
    /// Each guest cluster has its place in the file. The file may have holes there, unless the policy is to zero with
    /// each allocation.
    Metadata,
    /// And the file system has put space aside for it.
    Falloc,
    /// And zeros are written there.
    Full,
}

impl Preallocation {
    /// By its name in options: `off`, `metadata`, `falloc`, `full`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "off" => Some(Self::Off),
            "metadata" => Some(Self::Metadata),
            "falloc" => Some(Self::Falloc),
            "full" => Some(Self::Full),
            _ => None,
        }
    }
}

/// While it is there, the file grows by holes.
struct ByHoles<'a>(&'a Image);

impl<'a> ByHoles<'a> {
    fn new(image: &'a Image) -> Self {
        image.top.lock().pools.by_holes += 1;
        ByHoles(image)
    }
}

impl Drop for ByHoles<'_> {
    fn drop(&mut self) {
        self.0.top.lock().pools.by_holes -= 1;
    }
}

impl Image {
    /// Makes space for the whole disk of a new image, durably. Requests wait meanwhile. Run it on a queue that is
    /// attached to the image. It goes on if this future is dropped.
    ///
    /// # Errors
    /// ENOTSUP if the image has a backing file: it would be hidden. What the disk says otherwise; a part of the space
    /// may be there then.
    pub async fn preallocate(self: &Arc<Self>, preallocation: Preallocation) -> Result<()> {
        let image = self.clone();
        let job = self.service.start(async move {
            let _parts = image.parts.begin(Span::new(0, 1), Class::Shared).await;
            let guard = image.tracker.begin(Span::to_infinity(0), Class::Serialising).await;
            let error = |errno| image.top.error(Operation::Allocate, 0, errno);
            if image.top.storage.access() == Access::ReadOnly {
                return Err(error(libc::EPERM));
            }
            if image.closing.lock().is_some() {
                return Err(error(libc::ESHUTDOWN));
            }
            if !image.chain.backing.is_empty() {
                let reason = "space made ready would hide the backing file";
                return Err(error(libc::ENOTSUP).because(reason));
            }
            let range = (0, image.top.virtual_size());
            image.make_space(range, preallocation, &mut Grant::Shared(Arc::new(guard))).await?;
            image.flush_metadata().await
        });
        job.join().await
    }

    /// Makes space for a range that reads as zeros, under a grant that is held already.
    pub(super) async fn make_space(
        self: &Arc<Self>,
        (start, end): (u64, u64),
        preallocation: Preallocation,
        grant: &mut Grant,
    ) -> Result<()> {
        let context = Context::of_service(self.service.lane());
        let _by_holes = match preallocation {
            Preallocation::Off => return Ok(()),
            Preallocation::Full => {
                return self.write_zeros(&context, (start, end), grant).await;
            }
            Preallocation::Metadata => Some(ByHoles::new(self)),
            Preallocation::Falloc => None,
        };
        let cluster = usize::try_from(self.top.geometry.cluster_size()).expect("at most 2 MiB");
        let zeros = self.chain.zeros.of(cluster);
        let mut at = start;
        while at < end {
            at += self.map_piece((at, (end - at).min(STEP)), &zeros, grant).await?;
        }
        Ok(())
    }

    /// Gives the first piece of a range its place. Answers how long it is. A cluster that has to be written whole is
    /// written with `zeros`.
    async fn map_piece(
        self: &Arc<Self>,
        (at, len): (u64, u64),
        zeros: &IoMem,
        grant: &mut Grant,
    ) -> Result<u64> {
        let mut held = None;
        loop {
            let mut prepare = |work| match work {
                Prepare::Whole(one) => self.copy_job(one, at, zeros, grant.share()),
                Prepare::Zeros(id, first, run) => {
                    self.top.zero_job((id, first, run), grant.share())
                }
            };
            match self.top.plan(at, len, self.backing_end(), &mut prepare)? {
                Plan::Load(job, pin) => {
                    drop(held.replace(pin));
                    job.join().await?;
                }
                Plan::Wait(job) => drop(job.join().await),
                Plan::Refill(job) => job.join().await?,
                Plan::InPlace { len, .. } => return Ok(len),
                Plan::Claimed { at, len, claim } => {
                    if self.top.policy == AllocPolicy::PerAllocation {
                        // Such a cluster may lie beyond the end of the file: a write would bring it there.
                        let lane = self.service.lane();
                        self.top.storage.write_zeroes(lane, at.get(), len, Flags::empty()).await?;
                    }
                    claim.publish();
                    return Ok(len);
                }
                Plan::Zeroing { job, len, claim, .. } => {
                    job.join().await?;
                    claim.publish();
                    return Ok(len);
                }
                Plan::Careful { job, len } => {
                    job.join().await?;
                    return Ok(len);
                }
            }
        }
    }
}
