//! The image that is open.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;

use blkring_engine::faults::Faults;
use blkring_engine::{Access, Disk, Queue, Target};
use blkring_qcow2::{Backing, CreateOptions};
use tempfile::TempPath;

use super::breakpoints;
use super::injected::Injected;
use super::wish::{Change, CopyOnRead, Discard, Overlay, Wish};
use crate::create;
use crate::disk::{AnyDisk, OnTop, Opening};
use crate::failure::Failure;
use crate::image_name::{ImageName, Injection};
use crate::options::{CacheMode, Format};
use crate::probe;
use crate::reason::Reason;

/// An open image, and how it was opened.
pub struct Opened {
    /// The image.
    pub image: AnyDisk,
    /// It on the session's queue.
    pub disk: Disk,
    /// What becomes of discards.
    pub discard: Discard,
    /// Whether reads write.
    pub copy_on_read: CopyOnRead,
    name: ImageName,
    opening: Opening,
    /// The file that is removed when the image is closed.
    overlay: Option<TempPath>,
    /// The faults in what is asked of it.
    above: Option<Arc<Faults>>,
}

/// How an image was open.
pub struct Closed {
    discard: Discard,
    copy_on_read: CopyOnRead,
    name: ImageName,
    opening: Opening,
    overlay: Option<TempPath>,
}

impl Opened {
    /// Opens an image.
    ///
    /// # Errors
    /// If it cannot be opened so.
    pub fn open(queue: &mut Queue, wish: &Wish) -> Result<Self, Failure> {
        let name = wish.name()?;
        let opening = wish.opening(&name)?;
        match wish.overlay {
            Overlay::None => Self::with(queue, wish, name, opening, None),
            Overlay::Temporary => {
                let (path, name) = overlay(queue, &name, &opening)?;
                let opening = Opening { cache: CacheMode::Unsafe, ..opening };
                Self::with(queue, wish, name, opening, Some(path))
            }
        }
    }

    fn with(
        queue: &mut Queue,
        wish: &Wish,
        name: ImageName,
        opening: Opening,
        overlay: Option<TempPath>,
    ) -> Result<Self, Failure> {
        let (image, disk, above) = open(queue, &name, opening)?;
        let (discard, copy_on_read) = (wish.discard, wish.copy_on_read);
        Ok(Opened { image, disk, discard, copy_on_read, name, opening, overlay, above })
    }

    /// The faults that commands are about.
    pub fn faults(&self) -> Option<&Arc<Faults>> {
        self.above.as_ref().or_else(|| self.image.storage().faults())
    }

    /// Bytes of the disk, now.
    pub fn size(&self) -> u64 {
        match &self.image {
            AnyDisk::Raw(disk) => disk.size(),
            AnyDisk::Probed(disk) => disk.size(),
            AnyDisk::Qcow2(image) => image.size(),
        }
    }

    /// Whether it may be written.
    pub fn access(&self) -> Access {
        self.opening.access
    }

    /// How the host caches it.
    pub fn cache(&self) -> CacheMode {
        self.opening.cache
    }

    /// Closes it. No request is on its way.
    ///
    /// # Errors
    /// Of the queue and of the image.
    pub fn close(self, queue: &mut Queue) -> Result<Closed, Failure> {
        self.image.close(queue)?;
        let Opened { discard, copy_on_read, name, opening, overlay, .. } = self;
        Ok(Closed { discard, copy_on_read, name, opening, overlay })
    }

    /// Opens it again, now that it is closed, in another way.
    ///
    /// # Errors
    /// If it cannot be opened so.
    pub fn reopen(queue: &mut Queue, closed: Closed, change: &Change) -> Result<Self, Failure> {
        let Closed { discard, copy_on_read, name, opening, overlay } = closed;
        let opening = Opening {
            access: change.access.unwrap_or(opening.access),
            cache: change.cache_of(opening.cache),
            ..opening
        };
        let (image, disk, above) = open(queue, &name, opening)?;
        let discard = change.discard.unwrap_or(discard);
        Ok(Opened { image, disk, discard, copy_on_read, name, opening, overlay, above })
    }
}

/// The image, what requests go to, and the faults between the two.
fn open(
    queue: &mut Queue,
    name: &ImageName,
    opening: Opening,
) -> Result<(AnyDisk, Disk, Option<Arc<Faults>>), Failure> {
    let image = AnyDisk::open(queue, name, Opening { on_top: OnTop::Made, ..opening })?;
    let above = name.wishes().above.as_ref().map(Injection::faults);
    let disk = match &above {
        Some(faults) => queue.attach(&Injected::new(&image, faults))?,
        None => image.attach(queue)?,
    };
    if let Some(faults) = above.as_ref().or_else(|| image.storage().faults()) {
        breakpoints::tell(faults);
    }
    Ok((image, disk, above))
}

/// Makes an empty image over another one, which is opened to see that it can be.
fn overlay(
    queue: &mut Queue,
    below: &ImageName,
    opening: &Opening,
) -> Result<(TempPath, ImageName), Failure> {
    let cannot =
        |reason: std::io::Error| Failure::open(below, Reason::system(below.path(), &reason));
    let base = AnyDisk::open(queue, below, Opening { access: Access::ReadOnly, ..*opening })?;
    let size = base.attach(queue)?.size();
    base.close(queue)?;
    let probed = || probe::format(below.path()).map_err(|reason| Failure::open(below, reason));
    let format = below.format().map_or_else(probed, Ok)?;
    let path = std::path::absolute(below.path()).map_err(cannot)?;
    let backing = Backing::new(OsString::from(path).into_vec(), format.name().as_bytes());
    let file = tempfile::Builder::new().prefix("blkring-").tempfile().map_err(cannot)?;
    let file = file.into_temp_path();
    let plan = CreateOptions::new(size).backing(Some(backing));
    create::image(&file, &plan)
        .map_err(|source| Failure::Create { path: file.display().to_string(), source })?;
    let name = ImageName::of_file(Path::new(&*file)).of_format(Format::Qcow2);
    Ok((file, name))
}
