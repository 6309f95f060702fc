//! Metrics of one run, computed from its records.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use towpath_result::expect;
use towpath_result::expect::{Metric, MetricInputs};
use towpath_result::{CpuTime, FlowSummary, Interval, Record, SubflowEnd, Summary};
use towpath_scenario::{DataDirection, Path, Scenario};

use crate::handover;

/// Returns the metrics of a run by name, in base units.
///
/// The map contains every metric of [`expect`] that has a value. Further metrics are:
///
/// - of the data delivered in `window` (by default the time of all flows) `goodput`, `throughput`,
///   `path.NAME.goodput`, `path.NAME.throughput`, `flow.N.goodput`, `zero_seconds` and `silent`;
/// - `host.NAME.cpu`;
/// - of an emulated run `unreliable`, `emulator.late`, `emulator.lost`, `load` and `other_cpu_share`;
/// - of messages and of handovers the metrics of `handover_metrics`.
///
/// An interval that is only partly in the window counts for that part.
pub fn run_metrics(
    records: &[Record],
    scenario: &Scenario,
    window: Option<[Duration; 2]>,
) -> BTreeMap<String, f64> {
    let mut metrics = BTreeMap::new();
    let summary = records.iter().rev().find_map(|record| {
        if let Record::Summary(summary) = record { Some(&**summary) } else { None }
    });
    let Some(summary) = summary else { return metrics };
    let names = expect::names(scenario.paths.iter().map(|path| path.name.as_str()));
    for name in names {
        let value =
            Metric::parse(&name).and_then(|metric| metric.value(&MetricInputs::from(summary)));
        metrics.extend(value.map(|value| (name, value)));
    }
    let run_period = run_window(summary, scenario);
    if let Some(window) = window.map(MeasurementWindow::from).or(run_period) {
        add_delivered(records, &window, &mut metrics);
        add_link_bytes(records, (summary, scenario), &window, &mut metrics);
    }
    if window.is_none() {
        // The summary's times are exact, also where a transfer ended between two samples.
        let goodput = |flow: &FlowSummary| flow.goodput_bps;
        metrics.insert("goodput".to_owned(), summary.flows.iter().map(goodput).sum());
        for number in summary.flows.iter().map(|flow| flow.flow).collect::<BTreeSet<_>>() {
            let flows = summary.flows.iter().filter(|flow| flow.flow == number);
            metrics.insert(format!("flow.{number}.goodput"), flows.map(goodput).sum());
        }
    }
    handover::handover_metrics(records, &mut metrics);
    add_reliability(records, &mut metrics);
    if let Some((cpu, run_period)) = summary.cpu.zip(run_period) {
        add_cpu_load(cpu, scenario, run_period.seconds(), &mut metrics);
    }
    if let Some(run_period) = run_period {
        add_modelled_cpu_load(records, run_period.seconds(), &mut metrics);
    }
    metrics
}

/// Adds metrics of an emulated run's reliability: other load of the machine, and packet lateness.
fn add_reliability(records: &[Record], metrics: &mut BTreeMap<String, f64>) {
    let timing = records
        .iter()
        .rev()
        .find_map(|record| if let Record::Timing(timing) = record { Some(timing) } else { None });
    let Some(timing) = timing else { return };
    let named_values = [
        ("unreliable", f64::from(u8::from(timing.unreliable))),
        ("emulator.late", timing.lateness_p99_ns as f64 / 1e9),
        ("emulator.lost", timing.lost_packets as f64),
        ("load", timing.load),
        ("other_cpu_share", timing.other_cpu_share),
    ];
    metrics.extend(named_values.map(|(name, value)| (name.to_owned(), value)));
}

/// Maximum length of a window that is split into seconds.
const MAX_SECONDS: f64 = 1e6;

/// Part of a run, in nanoseconds since the start of its traffic.
#[derive(Debug, Clone, Copy)]
struct MeasurementWindow {
    /// Start of the window.
    from: f64,
    /// End of the window.
    to: f64,
}

impl From<[Duration; 2]> for MeasurementWindow {
    fn from([from, to]: [Duration; 2]) -> Self {
        Self { from: from.as_nanos() as f64, to: to.as_nanos() as f64 }
    }
}

impl MeasurementWindow {
    fn seconds(self) -> f64 {
        (self.to - self.from) / 1e9
    }

    /// Returns the part, 0 to 1, of the period ending at `end_ns` that lies in the window.
    fn overlap(self, end_ns: u64, span_ns: u64) -> f64 {
        let (end, span) = (end_ns as f64, span_ns as f64);
        if span <= 0.0 {
            return f64::from(u8::from(end > self.from && end <= self.to));
        }
        let overlap_ns = end.min(self.to) - (end - span).max(self.from);
        (overlap_ns / span).clamp(0.0, 1.0)
    }
}

/// Returns the time from the first flow's start to the last one's end.
fn run_window(summary: &Summary, scenario: &Scenario) -> Option<MeasurementWindow> {
    let spans = summary.flows.iter().map(|flow| {
        let spec = scenario.flows.get(flow.flow as usize);
        let start = spec.map_or(0.0, |spec| spec.start.as_nanos() as f64);
        (start, start + flow.duration_ns as f64)
    });
    let (from, to) = spans.reduce(|(from, to), (a, b)| (from.min(a), to.max(b)))?;
    (to > from).then_some(MeasurementWindow { from, to })
}

/// Adds the data that receivers read, in total and by path.
fn add_delivered(
    records: &[Record],
    window: &MeasurementWindow,
    metrics: &mut BTreeMap<String, f64>,
) {
    let mut flows: BTreeMap<u32, f64> = BTreeMap::new();
    let mut paths: BTreeMap<&str, f64> = BTreeMap::new();
    let mut seconds = vec![0_u64; window.seconds().min(MAX_SECONDS) as usize];
    for record in records {
        if let Record::Interval(interval) = record {
            let share = window.overlap(interval.t_ns, interval.span_ns);
            *flows.entry(interval.flow).or_default() += interval.bytes as f64 * share;
            add_to_seconds(interval, window, &mut seconds);
        } else if let Record::Subflow(subflow) = record
            && subflow.side == SubflowEnd::Receiver
        {
            let share = window.overlap(subflow.t_ns, subflow.span_ns);
            *paths.entry(&subflow.path).or_default() += subflow.bytes as f64 * share;
        }
    }
    if flows.is_empty() {
        return;
    }
    let rate = |bytes: f64| bytes * 8.0 / window.seconds();
    let total: f64 = flows.values().sum();
    metrics.insert("goodput".to_owned(), rate(total));
    metrics.insert("silent".to_owned(), f64::from(u8::from(total <= 0.0)));
    let zero_seconds = seconds.iter().filter(|bytes| **bytes == 0).count();
    metrics.insert("zero_seconds".to_owned(), zero_seconds as f64);
    metrics
        .extend(flows.iter().map(|(flow, bytes)| (format!("flow.{flow}.goodput"), rate(*bytes))));
    metrics
        .extend(paths.iter().map(|(path, bytes)| (format!("path.{path}.goodput"), rate(*bytes))));
}

/// Adds the bytes to the seconds of the window in which they may have arrived.
fn add_to_seconds(interval: &Interval, window: &MeasurementWindow, seconds: &mut [u64]) {
    let end = interval.t_ns as f64;
    let begin = end - interval.span_ns as f64;
    for (number, bytes) in seconds.iter_mut().enumerate() {
        let second_start = window.from + number as f64 * 1e9;
        if end > second_start && begin < second_start + 1e9 {
            *bytes += interval.bytes;
        }
    }
}

/// Adds the bytes that links carried towards receivers, including headers and retransmissions.
fn add_link_bytes(
    records: &[Record],
    (summary, scenario): (&Summary, &Scenario),
    window: &MeasurementWindow,
    metrics: &mut BTreeMap<String, f64>,
) {
    // Data goes up a path when its sender is the path's first end.
    let is_towards_receiver = |path: &Path, direction| {
        summary.flows.iter().any(|flow| {
            let spec = scenario.flows.get(flow.flow as usize);
            spec.is_some_and(|spec| {
                let ends = [spec.from, spec.to];
                let [sender, _] = match flow.direction {
                    DataDirection::Up | DataDirection::Both => ends,
                    DataDirection::Down => [spec.to, spec.from],
                };
                let is_up = path.between.first() == Some(&sender);
                ends.iter().all(|end| path.between.contains(end))
                    && is_up == (direction == DataDirection::Up)
            })
        })
    };
    let mut total = None;
    for path in &scenario.paths {
        let mut samples_by_direction: BTreeMap<DataDirection, Vec<(u64, u64)>> = BTreeMap::new();
        for record in records {
            if let Record::Link(link) = record
                && link.path == path.name
                && is_towards_receiver(path, link.direction)
            {
                let samples = samples_by_direction.entry(link.direction).or_default();
                samples.push((link.t_ns, link.delivered_bytes));
            }
        }
        if samples_by_direction.is_empty() {
            continue;
        }
        let bytes: f64 =
            samples_by_direction.values().map(|samples| growth_within(samples, window)).sum();
        let rate = bytes * 8.0 / window.seconds();
        metrics.insert(format!("path.{}.throughput", path.name), rate);
        *total.get_or_insert(0.0) += rate;
    }
    metrics.extend(total.map(|total| ("throughput".to_owned(), total)));
}

/// Returns the growth of a counter within the window.
fn growth_within(samples: &[(u64, u64)], window: &MeasurementWindow) -> f64 {
    let mut previous = (0, 0);
    let mut sum = 0.0;
    for &(t_ns, total) in samples {
        let (previous_t_ns, previous_total) = previous;
        let share = window.overlap(t_ns, t_ns.saturating_sub(previous_t_ns));
        sum += total.saturating_sub(previous_total) as f64 * share;
        previous = (t_ns, total);
    }
    sum
}

/// Adds the CPU load of each simulated host, 0 to 1, if the scenario models packet processing
/// time.
fn add_modelled_cpu_load(records: &[Record], seconds: f64, metrics: &mut BTreeMap<String, f64>) {
    for record in records {
        if let Record::Counter(counter) = record
            && counter.name == "Towpath.BusyMicroseconds"
        {
            let busy_s = counter.after.saturating_sub(counter.before) as f64 / 1e6;
            metrics.insert(format!("host.{}.cpu", counter.host), busy_s / seconds);
        }
    }
}

/// Adds the two ends' load of one processor, if all flows have the same two ends.
fn add_cpu_load(
    cpu: CpuTime,
    scenario: &Scenario,
    seconds: f64,
    metrics: &mut BTreeMap<String, f64>,
) {
    let ends: BTreeSet<_> = scenario.flows.iter().map(|flow| (flow.from, flow.to)).collect();
    let Some(&(from, to)) = ends.first().filter(|_| ends.len() == 1) else { return };
    for (host, nanos) in [(from, cpu.client_cpu_ns), (to, cpu.server_cpu_ns)] {
        if let Some((host, nanos)) = scenario.hosts.get(host).zip(nanos) {
            metrics.insert(format!("host.{}.cpu", host.name), nanos as f64 / 1e9 / seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use towpath_result::{Link, MultipathUse, Stall, Subflow};
    use towpath_scenario::no_files;

    use super::*;

    const MS: u64 = 1_000_000;

    fn scenario() -> Scenario {
        let text = "name = \"t\"\n[hosts.a]\n[hosts.b]\n\
            [paths.p]\nbetween = [\"b\", \"a\"]\nrate = \"1 Mbit/s\"\ndelay = \"1 ms\"\n\
            [[flows]]\nfrom = \"a\"\nto = \"b\"\npattern = \"bulk\"\nduration = \"4 s\"\n";
        Scenario::parse("t.toml", text, &no_files).unwrap()
    }

    fn summary() -> Record {
        let flow = FlowSummary {
            flow: 0,
            direction: DataDirection::Up,
            bytes: 4_000,
            duration_ns: 4_000 * MS,
            goodput_bps: 8_000.0,
            completed: true,
            failure: None,
            connect_ns: None,
            stall: Stall::default(),
            recoveries: vec![],
            congestion_control: vec![],
            retransmissions: 0,
            stack: None,
            messages: None,
            datagrams: None,
        };
        let cpu = CpuTime {
            client_cpu_ns: Some(1_000 * MS),
            server_cpu_ns: None,
            accounting: towpath_result::CpuAccounting::Process,
        };
        Record::Summary(Box::new(Summary {
            ok: true,
            verdict: String::new(),
            flows: vec![flow],
            subflows: vec![],
            paths: vec![],
            multipath: MultipathUse::default(),
            cpu: Some(cpu),
            account: None,
            warnings: vec![],
            expectations: vec![],
        }))
    }

    /// Makes an interval every half second; `bytes` are those read in each.
    fn records(bytes: [u64; 8]) -> Vec<Record> {
        let mut records = Vec::new();
        for (number, bytes) in bytes.into_iter().enumerate() {
            let t_ns = (number as u64 + 1) * 500 * MS;
            let (flow, stream, direction) = (0, 0, DataDirection::Up);
            let span_ns = 500 * MS;
            let connection = None;
            records.push(Record::Interval(Interval {
                t_ns,
                span_ns,
                flow,
                stream,
                direction,
                bytes,
                connection,
            }));
            let text = format!(
                "{{\"t_ns\":{t_ns},\"span_ns\":{span_ns},\"flow\":0,\"stream\":0,\
                 \"direction\":\"up\",\"side\":\"receiver\",\"subflow\":0,\"path\":\"p\",\
                 \"state\":\"established\",\"backup\":false,\"bytes\":{},\"bytes_sent\":0,\
                 \"bytes_acked\":0,\"bytes_received\":0,\"srtt_us\":0,\"rttvar_us\":0,\"rto_us\":0,\
                 \"backoff\":0,\"cwnd_packets\":0,\"ssthresh_packets\":0,\"in_flight_packets\":0,\
                 \"retransmissions\":0,\"mss_bytes\":0}}",
                bytes * 2
            );
            let subflow: Subflow = serde_json::from_str(&text).unwrap();
            records.push(Record::Subflow(Box::new(subflow)));
            // The path begins at the receiver: data goes down, acknowledgements go up.
            for (direction, bytes_per_period) in
                [(DataDirection::Down, 1_000), (DataDirection::Up, 7)]
            {
                records.push(Record::Link(Link {
                    t_ns,
                    path: "p".into(),
                    direction,
                    offered_packets: 0,
                    delivered_bytes: (number as u64 + 1) * bytes_per_period,
                    delivered_packets: 0,
                    dropped_queue_packets: 0,
                    dropped_loss_packets: 0,
                    dropped_down_packets: 0,
                    backlog_bytes: 0,
                }));
            }
        }
        records.push(summary());
        records
    }

    #[test]
    fn an_emulated_run_reports_its_reliability() {
        let timing = towpath_result::EmulatorTiming {
            lateness_p99_ns: 3 * MS,
            unreliable: true,
            load: 7.5,
            ..Default::default()
        };
        let metrics = run_metrics(&[Record::Timing(timing), summary()], &scenario(), None);
        assert_eq!(
            (metrics["unreliable"], metrics["emulator.late"], metrics["load"]),
            (1.0, 0.003, 7.5)
        );
        let simulated = run_metrics(&[summary()], &scenario(), None);
        assert!(!simulated.contains_key("unreliable") && !simulated.contains_key("load"));
    }

    #[test]
    fn only_data_in_the_window_counts_with_partial_periods_prorated() {
        let records = records([100, 200, 300, 0, 0, 0, 50, 4_000]);
        let window = [Duration::from_millis(750), Duration::from_millis(3_250)];
        let metrics = run_metrics(&records, &scenario(), Some(window));
        // Half of 200, 300, half of 50, in 2.5 s.
        let rate = |bytes: f64| bytes * 8.0 / 2.5;
        assert_eq!(metrics.get("goodput"), Some(&(rate(425.0))));
        assert_eq!(metrics.get("flow.0.goodput"), Some(&(rate(425.0))));
        assert_eq!(metrics.get("path.p.goodput"), Some(&(rate(850.0))));
        // Five whole periods of 1,000 bytes in the direction of the data.
        assert_eq!(metrics.get("path.p.throughput"), Some(&(rate(5_000.0))));
        assert_eq!(metrics.get("throughput"), Some(&(rate(5_000.0))));
        // From 0.75 s: 0.75–1.75 has some, 1.75–2.75 none; the last half second is incomplete.
        assert_eq!(metrics.get("zero_seconds"), Some(&1.0));
        assert_eq!(metrics.get("silent"), Some(&0.0));
        assert_eq!(metrics.get("host.a.cpu"), Some(&0.25));
        assert!(!metrics.contains_key("host.b.cpu"));
        assert_eq!(metrics.get("completed"), Some(&1.0));
    }

    #[test]
    fn a_window_without_data_is_silent() {
        let records = records([100, 0, 0, 0, 0, 0, 50, 0]);
        let window = [Duration::from_secs(1), Duration::from_secs(3)];
        let metrics = run_metrics(&records, &scenario(), Some(window));
        let values = ["goodput", "silent", "zero_seconds"].map(|name| metrics.get(name));
        assert_eq!(values, [Some(&0.0), Some(&1.0), Some(&2.0)]);
    }

    #[test]
    fn without_a_window_goodput_is_the_summarys() {
        let metrics = run_metrics(&records([1; 8]), &scenario(), None);
        assert_eq!(metrics.get("goodput"), Some(&8_000.0));
        assert_eq!(metrics.get("flow.0.goodput"), Some(&8_000.0));
        assert_eq!(metrics.get("throughput"), Some(&(8.0 * 1_000.0 * 8.0 / 4.0)));
    }

    #[test]
    fn a_run_without_a_summary_has_no_metrics() {
        assert_eq!(run_metrics(&[], &scenario(), None), BTreeMap::new());
    }
}
