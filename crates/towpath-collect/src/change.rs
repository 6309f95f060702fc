//! Search for a change in a series of values, such as the goodput of nightly runs.
//!
//! Pettitt's test (Applied Statistics 28, 1979) finds one change of the median at an unknown time.
//! It uses ranks only, so single outliers and the distribution of the values do not matter.

/// Minimum number of values on each side of a change.
const MIN_SIDE: usize = 5;
/// Probability of a change in a series without one, below which a change is reported.
pub(crate) const SIGNIFICANCE: f64 = 0.01;

/// Change of the median in a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Change {
    /// Index of the first value after the change.
    pub(crate) index: usize,
    pub(crate) median_before: f64,
    pub(crate) median_after: f64,
    /// Probability of such a statistic in a series without a change.
    pub(crate) p_value: f64,
}

impl Change {
    /// Returns the relative change: −0.23 for 23 % less. `None` if the value was 0 before.
    pub(crate) fn relative(&self) -> Option<f64> {
        let ratio = self.median_after / self.median_before;
        ratio.is_finite().then_some(ratio - 1.0)
    }
}

/// Returns the most likely change of the median, if it is significant.
pub(crate) fn find(values: &[f64]) -> Option<Change> {
    let count = values.len();
    if count < 2 * MIN_SIDE {
        return None;
    }
    let ranks = ranks(values);
    // U of the first `index` values: twice their rank sum, less its mean (Pettitt, equation 2.1).
    let (mut rank_sum, mut best) = (0.0, (0, 0.0_f64));
    for (index, rank) in ranks.iter().enumerate() {
        rank_sum += rank;
        let first = index + 1;
        let statistic = (2.0 * rank_sum - (first * (count + 1)) as f64).abs();
        let has_sides = first >= MIN_SIDE && count - first >= MIN_SIDE;
        if has_sides && statistic > best.1 {
            best = (first, statistic);
        }
    }
    let (index, statistic) = best;
    let n = count as f64;
    // Pettitt, equation 2.6; the approximation is conservative for short series.
    let p_value = (2.0 * (-6.0 * statistic.powi(2) / (n.powi(3) + n.powi(2))).exp()).min(1.0);
    if index == 0 || p_value >= SIGNIFICANCE {
        return None;
    }
    let (before, after) = values.split_at_checked(index)?;
    let (median_before, median_after) = (median(before)?, median(after)?);
    Some(Change { index, median_before, median_after, p_value })
}

/// Returns the rank of each value, from 1; equal values share their mean rank.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<(usize, f64)> = values.iter().copied().enumerate().collect();
    order.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    for equal in order.chunk_by(|a, b| a.1.total_cmp(&b.1).is_eq()) {
        let rank = start as f64 + f64::midpoint(equal.len() as f64, 1.0);
        for (index, _) in equal {
            if let Some(slot) = ranks.get_mut(*index) {
                *slot = rank;
            }
        }
        start += equal.len();
    }
    ranks
}

/// Returns the median; `None` without values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.get((sorted.len().max(1) - 1) / 2)?, sorted.get(sorted.len() / 2)?);
    Some(f64::midpoint(*low, *high))
}

#[cfg(test)]
mod tests {
    use rand_core::{Rng as _, SeedableRng as _};
    use rand_pcg::Pcg64;

    use super::*;

    /// Returns noise with a spread of 10 % around 100, and `factor` times that from `change` on.
    fn series(seed: u64, count: usize, change: usize, factor: f64) -> Vec<f64> {
        let mut random = Pcg64::seed_from_u64(seed);
        let mut draw = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        (0..count)
            .map(|index| {
                let noise = draw() + draw() + draw() + draw() - 2.0;
                (100.0 + 17.0 * noise) * if index < change { 1.0 } else { factor }
            })
            .collect()
    }

    #[test]
    fn a_change_is_found_where_it_happened() {
        let found: Vec<_> = (0..100).filter_map(|seed| find(&series(seed, 60, 40, 0.77))).collect();
        assert!(found.len() >= 95, "found {} of 100", found.len());
        let near = found.iter().filter(|change| change.index.abs_diff(40) <= 3).count();
        assert!(near >= 85, "{near} of {} near the change", found.len());
        let relative = found[0].relative().unwrap();
        assert!((-0.33..-0.13).contains(&relative), "{relative}");
    }

    #[test]
    fn a_series_without_a_change_is_rarely_marked() {
        let alarms = (0..1_000).filter(|seed| find(&series(*seed, 60, 60, 1.0)).is_some()).count();
        assert!(alarms <= 20, "{alarms} of 1,000 at a level of 1 %");
    }

    #[test]
    fn short_constant_and_tied_series_have_no_change() {
        assert_eq!(find(&[]), None);
        assert_eq!(find(&[1.0; 9]), None);
        assert_eq!(find(&[5.0; 100]), None);
        let ties = [[1.0; 20], [2.0; 20]].concat();
        assert_eq!(find(&ties).map(|change| change.index), Some(20));
    }
}
