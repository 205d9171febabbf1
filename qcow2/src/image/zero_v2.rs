//! Zero-writes and discards in an image of version 2, which has no zero flag.
//!
//! Where a backing file lies below, only bytes hide it: zeros are written, and a discard leaves everything as it is.
//! Where nothing lies below, a cluster that is not allocated reads as zeros, so a cluster may be given back.

use std::sync::Arc;

use blkring_engine::{Context, Flags, Operation, Result};

use super::Image;
use super::layer::Lookup;
use super::zero::Wanted;

impl Image {
    /// Makes [offset, end) read as zeros.
    pub(super) async fn zero_guest_v2(
        self: &Arc<Self>,
        context: &Context,
        (offset, end): (u64, u64),
        flags: Flags,
    ) -> Result<()> {
        self.top.check_failure()?;
        let border = self.backing_end().0.clamp(offset, end);
        let unmap = flags.contains(Flags::MAY_UNMAP);
        let whole = border == offset && self.is_whole(offset, end - offset);
        if flags.contains(Flags::NO_FALLBACK) && !(unmap && whole) {
            return Err(self.top.error(Operation::WriteZeroes, offset, libc::ENOTSUP));
        }
        self.zero_bytes(context, offset, border).await?;
        match self.whole_clusters(border, end - border) {
            Some((first, count)) if unmap => {
                let geometry = &self.top.geometry;
                let start = geometry.guest_offset(first).get();
                let stop = (start + count * geometry.cluster_size()).min(end);
                self.zero_mapped(context, border, start).await?;
                self.zero_clusters(context, (first, count), end, Wanted::ZerosUnmapped).await?;
                self.zero_mapped(context, stop, end).await
            }
            _ => self.zero_mapped(context, border, end).await,
        }
    }

    /// Writes zeros where nothing lies below and something is allocated.
    async fn zero_mapped(self: &Arc<Self>, context: &Context, start: u64, end: u64) -> Result<()> {
        let (mut at, mut held) = (start, None);
        while at < end {
            match self.top.lookup(at, end - at)? {
                Lookup::Load(job, pin) => {
                    held = Some(pin);
                    job.join().await?;
                }
                Lookup::Data(_, len, lease) | Lookup::Compressed(_, len, lease) => {
                    drop((lease, held.take()));
                    self.zero_bytes(context, at, at + len).await?;
                    at += len;
                }
                Lookup::Zero(len) | Lookup::Unallocated(len) => at += len,
            }
        }
        Ok(())
    }

    /// Gives the whole clusters of a range back that no backing file is below.
    pub(super) async fn discard_guest_v2(
        self: &Arc<Self>,
        context: &Context,
        (offset, end): (u64, u64),
    ) -> Result<()> {
        self.top.check_failure()?;
        let border = self.backing_end().0.clamp(offset, end);
        match self.whole_clusters(border, end - border) {
            None => Ok(()),
            Some((first, count)) => {
                self.zero_clusters(context, (first, count), end, Wanted::Discarded).await
            }
        }
    }
}
