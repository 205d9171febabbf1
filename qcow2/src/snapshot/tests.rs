use super::*;
use crate::header::Access;
use crate::layout::{CreateOptions, Layout};

const CLUSTER: u64 = 512;

/// Where the snapshot table is.
const TABLE: u64 = 16 * CLUSTER;

/// The first cluster of a new image, with so many snapshots in the table at `offset`.
fn header(count: u32, offset: u64) -> Header {
    let options =
        CreateOptions { size: 1 << 20, cluster_size: CLUSTER, ..CreateOptions::default() };
    let layout = Layout::plan(&options).unwrap();
    let first = layout.writes.iter().find(|write| write.offset == HostOffset::ZERO).unwrap();
    let mut bytes = first.bytes.clone();
    bytes[60..64].copy_from_slice(&count.to_be_bytes());
    bytes[64..72].copy_from_slice(&offset.to_be_bytes());
    Header::parse(&bytes, Access::Read).unwrap()
}

/// The same in an image of version 2.
fn header_v2(count: u32) -> Header {
    let options = CreateOptions {
        size: 1 << 20,
        cluster_size: CLUSTER,
        version: Version::V2,
        ..CreateOptions::default()
    };
    let layout = Layout::plan(&options).unwrap();
    let first = layout.writes.iter().find(|write| write.offset == HostOffset::ZERO).unwrap();
    let mut bytes = first.bytes.clone();
    bytes[60..64].copy_from_slice(&count.to_be_bytes());
    bytes[64..72].copy_from_slice(&TABLE.to_be_bytes());
    Header::parse(&bytes, Access::Read).unwrap()
}

/// An entry with these lengths of extra data, id and name.
fn entry(l1: (u64, u32), extra: u32, id: &[u8], name: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(l1.0.to_be_bytes());
    bytes.extend(l1.1.to_be_bytes());
    bytes.extend(u16::try_from(id.len()).unwrap().to_be_bytes());
    bytes.extend(u16::try_from(name.len()).unwrap().to_be_bytes());
    bytes.extend(1_000_000_000u32.to_be_bytes());
    bytes.extend(5u32.to_be_bytes());
    bytes.extend(77u64.to_be_bytes());
    bytes.extend(9u32.to_be_bytes());
    bytes.extend(extra.to_be_bytes());
    let numbers = [1u64 << 33, 1 << 20, 42].iter().flat_map(|number| number.to_be_bytes());
    bytes.extend(numbers.chain(std::iter::repeat(0)).take(extra as usize));
    bytes.extend(id);
    bytes.extend(name);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

fn list(entries: &[Vec<u8>], count: u32) -> Result<Vec<Snapshot>, SnapshotError> {
    let mut file = vec![0; TABLE as usize];
    file.extend(entries.concat());
    Snapshot::list(&file, &header(count, TABLE))
}

#[test]
fn what_an_entry_says_is_told() {
    let first = entry((8 * CLUSTER, 32), 24, b"1", b"before the upgrade");
    let second = entry((12 * CLUSTER, 0), 16, b"2", &[b'x', 0xff]);
    let snapshots = list(&[first, second], 2).unwrap();
    let [first, second] = snapshots.as_slice() else { panic!("{snapshots:?}") };
    let expected = Snapshot {
        id: "1".into(),
        name: "before the upgrade".into(),
        l1: L1Table { offset: HostOffset::new(8 * CLUSTER), entries: 32 },
        vm_state_bytes: 1 << 33,
        date: (1_000_000_000, 5),
        vm_clock_nsec: 77,
        disk_size: Some(1 << 20),
        icount: Some(42),
    };
    assert_eq!(*first, expected);
    assert_eq!((second.name.as_str(), second.icount), ("x\u{fffd}", None));
}

#[test]
fn version_2_needs_no_extra_data() {
    let mut file = vec![0; TABLE as usize];
    file.extend([0, 8].map(|extra| entry((8 * CLUSTER, 4), extra, b"1", b"a")).concat());
    let snapshots = Snapshot::list(&file, &header_v2(2)).unwrap();
    let told = |snapshot: &Snapshot| (snapshot.vm_state_bytes, snapshot.disk_size, snapshot.icount);
    let told: Vec<_> = snapshots.iter().map(told).collect();
    assert_eq!(told, [(9, None, None), (1 << 33, None, None)]);
}

#[test]
fn entries_of_any_length_are_read_across_pieces() {
    let name = vec![b'n'; 65535];
    let entries: Vec<Vec<u8>> =
        (0..40).map(|n| entry((8 * CLUSTER, n), 1024, &vec![b'i'; 65535], &name)).collect();
    let snapshots = list(&entries, 40).unwrap();
    assert_eq!(snapshots.len(), 40);
    for (number, snapshot) in (0..).zip(&snapshots) {
        assert_eq!((snapshot.l1.entries, snapshot.name.len()), (number, 65535));
    }
}

#[test]
fn what_is_out_of_bounds_is_refused() {
    use SnapshotError as E;
    let small = |l1| entry(l1, 16, b"1", b"a");
    let good = || small((8 * CLUSTER, 4));
    let errno = |result: Result<Vec<Snapshot>, E>| result.unwrap_err().errno();
    assert!(matches!(list(&[good()], 2), Err(E::Truncated { index: 1 })));
    assert!(matches!(list(&[], 1), Err(E::Truncated { index: 0 })));
    let cut = good()[..50].to_vec();
    assert!(matches!(list(&[good(), cut], 2), Err(E::Truncated { index: 1 })));
    for extra in [0, 15, 1025, u32::MAX] {
        let mut bytes = good();
        bytes[36..40].copy_from_slice(&extra.to_be_bytes());
        assert!(matches!(list(&[bytes], 1), Err(E::ExtraData { index: 0, .. })), "{extra}");
    }
    let beyond = TABLE + 64 * CLUSTER;
    for offset in [0, 100, 8 * CLUSTER + 8, beyond, u64::MAX - 511, 1 << 56] {
        let result = list(&[small((offset, 4))], 1);
        assert!(matches!(result, Err(E::L1Place { index: 0, .. })), "{offset}");
    }
    assert!(matches!(list(&[small((512, 4 << 20)), good()], 2), Err(E::L1Place { .. })));
    assert_eq!(errno(list(&[small((512, (4 << 20) + 1))], 1)), libc::EFBIG);
    assert_eq!(errno(list(&[], 65537)), libc::EFBIG);
    for offset in [0, 8, TABLE + 8, u64::MAX, 1 << 60] {
        let result = Snapshot::list(&vec![0; 1 << 14], &header(1, offset));
        assert!(matches!(result, Err(E::TableOffset { .. })), "{offset}");
    }
    assert!(Snapshot::list(&vec![0; 1 << 14], &header(0, 3)).unwrap().is_empty());
}

/// 65536 snapshots with long names are more than a table may hold.
#[test]
fn a_table_of_more_than_64_mib_is_refused() {
    let one = entry((8 * CLUSTER, 4), 1024, b"1", &[b'n'; 65535]);
    let count = MAX_SNAPSHOT_TABLE_BYTES / one.len() as u64 + 1;
    let entries = vec![one; usize::try_from(count).unwrap()];
    let result = list(&entries, u32::try_from(count).unwrap());
    assert!(matches!(result, Err(SnapshotError::TableTooLong)));
}
