//! Capacity account between two real hosts.
//!
//! Each sender reports for every period the bytes it sent and its limits ([`SenderActivity`]). Only
//! the receiver knows the bytes that were new to the application. The link capacities are unknown
//! and therefore [estimated](towpath_result::accounting::estimate).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use towpath_result::accounting::{
    BufferSizes, CarriedBytes, EstimateInputs, IdleCause, ObservedPeriod, Period, WeightedCauses,
    combine_causes, estimated_account, total_weight,
};
use towpath_result::{Account, AccountSummary, Part, Record, SenderActivity, Subflow};
use towpath_scenario::{DataDirection, Scenario, Transport};

use super::merge::MergedRun;

/// Description of the capacity's source.
const CAPACITY_SOURCE: &str = "the most that arrived within 20 ms";
/// Scale of integer weights.
const WEIGHT_SCALE: f64 = 1e9;

/// Upper bound on bytes, nanoseconds and bit/s of a period, far above real values.
const MAX_VALUE: u64 = 1 << 40;
/// Upper bound on times of a run.
const MAX_TIME_NS: u64 = 1 << 47;

/// One end of a subflow in one period.
type SenderSample<'a> = (&'a Subflow, SenderActivity);

/// Returns the account of a merged run; empty if no sender reported its limits.
pub fn account(
    scenario: &Scenario,
    transport: Transport,
    merged: &MergedRun,
) -> (Vec<Account>, Option<AccountSummary>) {
    let samples: Vec<SenderSample<'_>> = merged.records.iter().filter_map(sender_sample).collect();
    let mut path_names: Vec<String> = scenario.paths.iter().map(|path| path.name.clone()).collect();
    for (subflow, _) in &samples {
        if !path_names.contains(&subflow.path) {
            path_names.push(subflow.path.clone());
        }
    }
    let sample_ns = u64::try_from(scenario.run.sample.as_nanos()).unwrap_or(u64::MAX);
    let run_samples =
        RunSamples { transport, path_names: &path_names, samples: &samples, merged, sample_ns };
    let mut links: BTreeMap<(usize, DataDirection), Vec<ObservedPeriod>> = BTreeMap::new();
    for direction in [DataDirection::Up, DataDirection::Down] {
        for path in 0..path_names.len() {
            let periods = run_samples.periods(path, direction);
            if !periods.is_empty() {
                links.insert((path, direction), periods);
            }
        }
    }
    let largest = |field: &dyn Fn(&SenderSample<'_>) -> u64| {
        samples.iter().map(field).max().filter(|value| *value > 0)
    };
    let sizes = BufferSizes {
        receive_window_bytes: largest(&|(_, activity)| activity.peer_window_max_bytes),
        send_buffer_bytes: largest(&|(_, activity)| activity.send_buffer_max_bytes),
        sufficient_bytes: None,
        ..BufferSizes::default()
    };
    let longest_srtt_us = largest(&|(subflow, _)| u64::from(subflow.srtt_us)).unwrap_or(0);
    let longest_rtt = Duration::from_micros(longest_srtt_us);
    estimated_account(
        &EstimateInputs {
            paths: &path_names,
            transport,
            sizes,
            longest_rtt,
            source: CAPACITY_SOURCE,
        },
        &links,
    )
}

/// Extracts a record's sample. Values from the other host are untrusted and therefore clamped.
fn sender_sample(record: &Record) -> Option<SenderSample<'_>> {
    let Record::Subflow(subflow) = record else { return None };
    let mut activity = SenderActivity::clone(subflow.sender_activity.as_deref()?);
    if subflow.t_ns > MAX_TIME_NS {
        return None;
    }
    for number in [
        &mut activity.delivered_bytes,
        &mut activity.header_bytes,
        &mut activity.spurious_bytes,
        &mut activity.peak_bps,
        &mut activity.queued_ns,
    ] {
        *number = (*number).min(MAX_VALUE);
    }
    activity.limits_ns.values_mut().for_each(|span| *span = (*span).min(MAX_VALUE));
    activity.blocked_by_ns.iter_mut().for_each(|(_, span)| *span = (*span).min(MAX_VALUE));
    Some((subflow, activity))
}

/// All samples of a run.
struct RunSamples<'a> {
    transport: Transport,
    path_names: &'a [String],
    samples: &'a [SenderSample<'a>],
    merged: &'a MergedRun,
    /// Sampling period in nanoseconds.
    sample_ns: u64,
}

impl RunSamples<'_> {
    /// Returns the periods of a path; empty if no subflow ever used it.
    fn periods(&self, path: usize, direction: DataDirection) -> Vec<ObservedPeriod> {
        let of_direction =
            || self.samples.iter().filter(move |(subflow, _)| subflow.direction == direction);
        let on_path = |subflow: &Subflow| self.path_names.get(path) == Some(&subflow.path);
        if !of_direction().any(|(subflow, _)| on_path(subflow)) {
            return Vec::new();
        }
        let mut by_time: BTreeMap<u64, Vec<&SenderSample<'_>>> = BTreeMap::new();
        for sample in of_direction() {
            by_time.entry(sample.0.t_ns).or_default().push(sample);
        }
        let overhead = self.overhead_shares(direction);
        let mut previous_end = by_time.values().next().and_then(|samples| {
            samples.iter().map(|(subflow, _)| subflow.t_ns.saturating_sub(subflow.span_ns)).min()
        });
        let mut periods = Vec::new();
        for (t_ns, samples) in by_time {
            let span_ns = t_ns.saturating_sub(previous_end.replace(t_ns).unwrap_or(0));
            let (path_samples, other_samples): (Vec<&SenderSample<'_>>, _) =
                samples.into_iter().partition(|(subflow, _)| on_path(subflow));
            let mut carried = CarriedBytes::default();
            for (subflow, activity) in &path_samples {
                add_sample(
                    &mut carried,
                    activity,
                    overhead.get(&subflow.flow).copied().unwrap_or_default(),
                );
            }
            let peak_bps =
                path_samples.iter().map(|(_, activity)| activity.peak_bps).max().unwrap_or(0);
            let limits = weights(&self.path_causes(&path_samples, &other_samples));
            let period = Period { t_ns, span_ns, carried, partial_packet_bytes: 0, limits };
            // The queue belongs to the path, so every subflow on it sees it.
            let queued_ns =
                path_samples.iter().map(|(_, activity)| activity.queued_ns).max().unwrap_or(0);
            // The rate of a short rest at the end depends on single packets.
            let is_short = span_ns.saturating_mul(2) < self.sample_ns;
            let is_saturated =
                !is_short && queued_ns.saturating_mul(4) >= span_ns.saturating_mul(3);
            periods.push(ObservedPeriod { period, peak_bps, is_saturated });
        }
        scale_peaks(&mut periods);
        periods
    }

    /// Returns the causes of idle capacity on a path, from its own subflows and the others.
    fn path_causes(
        &self,
        path_samples: &[&SenderSample<'_>],
        other_samples: &[&SenderSample<'_>],
    ) -> WeightedCauses {
        let mut causes = WeightedCauses::new();
        for sample in path_samples {
            causes.extend(self.subflow_causes(sample));
        }
        if causes.is_empty() {
            let idle_share = other_samples.iter().map(|sample| {
                let is_sender_limited =
                    |(cause, _): &&(IdleCause, f64)| is_sender_limit(cause.part);
                self.subflow_causes(sample)
                    .iter()
                    .filter(is_sender_limited)
                    .map(|(_, share)| share)
                    .sum()
            });
            let idle_share = idle_share.fold(0.0, f64::max);
            let is_single_path = matches!(self.transport, Transport::Tcp | Transport::Quic);
            let absent_part = if is_single_path { Part::SinglePath } else { Part::NoSubflow };
            causes = vec![
                (Part::Application.into(), idle_share),
                (absent_part.into(), 1.0 - idle_share),
            ];
        }
        combine_causes(&[&causes], false)
    }

    /// Returns the limits of one subflow, as shares of the period.
    fn subflow_causes(&self, (subflow, activity): &SenderSample<'_>) -> WeightedCauses {
        let sum: u64 = activity.limits_ns.values().fold(0, |sum, span| sum.saturating_add(*span));
        let share = |span: u64| span as f64 / sum.max(1) as f64;
        let mut causes = WeightedCauses::new();
        for (part, span) in &activity.limits_ns {
            if *part != Part::HeadOfLineBlocking || activity.blocked_by_ns.is_empty() {
                causes.push((IdleCause::from(*part), share(*span)));
                continue;
            }
            let nanos = |(_, span): &(u32, u64)| *span as f64;
            let blocked_ns: f64 = activity.blocked_by_ns.iter().map(nanos).sum();
            for (number, part_ns) in &activity.blocked_by_ns {
                let waits_for = self.path_of(subflow, *number);
                let share = share(*span) * *part_ns as f64 / blocked_ns.max(1.0);
                causes.push((IdleCause { part: *part, waits_for }, share));
            }
        }
        causes
    }

    fn path_of(&self, blocked: &Subflow, number: u32) -> Option<usize> {
        let is_blocking = |candidate: &Subflow| {
            (candidate.flow, candidate.stream, candidate.subflow)
                == (blocked.flow, blocked.stream, number)
        };
        let (blocking, _) = self.samples.iter().find(|(candidate, _)| is_blocking(candidate))?;
        self.path_names.iter().position(|name| *name == blocking.path)
    }

    /// Returns for each flow the shares of received bytes that were not new to the application.
    fn overhead_shares(&self, direction: DataDirection) -> BTreeMap<u32, OverheadShares> {
        let flows: BTreeSet<u32> = self.samples.iter().map(|(subflow, _)| subflow.flow).collect();
        let shares_of = |flow: u32| {
            let inputs = self.merged.inputs.iter();
            let inputs = inputs.filter(|item| (item.flow, item.direction) == (flow, direction));
            let read_bytes =
                inputs.map(|item| item.delivery.total_bytes()).fold(0, u64::saturating_add);
            let subflows = self.merged.subflows.iter();
            let flow_subflows =
                subflows.filter(|item| (item.flow, item.direction) == (flow, direction));
            let received_bytes = flow_subflows.map(|item| item.bytes).fold(0, u64::saturating_add);
            let acked_bytes: u64 = { self.samples.iter() }
                .filter(|(subflow, _)| (subflow.flow, subflow.direction) == (flow, direction))
                .map(|(_, activity)| activity.delivered_bytes)
                .sum();
            let share =
                |bytes: u64, total: u64| (bytes as f64 / total.max(1) as f64).clamp(0.0, 1.0);
            match self.transport {
                _ if read_bytes == 0 => OverheadShares::default(),
                // The rest of the UDP payload is application data.
                Transport::Quic | Transport::Mpquic => OverheadShares {
                    framing: 1.0 - share(read_bytes, acked_bytes),
                    reinjected: 0.0,
                },
                Transport::Tcp => OverheadShares::default(),
                Transport::Mptcp => {
                    let reinjected_bytes = self.merged.reinjected_bytes;
                    let duplicate_bytes =
                        received_bytes.saturating_sub(read_bytes).min(reinjected_bytes);
                    OverheadShares {
                        framing: 0.0,
                        reinjected: share(duplicate_bytes, received_bytes),
                    }
                }
            }
        };
        flows.into_iter().map(|flow| (flow, shares_of(flow))).collect()
    }
}

/// Shares of a subflow's bytes that were not new to the application.
#[derive(Debug, Clone, Copy, Default)]
struct OverheadShares {
    /// Share of the protocol's own bytes.
    framing: f64,
    /// Share of bytes already delivered by another subflow.
    reinjected: f64,
}

fn add_sample(carried: &mut CarriedBytes, activity: &SenderActivity, overhead: OverheadShares) {
    let bytes_of = |share: f64| (activity.delivered_bytes as f64 * share) as u64;
    let (framing, reinjected) = (bytes_of(overhead.framing), bytes_of(overhead.reinjected));
    carried.delivered += activity.delivered_bytes.saturating_sub(framing + reinjected);
    carried.headers += activity.header_bytes.saturating_add(framing);
    carried.reinjected += reinjected;
    carried.spurious += activity.spurious_bytes;
}

/// Scales peaks from payload to whole packets, which capacity counts.
fn scale_peaks(periods: &mut [ObservedPeriod]) {
    let sum_of = |field: fn(&CarriedBytes) -> u64| -> u64 {
        periods.iter().map(|observed| field(&observed.period.carried)).sum()
    };
    let (total_bytes, header_bytes) =
        (sum_of(CarriedBytes::sum), sum_of(|carried| carried.headers));
    let factor = total_bytes as f64 / total_bytes.saturating_sub(header_bytes).max(1) as f64;
    for observed in periods.iter_mut() {
        observed.peak_bps = (observed.peak_bps as f64 * factor) as u64;
    }
}

fn is_sender_limit(part: Part) -> bool {
    matches!(part, Part::Application | Part::SenderCpu)
}

fn weights(causes: &WeightedCauses) -> BTreeMap<IdleCause, u64> {
    let total = total_weight(causes);
    let mut weights = BTreeMap::new();
    for (cause, weight) in causes.iter().filter(|_| total > 0.0) {
        *weights.entry(*cause).or_default() += (weight / total * WEIGHT_SCALE) as u64;
    }
    weights
}

#[cfg(test)]
mod tests {
    use towpath_result::SubflowEnd;
    use towpath_scenario::no_files;

    use super::*;
    use crate::protocol::{HostReport, merge};

    fn scenario() -> Scenario {
        let text = "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.wifi]\n\
                    between = [\"client\", \"server\"]\n[paths.lte]\nbetween = [\"client\", \
                    \"server\"]\n[[flows]]\nfrom = \"client\"\nto = \"server\"\npattern = \"iperf\"\n";
        Scenario::parse("t", text, &no_files).unwrap()
    }

    fn record(number: u64, subflow: u32, path: &str, activity: &SenderActivity) -> Record {
        let subflow: Subflow = serde_json::from_value(serde_json::json!({
            "t_ns": number * 100_000_000, "span_ns": 100_000_000, "flow": 0, "stream": 0,
            "direction": "up", "side": SubflowEnd::Sender, "subflow": subflow, "path": path,
            "state": "established", "backup": false, "bytes": 0, "bytes_sent": 0, "bytes_acked": 0,
            "bytes_received": 0, "srtt_us": 50_000, "rttvar_us": 0, "rto_us": 0, "backoff": 0,
            "cwnd_packets": 0, "ssthresh_packets": 0, "in_flight_packets": 0, "retransmissions": 0,
            "mss_bytes": 1_000, "sender_activity": activity
        }))
        .unwrap();
        Record::Subflow(Box::new(subflow))
    }

    fn sender_activity(kilobytes: u64, limits: &[(Part, u64)]) -> SenderActivity {
        SenderActivity {
            limits_ns: limits.iter().map(|(part, ms)| (*part, ms * 1_000_000)).collect(),
            delivered_bytes: kilobytes * 1_000,
            header_bytes: kilobytes * 20,
            peak_bps: 20_000_000,
            ..SenderActivity::default()
        }
    }

    fn account_of(records: Vec<Record>) -> (Vec<Account>, Option<AccountSummary>) {
        let empty = HostReport::default();
        let mut merged = merge(&scenario(), &empty, Ok(&empty));
        merged.records = records;
        account(&scenario(), Transport::Mptcp, &merged)
    }

    #[test]
    fn a_blocking_path_is_named_by_its_subflow() {
        let blocked = SenderActivity {
            blocked_by_ns: vec![(1, 60_000_000)],
            peer_window_max_bytes: 64_000,
            ..sender_activity(
                100,
                &[(Part::HeadOfLineBlocking, 60), (Part::CongestionAvoidance, 40)],
            )
        };
        let records = (1..=10).flat_map(|number| {
            let slow_path = sender_activity(20, &[(Part::CongestionAvoidance, 100)]);
            [record(number, 0, "wifi", &blocked), record(number, 1, "lte", &slow_path)]
        });
        let (accounts, summary) = account_of(records.collect());
        let summary = summary.unwrap();
        let wifi = &summary.links[0];
        assert_eq!((wifi.path.as_str(), wifi.parts.of(Part::Headers)), ("wifi", 20_000));
        assert!(wifi.parts.blocked_by.contains_key("lte"), "{wifi:?}");
        assert_eq!(accounts.len(), 20);
        assert!(accounts.iter().all(|account| account.parts.sum() == account.parts.capacity_bytes));
        let text = "receive window of 64.0 kB was full of data waiting for lte";
        assert!(summary.sentence.contains(text), "{}", summary.sentence);
    }

    #[test]
    fn a_missing_subflow_is_counted_only_if_it_existed() {
        let busy = || sender_activity(100, &[(Part::CongestionAvoidance, 100)]);
        let mut records: Vec<_> =
            (1..=10).map(|number| record(number, 0, "wifi", &busy())).collect();
        records.extend((6..=10).map(|number| record(number, 1, "lte", &busy())));
        let (_, summary) = account_of(records);
        let summary = summary.unwrap();
        let lte = &summary.links[1];
        assert_eq!(lte.limits_ns[&Part::NoSubflow], 500_000_000, "{lte:?}");
    }

    #[test]
    fn the_parts_add_up_for_any_report_of_the_peer() {
        let extreme = SenderActivity {
            limits_ns: [(Part::Unknown, u64::MAX), (Part::HeadOfLineBlocking, u64::MAX)].into(),
            blocked_by_ns: vec![(7, u64::MAX), (0, u64::MAX)],
            delivered_bytes: u64::MAX,
            header_bytes: u64::MAX,
            spurious_bytes: u64::MAX,
            peak_bps: u64::MAX,
            queued_ns: u64::MAX,
            ..SenderActivity::default()
        };
        let records = [1, 2, 2, 3, 1_000_000, u64::MAX / 100_000_000];
        let records = records.map(|number| record(number, 0, "wifi", &extreme));
        let (accounts, summary) = account_of(records.to_vec());
        assert!(accounts.iter().all(|account| account.parts.sum() == account.parts.capacity_bytes));
        assert!(summary.is_some());
    }
}
