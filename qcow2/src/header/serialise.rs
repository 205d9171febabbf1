//! From a header to bytes.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use zerocopy::IntoBytes;
use zerocopy::big_endian::{U32, U64};

use super::raw::{MAGIC, RawHeader};
use super::{HEADER_FIXED_BYTES, Header, HeaderError, extension};

impl Header {
    /// The fixed part, to be written at offset 0 in one write when a field changed. It leaves
    /// extensions and backing name where they are.
    pub fn fixed_bytes(&self) -> [u8; HEADER_FIXED_BYTES] {
        let name_bytes = self.backing_name.as_ref().map_or(0, Vec::len);
        let raw = RawHeader {
            magic: MAGIC,
            version: U32::new(3),
            backing_offset: U64::new(self.backing_offset),
            // The name was checked to have at most 1023 bytes, and the tail to fit in a cluster.
            backing_bytes: U32::new(name_bytes as u32),
            cluster_bits: U32::new(self.geometry.cluster_bits()),
            size: U64::new(self.geometry.virtual_size()),
            crypt_method: U32::ZERO,
            l1_entries: U32::new(self.l1.entries),
            l1_offset: U64::new(self.l1.offset.get()),
            reftable_offset: U64::new(self.reftable.offset.get()),
            reftable_clusters: U32::new(self.reftable.clusters),
            snapshots: U32::new(self.snapshots),
            snapshots_offset: U64::new(self.snapshots_offset.get()),
            incompatible: U64::new(self.incompatible.bits()),
            compatible: U64::new(self.compatible.bits()),
            autoclear: U64::new(self.autoclear.bits()),
            refcount_order: U32::new(4),
            header_length: U32::new((HEADER_FIXED_BYTES + self.tail.len()) as u32),
        };
        let mut bytes = [0; HEADER_FIXED_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }

    /// The whole header, to be written at offset 0: fixed part, extensions in their order and
    /// the backing name, which moves directly behind them. Bytes of the first cluster behind
    /// what is returned have no meaning.
    pub fn to_bytes(&mut self) -> Result<Vec<u8>, HeaderError> {
        let mut behind = self.tail.clone();
        extension::serialise(&self.extensions, &mut behind)?;
        let name = self.backing_name.as_deref().unwrap_or_default();
        let bytes = HEADER_FIXED_BYTES + behind.len() + name.len();
        if bytes as u64 > self.geometry.cluster_size() {
            return Err(HeaderError::TooLong { bytes: bytes as u64 });
        }
        behind.extend(name);
        self.backing_offset = if name.is_empty() { 0 } else { (bytes - name.len()) as u64 };
        let mut header = self.fixed_bytes().to_vec();
        header.append(&mut behind);
        Ok(header)
    }
}
