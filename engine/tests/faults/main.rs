//! Faults on purpose, on files, in memory and on the simulated disk: what is struck, what is kept, and how it ends.
#![allow(clippy::unwrap_used, reason = "helpers of tests: a failed step fails the test")]

#[path = "../backend/mod.rs"]
mod backend;
mod held;
mod places;
mod points;
mod rules;
