//! Merges the reports of both hosts into one run.
//!
//! Both hosts count time from the agreed start of the traffic, so no clock correction is needed
//! here. Each value comes from the end that knows it: deliveries from the receiver, retransmissions
//! and congestion control from the sender, paths from the client.

use std::collections::BTreeMap;

use towpath_net::Instant;
use towpath_result::format;
use towpath_result::metrics::{DeliveryLog, FlowInput};
use towpath_result::{
    ConnectionUse, Counter, DatagramRow, DatagramStats, DelayBasis, EventKind, Message, Probe,
    Record, SubflowSummary,
};
use towpath_run::traffic::{session, udp};
use towpath_scenario::flow_plan::directions;
use towpath_scenario::{DataDirection, Flow, Pattern, Scenario};

use super::HOSTS;
use super::host_report::{DatagramReport, FlowReport, HostReport, SubflowReport};

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
    /// Each of these connections, for the use by each flow.
    pub connections: Vec<ConnectionUse>,
    /// Reason for the lack of multipath, if an end knows it.
    pub reason: Option<String>,
    /// Paths on which data arrived, in order of their subflows.
    pub paths_used: Vec<String>,
    /// Paths on which data of each flow arrived, in the same order.
    pub flow_paths: BTreeMap<u32, Vec<String>>,
    /// True if the server's report is missing.
    pub one_sided: bool,
}

impl MergedRun {
    /// Drops messages due at `end` or later: one host may have learned late that the test ends.
    pub fn drop_from(&mut self, end: Instant) {
        let is_before_end = |message: &Message| message.due_ns < end.as_nanos();
        self.messages.retain(is_before_end);
        for input in &mut self.inputs {
            input.messages.retain(is_before_end);
        }
    }
}

/// Flow and stream number.
type StreamKey = (u32, u32);
/// Flow, stream and subflow number.
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
    let pairs = pair_subflows(client, server.ok());
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
            merge_datagrams(&mut merged, scenario, (number, flow), *direction, reports);
        }
    }
    merged.messages.sort_by_key(|message| message.due_ns);
    merged.subflows = subflow_summaries(scenario, &pairs);
    (merged.paths_used, merged.flow_paths) = paths_used(scenario, &pairs);
    merge_connections(&mut merged, client, server.ok());
    let subflow_map: BTreeMap<SubflowKey, &SubflowPair<'_>> = pairs
        .iter()
        .filter_map(|pair| {
            Some(((pair.server?.flow, pair.server?.stream, pair.server?.subflow), pair))
        })
        .collect();
    for (side, report) in [(0, Some(client)), (1, server.ok())] {
        let records = report.into_iter().flat_map(|report| &report.records);
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
fn pair_subflows<'a>(
    client: &'a HostReport,
    server: Option<&'a HostReport>,
) -> Vec<SubflowPair<'a>> {
    let mut pairs = Vec::new();
    let mut unmatched: Vec<&SubflowReport> =
        server.into_iter().flat_map(|report| &report.subflows).collect();
    let mut take_match = |is_match: &dyn Fn(&SubflowReport) -> bool| {
        let index = unmatched.iter().position(|server_subflow| is_match(server_subflow))?;
        Some(unmatched.remove(index))
    };
    let mut matches: Vec<Option<&SubflowReport>> = client
        .subflows
        .iter()
        .map(|client_subflow| {
            take_match(&|server_subflow| {
                (server_subflow.flow, server_subflow.stream, server_subflow.number)
                    == (client_subflow.flow, client_subflow.stream, client_subflow.number)
                    && (client_subflow.number.is_some()
                        || (&server_subflow.local, &server_subflow.remote)
                            == (&client_subflow.remote, &client_subflow.local))
            })
        })
        .collect();
    for (client_subflow, server_match) in
        client.subflows.iter().zip(&mut matches).filter(|(_, server_match)| server_match.is_none())
    {
        *server_match = take_match(&|server_subflow| {
            (server_subflow.flow, server_subflow.stream, server_subflow.number)
                == (client_subflow.flow, client_subflow.stream, client_subflow.number)
        });
    }
    let mut next_numbers: BTreeMap<StreamKey, u32> = BTreeMap::new();
    for (client_subflow, server) in client.subflows.iter().zip(matches) {
        let path = client_subflow.path.clone().unwrap_or_else(|| "unknown".to_owned());
        let next_number =
            next_numbers.entry((client_subflow.flow, client_subflow.stream)).or_default();
        *next_number = (*next_number).max(client_subflow.subflow.saturating_add(1));
        pairs.push(SubflowPair {
            client: Some(client_subflow),
            server,
            number: client_subflow.subflow,
            path,
        });
    }
    for server_subflow in unmatched {
        let next_number =
            next_numbers.entry((server_subflow.flow, server_subflow.stream)).or_default();
        let (number, path) = (*next_number, "unknown".to_owned());
        *next_number = next_number.saturating_add(1);
        pairs.push(SubflowPair { client: None, server: Some(server_subflow), number, path });
    }
    pairs
}

impl SubflowPair<'_> {
    fn stream(&self) -> Option<StreamKey> {
        let report = self.client.or(self.server)?;
        Some((report.flow, report.stream))
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
fn merge_datagrams(
    merged: &mut MergedRun,
    scenario: &Scenario,
    (number, flow): (u32, &Flow),
    direction: DataDirection,
    (client, server): (&HostReport, Option<&HostReport>),
) {
    let Pattern::Udp(plan) = &flow.pattern else { return };
    let report_of = |report: &HostReport| -> Option<DatagramReport> {
        let reports = report.flow(number)?.datagrams.iter();
        { reports }.find(|report| report.direction == direction).cloned()
    };
    let round_trip_ns = round_trip(number, [Some(client), server]);
    let (client, server) = (report_of(client), server.and_then(report_of));
    let path = client.as_ref().and_then(|reports| reports.path.clone());
    let path = path.unwrap_or_else(|| "unknown".to_owned());
    let (sender, receiver) = match direction {
        DataDirection::Up | DataDirection::Both => (client, server),
        DataDirection::Down => (server, client),
    };
    let sent = sender.and_then(|report| report.sent);
    let mut udp_report = receiver.and_then(|report| report.received);
    if let (Some(playout), Some(round_trip_ns)) =
        (udp_report.as_mut().and_then(|r| r.playout.as_mut()), round_trip_ns)
    {
        (playout.min_transit_ns, playout.basis) =
            (Some(round_trip_ns / 2), DelayBasis::HalfRoundTrip);
    }
    let flow_key = (number, Instant::ZERO + flow.start, scenario.run.sample);
    let merged_reports = udp::merge_reports(
        plan,
        flow_key,
        (direction, &path),
        (sent.as_ref(), udp_report.as_ref()),
    );
    if let Some((stats, rows)) = merged_reports {
        merged.datagrams.push((number, direction, stats));
        merged.datagram_rows.extend(rows);
    }
}

/// Returns the sum of both one-way delays of a call; the clock offset cancels out.
fn round_trip(flow: u32, reports: [Option<&HostReport>; 2]) -> Option<i64> {
    let flows = reports.into_iter().flatten().filter_map(|report| report.flow(flow));
    let by_direction = flows.flat_map(|flow| &flow.datagrams).filter_map(|direction_report| {
        Some((
            direction_report.direction,
            direction_report.received.as_ref()?.playout?.min_transit_ns?,
        ))
    });
    let directions: BTreeMap<_, _> = by_direction.collect();
    let (up, down) = (directions.get(&DataDirection::Up)?, directions.get(&DataDirection::Down)?);
    up.checked_add(*down)
}

fn messages(flow: u32, client: &HostReport, server: Option<&HostReport>) -> Vec<Message> {
    let exchange_of =
        |report: &HostReport| report.flow(flow).and_then(|flow| flow.exchange.clone());
    let server = server.and_then(exchange_of);
    exchange_of(client).map_or_else(Vec::new, |client_exchange| {
        session::report::merge_reports(flow, &client_exchange, server.as_ref())
    })
}

fn flow_input(
    (number, flow): (u32, &Flow),
    direction: DataDirection,
    (client, server): (&HostReport, Result<&HostReport, &str>),
    pairs: &[SubflowPair<'_>],
) -> FlowInput {
    let client_flow = client.flow(number);
    let server_flow = server.ok().and_then(|report| report.flow(number));
    let receiver = if direction == DataDirection::Down { client_flow } else { server_flow };
    let logs = |flow: &FlowReport| -> Vec<DeliveryLog> {
        let logs = flow.delivered.iter().filter(|(log_direction, _)| *log_direction == direction);
        logs.map(|(_, log)| log.clone()).collect()
    };
    let logs = receiver.map(logs).unwrap_or_default();
    let start = Instant::ZERO + flow.start;
    let delivery = DeliveryLog::merge(&logs).unwrap_or_else(|| DeliveryLog::new(start));
    let framing_failure = |flow: Option<&FlowReport>| {
        let framing_failure = flow?.exchange.as_ref()?.broken.as_ref()?;
        Some(format!("the received data differs from the sent data: {framing_failure}"))
    };
    let missing_report = || {
        let text = format!("the server's results are missing: {}", server.err()?);
        let acked_bytes = client.subflows.iter().filter(|subflow| subflow.flow == number);
        let acked_bytes =
            acked_bytes.map(|subflow| subflow.bytes_acked).fold(0, u64::saturating_add);
        let acked_text = (direction == DataDirection::Up && acked_bytes > 0)
            .then(|| format!("; {} were acknowledged", format::bytes(acked_bytes)));
        Some(text + &acked_text.unwrap_or_default())
    };
    let failure = client_flow.and_then(|flow| flow.failure.clone());
    let failure = failure.or_else(|| server_flow.and_then(|flow| flow.failure.clone()));
    let mut senders = Vec::new();
    let mut retransmissions = 0_u64;
    let flow_pairs = pairs.iter().filter(|pair| pair.stream().is_some_and(|(f, _)| f == number));
    for sender in flow_pairs.filter_map(|pair| pair.ends(direction).0) {
        retransmissions = retransmissions.saturating_add(sender.retransmissions);
        senders.extend(sender.congestion_control.clone());
    }
    senders.sort();
    senders.dedup();
    FlowInput {
        flow: number,
        direction,
        delivery,
        connect: client_flow.and_then(|flow| flow.connect_ns).map(std::time::Duration::from_nanos),
        failure: failure
            .or_else(missing_report)
            .or_else(|| framing_failure(client_flow))
            .or_else(|| framing_failure(server_flow)),
        congestion_control: senders,
        retransmissions,
        stack: None,
        messages: Vec::new(),
    }
}

fn subflow_summaries(scenario: &Scenario, pairs: &[SubflowPair<'_>]) -> Vec<SubflowSummary> {
    let mut summaries = Vec::new();
    for pair in pairs {
        let (Some((flow, stream)), Some(either_report)) =
            (pair.stream(), pair.client.or(pair.server))
        else {
            continue;
        };
        let Some(scenario_flow) = scenario.flows.get(flow as usize) else { continue };
        for direction in directions(&scenario_flow.pattern) {
            let (sender, receiver) = pair.ends(*direction);
            let (local, remote) = match pair.client {
                Some(client_report) => (client_report.local.clone(), client_report.remote.clone()),
                None => (either_report.remote.clone(), either_report.local.clone()),
            };
            let closed =
                [pair.client, pair.server].map(|report| report.and_then(|report| report.closed_ns));
            summaries.push(SubflowSummary {
                flow,
                stream,
                direction: *direction,
                subflow: pair.number,
                path: pair.path.clone(),
                local,
                remote,
                backup: either_report.backup,
                bytes: receiver.map_or(0, |report| report.bytes_received),
                share: 0.0,
                retransmissions: sender.map_or(0, |report| report.retransmissions),
                // The receiver's socket sends next to nothing, so its value is not the transfer's.
                srtt_us: sender.map_or(0, |report| report.srtt_us),
                first_seen_ns: either_report.first_seen_ns,
                closed_ns: closed.into_iter().flatten().min(),
            });
        }
    }
    summaries
}

/// Returns the paths on which application data arrived, beyond keep-alives: of all flows, and of
/// each.
fn paths_used(
    scenario: &Scenario,
    pairs: &[SubflowPair<'_>],
) -> (Vec<String>, BTreeMap<u32, Vec<String>>) {
    let mut used_paths: Vec<String> = Vec::new();
    let mut flow_paths: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for pair in pairs {
        let number = pair.stream().map(|(flow, _)| flow);
        let flow = number.and_then(|flow| scenario.flows.get(flow as usize));
        let flow_directions = flow.map(|flow| directions(&flow.pattern)).unwrap_or_default();
        let carried_data = |receiver: &SubflowReport| {
            receiver.bytes_received > 0 && receiver.stream_frames != Some(0)
        };
        let is_used = flow_directions
            .iter()
            .any(|direction| pair.ends(*direction).1.is_some_and(carried_data));
        let paths = number.map(|flow| flow_paths.entry(flow).or_default());
        for paths in [Some(&mut used_paths), paths].into_iter().flatten() {
            if is_used && !paths.contains(&pair.path) {
                paths.push(pair.path.clone());
            }
        }
    }
    (used_paths, flow_paths)
}

fn merge_connections(merged: &mut MergedRun, client: &HostReport, server: Option<&HostReport>) {
    let mut connections: BTreeMap<StreamKey, ConnectionUse> = BTreeMap::new();
    for (name, report) in HOSTS.iter().zip([Some(client), server]) {
        for connection in report.into_iter().flat_map(|report| &report.connections) {
            // A fallback at one end is enough: multipath needs both ends.
            let flow = connection.flow;
            let multipath_use = connections
                .entry((flow, connection.stream))
                .or_insert(ConnectionUse { flow, multipath: true, reason: None });
            multipath_use.multipath &= connection.multipath;
            merged.reinjected_bytes =
                merged.reinjected_bytes.saturating_add(connection.reinjected_bytes);
            if let Some(reason) = &connection.reason {
                let text = format!("{reason} (seen by {name})");
                merged.reason.get_or_insert_with(|| text.clone());
                multipath_use.reason.get_or_insert(text);
            }
        }
    }
    merged.connections = connections.into_values().collect();
    merged.multipath = merged.connections.iter().filter(|c| c.multipath).count();
    merged.single = merged.connections.len().saturating_sub(merged.multipath);
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
                if let Some(activity) = &mut subflow.sender_activity {
                    let blocked_by = std::mem::take(&mut activity.blocked_by_ns).into_iter();
                    let mapped = blocked_by.filter_map(|(number, span)| {
                        Some((numbers.get(&(key.0, key.1, number))?.number, span))
                    });
                    activity.blocked_by_ns = mapped.collect();
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
    use towpath_scenario::no_files;

    use super::*;
    use crate::protocol::{ConnectionReport, FlowReport};

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
        let subflows: Vec<_> =
            merged.subflows.iter().map(|s| (s.subflow, s.path.as_str(), s.bytes)).collect();
        assert_eq!(subflows, [(0, "wifi", 11), (1, "lte", 10)]);
        let input = &merged.inputs[0];
        assert_eq!((input.delivery.total_bytes(), input.retransmissions), (500, 200));
        assert_eq!(input.congestion_control, ["cubic"]);
        assert_eq!((merged.multipath, merged.single, merged.reinjected_bytes), (1, 0, 2));
    }

    #[test]
    fn subflows_behind_a_nat_are_paired_in_order() {
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
        let subflows: Vec<_> =
            merged.subflows.iter().map(|s| (s.subflow, s.path.as_str(), s.bytes)).collect();
        assert_eq!(subflows, [(0, "wifi", 11), (1, "lte", 12), (2, "wifi", 10)]);
        assert_eq!(merged.paths_used, ["lte"]);
    }

    #[test]
    fn without_the_servers_report_received_bytes_are_unknown() {
        let subflows = vec![subflow(0, "a:1", "s:5", Some("wifi"))];
        let client = host_report(subflows, Some((DataDirection::Down, 700)));
        let both_directions = scenario("pattern = \"iperf\"\ndirection = \"both\"\n");
        let merged = merge(&both_directions, &client, Err("no answer for 15 s"));
        assert!(merged.one_sided);
        let [up, down] = &merged.inputs[..] else { panic!() };
        assert_eq!((up.delivery.total_bytes(), down.delivery.total_bytes()), (0, 700));
        for input in [up, down] {
            assert!(input.failure.as_ref().unwrap().contains("no answer for 15 s"));
        }
        assert!(up.failure.as_ref().unwrap().ends_with("; 1.00 kB were acknowledged"));
    }
}
