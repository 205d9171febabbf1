//! Where an image says that its bytes are, over a chain of three files.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod backend;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use blkring_engine::{Access, Flags, IoMem, OpenOptions, Queue, QueueOptions, Storage};
use blkring_qcow2::{Backing, CreateOptions, FileOpener, GuestBytes, Image, ImageOptions, Layout};

const K: u64 = 1 << 10;
const M: u64 = 1 << 20;

fn create(path: &Path, size: u64, cluster_size: u64, below: Option<(&str, &str)>) {
    let backing = below.map(|(name, format)| Backing::new(name, format));
    let options = CreateOptions::new(size).cluster_size(cluster_size).backing(backing);
    let layout = Layout::plan(&options).unwrap();
    let file = std::fs::File::create(path).unwrap();
    for write in &layout.writes {
        file.write_all_at(&write.bytes, write.offset.get()).unwrap();
    }
    file.set_len(layout.file_length).unwrap();
}

fn queue() -> Queue {
    backend::started(QueueOptions::with_requests(32))
}

fn open(queue: &mut Queue, path: &Path, access: Access) -> Arc<Image> {
    let storage = Storage::open(path, &OpenOptions::new().access(access)).unwrap();
    let options = match access {
        Access::ReadOnly => ImageOptions::new(),
        Access::ReadWrite => ImageOptions::new().writable(),
    };
    let lane = queue.lane();
    queue.block_on(Image::open(&lane, storage, &FileOpener::default(), options)).unwrap().unwrap()
}

/// Writes of a byte, and zero-writes where there is none.
fn write(path: &Path, writes: &[(u64, u64, Option<u8>)]) {
    let mut queue = queue();
    let image = open(&mut queue, path, Access::ReadWrite);
    let disk = queue.attach(&image).unwrap();
    queue
        .block_on(async {
            for &(offset, len, byte) in writes {
                match byte {
                    Some(byte) => {
                        let mem = IoMem::from(vec![byte; len as usize]);
                        disk.write(offset, mem, Flags::empty()).await.unwrap();
                    }
                    None => disk.write_zeroes(offset, len, Flags::MAY_UNMAP).await.unwrap(),
                }
            }
            image.close().await.unwrap();
        })
        .unwrap();
}

/// The runs of the whole image, one run for what goes on: length, depth, and the byte that is found at the place
/// which is told.
fn runs(path: &Path) -> Vec<(u64, usize, &'static str, Option<u8>)> {
    let mut queue = queue();
    let image = open(&mut queue, path, Access::ReadOnly);
    queue.attach(&image).unwrap();
    let size = image.info().virtual_size;
    let mut runs: Vec<(u64, usize, &'static str, Option<u8>)> = Vec::new();
    let mut offset = 0;
    while offset < size {
        let run = queue.block_on(image.extent(offset, size)).unwrap().unwrap();
        assert_eq!(run.offset, offset);
        assert!(run.len > 0 && run.len <= size - offset);
        let byte_at = |at| {
            let mut byte = [0];
            let file = std::fs::File::open(&**run.storage.path()).unwrap();
            file.read_exact_at(&mut byte, at).unwrap();
            byte[0]
        };
        let (kind, byte) = match run.bytes {
            GuestBytes::Data(at) => ("data", Some(byte_at(at))),
            GuestBytes::Zero(at) => ("zero", at.map(byte_at)),
            GuestBytes::Absent => ("absent", None),
            _ => panic!("no such run is in these images"),
        };
        match runs.last_mut() {
            Some(last) if (last.1, last.2, last.3) == (run.depth, kind, byte) => last.0 += run.len,
            _ => runs.push((run.len, run.depth, kind, byte)),
        }
        offset += run.len;
    }
    runs
}

#[test]
fn a_chain_tells_where_every_byte_is() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    for cluster_size in [512, 4 * K, 64 * K] {
        let base = std::fs::File::create(file("base.raw")).unwrap();
        base.set_len(2 * M + 100).unwrap();
        base.write_all_at(&[3; 512 << 10], M).unwrap();
        create(&file("middle"), 4 * M, cluster_size, Some(("base.raw", "raw")));
        let writes = [(0, 256 * K, Some(2)), (M, 64 * K, None), (3 * M, 128 * K, Some(2))];
        write(&file("middle"), &writes);
        create(&file("top"), 8 * M, cluster_size, Some(("middle", "qcow2")));
        let writes = [(128 * K, 64 * K, Some(1)), (3 * M, 64 * K, None), (7 * M, 64 * K, Some(1))];
        write(&file("top"), &writes);
        let expected = [
            (128 * K, 1, "data", Some(2)),
            (64 * K, 0, "data", Some(1)),
            (64 * K, 1, "data", Some(2)),
            (768 * K, 2, "zero", Some(0)),
            (64 * K, 1, "zero", None),
            (448 * K, 2, "data", Some(3)),
        ];
        let runs = runs(&file("top"));
        assert_eq!(runs[..6], expected, "cluster size {cluster_size}");
        // The raw file ends in a hole, of whole sectors; below its end there is nothing more.
        let hole: u64 = runs[6..].iter().take_while(|run| run.1 == 2).map(|run| run.0).sum();
        assert_eq!(hole, 512 * K + 512);
        let rest: Vec<_> = runs[6..].iter().skip_while(|run| run.1 == 2).copied().collect();
        let expected = [
            (M - 512, 1, "absent", None),
            (64 * K, 0, "zero", None),
            (64 * K, 1, "data", Some(2)),
            (M - 128 * K, 1, "absent", None),
            (3 * M, 0, "absent", None),
            (64 * K, 0, "data", Some(1)),
            (M - 64 * K, 0, "absent", None),
        ];
        assert_eq!(rest, expected, "cluster size {cluster_size}");
    }
}

#[test]
fn one_file_of_a_chain_is_asked_alone() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    std::fs::write(file("base.raw"), vec![3; 1 << 20]).unwrap();
    create(&file("top"), 2 * M, 64 * K, Some(("base.raw", "raw")));
    write(&file("top"), &[(64 * K, 64 * K, Some(1))]);
    let mut queue = queue();
    let image = open(&mut queue, &file("top"), Access::ReadOnly);
    queue.attach(&image).unwrap();
    assert_eq!((image.depth(), image.size_at(1), image.size_at(2)), (2, Some(M), None));
    let mut ask = |depth, offset, limit| {
        let extent = queue.block_on(image.extent_in(depth, offset, limit)).unwrap();
        extent.map(|one| (one.len, one.bytes)).map_err(|error| error.errno)
    };
    assert_eq!(ask(0, 0, 2 * M), Ok((64 * K, GuestBytes::Absent)));
    assert!(matches!(ask(0, 64 * K, 2 * M), Ok((len, GuestBytes::Data(_))) if len == 64 * K));
    assert_eq!(ask(0, 64 * K + 100, 64 * K + 110).unwrap().0, 10);
    assert_eq!(ask(1, 4096, 2 * M), Ok((M - 4096, GuestBytes::Data(4096))));
    assert_eq!(ask(0, 5, 5), Err(libc::EINVAL));
    assert_eq!(ask(1, M, 2 * M), Err(libc::EINVAL));
    assert_eq!(ask(2, 0, M), Err(libc::EINVAL));
    assert_eq!(ask(0, 2 * M, 3 * M), Err(libc::EINVAL));
    queue.block_on(image.close()).unwrap().unwrap();
    let closed = queue.block_on(image.extent(0, M)).unwrap();
    assert_eq!(closed.err().map(|error| error.errno), Some(libc::ESHUTDOWN));
}

#[test]
fn the_files_above_one_are_asked_together() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    std::fs::write(file("base.raw"), vec![3; 4 << 20]).unwrap();
    // Shorter than what lies below it: beyond its end nothing of that is seen.
    create(&file("middle"), 2 * M, 64 * K, Some(("base.raw", "raw")));
    write(&file("middle"), &[(M, 64 * K, Some(2))]);
    create(&file("top"), 4 * M, 64 * K, Some(("middle", "qcow2")));
    write(&file("top"), &[(0, 64 * K, Some(1))]);
    let mut queue = queue();
    let image = open(&mut queue, &file("top"), Access::ReadOnly);
    queue.attach(&image).unwrap();
    assert_eq!(**image.storage_at(2).unwrap().path(), *file("base.raw").to_str().unwrap());
    assert!(image.storage_at(3).is_none());
    let clusters = [0, 1, 2, 3].map(|depth| image.cluster_size_at(depth));
    assert_eq!(clusters, [Some(64 * K), Some(64 * K), None, None]);
    let mut ask = |depth, offset| {
        let extent = queue.block_on(image.extent_above(depth, offset, 4 * M)).unwrap().unwrap();
        (extent.len / K, extent.depth, extent.is_absent())
    };
    assert_eq!(ask(1, 64 * K), (4 * K - 64, 0, true));
    assert_eq!(ask(2, 64 * K), (K - 64, 1, true));
    assert_eq!(ask(2, M), (64, 1, false));
    // Zeros for sure, whatever the base holds there.
    assert_eq!(ask(2, 3 * M), (K, 0, false));
    assert_eq!(ask(3, 3 * M), (K, 0, true));
    assert_eq!(ask(3, 64 * K), (K - 64, 2, false));
}

#[test]
fn zeros_over_a_part_of_a_cluster_of_zeros_take_no_place() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let base = std::fs::File::create(file("base.raw")).unwrap();
    base.set_len(M).unwrap();
    base.write_all_at(&[3; 4096], 128 * K).unwrap();
    create(&file("top"), M + 512, 64 * K, Some(("base.raw", "raw")));
    // Over nothing; a part and a whole one; beside the data of the base, and over all of that; over data; at the end.
    let zeros = [
        (512, 1024, None),
        (62 * K, 66 * K, None),
        (192 * K - 512, 512, None),
        (256 * K, 512, Some(5)),
        (257 * K, 512, None),
        (M + 100, 100, None),
    ];
    write(&file("top"), &zeros);
    let runs = runs(&file("top"));
    assert_eq!(runs[0], (128 * K, 0, "zero", None));
    let data: Vec<_> = runs.iter().filter(|run| run.2 == "data").map(|run| run.0).collect();
    assert_eq!(data, [64 * K, 64 * K], "{runs:?}");
    assert_eq!(runs.iter().map(|run| run.0).sum::<u64>(), M + 512);
}
