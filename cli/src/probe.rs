//! Looking at an image file without opening the image: its format and its header.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use blkring_qcow2::{Access, HEADER_PREFIX_BYTES, Header, HeaderError};

use crate::failure::{Failure, reason};
use crate::options::Format;

/// What the first bytes of a qcow2 image are.
const MAGIC: &[u8] = b"QFI\xfb";

/// The format that the first bytes of a file tell. Whoever wrote a raw file's first bytes, a guest for instance,
/// decides what is found here.
pub fn format(path: &Path) -> Result<Format, Failure> {
    let mut magic = [0; MAGIC.len()];
    let read = File::open(path).and_then(|mut file| file.read(&mut magic));
    let read = read.map_err(|error| Failure::cannot_open(path, reason(&error)))?;
    Ok(if magic.get(..read) == Some(MAGIC) { Format::Qcow2 } else { Format::Raw })
}

/// Why there is no header.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The file cannot be read.
    #[error("{}", reason(.0))]
    Io(#[from] io::Error),
    /// It is no qcow2 image, or one that is refused.
    #[error("{}", header_reason(.0))]
    Header(#[from] HeaderError),
}

/// What is wrong with a header, in the words of qemu-img where it has some.
pub fn header_reason(error: &HeaderError) -> String {
    match error {
        HeaderError::Magic { .. } => "Image is not in qcow2 format".to_owned(),
        other => other.to_string(),
    }
}

/// The header of the qcow2 image at `path`, if `access` can handle it.
pub fn header(path: &Path, access: Access) -> Result<Header, ProbeError> {
    let file = File::open(path)?;
    let prefix = beginning(&file, HEADER_PREFIX_BYTES)?;
    // At most 2 MiB.
    let bytes = beginning(&file, Header::bytes_wanted(&prefix)?)?;
    Ok(Header::parse(&bytes, access)?)
}

/// So many bytes from the begin of a file, or fewer if it is shorter.
fn beginning(file: &File, len: usize) -> io::Result<Vec<u8>> {
    let there = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let mut bytes = vec![0; len.min(there)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}
