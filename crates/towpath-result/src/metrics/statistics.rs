//! Statistics over repetitions: quantiles, confidence intervals, ratios. `docs/reference/metrics.md` defines
//! them.
//!
//! An infinite value means "never" (a flow that did not recover). It is ordered last, so the median
//! remains valid. Randomness is an argument: equal values and an equal seed give equal intervals.

use crate::rng::RngStream;

/// Fewest values for an interval.
///
/// The range of n values misses the median with a probability of 2 × 0.5ⁿ: 6 % for five values, 3 %
/// for six. The ends of a bootstrap interval are values of the sample. So no interval of fewer than
/// six values covers the median with 95 %.
pub const MIN_SAMPLES: usize = 6;

/// Number of bootstrap resamplings for an interval.
const BOOTSTRAP_RESAMPLES: usize = 4_000;
/// Probability outside the interval, at each end.
const TAIL_SHARE: f64 = 0.025;

/// Values of one metric, one for each repetition, sorted.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sample {
    sorted: Vec<f64>,
}

impl Sample {
    /// Collects and sorts the values; NaN values are omitted.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| !value.is_nan()).collect();
        sorted.sort_by(f64::total_cmp);
        Self { sorted }
    }

    /// Returns the values in ascending order.
    pub fn values(&self) -> &[f64] {
        &self.sorted
    }

    /// Returns the number of values.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// Returns the value below which `fraction` (0 to 1) of the sample lies. Interpolates linearly
    /// between two values: definition 7 of Hyndman and Fan (1996). `None` without values.
    pub fn quantile(&self, fraction: f64) -> Option<f64> {
        let last = self.sorted.len().checked_sub(1)?;
        let position = fraction.clamp(0.0, 1.0) * last as f64;
        let (lower_index, upper_index) = (position.floor(), position.ceil());
        let (low, high) =
            (*self.sorted.get(lower_index as usize)?, *self.sorted.get(upper_index as usize)?);
        // Equal values need no interpolation, and infinity times zero would be NaN.
        let weight = position - lower_index;
        Some(if low.total_cmp(&high).is_eq() || weight <= 0.0 {
            low
        } else {
            low + weight * (high - low)
        })
    }

    /// Returns the middle value, or the mean of the middle two; `None` without values.
    pub fn median(&self) -> Option<f64> {
        self.quantile(0.5)
    }

    /// Returns the quantiles at 25 % and 75 %; `None` without values.
    pub fn quartiles(&self) -> Option<[f64; 2]> {
        Some([self.quantile(0.25)?, self.quantile(0.75)?])
    }

    /// Returns the arithmetic mean; `None` without values.
    pub fn mean(&self) -> Option<f64> {
        let count = self.sorted.len() as f64;
        (count > 0.0).then(|| self.sorted.iter().sum::<f64>() / count)
    }

    /// Returns the share of values that are at most `value`: the empirical distribution function.
    pub fn share_at_most(&self, value: f64) -> f64 {
        let count = self.sorted.partition_point(|other| *other <= value);
        count as f64 / self.sorted.len().max(1) as f64
    }

    /// Returns the corners of the empirical distribution function: each distinct value, and the
    /// share of values that are at most as large.
    pub fn steps(&self) -> Vec<(f64, f64)> {
        let mut steps: Vec<(f64, f64)> = Vec::new();
        for (index, value) in self.sorted.iter().enumerate() {
            let share = (index + 1) as f64 / self.sorted.len() as f64;
            match steps.last_mut() {
                Some(last) if last.0.total_cmp(value).is_eq() => last.1 = share,
                _ => steps.push((*value, share)),
            }
        }
        steps
    }
}

/// Confidence interval of 95 %, both ends included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ConfidenceInterval {
    /// Lower end of the interval.
    pub low: f64,
    /// Upper end of the interval.
    pub high: f64,
}

impl ConfidenceInterval {
    /// Returns true if the interval contains the value.
    pub fn contains(self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

/// Estimate of one metric from several repetitions.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// Number of values in the sample.
    pub count: usize,
    /// Median of the values.
    pub median: f64,
    /// Quartiles: quantiles at 25 % and 75 %.
    pub quartiles: [f64; 2],
    /// Arithmetic mean of the values.
    pub mean: f64,
    /// 95 % interval of the median; `None` for fewer than [`MIN_SAMPLES`] values.
    pub interval: Option<ConfidenceInterval>,
}

impl Estimate {
    /// Computes the estimate; `None` without values.
    pub fn of(sample: &Sample, seed: u64) -> Option<Self> {
        Some(Self {
            count: sample.count(),
            median: sample.median()?,
            quartiles: sample.quartiles()?,
            mean: sample.mean()?,
            interval: median_interval(sample, seed),
        })
    }
}

/// Returns the reason for a missing interval, `n = 3: no interval`; `None` with enough values.
pub fn missing_interval_reason(count: usize) -> Option<String> {
    (count < MIN_SAMPLES).then(|| format!("n = {count}: no interval"))
}

/// Returns the percentile bootstrap's 95 % interval of the median (Efron 1979).
pub fn median_interval(sample: &Sample, seed: u64) -> Option<ConfidenceInterval> {
    let values = sample.values();
    bootstrap_interval(values.len(), seed, |rng| median_of(&mut resample(values, rng)))
}

/// Relation between the values of two groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// Paired values: the same repetition, that is the same seed, or neighbours in time.
    Paired,
    /// Independent groups without pairs.
    Unpaired,
}

/// Ratio of one metric to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ratio {
    /// Median of the pairs' ratios (paired), or ratio of the medians (unpaired).
    pub value: f64,
    /// 95 % interval; `None` with fewer than [`MIN_SAMPLES`] pairs, or values in either group.
    pub interval: Option<ConfidenceInterval>,
    /// Method of computation: by pairs or by groups.
    pub pairing: Pairing,
    /// Number of pairs, or of values in the smaller group.
    pub count: usize,
}

impl Ratio {
    /// Returns true if the interval excludes 1.
    pub fn is_clear(&self) -> bool {
        self.interval.is_some_and(|interval| !interval.contains(1.0))
    }

    /// Computes the ratio of pairs (numerator, denominator). `None` without pairs, or when any
    /// value is zero, negative or infinite.
    pub fn of_pairs(pairs: &[(f64, f64)], seed: u64) -> Option<Self> {
        let is_positive = |value: f64| value > 0.0 && value.is_finite();
        if pairs.is_empty() || !pairs.iter().all(|(a, b)| is_positive(*a) && is_positive(*b)) {
            return None;
        }
        let ratios = Sample::of(pairs.iter().map(|(a, b)| a / b));
        let interval = median_interval(&ratios, seed);
        let (value, count) = (ratios.median()?, pairs.len());
        Some(Self { value, interval, pairing: Pairing::Paired, count })
    }

    /// Computes the ratio of two groups measured independently. `None` when a group has no values,
    /// or any value is zero, negative or infinite.
    pub fn of_groups(a: &Sample, b: &Sample, seed: u64) -> Option<Self> {
        let is_positive = |sample: &Sample| {
            let mut values = sample.values().iter();
            values.all(|value| *value > 0.0 && value.is_finite())
        };
        if !is_positive(a) || !is_positive(b) {
            return None;
        }
        let value = a.median()? / b.median()?;
        let count = a.count().min(b.count());
        let (a_values, b_values) = (a.values(), b.values());
        let interval = bootstrap_interval(count, seed, |rng| {
            median_of(&mut resample(a_values, rng)) / median_of(&mut resample(b_values, rng))
        });
        Some(Self { value, interval, pairing: Pairing::Unpaired, count })
    }
}

/// Returns the middle 95 % of a statistic over resamplings; `None` for too few values.
fn bootstrap_interval(
    count: usize,
    seed: u64,
    mut statistic: impl FnMut(&mut RngStream) -> f64,
) -> Option<ConfidenceInterval> {
    if count < MIN_SAMPLES {
        return None;
    }
    let mut rng = RngStream::new(seed, "bootstrap");
    let estimates = Sample::of((0..BOOTSTRAP_RESAMPLES).map(|_| statistic(&mut rng)));
    Some(ConfidenceInterval {
        low: estimates.quantile(TAIL_SHARE)?,
        high: estimates.quantile(1.0 - TAIL_SHARE)?,
    })
}

/// Draws a resample: as many values as given, with replacement.
fn resample(values: &[f64], rng: &mut RngStream) -> Vec<f64> {
    let pick = |_: &f64| values.get(rng.below(values.len())).copied().unwrap_or(f64::NAN);
    values.iter().map(pick).collect()
}

/// Returns the same as [`Sample::median`], but without a full sort.
fn median_of(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    if middle >= values.len() {
        return f64::NAN;
    }
    let (_, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    let upper = *upper;
    if values.len() % 2 == 1 {
        return upper;
    }
    let lower = values.iter().take(middle).copied().max_by(f64::total_cmp).unwrap_or(upper);
    if lower.total_cmp(&upper).is_eq() { upper } else { f64::midpoint(lower, upper) }
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact in binary")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(values: &[f64]) -> Sample {
        Sample::of(values.iter().copied())
    }

    #[test]
    fn quantiles_follow_hyndman_fan_definition_seven() {
        // R: quantile(c(1, 2, 4, 7, 11, 16), c(.25, .5, .75, .9)) = 2.5 5.5 10 13.5
        let sample = sample(&[16.0, 2.0, 11.0, 1.0, 4.0, 7.0]);
        let quantiles = [0.25, 0.5, 0.75, 0.9].map(|fraction| sample.quantile(fraction).unwrap());
        assert_eq!(quantiles, [2.5, 5.5, 10.0, 13.5]);
        assert_eq!(sample.mean(), Some(41.0 / 6.0));
        assert_eq!(Sample::default().median(), None);
        assert_eq!(Sample::default().mean(), None);
    }

    #[test]
    fn infinite_values_are_ordered_last() {
        let never = f64::INFINITY;
        assert_eq!(sample(&[1.0, never, 2.0]).median(), Some(2.0));
        assert_eq!(sample(&[1.0, never, never]).median(), Some(never));
        assert_eq!(sample(&[1.0, never]).median(), Some(never));
        assert_eq!(sample(&[never, never, never, never]).quartiles(), Some([never, never]));
    }

    #[test]
    fn the_distribution_function_steps_at_each_value() {
        let sample = sample(&[3.0, 1.0, 3.0, 2.0]);
        assert_eq!(sample.steps(), [(1.0, 0.25), (2.0, 0.5), (3.0, 1.0)]);
        let shares = [0.9, 1.0, 2.5, 3.0].map(|value| sample.share_at_most(value));
        assert_eq!(shares, [0.0, 0.25, 0.5, 1.0]);
    }

    #[test]
    fn five_values_have_no_interval_and_six_have_one() {
        let five = sample(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        let estimate = Estimate::of(&five, 1).unwrap();
        assert_eq!((estimate.median, estimate.interval), (3.0, None));
        assert_eq!(missing_interval_reason(3).as_deref(), Some("n = 3: no interval"));
        let six = sample(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert!(median_interval(&six, 1).unwrap().contains(3.5));
        assert_eq!(missing_interval_reason(MIN_SAMPLES), None);
    }

    #[test]
    fn the_bootstrap_comes_close_to_its_exact_distribution() {
        // With n = 11 values the resampled median is at most the k-th one when at least 6 of 11
        // draws are among the k smallest: a binomial tail. It passes 2.5 % at k = 3 and 97.5 % at k
        // = 9.
        let values: Vec<f64> = (1..=11).map(f64::from).collect();
        for seed in 0..20 {
            let interval = median_interval(&sample(&values), seed).unwrap();
            assert_eq!((interval.low, interval.high), (3.0, 9.0), "seed {seed}");
        }
    }

    #[test]
    fn intervals_cover_the_true_median_in_about_95_percent() {
        const SEEDS: u64 = 60;
        // Exponential values have the true median ln 2. The bimodal values resemble stalls: with 80
        // % short and 20 % long ones, the true median lies among the short ones. Over 2000 seeds
        // instead of 60, coverage is 93.2 to 94.2 %.
        let draw_sample = |count: usize, seed: u64, bimodal: bool| {
            let mut rng = RngStream::new(seed, "values of a test");
            let uniform = move || rng.uniform();
            let value = move |u: f64| match bimodal {
                false => -(1.0 - u).ln(),
                true if u < 0.8 => 0.1 + u / 4.0,
                true => 1.2 + u / 10.0,
            };
            Sample::of(std::iter::repeat_with(uniform).take(count).map(value))
        };
        for (count, bimodal) in [(6, false), (10, false), (20, false), (10, true), (20, true)] {
            let truth = if bimodal { 0.1 + 0.5 / 4.0 } else { std::f64::consts::LN_2 };
            let covers_truth = |seed: &u64| {
                median_interval(&draw_sample(count, *seed, bimodal), *seed).unwrap().contains(truth)
            };
            let coverage = (0..SEEDS).filter(covers_truth).count() as f64 / SEEDS as f64;
            assert!((0.85..=1.0).contains(&coverage), "n = {count}: {coverage}");
        }
    }

    #[test]
    fn paired_ratios_cancel_shared_variation() {
        // Each repetition is twice as fast as the one before, for both groups. The groups overlap
        // widely, but in every pair the first is 1.5 times the second.
        let pairs: Vec<_> = (0..8).map(|n| 2_f64.powi(n)).map(|b| (1.5 * b, b)).collect();
        let paired = Ratio::of_pairs(&pairs, 1).unwrap();
        assert_eq!((paired.value, paired.count), (1.5, 8));
        assert!(paired.is_clear());
        let (a, b): (Vec<_>, Vec<_>) = pairs.iter().copied().unzip();
        let unpaired = Ratio::of_groups(&sample(&a), &sample(&b), 1).unwrap();
        assert_eq!(unpaired.value, 1.5);
        assert!(!unpaired.is_clear(), "{unpaired:?}");
    }

    #[test]
    fn ratios_with_zero_or_infinity_are_undefined() {
        assert_eq!(Ratio::of_pairs(&[], 1), None);
        assert_eq!(Ratio::of_pairs(&[(1.0, 0.0), (1.0, 1.0)], 1), None);
        assert_eq!(Ratio::of_pairs(&[(f64::INFINITY, 1.0)], 1), None);
        let sample_of_one = sample(&[1.0]);
        assert_eq!(Ratio::of_groups(&sample_of_one, &Sample::default(), 1), None);
        assert_eq!(Ratio::of_groups(&sample_of_one, &sample(&[0.0]), 1), None);
        assert_eq!(Ratio::of_groups(&sample_of_one, &sample(&[2.0]), 1).unwrap().value, 0.5);
    }

    fn values() -> impl Strategy<Value = Vec<f64>> {
        proptest::collection::vec(0.001_f64..1e9, 1..40)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn an_interval_lies_within_the_values_and_repeats_for_equal_seeds(
            values in values(), seed: u64,
        ) {
            let sample = Sample::of(values);
            let interval = median_interval(&sample, seed);
            prop_assert_eq!(interval, median_interval(&sample, seed));
            prop_assert_eq!(interval.is_some(), sample.count() >= MIN_SAMPLES);
            if let Some(ConfidenceInterval { low, high }) = interval {
                let sorted = sample.values();
                prop_assert!(sorted[0] <= low && low <= high && high <= sorted[sorted.len() - 1]);
            }
        }

        #[test]
        fn the_fast_median_equals_the_exact_median(mut values in values()) {
            let sample = Sample::of(values.iter().copied());
            let median = sample.median().unwrap();
            prop_assert!((median_of(&mut values) - median).abs() <= 1e-12 * median);
        }

        #[test]
        fn quantiles_increase_and_the_median_splits_the_values_evenly(values in values()) {
            let sample = Sample::of(values);
            let quantiles: Vec<_> = (0..=20).map(|n| sample.quantile(f64::from(n) / 20.0)).collect();
            prop_assert!(quantiles.is_sorted());
            let median = sample.median().unwrap();
            prop_assert!(sample.share_at_most(median) >= 0.5);
            let at_least_median = sample.values().iter().filter(|value| **value >= median).count();
            prop_assert!(at_least_median * 2 >= sample.count());
        }

        #[test]
        fn a_tripled_sample_has_the_ratio_three(values in values(), seed: u64) {
            let a = Sample::of(values.iter().map(|value| value * 3.0));
            let b = Sample::of(values);
            let ratio = Ratio::of_groups(&a, &b, seed).unwrap();
            prop_assert!((ratio.value - 3.0).abs() < 1e-9);
            let Some(interval) = ratio.interval else { return Ok(()) };
            prop_assert!(interval.low <= interval.high && interval.low > 0.0);
        }

        #[test]
        fn the_distribution_function_grows_from_zero_to_one(values in values()) {
            let sample = Sample::of(values);
            let steps = sample.steps();
            prop_assert!(steps.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1));
            prop_assert_eq!(steps.last().map(|step| step.1), Some(1.0));
            for (value, share) in steps {
                prop_assert_eq!(sample.share_at_most(value), share);
            }
        }
    }
}
