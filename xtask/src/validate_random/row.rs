//! One scenario with the results of both sides, and their agreement.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::scenario::ComparedScenario;

/// Goodput agrees within this factor, or when the intervals overlap.
pub(super) const MAX_GOODPUT_FACTOR: f64 = 1.12;
/// Longest stalls agree within this share of the kernel's, or within this many ms.
pub(super) const STALL_BOUND: (f64, f64) = (0.3, 200.0);
/// Retransmissions agree within this factor, or within this difference in segments.
pub(super) const RETRANSMISSION_BOUND: (f64, f64) = (2.0, 50.0);

/// Results of the runs of one side.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct SideRuns {
    /// Goodput in Mbit/s, both directions together.
    pub(super) goodput: Vec<f64>,
    /// Longest stall in ms.
    pub(super) stall: Vec<f64>,
    /// Retransmitted segments, summed over all subflows.
    pub(super) retransmissions: Vec<f64>,
    /// 99th percentile of message delays in ms; empty for transfers.
    pub(super) p99: Vec<f64>,
    /// Share of the received bytes, by path.
    pub(super) shares: BTreeMap<String, Vec<f64>>,
}

impl SideRuns {
    /// Adds the records of a run. A run without counters delivered nothing.
    pub(super) fn add(&mut self, records: &Value) {
        let summary = records.get("summary").unwrap_or(&Value::Null);
        let flows = list(summary, "flows");
        let number = |value: &Value, pointer: &str| value.pointer(pointer).and_then(Value::as_f64);
        let flow_values = |pointer: &str| -> Vec<f64> {
            flows.iter().filter_map(|flow| number(flow, pointer)).collect()
        };
        let sum = |pointer: &str| flow_values(pointer).iter().sum::<f64>();
        let max = |pointer: &str| flow_values(pointer).into_iter().reduce(f64::max);
        let has_messages =
            |flow: &&Value| number(flow, "/messages/count").is_some_and(|count| count > 0.0);
        self.goodput.push(sum("/goodput_bps") / 1e6);
        let flow_ms = number(summary, "/flows/0/duration_ns").unwrap_or(0.0) / 1e6;
        let delivered = sum("/bytes") > 0.0;
        let stall = max("/stall/longest_ns").unwrap_or(0.0) / 1e6;
        self.stall.push(if delivered { stall } else { flow_ms });
        self.retransmissions.push(sum("/retransmissions"));
        let delays = flows
            .iter()
            .filter(has_messages)
            .filter_map(|flow| number(flow, "/messages/delay/p99_ns"));
        self.p99.extend(delays.reduce(f64::max).map(|nanoseconds| nanoseconds / 1e6));
        let subflows = list(summary, "subflows");
        let bytes = |subflow: &Value| number(subflow, "/bytes").unwrap_or(0.0);
        let total_bytes: f64 = subflows.iter().map(bytes).sum();
        let mut shares = BTreeMap::<&str, f64>::new();
        for subflow in subflows {
            let path = subflow.get("path").and_then(Value::as_str).unwrap_or_default();
            *shares.entry(path).or_default() += bytes(subflow);
        }
        for (path, bytes) in shares.into_iter().filter(|_| total_bytes > 0.0) {
            self.shares.entry(path.to_owned()).or_default().push(bytes / total_bytes);
        }
    }

    /// Splits the runs into odd and even ones, as if they were two sides.
    fn split_in_two(&self) -> [Self; 2] {
        [0, 1].map(|start| {
            let every_second =
                |values: &[f64]| values.iter().skip(start).step_by(2).copied().collect::<Vec<_>>();
            // A run without received data has no shares, so they cannot be assigned to runs.
            let complete_shares =
                self.shares.iter().filter(|(_, values)| values.len() == self.goodput.len());
            Self {
                goodput: every_second(&self.goodput),
                stall: every_second(&self.stall),
                retransmissions: every_second(&self.retransmissions),
                p99: every_second(&self.p99),
                shares: complete_shares
                    .map(|(path, values)| (path.clone(), every_second(values)))
                    .collect(),
            }
        })
    }

    fn json(&self) -> Value {
        let Self { goodput, stall, retransmissions, p99, shares } = self;
        json!({
            "goodput_mbps": goodput, "longest_stall_ms": stall, "retransmissions": retransmissions,
            "p99_ms": p99, "shares": shares,
        })
    }
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A scenario with the runs of both sides.
#[derive(Debug, Clone)]
pub(super) struct ComparisonRow<'a> {
    pub(super) scenario: &'a ComparedScenario,
    pub(super) ours: SideRuns,
    pub(super) kernel: SideRuns,
    /// Number of runs that were left out, on both sides.
    pub(super) left_out: u32,
}

impl ComparisonRow<'_> {
    /// Compares one half of the kernel's runs with the other: no model can be closer than that.
    pub(super) fn kernel_self_comparison(&self) -> Option<Self> {
        let [ours, kernel] = self.kernel.split_in_two();
        let row = Self { scenario: self.scenario, ours, kernel, left_out: self.left_out };
        row.is_whole().then_some(row)
    }

    /// Returns true if both sides have runs to compare.
    pub(super) fn is_whole(&self) -> bool {
        !self.ours.goodput.is_empty() && !self.kernel.goodput.is_empty()
    }

    /// Returns the ratio of the larger median goodput to the smaller.
    pub(super) fn factor(&self) -> f64 {
        factor(median(&self.ours.goodput), median(&self.kernel.goodput))
    }

    /// Returns true if the kernel's own runs are within the bound of each other.
    pub(super) fn kernel_is_repeatable(&self) -> bool {
        let [min, max] = min_and_max(&self.kernel.goodput);
        factor(max, min) <= MAX_GOODPUT_FACTOR
    }

    /// Returns true if the goodput intervals of both sides overlap.
    pub(super) fn overlaps(&self) -> bool {
        let ([our_min, our_max], [kernel_min, kernel_max]) =
            (min_and_max(&self.ours.goodput), min_and_max(&self.kernel.goodput));
        our_min <= kernel_max && kernel_min <= our_max
    }

    pub(super) fn goodput_agrees(&self) -> bool {
        self.factor() <= MAX_GOODPUT_FACTOR || self.overlaps()
    }

    /// Returns true if the longest stall is within 30 % or 200 ms of the kernel's.
    pub(super) fn stall_agrees(&self) -> bool {
        let (ours, kernel) = (median(&self.ours.stall), median(&self.kernel.stall));
        let (share, min_ms) = STALL_BOUND;
        (ours - kernel).abs() <= (share * kernel).max(min_ms)
    }

    pub(super) fn retransmissions_agree(&self) -> bool {
        let ours = median(&self.ours.retransmissions);
        let kernel = median(&self.kernel.retransmissions);
        let (max_factor, max_difference) = RETRANSMISSION_BOUND;
        factor(ours, kernel) <= max_factor || (ours - kernel).abs() <= max_difference
    }

    pub(super) fn agrees(&self) -> bool {
        self.goodput_agrees() && self.stall_agrees() && self.retransmissions_agree()
    }

    /// Returns the factor of the 99th percentile of delays; `None` without messages.
    pub(super) fn p99_factor(&self) -> Option<f64> {
        let has_delays = !self.ours.p99.is_empty() && !self.kernel.p99.is_empty();
        has_delays.then(|| factor(median(&self.ours.p99), median(&self.kernel.p99)))
    }

    /// Returns the maximum deviation of a path's share of the bytes.
    pub(super) fn share_off(&self) -> f64 {
        let paths = self.ours.shares.keys().chain(self.kernel.shares.keys());
        let share = |runs: &SideRuns, path: &str| {
            let sum = runs.shares.get(path).map_or(0.0, |shares| shares.iter().sum());
            sum / runs.goodput.len().max(1) as f64
        };
        let deviation = |path: &String| (share(&self.ours, path) - share(&self.kernel, path)).abs();
        paths.map(deviation).fold(0.0, f64::max)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "scenario": self.scenario.name, "transport": self.scenario.transport,
            "marks": self.scenario.marks, "ours": self.ours.json(), "kernel": self.kernel.json(),
            "left_out": self.left_out, "goodput_factor": self.factor(), "overlaps": self.overlaps(),
            "goodput_agrees": self.goodput_agrees(), "stall_agrees": self.stall_agrees(),
            "retransmissions_agree": self.retransmissions_agree(),
            "p99_factor": self.p99_factor(), "share_off": self.share_off(),
        })
    }
}

/// Returns the ratio of the larger number to the smaller; 1 if both are zero.
fn factor(a: f64, b: f64) -> f64 {
    match (a.max(b), a.min(b)) {
        (larger, _) if larger <= 0.0 => 1.0,
        (_, smaller) if smaller <= 0.0 => f64::INFINITY,
        (larger, smaller) => larger / smaller,
    }
}

/// Returns the median, which is the mean of the middle two for an even number; 0 for none.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let value_at = |index: usize| sorted.get(index).copied().unwrap_or_default();
    let count = sorted.len();
    if count % 2 == 1 {
        value_at(count / 2)
    } else {
        f64::midpoint(value_at((count / 2).max(1) - 1), value_at(count / 2))
    }
}

/// Returns the minimum and the maximum.
pub(super) fn min_and_max(values: &[f64]) -> [f64; 2] {
    let min = values.iter().copied().reduce(f64::min).unwrap_or_default();
    [min, values.iter().copied().reduce(f64::max).unwrap_or_default()]
}

/// Returns the quantile by nearest rank: `share` of the values do not exceed it.
pub(super) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario() -> ComparedScenario {
        ComparedScenario {
            name: "x".to_owned(),
            transport: "mptcp".to_owned(),
            text: String::new(),
            hash: 0,
            marks: [].into(),
            paths: 1,
            rate_mbps: 1.0,
            seconds: 1.0,
            profile: None,
        }
    }

    fn runs(goodput: &[f64], stall: f64, retransmissions: f64) -> SideRuns {
        let (goodput, stall, retransmissions) =
            (goodput.to_vec(), vec![stall], vec![retransmissions]);
        SideRuns { goodput, stall, retransmissions, ..SideRuns::default() }
    }

    fn verdicts(ours: SideRuns, kernel: SideRuns) -> [bool; 3] {
        let scenario = scenario();
        let row = ComparisonRow { scenario: &scenario, ours, kernel, left_out: 0 };
        [row.goodput_agrees(), row.stall_agrees(), row.retransmissions_agree()]
    }

    #[test]
    fn each_metric_has_its_own_bound() {
        let kernel = || runs(&[10.0], 1_000.0, 100.0);
        assert_eq!(verdicts(runs(&[11.1], 1_290.0, 199.0), kernel()), [true; 3]);
        assert_eq!(verdicts(runs(&[11.3], 1_310.0, 201.0), kernel()), [false; 3]);
        assert_eq!(verdicts(runs(&[8.8], 690.0, 49.0), kernel()), [false, false, false]);
        assert_eq!(verdicts(runs(&[9.0], 710.0, 50.0), kernel()), [true; 3]);
    }

    #[test]
    fn small_stalls_and_few_retransmissions_agree_at_any_ratio() {
        let small_metrics = runs(&[10.0], 10.0, 0.0);
        assert_eq!(verdicts(small_metrics.clone(), runs(&[10.0], 205.0, 50.0)), [true; 3]);
        assert_eq!(verdicts(small_metrics, runs(&[10.0], 290.0, 51.0)), [true, false, false]);
    }

    #[test]
    fn intervals_that_overlap_agree() {
        let wide_interval = runs(&[5.0, 20.0], 0.0, 0.0);
        assert!(verdicts(runs(&[19.0, 22.0], 0.0, 0.0), wide_interval.clone())[0]);
        assert!(!verdicts(runs(&[21.0, 22.0], 0.0, 0.0), wide_interval)[0]);
    }

    #[test]
    fn a_run_without_metrics_delivered_nothing() {
        let mut ours = SideRuns::default();
        ours.add(&json!({"summary": null, "timing": null}));
        assert_eq!(ours.goodput, [0.0]);
        assert!(!verdicts(ours.clone(), runs(&[1.0], 0.0, 0.0))[0]);
        assert!(verdicts(ours.clone(), ours)[0]);
    }

    #[test]
    fn metrics_of_a_result_are_found() {
        let mut runs = SideRuns::default();
        runs.add(&json!({"summary": {
            "flows": [
                {"bytes": 5, "goodput_bps": 2e6, "retransmissions": 3, "stall": {"longest_ns": 7_000_000},
                 "messages": {"count": 4, "delay": {"p99_ns": 9_000_000}}},
                {"bytes": 5, "goodput_bps": 1e6, "retransmissions": 4, "stall": {"longest_ns": 0},
                 "messages": {"count": 0, "delay": {"p99_ns": 0}}},
            ],
            "subflows": [{"path": "a", "bytes": 30}, {"path": "b", "bytes": 10}],
        }}));
        assert_eq!((&runs.goodput[..], &runs.stall[..]), (&[3.0][..], &[7.0][..]));
        assert_eq!((&runs.retransmissions[..], &runs.p99[..]), (&[7.0][..], &[9.0][..]));
        assert_eq!(runs.shares["a"], [0.75]);
    }

    #[test]
    fn the_kernel_is_compared_with_itself_run_by_run() {
        let scenario = scenario();
        let kernel = SideRuns {
            goodput: vec![10.0, 20.0, 12.0],
            stall: vec![1.0, 500.0, 3.0],
            retransmissions: vec![0.0, 90.0, 0.0],
            p99: vec![],
            shares: [("a".to_owned(), vec![0.5, 0.7, 0.5]), ("b".to_owned(), vec![1.0])].into(),
        };
        let row =
            ComparisonRow { scenario: &scenario, ours: SideRuns::default(), kernel, left_out: 0 };
        let self_comparison = row.kernel_self_comparison().unwrap();
        assert_eq!(
            (&self_comparison.ours.goodput[..], &self_comparison.kernel.goodput[..]),
            (&[10.0, 12.0][..], &[20.0][..])
        );
        assert!(
            !self_comparison.goodput_agrees()
                && !self_comparison.stall_agrees()
                && !self_comparison.retransmissions_agree()
        );
        assert!((self_comparison.share_off() - 0.2).abs() < 1e-9);
        assert!(!row.kernel_is_repeatable());
        let single_run = ComparisonRow { kernel: runs(&[1.0], 0.0, 0.0), ..row };
        assert!(single_run.kernel_is_repeatable());
        assert!(single_run.kernel_self_comparison().is_none());
    }

    #[test]
    fn medians_and_quantiles_are_as_defined() {
        let one_to_ten: Vec<_> = (1..=10).map(f64::from).collect();
        let results = [median(&[3.0, 1.0, 2.0]), median(&[4.0, 1.0]), quantile(&one_to_ten, 0.9)];
        assert_eq!(results.to_vec(), vec![2.0, 2.5, 9.0]);
        assert_eq!((factor(0.0, 0.0), factor(0.0, 1.0)), (1.0, f64::INFINITY));
    }
}
