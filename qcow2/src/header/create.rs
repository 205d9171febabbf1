//! The header of a new image.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use super::extension::{Extension, ExtensionKind};
use super::features::{self, Autoclear, Compatible, Incompatible};
use super::{
    Header, HeaderError, L1Table, MAX_BACKING_FORMAT_BYTES, MAX_BACKING_NAME_BYTES, RefTable,
};
use crate::address::HostOffset;
use crate::compression::Compression;
use crate::geometry::{Geometry, Version};

/// Smaller clusters get no feature name table: it would take the room of a backing file name.
/// The bound is the one that qemu-img keeps to, so that the images are the same.
const NAME_TABLE_MIN_CLUSTER: u64 = 8192;

/// The backing file of a new image, as the image shall name it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backing {
    /// Its name: 1 to 1023 bytes without a NUL.
    pub name: Vec<u8>,
    /// Its format: 1 to 15 bytes.
    pub format: Vec<u8>,
}

impl Backing {
    /// A file of this name, with `raw` or `qcow2` in it.
    pub fn new(name: impl Into<Vec<u8>>, format: impl Into<Vec<u8>>) -> Self {
        Self { name: name.into(), format: format.into() }
    }

    fn check(&self) -> Result<(), HeaderError> {
        let (name, format) = (self.name.len(), self.format.len());
        if name == 0 || name > MAX_BACKING_NAME_BYTES {
            return Err(HeaderError::BackingName { offset: 0, bytes: name as u64 });
        }
        if self.name.contains(&0) {
            return Err(HeaderError::BackingNameNul);
        }
        if format == 0 || format > MAX_BACKING_FORMAT_BYTES {
            return Err(HeaderError::BackingFormat { bytes: format as u64 });
        }
        Ok(())
    }
}

impl Header {
    /// The header of a new image. In version 2 there are no features: neither `compatible` nor
    /// another compression than zlib goes with it.
    pub fn create(
        geometry: Geometry,
        l1: L1Table,
        reftable: RefTable,
        compatible: Compatible,
        compression: Compression,
        backing: Option<&Backing>,
    ) -> Result<Self, HeaderError> {
        let mut extensions = Vec::new();
        if let Some(backing) = backing {
            backing.check()?;
            let data = backing.format.clone();
            extensions.push(Extension { kind: ExtensionKind::BACKING_FORMAT, data });
        }
        let has_features = geometry.version() >= Version::V3;
        if has_features && geometry.cluster_size() >= NAME_TABLE_MIN_CLUSTER {
            extensions.push(features::name_table());
        }
        let mut incompatible = Incompatible::empty();
        incompatible.set(Incompatible::COMPRESSION_TYPE, compression != Compression::Zlib);
        // Compression type and padding.
        let tail = vec![compression.number(), 0, 0, 0, 0, 0, 0, 0];
        Ok(Self {
            geometry,
            l1,
            reftable,
            snapshots: 0,
            snapshots_offset: HostOffset::ZERO,
            incompatible,
            compatible,
            autoclear: Autoclear::empty(),
            encryption: 0,
            tail: if has_features { tail } else { Vec::new() },
            extensions,
            backing_name: backing.map(|backing| backing.name.clone()),
            backing_offset: 0,
        })
    }
}
