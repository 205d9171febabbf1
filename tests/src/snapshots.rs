//! Snapshots taken by hand, of images in memory that nobody has open: what other programs do with their own code.

use blkring_qcow2::{
    Access, Header, HostCluster, HostOffset, L1Entry, L2Entry, RefTableEntry, Snapshot,
};

/// The flag of entries whose cluster is theirs alone.
const COPIED: u64 = 1 << 63;

/// Where the header names the active L1 table and the snapshots.
const L1_ENTRIES: usize = 36;
const L1_OFFSET: usize = 40;
const SNAPSHOTS: usize = 60;

/// Takes a snapshot, behind the end of the file. Counts have 16 bits.
///
/// # Panics
/// If the file is no image, or the refcount blocks that it has do not reach so far.
pub fn take(file: &mut Vec<u8>, name: &str) {
    let header = Header::parse(file, Access::Check).expect("an image");
    let geometry = *header.geometry();
    let size = index(geometry.cluster_size());
    let known = Snapshot::list(file, &header).expect("the table is sound");
    let l1 = header.l1();
    let table = copy(file, l1.offset, index(l1.bytes()));
    file.resize(file.len().next_multiple_of(size), 0);
    let l1_place = file.len();
    file.extend(&table);
    file.resize(file.len().next_multiple_of(size), 0);
    let directory_place = file.len();
    let old: Vec<u8> = known
        .iter()
        .flat_map(|one| entry(one.l1.offset.get(), one.l1.entries, &one.name))
        .collect();
    file.extend(old.iter().copied().chain(entry(l1_place as u64, l1.entries, name)));
    file.resize(file.len().next_multiple_of(size), 0);
    for cluster in l1_place / size..file.len() / size {
        change_count(file, &header, HostCluster::new(cluster as u64), 1);
    }
    if !known.is_empty() {
        let first = geometry.host_cluster(header.snapshot_table()).get();
        for cluster in first..first + geometry.clusters_for(old.len() as u64) {
            change_count(file, &header, HostCluster::new(cluster), -1);
        }
    }
    for (number, raw) in words(&table).enumerate() {
        let Ok(L1Entry::Table(l2, _)) = L1Entry::decode(raw, &geometry) else { continue };
        change_count(file, &header, l2, 1);
        put(file, index(l1.offset.get()) + number * 8, raw & !COPIED);
        let l2_place = geometry.host_offset(l2);
        for (number, raw) in words(&copy(file, l2_place, size)).enumerate() {
            let entry = L2Entry::decode(raw, &geometry).expect("the driver has written it");
            if let Some(host) = entry.mapping.host_cluster() {
                change_count(file, &header, host, 1);
                put(file, index(l2_place.get()) + number * 8, raw & !COPIED);
            }
        }
    }
    put_u32(file, SNAPSHOTS, u32::try_from(known.len() + 1).expect("a few"));
    put(file, SNAPSHOTS + 4, directory_place as u64);
}

/// Takes the COPIED flag off every entry of the active L2 tables, which is legal where a count was lowered since.
///
/// # Panics
/// If the file is no image.
pub fn clear_claims(file: &mut [u8]) {
    let header = Header::parse(file, Access::Check).expect("an image");
    let geometry = *header.geometry();
    let l1 = header.l1();
    for raw in words(&copy(file, l1.offset, index(l1.bytes()))) {
        let Ok(L1Entry::Table(l2, _)) = L1Entry::decode(raw, &geometry) else { continue };
        let place = geometry.host_offset(l2);
        let table = copy(file, place, index(geometry.cluster_size()));
        for (number, raw) in words(&table).enumerate() {
            put(file, index(place.get()) + number * 8, raw & !COPIED);
        }
    }
}

/// The image as it was when its snapshot `number` was taken, with nothing said of snapshots: for reading only.
///
/// # Errors
/// If there is no such snapshot.
pub fn view(file: &[u8], number: usize) -> Result<Vec<u8>, String> {
    let mut file = file.to_vec();
    let header = Header::parse(&file, Access::Check).map_err(|error| error.to_string())?;
    let snapshots = Snapshot::list(&file, &header).map_err(|error| error.to_string())?;
    let l1 = snapshots.get(number).ok_or("the snapshot is gone")?.l1;
    put_u32(&mut file, L1_ENTRIES, l1.entries);
    put(&mut file, L1_OFFSET, l1.offset.get());
    put_u32(&mut file, SNAPSHOTS, 0);
    Ok(file)
}

/// An entry of the snapshot table.
fn entry(l1: u64, entries: u32, name: &str) -> Vec<u8> {
    let mut bytes = vec![0; 40];
    put(&mut bytes, 0, l1);
    put_u32(&mut bytes, 8, entries);
    bytes[12..14].copy_from_slice(&1u16.to_be_bytes());
    bytes[14..16].copy_from_slice(&u16::try_from(name.len()).expect("short").to_be_bytes());
    put_u32(&mut bytes, 36, 16);
    bytes.extend([0; 16]);
    bytes.extend(b"1");
    bytes.extend(name.bytes());
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

fn change_count(file: &mut [u8], header: &Header, cluster: HostCluster, by: i16) {
    let geometry = header.geometry();
    let reftable = header.reftable();
    let number = geometry.refblock_index(cluster);
    let raw = words(&copy(file, reftable.offset, index(reftable.bytes(geometry)))).nth(number);
    let block = RefTableEntry::decode(raw.unwrap_or(0), geometry);
    let Ok(RefTableEntry::Block(block)) = block else { panic!("nothing counts {cluster}") };
    let place = index(geometry.host_offset(block).get()) + geometry.refcount_index(cluster) * 2;
    let count = u16::from_be_bytes(file[place..place + 2].try_into().expect("two bytes"));
    let count = count.checked_add_signed(by).expect("a count of a few");
    file[place..place + 2].copy_from_slice(&count.to_be_bytes());
}

/// So many bytes of a file from an offset on; zeros behind its end.
fn copy(file: &[u8], offset: HostOffset, bytes: usize) -> Vec<u8> {
    let start = index(offset.get()).min(file.len());
    let end = (start + bytes).min(file.len());
    let mut copied = file[start..end].to_vec();
    copied.resize(bytes, 0);
    copied
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks::<8>().0.iter().map(|raw| u64::from_be_bytes(*raw))
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("small")
}

fn put(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_be_bytes());
}

fn put_u32(bytes: &mut [u8], at: usize, number: u32) {
    bytes[at..at + 4].copy_from_slice(&number.to_be_bytes());
}
