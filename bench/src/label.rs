//! The label of an image of the main job: its plan, in block 0.
//!
//! A record of 64 bytes is repeated over the block, so that damage to the label is found like any other damage: the
//! record that most copies agree on says what all of them should be. Numbers are little-endian.
//!
//! | bytes | |
//! |---|---|
//! | 0-7 | `blkring1` |
//! | 8-15 | bytes of the disk |
//! | 16-23 | queues |
//! | 24-31 | overwrites |
//! | 32-39 | seed |
//! | 40-63 | 0 |

use std::collections::HashMap;

use crate::plan::{BLOCK, Plan};

const MAGIC: &[u8; 8] = b"blkring1";
const RECORD: usize = 64;

/// The bytes of block 0.
pub(crate) fn encode(plan: &Plan) -> Vec<u8> {
    let mut record = [0; RECORD];
    let numbers = [plan.size(), plan.queues(), plan.overwrites(), plan.seed()];
    let words = [*MAGIC].into_iter().chain(numbers.map(u64::to_le_bytes));
    for (place, word) in record.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word;
    }
    record.repeat(usize::try_from(BLOCK).expect("small") / RECORD)
}

/// The plan that most copies of the record agree on; `None` if that is none.
pub(crate) fn decode(block: &[u8]) -> Option<Plan> {
    let mut votes: HashMap<&[u8; RECORD], usize> = HashMap::new();
    for record in block.as_chunks::<RECORD>().0 {
        *votes.entry(record).or_default() += 1;
    }
    let (record, _) = votes.into_iter().max_by_key(|(_, votes)| *votes)?;
    let [magic, size, queues, overwrites, seed, ..] = record.as_chunks::<8>().0 else {
        return None;
    };
    if magic != MAGIC {
        return None;
    }
    let number = |word: &[u8; 8]| u64::from_le_bytes(*word);
    Plan::new(number(size), number(queues), number(overwrites), number(seed)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_survives_any_flipped_byte() {
        let plan = Plan::new(1 << 20, 3, 77, 1 << 63).unwrap();
        let block = encode(&plan);
        assert_eq!(block.len() as u64, BLOCK);
        for at in 0..block.len() {
            let mut block = block.clone();
            block[at] ^= 1;
            assert_eq!(decode(&block), Some(plan), "byte {at}");
        }
    }

    #[test]
    fn what_is_no_label_is_none() {
        assert_eq!(decode(&[0; 4096]), None);
        assert_eq!(decode(b"blkring1"), None);
        let mut block = encode(&Plan::new(1 << 20, 3, 77, 1).unwrap());
        // A size of nothing, in every copy.
        for record in block.as_chunks_mut::<RECORD>().0 {
            record[8..16].fill(0);
        }
        assert_eq!(decode(&block), None);
    }
}
