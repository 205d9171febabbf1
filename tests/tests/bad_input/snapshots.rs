//! Snapshot tables that lie, and guests that reach for what a snapshot keeps.

use blkring_engine::{IoMem, Request};
use blkring_qcow2::{Access, Header, OpenError, Snapshot};
use blkring_tests::deadline::within;
use blkring_tests::hostile::{everything, sample, try_in_memory};
use blkring_tests::image_world::{EIO, Places};
use blkring_tests::snapshots::take;

use crate::{AT_ONCE, CLUSTER_SIZES, put};

/// The flag of entries whose cluster is theirs alone.
const COPIED: u64 = 1 << 63;

/// An image with two snapshots: where their table is, and their L1 tables.
fn with_snapshots(cluster_size: u64) -> (Vec<u8>, u64, Vec<u64>) {
    let mut bytes = sample(cluster_size);
    take(&mut bytes, "first");
    take(&mut bytes, "second");
    let header = Header::parse(&bytes, Access::Write).unwrap();
    let snapshots = Snapshot::list(&bytes, &header).unwrap();
    let l1 = snapshots.iter().map(|snapshot| snapshot.l1.offset.get()).collect();
    (bytes, header.snapshot_table().get(), l1)
}

#[test]
fn a_guest_does_not_reach_the_tables_of_snapshots() {
    for cluster_size in CLUSTER_SIZES {
        let (sound, table, l1) = with_snapshots(cluster_size);
        let entry = Places::of(&sound).tables[0].start as usize;
        for place in l1.into_iter().chain([table]) {
            let mut bytes = sound.clone();
            put(&mut bytes, entry, place | COPIED);
            let requests = [
                Request::write(0, IoMem::from(vec![0x6B; 100])),
                Request::write(0, IoMem::from(vec![0x6B; cluster_size as usize])),
                Request::discard(0, cluster_size),
            ];
            for request in requests {
                let what = format!("{place:#x}, clusters of {cluster_size}");
                let tried = within(AT_ONCE, &what, || try_in_memory(&bytes, |_| vec![request]));
                assert_eq!(tried.failed.first().map(|failed| failed.1), Some(EIO), "{what}");
                let after = tried.contents.unwrap();
                assert!(Header::parse(&after, Access::Write).is_err(), "{what}: marked corrupt");
                let kept = place as usize..(place + cluster_size) as usize;
                assert_eq!(after[kept.clone()], bytes[kept], "{what}");
            }
        }
    }
}

/// Where the tables of snapshots overlap others a change of one would destroy the other.
#[test]
fn tables_of_snapshots_that_overlap_are_not_written() {
    for cluster_size in CLUSTER_SIZES {
        let (sound, table, l1) = with_snapshots(cluster_size);
        let places = Places::of(&sound);
        for place in [places.l1.start, places.blocks[0].start, places.tables[0].start, table, l1[1]]
        {
            let mut bytes = sound.clone();
            put(&mut bytes, table as usize, place);
            let tried = within(AT_ONCE, "overlap", || try_in_memory(&bytes, everything));
            let overlap = matches!(tried.opened, Err(OpenError::Overlap { .. }));
            assert!(overlap, "{place:#x}, clusters of {cluster_size}: {:?}", tried.opened);
        }
    }
}

/// Every byte of the first entry, changed in several ways: a result at once.
#[test]
fn damaged_snapshot_tables_are_results() {
    for cluster_size in CLUSTER_SIZES {
        let (sound, table, _) = with_snapshots(cluster_size);
        for at in table as usize..table as usize + 64 {
            for change in [0x01, 0x80, 0xff] {
                let mut bytes = sound.clone();
                bytes[at] ^= change;
                let what = format!("byte {at:#x}, clusters of {cluster_size}");
                within(AT_ONCE, &what, || try_in_memory(&bytes, everything));
            }
        }
    }
}

/// Very many snapshots that name one large table: refused at once.
#[test]
fn many_snapshots_of_one_table_are_refused() {
    let (mut bytes, table, _) = with_snapshots(65536);
    let size = 16384 * 8;
    bytes.resize(bytes.len().next_multiple_of(65536) + size, 0);
    let l1 = (bytes.len() - size) as u64;
    let header = Header::parse(&bytes, Access::Write).unwrap();
    let entry = bytes[table as usize..][..64].to_vec();
    let place = bytes.len() as u64;
    for _ in 0..30_000 {
        let at = bytes.len();
        bytes.extend(&entry);
        put(&mut bytes, at, l1);
        bytes[at + 8..at + 12].copy_from_slice(&16384u32.to_be_bytes());
    }
    let long = Snapshot::list(&bytes, &header).unwrap()[0].name.len();
    assert_eq!((57 + long).next_multiple_of(8), entry.len(), "the entries are as long as thought");
    bytes[60..64].copy_from_slice(&30_000u32.to_be_bytes());
    put(&mut bytes, 64, place);
    let tried = within(AT_ONCE, "many", || try_in_memory(&bytes, everything));
    assert!(matches!(tried.opened, Err(OpenError::Overlap { .. })), "{:?}", tried.opened);
}
