//! From bytes to a header.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use zerocopy::FromBytes;

use super::extension::{self, Extension, ExtensionKind};
use super::features::{self, Autoclear, Compatible, Incompatible};
use super::raw::{MAGIC, RawFeatures, RawHeader};
use super::{
    Access, HEADER_FIXED_BYTES, HEADER_PREFIX_BYTES, HEADER_V2_BYTES, Header, HeaderError, L1Table,
    MAX_BACKING_FORMAT_BYTES, MAX_BACKING_NAME_BYTES, RefTable, TableKind,
};
use crate::address::HostOffset;
use crate::compression::Compression;
use crate::geometry::{
    Geometry, GeometryError, MAX_CLUSTER_BITS, MAX_HOST_OFFSET, MAX_L1_BYTES, MAX_REFTABLE_BYTES,
    MIN_CLUSTER_BITS, Version,
};
use crate::refcount::RefcountWidth;

impl Header {
    /// How many bytes of the file [`Self::parse`] wants to see (one cluster), from its first
    /// [`HEADER_PREFIX_BYTES`]. At most 2 MiB.
    pub fn bytes_wanted(prefix: &[u8]) -> Result<usize, HeaderError> {
        // A cluster has 2^21 bytes at most.
        Ok(1 << cluster_bits(raw_header(prefix)?.1)?)
    }

    /// Parses the first cluster of a file and refuses what `access` cannot handle. `bytes` may
    /// be shorter than a cluster if the file is.
    pub fn parse(bytes: &[u8], access: Access) -> Result<Self, HeaderError> {
        let (version, raw) = raw_header(bytes)?;
        let cluster_size = 1u64 << cluster_bits(raw)?;
        let features = raw_features(version, bytes)?;
        let length = features.header_length.get();
        let tail = tail(version, length, bytes, cluster_size)?;
        let extensions = extensions(raw, length, bytes, cluster_size)?;
        check_features(&features, tail, &extensions)?;
        let order = features.refcount_order.get();
        let refcounts =
            RefcountWidth::of_order(order).ok_or(HeaderError::RefcountOrder { order })?;
        let geometry =
            Geometry::new(raw.cluster_bits.get(), raw.size.get())?.with_format(version, refcounts);
        let header = Self {
            l1: l1_table(raw, &geometry)?,
            reftable: ref_table(raw, &geometry)?,
            snapshots: raw.snapshots.get(),
            snapshots_offset: HostOffset::new(raw.snapshots_offset.get()),
            incompatible: Incompatible::from_bits_retain(features.incompatible.get()),
            compatible: Compatible::from_bits_retain(features.compatible.get()),
            autoclear: Autoclear::from_bits_retain(features.autoclear.get()),
            encryption: raw.crypt_method.get(),
            tail: tail.to_vec(),
            extensions,
            backing_name: backing_name(raw, length, bytes, cluster_size)?,
            backing_offset: raw.backing_offset.get(),
            geometry,
        };
        header.require(access)?;
        Ok(header)
    }

    /// Refuses what `access` cannot handle; for an image that is already open for another one.
    pub fn require(&self, access: Access) -> Result<(), HeaderError> {
        match access {
            Access::Inspect => self.require_encryption(2)?,
            _ => self.require_layout()?,
        }
        if access != Access::Check {
            self.require_compression()?;
            self.require_tables()?;
        }
        if access == Access::Write {
            if self.incompatible.contains(Incompatible::CORRUPT) {
                return Err(HeaderError::Corrupt);
            }
            if self.incompatible.contains(Incompatible::DIRTY) {
                return Err(HeaderError::Dirty);
            }
        }
        Ok(())
    }

    /// Guest data lies where this driver looks for it, and as what it is.
    fn require_layout(&self) -> Result<(), HeaderError> {
        if self.incompatible.contains(Incompatible::EXTERNAL_DATA) {
            return Err(HeaderError::ExternalData);
        }
        if self.incompatible.contains(Incompatible::EXTENDED_L2) {
            return Err(HeaderError::ExtendedL2);
        }
        self.require_encryption(0)
    }

    /// The method of encryption is `known` at most.
    fn require_encryption(&self, known: u32) -> Result<(), HeaderError> {
        match self.encryption {
            method if method <= known => Ok(()),
            method => Err(HeaderError::Encrypted { method }),
        }
    }

    /// What the header names must be there. That it names zlib tells nothing: so does every image
    /// without a compressed cluster.
    fn require_compression(&self) -> Result<(), HeaderError> {
        let compression = self.compression();
        if compression == Compression::Zlib || compression.is_built_in() {
            Ok(())
        } else {
            Err(HeaderError::NotBuiltIn { compression })
        }
    }

    /// There are refcounts, and header, L1 table and refcount table do not overlap. A check
    /// reports such damage; nobody else can live with it.
    fn require_tables(&self) -> Result<(), HeaderError> {
        if self.reftable.clusters == 0 {
            return Err(HeaderError::NoRefTable);
        }
        let refcounts = (self.reftable.offset, self.reftable.bytes(&self.geometry));
        if refcounts.0 == HostOffset::ZERO {
            return Err(overlap(TableKind::Refcount, refcounts.0));
        }
        let l1 = (self.l1.offset, self.l1.bytes());
        if l1.1 != 0 && (l1.0 == HostOffset::ZERO || touch(l1, refcounts)) {
            return Err(overlap(TableKind::L1, l1.0));
        }
        Ok(())
    }
}

fn overlap(table: TableKind, offset: HostOffset) -> HeaderError {
    HeaderError::TableOverlap { table, offset }
}

/// Whether two ranges of the file share a byte. Both end below 2^56.
fn touch(a: (HostOffset, u64), b: (HostOffset, u64)) -> bool {
    a.0.get() < b.0.get() + b.1 && b.0.get() < a.0.get() + a.1
}

fn raw_header(bytes: &[u8]) -> Result<(Version, &RawHeader), HeaderError> {
    let have = bytes.len() as u64;
    let truncated = HeaderError::Truncated { have, need: HEADER_PREFIX_BYTES as u64 };
    // Magic and version first: whoever meets something else wants to hear what it is not.
    match bytes.first_chunk::<4>() {
        Some(&MAGIC) => {}
        Some(&magic) => return Err(HeaderError::Magic { magic }),
        None => return Err(truncated),
    }
    let (raw, _) = RawHeader::ref_from_prefix(bytes).map_err(|_| truncated)?;
    match raw.version.get() {
        2 => Ok((Version::V2, raw)),
        3 => Ok((Version::V3, raw)),
        version => Err(HeaderError::Version { version }),
    }
}

/// What version 3 adds. In version 2 extensions begin where it would be.
fn raw_features(version: Version, bytes: &[u8]) -> Result<RawFeatures, HeaderError> {
    if version == Version::V2 {
        return Ok(RawFeatures::V2);
    }
    let behind = bytes.get(HEADER_V2_BYTES..).unwrap_or_default();
    let features = RawFeatures::read_from_prefix(behind);
    let (have, need) = (bytes.len() as u64, HEADER_FIXED_BYTES as u64);
    features.map(|(features, _)| features).map_err(|_| HeaderError::Truncated { have, need })
}

fn cluster_bits(raw: &RawHeader) -> Result<u32, GeometryError> {
    match raw.cluster_bits.get() {
        bits @ MIN_CLUSTER_BITS..=MAX_CLUSTER_BITS => Ok(bits),
        cluster_bits => Err(GeometryError::ClusterBits { cluster_bits }),
    }
}

/// The part of the header behind the fixed one.
fn tail(
    version: Version,
    length: u32,
    bytes: &[u8],
    cluster_size: u64,
) -> Result<&[u8], HeaderError> {
    if version == Version::V2 {
        return Ok(&[]);
    }
    if u64::from(length) > cluster_size
        || !length.is_multiple_of(8)
        || (length as usize) < HEADER_FIXED_BYTES
    {
        return Err(HeaderError::HeaderLength { length, cluster_size });
    }
    let have = bytes.len() as u64;
    bytes
        .get(HEADER_FIXED_BYTES..length as usize)
        .ok_or(HeaderError::Truncated { have, need: u64::from(length) })
}

fn extensions(
    raw: &RawHeader,
    length: u32,
    bytes: &[u8],
    cluster_size: u64,
) -> Result<Vec<Extension>, HeaderError> {
    let end = match raw.backing_offset.get() {
        0 => cluster_size,
        offset if offset > cluster_size => return Err(backing_range(raw)),
        offset => offset,
    };
    let start = length as usize;
    // Neither bound exceeds 2 MiB.
    let end = bytes.len().min(end as usize);
    let extensions = extension::parse(bytes.get(start..end).unwrap_or_default(), start)?;
    for extension in &extensions {
        let bytes = extension.data.len();
        if extension.kind == ExtensionKind::BACKING_FORMAT && bytes > MAX_BACKING_FORMAT_BYTES {
            return Err(HeaderError::BackingFormat { bytes: bytes as u64 });
        }
    }
    Ok(extensions)
}

fn check_features(
    raw: &RawFeatures,
    tail: &[u8],
    extensions: &[Extension],
) -> Result<(), HeaderError> {
    let incompatible = Incompatible::from_bits_retain(raw.incompatible.get());
    let bits = incompatible.difference(Incompatible::all()).bits();
    if bits != 0 {
        let names = features::incompatible_names(bits, extensions);
        return Err(HeaderError::UnknownIncompatible { bits, names });
    }
    let compression = tail.first().copied().unwrap_or(0);
    match (compression, incompatible.contains(Incompatible::COMPRESSION_TYPE)) {
        (0, false) => Ok(()),
        (0, true) | (_, false) => Err(HeaderError::CompressionBit { compression }),
        (other, true) if Compression::of_number(other).is_some() => Ok(()),
        (_, true) => Err(HeaderError::Compression { compression }),
    }
}

/// A table lies on a cluster and below the largest offset.
fn check_table(
    table: TableKind,
    offset: HostOffset,
    bytes: u64,
    geometry: &Geometry,
) -> Result<(), HeaderError> {
    let end = offset.checked_add(bytes).map_or(u64::MAX, HostOffset::get);
    if geometry.offset_in_host_cluster(offset) != 0 || end > MAX_HOST_OFFSET {
        return Err(HeaderError::TableOffset { table, offset });
    }
    Ok(())
}

fn l1_table(raw: &RawHeader, geometry: &Geometry) -> Result<L1Table, HeaderError> {
    let (offset, entries) = (HostOffset::new(raw.l1_offset.get()), raw.l1_entries.get());
    let l1 = L1Table { offset, entries };
    if l1.bytes() > MAX_L1_BYTES {
        return Err(HeaderError::TableTooLarge { table: TableKind::L1, bytes: l1.bytes() });
    }
    let need = geometry.l1_entries_for(geometry.virtual_size());
    if u64::from(entries) < need {
        return Err(HeaderError::L1TooSmall { entries, need });
    }
    check_table(TableKind::L1, offset, l1.bytes(), geometry)?;
    Ok(l1)
}

fn ref_table(raw: &RawHeader, geometry: &Geometry) -> Result<RefTable, HeaderError> {
    let offset = HostOffset::new(raw.reftable_offset.get());
    let reftable = RefTable { offset, clusters: raw.reftable_clusters.get() };
    let bytes = reftable.bytes(geometry);
    if bytes > MAX_REFTABLE_BYTES {
        return Err(HeaderError::TableTooLarge { table: TableKind::Refcount, bytes });
    }
    check_table(TableKind::Refcount, offset, bytes, geometry)?;
    Ok(reftable)
}

/// The name of the backing file. A name at offset 0, or of length 0, is no name.
fn backing_name(
    raw: &RawHeader,
    length: u32,
    bytes: &[u8],
    cluster_size: u64,
) -> Result<Option<Vec<u8>>, HeaderError> {
    let (offset, bytes_of_name) = (raw.backing_offset.get(), u64::from(raw.backing_bytes.get()));
    if offset == 0 || bytes_of_name == 0 {
        return Ok(None);
    }
    let end = offset.saturating_add(bytes_of_name);
    let behind_header = offset >= u64::from(length);
    if bytes_of_name > MAX_BACKING_NAME_BYTES as u64 || end > cluster_size || !behind_header {
        return Err(backing_range(raw));
    }
    // Both lie inside the first cluster.
    let Some(name) = bytes.get(offset as usize..end as usize) else {
        return Err(HeaderError::Truncated { have: bytes.len() as u64, need: end });
    };
    if name.contains(&0) {
        return Err(HeaderError::BackingNameNul);
    }
    Ok(Some(name.to_vec()))
}

fn backing_range(raw: &RawHeader) -> HeaderError {
    HeaderError::BackingName {
        offset: raw.backing_offset.get(),
        bytes: u64::from(raw.backing_bytes.get()),
    }
}
