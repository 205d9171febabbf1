//! How an image is named on the command line: by a file, by options, or by `json:` and an object.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use blkring_engine::LockMode;
use blkring_qcow2::SnapshotKey;

use crate::bytes;
use crate::failure::Failure;
use crate::name::{self, Name};
use crate::options::{self, Format, Share};
use crate::reason::Reason;

mod filters;
mod injection;
mod node;

pub use injection::Injection;
pub use node::{Wishes, below, split, switch};

/// How the word for an image is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    /// A file name, or `json:{..}`.
    FileName,
    /// `driver=qcow2,file.filename=..`, as `--image-opts` says.
    Options,
}

impl Syntax {
    /// What the switch `--image-opts` says.
    pub fn of(image_opts: bool) -> Self {
        if image_opts { Syntax::Options } else { Syntax::FileName }
    }
}

/// An image as it was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageName {
    given: String,
    syntax: Syntax,
    path: PathBuf,
    wishes: Wishes,
}

impl ImageName {
    /// Reads the word for an image. `format` is what an option of its own says; it excludes options of the image.
    ///
    /// # Errors
    /// If there can be no such image.
    pub fn parse(word: &OsStr, syntax: Syntax, format: Option<&str>) -> Result<ImageName, Failure> {
        let given = word.to_string_lossy().into_owned();
        if syntax == Syntax::Options && format.is_some() {
            let text = "--image-opts and --format are mutually exclusive";
            return Err(Failure::Usage(text.to_owned()));
        }
        let failed = |reason| Failure::Open { given: given.clone(), syntax, reason };
        let format = format.map(options::format).transpose();
        let format = format.map_err(|text| failed(Reason::Words(text)))?;
        let keys = match (syntax, given.strip_prefix("json:")) {
            (Syntax::Options, _) => node::keys_of_options(&given),
            (Syntax::FileName, Some(text)) => node::keys_of_json(text),
            (Syntax::FileName, None) => {
                let (word, injection) = debugged(word).map_err(failed)?;
                let path = plain(&word).map_err(failed)?;
                let wishes = Wishes { format, injection, ..Wishes::default() };
                return Ok(ImageName { given, syntax, path, wishes });
            }
        };
        let keys: BTreeMap<String, String> = keys.map_err(failed)?;
        let (path, mut wishes) = node::read(keys).map_err(failed)?;
        wishes.format = wishes.format.or(format);
        Ok(ImageName { given, syntax, path, wishes })
    }

    /// The image in a file.
    pub fn of_file(path: &Path) -> Self {
        ImageName {
            given: bytes::of_path(path),
            syntax: Syntax::FileName,
            path: path.to_owned(),
            wishes: Wishes::default(),
        }
    }

    /// The same with a format.
    #[must_use]
    pub fn of_format(mut self, format: Format) -> Self {
        self.wishes.format = Some(format);
        self
    }

    /// The same, of which a snapshot is read.
    #[must_use]
    pub fn of_snapshot(mut self, key: Option<SnapshotKey>) -> Self {
        self.wishes.snapshot = key;
        self
    }

    /// The same, told as another word in messages.
    #[must_use]
    pub fn given_as(mut self, word: &OsStr) -> Self {
        self.given = word.to_string_lossy().into_owned();
        self.syntax = Syntax::FileName;
        self
    }

    /// The word, for messages.
    pub fn given(&self) -> &str {
        &self.given
    }

    /// How it was read.
    pub fn syntax(&self) -> Syntax {
        self.syntax
    }

    /// Where the image is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its format, if it was given.
    pub fn format(&self) -> Option<Format> {
        self.wishes.format
    }

    /// Whether locks of others count, for a command that was told `share`.
    pub fn share(&self, share: Share) -> Share {
        if self.wishes.force_share == Some(true) { Share::Forced } else { share }
    }

    /// Whether the file is locked.
    pub fn locking(&self) -> LockMode {
        self.wishes.locking.unwrap_or_default()
    }

    /// What else was said about it.
    pub fn wishes(&self) -> &Wishes {
        &self.wishes
    }
}

/// What a file name says of faults, `blkdebug:CONFIG:FILE`, and the file name in it.
fn debugged(word: &OsStr) -> Result<(OsString, Option<Injection>), Reason> {
    let (mut word, mut all) = (word.to_owned(), None);
    while let Some(rest) = word.to_str().and_then(|word| word.strip_prefix("blkdebug:")) {
        let (config, file) = rest
            .split_once(':')
            .ok_or_else(|| Reason::words("blkdebug requires both config file and image path"))?;
        let injection = Injection::of_file(config)?;
        all = Some(all.unwrap_or_else(Injection::default).and(injection));
        word = OsString::from(file);
    }
    Ok((word, all))
}

/// The path in a file name. The others take what comes before a colon for a protocol; there is one here, `file`.
fn plain(word: &OsStr) -> Result<PathBuf, Reason> {
    let word = word.to_string_lossy();
    if let Some(path) = word.strip_prefix("file:") {
        return Ok(bytes::path(path));
    }
    let colon = word.find(':').filter(|colon| word.find('/').is_none_or(|slash| *colon < slash));
    match colon.and_then(|colon| word.get(..colon)) {
        Some(protocol) if name::own() != Name::Blkring => {
            Err(Reason::words(format!("Unknown protocol '{protocol}'")))
        }
        _ => Ok(bytes::path(&word)),
    }
}
