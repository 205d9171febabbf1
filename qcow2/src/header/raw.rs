//! The fixed parts of a header, byte for byte: what version 2 has, and what version 3 adds.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{HEADER_FIXED_BYTES, HEADER_V2_BYTES};

pub(crate) const MAGIC: [u8; 4] = *b"QFI\xfb";

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RawHeader {
    pub magic: [u8; 4],
    pub version: U32,
    pub backing_offset: U64,
    pub backing_bytes: U32,
    pub cluster_bits: U32,
    pub size: U64,
    pub crypt_method: U32,
    pub l1_entries: U32,
    pub l1_offset: U64,
    pub reftable_offset: U64,
    pub reftable_clusters: U32,
    pub snapshots: U32,
    pub snapshots_offset: U64,
}

/// What follows in version 3.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct RawFeatures {
    pub incompatible: U64,
    pub compatible: U64,
    pub autoclear: U64,
    pub refcount_order: U32,
    pub header_length: U32,
}

impl RawFeatures {
    /// What a header of version 2 says without saying it.
    pub const V2: Self = Self {
        incompatible: U64::ZERO,
        compatible: U64::ZERO,
        autoclear: U64::ZERO,
        refcount_order: U32::from_bytes([0, 0, 0, 4]),
        header_length: U32::from_bytes([0, 0, 0, HEADER_V2_BYTES as u8]),
    };
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_V2_BYTES);
const _: () = assert!(HEADER_V2_BYTES + size_of::<RawFeatures>() == HEADER_FIXED_BYTES);
