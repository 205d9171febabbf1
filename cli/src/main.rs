//! The `blkring` program.
fn main() {}
