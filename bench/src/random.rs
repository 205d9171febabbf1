//! A small random sequence that is the same everywhere, so that what was written can be computed again.

/// SplitMix64: a counter through a mixing function.
#[derive(Debug, Clone)]
pub(crate) struct Random(u64);

/// The step of the counter: 2^64 divided by the golden ratio, made odd.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `bound`, which is not 0. Slightly uneven, which does not matter here.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.next()) * u128::from(bound);
        u64::try_from(wide >> 64).expect("the high half of a product is below its factor")
    }
}

/// A one-to-one function in which each bit of the argument changes half the bits of the result: the output function
/// of SplitMix64.
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published first values for the seed 1234567, so that images stay verifiable across versions.
    #[test]
    fn the_sequence_is_the_published_one() {
        let mut random = Random::new(1_234_567);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(first, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
    }

    #[test]
    fn numbers_stay_below_their_bound_and_reach_all_of_it() {
        let mut random = Random::new(1);
        let mut seen = [0; 7];
        for _ in 0..7000 {
            seen[usize::try_from(random.below(7)).unwrap()] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
    }
}
