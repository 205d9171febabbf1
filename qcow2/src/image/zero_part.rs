//! Zero-writes of parts of clusters. Where all of a cluster reads as zeros, its entry says so, or nothing is done;
//! elsewhere zeros are written.

use std::sync::Arc;

use blkring_engine::tracker::Class;
use blkring_engine::{Context, Result, Variant};

use super::Image;
use super::extents::GuestBytes;
use super::zero::Wanted;
use crate::address::{GuestCluster, GuestOffset};

impl Image {
    /// Makes [start, end) read as zeros, where no cluster is covered whole. Each cluster has its own grant.
    pub(super) async fn zero_parts(
        self: &Arc<Self>,
        context: &Context,
        start: u64,
        end: u64,
    ) -> Result<()> {
        let geometry = &self.top.geometry;
        let mut at = start;
        while at < end {
            let cluster = geometry.guest_cluster(GuestOffset::new(at));
            let last = geometry.guest_offset(cluster).get() + geometry.cluster_size();
            let part = (at, last.min(end));
            if !self.zero_empty(context, cluster, part).await? {
                self.zero_bytes(context, part.0, part.1).await?;
            }
            at = part.1;
        }
        Ok(())
    }

    /// Makes a cluster zero that holds nothing but zeros outside of `part`, and no bytes there. Whether it is one.
    async fn zero_empty(
        self: &Arc<Self>,
        context: &Context,
        cluster: GuestCluster,
        part: (u64, u64),
    ) -> Result<bool> {
        // Mostly it is none; then nobody is kept waiting for the whole cluster.
        if !self.is_empty_but_for(cluster, part).await? {
            return Ok(false);
        }
        let start = self.top.geometry.guest_offset(cluster).get();
        let size = self.top.geometry.cluster_size();
        let guard = self.admit(start, size, Class::Serialising).await;
        // It may have been written to before the grant.
        if !self.top.breaks(Variant::ZeroPartNotLookedAtAgain)
            && !self.is_empty_but_for(cluster, part).await?
        {
            return Ok(false);
        }
        self.zero_granted(context, cluster, 1, Wanted::Zeros).await?;
        drop(guard);
        self.let_go().await?;
        Ok(true)
    }

    /// Whether the topmost file has no bytes of this cluster, and what is around the part reads as zeros.
    async fn is_empty_but_for(&self, cluster: GuestCluster, part: (u64, u64)) -> Result<bool> {
        let empty = |bytes| matches!(bytes, GuestBytes::Absent | GuestBytes::Zero(_));
        let geometry = &self.top.geometry;
        let start = geometry.guest_offset(cluster).get();
        let end = (start + geometry.cluster_size()).min(self.top.virtual_size());
        if !empty(self.extent_of(0, part.0, part.1).await?.bytes) {
            return Ok(false);
        }
        for (mut at, limit) in [(start, part.0), (part.1, end)] {
            while at < limit {
                let run = self.extent_of_chain(self.depth(), at, limit).await?;
                if !empty(run.bytes) {
                    return Ok(false);
                }
                at += run.len;
            }
        }
        Ok(true)
    }
}
