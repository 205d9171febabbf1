//! What the main job writes, block by block.
//!
//! The disk is cut into blocks of 4 KiB. Block 0 holds the label, which says the plan. Block `b` of the others belongs
//! to queue `b mod queues` alone, so that the neighbours of each block in its cluster belong to other queues, while
//! the order of the writes to one block is known. The *generation* of a block counts its writes: it is 0 at first, and
//! each write of it writes the pattern of the next generation ([`crate::pattern`]).
//!
//! 1. *Fill*: one block of each stride of 64 KiB, chosen by the seed.
//! 2. *Overwrite*: each queue writes blocks of its own, chosen at random, most of them never written before.
//!
//! So the generation of each block is a function of the plan, whatever the queues did in which order.

use crate::random::{Random, mix};

/// Bytes of a block.
pub const BLOCK: u64 = 4096;
/// The fill writes one block in each stride of so many bytes: the usual cluster.
pub const STRIDE: u64 = 65536;

/// What is written. Everything that the contents of the image depend on, and nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    size: u64,
    queues: u64,
    overwrites: u64,
    seed: u64,
}

/// Why there can be no such plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The size is 0 or no multiple of the stride, or the generations of its blocks would not fit into memory.
    #[error("a size of {size} bytes is not a multiple of {STRIDE} from {STRIDE} to {MAX_SIZE}")]
    Size {
        /// The size that was asked for, in bytes.
        size: u64,
    },
    /// Too many queues, or none.
    #[error("{queues} queues are not from 1 to {MAX_QUEUES}")]
    Queues {
        /// The number that was asked for.
        queues: u64,
    },
    /// So many overwrites that generations might overflow.
    #[error("{overwrites} overwrites are more than {MAX_OVERWRITES}")]
    Overwrites {
        /// The number that was asked for.
        overwrites: u64,
    },
}

/// 16 TiB: generations of 4 bytes each take 16 GiB then.
const MAX_SIZE: u64 = 1 << 44;
/// Each stride has 16 blocks, the first one of which has none to spare.
const MAX_QUEUES: u64 = 15;
const MAX_OVERWRITES: u64 = 1 << 31;

impl Plan {
    /// A plan for a disk of `size` bytes.
    ///
    /// # Errors
    /// [`PlanError`] says what is out of range.
    pub fn new(size: u64, queues: u64, overwrites: u64, seed: u64) -> Result<Self, PlanError> {
        if size == 0 || size > MAX_SIZE || !size.is_multiple_of(STRIDE) {
            return Err(PlanError::Size { size });
        }
        if queues == 0 || queues > MAX_QUEUES {
            return Err(PlanError::Queues { queues });
        }
        if overwrites > MAX_OVERWRITES {
            return Err(PlanError::Overwrites { overwrites });
        }
        Ok(Plan { size, queues, overwrites, seed })
    }

    /// Bytes of the disk.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Queues that write.
    pub fn queues(&self) -> u64 {
        self.queues
    }

    /// Overwrites of all queues together.
    pub fn overwrites(&self) -> u64 {
        self.overwrites
    }

    /// What everything random comes from.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Blocks of the disk, that of the label included.
    pub(crate) fn blocks(&self) -> u64 {
        self.size / BLOCK
    }

    /// The blocks that `queue` fills, in order.
    pub(crate) fn fill(&self, queue: u64) -> impl Iterator<Item = u64> + use<> {
        let plan = *self;
        let per_stride = STRIDE / BLOCK;
        let chosen = move |stride: u64| {
            let place = mix(plan.seed ^ mix(stride.wrapping_add(1))) % per_stride;
            // Block 0 is the label's.
            (stride * per_stride + place).max(1)
        };
        let all = (0..plan.size / STRIDE).map(chosen);
        all.filter(move |block| block % plan.queues == queue)
    }

    /// The blocks that `queue` overwrites, in order.
    pub(crate) fn overwrite(&self, queue: u64) -> impl Iterator<Item = u64> + use<> {
        let plan = *self;
        let mut random = Random::new(mix(plan.seed.wrapping_add(mix(queue.wrapping_add(1)))));
        let share =
            plan.overwrites / plan.queues + u64::from(queue < plan.overwrites % plan.queues);
        // Blocks queue, queue + queues, ...; queue 0 leaves the first one to the label.
        let first = u64::from(queue == 0);
        let own = (plan.blocks() - queue).div_ceil(plan.queues);
        (0..share).map(move |_| queue + plan.queues * (first + random.below(own - first)))
    }

    /// `count` blocks that `queue` reads, whoever wrote them.
    pub(crate) fn read(&self, queue: u64, count: u64) -> impl Iterator<Item = u64> + use<> {
        let blocks = self.blocks();
        let mut random = Random::new(mix(!self.seed.wrapping_add(mix(queue.wrapping_add(1)))));
        (0..count).map(move |_| 1 + random.below(blocks - 1))
    }

    /// The generation of each block when everything was written.
    pub(crate) fn generations(&self) -> Vec<u32> {
        let blocks = usize::try_from(self.blocks()).expect("bounded by MAX_SIZE");
        let mut generations = vec![0; blocks];
        for queue in 0..self.queues {
            for block in self.fill(queue).chain(self.overwrite(queue)) {
                generations[usize::try_from(block).expect("one of these")] += 1;
            }
        }
        generations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stride_is_filled_once_and_no_queue_writes_blocks_of_another() {
        for queues in [1, 2, 3, 4, 15] {
            let plan = Plan::new(100 * STRIDE, queues, 5000, 7).unwrap();
            let mut strides = vec![0; 100];
            let mut overwrites = 0;
            for queue in 0..queues {
                for block in plan.fill(queue) {
                    assert!(block % queues == queue && block != 0);
                    strides[usize::try_from(block * BLOCK / STRIDE).unwrap()] += 1;
                }
                for block in plan.overwrite(queue) {
                    assert!(block % queues == queue && block != 0 && block < plan.blocks());
                    overwrites += 1;
                }
                assert!(plan.read(queue, 1000).all(|block| (1..plan.blocks()).contains(&block)));
            }
            assert_eq!(strides, [1; 100]);
            assert_eq!(overwrites, 5000);
        }
    }

    #[test]
    fn generations_count_writes() {
        let plan = Plan::new(10 * STRIDE, 3, 1000, 1).unwrap();
        let generations = plan.generations();
        assert_eq!(generations.iter().sum::<u32>(), 1010);
        assert_eq!(generations[0], 0);
        assert!(generations.iter().skip(1).filter(|count| **count > 1).count() > 100);
        assert!(generations.contains(&0) || generations.len() < 200);
        assert_eq!(generations, plan.generations());
        assert_ne!(generations, Plan::new(10 * STRIDE, 3, 1000, 2).unwrap().generations());
    }

    #[test]
    fn odd_plans_are_refused() {
        for size in [0, 1, 65535, 65537, u64::MAX, MAX_SIZE + STRIDE] {
            assert_eq!(Plan::new(size, 1, 1, 1), Err(PlanError::Size { size }));
        }
        for queues in [0, 16, u64::MAX] {
            assert_eq!(Plan::new(STRIDE, queues, 1, 1), Err(PlanError::Queues { queues }));
        }
        assert!(Plan::new(STRIDE, 1, MAX_OVERWRITES + 1, 1).is_err());
        let smallest = Plan::new(STRIDE, 15, 15, 1).unwrap();
        assert_eq!(smallest.generations().iter().sum::<u32>(), 16);
    }
}
