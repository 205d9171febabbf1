//! Guest data that nothing counts: it is neither given to other guest clusters nor cut off.

use std::ops::Range;

use blkring_engine::{IoMem, Request, Storage};
use blkring_qcow2::{CreateOptions, Layout};
use blkring_tests::deadline::within;
use blkring_tests::hostile::{queue_in_memory, sample, try_in_memory, try_on};
use blkring_tests::image_world::Places;

use crate::{AT_ONCE, CLUSTER_SIZES, get, put};

const COPIED: u64 = 1 << 63;

/// The host offset in an L2 entry.
fn host(entry: u64) -> u64 {
    entry & 0x00ff_ffff_ffff_fe00
}

fn range(start: u64, len: u64) -> Range<usize> {
    start as usize..(start + len) as usize
}

/// A write into every guest cluster of a few, and a byte in each of new ones.
fn new_clusters(cluster_size: u64) -> Vec<Request> {
    let table = cluster_size / 8 * cluster_size;
    let write = |at: u64| Request::write(at, IoMem::from(vec![0x6B; 100]));
    (3..20).map(|n| write(n * cluster_size)).chain([write(3 * table)]).collect()
}

#[test]
fn data_that_nothing_counts_stays_where_it_is() {
    for cluster_size in CLUSTER_SIZES {
        let mut bytes = sample(cluster_size);
        let places = Places::of(&bytes);
        // The counts of all that guest entries name, the last cluster of the file among them.
        let block = places.blocks[0].start;
        let mut data = Vec::new();
        for table in &places.tables {
            let entries =
                (0..cluster_size / 8).map(|n| get(&bytes, (table.start + n * 8) as usize));
            data.extend(entries.map(host).filter(|&at| at != 0));
        }
        assert!(data.len() > 2);
        for at in &data {
            bytes[range(block + at / cluster_size * 2, 2)].fill(0);
        }
        let before = bytes.clone();
        let what = format!("clusters of {cluster_size}");
        let tried =
            within(AT_ONCE, &what, || try_in_memory(&bytes, |_| new_clusters(cluster_size)));
        assert!(tried.failed.is_empty(), "{what}: {:?}", tried.failed);
        let after = tried.contents.unwrap();
        for at in data {
            let kept = range(at, cluster_size);
            assert!(kept.end <= after.len(), "{what}: {at} was cut off");
            assert!(before[kept.clone()] == after[kept], "{what}: {at} was overwritten");
        }
    }
}

/// An entry that points behind the end of the file: when the file grows, that cluster is nobody else's.
#[test]
fn a_cluster_behind_the_end_that_is_named_is_not_given_away() {
    let cluster_size = 4096;
    let mut bytes = sample(cluster_size);
    let places = Places::of(&bytes);
    let end = (bytes.len() as u64).next_multiple_of(cluster_size);
    let named = end + 2 * cluster_size;
    put(&mut bytes, places.tables[0].start as usize + 2 * 8, named | COPIED);
    let tried = try_in_memory(&bytes, |_| new_clusters(cluster_size));
    assert!(tried.failed.is_empty(), "{:?}", tried.failed);
    let after = tried.contents.unwrap();
    let places = Places::of(&after);
    let mut entries = 0;
    for table in &places.tables {
        assert_ne!(table.start, named);
        let names = |n: &u64| host(get(&after, (table.start + n * 8) as usize)) == named;
        entries += (0..cluster_size / 8).filter(names).count();
    }
    assert_eq!(entries, 1, "one guest cluster names it, as before");
}

/// Too many of them to be noted one by one: nothing below the highest one is given out.
#[test]
fn where_most_counts_are_wrong_no_free_space_is_trusted() {
    let (cluster, per_table, tables) = (512, 64, 1100);
    let size = (tables + 1) * per_table * cluster;
    let options = CreateOptions::new(size).cluster_size(cluster);
    let layout = Layout::plan(&options).unwrap();
    let mut bytes = vec![0; layout.file_length.next_multiple_of(cluster) as usize];
    for write in &layout.writes {
        bytes[range(write.offset.get(), write.bytes.len() as u64)].copy_from_slice(&write.bytes);
    }
    let l1 = Places::of(&bytes).l1;
    let first = bytes.len() as u64;
    let data = first + tables * cluster;
    bytes.resize(data as usize, 0);
    for table in 0..tables {
        let at = first + table * cluster;
        put(&mut bytes, (l1.start + table * 8) as usize, at | COPIED);
        for entry in 0..per_table {
            let host = data + (table * per_table + entry) * cluster;
            put(&mut bytes, (at + entry * 8) as usize, host | COPIED);
        }
    }
    let highest = data + tables * per_table * cluster;
    let new = tables * per_table * cluster;
    let storage = Storage::in_memory("hostile", bytes.clone(), 64 << 20);
    let write = Request::write(new, IoMem::from(vec![0x6B; 512]));
    let tried = try_on(&mut queue_in_memory(), storage, |_| vec![write]);
    assert!(tried.opened.is_ok() && tried.failed.is_empty(), "{:?}", tried.failed);
    let after = tried.contents.unwrap();
    assert!(after[first as usize..data as usize] == bytes[first as usize..], "tables are kept");
    let table = Places::of(&after).tables.pop().unwrap();
    assert!(table.start >= highest, "{} is below {highest}", table.start);
    assert!(host(get(&after, table.start as usize)) >= highest);
}
