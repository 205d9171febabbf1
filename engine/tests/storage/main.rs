//! Storages over the simulated disk: order, cancellation, faults, sizes, limits.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod device_ladder;
mod faults;
mod flush;
mod growth;
mod ladder;
mod limits;
mod quiesce;
mod rmw;
mod setup;
mod stacked;
mod tracked;
mod withdrawal;
