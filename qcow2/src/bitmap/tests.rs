use super::*;
use crate::header::Access;
use crate::layout::{CreateOptions, Layout};

const CLUSTER: u64 = 512;
const DIRECTORY: u64 = 16 * CLUSTER;
const TABLE: u64 = 17 * CLUSTER;

/// The first cluster of a new image with a bitmaps extension.
fn header(count: u32, bytes: u64, offset: u64) -> Header {
    let options =
        CreateOptions { size: 1 << 20, cluster_size: CLUSTER, ..CreateOptions::default() };
    let layout = Layout::plan(&options).unwrap();
    let first = layout.writes.iter().find(|write| write.offset == HostOffset::ZERO).unwrap();
    let mut image = first.bytes.clone();
    image.resize(CLUSTER as usize, 0);
    // It takes the place of the names of features, which begin where the header ends.
    let mut extension = 0x2385_2875u32.to_be_bytes().to_vec();
    extension.extend(24u32.to_be_bytes());
    extension.extend(count.to_be_bytes());
    extension.extend([0; 4]);
    extension.extend(bytes.to_be_bytes());
    extension.extend(offset.to_be_bytes());
    extension.extend([0; 8]);
    image[112..112 + extension.len()].copy_from_slice(&extension);
    image[88..96].copy_from_slice(&1u64.to_be_bytes());
    Header::parse(&image, Access::Read).unwrap()
}

fn entry(table: u64, flags: u32, kind: u8, granularity: u8, extra: u32, name: &[u8]) -> Vec<u8> {
    let mut bytes = table.to_be_bytes().to_vec();
    bytes.extend(3u32.to_be_bytes());
    bytes.extend(flags.to_be_bytes());
    bytes.extend([kind, granularity]);
    bytes.extend(u16::try_from(name.len()).unwrap().to_be_bytes());
    bytes.extend(extra.to_be_bytes());
    bytes.resize(bytes.len() + extra as usize, 7);
    bytes.extend(name);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

fn list(entries: &[Vec<u8>]) -> Result<Vec<Bitmap>, BitmapError> {
    let entries = entries.concat();
    let mut file = vec![0; DIRECTORY as usize];
    file.extend(&entries);
    let count = if entries.is_empty() { 0 } else { 2 };
    Bitmap::list(&file, &header(count, entries.len() as u64, DIRECTORY))
}

#[test]
fn bitmaps_are_told_in_their_order() {
    let bitmaps = list(&[entry(TABLE, 3, 1, 16, 5, b"one"), entry(TABLE, 0, 1, 9, 0, b"other")]);
    let bitmaps = bitmaps.unwrap();
    assert_eq!((&*bitmaps[0].name, &*bitmaps[1].name), ("one", "other"));
    assert_eq!(bitmaps[0].flags, BitmapFlags::IN_USE | BitmapFlags::AUTO);
    assert_eq!((bitmaps[0].granularity, bitmaps[1].granularity), (65536, 512));
    assert_eq!((bitmaps[0].table, bitmaps[0].entries), (HostOffset::new(TABLE), 3));
}

#[test]
fn what_no_directory_may_say_is_refused() {
    let good = || entry(TABLE, 0, 1, 16, 0, b"good");
    for bad in [
        entry(TABLE + 1, 0, 1, 16, 0, b"unaligned"),
        entry(0, 0, 1, 16, 0, b"in the header"),
        entry(TABLE, 8, 1, 16, 0, b"flag"),
        entry(TABLE, 0, 2, 16, 0, b"kind"),
        entry(TABLE, 0, 1, 8, 0, b"granularity"),
        entry(TABLE, 0, 1, 32, 0, b"granularity"),
        entry(TABLE, 0, 1, 16, 0, b""),
        entry(TABLE, 0, 1, 16, 0, &[b'x'; 1024]),
        good()[..20].to_vec(),
    ] {
        let result = list(&[good(), bad]);
        assert!(matches!(result, Err(BitmapError::Entry { index: 1 })), "{result:?}");
    }
    assert!(matches!(list(&[]), Err(BitmapError::Count { count: 0 })));
    let file = vec![0; 20 * CLUSTER as usize];
    for (bytes, offset) in [
        (512, DIRECTORY + 8),
        (512, 0),
        (512, 20 * CLUSTER),
        (u64::MAX, DIRECTORY),
        (1 << 40, DIRECTORY),
    ] {
        let result = Bitmap::list(&file, &header(1, bytes, offset));
        assert!(matches!(result, Err(BitmapError::Directory { .. })), "{bytes} {offset}");
    }
}

#[test]
fn bitmaps_that_a_writer_left_behind_are_none() {
    let mut header = header(1, 512, DIRECTORY + 8);
    assert!(header.clear_autoclear());
    assert_eq!(Bitmap::list(&vec![0; 512], &header).unwrap(), []);
}
