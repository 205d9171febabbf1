//! Latencies, counted in buckets whose width is a thirty-second of their value at most.

use std::time::Duration;

/// Buckets of each power of two, as a power of two.
const SUB_BITS: u32 = 5;
const SUB: u64 = 1 << SUB_BITS;
/// Values below `SUB` have a bucket each; every further power of two has `SUB` buckets.
const BUCKETS: usize = (64 - SUB_BITS as usize + 1) << SUB_BITS;

/// A histogram of durations from 1 ns to 584 years. Recording allocates nothing.
#[derive(Clone)]
pub struct Histogram {
    counts: Box<[u64]>,
    count: u64,
    sum: u128,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram { counts: vec![0; BUCKETS].into(), count: 0, sum: 0 }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanoseconds)] += 1;
        self.count += 1;
        self.sum += u128::from(nanoseconds);
    }

    /// Adds what another histogram has counted.
    pub fn merge(&mut self, other: &Histogram) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.count += other.count;
        self.sum += other.sum;
    }

    /// How many durations were counted.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The mean, exactly; zero if nothing was counted.
    pub fn mean(&self) -> Duration {
        let mean = self.sum.checked_div(u128::from(self.count)).unwrap_or(0);
        Duration::from_nanos(u64::try_from(mean).expect("a mean is below the largest value"))
    }

    /// The duration that `share` (from 0 to 1) of all did not exceed, rounded up by 1/32 at most; zero if nothing was
    /// counted.
    pub fn quantile(&self, share: f64) -> Duration {
        // Precise enough: counts stay far below 2^53.
        let wanted = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (index, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_nanos(upper_end(index));
            }
        }
        Duration::ZERO
    }
}

fn bucket(value: u64) -> usize {
    let index = match value.checked_ilog2() {
        Some(exponent) if exponent >= SUB_BITS => {
            let shift = exponent - SUB_BITS;
            (u64::from(shift) << SUB_BITS) + (value >> shift)
        }
        _ => value,
    };
    usize::try_from(index).expect("below BUCKETS")
}

/// The largest value of a bucket.
fn upper_end(index: usize) -> u64 {
    let index = index as u64;
    if index < 2 * SUB {
        return index;
    }
    let shift = (index >> SUB_BITS) - 1;
    let first = (index & (SUB - 1)) + SUB;
    (first << shift) + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        let powers = (0..64).map(|bit| 1u64 << bit);
        let values = powers.flat_map(|p| [p - 1, p, p + 1, p + p / 3]).chain([u64::MAX]);
        for value in values {
            let index = bucket(value);
            let above_lower = index == 0 || upper_end(index - 1) < value;
            assert!(above_lower && value <= upper_end(index), "{value} in {index}");
            let width = upper_end(index) - value;
            assert!(width <= value / SUB, "{value}: rounded up by {width}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_of_known_values() {
        let mut histogram = Histogram::default();
        for microseconds in 1..=1000 {
            histogram.record(Duration::from_micros(microseconds));
        }
        assert_eq!(histogram.mean(), Duration::from_nanos(500_500));
        for (share, exact) in [(0.5, 500_000), (0.99, 990_000), (0.999, 999_000), (1.0, 1_000_000)]
        {
            let found = u64::try_from(histogram.quantile(share).as_nanos()).unwrap();
            assert!((exact..=exact + exact / 32).contains(&found), "{share}: {found}");
        }
    }

    #[test]
    fn merging_is_counting_together_and_nothing_has_no_quantiles() {
        let mut one = Histogram::default();
        assert_eq!((one.quantile(0.5), one.mean()), (Duration::ZERO, Duration::ZERO));
        one.record(Duration::from_nanos(3));
        let mut other = Histogram::default();
        other.record(Duration::from_nanos(5));
        one.merge(&other);
        assert_eq!((one.count(), one.mean()), (2, Duration::from_nanos(4)));
        assert_eq!(one.quantile(0.5), Duration::from_nanos(3));
        assert_eq!(one.quantile(1.0), Duration::from_nanos(5));
    }
}
