use super::*;
use crate::geometry::GeometryError;

/// A header as this driver writes it, of a 1 GiB image with 64 KiB clusters over a backing file.
fn sample() -> Vec<u8> {
    let backing = Backing { name: b"base.raw".to_vec(), format: b"raw".to_vec() };
    let mut header = Header::create(
        Geometry::new(16, 1 << 30).expect("in range"),
        L1Table { offset: HostOffset::new(0x3_0000), entries: 2 },
        RefTable { offset: HostOffset::new(0x1_0000), clusters: 1 },
        Compatible::LAZY_REFCOUNTS,
        Compression::Zlib,
        Some(&backing),
    )
    .expect("valid");
    header
        .extensions
        .push(Extension { kind: ExtensionKind(0xdead_beef), data: vec![1, 2, 3, 4, 5] });
    let mut bytes = header.to_bytes().expect("it fits");
    bytes.resize(65536, 0);
    bytes
}

fn poked(pokes: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = sample();
    for (offset, data) in pokes {
        bytes[*offset..offset + data.len()].copy_from_slice(data);
    }
    bytes
}

fn refusal(pokes: &[(usize, &[u8])], access: Access) -> HeaderError {
    Header::parse(&poked(pokes), access).expect_err("it must be refused")
}

fn be32(value: u32) -> [u8; 4] {
    value.to_be_bytes()
}

fn be64(value: u64) -> [u8; 8] {
    value.to_be_bytes()
}

#[test]
fn a_header_survives_the_way_there_and_back() {
    let bytes = sample();
    let mut header = Header::parse(&bytes, Access::Write).expect("valid");
    assert_eq!(Header::bytes_wanted(&bytes[..HEADER_PREFIX_BYTES]), Ok(65536));
    assert_eq!(header.backing_name(), Some(&b"base.raw"[..]));
    assert_eq!(header.backing_format(), Some(&b"raw"[..]));
    assert_eq!(header.extensions().len(), 3);
    assert_eq!(header.compatible(), Compatible::LAZY_REFCOUNTS);
    assert!(bytes.starts_with(&header.fixed_bytes()));
    let again = header.to_bytes().expect("it fits");
    assert!(bytes.starts_with(&again));
    assert!(bytes[again.len()..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_name_elsewhere_stays_where_it_is_until_the_header_is_laid_out_anew() {
    let bytes = poked(&[(8, &be64(0x8000)), (0x8000, b"other.qc")]);
    let mut header = Header::parse(&bytes, Access::Write).expect("valid");
    assert_eq!(header.backing_name(), Some(&b"other.qc"[..]));
    assert!(bytes.starts_with(&header.fixed_bytes()));
    let anew = header.to_bytes().expect("it fits");
    assert!(anew.ends_with(b"other.qc"));
    assert_eq!(Header::parse(&anew, Access::Write), Ok(header));
}

#[test]
fn unknown_compatible_bits_stay_and_autoclear_bits_go() {
    let bytes = poked(&[(80, &be64(1 << 41)), (88, &be64(1 << 40 | 1))]);
    let mut header = Header::parse(&bytes, Access::Write).expect("valid");
    assert!(header.clear_autoclear());
    assert!(!header.clear_autoclear());
    let fixed = header.fixed_bytes();
    assert_eq!(fixed[80..88], be64(1 << 41));
    assert_eq!(fixed[88..96], [0; 8]);
    assert_eq!(fixed[..80], bytes[..80]);
}

#[test]
fn a_longer_header_is_preserved() {
    let mut bytes = vec![0; 65536];
    bytes[..104].copy_from_slice(&poked(&[(8, &be64(0)), (100, &be32(128))])[..104]);
    bytes[105..128].fill(0x5a);
    let mut header = Header::parse(&bytes, Access::Write).expect("valid");
    let again = header.to_bytes().expect("it fits");
    assert_eq!(again[105..128], [0x5a; 23]);
    assert_eq!(header.backing_name(), None);
}

#[test]
fn marks_reach_the_bytes() {
    let mut header = Header::parse(&sample(), Access::Write).expect("valid");
    assert!(header.mark_corrupt());
    header.set_l1(L1Table { offset: HostOffset::new(0x7_0000), entries: 9 });
    header.set_reftable(RefTable { offset: HostOffset::new(0x9_0000), clusters: 2 });
    header.set_geometry(header.geometry().resized(1 << 29).expect("in range"));
    let mut bytes = sample();
    bytes[..HEADER_FIXED_BYTES].copy_from_slice(&header.fixed_bytes());
    assert_eq!(Header::parse(&bytes, Access::Read), Ok(header));
    let error = Header::parse(&bytes, Access::Write).expect_err("marked corrupt");
    assert_eq!((error.errno(), error), (libc::EACCES, HeaderError::Corrupt));
}

#[test]
fn each_unsupported_feature_is_refused_by_name() {
    use HeaderError as E;
    let everyone: &[(usize, &[u8], E)] = &[
        (4, &be32(1), E::Version { version: 1 }),
        (4, &be32(4), E::Version { version: 4 }),
        (32, &be32(2), E::Encrypted { method: 2 }),
        (72, &be64(4), E::ExternalData),
        (72, &be64(16), E::ExtendedL2),
    ];
    for (offset, data, expected) in everyone {
        for access in [Access::Read, Access::Write, Access::Check] {
            let error = refusal(&[(*offset, data)], access);
            assert_eq!((&error, error.errno()), (expected, libc::ENOTSUP));
        }
    }
    let unknown = refusal(&[(72, &be64(8)), (104, &[2])], Access::Read);
    assert_eq!((unknown.errno(), unknown), (libc::ENOTSUP, E::Compression { compression: 2 }));
    let dirty = refusal(&[(72, &be64(1))], Access::Write);
    assert_eq!((dirty.errno(), dirty), (libc::ENOTSUP, E::Dirty));
}

#[test]
fn zstd_is_refused_by_name_if_it_was_left_out() {
    let bytes = poked(&[(72, &be64(8)), (104, &[1])]);
    for access in [Access::Read, Access::Write, Access::Check] {
        match Header::parse(&bytes, access) {
            Ok(header) => {
                assert!(Compression::Zstd.is_built_in() || access == Access::Check);
                assert_eq!(header.compression(), Compression::Zstd);
            }
            Err(error) => {
                assert!(!Compression::Zstd.is_built_in() && access != Access::Check);
                assert_eq!(error, HeaderError::NotBuiltIn { compression: Compression::Zstd });
                assert_eq!(error.errno(), libc::ENOTSUP);
                assert!(error.to_string().contains("zstd"));
            }
        }
    }
}

#[test]
fn a_damaged_or_shared_image_may_still_be_read_and_checked() {
    for (offset, data) in [(72, be64(1)), (72, be64(2)), (60, [0, 0, 0, 7, 0, 0, 0, 0])] {
        assert!(Header::parse(&poked(&[(offset, &data)]), Access::Read).is_ok());
    }
    let snapshots = Header::parse(&poked(&[(60, &be32(7))]), Access::Write).expect("not refused");
    assert_eq!(snapshots.snapshots(), 7);
    for data in [be64(1), be64(2)] {
        assert!(Header::parse(&poked(&[(72, &data)]), Access::Check).is_ok());
    }
}

#[test]
fn unknown_incompatible_bits_are_called_what_the_image_calls_them() {
    let names = sample().windows(9).position(|w| w == b"dirty bit").expect("name table");
    let mut record = [0; 48];
    record[..14].copy_from_slice(b"\x00\x09evil\x1b[31m\xff\n\"");
    let error = refusal(&[(72, &be64(1 << 9 | 1 << 63)), (names - 2, &record)], Access::Read);
    let names = vec![r#"evil\x1b[31m\xff\n\""#.to_owned(), "bit 63".to_owned()];
    assert_eq!(error, HeaderError::UnknownIncompatible { bits: 1 << 9 | 1 << 63, names });
}

#[test]
fn what_no_image_may_say_is_einval_or_efbig() {
    let invalid: &[(usize, &[u8])] = &[
        (0, b"QFI\0"),
        (20, &be32(0)),
        (20, &be32(8)),
        (20, &be32(22)),
        (20, &be32(63)),
        (36, &be32(1)),
        (40, &be64(0x3_0200)),
        (40, &be64(1 << 56)),
        (40, &be64(!0xffff)),
        (40, &be64(0)),
        (40, &be64(0x1_0000)),
        (48, &be64(0x1_0200)),
        (48, &be64(0)),
        (48, &be64(1 << 56)),
        (48, &be64(0x7fff_ffff_ffff_0000)),
        (56, &be32(0)),
        (72, &be64(8)),
        (104, &[1]),
        (96, &be32(7)),
        (100, &be32(0)),
        (100, &be32(103)),
        (100, &be32(108)),
        (100, &be32(65544)),
        (8, &be64(65537)),
        (8, &be64(65530)),
        (8, &be64(50)),
        (16, &be32(1024)),
        (112, &[0, 0, 0x12, 0x34, 0, 1, 0x11, 0x70]),
        (116, &be32(16)),
    ];
    for poke in invalid {
        let error = refusal(&[*poke], Access::Write);
        assert_eq!(error.errno(), libc::EINVAL, "{poke:x?}: {error}");
    }
    let too_large: &[(usize, &[u8])] =
        &[(24, &be64(1 << 63)), (36, &be32((4 << 20) + 1)), (56, &be32(129))];
    for poke in too_large {
        assert_eq!(refusal(&[*poke], Access::Read).errno(), libc::EFBIG, "{poke:x?}");
    }
    let bits = GeometryError::ClusterBits { cluster_bits: 63 };
    assert_eq!(refusal(&[(20, &be32(63))], Access::Read), HeaderError::Geometry(bits));
}

#[test]
fn a_cluster_full_of_empty_extensions_is_refused() {
    let mut bytes = sample();
    bytes[8..20].fill(0);
    for extension in bytes[112..].as_chunks_mut::<8>().0 {
        *extension = [1, 2, 3, 4, 0, 0, 0, 0];
    }
    let error = HeaderError::ExtensionCount { limit: 256 };
    assert_eq!(Header::parse(&bytes, Access::Read), Err(error));
}

#[test]
fn a_file_may_end_anywhere() {
    let bytes = sample();
    for length in 0..2048 {
        // Whatever the answer, it comes; in the end it is yes.
        let answer = Header::parse(&bytes[..length], Access::Write);
        assert_eq!(answer.is_ok(), length >= 552, "{length}: {answer:?}");
    }
}

#[test]
fn what_does_not_fit_into_the_first_cluster_is_not_written() {
    let mut header = Header::parse(&sample(), Access::Write).expect("valid");
    header.extensions.push(Extension { kind: ExtensionKind(7), data: vec![0; 65536] });
    assert!(matches!(header.to_bytes(), Err(HeaderError::TooLong { .. })));
}

#[test]
fn backing_names_that_no_image_can_hold_are_refused() {
    let make = |name: &[u8], format: &[u8]| {
        let backing = Backing { name: name.to_vec(), format: format.to_vec() };
        let geometry = Geometry::new(16, 1 << 30).expect("in range");
        let l1 = L1Table { offset: HostOffset::new(0x3_0000), entries: 2 };
        let reftable = RefTable { offset: HostOffset::new(0x1_0000), clusters: 1 };
        let (compatible, compression) = (Compatible::empty(), Compression::Zlib);
        Header::create(geometry, l1, reftable, compatible, compression, Some(&backing)).err()
    };
    assert_eq!(make(&[b'x'; 1023], &[b'f'; 15]), None);
    assert_eq!(make(b"a\0b", b"raw"), Some(HeaderError::BackingNameNul));
    for length in [0, 1024] {
        let error = HeaderError::BackingName { offset: 0, bytes: length as u64 };
        assert_eq!(make(&vec![b'x'; length], b"raw"), Some(error));
    }
    for length in [0, 16] {
        let error = HeaderError::BackingFormat { bytes: length as u64 };
        assert_eq!(make(b"x", &vec![b'f'; length]), Some(error));
    }
}

/// A header of version 2 over a backing file, with an unknown extension.
fn version_2() -> Vec<u8> {
    let backing = Backing { name: b"base.raw".to_vec(), format: b"raw".to_vec() };
    let geometry = Geometry::new(16, 1 << 30).expect("in range");
    let mut header = Header::create(
        geometry.with_format(Version::V2, Default::default()),
        L1Table { offset: HostOffset::new(0x3_0000), entries: 2 },
        RefTable { offset: HostOffset::new(0x1_0000), clusters: 1 },
        Compatible::empty(),
        Compression::Zlib,
        Some(&backing),
    )
    .expect("valid");
    header.extensions.push(Extension { kind: ExtensionKind(0xdead_beef), data: vec![1, 2, 3] });
    header.to_bytes().expect("it fits")
}

#[test]
fn version_2_has_72_bytes_and_no_features() {
    let bytes = version_2();
    assert_eq!(bytes[72..76], 0xe279_2acau32.to_be_bytes());
    assert!(bytes.ends_with(b"base.raw"));
    let mut header = Header::parse(&bytes, Access::Write).expect("valid");
    assert_eq!((header.version(), header.refcount_bits()), (Version::V2, 16));
    assert_eq!(header.backing_name(), Some(&b"base.raw"[..]));
    assert_eq!(header.backing_format(), Some(&b"raw"[..]));
    assert_eq!(header.extensions().len(), 2);
    assert!(!header.mark_corrupt(), "there is no bit for it");
    assert!(!header.clear_autoclear());
    assert!(bytes.starts_with(&header.fixed_bytes()));
    assert_eq!(header.fixed_bytes().len(), 72);
    assert_eq!(header.to_bytes(), Ok(bytes));
}

#[test]
fn version_2_says_nothing_by_the_bytes_of_version_3() {
    // Where version 3 has feature bits, refcount order and header length, version 2 has extensions.
    let mut bytes = version_2();
    let extension = [0xee; 4].into_iter().chain(be32(24)).chain([0xff; 24]);
    for (byte, new) in bytes[72..].iter_mut().zip(extension) {
        *byte = new;
    }
    let header = Header::parse(&bytes, Access::Write).expect("valid");
    assert_eq!(header.extensions()[0].data, [0xff; 24]);
    assert!(header.incompatible().is_empty());
    // The file may be as short as the header.
    bytes[8..16].fill(0);
    assert!(Header::parse(&bytes[..72], Access::Write).is_ok());
    assert!(Header::parse(&bytes[..71], Access::Write).is_err());
}

#[test]
fn every_refcount_width_comes_back() {
    for order in 0..=6 {
        let bytes = poked(&[(96, &be32(order))]);
        let header = Header::parse(&bytes, Access::Write).expect("valid");
        assert_eq!(header.refcount_bits(), 1 << order);
        assert!(bytes.starts_with(&header.fixed_bytes()));
    }
}
