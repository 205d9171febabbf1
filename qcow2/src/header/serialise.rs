//! From a header to bytes.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use zerocopy::IntoBytes;
use zerocopy::big_endian::{U32, U64};

use super::raw::{MAGIC, RawFeatures, RawHeader};
use super::{HEADER_FIXED_BYTES, Header, HeaderError, extension};
use crate::geometry::Version;

impl Header {
    /// The fixed part, to be written at offset 0 in one write when a field changed. It leaves
    /// extensions and backing name where they are. 104 bytes, or the 72 of version 2.
    pub fn fixed_bytes(&self) -> Vec<u8> {
        let name_bytes = self.backing_name.as_ref().map_or(0, Vec::len);
        let raw = RawHeader {
            magic: MAGIC,
            version: U32::new(self.version().number()),
            backing_offset: U64::new(self.backing_offset),
            // The name was checked to have at most 1023 bytes, and the tail to fit in a cluster.
            backing_bytes: U32::new(name_bytes as u32),
            cluster_bits: U32::new(self.geometry.cluster_bits()),
            size: U64::new(self.geometry.virtual_size()),
            crypt_method: U32::new(self.encryption),
            l1_entries: U32::new(self.l1.entries),
            l1_offset: U64::new(self.l1.offset.get()),
            reftable_offset: U64::new(self.reftable.offset.get()),
            reftable_clusters: U32::new(self.reftable.clusters),
            snapshots: U32::new(self.snapshots),
            snapshots_offset: U64::new(self.snapshots_offset.get()),
        };
        let mut bytes = raw.as_bytes().to_vec();
        if self.version() == Version::V2 {
            return bytes;
        }
        let features = RawFeatures {
            incompatible: U64::new(self.incompatible.bits()),
            compatible: U64::new(self.compatible.bits()),
            autoclear: U64::new(self.autoclear.bits()),
            refcount_order: U32::new(self.geometry.refcounts().order()),
            header_length: U32::new((HEADER_FIXED_BYTES + self.tail.len()) as u32),
        };
        bytes.extend(features.as_bytes());
        bytes
    }

    /// The whole header, to be written at offset 0: fixed part, extensions in their order and
    /// the backing name, which moves directly behind them. Bytes of the first cluster behind
    /// what is returned have no meaning.
    pub fn to_bytes(&mut self) -> Result<Vec<u8>, HeaderError> {
        let fixed = self.fixed_bytes().len();
        let mut behind = self.tail.clone();
        extension::serialise(&self.extensions, &mut behind)?;
        let name = self.backing_name.as_deref().unwrap_or_default();
        let bytes = fixed + behind.len() + name.len();
        if bytes as u64 > self.geometry.cluster_size() {
            return Err(HeaderError::TooLong { bytes: bytes as u64 });
        }
        behind.extend(name);
        self.backing_offset = if name.is_empty() { 0 } else { (bytes - name.len()) as u64 };
        let mut header = self.fixed_bytes();
        header.append(&mut behind);
        Ok(header)
    }
}
