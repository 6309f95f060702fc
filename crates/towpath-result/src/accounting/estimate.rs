//! Capacity account of links without a description: between two real hosts, or in a capture.
//!
//! The capacity is a rate that was actually reached. While round-trip times show a queue, a path is
//! at its capacity, and the rate of those periods is used. Otherwise the largest short-term rate is
//! used, without the few fastest moments. The path may then carry more, and the account says *at
//! least*.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_scenario::{DataDirection, Transport};

use super::capacity::AccountedLink;
use super::ledger::{Ledger, Period};
use super::sentence::{BufferSizes, bdp_bytes};
use crate::{Account, AccountSummary, Basis, CapacityEstimate, Part};

/// Largest share of the bytes that may arrive faster than the estimate. The first limit is for
/// short moments, in which delayed data arrives in a burst; the second for whole periods.
const MOMENT_TAIL_SHARE: f64 = 0.1;
const PERIOD_TAIL_SHARE: f64 = 0.25;
/// Smallest share of the bytes that must have met a queue.
const MIN_QUEUED_SHARE: f64 = 0.1;
/// Ratio of a period's mean to its fastest moment from which the period counts as even.
const MIN_EVEN_SHARE: f64 = 2.0 / 3.0;
/// Source of the capacity of a saturated path.
const SATURATED_SOURCE: &str = "what arrived while packets waited in a queue";
/// Upper bound of an estimate, in bits per second.
const MAX_BPS: u64 = 1 << 46;
/// Factor from bytes per nanosecond to bits per second.
const BIT_NANOS: f64 = 8e9;

/// Observations of a path in one period.
#[derive(Debug, Clone, Default)]
pub struct ObservedPeriod {
    /// Carried bytes, and the time in nanoseconds that each limit applied.
    pub period: Period,
    /// Largest short-term rate in the period, in bits per second of all carried bytes.
    pub peak_bps: u64,
    /// True if packets waited in the path's queue nearly all the time.
    pub is_saturated: bool,
}

/// Inputs of an estimate besides the links.
#[derive(Debug, Clone, Copy)]
pub struct EstimateInputs<'a> {
    /// Names of all paths.
    pub paths: &'a [String],
    /// Transport protocol of the connections.
    pub transport: Transport,
    /// Sizes for the sentence; the sufficient size is computed here.
    pub sizes: BufferSizes,
    /// Longest round trip that was observed.
    pub longest_rtt: Duration,
    /// Source of the capacity, such as `the most that arrived within 20 ms`.
    pub source: &'static str,
}

/// Computes the account from the periods of each path and direction, which must be in order of time
/// and without gaps. Empty where nothing was carried.
pub fn estimated_account(
    inputs: &EstimateInputs<'_>,
    links: &BTreeMap<(usize, DataDirection), Vec<ObservedPeriod>>,
) -> (Vec<Account>, Option<AccountSummary>) {
    let (mut accounted, mut observed, mut limit_times) = (Vec::new(), Vec::new(), Vec::new());
    let mut at_least = false;
    for ((path, direction), periods) in links {
        let (rate, is_shown) = rate_bps(periods);
        let Some(name) = inputs.paths.get(*path).filter(|_| rate > 0) else { continue };
        accounted.push(AccountedLink::constant_rate(name.clone(), *direction, *path, rate));
        observed.push(periods);
        limit_times.push(limit_ns(periods));
        at_least |= !is_shown;
    }
    if accounted.is_empty() {
        return (Vec::new(), None);
    }
    let estimate = CapacityEstimate {
        source: if at_least { inputs.source.to_owned() } else { SATURATED_SOURCE.to_owned() },
        at_least,
    };
    let rates: Vec<u64> = accounted.iter().map(AccountedLink::max_rate_bps).collect();
    let mut sizes = inputs.sizes;
    let sufficient_bytes = bdp_bytes(rates, inputs.longest_rtt);
    sizes.sufficient_bytes = Some(sufficient_bytes).filter(|bytes| *bytes > 0);
    let mut ledger =
        Ledger::of_links(accounted, inputs.paths, inputs.transport, (estimate, limit_times));
    for (number, periods) in observed.into_iter().enumerate() {
        for observed_period in periods {
            ledger.add(number, observed_period.period.clone());
        }
    }
    ledger.finish(Basis::Estimate, &sizes)
}

/// Returns the estimated capacity of a path in bits per second, never below the mean. The flag is
/// true if a queue has shown that the path carries no more.
pub fn rate_bps(periods: &[ObservedPeriod]) -> (u64, bool) {
    // A capture may contain arbitrary times.
    let total = periods.iter().map(carried_bytes).fold(0, u64::saturating_add);
    let span = periods.iter().map(|observed| observed.period.span_ns).fold(0, u64::saturating_add);
    if total == 0 || span == 0 {
        return (0, false);
    }
    let saturated = || periods.iter().filter(|observed| observed.is_saturated);
    let queued_bytes = saturated().map(carried_bytes).fold(0, u64::saturating_add);
    let is_shown = queued_bytes as f64 >= total as f64 * MIN_QUEUED_SHARE;
    let rate = if is_shown {
        let means = saturated().map(|observed| {
            (bps(carried_bytes(observed), observed.period.span_ns), carried_bytes(observed))
        });
        upper_quantile(means.collect(), PERIOD_TAIL_SHARE)
    } else {
        let peaks = periods.iter().map(|observed| (peak_bps(observed), carried_bytes(observed)));
        upper_quantile(peaks.collect(), MOMENT_TAIL_SHARE)
    };
    (rate.max(bps(total, span)).min(MAX_BPS), is_shown)
}

/// Returns the rate of a period's fastest moment, or its mean. With an even arrival rate, the
/// fastest of many moments only reflects jitter.
fn peak_bps(observed: &ObservedPeriod) -> u64 {
    let mean = bps(carried_bytes(observed), observed.period.span_ns);
    if mean as f64 >= observed.peak_bps as f64 * MIN_EVEN_SHARE { mean } else { observed.peak_bps }
}

fn carried_bytes(observed: &ObservedPeriod) -> u64 {
    observed.period.carried.sum()
}

fn bps(bytes: u64, span_ns: u64) -> u64 {
    (bytes as f64 * BIT_NANOS / span_ns.max(1) as f64).ceil() as u64
}

/// Returns the rate that only this share of all bytes exceeds.
fn upper_quantile(mut rates: Vec<(u64, u64)>, tail_share: f64) -> u64 {
    rates.sort_unstable_by_key(|(rate, _)| std::cmp::Reverse(*rate));
    let total = rates.iter().fold(0_u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let (mut faster_bytes, mut quantile) = (0, 0);
    for (rate, bytes) in rates {
        quantile = rate;
        faster_bytes = bytes.saturating_add(faster_bytes);
        if faster_bytes as f64 >= total as f64 * tail_share {
            break;
        }
    }
    quantile
}

/// Returns the time that each limit applied, over all periods.
fn limit_ns(periods: &[ObservedPeriod]) -> BTreeMap<Part, u64> {
    let mut limits: BTreeMap<Part, u64> = BTreeMap::new();
    for ObservedPeriod { period, .. } in periods {
        let sum = period.limits.values().fold(0_u64, |sum, weight| sum.saturating_add(*weight));
        for (cause, weight) in &period.limits {
            let fraction = *weight as f64 / sum.max(1) as f64;
            let limit_time = limits.entry(cause.part).or_default();
            *limit_time = limit_time.saturating_add((period.span_ns as f64 * fraction) as u64);
        }
    }
    limits.retain(|_, span| *span > 0);
    limits
}

#[cfg(test)]
mod tests {
    use super::super::ledger::CarriedBytes;
    use super::*;

    const MS: u64 = 1_000_000;

    /// Builds a period of 100 ms: kilobytes, rate of the fastest moment in Mbit/s, and the time of
    /// each limit.
    fn period(number: u64, kilobytes: u64, peak: u64, limits: &[(Part, u64)]) -> ObservedPeriod {
        let carried = CarriedBytes { delivered: kilobytes * 1_000, ..CarriedBytes::default() };
        let limits = limits.iter().map(|(part, ms)| ((*part).into(), ms * MS)).collect();
        let (t_ns, span_ns) = (number * 100 * MS, 100 * MS);
        let period = Period { t_ns, span_ns, carried, partial_packet_bytes: 0, limits };
        ObservedPeriod { period, peak_bps: peak * 1_000_000, is_saturated: false }
    }

    fn account_of(periods: Vec<ObservedPeriod>) -> (Vec<Account>, AccountSummary) {
        let paths = ["eth".to_owned()];
        let sizes = BufferSizes::default();
        let (transport, source) = (Transport::Tcp, "the most that arrived within 20 ms");
        let longest_rtt = Duration::ZERO;
        let inputs = EstimateInputs { paths: &paths, transport, sizes, longest_rtt, source };
        let links = BTreeMap::from([((0, DataDirection::Up), periods)]);
        let (accounts, summary) = estimated_account(&inputs, &links);
        (accounts, summary.unwrap())
    }

    #[test]
    fn a_window_that_briefly_fills_the_path_shows_its_capacity() {
        let window = [(Part::PeerWindow, 60), (Part::CongestionAvoidance, 40)];
        let periods = (1..=20).map(|number| period(number, 100, 20, &window)).collect();
        let (accounts, summary) = account_of(periods);
        assert_eq!(summary.basis, Basis::Estimate);
        let [link] = &summary.links[..] else { panic!() };
        assert_eq!(link.parts.capacity_bytes, 5_000_000);
        assert_eq!(link.parts.missing_parts()[0], (Part::PeerWindow, 1_800_000));
        assert_eq!(link.limits_ns[&Part::PeerWindow], 1_200 * MS);
        assert!(accounts.iter().all(|account| account.parts.sum() == account.parts.capacity_bytes));
        let sentence = &summary.sentence;
        let prefix = "of at least 20 Mbit/s (estimated: the most that arrived within 20 ms), ";
        assert!(sentence.starts_with(prefix), "{sentence}");
    }

    #[test]
    fn a_queue_shows_that_a_path_is_at_capacity() {
        let window = [(Part::CongestionAvoidance, 100)];
        let mut periods: Vec<_> = (1..=20).map(|number| period(number, 125, 15, &window)).collect();
        for period in &mut periods {
            period.is_saturated = true;
        }
        let (_, summary) = account_of(periods);
        let sentence = &summary.sentence;
        let prefix = "of about 10 Mbit/s (estimated: what arrived while packets waited in a queue)";
        assert!(sentence.starts_with(prefix), "{sentence}");
        assert!(!summary.estimate.unwrap().at_least);
    }

    #[test]
    fn a_path_that_was_never_full_has_a_capacity_lower_bound() {
        let idle = [(Part::Application, 95), (Part::CongestionAvoidance, 5)];
        let (_, summary) =
            account_of((1..=20).map(|number| period(number, 62, 5, &idle)).collect());
        assert!(summary.estimate.as_ref().unwrap().at_least);
        let sentence = &summary.sentence;
        assert!(sentence.starts_with("of at least 5 Mbit/s (estimated: "), "{sentence}");
        let suffix = "for 95 % of the time there was nothing to send, so the path may carry more";
        assert!(sentence.ends_with(suffix), "{sentence}");
    }

    #[test]
    fn one_burst_does_not_determine_the_capacity() {
        let full = [(Part::AfterLoss, 100)];
        let mut periods: Vec<_> = (1..=30).map(|number| period(number, 125, 13, &full)).collect();
        periods[7].peak_bps = 90_000_000;
        assert_eq!(rate_bps(&periods), (10_000_000, false));
        assert_eq!(rate_bps(&[]), (0, false));
    }
}
