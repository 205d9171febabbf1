use proptest::prelude::*;

use super::*;

const ALL: [Compression; 2] = [Compression::Zlib, Compression::Zstd];

fn built_in() -> impl Iterator<Item = Compression> {
    ALL.into_iter().filter(|compression| compression.is_built_in())
}

/// Bytes that compress a little: text of few letters, by a fixed rule.
fn text(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        b"abcdefgh \n"[(state >> 33) as usize % 10]
    };
    (0..len).map(|_| next()).collect()
}

/// Bytes that do not.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

fn compressed(compression: Compression, cluster: &[u8]) -> CompressedCluster {
    let mut compressor = Compressor::new(compression, cluster.len()).unwrap();
    compressor.compress(cluster).expect("it becomes smaller")
}

#[test]
fn what_was_compressed_comes_back() {
    for compression in built_in() {
        for size in [512, 4096, 65536, 2 << 20] {
            let mut compressor = Compressor::new(compression, size).unwrap();
            for cluster in [text(size, 7), vec![0; size], vec![0xaa; size], text(size, 9)] {
                let one = compressor.compress(&cluster).expect("it becomes smaller");
                assert!(one.bytes().len() < size);
                let mut back = vec![0x55; size];
                // As it lies in an image: with other bytes behind it.
                let data = [one.bytes(), &noise(700)].concat();
                assert_eq!(decompress(compression, &data, &mut back), Ok(()));
                assert!(back == cluster, "{compression} {size}");
            }
        }
    }
}

#[test]
fn the_end_of_a_disk_counts_as_filled_up() {
    for compression in built_in() {
        let mut compressor = Compressor::new(compression, 4096).unwrap();
        compressor.compress(&noise(4095));
        let one = compressor.compress(&text(1000, 3)).expect("it becomes smaller");
        let mut back = vec![1; 4096];
        decompress(compression, one.bytes(), &mut back).unwrap();
        assert_eq!(back[..1000], text(1000, 3));
        assert!(back[1000..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn noise_is_not_made_larger() {
    for compression in built_in() {
        let mut compressor = Compressor::new(compression, 65536).unwrap();
        assert_eq!(compressor.compress(&noise(65536)), None);
        // And the next one does not suffer from it.
        let one = compressor.compress(&text(65536, 1)).expect("it becomes smaller");
        let mut back = vec![0; 65536];
        decompress(compression, one.bytes(), &mut back).unwrap();
        assert!(back == text(65536, 1));
    }
}

#[test]
fn clusters_that_do_not_fit_leave_nothing_behind() {
    for compression in built_in() {
        for size in [512, 4096] {
            let mut compressor = Compressor::new(compression, size).unwrap();
            for round in 0..20 {
                // Almost fits, or does not by far.
                let bytes = [noise(size - round * 7), text(round * 7, 1)].concat();
                if let Some(one) = compressor.compress(&bytes) {
                    let mut back = vec![0; size];
                    decompress(compression, one.bytes(), &mut back).unwrap();
                    assert!(back == bytes);
                }
            }
        }
    }
}

#[test]
#[cfg(feature = "zlib")]
fn no_distance_leaves_the_window_of_other_readers() {
    // The same noise twice, further apart than the window of a reader: it must not be found again.
    let (first, gap) = (noise(3000), text(5000, 5));
    let cluster = [first.as_slice(), &gap, &first, &vec![0; 5384]].concat();
    let one = compressed(Compression::Zlib, &cluster);
    let mut inflate = flate2::Decompress::new_with_window_bits(false, 12);
    let mut back = vec![0; cluster.len()];
    inflate.decompress(one.bytes(), &mut back, flate2::FlushDecompress::Finish).unwrap();
    assert!(back == cluster);
    assert!(one.bytes().len() > 6000, "the second copy was referred to: {}", one.bytes().len());
}

#[test]
fn truncated_data_is_short_or_damaged() {
    for compression in built_in() {
        let one = compressed(compression, &text(4096, 2));
        let mut back = vec![0; 4096];
        for len in 0..one.bytes().len() - 8 {
            let error = decompress(compression, &one.bytes()[..len], &mut back)
                .expect_err("there is not enough of it");
            assert_eq!(error.errno(), libc::EIO);
        }
        // A whole one, of a smaller cluster.
        let small = compressed(compression, &text(512, 2));
        let short = decompress(compression, small.bytes(), &mut back);
        assert_eq!(short, Err(CompressionError::Short { compression }));
    }
}

#[test]
#[cfg(feature = "zstd")]
fn several_frames_fill_one_cluster() {
    let (first, second) = (text(3000, 1), text(1096, 2));
    let data = [compressed(Compression::Zstd, &first), compressed(Compression::Zstd, &second)]
        .map(|one| one.bytes().to_vec())
        .concat();
    let mut back = vec![0; 4096];
    decompress(Compression::Zstd, &data, &mut back).unwrap();
    assert!(back == [first, second].concat());
}

#[test]
fn a_bomb_fills_one_cluster_at_most() {
    for compression in built_in() {
        let one = compressed(compression, &vec![0; 2 << 20]);
        let mut back = vec![1; 512];
        // It is cut off or refused; nothing grows with what it claims.
        let result = decompress(compression, one.bytes(), &mut back);
        match compression {
            Compression::Zlib => assert_eq!((result, back), (Ok(()), vec![0; 512])),
            Compression::Zstd => assert_eq!(result, Err(CompressionError::Damaged { compression })),
        }
    }
}

#[test]
fn what_was_left_out_is_refused_by_name() {
    for compression in ALL.into_iter().filter(|compression| !compression.is_built_in()) {
        let error = Compressor::new(compression, 512).expect_err("left out");
        assert_eq!(error, CompressionError::NotBuiltIn { compression });
        assert_eq!(error.errno(), libc::ENOTSUP);
        assert!(error.to_string().contains(compression.name()));
        assert!(error.reason().contains(compression.name()));
        assert_eq!(decompress(compression, &[0; 512], &mut [0; 512]), Err(error));
    }
}

#[test]
fn names_and_numbers_lead_back() {
    for compression in ALL {
        assert_eq!(Compression::named(compression.name()), Some(compression));
        assert_eq!(Compression::of_number(compression.number()), Some(compression));
    }
    assert_eq!((Compression::named("lzo"), Compression::of_number(2)), (None, None));
}

proptest! {
    #[test]
    fn garbage_is_an_error_or_a_cluster(
        data in prop::collection::vec(any::<u8>(), 0..2000),
        zstd in any::<bool>(),
    ) {
        let compression = if zstd { Compression::Zstd } else { Compression::Zlib };
        let magic: &[u8] = if zstd { &[0x28, 0xb5, 0x2f, 0xfd] } else { &[] };
        let data = [magic, &data].concat();
        let mut cluster = vec![0; 4096];
        if let Err(error) = decompress(compression, &data, &mut cluster) {
            prop_assert!(matches!(error.errno(), libc::EIO | libc::ENOTSUP));
        }
    }

    #[test]
    fn one_wrong_byte_is_no_panic(
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
        seed in any::<u64>(),
    ) {
        for compression in built_in() {
            let mut data = compressed(compression, &text(4096, seed)).bytes().to_vec();
            let at = at.index(data.len());
            data[at] = value;
            let mut cluster = vec![0; 4096];
            if let Err(error) = decompress(compression, &data, &mut cluster) {
                prop_assert_eq!(error.errno(), libc::EIO);
            }
        }
    }
}
