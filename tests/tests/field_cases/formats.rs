//! F61: what a file is, its opener says; nothing looks into it for an answer. A guest writes what it likes to a raw disk.

use std::path::Path;

use blkring_engine::{Access, Cache, Flags, IoMem, OpenOptions, RawDisk, Storage, Target as _};
use blkring_qcow2::{CreateOptions, ImageOptions, OpenError};
use blkring_tests::images::{Opened, backing, create, queue, try_open};

use super::backing_names::unname;

/// A qcow2 image over a file that no guest may read.
fn forged(directory: &Path) -> Vec<u8> {
    std::fs::write(directory.join("secret"), [0x5e; 65536]).unwrap();
    let path = directory.join("forged");
    let backing = backing("secret", "raw");
    create(&path, &CreateOptions::new(65536).backing(backing));
    std::fs::read(path).unwrap()
}

fn raw_disk(path: &Path) -> std::sync::Arc<RawDisk> {
    let options = OpenOptions::new().access(Access::ReadWrite);
    RawDisk::new(Storage::open(path, &options).unwrap())
}

#[test]
fn f61_a_raw_guest_may_write_any_bytes_at_0() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("guest.raw");
    let header = forged(directory.path());
    std::fs::write(&path, vec![0; 1 << 20]).unwrap();
    // Written, and found again as what it is: bytes.
    for step in ["written", "found"] {
        let mut queue = queue();
        let raw = raw_disk(&path);
        assert_eq!(raw.size(), 1 << 20, "{step}");
        let disk = queue.attach(&raw).unwrap();
        if step == "written" {
            let write = disk.write(0, IoMem::from(header.clone()), Flags::FUA);
            queue.block_on(write).unwrap().unwrap();
        }
        let found = IoMem::from(vec![0; header.len()]);
        queue.block_on(disk.read(0, found.clone())).unwrap().unwrap();
        assert!(found.to_vec() == header, "{step}");
    }
    // Below an image that calls it raw it is raw as well.
    let top = directory.path().join("top.qcow2");
    let backing = backing("guest.raw", "raw");
    create(&top, &CreateOptions::new(1 << 20).backing(backing));
    let mut opened = Opened::writable(&top, Cache::Cached);
    assert!(opened.read(0, header.len()) == header);
    opened.close();
}

#[test]
fn f61_what_nobody_calls_qcow2_is_not_opened_as_one_and_the_other_way_round() {
    let directory = tempfile::tempdir().unwrap();
    forged(directory.path());
    let mut queue = queue();
    // An image is opened by a call of its own, which takes nothing else for one.
    let secret = directory.path().join("secret");
    let refused = try_open(&mut queue, &secret, Cache::Cached, ImageOptions::new()).err().unwrap();
    assert!(matches!(refused, OpenError::Header { .. }), "{refused}");
    // Below an image only its own word counts, or that of the opener; here neither says anything.
    let top = directory.path().join("top.qcow2");
    create(&top, &CreateOptions::new(65536).backing(backing("forged", "qcow2")));
    unname(&top);
    let refused = try_open(&mut queue, &top, Cache::Cached, ImageOptions::new()).err().unwrap();
    assert!(matches!(refused, OpenError::NoBackingFormat { .. }), "{refused}");
}
