//! Refcounts in a block: 1 to 64 bits wide, eight or fewer of them in a byte.
#![forbid(unsafe_code)]
#![deny(clippy::indexing_slicing)]

use std::ops::Range;

/// How wide the refcounts of an image are: a power of two from 1 to 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RefcountWidth(u32);

/// Why a count cannot be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RefcountError {
    /// The block has no such count.
    #[error("a refcount block has no count {index}")]
    Index {
        /// Which count was asked for.
        index: usize,
    },
    /// The count does not fit into the width.
    #[error("a refcount of {count} does not fit into {bits} bits")]
    Overflow {
        /// The count.
        count: u64,
        /// Bits of a refcount.
        bits: u32,
    },
}

impl RefcountError {
    /// The errno that stands for this error.
    pub const fn errno(&self) -> i32 {
        libc::EINVAL
    }
}

impl RefcountWidth {
    /// 16 bits: what a new image has unless something else is asked for, and every image of version 2.
    pub const DEFAULT: Self = Self(4);

    /// A width by its base-2 logarithm, as the header has it: at most 6.
    pub const fn of_order(order: u32) -> Option<Self> {
        if order <= 6 { Some(Self(order)) } else { None }
    }

    /// A width of so many bits: 1, 2, 4, 8, 16, 32 or 64.
    pub const fn of_bits(bits: u32) -> Option<Self> {
        if bits.is_power_of_two() { Self::of_order(bits.trailing_zeros()) } else { None }
    }

    /// Base-2 logarithm of the width.
    pub const fn order(self) -> u32 {
        self.0
    }

    /// Bits of a count.
    pub const fn bits(self) -> u32 {
        1 << self.0
    }

    /// The largest count.
    pub const fn max(self) -> u64 {
        u64::MAX >> (64 - self.bits())
    }

    /// The bytes of a block that hold its count `index`.
    pub const fn place(self, index: usize) -> Range<usize> {
        if self.0 < 3 {
            let byte = index >> (3 - self.0);
            byte..byte.saturating_add(1)
        } else {
            let bytes = 1 << (self.0 - 3);
            let start = index.saturating_mul(bytes);
            start..start.saturating_add(bytes)
        }
    }

    /// Count `index` of a block; `None` past its end. Of several counts in a byte the first is in the lowest bits;
    /// wider ones are big-endian.
    pub fn get(self, block: &[u8], index: usize) -> Option<u64> {
        let bytes = block.get(self.place(index))?;
        let value = bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        Some(value >> self.shift(index) & self.max())
    }

    /// Sets count `index` of a block.
    ///
    /// # Errors
    /// Nothing is changed past the end of the block, and where the count does not fit.
    pub fn set(self, block: &mut [u8], index: usize, count: u64) -> Result<(), RefcountError> {
        if count > self.max() {
            return Err(RefcountError::Overflow { count, bits: self.bits() });
        }
        let bytes = block.get_mut(self.place(index)).ok_or(RefcountError::Index { index })?;
        if let [byte] = bytes {
            // A count in a byte, perhaps with others: at most 8 bits.
            let shift = self.shift(index);
            *byte = *byte & !((self.max() as u8) << shift) | (count as u8) << shift;
        } else {
            let all = count.to_be_bytes();
            let (_, low) = all.split_at(all.len() - bytes.len());
            bytes.copy_from_slice(low);
        }
        Ok(())
    }

    /// Where a count that is narrower than a byte lies in it, in bits from the lowest.
    const fn shift(self, index: usize) -> u32 {
        if self.0 < 3 { (index as u32 & ((8 >> self.0) - 1)) << self.0 } else { 0 }
    }
}

impl Default for RefcountWidth {
    fn default() -> Self {
        Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widths() -> impl Iterator<Item = RefcountWidth> {
        (0..=6).map(|order| RefcountWidth::of_order(order).unwrap())
    }

    #[test]
    fn widths_are_powers_of_two_up_to_64() {
        let bits: Vec<u32> = (0..300).filter(|b| RefcountWidth::of_bits(*b).is_some()).collect();
        assert_eq!(bits, [1, 2, 4, 8, 16, 32, 64]);
        assert_eq!(RefcountWidth::of_order(7), None);
        assert!(widths().map(RefcountWidth::bits).eq(bits));
        assert_eq!(widths().map(RefcountWidth::max).max(), Some(u64::MAX));
        assert_eq!(RefcountWidth::default().bits(), 16);
    }

    #[test]
    fn counts_come_back_and_leave_their_neighbours_alone() {
        for width in widths() {
            let counts = 64 * 8 / width.bits() as usize;
            let mut block = [0; 64];
            let value =
                |index: usize| (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) & width.max();
            for index in (0..counts).rev() {
                width.set(&mut block, index, value(index)).unwrap();
            }
            for index in 0..counts {
                assert_eq!(width.get(&block, index), Some(value(index)), "{width:?} {index}");
            }
            let before = block;
            assert_eq!(width.get(&block, counts), None);
            assert_eq!(
                width.set(&mut block, counts, 1),
                Err(RefcountError::Index { index: counts })
            );
            assert_eq!(width.get(&block, usize::MAX), None);
            if let Some(count) = width.max().checked_add(1) {
                let error = RefcountError::Overflow { count, bits: width.bits() };
                assert_eq!(width.set(&mut block, 0, count), Err(error));
            }
            assert_eq!(block, before);
        }
    }

    #[test]
    fn bytes_as_the_format_wants_them() {
        let bytes = |bits: u32, sets: &[(usize, u64)]| {
            let (width, mut block) = (RefcountWidth::of_bits(bits).unwrap(), [0; 8]);
            sets.iter().for_each(|&(index, count)| width.set(&mut block, index, count).unwrap());
            block
        };
        assert_eq!(bytes(1, &[(0, 1), (9, 1)]), [1, 2, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(2, &[(1, 3), (4, 2)]), [12, 2, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(4, &[(1, 5), (2, 6)]), [0x50, 6, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(8, &[(1, 5)]), [0, 5, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes(16, &[(1, 0x0506)]), [0, 0, 5, 6, 0, 0, 0, 0]);
        assert_eq!(bytes(32, &[(1, 0x0506)]), [0, 0, 0, 0, 0, 0, 5, 6]);
        assert_eq!(bytes(64, &[(0, 0x0506)]), [0, 0, 0, 0, 0, 0, 5, 6]);
    }
}
