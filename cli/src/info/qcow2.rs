//! What only a qcow2 image has.

use blkring_qcow2::{
    Autoclear, Bitmap, BitmapFlags, Compatible, Compression, ExtensionKind, Header, Incompatible,
    Version,
};
use serde::Serialize;

use super::encryption::Encryption;
use super::outline::outline;
use crate::bytes;
use crate::chain::Member;
use crate::reason::Reason;

/// What it is.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Qcow2Info {
    compat: &'static str,
    compression_type: &'static str,
    /// This one, and what is corrupt and extended, are told of version 3 alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    lazy_refcounts: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bitmaps: Vec<BitmapInfo>,
    refcount_bits: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    encrypt: Option<Encryption>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_file_raw: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    corrupt: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extended_l2: Option<bool>,
}

/// A dirty bitmap.
#[derive(Serialize)]
struct BitmapInfo {
    flags: Vec<&'static str>,
    name: String,
    granularity: u64,
}

impl BitmapInfo {
    fn of(bitmap: Bitmap) -> Self {
        let named = [(BitmapFlags::IN_USE, "in-use"), (BitmapFlags::AUTO, "auto")];
        let set = named.into_iter().filter(|(flag, _)| bitmap.flags.contains(*flag));
        BitmapInfo {
            flags: set.map(|(_, name)| name).collect(),
            name: bitmap.name,
            granularity: bitmap.granularity,
        }
    }
}

impl Qcow2Info {
    /// What the header says, and what it leads to.
    pub fn of(member: &Member, header: &Header) -> Result<Self, Reason> {
        let newer = |value| (header.version() == Version::V3).then_some(value);
        let incompatible = header.incompatible();
        let bitmaps =
            Bitmap::list(member, header).map_err(|error| Reason::Words(error.to_string()))?;
        let data_file = incompatible.contains(Incompatible::EXTERNAL_DATA);
        let name = header.extensions().iter().find(|one| one.kind == ExtensionKind::DATA_FILE);
        let name = name.map(|one| bytes::text(&one.data));
        Ok(Qcow2Info {
            compat: match header.version() {
                Version::V2 => "0.10",
                Version::V3 => "1.1",
            },
            compression_type: match header.compression() {
                Compression::Zlib => "zlib",
                Compression::Zstd => "zstd",
            },
            lazy_refcounts: newer(header.compatible().contains(Compatible::LAZY_REFCOUNTS)),
            bitmaps: bitmaps.into_iter().map(BitmapInfo::of).collect(),
            refcount_bits: header.refcount_bits(),
            data_file: name.filter(|_| data_file),
            encrypt: Encryption::of(member, header)?,
            data_file_raw: data_file
                .then(|| header.autoclear().contains(Autoclear::RAW_EXTERNAL_DATA)),
            corrupt: newer(incompatible.contains(Incompatible::CORRUPT)),
            extended_l2: newer(incompatible.contains(Incompatible::EXTENDED_L2)),
        })
    }

    /// The same for people.
    pub fn human(&self) -> String {
        format!("Format specific information:\n{}", outline(self))
    }
}
