//! Capacity account between two real hosts.
//!
//! Each sender reports for every period the bytes it sent and its limits ([`SenderActivity`]). Only
//! the receiver knows the bytes that were new to the application. The link capacities are unknown
//! and therefore [estimated](crate::account::estimate).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::merge::MergedRun;
use crate::account::{
    BufferSizes, CarriedBytes, EstimateInputs, IdleCause, ObservedPeriod, Period, WeightedCauses,
    combine_causes, estimated_account, total_weight,
};
use crate::result::{Account, AccountSummary, Part, Record, SenderActivity, Subflow};
use crate::scenario::{DataDirection, Scenario, Transport};

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
    let said: Vec<SenderSample<'_>> = merged.records.iter().filter_map(sender_sample).collect();
    let mut names: Vec<String> = scenario.paths.iter().map(|path| path.name.clone()).collect();
    for (subflow, _) in &said {
        if !names.contains(&subflow.path) {
            names.push(subflow.path.clone());
        }
    }
    let view = RunSamples { transport, names: &names, samples: &said, merged };
    let mut links: BTreeMap<(usize, DataDirection), Vec<ObservedPeriod>> = BTreeMap::new();
    for direction in [DataDirection::Up, DataDirection::Down] {
        for path in 0..names.len() {
            let periods = view.periods(path, direction);
            if !periods.is_empty() {
                links.insert((path, direction), periods);
            }
        }
    }
    let most =
        |of: &dyn Fn(&SenderSample<'_>) -> u64| said.iter().map(of).max().filter(|most| *most > 0);
    let sizes = BufferSizes {
        receive_window_bytes: most(&|(_, activity)| activity.peer_window_max_bytes),
        send_buffer_bytes: most(&|(_, held)| held.send_buffer_max_bytes),
        sufficient_bytes: None,
        ..BufferSizes::default()
    };
    let longest = most(&|(subflow, _)| u64::from(subflow.srtt_us)).unwrap_or(0);
    let longest_rtt = Duration::from_micros(longest);
    estimated_account(
        &EstimateInputs { paths: &names, transport, sizes, longest_rtt, source: CAPACITY_SOURCE },
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
    names: &'a [String],
    samples: &'a [SenderSample<'a>],
    merged: &'a MergedRun,
}

impl RunSamples<'_> {
    /// Returns the periods of a path; empty if no subflow ever used it.
    fn periods(&self, path: usize, direction: DataDirection) -> Vec<ObservedPeriod> {
        let of_direction =
            || self.samples.iter().filter(move |(one, _)| one.direction == direction);
        let on_path = |one: &Subflow| self.names.get(path) == Some(&one.path);
        if !of_direction().any(|(one, _)| on_path(one)) {
            return Vec::new();
        }
        let mut by_time: BTreeMap<u64, Vec<&SenderSample<'_>>> = BTreeMap::new();
        for one in of_direction() {
            by_time.entry(one.0.t_ns).or_default().push(one);
        }
        let new = self.overhead_shares(direction);
        let mut before = by_time
            .values()
            .next()
            .and_then(|all| all.iter().map(|(one, _)| one.t_ns.saturating_sub(one.span_ns)).min());
        let mut periods = Vec::new();
        for (t_ns, all) in by_time {
            let span_ns = t_ns.saturating_sub(before.replace(t_ns).unwrap_or(0));
            let (own, other): (Vec<&SenderSample<'_>>, _) =
                all.into_iter().partition(|(one, _)| on_path(one));
            let mut carried = CarriedBytes::default();
            for (one, held) in &own {
                add_sample(&mut carried, held, new.get(&one.flow).copied().unwrap_or_default());
            }
            let peak_bps = own.iter().map(|(_, held)| held.peak_bps).max().unwrap_or(0);
            let limits = weights(&self.path_causes(&own, &other));
            let period = Period { t_ns, span_ns, carried, partial_packet_bytes: 0, limits };
            // The queue belongs to the path, so every subflow on it sees it.
            let queued = own.iter().map(|(_, held)| held.queued_ns).max().unwrap_or(0);
            let is_full = queued.saturating_mul(4) >= span_ns.saturating_mul(3);
            periods.push(ObservedPeriod { period, peak_bps, is_saturated: is_full });
        }
        scale_peaks(&mut periods);
        periods
    }

    /// Returns the causes of idle capacity on a path, from its own subflows and the others.
    fn path_causes(
        &self,
        own: &[&SenderSample<'_>],
        other: &[&SenderSample<'_>],
    ) -> WeightedCauses {
        let mut all = WeightedCauses::new();
        for one in own {
            all.extend(self.subflow_causes(one));
        }
        if all.is_empty() {
            let idle = other.iter().map(|one| {
                let nothing = |(why, _): &&(IdleCause, f64)| is_sender_limit(why.part);
                self.subflow_causes(one).iter().filter(nothing).map(|(_, share)| share).sum()
            });
            let idle = idle.fold(0.0, f64::max);
            let single = matches!(self.transport, Transport::Tcp | Transport::Quic);
            let absent = if single { Part::SinglePath } else { Part::NoSubflow };
            all = vec![(Part::Application.into(), idle), (absent.into(), 1.0 - idle)];
        }
        combine_causes(&[&all], false)
    }

    /// Returns the limits of one subflow, as shares of the period.
    fn subflow_causes(&self, (subflow, held): &SenderSample<'_>) -> WeightedCauses {
        let sum: u64 = held.limits_ns.values().fold(0, |sum, span| sum.saturating_add(*span));
        let share = |span: u64| span as f64 / sum.max(1) as f64;
        let mut all = WeightedCauses::new();
        for (part, span) in &held.limits_ns {
            if *part != Part::HeadOfLineBlocking || held.blocked_by_ns.is_empty() {
                all.push((IdleCause::from(*part), share(*span)));
                continue;
            }
            let waited = |(_, span): &(u32, u64)| *span as f64;
            let waited: f64 = held.blocked_by_ns.iter().map(waited).sum();
            for (number, part_ns) in &held.blocked_by_ns {
                let waits_for = self.path_of(subflow, *number);
                let share = share(*span) * *part_ns as f64 / waited.max(1.0);
                all.push((IdleCause { part: *part, waits_for }, share));
            }
        }
        all
    }

    fn path_of(&self, of: &Subflow, number: u32) -> Option<usize> {
        let same =
            |one: &Subflow| (one.flow, one.stream, one.subflow) == (of.flow, of.stream, number);
        let (other, _) = self.samples.iter().find(|(one, _)| same(one))?;
        self.names.iter().position(|name| *name == other.path)
    }

    /// Returns for each flow the shares of received bytes that were not new to the application.
    fn overhead_shares(&self, direction: DataDirection) -> BTreeMap<u32, OverheadShares> {
        let flows: BTreeSet<u32> = self.samples.iter().map(|(one, _)| one.flow).collect();
        let of = |flow: u32| {
            let input = self.merged.inputs.iter();
            let input = input.filter(|one| (one.flow, one.direction) == (flow, direction));
            let read = input.map(|one| one.delivery.total_bytes()).fold(0, u64::saturating_add);
            let subflows = self.merged.subflows.iter();
            let own = subflows.filter(|one| (one.flow, one.direction) == (flow, direction));
            let brought = own.map(|one| one.bytes).fold(0, u64::saturating_add);
            let acked: u64 = { self.samples.iter() }
                .filter(|(one, _)| (one.flow, one.direction) == (flow, direction))
                .map(|(_, held)| held.delivered_bytes)
                .sum();
            let part = |bytes: u64, of: u64| (bytes as f64 / of.max(1) as f64).clamp(0.0, 1.0);
            match self.transport {
                _ if read == 0 => OverheadShares::default(),
                // The rest of the UDP payload is application data.
                Transport::Quic | Transport::Mpquic => {
                    OverheadShares { framing: 1.0 - part(read, acked), reinjected: 0.0 }
                }
                Transport::Tcp => OverheadShares::default(),
                Transport::Mptcp => {
                    let again = self.merged.reinjected_bytes;
                    let needless = brought.saturating_sub(read).min(again);
                    OverheadShares { framing: 0.0, reinjected: part(needless, brought) }
                }
            }
        };
        flows.into_iter().map(|flow| (flow, of(flow))).collect()
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

fn add_sample(carried: &mut CarriedBytes, held: &SenderActivity, new: OverheadShares) {
    let of = |part: f64| (held.delivered_bytes as f64 * part) as u64;
    let (framing, reinjected) = (of(new.framing), of(new.reinjected));
    carried.delivered += held.delivered_bytes.saturating_sub(framing + reinjected);
    carried.headers += held.header_bytes.saturating_add(framing);
    carried.reinjected += reinjected;
    carried.spurious += held.spurious_bytes;
}

/// Scales peaks from payload to whole packets, which capacity counts.
fn scale_peaks(periods: &mut [ObservedPeriod]) {
    let sum = |of: fn(&CarriedBytes) -> u64| -> u64 {
        periods.iter().map(|one| of(&one.period.carried)).sum()
    };
    let (all, headers) = (sum(CarriedBytes::sum), sum(|carried| carried.headers));
    let factor = all as f64 / all.saturating_sub(headers).max(1) as f64;
    for one in periods.iter_mut() {
        one.peak_bps = (one.peak_bps as f64 * factor) as u64;
    }
}

fn is_sender_limit(part: Part) -> bool {
    matches!(part, Part::Application | Part::SenderCpu)
}

fn weights(reasons: &WeightedCauses) -> BTreeMap<IdleCause, u64> {
    let all = total_weight(reasons);
    let mut weights = BTreeMap::new();
    for (why, weight) in reasons.iter().filter(|_| all > 0.0) {
        *weights.entry(*why).or_default() += (weight / all * WEIGHT_SCALE) as u64;
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::{HostReport, merge};
    use crate::result::SubflowEnd;
    use crate::scenario::no_files;

    fn scenario() -> Scenario {
        let text = "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.wifi]\n\
                    between = [\"client\", \"server\"]\n[paths.lte]\nbetween = [\"client\", \
                    \"server\"]\n[[flows]]\nfrom = \"client\"\nto = \"server\"\npattern = \"iperf\"\n";
        Scenario::parse("t", text, &no_files).unwrap()
    }

    fn record(at: u64, subflow: u32, path: &str, held: &SenderActivity) -> Record {
        let subflow: Subflow = serde_json::from_value(serde_json::json!({
            "t_ns": at * 100_000_000, "span_ns": 100_000_000, "flow": 0, "stream": 0,
            "direction": "up", "side": SubflowEnd::Sender, "subflow": subflow, "path": path,
            "state": "established", "backup": false, "bytes": 0, "bytes_sent": 0, "bytes_acked": 0,
            "bytes_received": 0, "srtt_us": 50_000, "rttvar_us": 0, "rto_us": 0, "backoff": 0,
            "cwnd_packets": 0, "ssthresh_packets": 0, "in_flight_packets": 0, "retransmissions": 0,
            "mss_bytes": 1_000, "sender_activity": held
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
    fn a_path_that_is_waited_for_is_named_by_its_subflow() {
        let blocked = SenderActivity {
            blocked_by_ns: vec![(1, 60_000_000)],
            peer_window_max_bytes: 64_000,
            ..sender_activity(
                100,
                &[(Part::HeadOfLineBlocking, 60), (Part::CongestionAvoidance, 40)],
            )
        };
        let records = (1..=10).flat_map(|at| {
            let slow = sender_activity(20, &[(Part::CongestionAvoidance, 100)]);
            [record(at, 0, "wifi", &blocked), record(at, 1, "lte", &slow)]
        });
        let (accounts, summary) = account_of(records.collect());
        let summary = summary.unwrap();
        let wifi = &summary.links[0];
        assert_eq!((wifi.path.as_str(), wifi.parts.of(Part::Headers)), ("wifi", 20_000));
        assert!(wifi.parts.blocked_by.contains_key("lte"), "{wifi:?}");
        assert_eq!(accounts.len(), 20);
        assert!(accounts.iter().all(|one| one.parts.sum() == one.parts.capacity_bytes));
        let text = "receive window of 64.0 kB was full of data waiting for lte";
        assert!(summary.sentence.contains(text), "{}", summary.sentence);
    }

    #[test]
    fn a_missing_subflow_is_counted_only_if_it_existed() {
        let busy = || sender_activity(100, &[(Part::CongestionAvoidance, 100)]);
        let mut records: Vec<_> = (1..=10).map(|at| record(at, 0, "wifi", &busy())).collect();
        records.extend((6..=10).map(|at| record(at, 1, "lte", &busy())));
        let (_, summary) = account_of(records);
        let summary = summary.unwrap();
        let lte = &summary.links[1];
        assert_eq!(lte.limit_ns[&Part::NoSubflow], 500_000_000, "{lte:?}");
    }

    #[test]
    fn the_parts_add_up_for_any_report_of_the_peer() {
        let wild = SenderActivity {
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
        let records = records.map(|at| record(at, 0, "wifi", &wild));
        let (accounts, summary) = account_of(records.to_vec());
        assert!(accounts.iter().all(|one| one.parts.sum() == one.parts.capacity_bytes));
        assert!(summary.is_some());
    }
}
