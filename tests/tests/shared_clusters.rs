//! Clusters that more than one entry may refer to: they are never written in place, and lose a count when the entry
//! that refers to them is replaced.

use blkring_engine::{Flags, IoMem, Request};
use blkring_qcow2::{Access, CheckLimits, Finding, Header, check};
use blkring_tests::hostile::{sample, try_in_memory};
use blkring_tests::image_world::{EIO, Places};

const SIZES: [u64; 3] = [512, 4096, 65536];

/// The flag of entries whose cluster is theirs alone.
const COPIED: u64 = 1 << 63;

/// The flag of entries that read as zeros.
const ZERO: u64 = 1;

/// What the sample wrote.
const OLD: u8 = 0x42;

/// The byte of these tests.
const NEW: u8 = 0x6B;

/// An image whose first guest cluster is in a host cluster that others may refer to.
struct Shared {
    bytes: Vec<u8>,
    /// Where that host cluster is.
    host: u64,
    /// Where its count is.
    count: u64,
}

impl Shared {
    /// The entry of guest cluster 0 has these flags, and the host cluster this count.
    fn new(cluster: u64, flags: u64, count: u16) -> Self {
        let mut bytes = sample(cluster);
        let places = Places::of(&bytes);
        let entry = places.tables[0].start;
        let raw = u64::from_be_bytes(part(&bytes, entry, 8).try_into().expect("eight"));
        let host = raw & !COPIED;
        bytes[index(entry)..][..8].copy_from_slice(&(host | flags).to_be_bytes());
        let place = places.blocks[0].start + host / cluster * 2;
        bytes[index(place)..][..2].copy_from_slice(&count.to_be_bytes());
        Shared { bytes, host, count: place }
    }

    fn count_in(&self, bytes: &[u8]) -> u16 {
        u16::from_be_bytes(part(bytes, self.count, 2).try_into().expect("two"))
    }
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("small")
}

fn part(bytes: &[u8], offset: u64, len: u64) -> &[u8] {
    &bytes[index(offset)..index(offset + len)]
}

/// The guest's first cluster, read by a fresh opening.
fn guest(bytes: &[u8], cluster: u64) -> Vec<u8> {
    let mem = IoMem::from(vec![0x5a; index(cluster)]);
    let read = Request::read(0, mem.clone());
    let tried = try_in_memory(bytes, |_| vec![read]);
    assert!(tried.opened.is_ok() && tried.failed.is_empty(), "{:?}", tried.failed);
    mem.to_vec()
}

/// The requests that replace the entry, and what the guest reads in the first cluster then: the byte in its middle,
/// and the one around that.
fn replacing(cluster: u64) -> Vec<(&'static str, Request, u8, u8)> {
    let bytes = |len: u64| IoMem::from(vec![NEW; index(len)]);
    let middle = cluster / 2;
    vec![
        ("a write", Request::write(middle, bytes(1)), NEW, OLD),
        ("a durable write", Request::write(middle, bytes(1)).with(Flags::FUA), NEW, OLD),
        ("a write of it all", Request::write(0, bytes(cluster)), NEW, NEW),
        (
            "a zero-write that unmaps",
            Request::write_zeroes(0, cluster).with(Flags::MAY_UNMAP),
            0,
            0,
        ),
        ("a discard", Request::discard(0, cluster), 0, 0),
    ]
}

#[test]
fn a_replaced_entry_takes_one_count_off_its_cluster() {
    for cluster in SIZES {
        for (flags, counts) in [(0, [1, 2, 3]), (ZERO, [1, 2, 3])] {
            for count in counts {
                let part = Request::write_zeroes(cluster / 2, 1);
                let part = ("a zero-write of a part", part, 0, OLD);
                // Where there are zeros already nothing is to be written.
                let more = (flags != ZERO).then_some(part);
                for (what, request, middle, around) in replacing(cluster).into_iter().chain(more) {
                    let what = format!("{what}, clusters of {cluster}, {flags}, count {count}");
                    let around = if flags == ZERO && around == OLD { 0 } else { around };
                    let image = Shared::new(cluster, flags, count);
                    // The second flush takes the count off.
                    let tried = try_in_memory(&image.bytes, |_| vec![request, Request::flush()]);
                    assert!(tried.opened.is_ok() && tried.failed.is_empty(), "{what}");
                    let after = tried.contents.expect("it was in memory");
                    assert_eq!(image.count_in(&after), count - 1, "{what}");
                    let host = index(image.host)..index(image.host + cluster);
                    if let Some(old) = after.get(host) {
                        assert!(old.iter().all(|byte| *byte == OLD), "{what}: written in place");
                    } else {
                        assert_eq!(count, 1, "{what}: the file ends before a cluster in use");
                    }
                    let read = guest(&after, cluster);
                    let half = index(cluster / 2);
                    assert_eq!(
                        (read[half], read[0], read[half + 1]),
                        (middle, around, around),
                        "{what}"
                    );
                    assert_sound(&after, u64::from(count) - 1, &what);
                }
            }
        }
    }
}

/// Zeros that do not unmap keep the cluster under a zero flag, and with it the count; a write after them takes another
/// cluster all the same.
#[test]
fn zeros_keep_a_cluster_that_others_may_refer_to() {
    for cluster in SIZES {
        for (flags, count) in [(0, 1), (0, 2), (ZERO, 1), (ZERO, 2)] {
            let whole = Request::write_zeroes(0, cluster);
            let part = Request::write_zeroes(cluster / 2, 1);
            for (what, request) in
                [("a zero-write", Some(whole)), ("of a part", (flags == ZERO).then_some(part))]
            {
                let what = format!("{what}, clusters of {cluster}, {flags}, count {count}");
                let Some(request) = request else { continue };
                let image = Shared::new(cluster, flags, count);
                let flush = || vec![Request::flush(), Request::flush()];
                let tried = try_in_memory(&image.bytes, |_| {
                    std::iter::once(request).chain(flush()).collect()
                });
                assert!(tried.opened.is_ok() && tried.failed.is_empty(), "{what}");
                let after = tried.contents.expect("it was in memory");
                assert_eq!(image.count_in(&after), count, "{what}");
                assert_eq!(guest(&after, cluster), vec![0; index(cluster)], "{what}");
                // A count of one that is not claimed is no more than it was.
                if count > 1 {
                    assert_sound(&after, u64::from(count) - 1, &what);
                }
                let write = Request::write(0, IoMem::from(vec![NEW; 512]));
                let tried =
                    try_in_memory(&after, |_| std::iter::once(write).chain(flush()).collect());
                assert!(tried.opened.is_ok() && tried.failed.is_empty(), "{what}");
                let after = tried.contents.expect("it was in memory");
                assert_eq!(image.count_in(&after), count - 1, "{what}: it was given up");
                let host = index(image.host)..index(image.host + cluster);
                let kept = after.get(host).is_none_or(|old| old.iter().all(|byte| *byte == OLD));
                assert!(kept, "{what}: written in place");
            }
        }
    }
}

/// Nothing but so many counts too many, which the test itself has put there.
fn assert_sound(bytes: &Vec<u8>, leaks: u64, what: &str) {
    let mut others = Vec::new();
    let mut note = |found: &Finding| match found {
        Finding::Leak { .. } => (),
        other => others.push(other.to_string()),
    };
    let report = check(bytes, CheckLimits::default(), &mut note).expect("a result");
    assert_eq!(others, [""; 0], "{what}");
    assert_eq!(report.leaks, leaks.min(1), "{what}");
}

/// A count that is zero already cannot be lowered: the image contradicts itself. (A write could take the cluster for
/// free before that shows.)
#[test]
fn a_count_never_goes_below_zero() {
    for cluster in SIZES {
        let without_space = |what: &str| ["a zero-write that unmaps", "a discard"].contains(&what);
        for (what, request, ..) in replacing(cluster).into_iter().filter(|r| without_space(r.0)) {
            let image = Shared::new(cluster, 0, 0);
            let tried = try_in_memory(&image.bytes, |_| vec![request, Request::flush()]);
            let errnos: Vec<i32> = tried.failed.iter().map(|(_, errno)| *errno).collect();
            assert!(!errnos.is_empty() && errnos.iter().all(|errno| *errno == EIO), "{what}");
            let after = tried.contents.expect("it was in memory");
            assert!(Header::parse(&after, Access::Write).is_err(), "{what}: marked corrupt");
            assert_eq!(image.count_in(&after), 0, "{what}");
        }
    }
}
