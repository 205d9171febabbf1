//! Storages and raw disks on block devices: loop devices of 512 and of 4096 bytes in a logical block.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod changes;
mod limits;
mod opening;
mod setup;
mod sizes;
