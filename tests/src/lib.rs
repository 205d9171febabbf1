//! What the integration tests share: images in simulated worlds, file systems on loop devices, the installed qemu tools, the `blkring` program,
//! and the report of what could not be tested.
//!
//! A test that cannot run here says so through [`report`] and returns; it never passes silently. `cargo xtask test`
//! collects these lines, and with `--ci` (`BLKRING_CI=1`) a skip panics instead.

/// What the README shows is compiled.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

pub mod abandoned;
pub mod backend;
pub mod beside;
pub mod counted;
pub mod crowd;
pub mod deadline;
pub mod differential;
pub mod duo;
pub mod fallocate_trace;
pub mod fs;
pub mod fs_suite;
pub mod holder;
pub mod hostile;
pub mod image_world;
pub mod images;
pub mod links;
pub mod loop_device;
pub mod mounts;
pub mod powercut;
pub mod program;
pub mod report;
pub mod ring_trace;
pub mod snapshots;
mod sweep;
pub mod tidy;
pub mod tools;
mod trace;
pub mod twins;
pub mod worlds;
pub mod write_log;
