//! Looking at an image file without opening the image: its format and its header.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use blkring_engine::{Claim, LockMode, LockedFile};
use blkring_qcow2::{Access, HEADER_PREFIX_BYTES, Header, HeaderError};

use crate::bytes;
use crate::options::Format;
use crate::reason::{Reason, not_regular};

/// The bytes that a format is told from.
pub const SECTOR: usize = 512;

/// What a file looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Guess {
    /// A format of this program; raw if it looks like nothing else.
    Known(Format),
    /// A format of other programs.
    Other(&'static str),
}

impl Guess {
    /// The name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Guess::Known(format) => format.name(),
            Guess::Other(name) => name,
        }
    }
}

/// Where each format has its mark, and the mark.
const MARKS: &[(usize, &[u8], Guess)] = &[
    (0, b"QFI\xfb\0\0\0\x01", Guess::Other("qcow")),
    // Without a version it is none.
    (0, b"QFI\xfb\0\0\0\0", Guess::Known(Format::Raw)),
    (0, b"QFI\xfb", Guess::Known(Format::Qcow2)),
    (0, b"QED\0", Guess::Other("qed")),
    (0, b"KDMV", Guess::Other("vmdk")),
    (0, b"COWD", Guess::Other("vmdk")),
    (0, b"# Disk DescriptorFile", Guess::Other("vmdk")),
    (0, b"vhdxfile", Guess::Other("vhdx")),
    (0, b"conectix", Guess::Other("vpc")),
    (0, b"LUKS\xba\xbe\0\x01", Guess::Other("luks")),
    (0, b"WithoutFreeSpace", Guess::Other("parallels")),
    (0, b"WithouFreSpacExt", Guess::Other("parallels")),
    (0, b"Bochs Virtual HD Image", Guess::Other("bochs")),
    (64, b"\x7f\x10\xda\xbe", Guess::Other("vdi")),
];

/// The format that the first sector of a file tells. Whoever wrote it, a guest for instance, decides what is found
/// here.
pub fn guess(sector: &[u8]) -> Guess {
    let marked =
        |at: usize, mark: &[u8]| sector.get(at..).is_some_and(|rest| rest.starts_with(mark));
    let found = MARKS.iter().find(|(at, mark, _)| marked(*at, mark));
    found.map_or(Guess::Known(Format::Raw), |(_, _, guess)| *guess)
}

/// The format of the file at `path`, if it is one of this program.
pub fn format(path: &Path) -> Result<Format, Reason> {
    match guess_of(&mut open(path)?).map_err(|error| Reason::system(path, &error))? {
        Guess::Known(format) => Ok(format),
        Guess::Other(name) => {
            Err(Reason::words(format!("it looks like a '{name}' image, which is not supported")))
        }
    }
}

/// What a file looks like, read from where it stands.
pub fn guess_of(file: &mut File) -> io::Result<Guess> {
    let mut sector = [0; SECTOR];
    let mut have = 0;
    while let Some(rest) = sector.get_mut(have..).filter(|rest| !rest.is_empty()) {
        match file.read(rest)? {
            0 => break,
            more => have += more,
        }
    }
    Ok(guess(sector.get(..have).unwrap_or_default()))
}

/// Opens a regular file or a block device for reading, without waiting for what is neither.
pub fn open(path: &Path) -> Result<File, Reason> {
    let system = |error: io::Error| Reason::system(path, &error);
    let mut options = File::options();
    let file = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(system)?;
    let kind = file.metadata().map_err(system)?.file_type();
    if kind.is_file() || kind.is_block_device() {
        return Ok(file);
    }
    let what = if kind.is_dir() {
        "a directory"
    } else if kind.is_char_device() {
        "a character device"
    } else {
        "a pipe or socket"
    };
    Err(not_regular(&bytes::of_path(path), what))
}

/// The same, locked: who cannot be locked out is told.
pub fn locked(path: &Path, mode: LockMode, claim: Claim) -> Result<LockedFile, Reason> {
    let name = path.to_string_lossy().into();
    LockedFile::new(open(path)?, &name, mode, claim).map_err(|error| Reason::lock(&error))
}

/// Why there is no header.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is no qcow2 image, or one that is refused.
    #[error("{0}")]
    Header(#[from] HeaderError),
}

/// The header of the qcow2 image in `file`, which is open as `path`.
pub fn header_of(file: &File, path: &Path, access: Access) -> Result<Header, Reason> {
    read_header(file, access).map_err(|error| match error {
        ProbeError::Io(error) => Reason::system(path, &error),
        ProbeError::Header(error) => Reason::header(&error),
    })
}

fn read_header(file: &File, access: Access) -> Result<Header, ProbeError> {
    let prefix = beginning(file, HEADER_PREFIX_BYTES)?;
    // At most 2 MiB.
    let bytes = beginning(file, Header::bytes_wanted(&prefix)?)?;
    Ok(Header::parse(&bytes, access)?)
}

/// Bytes of a file or of a block device, of which the file system does not know how long it is.
pub fn length(mut file: &File) -> io::Result<u64> {
    let at = file.stream_position()?;
    let end = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(at))?;
    Ok(end)
}

/// So many bytes from the begin of a file, or fewer if it is shorter.
fn beginning(file: &File, len: usize) -> io::Result<Vec<u8>> {
    let there = usize::try_from(length(file)?).unwrap_or(usize::MAX);
    let mut bytes = vec![0; len.min(there)];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_their_marks() {
        let mut vdi = vec![0; SECTOR];
        vdi[64..68].copy_from_slice(b"\x7f\x10\xda\xbe");
        for (bytes, guessed) in [
            (&b"QFI\xfb\0\0\0\x03"[..], Guess::Known(Format::Qcow2)),
            (b"QFI\xfb\0\0\0\x01", Guess::Other("qcow")),
            (b"QFI\xfb\0\0\0\0", Guess::Known(Format::Raw)),
            (b"KDMV", Guess::Other("vmdk")),
            (b"KDM", Guess::Known(Format::Raw)),
            (b"", Guess::Known(Format::Raw)),
            (&vdi, Guess::Other("vdi")),
        ] {
            assert_eq!(guess(bytes), guessed, "{bytes:?}");
        }
    }
}
