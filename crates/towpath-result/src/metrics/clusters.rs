//! Quantiles and shares of values that come in clusters, such as the runs of each device.
//!
//! Runs of the same device are not independent. So the bootstrap draws whole clusters with
//! replacement, as many as there are (Davison and Hinkley 1997, §3.8). Quantiles are those of the
//! empirical distribution function: definition 1 of Hyndman and Fan (1996).

use crate::rng::RngStream;

use super::statistics::{ConfidenceInterval, MIN_SAMPLES, Sample};

/// Fewest clusters for an interval, for the reason of [`MIN_SAMPLES`].
pub const MIN_CLUSTERS: usize = MIN_SAMPLES;
/// Number of bootstrap resamplings for an interval.
pub const CLUSTER_RESAMPLES: usize = 1_000;
/// Probability outside the interval, at each end.
const TAIL_SHARE: f64 = 0.025;

/// Values with the clusters to which they belong, in ascending order of the values.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClusteredSample {
    sorted: Vec<f64>,
    /// Number of the cluster of each value. A list of its own, because resampling reads it often.
    members: Vec<u32>,
    /// Number of values in each cluster.
    sizes: Vec<u64>,
}

/// Estimate of a quantile or of a share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClusterEstimate {
    /// Value in the sample.
    pub value: f64,
    /// 95 % interval; `None` for fewer than [`MIN_CLUSTERS`] clusters.
    pub interval: Option<ConfidenceInterval>,
}

impl ClusteredSample {
    /// Collects values with the names of their clusters; NaN values are omitted.
    pub fn of<'a>(values: impl IntoIterator<Item = (f64, &'a str)>) -> Self {
        let values: Vec<_> = values.into_iter().filter(|(value, _)| !value.is_nan()).collect();
        let mut names: Vec<&str> = values.iter().map(|(_, name)| *name).collect();
        names.sort_unstable();
        names.dedup();
        let number = |name: &str| names.binary_search(&name).unwrap_or_default() as u32;
        let mut pairs: Vec<_> =
            values.into_iter().map(|(value, name)| (value, number(name))).collect();
        // Equal values of different clusters have a fixed order, so the bytes of a result do not
        // depend on that of the input.
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut sizes = vec![0; names.len()];
        for (_, cluster) in &pairs {
            if let Some(size) = sizes.get_mut(*cluster as usize) {
                *size += 1;
            }
        }
        let (sorted, members) = pairs.into_iter().unzip();
        Self { sorted, members, sizes }
    }

    /// Returns the number of values.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// Returns the number of clusters.
    pub fn clusters(&self) -> usize {
        self.sizes.len()
    }

    /// Returns the values in ascending order.
    pub fn values(&self) -> impl Iterator<Item = f64> {
        self.sorted.iter().copied()
    }

    /// Returns the smallest values that have at least these fractions (0 to 1, ascending) of the
    /// sample at or below them, with intervals. Empty without values.
    pub fn quantiles(&self, fractions: &[f64], seed: u64) -> Vec<ClusterEstimate> {
        let weights = vec![1; self.clusters()];
        let Some(values) = self.weighted_quantiles(fractions, &weights) else { return Vec::new() };
        let mut resampled = vec![Vec::new(); fractions.len()];
        self.resample(seed, |weights| {
            let quantiles = self.weighted_quantiles(fractions, weights).unwrap_or_default();
            for (all, quantile) in resampled.iter_mut().zip(quantiles) {
                all.push(quantile);
            }
        });
        let estimates = values.into_iter().zip(resampled);
        estimates.map(|(value, all)| ClusterEstimate { value, interval: middle(all) }).collect()
    }

    /// Returns the share of the values for which `is_counted` is true, 0 to 1, with its interval.
    /// `None` without values.
    ///
    /// If all values or none are counted, resampling shows no spread. Then the interval is the exact
    /// one of as many trials as there are clusters (Clopper and Pearson 1934).
    pub fn share(&self, is_counted: impl Fn(f64) -> bool, seed: u64) -> Option<ClusterEstimate> {
        let mut counts = vec![(0_u64, 0_u64); self.clusters()];
        for (value, cluster) in self.sorted.iter().zip(&self.members) {
            if let Some((counted, all)) = counts.get_mut(*cluster as usize) {
                *counted += u64::from(is_counted(*value));
                *all += 1;
            }
        }
        let share = |weights: &[u32]| {
            let sums = counts.iter().zip(weights).fold((0, 0), |sums, ((counted, all), weight)| {
                (sums.0 + counted * u64::from(*weight), sums.1 + all * u64::from(*weight))
            });
            sums.0 as f64 / sums.1 as f64
        };
        let value = Some(share(&vec![1; self.clusters()])).filter(|share| !share.is_nan())?;
        if value <= 0.0 || value >= 1.0 {
            let interval = (self.clusters() >= MIN_CLUSTERS).then(|| {
                let width = 1.0 - TAIL_SHARE.powf(1.0 / self.clusters() as f64);
                let [low, high] = if value <= 0.0 { [0.0, width] } else { [1.0 - width, 1.0] };
                ConfidenceInterval { low, high }
            });
            return Some(ClusterEstimate { value, interval });
        }
        let mut resampled = Vec::new();
        self.resample(seed, |weights| resampled.push(share(weights)));
        Some(ClusterEstimate { value, interval: middle(resampled) })
    }

    /// Calls `on_weights` for each resampling with the number of times that each cluster is drawn.
    fn resample(&self, seed: u64, mut on_weights: impl FnMut(&[u32])) {
        if self.clusters() < MIN_CLUSTERS {
            return;
        }
        let mut rng = RngStream::new(seed, "cluster bootstrap");
        let mut weights = vec![0_u32; self.clusters()];
        for _ in 0..CLUSTER_RESAMPLES {
            weights.fill(0);
            for _ in 0..self.clusters() {
                if let Some(weight) = weights.get_mut(rng.below(self.clusters())) {
                    *weight += 1;
                }
            }
            on_weights(&weights);
        }
    }

    /// Returns quantiles with each value counted as often as its cluster; `None` without values.
    fn weighted_quantiles(&self, fractions: &[f64], weights: &[u32]) -> Option<Vec<f64>> {
        let weight =
            |cluster: &u32| u64::from(weights.get(*cluster as usize).copied().unwrap_or_default());
        let sizes = self.sizes.iter().zip(weights);
        let total: u64 = sizes.map(|(size, weight)| size * u64::from(*weight)).sum();
        let last = *self.sorted.last().filter(|_| total > 0)?;
        let (mut sums, mut sum, mut index) = (self.members.iter().map(weight), 0, 0);
        let quantile = |fraction: &f64| {
            // At least one value is at or below each quantile.
            let target = (fraction * total as f64).ceil().max(1.0) as u64;
            while sum < target {
                let Some(weight) = sums.next() else { return last };
                sum += weight;
                index += 1;
            }
            self.sorted.get(index - 1).copied().unwrap_or(last)
        };
        Some(fractions.iter().map(quantile).collect())
    }
}

/// Returns the middle 95 % of the values; `None` without values.
fn middle(values: Vec<f64>) -> Option<ConfidenceInterval> {
    let sample = Sample::of(values);
    Some(ConfidenceInterval {
        low: sample.quantile(TAIL_SHARE)?,
        high: sample.quantile(1.0 - TAIL_SHARE)?,
    })
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these values are exact in binary")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NAMES: [&str; 20] = [
        "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r",
        "s", "t",
    ];

    #[test]
    fn quantiles_are_values_of_the_sample() {
        let values = [4.0, 1.0, 3.0, 2.0].into_iter().zip(NAMES);
        let sample = ClusteredSample::of(values);
        let quantiles = sample.quantiles(&[0.0, 0.25, 0.5, 0.51, 1.0], 1);
        let values: Vec<f64> = quantiles.iter().map(|quantile| quantile.value).collect();
        assert_eq!(values, [1.0, 1.0, 2.0, 3.0, 4.0]);
        assert!(quantiles.iter().all(|quantile| quantile.interval.is_none()), "four clusters");
    }

    #[test]
    fn without_values_there_is_no_estimate() {
        let empty = ClusteredSample::of([(f64::NAN, "a")]);
        assert_eq!((empty.count(), empty.clusters()), (0, 0));
        assert!(empty.quantiles(&[0.5], 1).is_empty() && empty.share(|_| true, 1).is_none());
    }

    #[test]
    fn many_runs_of_one_device_do_not_narrow_the_interval() {
        // Seven devices with one value each, and the same with a thousand equal runs each.
        let once = ClusteredSample::of((0..7).map(f64::from).zip(NAMES));
        let often = (0..7_000).map(|n| (f64::from(n % 7), NAMES[n as usize % 7]));
        let often = ClusteredSample::of(often);
        let median = |sample: &ClusteredSample| sample.quantiles(&[0.5], 3)[0];
        assert_eq!(median(&once), median(&often));
        let share = |sample: &ClusteredSample| sample.share(|value| value < 2.0, 3).unwrap();
        assert_eq!(share(&once), share(&often));
        assert_eq!(share(&once).value, 2.0 / 7.0);
    }

    #[test]
    fn a_share_of_all_or_none_has_an_interval() {
        let sample = ClusteredSample::of((0..10).map(f64::from).zip(NAMES));
        let all = sample.share(|_| true, 1).unwrap();
        let none = sample.share(|_| false, 1).unwrap();
        // Clopper-Pearson, 10 of 10: 0.6915 to 1.
        let ends = all.interval.map(|interval| (interval.low, interval.high)).unwrap();
        assert!((ends.0 - 0.6915).abs() < 1e-4 && ends.1 == 1.0, "{ends:?}");
        let ends = none.interval.map(|interval| (interval.low, interval.high)).unwrap();
        assert!(ends.0 == 0.0 && (ends.1 - 0.3085).abs() < 1e-4, "{ends:?}");
    }

    #[test]
    fn an_interval_covers_the_true_median_of_clustered_values() {
        // Device effects and run effects are uniform, so the true median is 0.
        let mut covered = 0;
        for seed in 0..200 {
            let mut rng = RngStream::new(seed, "test");
            let mut values = Vec::new();
            for name in NAMES {
                let device = rng.uniform() - 0.5;
                values.extend((0..5).map(|_| (device + 0.2 * (rng.uniform() - 0.5), name)));
            }
            let sample = ClusteredSample::of(values);
            let interval = sample.quantiles(&[0.5], seed)[0].interval.unwrap();
            covered += u32::from(interval.contains(0.0));
        }
        // 95 % of 200 are 190. The bounds are four standard deviations of a binomial variable.
        assert!((178..=200).contains(&covered), "{covered}");
    }

    proptest! {
        #[test]
        fn the_order_of_the_input_does_not_matter(
            values in prop::collection::vec((0_u8..9, 0_usize..9), 1..60), seed: u64,
        ) {
            let named = |(value, name): &(u8, usize)| (f64::from(*value), NAMES[*name]);
            let one = ClusteredSample::of(values.iter().map(named));
            let other = ClusteredSample::of(values.iter().rev().map(named));
            prop_assert_eq!(&one, &other);
            for quantile in one.quantiles(&[0.1, 0.5, 0.9], seed) {
                let is_covered = |interval: ConfidenceInterval| interval.low <= interval.high;
                prop_assert!(quantile.interval.is_none_or(is_covered));
            }
        }
    }
}
