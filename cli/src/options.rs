//! Options that several commands have.

use blkring_engine::{Cache, Flags, Flushing};

use crate::arguments::Misuse;

/// The format of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// The bytes of the file.
    Raw,
    /// qcow2, version 3.
    Qcow2,
}

impl Format {
    /// As options and messages call it.
    pub fn name(self) -> &'static str {
        match self {
            Format::Raw => "raw",
            Format::Qcow2 => "qcow2",
        }
    }
}

/// Reads the name of a format.
pub fn format(word: &str) -> Result<Format, String> {
    match word {
        "raw" => Ok(Format::Raw),
        "qcow2" => Ok(Format::Qcow2),
        _ => Err(format!("Unknown driver '{word}'")),
    }
}

/// Whether others may have an image open at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Share {
    /// As its locks say.
    #[default]
    Locked,
    /// Whatever its locks say.
    Forced,
}

impl Share {
    /// What the switch `-U` says.
    pub fn of(force_share: bool) -> Self {
        if force_share { Share::Forced } else { Share::Locked }
    }
}

/// How the host caches an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheMode {
    /// No page cache; flushes make data durable.
    None,
    /// Page cache; flushes make data durable.
    Writeback,
    /// Page cache; every write is durable when it ends.
    Writethrough,
    /// No page cache; every write is durable when it ends.
    Directsync,
    /// Page cache; flushes do nothing.
    Unsafe,
}

impl CacheMode {
    /// As the option calls it.
    pub fn name(self) -> &'static str {
        match self {
            CacheMode::None => "none",
            CacheMode::Writeback => "writeback",
            CacheMode::Writethrough => "writethrough",
            CacheMode::Directsync => "directsync",
            CacheMode::Unsafe => "unsafe",
        }
    }

    /// The same, with what was said of the page cache and of flushes in particular.
    #[must_use]
    pub fn wished(self, direct: Option<bool>, no_flush: Option<bool>) -> Self {
        let durable = !self.write_flags().is_empty();
        match (direct, no_flush) {
            (None, None) => self,
            (_, Some(true)) => CacheMode::Unsafe,
            (direct, _) => match (direct.unwrap_or(self.cache() == Cache::Direct), durable) {
                (true, true) => CacheMode::Directsync,
                (true, false) => CacheMode::None,
                (false, true) => CacheMode::Writethrough,
                (false, false) => CacheMode::Writeback,
            },
        }
    }

    /// Whether the page cache is used.
    pub fn cache(self) -> Cache {
        match self {
            CacheMode::None | CacheMode::Directsync => Cache::Direct,
            CacheMode::Writeback | CacheMode::Writethrough | CacheMode::Unsafe => Cache::Cached,
        }
    }

    /// What each write carries.
    pub fn write_flags(self) -> Flags {
        match self {
            CacheMode::Writethrough | CacheMode::Directsync => Flags::FUA,
            CacheMode::None | CacheMode::Writeback | CacheMode::Unsafe => Flags::empty(),
        }
    }

    /// Whether flushes are to be done.
    pub fn flushes(self) -> bool {
        self != CacheMode::Unsafe
    }

    /// What a flush of a file does.
    pub fn flushing(self) -> Flushing {
        if self.flushes() { Flushing::Done } else { Flushing::Ignored }
    }
}

/// Reads the name of a cache mode.
pub fn cache_mode(word: &str) -> Result<CacheMode, String> {
    match word {
        "none" | "off" => Ok(CacheMode::None),
        "writeback" => Ok(CacheMode::Writeback),
        "writethrough" => Ok(CacheMode::Writethrough),
        "directsync" => Ok(CacheMode::Directsync),
        "unsafe" => Ok(CacheMode::Unsafe),
        _ => Err("Invalid cache mode".to_owned()),
    }
}

/// The kind of asynchronous I/O that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Aio {
    /// A pool of threads.
    Threads,
    /// The asynchronous I/O of the kernel: Linux AIO elsewhere, the ring here.
    Native,
    /// io_uring.
    IoUring,
}

impl Aio {
    /// As the option calls it.
    pub fn name(self) -> &'static str {
        match self {
            Aio::Threads => "threads",
            Aio::Native => "native",
            Aio::IoUring => "io_uring",
        }
    }
}

/// Reads the name of a kind of asynchronous I/O.
pub fn aio(word: &str) -> Result<Aio, String> {
    match word {
        "threads" => Ok(Aio::Threads),
        "native" => Ok(Aio::Native),
        "io_uring" => Ok(Aio::IoUring),
        _ => Err(format!("Invalid aio option: {word}")),
    }
}

/// How a result is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// For people.
    Human,
    /// For programs.
    Json,
}

/// Reads the name of a way to print.
pub fn output(word: &str) -> Result<Output, Misuse> {
    match word {
        "human" => Ok(Output::Human),
        "json" => Ok(Output::Json),
        _ => Err(Misuse(format!("--output expects 'human' or 'json' not '{word}'"))),
    }
}
