use std::io;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::address::HostCluster;
use crate::entry::{Copied, EntryError, L1Entry, L2Entry, table_set};
use crate::header::HeaderError;
use crate::layout::{CreateOptions, Layout};
use crate::refcount::RefcountWidth;

const NO_IMAGE: &str = "the layout is valid";

/// A file that is mostly hole.
struct Sparse {
    length: u64,
    pieces: Vec<(u64, Vec<u8>)>,
}

impl ReadAt for Sparse {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        buf.fill(0);
        for (start, bytes) in &self.pieces {
            let from = offset.max(*start);
            let to = (offset + buf.len() as u64).min(start + bytes.len() as u64);
            if from < to {
                buf[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
            }
        }
        Ok(())
    }

    fn len(&self) -> u64 {
        self.length
    }
}

fn layout(cluster_size: u64, size: u64) -> Layout {
    Layout::plan(&CreateOptions { size, cluster_size, ..CreateOptions::default() }).expect(NO_IMAGE)
}

/// An image of `size` bytes with one L2 table that maps three guest clusters.
fn image(cluster_size: u64, size: u64) -> Vec<u8> {
    let layout = layout(cluster_size, size);
    let geometry = *layout.header.geometry();
    let table = geometry.clusters_for(layout.file_length);
    let mut bytes = vec![0; ((table + 3) * cluster_size) as usize];
    for write in &layout.writes {
        let start = write.offset.get() as usize;
        bytes[start..start + write.bytes.len()].copy_from_slice(&write.bytes);
    }
    let mut set = |offset: u64, raw: u64| {
        table_set(&mut bytes[offset as usize..], 0, raw).expect(NO_IMAGE);
    };
    let l1 = layout.header.l1().offset.get();
    set(l1, L1Entry::Table(HostCluster::new(table), Copied::Yes).encode(&geometry));
    let l2 = table * cluster_size;
    set(l2, L2Entry::normal(HostCluster::new(table + 1)).encode(&geometry));
    set(l2 + 8, L2Entry::zero_allocated(HostCluster::new(table + 2)).encode(&geometry));
    set(l2 + 24, L2Entry::ZERO_PLAIN.encode(&geometry));
    for cluster in table..table + 3 {
        let block = &mut bytes[2 * cluster_size as usize..3 * cluster_size as usize];
        geometry.refcounts().set(block, cluster as usize, 1).expect(NO_IMAGE);
    }
    bytes
}

fn run(image: &dyn ReadAt) -> (Result<CheckReport, CheckError>, Vec<Finding>) {
    let mut found = Vec::new();
    let result = check(image, CheckLimits::default(), &mut |finding| {
        if found.len() < 1000 {
            found.push(*finding);
        }
    });
    (result, found)
}

/// A debug build on a busy machine is given more than the second that it should take.
const PATIENCE: Duration = Duration::from_secs(15);

#[test]
fn an_intact_image_is_clean() {
    for cluster_size in [512, 4096, 65536, 2 << 20] {
        let (report, found) = run(&image(cluster_size, 1 << 20));
        let report = report.expect("a result");
        assert!(report.is_clean(), "{found:?}");
        assert_eq!(report.total_clusters, (1u64 << 20).div_ceil(cluster_size));
        assert_eq!((report.allocated_clusters, report.fragmented_clusters), (2, 0));
    }
}

#[test]
fn findings_name_their_place() {
    let mut bytes = image(512, 1 << 20);
    let last = bytes.len() as u64 / 512 - 1;
    RefcountWidth::DEFAULT.set(&mut bytes[1024..], last as usize, 7).expect(NO_IMAGE);
    let (report, found) = run(&bytes);
    let report = report.expect("a result");
    assert_eq!((report.corruptions, report.leaks, report.check_errors), (1, 1, 0));
    let (cluster, table) = (HostCluster::new(last), HostOffset::new((last - 2) * 512));
    let place = Place::L2Entry { table, index: 1 };
    let raw = (1 << 63) | (last * 512) | 1;
    assert_eq!(
        found,
        [
            Finding::Copied { place, raw, refcount: 7 },
            Finding::Leak { cluster, refcount: 7, references: 1 },
        ]
    );
}

#[test]
fn a_read_error_ends_the_check_and_says_where() {
    struct Broken(Vec<u8>);
    impl ReadAt for Broken {
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            if offset >= 1024 {
                return Err(io::Error::from_raw_os_error(libc::ENXIO));
            }
            self.0.read_at(offset, buf)
        }
        fn len(&self) -> u64 {
            ReadAt::len(&self.0)
        }
    }
    let error = run(&Broken(image(512, 1 << 20))).0.expect_err("unreadable");
    assert_eq!(error.errno(), libc::ENXIO);
    assert!(matches!(error, CheckError::Read { offset, .. } if offset.get() == 1024), "{error}");
}

#[test]
fn a_table_named_a_million_times_is_read_once() {
    let mut bytes = image(2 << 20, 1 << 20);
    let (l1, table) = (3 * (2 << 20), 4u64 * (2 << 20));
    let entries = 4u32 << 20;
    bytes[36..40].copy_from_slice(&entries.to_be_bytes());
    bytes.resize(l1 + (32 << 20), 0);
    // The table itself lies under the L1 table now; both are full of references to it.
    for entry in bytes[l1..].as_chunks_mut::<8>().0 {
        *entry = (table | (1 << 63)).to_be_bytes();
    }
    let start = Instant::now();
    let (report, _) = run(&bytes);
    let report = report.expect("a result");
    assert_eq!(report.allocated_clusters, 1 << 40);
    assert!(report.corruptions > 0);
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

const EXABYTE: u64 = 1 << 60;

/// A file of an exabyte that is all hole but for the tables of a new image and `pieces`.
fn holes(pieces: &[(u64, Vec<u8>)]) -> Sparse {
    let layout = layout(2 << 20, EXABYTE);
    let tables = layout.writes.iter().map(|write| (write.offset.get(), write.bytes.clone()));
    Sparse { length: EXABYTE, pieces: tables.chain(pieces.iter().cloned()).collect() }
}

/// `count` entries with `flag` that lead far apart, from 2 MiB cluster `first` on.
fn spread(first: u64, count: u64, flag: u64) -> Vec<u8> {
    let entry = |n: u64| ((first + n * 4096) << 21) | flag;
    (0..count).flat_map(|n| entry(n).to_be_bytes()).collect()
}

fn assert_limit(image: &Sparse, expected: LimitKind) {
    let start = Instant::now();
    match run(image).0 {
        Err(CheckError::Limit { kind, .. }) => assert_eq!(kind, expected),
        other => panic!("no limit reached: {other:?}"),
    }
    assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
}

#[test]
fn holes_cost_nothing_unless_something_leads_there() {
    assert!(run(&holes(&[])).0.expect("a result").is_clean());
}

#[test]
fn l2_tables_in_holes_reach_the_limit_of_tables() {
    let l1 = (3 << 21, spread(4096, 1000, 1 << 63));
    assert_limit(&holes(&[l1]), LimitKind::TableBytes);
}

#[test]
fn refcount_blocks_in_holes_reach_the_limit_of_tables() {
    let reftable = (1 << 21, spread(4096, 1 << 16, 0));
    assert_limit(&holes(&[reftable]), LimitKind::TableBytes);
}

#[test]
fn data_all_over_the_holes_reaches_the_limit_of_memory() {
    let l1 = (3 << 21, spread(4096, 1, 1 << 63));
    let l2 = (4096 << 21, spread(8192, 1 << 16, 1 << 63));
    assert_limit(&holes(&[l1, l2]), LimitKind::Memory);
}

#[test]
fn limits_follow_what_is_stored() {
    assert_eq!(CheckLimits::for_stored(0), CheckLimits::default());
    let stored = 1 << 40;
    assert!(CheckLimits::for_stored(stored).memory >= stored / 512 * 8);
    assert_eq!(CheckLimits::for_stored(stored).table_bytes, stored);
}

#[test]
fn what_is_no_image_is_refused() {
    for bytes in [vec![], b"QF".to_vec(), b"QFI\xfb".to_vec(), vec![0; 4096]] {
        assert!(matches!(run(&bytes).0, Err(CheckError::Header(_))));
    }
    let mut version_4 = image(512, 1 << 20);
    version_4[7] = 4;
    let error = run(&version_4).0.expect_err("version 4");
    assert!(matches!(error, CheckError::Header(HeaderError::Version { version: 4 })));
    assert_eq!(error.errno(), libc::ENOTSUP);
}

#[test]
fn every_finding_has_a_text_of_its_own() {
    let place = Place::L1Entry { index: 11 };
    let (cluster, raw) = (HostCluster::new(22), 0x33);
    let findings = [
        Finding::Entry { place, error: EntryError::CopiedNothing { raw } },
        Finding::CompressedCopied { place, raw },
        Finding::BeyondEof { place, offset: HostOffset::new(0x200), bytes: 512 },
        Finding::Copied { place, raw, refcount: 5 },
        Finding::RefBlockShared { place, cluster, references: 2 },
        Finding::RefcountTooLow { cluster, refcount: 1, references: 2 },
        Finding::Leak { cluster, refcount: 2, references: 1 },
        Finding::MetadataShared { cluster, references: 2 },
        Finding::RefcountsUnknown { place, clusters: 9 },
    ];
    let texts: std::collections::BTreeSet<_> = findings.iter().map(Finding::to_string).collect();
    assert_eq!(texts.len(), findings.len());
    for text in texts {
        assert!(text.contains("L1 entry 11: ") || text.contains("cluster 22 "), "{text}");
    }
}

fn parse_and_check(bytes: Vec<u8>) {
    for access in [Access::Read, Access::Write, Access::Check] {
        if let Ok(mut header) = Header::parse(&bytes, access) {
            // What was accepted can be written back, and is accepted again.
            if let Ok(again) = header.to_bytes() {
                assert_eq!(Header::parse(&again, access).as_ref(), Ok(&header));
            }
        }
    }
    let (result, _) = run(&bytes);
    if let Ok(report) = result {
        assert!(report.fragmented_clusters <= report.allocated_clusters);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_header_byte_makes_a_panic(
        pokes in prop::collection::vec((0usize..600, any::<u8>()), 1..6),
        big in any::<bool>(),
    ) {
        let mut bytes = image(if big { 65536 } else { 512 }, 1 << 20);
        for (offset, value) in pokes {
            bytes[offset] = value;
        }
        parse_and_check(bytes);
    }

    #[test]
    fn no_byte_anywhere_makes_a_panic(
        pokes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
        length in any::<prop::sample::Index>(),
        cut in any::<bool>(),
    ) {
        let mut bytes = image(512, 1 << 20);
        for (offset, value) in pokes {
            let offset = offset.index(bytes.len());
            bytes[offset] = value;
        }
        if cut {
            bytes.truncate(length.index(bytes.len()));
        }
        parse_and_check(bytes);
    }

    /// Fields get numbers near the bounds, where arithmetic goes wrong.
    #[test]
    fn no_field_makes_a_panic(
        fields in prop::collection::vec((0usize..27, 0u32..64, -1i64..2), 1..4),
    ) {
        let mut bytes = image(512, 1 << 20);
        for (field, bit, around) in fields {
            let value = (1u64 << bit).wrapping_add_signed(around);
            bytes[field * 4..field * 4 + 8].copy_from_slice(&value.to_be_bytes());
        }
        bytes[..4].copy_from_slice(b"QFI\xfb");
        bytes[4..8].copy_from_slice(&3u32.to_be_bytes());
        parse_and_check(bytes);
    }

    /// Entries of the L1, L2 and refcount tables get numbers near the bounds.
    #[test]
    fn no_entry_makes_a_panic(
        entries in prop::collection::vec((0usize..320, 0u32..64, -1i64..2, any::<u64>()), 1..8),
    ) {
        let mut bytes = image(512, 1 << 20);
        for (entry, bit, around, mask) in entries {
            let value = (1u64 << bit).wrapping_add_signed(around) ^ (mask & mask >> 7 & !0x1ff);
            let place = 512 + entry * 8;
            bytes[place..place + 8].copy_from_slice(&value.to_be_bytes());
        }
        parse_and_check(bytes);
    }
}
