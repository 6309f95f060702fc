//! Expectations: bounds that a scenario sets on the metrics of its result.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use towpath_scenario::{Expectation, Transport, metric_names};

use crate::format;
use crate::{
    CpuTime, ExpectationResult, FlowSummary, PathStats, StackStats, SubflowSummary, Summary,
};

mod datagrams;
mod latency;
mod messages;
mod udping;

pub use datagrams::DatagramMetric;
pub use latency::LatencyMetric;
pub use messages::{MessageMetric, Percentile};
pub use udping::PathMetric;

/// Metric of an expectation. Over several flows, amounts are summed, and of times the worst counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Metric {
    /// `goodput`: sum over all flows, bit/s.
    Goodput,
    /// `completed`: 1 when every flow completed, else 0.
    Completed,
    /// `delay.p50`, `unanswered`, `video.stalls`, …: metrics of request-reply messages.
    Messages(MessageMetric),
    /// `stall.longest`: seconds, of bulk transfers.
    StallLongest,
    /// `stall.total`: seconds, of bulk transfers.
    StallTotal,
    /// `recovery`: seconds of the slowest recovery; infinite if a flow never recovered.
    Recovery,
    /// `deficit`: bytes, summed over all events.
    Deficit,
    /// `retransmissions`: packets, of all flows.
    Retransmissions,
    /// `subflows`: number, of the connection with the fewest.
    Subflows,
    /// `paths`: number of paths that delivered payload.
    Paths,
    /// `share.PATH`: share of the payload delivered over the path, 0 to 1.
    Share(String),
    /// `udping.lost.PATH` and others: metrics of echo datagrams on the path.
    Path(PathMetric, String),
    /// `udp.lost` and others: metrics of constant-rate datagrams.
    Datagrams(DatagramMetric),
    /// `latency.rise.down` and others: latency under load.
    Latency(LatencyMetric),
    /// `connect`: seconds to open the connection.
    Connect,
    /// `reinjected`: bytes reinjected on another subflow.
    Reinjected,
    /// `discarded`: received bytes that were no longer needed.
    Discarded,
    /// `reorder_peak`: bytes in the fullest reorder queue of any connection.
    ReorderPeak,
    /// `window_blocked`: seconds with a full window, of the connection blocked longest.
    WindowBlocked,
    /// `penalisations`: number of subflow penalisations.
    Penalisations,
    /// `cpu_per_gb`: CPU seconds of both ends per gigabyte delivered.
    CpuPerGigabyte,
}

/// Unit of a metric's bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricUnit {
    /// Rate in bits per second.
    Rate,
    /// Time in seconds; infinity means never.
    Time,
    /// Amount of data in bytes.
    Bytes,
    /// Count or other dimensionless number.
    Count,
    /// A mean opinion score, 1 to 4.5.
    Score,
    /// A share between 0 and 1.
    Share,
    /// 1 for yes, 0 for no.
    YesNo,
}

/// Returns the names of all metrics of a result with these paths.
pub fn names<'a>(paths: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let paths: Vec<_> = paths.into_iter().collect();
    let expand = |name: &str| match name.strip_suffix("PATH") {
        Some(prefix) => paths.iter().map(|path| format!("{prefix}{path}")).collect(),
        None => vec![name.to_owned()],
    };
    metric_names().flat_map(expand).collect()
}

impl Metric {
    /// Returns the metric with this name (without the transport); `None` if unknown.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "goodput" => Self::Goodput,
            "completed" => Self::Completed,
            "stall.longest" => Self::StallLongest,
            "stall.total" => Self::StallTotal,
            "recovery" => Self::Recovery,
            "deficit" => Self::Deficit,
            "retransmissions" => Self::Retransmissions,
            "subflows" => Self::Subflows,
            "paths" => Self::Paths,
            "connect" => Self::Connect,
            "reinjected" => Self::Reinjected,
            "discarded" => Self::Discarded,
            "reorder_peak" => Self::ReorderPeak,
            "window_blocked" => Self::WindowBlocked,
            "penalisations" => Self::Penalisations,
            "cpu_per_gb" => Self::CpuPerGigabyte,
            _ if name.starts_with("udping.") => {
                let (metric, path) = PathMetric::parse(name)?;
                Self::Path(metric, path)
            }
            _ if name.starts_with("udp.") || name.starts_with("call.") => {
                Self::Datagrams(DatagramMetric::parse(name)?)
            }
            _ if name.starts_with("latency.") => Self::Latency(LatencyMetric::parse(name)?),
            _ => match (name.strip_prefix("share."), MessageMetric::parse(name)) {
                (None, Some(metric)) => Self::Messages(metric),
                (None, None) | (Some(""), _) => return None,
                (Some(path), _) => Self::Share(path.into()),
            },
        })
    }

    /// Returns the unit of the metric's bound.
    pub fn unit(&self) -> MetricUnit {
        match self {
            Self::Goodput => MetricUnit::Rate,
            Self::Completed => MetricUnit::YesNo,
            Self::StallLongest
            | Self::StallTotal
            | Self::Recovery
            | Self::Connect
            | Self::CpuPerGigabyte
            | Self::WindowBlocked => MetricUnit::Time,
            Self::Deficit | Self::Reinjected | Self::Discarded | Self::ReorderPeak => {
                MetricUnit::Bytes
            }
            Self::Retransmissions | Self::Subflows | Self::Paths | Self::Penalisations => {
                MetricUnit::Count
            }
            Self::Messages(metric) => metric.unit(),
            Self::Share(_) => MetricUnit::Share,
            Self::Path(metric, _) => metric.unit(),
            Self::Datagrams(metric) => metric.unit(),
            Self::Latency(metric) => metric.unit(),
        }
    }

    /// Returns the value in base units; `None` if it was not measured.
    pub fn value(&self, inputs: &MetricInputs<'_>) -> Option<f64> {
        let MetricInputs { flows, subflows, paths, paths_used, cpu } = *inputs;
        match self {
            Self::Subflows => min_subflows(subflows).map(|count| count as f64),
            Self::Paths if subflows.is_empty() && paths_used.is_empty() => None,
            Self::Paths => Some(paths_used.len() as f64),
            Self::Share(path) => {
                // Integers: the empty sum of floating-point numbers is -0.
                let total: u64 = subflows.iter().map(|s| s.bytes).sum();
                let on_path = subflows.iter().filter(|s| s.path == *path);
                let path_bytes: u64 = on_path.map(|s| s.bytes).sum();
                (total > 0).then(|| path_bytes as f64 / total as f64)
            }
            Self::Path(metric, path) => metric.value(path, paths),
            Self::Datagrams(metric) => metric.value(flows),
            Self::Latency(metric) => metric.value(flows),
            _ if flows.is_empty() => None,
            Self::Goodput => Some(flows.iter().map(|flow| flow.goodput_bps).sum()),
            Self::Completed => Some(f64::from(u8::from(flows.iter().all(|flow| flow.completed)))),
            Self::Messages(metric) => metric.value(flows),
            Self::StallLongest => {
                max_seconds(flows_with_stalls(flows).map(|flow| flow.stall.longest_ns))
            }
            Self::StallTotal => {
                max_seconds(flows_with_stalls(flows).map(|flow| flow.stall.total_ns))
            }
            Self::Recovery => {
                let recoveries = || flows.iter().flat_map(|flow| &flow.recoveries);
                let any_unrecovered = recoveries().any(|recovery| recovery.t90_ns.is_none());
                let slowest = max_seconds(recoveries().filter_map(|recovery| recovery.t90_ns));
                if any_unrecovered { Some(f64::INFINITY) } else { slowest }
            }
            Self::Deficit => {
                let events = flows.iter().flat_map(|flow| &flow.recoveries);
                let deficits: Vec<_> =
                    events.map(|recovery| recovery.deficit_bytes as f64).collect();
                (!deficits.is_empty()).then(|| deficits.iter().sum())
            }
            Self::Retransmissions => {
                Some(flows.iter().map(|flow| flow.retransmissions as f64).sum())
            }
            Self::Connect => {
                let connect_times: Option<Vec<_>> =
                    flows.iter().map(|flow| flow.connect_ns).collect();
                max_seconds(connect_times?.into_iter())
            }
            Self::CpuPerGigabyte => {
                let bytes = flows.iter().map(|flow| flow.bytes).fold(0, u64::saturating_add);
                cpu?.seconds_per_gigabyte(bytes)
            }
            Self::Reinjected => stack_sum(flows, |stack| stack.reinjected_bytes),
            Self::Discarded => stack_sum(flows, |stack| stack.discarded_bytes),
            Self::Penalisations => stack_sum(flows, |stack| stack.penalisations),
            Self::ReorderPeak => stack_stats(flows)
                .filter_map(|s| s.reorder_peak_bytes)
                .max()
                .map(|bytes| bytes as f64),
            Self::WindowBlocked => {
                max_seconds(stack_stats(flows).filter_map(|s| s.window_blocked_ns))
            }
        }
    }
}

impl MetricUnit {
    /// Formats a value of this unit for display.
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Rate => format::rate(value),
            Self::Time if value.is_infinite() => "never".into(),
            Self::Time => format::time(Duration::try_from_secs_f64(value).unwrap_or_default()),
            Self::Bytes => format::bytes(value as u64),
            Self::Count => format!("{value:.0}"),
            Self::Score => format!("{value:.2}"),
            Self::Share => format::share(value),
            Self::YesNo => if value > 0.5 { "yes" } else { "no" }.into(),
        }
    }
}

/// Measured values that expectations are checked against.
#[derive(Debug, Clone, Copy)]
pub struct MetricInputs<'a> {
    /// Summaries of all flows.
    pub flows: &'a [FlowSummary],
    /// Summaries of all subflows.
    pub subflows: &'a [SubflowSummary],
    /// Echo datagram statistics of the paths.
    pub paths: &'a [PathStats],
    /// Paths that delivered payload.
    pub paths_used: &'a [String],
    /// CPU time of both ends.
    pub cpu: Option<CpuTime>,
}

impl<'a> From<&'a Summary> for MetricInputs<'a> {
    fn from(summary: &'a Summary) -> Self {
        let Summary { flows, subflows, paths, multipath, cpu, .. } = summary;
        Self { flows, subflows, paths, paths_used: &multipath.paths_used, cpu: *cpu }
    }
}

/// Checks the expectations that apply to `transport`, in order.
pub fn evaluate(
    expectations: &[Expectation],
    transport: Transport,
    inputs: &MetricInputs<'_>,
) -> Vec<ExpectationResult> {
    let applies = |e: &&Expectation| e.transport.is_none_or(|required| required == transport);
    expectations.iter().filter(applies).map(|expectation| check(expectation, inputs)).collect()
}

fn check(expectation: &Expectation, inputs: &MetricInputs<'_>) -> ExpectationResult {
    let metric = Metric::parse(&expectation.metric);
    let value = metric.as_ref().and_then(|metric| Some((metric.unit(), metric.value(inputs)?)));
    let text = expectation.text.clone();
    match value {
        Some((unit, value)) => {
            let passed = Some(expectation.operator.holds(value, expectation.bound));
            ExpectationResult { text, measured: unit.text(value), passed }
        }
        None => ExpectationResult { text, measured: "not measured".into(), passed: None },
    }
}

/// Returns the flows that can stall: between messages, silence means nothing.
fn flows_with_stalls(flows: &[FlowSummary]) -> impl Iterator<Item = &FlowSummary> {
    flows.iter().filter(|flow| flow.bytes > 0 && flow.messages.is_none())
}

/// Returns the stack statistics of the flows; the kernel's stack has none.
fn stack_stats(flows: &[FlowSummary]) -> impl Iterator<Item = StackStats> {
    flows.iter().filter_map(|flow| flow.stack)
}

fn stack_sum(flows: &[FlowSummary], field: fn(StackStats) -> Option<u64>) -> Option<f64> {
    let values: Vec<u64> = stack_stats(flows).filter_map(field).collect();
    (!values.is_empty()).then(|| values.iter().map(|value| *value as f64).sum())
}

fn max_seconds(nanos: impl Iterator<Item = u64>) -> Option<f64> {
    nanos.max().map(|nanos| nanos as f64 / 1e9)
}

fn min_subflows(subflows: &[SubflowSummary]) -> Option<usize> {
    let mut connections: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for subflow in subflows {
        connections.entry((subflow.flow, subflow.stream)).or_default().insert(subflow.subflow);
    }
    connections.values().map(BTreeSet::len).min()
}

#[cfg(test)]
mod tests {
    use towpath_scenario::{DataDirection, Operator};

    use super::*;
    use crate::{CpuAccounting, Recovery, Stall};

    fn flow(goodput_bps: f64, t90_ns: Option<u64>) -> FlowSummary {
        let stall = Stall { longest_ns: 310_000_000, total_ns: 500_000_000, ..Stall::default() };
        let recovery = Recovery {
            event_ns: 3_000_000_000,
            event: "wifi down".into(),
            reference_bps: 20e6,
            capacity_bps: None,
            t90_ns,
            deficit_bytes: 1_500_000,
            longest_gap_ns: 310_000_000,
            last_stall_end_ns: t90_ns,
        };
        FlowSummary {
            flow: 0,
            direction: DataDirection::Up,
            bytes: 28_300_000,
            duration_ns: 10_000_000_000,
            goodput_bps,
            completed: true,
            failure: None,
            connect_ns: Some(30_000_000),
            stall,
            recoveries: vec![recovery],
            congestion_control: vec![],
            retransmissions: 4,
            stack: None,
            messages: None,
            datagrams: None,
        }
    }

    fn subflow(stream: u32, subflow: u32, path: &str, bytes: u64) -> SubflowSummary {
        SubflowSummary {
            flow: 0,
            stream,
            direction: DataDirection::Up,
            subflow,
            path: path.into(),
            local: String::new(),
            remote: String::new(),
            backup: false,
            bytes,
            share: 0.0,
            retransmissions: 0,
            srtt_us: 0,
            first_seen_ns: 0,
            closed_ns: None,
        }
    }

    fn check_metric(
        metric: &str,
        operator: Operator,
        bound: f64,
        inputs: &MetricInputs<'_>,
    ) -> ExpectationResult {
        let (metric, text) = (metric.into(), String::new());
        let expectation = Expectation { transport: None, metric, operator, bound, text };
        evaluate(&[expectation], Transport::Mptcp, inputs).remove(0)
    }

    #[test]
    fn goodput_is_summed_and_the_worst_time_counts() {
        let flows = [flow(10e6, Some(100_000_000)), flow(12.6e6, Some(1_290_000_000))];
        let inputs =
            MetricInputs { flows: &flows, subflows: &[], paths: &[], paths_used: &[], cpu: None };
        let value_text = |metric| check_metric(metric, Operator::AtLeast, 0.0, &inputs).measured;
        assert_eq!(value_text("goodput"), "22.6 Mbit/s");
        assert_eq!(value_text("recovery"), "1.29 s");
        assert_eq!(value_text("stall.longest"), "310 ms");
        assert_eq!(value_text("stall.total"), "500 ms");
        assert_eq!(value_text("deficit"), "3.00 MB");
        assert_eq!(value_text("retransmissions"), "8");
        assert_eq!(value_text("connect"), "30 ms");
        assert_eq!(value_text("completed"), "yes");
    }

    #[test]
    fn stack_metrics_are_summed_or_the_worst_and_absent_for_kernels() {
        let stats = StackStats {
            reinjected_bytes: Some(40_000),
            discarded_bytes: Some(30_000),
            reorder_peak_bytes: Some(200_000),
            window_blocked_ns: Some(450_000_000),
            penalisations: Some(3),
            switches: Some(9),
        };
        let smaller =
            StackStats { reorder_peak_bytes: Some(10), window_blocked_ns: Some(10), ..stats };
        let flow_with = |stack| FlowSummary { stack, ..flow(1e6, None) };
        let flows = [flow_with(Some(stats)), flow_with(Some(smaller)), flow_with(None)];
        let inputs =
            MetricInputs { flows: &flows, subflows: &[], paths: &[], paths_used: &[], cpu: None };
        let value_text = |metric| check_metric(metric, Operator::AtMost, 0.0, &inputs).measured;
        assert_eq!(value_text("reinjected"), "80.0 kB");
        assert_eq!(value_text("discarded"), "60.0 kB");
        assert_eq!(value_text("reorder_peak"), "200 kB");
        assert_eq!(value_text("window_blocked"), "450 ms");
        assert_eq!(value_text("penalisations"), "6");
        let kernel_inputs = MetricInputs { flows: &flows[2..], ..inputs };
        let kernel = check_metric("reinjected", Operator::AtMost, 0.0, &kernel_inputs);
        assert_eq!((kernel.measured.as_str(), kernel.passed), ("not measured", None));
    }

    #[test]
    fn processor_time_is_per_delivered_gigabyte() {
        let cpu = |client, server| {
            let accounting = CpuAccounting::Process;
            Some(CpuTime { client_cpu_ns: client, server_cpu_ns: server, accounting })
        };
        // 28.3 MB, twice.
        let flows = [flow(1e6, None), flow(1e6, None)];
        let inputs =
            MetricInputs { flows: &flows, subflows: &[], paths: &[], paths_used: &[], cpu: None };
        let value_text = |cpu| {
            check_metric("cpu_per_gb", Operator::AtMost, 2.0, &MetricInputs { cpu, ..inputs })
                .measured
        };
        assert_eq!(value_text(cpu(Some(50_000_000), Some(63_200_000))), "2.00 s");
        assert_eq!(value_text(cpu(Some(50_000_000), None)), "not measured");
        assert_eq!(value_text(None), "not measured");
    }

    #[test]
    fn never_recovering_misses_every_upper_bound() {
        let flows = [flow(10e6, Some(1)), flow(10e6, None)];
        let inputs =
            MetricInputs { flows: &flows, subflows: &[], paths: &[], paths_used: &[], cpu: None };
        let result = check_metric("recovery", Operator::AtMost, 1e9, &inputs);
        assert_eq!((result.measured.as_str(), result.passed), ("never", Some(false)));
    }

    #[test]
    fn an_unmeasured_expectation_neither_passes_nor_fails() {
        let empty =
            MetricInputs { flows: &[], subflows: &[], paths: &[], paths_used: &[], cpu: None };
        let names = ["goodput", "completed", "stall.total", "recovery", "deficit", "subflows"];
        for name in names.iter().chain(&["paths", "share.wifi", "connect", "no such metric"]) {
            let result = check_metric(name, Operator::AtLeast, 0.0, &empty);
            assert_eq!((result.measured.as_str(), result.passed), ("not measured", None), "{name}");
        }
    }

    #[test]
    fn shares_and_subflows_are_those_of_the_connections() {
        let subflows = [
            subflow(0, 0, "wifi", 600),
            subflow(0, 1, "cellular", 300),
            subflow(1, 0, "wifi", 300),
        ];
        let paths = ["wifi".into(), "cellular".into()];
        let inputs = MetricInputs {
            flows: &[],
            subflows: &subflows,
            paths: &[],
            paths_used: &paths,
            cpu: None,
        };
        let value_text = |metric| check_metric(metric, Operator::AtLeast, 0.0, &inputs).measured;
        assert_eq!(value_text("share.wifi"), "75 %");
        assert_eq!(value_text("share.cellular"), "25 %");
        let unused = Metric::parse("share.ethernet").unwrap().value(&inputs).unwrap();
        assert!(unused.is_sign_positive() && unused < f64::EPSILON, "{unused}");
        assert_eq!(value_text("subflows"), "1");
        assert_eq!(value_text("paths"), "2");
    }

    #[test]
    fn an_expectation_of_another_transport_is_not_checked() {
        let expectation = Expectation {
            transport: Some(Transport::Tcp),
            metric: "goodput".into(),
            operator: Operator::AtLeast,
            bound: 1.0,
            text: String::new(),
        };
        let empty =
            MetricInputs { flows: &[], subflows: &[], paths: &[], paths_used: &[], cpu: None };
        assert_eq!(evaluate(&[expectation], Transport::Mptcp, &empty), []);
    }
}
