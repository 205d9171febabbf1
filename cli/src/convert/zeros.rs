//! Which parts of a buffer need no writing.

use std::ops::Range;

use blkring_engine::IoMem;

/// A part of a buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Bytes to be written.
    Data(Range<usize>),
    /// Nothing but zeros, or what is there already.
    Spare(Range<usize>),
}

/// Bytes that are looked at in one go.
const LOOK: usize = 4096;

/// Cuts the bytes of a disk from `offset` on into parts, at multiples of `unit` bytes: a unit is zero as a whole or
/// counts as data.
pub fn zeros(mem: &IoMem, offset: u64, unit: u64) -> Vec<Part> {
    cut(mem.len(), offset, unit, |range| is_zero(mem, range))
}

/// The same for units that are alike in both memories.
pub fn alike(mem: &IoMem, other: &IoMem, offset: u64, unit: u64) -> Vec<Part> {
    cut(mem.len(), offset, unit, |range| first_difference(mem, other, range).is_none())
}

/// Whether these bytes are all zero.
pub fn is_zero(mem: &IoMem, range: Range<usize>) -> bool {
    let mut bytes = [0; LOOK];
    // Most of what is no zero shows it at once.
    let first = &mut bytes[..range.len().min(64)];
    mem.copy_out(range.start, first);
    if first.iter().any(|&byte| byte != 0) {
        return false;
    }
    steps(range).all(|step| {
        let bytes = &mut bytes[..step.len()];
        mem.copy_out(step.start, bytes);
        let (words, rest) = bytes.as_chunks::<64>();
        words.iter().all(|word| word.iter().fold(0, |all, byte| all | byte) == 0)
            && rest.iter().all(|&byte| byte == 0)
    })
}

/// The first byte among these that is not the same in both.
pub fn first_difference(mem: &IoMem, other: &IoMem, range: Range<usize>) -> Option<usize> {
    let (mut left, mut right) = ([0; LOOK], [0; LOOK]);
    steps(range).find_map(|step| {
        let (left, right) = (&mut left[..step.len()], &mut right[..step.len()]);
        mem.copy_out(step.start, left);
        other.copy_out(step.start, right);
        if left == right {
            return None;
        }
        let difference = left.iter().zip(right).position(|(left, right)| left != right);
        difference.map(|at| step.start + at)
    })
}

/// The first byte among these that is not zero.
pub fn first_nonzero(mem: &IoMem, range: Range<usize>) -> Option<usize> {
    let mut bytes = [0; LOOK];
    steps(range).find_map(|step| {
        let bytes = &mut bytes[..step.len()];
        mem.copy_out(step.start, bytes);
        bytes.iter().position(|&byte| byte != 0).map(|at| step.start + at)
    })
}

fn steps(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(LOOK).map(move |start| start..end.min(start + LOOK))
}

fn cut(len: usize, offset: u64, unit: u64, spare: impl Fn(Range<usize>) -> bool) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut start = 0;
    while start < len {
        let at = offset + start as u64;
        let whole = usize::try_from(unit - at % unit).expect("a unit fits into memory");
        let end = len.min(start.saturating_add(whole));
        match (spare(start..end), parts.last_mut()) {
            (true, Some(Part::Spare(last))) | (false, Some(Part::Data(last))) => last.end = end,
            (true, _) => parts.push(Part::Spare(start..end)),
            (false, _) => parts.push(Part::Data(start..end)),
        }
        start = end;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use Part::{Data, Spare};

    #[test]
    fn one_byte_makes_a_unit_data() {
        let mem = IoMem::from(vec![0; 5000]);
        assert!(is_zero(&mem, 0..5000) && is_zero(&mem, 0..0));
        assert_eq!(zeros(&mem, 0, 512), [Spare(0..5000)]);
        for at in [0, 63, 64, 1023, 4095, 4096, 4999] {
            mem.copy_in(at, &[1]);
            assert!(!is_zero(&mem, 0..5000), "{at}");
            assert_eq!(first_nonzero(&mem, 0..5000), Some(at));
            mem.copy_in(at, &[0]);
        }
        assert_eq!(first_nonzero(&mem, 0..5000), None);
        mem.copy_in(1023, &[1]);
        mem.copy_in(4999, &[9]);
        let expected = [Spare(0..512), Data(512..1024), Spare(1024..4608), Data(4608..5000)];
        assert_eq!(zeros(&mem, 1 << 20, 512), expected);
        // Units begin at multiples of their size, wherever the buffer begins.
        let expected = [Spare(0..896), Data(896..1920), Spare(1920..4992), Data(4992..5000)];
        assert_eq!(zeros(&mem, 128, 1024), expected);
        assert_eq!(zeros(&IoMem::from(vec![]), 0, 512), []);
    }

    #[test]
    fn differences_are_data() {
        let (mine, other) = (IoMem::from(vec![7; 9000]), IoMem::from(vec![7; 9000]));
        assert_eq!(first_difference(&mine, &other, 0..9000), None);
        other.copy_in(600, &[8]);
        assert_eq!(
            alike(&mine, &other, 0, 512),
            [Spare(0..512), Data(512..1024), Spare(1024..9000)]
        );
        assert_eq!(first_difference(&mine, &other, 5..9000), Some(600));
        other.copy_in(8999, &[8]);
        assert_eq!(first_difference(&mine, &other, 601..9000), Some(8999));
    }
}
