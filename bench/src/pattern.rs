//! The bytes that the main job writes: a function of offset, generation and seed.
//!
//! Guest bytes come in words of eight, little-endian. The word at offset `o` (a multiple of 8) of generation `g` under
//! seed `s` is
//!
//! ```text
//! 0                                             if g = 0: never written
//! mix(o + mix(g + mix(s)))                      otherwise, all sums modulo 2^64
//! ```
//!
//! where `mix` is the output function of SplitMix64:
//!
//! ```text
//! mix(x): x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;  x = (x ^ x >> 27) * 0x94d049bb133111eb;  x ^ x >> 31
//! ```
//!
//! So two places, two generations of one place, or two runs with different seeds have no word in common, but by a
//! chance of one in 2^64.

use crate::random::mix;

/// Which pattern: everything but the place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    base: Option<u64>,
}

/// Bytes of a word.
const WORD: usize = 8;

impl Pattern {
    /// The pattern of `generation` under `seed`; generation 0 is all zeros.
    pub fn new(generation: u32, seed: u64) -> Self {
        let base = mix(u64::from(generation).wrapping_add(mix(seed)));
        Pattern { base: (generation != 0).then_some(base) }
    }

    /// The word at `offset`, a multiple of 8.
    fn word(self, offset: u64) -> [u8; WORD] {
        self.base.map_or(0, |base| mix(offset.wrapping_add(base))).to_le_bytes()
    }

    /// Fills `bytes`, which lie at `offset` of the guest. Both offset and length are multiples of 8.
    ///
    /// # Panics
    /// If they are not.
    pub fn fill(self, offset: u64, bytes: &mut [u8]) {
        assert_words(offset, bytes.len());
        for (index, word) in (0u64..).zip(bytes.as_chunks_mut::<WORD>().0) {
            *word = self.word(offset + index * WORD as u64);
        }
    }

    /// Compares `bytes`, which lie at `offset` of the guest, with the pattern; the first difference if there is one.
    /// Both offset and length are multiples of 8.
    ///
    /// # Panics
    /// If they are not.
    pub fn compare(self, offset: u64, bytes: &[u8]) -> Option<Difference> {
        assert_words(offset, bytes.len());
        for (index, found) in (0u64..).zip(bytes.as_chunks::<WORD>().0) {
            let at = offset + index * WORD as u64;
            let expected = self.word(at);
            if *found != expected {
                return Difference::first(at, &expected, found);
            }
        }
        None
    }
}

fn assert_words(offset: u64, len: usize) {
    assert!(
        offset.is_multiple_of(WORD as u64) && len.is_multiple_of(WORD),
        "patterns are made of whole words"
    );
}

/// A byte that is not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Difference {
    /// Its guest offset.
    pub offset: u64,
    /// What should be there.
    pub expected: u8,
    /// What is there.
    pub found: u8,
}

impl Difference {
    /// The first difference between two equally long runs of bytes at `offset`.
    pub(crate) fn first(offset: u64, expected: &[u8], found: &[u8]) -> Option<Self> {
        let mut places = (offset..).zip(expected.iter().zip(found));
        places.find_map(|(offset, (&expected, &found))| {
            (expected != found).then_some(Difference { offset, expected, found })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_byte_is_found_where_it_is() {
        let pattern = Pattern::new(3, 7);
        let mut bytes = vec![0; 4096];
        pattern.fill(8192, &mut bytes);
        assert_eq!(pattern.compare(8192, &bytes), None);
        for at in [0, 1, 7, 8, 2049, 4095] {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            let difference = pattern.compare(8192, &flipped).unwrap();
            assert_eq!(difference.offset, 8192 + at as u64);
            assert_eq!(difference.found, difference.expected ^ 0x10);
        }
    }

    #[test]
    fn place_generation_and_seed_all_matter() {
        let sample = |offset, generation, seed| {
            let mut bytes = vec![0; 512];
            Pattern::new(generation, seed).fill(offset, &mut bytes);
            bytes
        };
        let all =
            [sample(0, 1, 1), sample(512, 1, 1), sample(0, 2, 1), sample(0, 1, 2), sample(0, 0, 1)];
        for (i, one) in all.iter().enumerate() {
            assert!(all.iter().skip(i + 1).all(|other| one != other), "sample {i}");
        }
        assert_eq!(sample(4096, 0, 9), [0; 512]);
    }

    /// The documented function, written out: images must stay verifiable across versions.
    #[test]
    fn the_function_is_the_documented_one() {
        let mut bytes = [0; 16];
        Pattern::new(1, 0).fill(0, &mut bytes);
        let word = mix(8u64.wrapping_add(mix(1u64.wrapping_add(mix(0)))));
        assert_eq!(bytes[8..], word.to_le_bytes());
        assert_eq!(mix(0), 0);
        assert_eq!(mix(1), 0x5692_161d_100b_05e5);
    }
}
