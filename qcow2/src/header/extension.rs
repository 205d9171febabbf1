//! Header extensions: the list of typed records behind the fixed header.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use std::fmt;

use super::error::HeaderError;

/// Bytes of type and length in front of each extension.
const HEAD_BYTES: usize = 8;
/// More extensions than anyone uses, and few enough that keeping them costs little.
const MAX_EXTENSIONS: usize = 256;

/// The type of a header extension.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ExtensionKind(pub u32);

impl ExtensionKind {
    /// The end of the list.
    pub const END: Self = Self(0);
    /// The format of the backing file.
    pub const BACKING_FORMAT: Self = Self(0xe279_2aca);
    /// Names of feature bits.
    pub const FEATURE_NAMES: Self = Self(0x6803_f857);
    /// The directory of dirty bitmaps.
    pub const BITMAPS: Self = Self(0x2385_2875);
    /// Where the encryption header lies.
    pub const ENCRYPTION: Self = Self(0x0537_be77);
    /// The name of the external data file.
    pub const DATA_FILE: Self = Self(0x4441_5441);
}

impl fmt::Debug for ExtensionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExtensionKind({:#010x})", self.0)
    }
}

/// A header extension, kept as it is in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extension {
    /// Its type.
    pub kind: ExtensionKind,
    /// Its data without padding.
    pub data: Vec<u8>,
}

/// Reads the list that starts at byte `start` of the file, where `area` begins, and ends with
/// the end marker or with `area`.
pub(crate) fn parse(area: &[u8], start: usize) -> Result<Vec<Extension>, HeaderError> {
    let mut extensions = Vec::new();
    let mut rest = area;
    while let Some((head, behind)) = rest.split_first_chunk::<HEAD_BYTES>() {
        let [k0, k1, k2, k3, l0, l1, l2, l3] = *head;
        let kind = ExtensionKind(u32::from_be_bytes([k0, k1, k2, k3]));
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        if kind == ExtensionKind::END {
            break;
        }
        if extensions.len() == MAX_EXTENSIONS {
            return Err(HeaderError::ExtensionCount { limit: MAX_EXTENSIONS });
        }
        let Some(data) = usize::try_from(length).ok().and_then(|length| behind.get(..length))
        else {
            let offset = (start + area.len() - rest.len()) as u64;
            return Err(HeaderError::ExtensionLength { kind: kind.0, offset, length });
        };
        extensions.push(Extension { kind, data: data.to_vec() });
        rest = behind.get(data.len().next_multiple_of(8)..).unwrap_or_default();
    }
    Ok(extensions)
}

/// Appends the list and its end marker to a header.
pub(crate) fn serialise(extensions: &[Extension], header: &mut Vec<u8>) -> Result<(), HeaderError> {
    for extension in extensions {
        let length = u32::try_from(extension.data.len())
            .map_err(|_| HeaderError::TooLong { bytes: extension.data.len() as u64 })?;
        header.extend(extension.kind.0.to_be_bytes());
        header.extend(length.to_be_bytes());
        header.extend(&extension.data);
        header.resize(header.len().next_multiple_of(8), 0);
    }
    header.extend([0; HEAD_BYTES]);
    Ok(())
}
