//! The files of a backing chain, each looked at by its header alone.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use blkring_engine::{Claim, LockedFile, Permissions, identity};
use blkring_qcow2::{Access, Header, ReadAt};

use crate::bytes;
use crate::image_name::{self, ImageName};
use crate::name::{self, Name};
use crate::options::{self, Format, Share};
use crate::probe;
use crate::reason::Reason;

/// Files below an image at most.
const MAX_BELOW: usize = 200;

/// One file of a chain.
pub struct Member {
    /// Where it is.
    pub path: PathBuf,
    /// What the file system says of it.
    pub metadata: Metadata,
    /// Its bytes: of a block device the file system does not know.
    pub length: u64,
    /// Its header, if it is a qcow2 image.
    pub header: Option<Header>,
    file: LockedFile,
}

impl ReadAt for Member {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn len(&self) -> u64 {
        self.length
    }
}

/// What an image says of the file below it.
pub struct Below {
    /// Where it is.
    pub path: PathBuf,
    /// Its format, if the image says so.
    pub format: Option<String>,
}

impl Member {
    /// Looks at an image, be it one that cannot be read here, whose format is probed if it is not given. No other file is opened. As long as this lives
    /// nobody else writes the image, if its locks count.
    pub fn open(image: &ImageName, share: Share) -> Result<Member, Reason> {
        let path = image.path();
        let format = image.format().map_or_else(|| probe::format(path), Ok)?;
        // A raw image is looked at from outside only. Of others the header is read, which nobody is to change then.
        let nothing = Claim::new(Permissions::empty(), Permissions::empty());
        let claim = match (format, image.share(share)) {
            (Format::Qcow2, Share::Locked) => {
                let reader = Claim::exclusive(blkring_engine::Access::ReadOnly);
                Claim::new(Permissions::empty(), reader.denies)
            }
            (Format::Raw, _) | (_, Share::Forced) => nothing,
        };
        let file = probe::locked(path, image.locking(), claim)?;
        let metadata = file.metadata().map_err(|error| Reason::system(path, &error))?;
        let length = probe::length(&file).map_err(|error| Reason::system(path, &error))?;
        let header = match format {
            Format::Raw => None,
            Format::Qcow2 => Some(probe::header_of(&file, path, Access::Inspect)?),
        };
        Ok(Member { path: path.to_owned(), metadata, length, header, file })
    }

    /// The same for the file at `path`, which can be read, whatever its locks say.
    pub fn look(path: &Path, format: Option<Format>) -> Result<Member, Reason> {
        Member::look_under(path, format, Share::Forced)
    }

    /// The same with regard to its locks, or not.
    fn look_under(path: &Path, format: Option<Format>, share: Share) -> Result<Member, Reason> {
        let image = ImageName::of_file(path);
        let image = format.into_iter().fold(image, ImageName::of_format);
        let member = Member::open(&image, share)?;
        if let Some(header) = &member.header {
            header.require(Access::Read).map_err(|error| Reason::header(&error))?;
        }
        Ok(member)
    }

    /// Bytes of the virtual disk.
    pub fn virtual_size(&self) -> u64 {
        match &self.header {
            Some(header) => header.geometry().virtual_size(),
            None => self.length.next_multiple_of(probe::SECTOR as u64),
        }
    }

    /// What is below it.
    pub fn below(&self) -> Option<Below> {
        let header = self.header.as_ref()?;
        let name = header.backing_name()?;
        let format = header.backing_format();
        Some(Below {
            path: beside(&self.path, PathBuf::from(OsString::from_vec(name.to_vec()))),
            format: format.map(|format| String::from_utf8_lossy(format).into_owned()),
        })
    }

    /// Something that is the same for two names of one file.
    pub fn identity(&self) -> (u64, u64) {
        identity(&self.metadata)
    }

    /// What the others call the way to its bytes.
    pub fn protocol(&self) -> &'static str {
        if self.metadata.file_type().is_block_device() { "host_device" } else { "file" }
    }

    /// Its format.
    pub fn format(&self) -> Format {
        if self.header.is_some() { Format::Qcow2 } else { Format::Raw }
    }
}

impl Below {
    /// Looks at it, with its format as it was given: what a guest may have written is not probed, but under the names
    /// of those who do.
    fn open(&self, given: Option<Format>, share: Share) -> Result<Member, Reason> {
        if given.is_some() {
            return Member::look_under(&self.path, given, share);
        }
        let path = bytes::of_path(&self.path);
        let Some(format) = &self.format else {
            if name::own() != Name::Blkring {
                return Member::look_under(&self.path, None, share);
            }
            let text = format!("the format of the backing file '{path}' is not given");
            return Err(Reason::Words(text));
        };
        let format = options::format(format).map_err(Reason::Words)?;
        Member::look_under(&self.path, Some(format), share)
    }
}

/// A name as the image at `path` means it: from the directory of that image.
pub fn beside(path: &Path, name: PathBuf) -> PathBuf {
    path.parent().map(|directory| directory.join(&name)).unwrap_or(name)
}

/// An option is about a file so far below an image, and there is none.
pub fn missing_below(depth: usize) -> Reason {
    image_name::below(depth, "A block device must be specified for \"file\"")
}

/// Everything below `top`, if it is there; `formats` has those that were given, by depth. As long as it lives nobody
/// else writes it, if its locks count.
///
/// # Errors
/// What is wrong with the first file that cannot be used, in as many layers as lie above it.
pub fn members_below(
    top: &Member,
    formats: &BTreeMap<usize, Format>,
    share: Share,
) -> Result<Vec<Member>, Reason> {
    let mut members = Vec::new();
    let mut seen = vec![top.identity()];
    let mut below = top.below();
    while let Some(next) = below {
        let depth = seen.len();
        let deep = |reason| (0..depth).fold(reason, |inner, _| Reason::Backing(Box::new(inner)));
        let member = next.open(formats.get(&depth).copied(), share).map_err(deep)?;
        if seen.contains(&member.identity()) || depth > MAX_BELOW {
            let text = format!("{}: the backing chain does not end", bytes::of_path(&member.path));
            return Err(deep(Reason::Words(text)));
        }
        seen.push(member.identity());
        below = member.below();
        members.push(member);
    }
    match formats.last_key_value() {
        Some((depth, _)) if *depth >= seen.len() => Err(missing_below(*depth)),
        _ => Ok(members),
    }
}
