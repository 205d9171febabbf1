//! Zstandard.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use zstd::zstd_safe::{CCtx, CParameter, DCtx, ResetDirective, find_frame_compressed_size};

use super::{Compression, CompressionError, Method};

const DAMAGED: CompressionError = CompressionError::Damaged { compression: Compression::Zstd };

pub(super) struct Encoder(CCtx<'static>);

impl Encoder {
    pub(super) fn new() -> Self {
        let mut context = CCtx::create();
        // Level 0 stands for the default. It is one that every version knows.
        context
            .set_parameter(CParameter::CompressionLevel(0))
            .expect("the default level is a level");
        Self(context)
    }
}

impl Method for Encoder {
    /// One frame.
    fn compress(&mut self, source: &[u8], output: &mut [u8]) -> Option<usize> {
        let written = self.0.compress2(output, source);
        if written.is_err() {
            // The frame that did not fit must not be gone on with.
            self.0.reset(ResetDirective::SessionOnly).ok()?;
        }
        written.ok()
    }
}

/// Fills `cluster` from one frame or several. Each goes from memory to memory: the window that a frame asks for is
/// never allocated.
pub(super) fn decompress(data: &[u8], cluster: &mut [u8]) -> Result<(), CompressionError> {
    let mut context = DCtx::create();
    let (mut data, mut rest) = (data, cluster);
    while !rest.is_empty() {
        if data.is_empty() {
            return Err(CompressionError::Short { compression: Compression::Zstd });
        }
        // What lies behind the frame is not for this cluster.
        let length = find_frame_compressed_size(data).map_err(|_| DAMAGED)?;
        let (frame, behind) = data.split_at_checked(length).ok_or(DAMAGED)?;
        let written = context.decompress(rest, frame).map_err(|_| DAMAGED)?;
        if frame.is_empty() {
            return Err(DAMAGED);
        }
        (data, rest) = (behind, rest.split_at_mut_checked(written).ok_or(DAMAGED)?.1);
    }
    Ok(())
}
