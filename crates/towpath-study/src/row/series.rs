//! Data delivered in each second of a run, for figures over time.

use std::collections::BTreeMap;

use towpath_result::{Record, SubflowEnd};

/// Prefix of such metrics: `second.3.goodput` is of the fourth second.
pub const SECOND_PREFIX: &str = "second.";
/// Maximum number of seconds of a run that are recorded one by one.
const MAX_SECONDS: usize = 600;

/// Returns `second.N.goodput` and `second.N.path.NAME.goodput`: bits delivered in each whole
/// second of the traffic, in total and by path. A period that overlaps two seconds is split
/// between them.
pub fn per_second(records: &[Record]) -> BTreeMap<String, f64> {
    let mut bits_by_metric: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut end_ns = 0;
    for record in records {
        let (name, t_ns, span_ns, bytes) = if let Record::Interval(interval) = record {
            end_ns = end_ns.max(interval.t_ns);
            ("goodput".to_owned(), interval.t_ns, interval.span_ns, interval.bytes)
        } else if let Record::Subflow(subflow) = record
            && subflow.side == SubflowEnd::Receiver
        {
            let name = format!("path.{}.goodput", subflow.path);
            (name, subflow.t_ns, subflow.span_ns, subflow.bytes)
        } else {
            continue;
        };
        add_to_seconds(
            bits_by_metric.entry(name).or_default(),
            (t_ns, span_ns),
            bytes as f64 * 8.0,
        );
    }
    // Data after the last whole second is dropped.
    let whole_seconds = (end_ns / 1_000_000_000) as usize;
    let mut metrics = BTreeMap::new();
    for (name, mut seconds) in bits_by_metric {
        seconds.resize(whole_seconds.min(MAX_SECONDS), 0.0);
        let numbered = seconds.into_iter().enumerate();
        metrics.extend(
            numbered.map(|(second, bits)| (format!("{SECOND_PREFIX}{second}.{name}"), bits)),
        );
    }
    metrics
}

/// Spreads an amount over the seconds of its period.
fn add_to_seconds(seconds: &mut Vec<f64>, (t_ns, span_ns): (u64, u64), bits: f64) {
    let (start_s, end_s) = (t_ns.saturating_sub(span_ns) as f64 / 1e9, t_ns as f64 / 1e9);
    let second_count = (end_s.ceil() as usize).min(MAX_SECONDS);
    if seconds.len() < second_count {
        seconds.resize(second_count, 0.0);
    }
    for (number, second) in seconds.iter_mut().enumerate().skip(start_s as usize) {
        let (begin, end) = (number as f64, number as f64 + 1.0);
        let overlap_s = end.min(end_s) - begin.max(start_s);
        if overlap_s > 0.0 && end_s > start_s {
            *second += bits * overlap_s / (end_s - start_s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_counts_for_the_seconds_in_which_it_lies() {
        let mut seconds = Vec::new();
        add_to_seconds(&mut seconds, (1_000_000_000, 100_000_000), 8.0);
        add_to_seconds(&mut seconds, (1_050_000_000, 100_000_000), 6.0);
        add_to_seconds(&mut seconds, (3_000_000_000, 1_000_000_000), 5.0);
        let rounded: Vec<_> = seconds.iter().map(|bits| (bits * 1e6).round() / 1e6).collect();
        assert_eq!(rounded, [11.0, 3.0, 5.0]);
    }
}
