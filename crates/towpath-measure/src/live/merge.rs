//! Merges the reports of both hosts into one run.
//!
//! Both hosts count time from the agreed start of the traffic, so no clock correction is needed
//! here. Each value comes from the end that knows it: deliveries from the receiver, retransmissions
//! and congestion control from the sender, paths from the client.

use std::collections::BTreeMap;

use super::HOSTS;
use super::host_report::{DatagramReport, FlowReport, HostReport, SubflowReport};
use crate::format;
use crate::metrics::{DeliveryLog, FlowInput};
use crate::result::{
    Counter, DatagramRow, DatagramStats, DelayBasis, EventKind, Message, Probe, Record,
    SubflowSummary,
};
use crate::scenario::{DataDirection, Flow, Pattern, Scenario};
use crate::traffic::{directions, session, udp};
use towpath_net::Instant;

/// Result of merging both reports.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MergedRun {
    /// Time series and events, in order of time.
    pub records: Vec<Record>,
    /// Messages, in order of their due times.
    pub messages: Vec<Message>,
    /// Datagrams over single paths, in order of their due times.
    pub probes: Vec<Probe>,
    /// Statistics of constant-rate datagrams, by flow and direction.
    pub datagrams: Vec<(u32, DataDirection, DatagramStats)>,
    /// Time series of those datagrams.
    pub datagram_rows: Vec<DatagramRow>,
    /// Counters of both hosts.
    pub counters: Vec<Counter>,
    /// Input of the summary, one for each flow and direction.
    pub inputs: Vec<FlowInput>,
    /// Totals of each subflow and direction.
    pub subflows: Vec<SubflowSummary>,
    /// Bytes reinjected on another subflow.
    pub reinjected_bytes: u64,
    /// Connections that were multipath at every end that reported.
    pub multipath: usize,
    /// Connections that were not multipath.
    pub single: usize,
    /// Reason for the lack of multipath, if an end knows it.
    pub reason: Option<String>,
    /// Paths on which data arrived, in order of their subflows.
    pub paths_used: Vec<String>,
    /// True if the server's report is missing.
    pub one_sided: bool,
}

impl MergedRun {
    /// Drops messages due at `end` or later: one host may have learned late that the test ends.
    pub fn drop_from(&mut self, end: Instant) {
        let counts = |message: &Message| message.due_ns < end.as_nanos();
        self.messages.retain(counts);
        for input in &mut self.inputs {
            input.messages.retain(counts);
        }
    }
}

type StreamKey = (u32, u32);
type SubflowKey = (u32, u32, u32);

/// A subflow as both hosts see it.
struct SubflowPair<'a> {
    client: Option<&'a SubflowReport>,
    server: Option<&'a SubflowReport>,
    number: u32,
    path: String,
}

/// Merges the reports of `client` and `server` for a run of `scenario`. The error of `server` is
/// the reason why its report is missing.
pub fn merge(
    scenario: &Scenario,
    client: &HostReport,
    server: Result<&HostReport, &str>,
) -> MergedRun {
    let pairs = pairs(client, server.ok());
    let mut merged = MergedRun { one_sided: server.is_err(), ..MergedRun::default() };
    for (number, flow) in (0_u32..).zip(&scenario.flows) {
        let messages = messages(number, client, server.ok());
        for direction in directions(&flow.pattern) {
            merged.inputs.push(flow_input((number, flow), *direction, (client, server), &pairs));
        }
        for input in merged.inputs.iter_mut().filter(|input| input.flow == number) {
            input.messages.clone_from(&messages);
        }
        merged.messages.extend(messages);
        for direction in directions(&flow.pattern) {
            let reports = (client, server.ok());
            datagrams(&mut merged, scenario, (number, flow), *direction, reports);
        }
    }
    merged.messages.sort_by_key(|message| message.due_ns);
    merged.subflows = summaries(scenario, &pairs);
    merged.paths_used = paths_used(scenario, &pairs);
    connections(&mut merged, client, server.ok());
    let subflow_map: BTreeMap<SubflowKey, &SubflowPair<'_>> = pairs
        .iter()
        .filter_map(|pair| {
            Some(((pair.server?.flow, pair.server?.stream, pair.server?.subflow), pair))
        })
        .collect();
    for (side, half) in [(0, Some(client)), (1, server.ok())] {
        let records = half.into_iter().flat_map(|report| &report.records);
        for record in records {
            merge_record(&mut merged, record.clone(), (side == 1).then_some(&subflow_map));
        }
    }
    merged.records.sort_by_key(time_of);
    merged.probes.sort_by_key(|probe| probe.due_ns);
    merged
}

/// Pairs the subflows of both hosts by the protocol's number or their addresses. Behind a NAT, it
/// falls back to the order in which they appeared.
fn pairs<'a>(client: &'a HostReport, server: Option<&'a HostReport>) -> Vec<SubflowPair<'a>> {
    let mut pairs = Vec::new();
    let mut left: Vec<&SubflowReport> =
        server.into_iter().flat_map(|report| &report.subflows).collect();
    let mut take = |matches: &dyn Fn(&SubflowReport) -> bool| {
        let found = left.iter().position(|other| matches(other))?;
        Some(left.remove(found))
    };
    let mut found: Vec<Option<&SubflowReport>> = client
        .subflows
        .iter()
        .map(|own| {
            take(&|other| {
                (other.flow, other.stream, other.number) == (own.flow, own.stream, own.number)
                    && (own.number.is_some()
                        || (&other.local, &other.remote) == (&own.remote, &own.local))
            })
        })
        .collect();
    for (own, found) in client.subflows.iter().zip(&mut found).filter(|(_, found)| found.is_none())
    {
        *found = take(&|other| {
            (other.flow, other.stream, other.number) == (own.flow, own.stream, own.number)
        });
    }
    let mut last: BTreeMap<StreamKey, u32> = BTreeMap::new();
    for (own, server) in client.subflows.iter().zip(found) {
        let path = own.path.clone().unwrap_or_else(|| "unknown".to_owned());
        let next = last.entry((own.flow, own.stream)).or_default();
        *next = (*next).max(own.subflow.saturating_add(1));
        pairs.push(SubflowPair { client: Some(own), server, number: own.subflow, path });
    }
    for other in left {
        let next = last.entry((other.flow, other.stream)).or_default();
        let (number, path) = (*next, "unknown".to_owned());
        *next = next.saturating_add(1);
        pairs.push(SubflowPair { client: None, server: Some(other), number, path });
    }
    pairs
}

impl SubflowPair<'_> {
    fn stream(&self) -> Option<StreamKey> {
        let any = self.client.or(self.server)?;
        Some((any.flow, any.stream))
    }

    /// Returns the reports of the sender and of the receiver of data in this direction.
    fn ends(&self, direction: DataDirection) -> (Option<&SubflowReport>, Option<&SubflowReport>) {
        match direction {
            DataDirection::Up | DataDirection::Both => (self.client, self.server),
            DataDirection::Down => (self.server, self.client),
        }
    }
}

/// Merges both ends' reports on constant-rate datagrams.
fn datagrams(
    merged: &mut MergedRun,
    scenario: &Scenario,
    (number, flow): (u32, &Flow),
    direction: DataDirection,
    (client, server): (&HostReport, Option<&HostReport>),
) {
    let Pattern::Udp(plan) = &flow.pattern else { return };
    let of = |report: &HostReport| -> Option<DatagramReport> {
        let own = report.flow(number)?.datagrams.iter();
        { own }.find(|one| one.direction == direction).cloned()
    };
    let round = round_trip(number, [Some(client), server]);
    let (client, server) = (of(client), server.and_then(of));
    let path = client.as_ref().and_then(|own| own.path.clone());
    let path = path.unwrap_or_else(|| "unknown".to_owned());
    let (sends, counts) = match direction {
        DataDirection::Up | DataDirection::Both => (client, server),
        DataDirection::Down => (server, client),
    };
    let sent = sends.and_then(|one| one.sent);
    let mut received = counts.and_then(|one| one.received);
    if let (Some(heard), Some(round)) = (received.as_mut().and_then(|r| r.playout.as_mut()), round)
    {
        (heard.min_transit_ns, heard.basis) = (Some(round / 2), DelayBasis::HalfRoundTrip);
    }
    let what = (number, Instant::ZERO + flow.start, scenario.run.sample);
    let joined =
        udp::merge_reports(plan, what, (direction, &path), (sent.as_ref(), received.as_ref()));
    if let Some((figures, rows)) = joined {
        merged.datagrams.push((number, direction, figures));
        merged.datagram_rows.extend(rows);
    }
}

/// Returns the sum of both one-way delays of a call; the clock offset cancels out.
fn round_trip(flow: u32, halves: [Option<&HostReport>; 2]) -> Option<i64> {
    let all = halves.into_iter().flatten().filter_map(|report| report.flow(flow));
    let by_direction = all
        .flat_map(|own| &own.datagrams)
        .filter_map(|one| Some((one.direction, one.received.as_ref()?.playout?.min_transit_ns?)));
    let directions: BTreeMap<_, _> = by_direction.collect();
    let (up, down) = (directions.get(&DataDirection::Up)?, directions.get(&DataDirection::Down)?);
    up.checked_add(*down)
}

fn messages(flow: u32, client: &HostReport, server: Option<&HostReport>) -> Vec<Message> {
    let talk = |report: &HostReport| report.flow(flow).and_then(|flow| flow.exchange.clone());
    let server = server.and_then(talk);
    talk(client)
        .map_or_else(Vec::new, |own| session::report::merge_reports(flow, &own, server.as_ref()))
}

fn flow_input(
    (number, flow): (u32, &Flow),
    direction: DataDirection,
    (client, server): (&HostReport, Result<&HostReport, &str>),
    pairs: &[SubflowPair<'_>],
) -> FlowInput {
    let own = client.flow(number);
    let other = server.ok().and_then(|half| half.flow(number));
    let receiver = if direction == DataDirection::Down { own } else { other };
    let logs = |flow: &FlowReport| -> Vec<DeliveryLog> {
        let logs = flow.delivered.iter().filter(|(way, _)| *way == direction);
        logs.map(|(_, log)| log.clone()).collect()
    };
    let logs = receiver.map(logs).unwrap_or_default();
    let start = Instant::ZERO + flow.start;
    let delivery = DeliveryLog::merge(&logs).unwrap_or_else(|| DeliveryLog::new(start));
    let broken = |flow: Option<&FlowReport>| {
        let broken = flow?.exchange.as_ref()?.broken.as_ref()?;
        Some(format!("something else arrived than was sent: {broken}"))
    };
    let missing = || {
        let text = format!("the server's half of the result is missing: {}", server.err()?);
        let acked = client.subflows.iter().filter(|one| one.flow == number);
        let acked = acked.map(|one| one.bytes_acked).fold(0, u64::saturating_add);
        let known = (direction == DataDirection::Up && acked > 0)
            .then(|| format!("; {} were acknowledged", format::bytes(acked)));
        Some(text + &known.unwrap_or_default())
    };
    let failure = own.and_then(|flow| flow.failure.clone());
    let failure = failure.or_else(|| other.and_then(|flow| flow.failure.clone()));
    let mut senders = Vec::new();
    let mut retransmissions = 0_u64;
    let own_pairs = pairs.iter().filter(|pair| pair.stream().is_some_and(|(f, _)| f == number));
    for sender in own_pairs.filter_map(|pair| pair.ends(direction).0) {
        retransmissions = retransmissions.saturating_add(sender.retransmissions);
        senders.extend(sender.congestion_control.clone());
    }
    senders.sort();
    senders.dedup();
    FlowInput {
        flow: number,
        direction,
        delivery,
        connect: own.and_then(|flow| flow.connect_ns).map(std::time::Duration::from_nanos),
        failure: failure.or_else(missing).or_else(|| broken(own)).or_else(|| broken(other)),
        congestion_control: senders,
        retransmissions,
        stack: None,
        messages: Vec::new(),
    }
}

fn summaries(scenario: &Scenario, pairs: &[SubflowPair<'_>]) -> Vec<SubflowSummary> {
    let mut all = Vec::new();
    for pair in pairs {
        let (Some((flow, stream)), Some(any)) = (pair.stream(), pair.client.or(pair.server)) else {
            continue;
        };
        let Some(described) = scenario.flows.get(flow as usize) else { continue };
        for direction in directions(&described.pattern) {
            let (sender, receiver) = pair.ends(*direction);
            let (local, remote) = match pair.client {
                Some(own) => (own.local.clone(), own.remote.clone()),
                None => (any.remote.clone(), any.local.clone()),
            };
            let closed = [pair.client, pair.server].map(|end| end.and_then(|end| end.closed_ns));
            all.push(SubflowSummary {
                flow,
                stream,
                direction: *direction,
                subflow: pair.number,
                path: pair.path.clone(),
                local,
                remote,
                backup: any.backup,
                bytes: receiver.map_or(0, |end| end.bytes_received),
                share: 0.0,
                retransmissions: sender.map_or(0, |end| end.retransmissions),
                srtt_us: sender.or(receiver).map_or(0, |end| end.srtt_us),
                first_seen_ns: any.first_seen_ns,
                closed_ns: closed.into_iter().flatten().min(),
            });
        }
    }
    all
}

/// Returns the paths on which application data arrived, beyond keep-alives.
fn paths_used(scenario: &Scenario, pairs: &[SubflowPair<'_>]) -> Vec<String> {
    let mut used: Vec<String> = Vec::new();
    for pair in pairs {
        let flow = pair.stream().and_then(|(flow, _)| scenario.flows.get(flow as usize));
        let ways = flow.map(|flow| directions(&flow.pattern)).unwrap_or_default();
        let carried = |end: &SubflowReport| end.bytes_received > 0 && end.stream_frames != Some(0);
        let any = ways.iter().any(|direction| pair.ends(*direction).1.is_some_and(carried));
        if any && !used.contains(&pair.path) {
            used.push(pair.path.clone());
        }
    }
    used
}

fn connections(merged: &mut MergedRun, client: &HostReport, server: Option<&HostReport>) {
    let mut all: BTreeMap<StreamKey, bool> = BTreeMap::new();
    for (name, half) in HOSTS.iter().zip([Some(client), server]) {
        for one in half.into_iter().flat_map(|report| &report.connections) {
            // A fallback at one end is enough: multipath needs both ends.
            *all.entry((one.flow, one.stream)).or_insert(true) &= one.multipath;
            merged.reinjected_bytes = merged.reinjected_bytes.saturating_add(one.reinjected_bytes);
            if let (None, Some(reason)) = (&merged.reason, &one.reason) {
                merged.reason = Some(format!("{reason} (seen by {name})"));
            }
        }
    }
    merged.multipath = all.values().filter(|multipath| **multipath).count();
    merged.single = all.len().saturating_sub(merged.multipath);
}

/// Takes a record of one host; for the server's, `numbers` maps its subflow numbers to the
/// client's.
fn merge_record(
    merged: &mut MergedRun,
    mut record: Record,
    numbers: Option<&BTreeMap<SubflowKey, &SubflowPair<'_>>>,
) {
    let host = HOSTS.get(usize::from(numbers.is_some())).copied().unwrap_or_default();
    match &mut record {
        Record::Subflow(subflow) => {
            if let Some(numbers) = numbers {
                let key = (subflow.flow, subflow.stream, subflow.subflow);
                let Some(pair) = numbers.get(&key) else { return };
                subflow.subflow = pair.number;
                subflow.path.clone_from(&pair.path);
                if let Some(held) = &mut subflow.sender_activity {
                    let waits = std::mem::take(&mut held.blocked_by_ns).into_iter();
                    let known = waits.filter_map(|(number, span)| {
                        Some((numbers.get(&(key.0, key.1, number))?.number, span))
                    });
                    held.blocked_by_ns = known.collect();
                }
            }
        }
        Record::Event(event) => {
            // Subflow events come from the client, which knows the path.
            if numbers.is_some() && event.kind == EventKind::Subflow {
                return;
            }
            event.host = Some(host.to_owned());
        }
        Record::Counter(counter) => {
            host.clone_into(&mut counter.host);
            merged.counters.push(counter.clone());
            return;
        }
        // Only the client sends probes.
        Record::Probe(probe) if numbers.is_none() => {
            merged.probes.push(probe.clone());
            return;
        }
        Record::Interval(_) => {}
        Record::Interface(interface) => host.clone_into(&mut interface.host),
        // These records are not made by a single host.
        Record::Meta(_)
        | Record::Link(_)
        | Record::Account(_)
        | Record::Message(_)
        | Record::Probe(_)
        | Record::Datagrams(_)
        | Record::Timing(_)
        | Record::Capture(_)
        | Record::Sequence(_)
        | Record::Summary(_) => return,
    }
    merged.records.push(record);
}

fn time_of(record: &Record) -> u64 {
    match record {
        Record::Interval(interval) => interval.t_ns,
        Record::Subflow(subflow) => subflow.t_ns,
        Record::Event(event) => event.t_ns,
        Record::Link(link) => link.t_ns,
        Record::Account(account) => account.t_ns,
        Record::Message(message) => message.due_ns,
        Record::Probe(probe) => probe.due_ns,
        Record::Datagrams(row) => row.t_ns,
        Record::Meta(_) => 0,
        Record::Counter(_)
        | Record::Interface(_)
        | Record::Timing(_)
        | Record::Capture(_)
        | Record::Sequence(_)
        | Record::Summary(_) => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::{ConnectionReport, FlowReport};
    use crate::scenario::no_files;

    fn scenario(flow: &str) -> Scenario {
        let text = format!(
            "name = \"t\"\n[hosts.client]\n[hosts.server]\n[paths.wifi]\n\
             between = [\"client\", \"server\"]\n[[flows]]\nfrom = \"client\"\nto = \"server\"\n{flow}"
        );
        Scenario::parse("t", &text, &no_files).unwrap()
    }

    fn subflow(number: u32, local: &str, remote: &str, path: Option<&str>) -> SubflowReport {
        SubflowReport {
            flow: 0,
            stream: 0,
            subflow: number,
            path: path.map(str::to_owned),
            local: local.to_owned(),
            remote: remote.to_owned(),
            backup: false,
            bytes_acked: 1_000,
            bytes_received: u64::from(number) + 10,
            retransmissions: 100,
            srtt_us: 1,
            number: None,
            stream_frames: None,
            congestion_control: Some("cubic".into()),
            first_seen_ns: 0,
            closed_ns: None,
        }
    }

    fn host_report(
        subflows: Vec<SubflowReport>,
        delivered: Option<(DataDirection, u64)>,
    ) -> HostReport {
        let log = |(direction, bytes)| {
            let mut log = DeliveryLog::new(Instant::ZERO);
            log.record(Instant::from_nanos(1_000), bytes);
            (direction, log)
        };
        let flow = FlowReport {
            delivered: delivered.map(log).into_iter().collect(),
            ..FlowReport::default()
        };
        let connections = vec![ConnectionReport {
            flow: 0,
            stream: 0,
            multipath: true,
            reinjected_bytes: 1,
            reason: None,
        }];
        HostReport { flows: vec![flow], subflows, connections, ..HostReport::default() }
    }

    #[test]
    fn each_end_contributes_only_its_own_observations() {
        let client = host_report(
            vec![subflow(0, "a:1", "s:5", Some("wifi")), subflow(1, "b:2", "s:5", Some("lte"))],
            None,
        );
        let server = host_report(
            vec![subflow(0, "s:5", "b:2", None), subflow(1, "s:5", "a:1", None)],
            Some((DataDirection::Up, 500)),
        );
        let merged = merge(&scenario("pattern = \"iperf\"\n"), &client, Ok(&server));
        let seen: Vec<_> =
            merged.subflows.iter().map(|s| (s.subflow, s.path.as_str(), s.bytes)).collect();
        assert_eq!(seen, [(0, "wifi", 11), (1, "lte", 10)]);
        let input = &merged.inputs[0];
        assert_eq!((input.delivery.total_bytes(), input.retransmissions), (500, 200));
        assert_eq!(input.congestion_control, ["cubic"]);
        assert_eq!((merged.multipath, merged.single, merged.reinjected_bytes), (1, 0, 2));
    }

    #[test]
    fn behind_an_address_translator_subflows_are_paired_in_their_order() {
        let client = host_report(vec![subflow(0, "10.0.0.1:1", "s:5", Some("wifi"))], None);
        let server = host_report(vec![subflow(0, "s:5", "192.0.2.1:77", None)], None);
        let merged = merge(&scenario("pattern = \"iperf\"\n"), &client, Ok(&server));
        assert_eq!(merged.subflows.len(), 1);
        assert_eq!(merged.subflows[0].local, "10.0.0.1:1");
    }

    #[test]
    fn paths_with_numbers_are_paired_by_them_and_used_only_if_data_arrived() {
        let numbered = |subflow: SubflowReport, number, frames| SubflowReport {
            number: Some(number),
            stream_frames: Some(frames),
            ..subflow
        };
        let client = host_report(
            vec![
                numbered(subflow(0, "10.0.0.1:1", "s:5", Some("wifi")), 0, 0),
                numbered(subflow(1, "10.0.1.1:1", "s:5", Some("lte")), 1, 0),
                numbered(subflow(2, "10.0.0.1:1", "s:5", Some("wifi")), 2, 0),
            ],
            None,
        );
        let server = host_report(
            vec![
                numbered(subflow(0, "s:5", "192.0.2.1:9", None), 2, 0),
                numbered(subflow(1, "s:5", "192.0.2.1:7", None), 0, 0),
                numbered(subflow(2, "s:5", "192.0.2.2:7", None), 1, 4),
            ],
            Some((DataDirection::Up, 500)),
        );
        let merged = merge(&scenario("pattern = \"iperf\"\n"), &client, Ok(&server));
        let seen: Vec<_> =
            merged.subflows.iter().map(|s| (s.subflow, s.path.as_str(), s.bytes)).collect();
        assert_eq!(seen, [(0, "wifi", 11), (1, "lte", 12), (2, "wifi", 10)]);
        assert_eq!(merged.paths_used, ["lte"]);
    }

    #[test]
    fn without_the_servers_report_received_bytes_are_unknown() {
        let own = vec![subflow(0, "a:1", "s:5", Some("wifi"))];
        let client = host_report(own, Some((DataDirection::Down, 700)));
        let both = scenario("pattern = \"iperf\"\ndirection = \"both\"\n");
        let merged = merge(&both, &client, Err("no answer for 15 s"));
        assert!(merged.one_sided);
        let [up, down] = &merged.inputs[..] else { panic!() };
        assert_eq!((up.delivery.total_bytes(), down.delivery.total_bytes()), (0, 700));
        for input in [up, down] {
            assert!(input.failure.as_ref().unwrap().contains("no answer for 15 s"));
        }
        assert!(up.failure.as_ref().unwrap().ends_with("; 1.00 kB were acknowledged"));
    }
}
