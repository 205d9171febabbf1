//! Feature bits, and their names in the feature name table.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use super::extension::{Extension, ExtensionKind};

bitflags::bitflags! {
    /// Features without which an image cannot be understood.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Incompatible: u64 {
        /// Refcounts may be stale.
        const DIRTY = 1 << 0;
        /// The metadata is damaged.
        const CORRUPT = 1 << 1;
        /// Guest data lies in another file.
        const EXTERNAL_DATA = 1 << 2;
        /// Clusters are compressed by something else than deflate.
        const COMPRESSION_TYPE = 1 << 3;
        /// L2 entries have a bitmap of subclusters.
        const EXTENDED_L2 = 1 << 4;
    }

    /// Features that may be ignored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Compatible: u64 {
        /// A writer may postpone refcounts behind the dirty bit. This driver does not.
        const LAZY_REFCOUNTS = 1 << 0;
    }

    /// Features that hold only until a writer that does not maintain them opens the image.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Autoclear: u64 {
        /// The dirty bitmaps are up to date.
        const BITMAPS = 1 << 0;
        /// The external data file may be read as a raw image.
        const RAW_EXTERNAL_DATA = 1 << 1;
    }
}

/// Bytes of one record of the feature name table: kind, bit, name.
const RECORD_BYTES: usize = 48;
const INCOMPATIBLE: u8 = 0;
const COMPATIBLE: u8 = 1;
const AUTOCLEAR: u8 = 2;

/// The features that a newly made image names, known to this driver or not.
const KNOWN: [(u8, u8, &str); 8] = [
    (INCOMPATIBLE, 0, "dirty bit"),
    (INCOMPATIBLE, 1, "corrupt bit"),
    (INCOMPATIBLE, 2, "external data file"),
    (INCOMPATIBLE, 3, "compression type"),
    (INCOMPATIBLE, 4, "extended L2 entries"),
    (COMPATIBLE, 0, "lazy refcounts"),
    (AUTOCLEAR, 0, "bitmaps"),
    (AUTOCLEAR, 1, "raw external data"),
];

/// The feature name table of a new image.
pub(crate) fn name_table() -> Extension {
    let mut data = Vec::with_capacity(KNOWN.len() * RECORD_BYTES);
    for (kind, bit, name) in KNOWN {
        let end = data.len() + RECORD_BYTES;
        data.extend([kind, bit]);
        data.extend(name.as_bytes());
        data.resize(end, 0);
    }
    Extension { kind: ExtensionKind::FEATURE_NAMES, data }
}

/// What the image calls the unknown incompatible bits among `bits`; "bit N" for one without a
/// name. The names come from the image and are made safe to print.
pub(crate) fn incompatible_names(bits: u64, extensions: &[Extension]) -> Vec<String> {
    let set = (0..64u8).filter(|bit| bits & (1 << bit) != 0);
    set.map(|bit| image_name(bit, extensions).unwrap_or_else(|| format!("bit {bit}"))).collect()
}

fn image_name(bit: u8, extensions: &[Extension]) -> Option<String> {
    let tables = extensions.iter().filter(|e| e.kind == ExtensionKind::FEATURE_NAMES);
    let mut records = tables.flat_map(|table| table.data.as_chunks::<RECORD_BYTES>().0);
    let name = records.find_map(|record| match record {
        [INCOMPATIBLE, of, name @ ..] if *of == bit => Some(name),
        _ => None,
    })?;
    let text = name.split(|byte| *byte == 0).next().filter(|text| !text.is_empty())?;
    Some(text.escape_ascii().to_string())
}
