//! Compressed clusters: the bytes of one cluster, compressed by themselves.
//!
//! Everything here is work of the processor on the calling thread: no I/O, no shared state. A [`Compressor`] is made
//! for each thread that compresses.
//!
//! Which methods are there is chosen when the crate is built: by the cargo features `zlib` (on by default, in Rust)
//! and `zstd` (off by default; brings its C sources along).
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

#[cfg(feature = "zlib")]
mod zlib;
#[cfg(feature = "zstd")]
mod zstd;

use std::fmt;

/// The method that compresses clusters: one for all clusters of an image, named in its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Compression {
    /// Deflate without a header, with a window of 4 KiB at most.
    #[default]
    Zlib,
    /// Zstandard frames.
    Zstd,
}

impl Compression {
    /// By its name in options: `zlib` or `zstd`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "zlib" => Some(Self::Zlib),
            "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Its name in options.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
        }
    }

    /// Whether this build can compress and decompress by it.
    pub const fn is_built_in(self) -> bool {
        match self {
            Self::Zlib => cfg!(feature = "zlib"),
            Self::Zstd => cfg!(feature = "zstd"),
        }
    }

    /// By its number in headers.
    pub const fn of_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Zlib),
            1 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Its number in headers.
    pub const fn number(self) -> u8 {
        match self {
            Self::Zlib => 0,
            Self::Zstd => 1,
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a cluster cannot be compressed or decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompressionError {
    /// The method was left out of this build.
    #[error("this build has no {compression}")]
    NotBuiltIn {
        /// The method.
        compression: Compression,
    },
    /// What is there is not what the method makes.
    #[error("damaged {compression} data")]
    Damaged {
        /// The method.
        compression: Compression,
    },
    /// The data ends before the cluster is full.
    #[error("{compression} data for a part of a cluster only")]
    Short {
        /// The method.
        compression: Compression,
    },
}

impl CompressionError {
    /// The errno that stands for this error: ENOTSUP for what was left out, EIO for bad data.
    pub const fn errno(&self) -> i32 {
        match self {
            Self::NotBuiltIn { .. } => libc::ENOTSUP,
            Self::Damaged { .. } | Self::Short { .. } => libc::EIO,
        }
    }

    /// The error in words that need no memory.
    pub const fn reason(&self) -> &'static str {
        match *self {
            Self::NotBuiltIn { compression: Compression::Zlib } => "this build has no zlib",
            Self::NotBuiltIn { compression: Compression::Zstd } => "this build has no zstd",
            Self::Damaged { .. } => "damaged data of a compressed cluster",
            Self::Short { .. } => "compressed data for a part of a cluster only",
        }
    }
}

/// A cluster in compressed form, smaller than the cluster. Only a [`Compressor`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompressedCluster {
    bytes: Vec<u8>,
    cluster_size: usize,
    compression: Compression,
}

impl CompressedCluster {
    /// The compressed data.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Bytes of the cluster that was compressed.
    pub fn cluster_size(&self) -> usize {
        self.cluster_size
    }

    /// How it was compressed.
    pub fn compression(&self) -> Compression {
        self.compression
    }
}

/// Compresses clusters, one after the other.
pub struct Compressor {
    method: Box<dyn Method + Send>,
    compression: Compression,
    /// The cluster with zeros behind it, where less than a cluster was given.
    padded: Vec<u8>,
    /// One byte less than a cluster: what does not fit is not worth it.
    output: Vec<u8>,
}

/// What compresses.
trait Method {
    /// Compresses `source` into `output`; answers the length. `None` if it does not fit.
    fn compress(&mut self, source: &[u8], output: &mut [u8]) -> Option<usize>;
}

impl fmt::Debug for Compressor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compressor")
            .field("compression", &self.compression)
            .field("cluster_size", &self.padded.len())
            .finish_non_exhaustive()
    }
}

impl Compressor {
    /// A compressor for clusters of `cluster_size` bytes, at least 512. It takes some hundred KiB of memory.
    ///
    /// # Errors
    /// [`CompressionError::NotBuiltIn`].
    pub fn new(compression: Compression, cluster_size: usize) -> Result<Self, CompressionError> {
        let method = method(compression)?;
        let output = vec![0; cluster_size.saturating_sub(1)];
        Ok(Self { method, compression, padded: vec![0; cluster_size], output })
    }

    /// Compresses `cluster`. One that is shorter, as the last one of a disk may be, counts as filled up with zeros.
    /// `None` if the result would not be smaller than a cluster: such a cluster is to be written as it is.
    ///
    /// # Panics
    /// If `cluster` is longer than a cluster: a bug of the caller.
    pub fn compress(&mut self, cluster: &[u8]) -> Option<CompressedCluster> {
        let size = self.padded.len();
        assert!(cluster.len() <= size, "{} bytes for a cluster of {size}", cluster.len());
        let source = if cluster.len() == size {
            cluster
        } else {
            let (start, rest) = self.padded.split_at_mut(cluster.len());
            start.copy_from_slice(cluster);
            rest.fill(0);
            &self.padded
        };
        let written = self.method.compress(source, &mut self.output)?;
        let bytes = self.output.get(..written)?.to_vec();
        Some(CompressedCluster { bytes, cluster_size: size, compression: self.compression })
    }
}

fn method(compression: Compression) -> Result<Box<dyn Method + Send>, CompressionError> {
    match compression {
        #[cfg(feature = "zlib")]
        Compression::Zlib => Ok(Box::new(zlib::Deflater::new())),
        #[cfg(feature = "zstd")]
        Compression::Zstd => Ok(Box::new(zstd::Encoder::new())),
        #[cfg(not(all(feature = "zlib", feature = "zstd")))]
        compression => Err(CompressionError::NotBuiltIn { compression }),
    }
}

/// Decompresses one cluster from the start of `data` into `cluster`, all of it. What lies behind its data is not
/// looked at. Time and memory are bounded by the lengths of both.
///
/// # Errors
/// [`CompressionError`]; `cluster` then holds anything.
#[cfg_attr(
    not(any(feature = "zlib", feature = "zstd")),
    expect(unused_variables, reason = "there is nothing to decompress by")
)]
pub fn decompress(
    compression: Compression,
    data: &[u8],
    cluster: &mut [u8],
) -> Result<(), CompressionError> {
    match compression {
        #[cfg(feature = "zlib")]
        Compression::Zlib => zlib::decompress(data, cluster),
        #[cfg(feature = "zstd")]
        Compression::Zstd => zstd::decompress(data, cluster),
        #[cfg(not(all(feature = "zlib", feature = "zstd")))]
        compression => Err(CompressionError::NotBuiltIn { compression }),
    }
}

#[cfg(test)]
mod tests;
