//! Images that lie. Whatever their bytes say, the answer comes at once, needs little memory, and is a result.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

mod headers;
mod metadata;
mod mutations;
mod resources;
mod snapshots;
mod uncounted;

/// How long all requests to one image may take.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Sizes of clusters that are tried.
const CLUSTER_SIZES: [u64; 3] = [512, 4096, 65536];

fn put(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_be_bytes());
}

fn put_u32(bytes: &mut [u8], at: usize, number: u32) {
    bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
}

fn get(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap())
}
