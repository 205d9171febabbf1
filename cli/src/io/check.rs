//! Whether bytes that were read are what they should be.

/// The bytes of a part of a read are all the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// What they are.
    pub byte: u8,
    /// Where the part begins in the read.
    pub from: u64,
    /// Its bytes.
    pub len: u64,
}

impl Check {
    /// Looks at the bytes of a read at `offset`. What is wrong, if anything is.
    pub fn complaint(self, offset: u64, bytes: &[u8]) -> Option<String> {
        let part = usize::try_from(self.from).ok().zip(usize::try_from(self.len).ok());
        let part = part.and_then(|(from, len)| bytes.get(from..from.checked_add(len)?));
        let good = part.is_some_and(|part| part.iter().all(|byte| *byte == self.byte));
        let Check { from, len, .. } = self;
        (!good).then(|| {
            format!("Pattern verification failed at offset {}, {len} bytes", offset + from)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_byte_in_the_part_is_noticed_and_others_are_not() {
        let check = Check { byte: 7, from: 2, len: 3 };
        assert_eq!(check.complaint(100, &[0, 0, 7, 7, 7, 0]), None);
        for at in 2..5 {
            let mut bytes = [7; 6];
            bytes[at] = 8;
            let text = check.complaint(100, &bytes).unwrap();
            assert_eq!(text, "Pattern verification failed at offset 102, 3 bytes");
        }
    }
}
