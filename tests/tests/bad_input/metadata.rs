//! Mappings that lead into the image's own structures: the write is EIO, the image is marked corrupt, and nothing but
//! that mark is written.

use std::process::Command;

use blkring_engine::{Flags, IoMem, Request, Storage};
use blkring_qcow2::{Access, FileOpener, Header, Image, ImageOptions, OpenError};
use blkring_tests::deadline::within;
use blkring_tests::hostile::{Tried, everything, queue_in_memory, sample, try_in_memory, try_on};
use blkring_tests::image_world::Places;
use blkring_tests::images::queue;
use blkring_tests::tools::{missing, run_ok};

use crate::{AT_ONCE, CLUSTER_SIZES, get, put};

/// The flag of entries whose cluster is theirs alone.
const COPIED: u64 = 1 << 63;

/// The flag of entries that read as zeros.
const ZERO: u64 = 1;

/// Where structures of a sample are, by name.
fn structures(places: &Places) -> Vec<(&'static str, u64)> {
    vec![
        ("the refcount table", places.fixed[1].start),
        ("the L1 table", places.l1.start),
        ("a refcount block", places.blocks[0].start),
        ("its own L2 table", places.tables[0].start),
        ("another L2 table", places.tables[1].start),
    ]
}

/// Requests that would write to the first guest cluster, or free what it names.
fn changes(cluster: u64) -> Vec<(&'static str, Request)> {
    let bytes = |len: u64| IoMem::from(vec![0x6B; len as usize]);
    vec![
        ("a write", Request::write(100, bytes(50))),
        ("a durable write", Request::write(0, bytes(512)).with(Flags::FUA)),
        ("a write of it all", Request::write(0, bytes(cluster))),
        ("a zero-write of a part", Request::write_zeroes(10, 100)),
        ("an unmapping zero-write", Request::write_zeroes(0, cluster).with(Flags::MAY_UNMAP)),
        ("a discard", Request::discard(0, cluster)),
    ]
}

/// EIO was answered, and nothing of the file is other than it was, but the corrupt bit is set.
fn assert_only_marked(what: &str, before: &[u8], tried: &Tried) {
    assert!(tried.opened.is_ok(), "{what}");
    assert!(
        tried.failed.first().is_some_and(|(_, errno)| *errno == libc_eio()),
        "{what}: {:?}",
        tried.failed
    );
    let after = tried.contents.as_ref().unwrap();
    assert!(Header::parse(after, Access::Write).is_err(), "{what}: marked corrupt");
    assert_eq!(get(after, 72), get(before, 72) | 2, "{what}: marked corrupt");
    let mut expected = before.to_vec();
    put(&mut expected, 72, get(after, 72));
    let differs = expected.iter().zip(after).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what}: the first difference");
    assert_eq!(after.len(), before.len(), "{what}: the length of the file");
}

fn libc_eio() -> i32 {
    blkring_tests::image_world::EIO
}

#[test]
fn a_guest_write_into_metadata_only_marks_the_image() {
    for cluster_size in CLUSTER_SIZES {
        let sound = sample(cluster_size);
        let places = Places::of(&sound);
        let entry = places.tables[0].start as usize;
        for (structure, host) in structures(&places) {
            for flags in [COPIED, COPIED | ZERO, 0, ZERO] {
                let mut bytes = sound.clone();
                put(&mut bytes, entry, host | flags);
                for (request, sent) in changes(cluster_size) {
                    if flags & ZERO != 0 && request.starts_with("a zero-write") {
                        continue;
                    }
                    let what =
                        format!("{request} to {structure}, clusters of {cluster_size}, {flags:#x}");
                    let tried = within(AT_ONCE, &what, || try_in_memory(&bytes, |_| vec![sent]));
                    assert_only_marked(&what, &bytes, &tried);
                }
            }
        }
    }
}

/// Where the refcounts say that structures are free, an allocation must not take them.
#[test]
fn an_allocation_in_metadata_only_marks_the_image() {
    for cluster_size in CLUSTER_SIZES {
        let mut bytes = sample(cluster_size);
        let places = Places::of(&bytes);
        let block = places.blocks[0].start as usize;
        bytes[block..block + cluster_size as usize].fill(0);
        let new = 5 * cluster_size;
        let write = Request::write(new, IoMem::from(vec![0x6B; 100]));
        let what = format!("an allocating write, clusters of {cluster_size}");
        let tried = within(AT_ONCE, &what, || try_in_memory(&bytes, |_| vec![write]));
        assert_only_marked(&what, &bytes, &tried);
    }
}

/// Two structures in one cluster: a change of one would destroy the other, so there are no changes.
#[test]
fn structures_that_overlap_are_not_written() {
    for cluster_size in CLUSTER_SIZES {
        let sound = sample(cluster_size);
        let places = Places::of(&sound);
        for (structure, host) in structures(&places) {
            // The first entry of the L1 table names "its own" already: the second one shall name it too.
            let second = if structure == "its own L2 table" { 8 } else { 0 };
            let tables = [
                ("the L1 table", places.l1.start + second, host | COPIED),
                ("the refcount table", places.fixed[1].start + 8, host),
            ];
            for (table, at, entry) in tables {
                let mut bytes = sound.clone();
                put(&mut bytes, at as usize, entry);
                let what = format!("{table} names {structure}, clusters of {cluster_size}");
                let tried = within(AT_ONCE, &what, || try_in_memory(&bytes, everything));
                assert!(matches!(tried.opened, Err(OpenError::Overlap { .. })), "{what}");
            }
        }
    }
}

/// Pointers to anywhere, in every kind of table: results, whatever they are.
#[test]
fn tables_that_point_anywhere_are_results() {
    for cluster_size in CLUSTER_SIZES {
        let sound = sample(cluster_size);
        let places = Places::of(&sound);
        let end = sound.len() as u64;
        let mut targets = vec![
            COPIED,
            1,
            !0,
            end | COPIED,
            (end + (1 << 40)) | COPIED,
            ((1 << 56) - cluster_size) | COPIED,
            1 << 62,
            (1 << 62) | 12345,
            512 | COPIED,
            (cluster_size + 512) | COPIED,
            1 << 56,
            cluster_size | COPIED | 0x1fe,
        ];
        targets.extend(
            structures(&places)
                .iter()
                .flat_map(|(_, host)| [*host, host | COPIED, host | COPIED | ZERO]),
        );
        let reftable = places.fixed[1].start;
        let entries = [
            places.l1.start,
            places.l1.start + 8,
            places.tables[0].start,
            places.tables[0].start + 8,
            places.tables[1].start,
            reftable,
            reftable + 8,
        ];
        for at in entries {
            for target in &targets {
                let mut bytes = sound.clone();
                put(&mut bytes, at as usize, *target);
                let what = format!("{target:#x} at {at:#x}, clusters of {cluster_size}");
                within(AT_ONCE, &what, || try_in_memory(&bytes, everything));
            }
        }
    }
}

/// On a real file, as others see it.
#[test]
fn qemu_sees_the_corrupt_bit() {
    if missing("qemu-img") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    let mut bytes = sample(65536);
    let places = Places::of(&bytes);
    put(&mut bytes, places.tables[0].start as usize, places.l1.start | COPIED);
    std::fs::write(&path, &bytes).unwrap();
    let info = || {
        let out = run_ok(Command::new("qemu-img").args(["info", "--output=json"]).arg(&path));
        let json: serde_json::Value = serde_json::from_str(&out).unwrap();
        json["format-specific"]["data"]["corrupt"].clone()
    };
    assert_eq!(info(), false);
    let open = || {
        let options = blkring_engine::OpenOptions::new().access(blkring_engine::Access::ReadWrite);
        blkring_engine::Storage::open(&path, &options).unwrap()
    };
    let write = || vec![Request::write(0, IoMem::from(vec![1; 512]))];
    let tried = try_on(&mut queue(), open(), |_| write());
    assert_eq!(tried.failed[0].1, libc_eio());
    assert_eq!(info(), true);
    let tried = try_on(&mut queue(), open(), |_| write());
    let error = tried.opened.unwrap_err();
    assert!(error.to_string().contains("corrupt"), "{error}");
}

/// The error of a request says which kind of entry it met, not only EIO.
#[test]
fn an_error_says_what_the_request_met() {
    let cluster = 65536;
    let mut bytes = sample(cluster);
    let places = Places::of(&bytes);
    put(&mut bytes, places.tables[0].start as usize, (places.l1.start + 512) | COPIED);
    let mut queue = queue_in_memory();
    let lane = queue.lane();
    let storage = Storage::in_memory("odd.qcow2", bytes, 4 << 20);
    let opener = FileOpener::default();
    let opened = queue.block_on(Image::open(&lane, storage, &opener, ImageOptions::new()));
    let disk = queue.attach(&opened.unwrap().unwrap()).unwrap();
    let error = queue.block_on(disk.read(0, IoMem::from(vec![0; 512]))).unwrap().unwrap_err();
    assert_eq!(
        error.to_string(),
        "odd.qcow2: map at offset 0: Input/output error (unaligned table entry)"
    );
}
