//! Benchmarks of the blkring engine and driver, as a library.
//!
//! - [`stream`]: equal requests at a steady step on one queue: what `qemu-img bench` measures.
//! - [`pattern`], [`histogram`]: what the benchmarks write and how they count time.

pub mod histogram;
pub mod pattern;
mod random;
pub mod stream;
