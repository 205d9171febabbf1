//! Entries of compressed clusters that lead anywhere: results, within bounds.

use blkring_engine::{Flags, IoMem, Request, Storage};
use blkring_qcow2::{FileOpener, Image, ImageOptions};
use blkring_tests::hostile::{everything, queue_in_memory, sample, try_in_memory};
use blkring_tests::image_world::{EIO, Places};

/// The flag of entries of compressed clusters.
const COMPRESSED: u64 = 1 << 62;

const SIZES: [u64; 3] = [512, 4096, 65536];

fn put(bytes: &mut [u8], at: u64, raw: u64) {
    let at = usize::try_from(at).unwrap();
    bytes[at..at + 8].copy_from_slice(&raw.to_be_bytes());
}

/// The bits of an entry that tell the offset.
fn offset_bits(cluster: u64) -> u32 {
    62 - (cluster.ilog2() - 8)
}

/// A sound image whose first guest cluster has this entry.
fn with_entry(cluster: u64, raw: u64) -> Vec<u8> {
    let mut bytes = sample(cluster);
    let places = Places::of(&bytes);
    put(&mut bytes, places.tables[0].start, raw);
    bytes
}

fn read_error(bytes: Vec<u8>) -> String {
    let mut queue = queue_in_memory();
    let lane = queue.lane();
    let storage = Storage::in_memory("odd.qcow2", bytes, 4 << 20);
    let opener = FileOpener::default();
    let opened = queue.block_on(Image::open(&lane, storage, &opener, ImageOptions::new()));
    let disk = queue.attach(&opened.unwrap().unwrap()).unwrap();
    let error = queue.block_on(disk.read(0, IoMem::from(vec![0; 512]))).unwrap().unwrap_err();
    assert_eq!(error.errno, EIO, "{error}");
    error.to_string()
}

#[test]
fn an_error_says_what_was_met() {
    for cluster in SIZES {
        let end = sample(cluster).len() as u64;
        let beyond = read_error(with_entry(cluster, COMPRESSED | end));
        assert_eq!(
            beyond,
            format!(
                "odd.qcow2: decompress at offset {end}: Input/output error (compressed data beyond the end of the file)"
            )
        );
        // The header: it begins with a block type that deflate does not have.
        let header = read_error(with_entry(cluster, COMPRESSED));
        assert!(header.contains("decompress at offset 0"), "{header}");
        let largest = read_error(with_entry(cluster, COMPRESSED | ((1 << 56) - 512)));
        assert!(largest.contains("beyond the end of the file"), "{largest}");
        let most = COMPRESSED | (!0 >> 2);
        let most = read_error(with_entry(cluster, most));
        assert!(most.contains("beyond the"), "{most}");
    }
}

/// Where the offset leads and how many sectors are named: reads, writes and everything else end.
#[test]
fn entries_that_lead_anywhere_are_results() {
    for cluster in SIZES {
        let sound = sample(cluster);
        let places = Places::of(&sound);
        let end = sound.len() as u64;
        let most = (1u64 << (62 - offset_bits(cluster))) - 1;
        let offsets = [
            0,
            1,
            places.l1.start,
            places.tables[0].start,
            places.tables[1].start + 77,
            places.blocks[0].start + cluster - 1,
            places.fixed[1].start,
            end - 1,
            end,
            end + cluster,
            1 << 40,
            (1 << 49) - 1,
            (1 << 56) - 1,
            (1 << offset_bits(cluster)) - 1,
        ];
        for offset in offsets.into_iter().filter(|offset| *offset < 1 << offset_bits(cluster)) {
            for sectors in [0, 1, most / 2, most] {
                for flags in [COMPRESSED, COMPRESSED | 1 << 63] {
                    let raw = flags | sectors << offset_bits(cluster) | offset;
                    try_in_memory(&with_entry(cluster, raw), everything);
                }
            }
        }
    }
}

/// Who overwrites or discards compressed data that lies over the image's own structures would lower their counts.
#[test]
fn compressed_data_over_structures_only_marks_the_image() {
    for cluster in SIZES {
        let sound = sample(cluster);
        let places = Places::of(&sound);
        let bytes = |len: u64| IoMem::from(vec![0x6b; len as usize]);
        let changes = [
            Request::write(100, bytes(50)),
            Request::write(0, bytes(cluster)).with(Flags::FUA),
            Request::write_zeroes(0, cluster),
            Request::discard(0, cluster),
        ];
        for start in [places.l1.start, places.tables[1].start, places.blocks[0].start, 0] {
            // The second one begins in the cluster before, and touches the structure with its last sector.
            for raw in [
                COMPRESSED | start,
                COMPRESSED | 1 << offset_bits(cluster) | (start.max(512) - 512),
            ] {
                for change in &changes {
                    let before = with_entry(cluster, raw);
                    let tried = try_in_memory(&before, |_| vec![change.clone()]);
                    assert_eq!(tried.failed.first().map(|(_, errno)| *errno), Some(EIO));
                    let mut after = tried.contents.unwrap();
                    assert_eq!(after[79], before[79] | 2, "marked corrupt");
                    after[79] = before[79];
                    assert!(after == before, "{change:?} of {raw:#x}: nothing else is written");
                }
            }
        }
    }
}

/// Counts that are too low for what is given up: the image is marked, and a count never goes below zero.
#[test]
fn counts_that_are_too_low_mark_the_image() {
    for cluster in SIZES {
        let end = sample(cluster).len() as u64;
        // In the last cluster of the file, which one other entry refers to, or beyond all counted ones.
        for start in [end, 40 * cluster] {
            let bytes = with_entry(cluster, COMPRESSED | start);
            let tried = try_in_memory(&bytes, |_| {
                vec![
                    Request::discard(0, cluster),
                    Request::flush(),
                    Request::flush(),
                    Request::flush(),
                    Request::write(0, IoMem::from(vec![1; 10])),
                ]
            });
            let after = tried.contents.unwrap();
            assert!(!tried.failed.is_empty(), "clusters of {cluster}, {start:#x}");
            assert_eq!(after[79] & 2, 2, "marked corrupt");
        }
    }
}
