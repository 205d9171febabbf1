//! The mixing function behind every random choice and pattern of this crate.

/// A one-to-one function in which each bit of the argument changes half the bits of the result: the output function
/// of SplitMix64.
pub(crate) const fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}
