//! Failures that were seen in the field, of other programs, on the driver as it is. Each is named by its number in the
//! project's list.
//!
//! On the simulated disk there is more: F27 with the growth rules broken is in the engine's `f27_` tests and, for
//! whole images, in `race.rs`; F44 is in `quiesce.rs`; F43 with every prefix and legal reordering is the power-cut enumerator (`powercut.rs`).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod alignment;
mod backing_names;
mod beyond_the_end;
mod chains;
mod compressed;
mod copies;
mod copy_locks;
mod features;
mod file_systems;
mod formats;
mod locks;
mod one_file;
mod power;
mod refcounts;
mod rings;
mod sharing;
mod snapshots;
mod threads;
mod topology;
mod version_2;
mod zeroing;
