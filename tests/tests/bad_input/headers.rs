//! Headers, names and tables that are out of bounds: no such image is opened.

use blkring_tests::deadline::within;
use blkring_tests::hostile::{everything, sample, try_in_memory};

use crate::{AT_ONCE, CLUSTER_SIZES, get, put, put_u32};

/// Offsets in the header.
const VERSION: usize = 4;
const BACKING_OFFSET: usize = 8;
const BACKING_SIZE: usize = 16;
const CLUSTER_BITS: usize = 20;
const SIZE: usize = 24;
const CRYPT: usize = 32;
const L1_SIZE: usize = 36;
const L1_OFFSET: usize = 40;
const REFTABLE_OFFSET: usize = 48;
const REFTABLE_CLUSTERS: usize = 56;
const SNAPSHOTS: usize = 60;
const INCOMPATIBLE: usize = 72;
const REFCOUNT_ORDER: usize = 96;
const HEADER_LENGTH: usize = 100;

/// What the header of a sample is changed to, and how.
type Change = (&'static str, fn(&mut Vec<u8>));

const CHANGES: &[Change] = &[
    ("empty", |b| b.clear()),
    ("one byte", |b| b.truncate(1)),
    ("half a header", |b| b.truncate(50)),
    ("no extensions", |b| b.truncate(104)),
    ("no tables", |b| b.truncate(512)),
    ("wrong magic", |b| b[3] = b'x'),
    ("version 0", |b| put_u32(b, VERSION, 0)),
    ("version 1", |b| put_u32(b, VERSION, 1)),
    ("version 4", |b| put_u32(b, VERSION, 4)),
    ("clusters of 2^0", |b| put_u32(b, CLUSTER_BITS, 0)),
    ("clusters of 2^8", |b| put_u32(b, CLUSTER_BITS, 8)),
    ("clusters of 2^22", |b| put_u32(b, CLUSTER_BITS, 22)),
    ("clusters of 2^63", |b| put_u32(b, CLUSTER_BITS, 63)),
    ("clusters of 2^64", |b| put_u32(b, CLUSTER_BITS, 64)),
    ("clusters of 2^4294967295", |b| put_u32(b, CLUSTER_BITS, u32::MAX)),
    ("a size of 2^64 - 1", |b| put(b, SIZE, u64::MAX)),
    ("a size of 2^63", |b| put(b, SIZE, 1 << 63)),
    ("a size beyond the L1 table", |b| change(b, SIZE, |n| n * 1000)),
    ("encryption", |b| put_u32(b, CRYPT, 1)),
    ("unknown encryption", |b| put_u32(b, CRYPT, 77)),
    ("no L1 table", |b| put_u32(b, L1_SIZE, 0)),
    ("a vast L1 table", |b| put_u32(b, L1_SIZE, u32::MAX)),
    ("an L1 table beyond the end", |b| put(b, L1_OFFSET, 1 << 40)),
    ("an L1 table at the end of numbers", |b| put(b, L1_OFFSET, !0 << 21)),
    ("an L1 table not at a cluster", |b| change(b, L1_OFFSET, |n| n + 8)),
    ("an L1 table in the header", |b| put(b, L1_OFFSET, 0)),
    ("an L1 table in the refcount table", |b| {
        b.copy_within(REFTABLE_OFFSET..REFTABLE_OFFSET + 8, L1_OFFSET)
    }),
    ("no refcount table", |b| put_u32(b, REFTABLE_CLUSTERS, 0)),
    ("a vast refcount table", |b| put_u32(b, REFTABLE_CLUSTERS, u32::MAX)),
    ("a refcount table beyond the end", |b| put(b, REFTABLE_OFFSET, 1 << 40)),
    ("a refcount table at the end of numbers", |b| put(b, REFTABLE_OFFSET, !0 << 21)),
    ("a refcount table not at a cluster", |b| change(b, REFTABLE_OFFSET, |n| n + 8)),
    ("a refcount table in the header", |b| put(b, REFTABLE_OFFSET, 0)),
    ("a name beyond the first cluster", |b| {
        put(b, BACKING_OFFSET, 1 << 30);
        put_u32(b, BACKING_SIZE, 10);
    }),
    ("a name at the end of numbers", |b| {
        put(b, BACKING_OFFSET, u64::MAX - 4);
        put_u32(b, BACKING_SIZE, 10);
    }),
    ("a name of 1024 bytes", |b| {
        put(b, BACKING_OFFSET, 112);
        put_u32(b, BACKING_SIZE, 1024);
    }),
    ("a vast name", |b| {
        put(b, BACKING_OFFSET, 112);
        put_u32(b, BACKING_SIZE, u32::MAX);
    }),
    ("a name in the fixed header", |b| {
        put(b, BACKING_OFFSET, 8);
        put_u32(b, BACKING_SIZE, 10);
    }),
    ("snapshots", |b| put_u32(b, SNAPSHOTS, 3)),
    ("vast snapshots", |b| put_u32(b, SNAPSHOTS, u32::MAX)),
    ("unknown features", |b| put(b, INCOMPATIBLE, 1 << 63)),
    ("dirty", |b| put(b, INCOMPATIBLE, 1)),
    ("corrupt", |b| put(b, INCOMPATIBLE, 2)),
    ("a data file", |b| put(b, INCOMPATIBLE, 4)),
    ("extended entries", |b| put(b, INCOMPATIBLE, 16)),
    ("refcounts of 128 bits", |b| put_u32(b, REFCOUNT_ORDER, 7)),
    ("refcounts of 2^32 bits", |b| put_u32(b, REFCOUNT_ORDER, 32)),
    ("a header of no length", |b| put_u32(b, HEADER_LENGTH, 0)),
    ("a header of odd length", |b| put_u32(b, HEADER_LENGTH, 105)),
    ("a vast header", |b| put_u32(b, HEADER_LENGTH, u32::MAX)),
    ("a vast extension", |b| {
        let end = u32::from_be_bytes(b[HEADER_LENGTH..104].try_into().unwrap()) as usize;
        put_u32(b, end, 0x1234_5678);
        put_u32(b, end + 4, u32::MAX);
    }),
];

fn change(bytes: &mut [u8], at: usize, with: fn(u64) -> u64) {
    put(bytes, at, with(get(bytes, at)));
}

#[test]
fn what_is_out_of_bounds_is_refused() {
    for cluster_size in CLUSTER_SIZES {
        let sound = sample(cluster_size);
        for (name, change) in CHANGES {
            let mut bytes = sound.clone();
            change(&mut bytes);
            let tried = within(AT_ONCE, name, || try_in_memory(&bytes, everything));
            let Err(error) = tried.opened else {
                panic!("{name}, clusters of {cluster_size}: it was opened");
            };
            let text = error.to_string();
            assert!(text.starts_with("hostile: "), "{name}: {text}");
            assert!(error.errno() > 0, "{name}: {text}");
        }
    }
}

/// Every length of file up to the end of the tables.
#[test]
fn a_truncated_image_is_a_result() {
    for cluster_size in CLUSTER_SIZES {
        let sound = sample(cluster_size);
        for end in (0..sound.len()).step_by((cluster_size as usize / 4).max(128) + 8) {
            within(AT_ONCE, "a truncated image", || try_in_memory(&sound[..end], everything));
        }
    }
}
