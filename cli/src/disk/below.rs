//! The files below an image: how they are opened, and what they are taken for.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use blkring_engine::{Access, OpenError, Operation, Storage};
use blkring_qcow2::{FileOpener, Opener};

use crate::chain;
use crate::name::{self, Name};
use crate::options::Format;
use crate::probe;
use crate::reason::Reason;

/// Opens the files and counts them: so far below the image is the one that cannot be used.
pub struct Files<'a> {
    files: FileOpener,
    /// The formats that were given, by how far below the image they are.
    formats: &'a BTreeMap<usize, Format>,
    opened: Mutex<usize>,
}

impl<'a> Files<'a> {
    /// None is opened yet.
    pub fn new(files: FileOpener, formats: &'a BTreeMap<usize, Format>) -> Self {
        Files { files, formats, opened: Mutex::new(0) }
    }

    /// How many were opened, or could not be.
    pub fn opened(&self) -> usize {
        *self.count()
    }

    /// Whether there is a file for every format that was given.
    pub fn all_met(&self) -> Result<(), Reason> {
        match self.formats.last_key_value() {
            Some((depth, _)) if *depth > self.opened() => Err(chain::missing_below(*depth)),
            _ => Ok(()),
        }
    }

    fn count(&self) -> MutexGuard<'_, usize> {
        self.opened.lock().expect("nobody panics while counting")
    }
}

impl Opener for Files<'_> {
    fn open(&self, referrer: &Path, name: &OsStr, access: Access) -> Result<Storage, OpenError> {
        *self.count() += 1;
        self.files.open(referrer, name, access)
    }

    /// What was given counts more than what the image says. Where neither says anything, qemu-img and qemu-io look
    /// into the file; under its own name the program does not.
    fn format(&self, file: &Storage, named: Option<&str>) -> Result<Option<String>, OpenError> {
        if let Some(format) = self.formats.get(&self.opened()) {
            return Ok(Some(format.name().to_owned()));
        }
        if named.is_some() || name::own() == Name::Blkring {
            return Ok(named.map(str::to_owned));
        }
        let guess = File::open(file.file_path()).and_then(|mut file| probe::guess_of(&mut file));
        let guess = guess.map_err(|error| {
            file.error(Operation::Read, 0, error.raw_os_error().unwrap_or(libc::EIO))
        })?;
        Ok(Some(guess.name().to_owned()))
    }
}
