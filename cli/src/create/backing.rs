//! The backing file of a new image.

use std::collections::BTreeMap;
use std::path::Path;

use blkring_qcow2::Backing;

use super::option_list::OptionList;
use crate::bytes;
use crate::chain::{self, Member};
use crate::name;
use crate::options::{self, Share};
use crate::reason::Reason;

/// Whether the backing file is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// It must be there, and may give the size.
    Yes,
    /// It is only named.
    No,
}

/// What the new image at `path` is to say of its backing file, and how large that is, if it was looked at.
///
/// # Errors
/// In words, if there cannot be such a backing file.
pub fn read(
    path: &Path,
    given: &OptionList,
    look: Look,
) -> Result<Option<(Backing, Option<u64>)>, String> {
    let Some(backing) = given.text("backing_file") else {
        return match given.text("backing_fmt") {
            Some(_) => Err("Backing format cannot be used without backing file".to_owned()),
            None => Ok(None),
        };
    };
    if backing.is_empty() {
        return Err("Expected backing file name, got empty string".to_owned());
    }
    let same = "Error: Trying to create an image with the same filename as the backing file";
    if bytes::path(backing) == path {
        return Err(same.to_owned());
    }
    let format = given.text("backing_fmt");
    let there = chain::beside(path, bytes::path(backing));
    let seen = match look {
        Look::Yes => Some(open(&there, format).map_err(|reason| {
            let text = reason.text(name::own(), "");
            format!("{text}\nCould not open backing image.")
        })?),
        Look::No => None,
    };
    // What is there already under another name would be overwritten.
    let own = std::fs::metadata(path).ok().map(|metadata| blkring_engine::identity(&metadata));
    let other = std::fs::metadata(&there).ok().map(|metadata| blkring_engine::identity(&metadata));
    if own.is_some() && own == other {
        return Err(same.to_owned());
    }
    let Some(format) = format else {
        let text = "Backing file specified without backing format";
        return Err(match seen {
            Some(seen) => format!("{text}\nDetected format of {}.", seen.format().name()),
            None => text.to_owned(),
        });
    };
    let backing = Backing::new(bytes::bytes(backing), bytes::bytes(format));
    Ok(Some((backing, seen.map(|seen| seen.virtual_size()))))
}

/// Looks at a backing file and all below it. Its own format is probed where it was not given, to be told and not to
/// be used.
fn open(path: &Path, format: Option<&str>) -> Result<Member, Reason> {
    let format = format.map(options::format).transpose().map_err(Reason::Words)?;
    let member = Member::look(path, format)?;
    chain::members_below(&member, &BTreeMap::new(), Share::Forced)?;
    Ok(member)
}
