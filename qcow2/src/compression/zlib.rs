//! Deflate. Readers inflate with a window of 4 KiB and refuse a longer distance, so that is the window here.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};

use super::{Compression, CompressionError, Method};

/// Base-2 logarithm of the window, in bytes.
const WINDOW_BITS: u8 = 12;

pub(super) struct Deflater(Compress);

impl Deflater {
    pub(super) fn new() -> Self {
        Self(Compress::new_with_window_bits(flate2::Compression::default(), false, WINDOW_BITS))
    }
}

impl Method for Deflater {
    fn compress(&mut self, source: &[u8], output: &mut [u8]) -> Option<usize> {
        if let Ok(Status::StreamEnd) = self.0.compress(source, output, FlushCompress::Finish) {
            let length = usize::try_from(self.0.total_out()).ok();
            self.0.reset();
            return length;
        }
        // A stream that has not ended is not reset: zlib-rs 0.6.8 then panics when bytes of it are pending.
        *self = Self::new();
        None
    }
}

/// Fills `cluster`. Data that would go on is cut off, as other readers do.
pub(super) fn decompress(data: &[u8], cluster: &mut [u8]) -> Result<(), CompressionError> {
    // The largest window takes any data, also that of writers with a larger one.
    let mut inflate = Decompress::new(false);
    let size = cluster.len() as u64;
    let status = inflate.decompress(data, cluster, FlushDecompress::Finish);
    match status {
        _ if inflate.total_out() == size && status.is_ok() => Ok(()),
        Ok(_) => Err(CompressionError::Short { compression: Compression::Zlib }),
        Err(_) => Err(CompressionError::Damaged { compression: Compression::Zlib }),
    }
}
