//! What qemu-img says of a header that it refuses.

use blkring_qcow2::{GeometryError, HeaderError, TableKind};

/// Its words, where it has some.
pub fn theirs(error: &HeaderError) -> Option<String> {
    Some(match error {
        HeaderError::Magic { .. } => "Image is not in qcow2 format".to_owned(),
        HeaderError::Truncated { .. } | HeaderError::HeaderLength { length: ..=103, .. } => {
            "qcow2 header too short".to_owned()
        }
        HeaderError::HeaderLength { length, cluster_size }
            if u64::from(*length) > *cluster_size =>
        {
            "qcow2 header exceeds cluster size".to_owned()
        }
        HeaderError::Version { version } => format!("Unsupported qcow2 version {version}"),
        HeaderError::Geometry(GeometryError::ClusterBits { cluster_bits }) => {
            format!("Unsupported cluster size: 2^{cluster_bits}")
        }
        HeaderError::Geometry(GeometryError::SizeTooLarge { .. }) => "Image is too big".to_owned(),
        HeaderError::ExtensionLength { .. } | HeaderError::HeaderLength { .. } => {
            "Header extension too large".to_owned()
        }
        HeaderError::UnknownIncompatible { bits, .. } => {
            format!("Unsupported qcow2 feature(s): Unknown incompatible feature: {bits:x}")
        }
        HeaderError::CompressionBit { compression: 0 } => {
            "qcow2: Compression type incompatible feature bit must not be set".to_owned()
        }
        HeaderError::CompressionBit { compression: 1 } => {
            "qcow2: Compression type incompatible feature bit must be set".to_owned()
        }
        HeaderError::CompressionBit { compression } | HeaderError::Compression { compression } => {
            format!("qcow2: unknown compression type: {compression}")
        }
        HeaderError::Encrypted { method: method @ 3.. } => {
            format!("Unsupported encryption method {method}")
        }
        HeaderError::RefcountOrder { .. } => {
            "Reference count entry width too large; may not exceed 64 bits".to_owned()
        }
        HeaderError::TableTooLarge { table, .. } => format!("{} too large", name(*table)),
        HeaderError::TableOffset { table, .. } => format!("{} offset invalid", name(*table)),
        HeaderError::L1TooSmall { .. } => "L1 table is too small".to_owned(),
        HeaderError::NoRefTable => "Image does not contain a reference count table".to_owned(),
        HeaderError::BackingName { bytes: 1024.., .. } => "Backing file name too long".to_owned(),
        HeaderError::BackingName { .. } => "Invalid backing file offset".to_owned(),
        HeaderError::BackingFormat { bytes } => {
            format!("ERROR: ext_backing_format: len={bytes} too large (>=16)")
        }
        _ => return None,
    })
}

fn name(table: TableKind) -> &'static str {
    match table {
        TableKind::L1 => "Active L1 table",
        TableKind::Refcount => "Reference count table",
        TableKind::Snapshot => "Snapshot table",
        _ => "Table",
    }
}
