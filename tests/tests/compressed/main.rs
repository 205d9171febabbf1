//! Compressed clusters: made by the installed qemu-img and by us, read, overwritten and given up, judged by a model in
//! memory and by qemu-img.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod beside;
mod changes;
mod failures;
mod hostile;
mod reading;
mod writing;

use std::path::{Path, PathBuf};

use blkring_engine::sim::Rng;
use blkring_qcow2::Compression;
use blkring_tests::crowd::same;
use blkring_tests::images::Opened;
use blkring_tests::tools::{missing, qemu_img};

/// Sizes of clusters, with the size of the disk: the last cluster is not whole.
const SIZES: [(u64, u64); 4] = [
    (512, (1 << 20) + 512),
    (4096, (4 << 20) + 1536),
    (65536, (12 << 20) + 1536),
    (2 << 20, (32 << 20) + 512),
];

const BOTH: [Compression; 2] = [Compression::Zlib, Compression::Zstd];

/// Whether the programs that these tests compare with are missing.
fn no_peers() -> bool {
    missing("qemu-img") || missing("qemu-io")
}

/// What a disk may hold: text, noise, zeros and single bytes, in runs that begin and end anywhere.
fn contents(size: u64, seed: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let mut bytes = Vec::with_capacity(size as usize);
    while (bytes.len() as u64) < size {
        let left = size - bytes.len() as u64;
        let len = (1 + rng.below(100_000)).min(left);
        let kind = rng.below(5);
        let start = bytes.len() as u64;
        bytes.extend((start..start + len).map(|at| match kind {
            0 => 0,
            1 => b"the quick brown fox jumps over the lazy dog\n"[(at % 44) as usize],
            2 => rng.below(256) as u8,
            3 => seed as u8 ^ 0x5a,
            // Half of it can be compressed away.
            _ => rng.below(16) as u8,
        }));
    }
    bytes
}

/// Has qemu-img make a compressed image of `contents`.
fn convert(dir: &Path, contents: &[u8], cluster: u64, compression: Compression) -> PathBuf {
    let (raw, path) = (dir.join("plain.raw"), dir.join("packed.qcow2"));
    std::fs::write(&raw, contents).unwrap();
    let options = format!("cluster_size={cluster},compression_type={compression}");
    let (from, to) = (raw.to_str().unwrap(), path.to_str().unwrap());
    qemu_img(&["convert", "-c", "-f", "raw", "-O", "qcow2", "-o", &options, from, to])
        .unwrap_or_else(|error| panic!("{error}"));
    path
}

/// qemu-img finds nothing wrong with an image, and these bytes in it.
fn judge(path: &Path, contents: &[u8]) {
    let path = path.to_str().unwrap();
    qemu_img(&["check", "-f", "qcow2", path]).unwrap_or_else(|error| panic!("{error}"));
    let expected = format!("{path}.expected");
    std::fs::write(&expected, contents).unwrap();
    qemu_img(&["compare", "-f", "raw", "-F", "qcow2", &expected, path])
        .unwrap_or_else(|error| panic!("{error}"));
}

/// An open image reads as these bytes.
fn assert_reads(opened: &mut Opened, contents: &[u8], what: &str) {
    for (number, expected) in contents.chunks(3 << 20).enumerate() {
        let offset = (number * (3 << 20)) as u64;
        let found = opened.read(offset, expected.len());
        same(&found, expected, offset).unwrap_or_else(|error| panic!("{what}: {error}"));
    }
}
