//! Benchmarks of the blkring engine and driver, as a library.
//!
//! - [`stream`]: equal requests at a steady step on one queue: what `qemu-img bench` measures.
//! - [`job`]: the main job. Several queues write an image, overwrite it at random and read it at random; [`plan`] says
//!   what is written where, so that every byte can be verified, then and later ([`verify`]).
//! - [`pattern`], [`table`]: what the jobs write, and how it is printed.

pub mod job;
mod label;
pub mod pattern;
pub mod plan;
mod random;
pub mod stream;
pub mod table;
pub mod verify;
mod worker;
