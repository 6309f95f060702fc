//! A histogram of times with a bounded relative error.

use crate::EmulatorTiming;

/// Bound below which every value has its own bucket.
const EXACT_LIMIT: u64 = 128;
/// Binary logarithm of [`EXACT_LIMIT`].
const EXACT_BITS: u32 = 7;
/// Buckets for each power of two from [`EXACT_LIMIT`] on.
const BUCKETS_PER_OCTAVE: u64 = EXACT_LIMIT / 2;
const BUCKET_COUNT: usize = (EXACT_LIMIT + (64 - EXACT_BITS as u64) * BUCKETS_PER_OCTAVE) as usize;

/// Counts of `u64` values (nanoseconds) in log-linear buckets.
///
/// Values below 128 are exact. Above, each power of two has 64 buckets, so the error of a
/// percentile is below 0.8 %. A histogram takes 30 KB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    buckets: Box<[u64]>,
    count: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKET_COUNT].into_boxed_slice(), count: 0, max: 0 }
    }
}

impl Histogram {
    /// Counts one value in its bucket.
    pub fn record(&mut self, value: u64) {
        if let Some(bucket) = self.buckets.get_mut(bucket_index(value)) {
            *bucket += 1;
        }
        self.count += 1;
        self.max = self.max.max(value);
    }

    /// Adds the values of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (count, other_count) in self.buckets.iter_mut().zip(&other.buckets) {
            *count += other_count;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the largest value, exact; 0 for an empty histogram.
    pub fn max(&self) -> u64 {
        self.max
    }

    /// Returns the value that `percent` of the values do not exceed (nearest rank); 0 for an empty
    /// histogram.
    pub fn percentile(&self, percent: f64) -> u64 {
        let rank = (percent / 100.0 * self.count as f64).ceil() as u64;
        let rank = rank.clamp(1, self.count.max(1));
        let mut cumulative = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            cumulative += count;
            if cumulative >= rank {
                return bucket_midpoint(index).min(self.max);
            }
        }
        self.max
    }

    /// Returns the lateness fields of a `timing` record; its other fields are zero.
    pub fn lateness(&self) -> EmulatorTiming {
        EmulatorTiming {
            packets: self.count,
            lateness_p50_ns: self.percentile(50.0),
            lateness_p90_ns: self.percentile(90.0),
            lateness_p99_ns: self.percentile(99.0),
            lateness_p999_ns: self.percentile(99.9),
            lateness_max_ns: self.max,
            ..EmulatorTiming::default()
        }
    }
}

fn bucket_index(value: u64) -> usize {
    if value < EXACT_LIMIT {
        return value as usize;
    }
    // The top seven bits select the bucket; the first of them is always set.
    let shift = value.ilog2() + 1 - EXACT_BITS;
    let top_bits = value >> shift;
    (EXACT_LIMIT + u64::from(shift - 1) * BUCKETS_PER_OCTAVE + top_bits - BUCKETS_PER_OCTAVE)
        as usize
}

fn bucket_midpoint(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < EXACT_LIMIT {
        return bucket;
    }
    let (octave, offset) =
        ((bucket - EXACT_LIMIT) / BUCKETS_PER_OCTAVE, (bucket - EXACT_LIMIT) % BUCKETS_PER_OCTAVE);
    let shift = octave + 1;
    ((BUCKETS_PER_OCTAVE + offset) << shift) + (1 << octave)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_empty_histogram_answers_zero() {
        let empty = Histogram::default();
        assert_eq!((empty.percentile(99.0), empty.max(), empty.count()), (0, 0, 0));
    }

    #[test]
    fn the_largest_value_has_a_bucket() {
        assert_eq!(bucket_index(u64::MAX), BUCKET_COUNT - 1);
        assert_eq!(bucket_index(EXACT_LIMIT), EXACT_LIMIT as usize);
    }

    #[test]
    fn percentiles_of_small_values_are_exact() {
        let mut histogram = Histogram::default();
        (1..=100).for_each(|value| histogram.record(value));
        assert_eq!(histogram.percentile(50.0), 50);
        assert_eq!(histogram.percentile(99.0), 99);
        assert_eq!(histogram.percentile(100.0), 100);
    }

    proptest! {
            #[test]
            fn a_percentile_is_off_by_less_than_one_percent(
                mut values in proptest::collection::vec(
                    (any::<u64>(), 0_u32..64).prop_map(|(v, s)| v >> s), 1..200),
                percent in 0.0_f64..=100.0,
            ) {
                let mut histogram = Histogram::default();
                for value in &values {
     histogram.record(*value);
    }
                values.sort_unstable();
                let rank = (percent / 100.0 * values.len() as f64).ceil() as usize;
                let exact = values[rank.max(1) - 1];
                let error = histogram.percentile(percent).abs_diff(exact);
                prop_assert!(u128::from(error) * 100 <= u128::from(exact), "{error} of {exact}");
            }

            #[test]
            fn merging_equals_recording_together(
                a in proptest::collection::vec(any::<u32>(), 0..50),
                b in proptest::collection::vec(any::<u32>(), 0..50),
            ) {
                let fill = |values: &[u32]| {
                    let mut histogram = Histogram::default();
                    for value in values {
     histogram.record(u64::from(*value));
    }
                    histogram
                };
                let mut merged = fill(&a);
                merged.merge(&fill(&b));
                prop_assert_eq!(merged, fill(&[a, b].concat()));
            }
        }
}
