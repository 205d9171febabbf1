//! How an image is to be opened, as the command line or a command says.

use std::ffi::OsString;

use blkring_engine::{Access, Cache};
use blkring_qcow2::AllocPolicy;

use crate::bytes;
use crate::disk::Opening;
use crate::failure::Failure;
use crate::image_name::{ImageName, Syntax, split, switch};
use crate::name;
use crate::options::{Aio, CacheMode, Format, Share, aio, cache_mode};
use crate::probe;
use crate::reason::Reason;

/// What becomes of discards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Discard {
    /// They give space back.
    #[default]
    Done,
    /// Nothing, and zero-writes give no space back either.
    Ignored,
}

/// Where writes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlay {
    /// To the image.
    #[default]
    None,
    /// To a new image over it, which is removed in the end.
    Temporary,
}

/// Whether what is read from backing files is written to the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CopyOnRead {
    /// It is.
    Yes,
    /// It is not.
    #[default]
    No,
}

impl From<bool> for Overlay {
    fn from(temporary: bool) -> Self {
        if temporary { Overlay::Temporary } else { Overlay::None }
    }
}

impl From<bool> for CopyOnRead {
    fn from(copy: bool) -> Self {
        if copy { CopyOnRead::Yes } else { CopyOnRead::No }
    }
}

/// How to open an image.
#[derive(Debug, Clone)]
pub struct Wish {
    /// The word for the image.
    pub path: Option<OsString>,
    /// How the word is read.
    pub syntax: Syntax,
    /// Its format.
    pub format: Option<String>,
    /// More options of the image.
    pub options: Option<String>,
    /// Whether it may be written.
    pub access: Access,
    /// Whether others may have it open.
    pub share: Share,
    /// How the host caches it.
    pub cache: CacheMode,
    /// What its I/O was asked to run on. Here it is always a ring.
    pub aio: Option<Aio>,
    /// What becomes of discards.
    pub discard: Discard,
    /// Where writes go.
    pub overlay: Overlay,
    /// Whether reads write.
    pub copy_on_read: CopyOnRead,
    /// How new clusters get their zeros.
    pub policy: AllocPolicy,
}

impl Default for Wish {
    fn default() -> Self {
        Wish {
            path: None,
            syntax: Syntax::FileName,
            format: None,
            options: None,
            access: Access::ReadWrite,
            share: Share::Locked,
            cache: CacheMode::Writeback,
            aio: None,
            discard: Discard::Done,
            overlay: Overlay::None,
            copy_on_read: CopyOnRead::No,
            policy: AllocPolicy::default(),
        }
    }
}

impl Wish {
    /// The image.
    ///
    /// # Errors
    /// If no image can be named so.
    pub fn name(&self) -> Result<ImageName, Failure> {
        let path = self.path.clone().unwrap_or_default();
        let (Some(options), Syntax::FileName) = (&self.options, self.syntax) else {
            if self.path.is_none() {
                return ImageName::parse(&OsString::from(","), Syntax::Options, None);
            }
            return ImageName::parse(&path, self.syntax, self.format.as_deref());
        };
        if self.path.is_none() {
            return ImageName::parse(options.as_ref(), Syntax::Options, None);
        }
        // The options are those of the format that is found.
        let driver = match probe::format(&bytes::path(&path.to_string_lossy())) {
            Ok(Format::Qcow2) if !split(options).iter().any(|key| key.starts_with("driver=")) => {
                "driver=qcow2,"
            }
            _ => "",
        };
        let escaped = path.to_string_lossy().replace(',', ",,");
        let all = OsString::from(format!("{driver}{options},file.filename={escaped}"));
        let named = ImageName::parse(&all, Syntax::Options, None);
        named.map(|name| name.given_as(&path)).map_err(|failure| failure.given_as(&path))
    }

    /// What the image's own options do not say, with what they do say of access.
    ///
    /// # Errors
    /// If the wishes do not go together.
    pub fn opening(&self, name: &ImageName) -> Result<Opening, Failure> {
        let no = |text: &str| Err(Failure::open(name, Reason::words(text)));
        let wishes = name.wishes();
        let access = match wishes.read_only {
            Some(false) => Access::ReadWrite,
            // That it is only read and is to be written do not go together.
            Some(true) | None => self.access,
        };
        let cache = self.cache.wished(wishes.direct, wishes.no_flush);
        if access == Access::ReadOnly && self.copy_on_read == CopyOnRead::Yes {
            return no("Can't use copy-on-read on read-only device");
        }
        if access == Access::ReadWrite && self.share == Share::Forced {
            return no("force-share=on can only be used with read-only images");
        }
        if self.aio == Some(Aio::Native) && cache.cache() != Cache::Direct {
            return Err(Failure::open(name, Reason::native_needs_direct()));
        }
        Ok(Opening {
            access,
            cache,
            share: self.share,
            policy: self.policy,
            ..Opening::read_only()
        })
    }
}

/// What is to be different from now on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// Whether it may be written.
    pub access: Option<Access>,
    /// How the host caches it.
    pub cache: Option<CacheMode>,
    /// Whether the page cache is bypassed.
    pub direct: Option<bool>,
    /// Whether flushes are ignored.
    pub no_flush: Option<bool>,
    /// What becomes of discards.
    pub discard: Option<Discard>,
}

/// Options that may be given again and are of no consequence here.
const PASSED_OVER: &[&str] = &[
    "auto-read-only",
    "cache-clean-interval",
    "cache-size",
    "detect-zeroes",
    "l2-cache-entry-size",
    "l2-cache-size",
    "overlap-check",
    "refcount-cache-size",
];

impl Change {
    /// Reads options of the image. One that cannot be changed is named.
    pub fn read(&mut self, options: &str) -> Result<(), String> {
        let switch = |name: &str, value: &str| {
            switch(name, value).map_err(|reason| reason.text(name::own(), ""))
        };
        for option in split(options) {
            let (name, value) = option.split_once('=').unwrap_or((&option, "on"));
            match name
                .strip_prefix("file.")
                .filter(|name| name.starts_with("cache."))
                .unwrap_or(name)
            {
                "read-only" if self.access.is_some() => {
                    return Err("Cannot set both -r/-w and 'read-only'".to_owned());
                }
                "read-only" => {
                    let read_only = switch(name, value)?;
                    self.access =
                        Some(if read_only { Access::ReadOnly } else { Access::ReadWrite });
                }
                "cache.direct" | "cache.no-flush" if self.cache.is_some() => {
                    return Err("Cannot set both -c and the cache options".to_owned());
                }
                "cache.direct" => self.direct = Some(switch(name, value)?),
                "cache.no-flush" => self.no_flush = Some(switch(name, value)?),
                "discard" => {
                    let word = discard_option(value);
                    self.discard = Some(word.map_err(|_| "Invalid discard option".to_owned())?);
                }
                // Reference counts are never postponed; an image that allows it is as good as one that does not.
                "lazy-refcounts" => drop(switch(name, value)?),
                known if PASSED_OVER.contains(&known) => (),
                _ => {
                    let name = name.strip_prefix("file.").unwrap_or(name);
                    return Err(format!("Cannot change the option '{name}'"));
                }
            }
        }
        Ok(())
    }

    /// What it makes of a cache mode.
    pub fn cache_of(&self, cache: CacheMode) -> CacheMode {
        self.cache.unwrap_or(cache).wished(self.direct, self.no_flush)
    }
}

/// As [`cache_mode`], with the words of qemu-io for what is none.
pub fn cache_option(word: &str) -> Result<CacheMode, String> {
    cache_mode(word).map_err(|_| format!("Invalid cache option: {word}"))
}

/// As [`aio`].
pub fn aio_option(word: &str) -> Result<Aio, String> {
    aio(word).map_err(|_| format!("Invalid aio option: {word}"))
}

/// Reads what becomes of discards.
pub fn discard_option(word: &str) -> Result<Discard, String> {
    match word {
        "unmap" | "on" => Ok(Discard::Done),
        "ignore" | "off" => Ok(Discard::Ignored),
        _ => Err(format!("Invalid discard option: {word}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(options: &str) -> Result<Change, String> {
        let mut change = Change::default();
        change.read(options).map(|()| change)
    }

    #[test]
    fn changes_are_read_and_others_are_named() {
        let read = change("read-only=on,cache.direct=on,discard=ignore,cache-size=1M").unwrap();
        assert_eq!(read.access, Some(Access::ReadOnly));
        assert_eq!((read.direct, read.discard), (Some(true), Some(Discard::Ignored)));
        assert_eq!(read.cache_of(CacheMode::Writeback), CacheMode::None);
        for (options, text) in [
            ("foo=bar", "Cannot change the option 'foo'"),
            ("file.filename=b", "Cannot change the option 'filename'"),
            ("read-only=x", "Parameter 'read-only' expects 'on' or 'off'"),
            ("discard=x", "Invalid discard option"),
        ] {
            assert_eq!(change(options), Err(text.to_owned()));
        }
        let mut both = Change { cache: Some(CacheMode::None), ..Change::default() };
        assert_eq!(
            both.read("cache.direct=on"),
            Err("Cannot set both -c and the cache options".to_owned())
        );
    }
}
