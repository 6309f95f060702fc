//! A capture as a result, with the same records as a run, so that reports and other readers work
//! unchanged.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use towpath_result::format::number;
use towpath_result::store::StoredRun;
use towpath_result::{
    AccountSummary, CapturePoint, CapturedConnection, ConnectionState, CutEvidence, Event,
    EventKind, FlowSummary, Interval, Meta, MetaFlow, MetaPath, MultipathUse, Record,
    SCHEMA_VERSION, StackStats, Subflow as SubflowRecord, SubflowEnd, SubflowSummary, Summary,
};
use towpath_scenario::{DataDirection, Transport, World};

use super::CaptureAnalysis;
use super::connection::{NoteKind, TracedConnection, TracedSubflow};
use super::stats::INITIAL_BIN_NS;
use super::summary::{DIRECTIONS, path_name};

/// Shortest period of the series, as in other results.
const MIN_SAMPLE_NS: u64 = 8 * INITIAL_BIN_NS;
/// Maximum number of periods in the series of all subflows; beyond that, periods become longer. One
/// period of each subflow remains.
const MAX_SUBFLOW_PERIODS: u64 = 1 << 18;

impl CaptureAnalysis {
    /// Returns the capture as a result, with its `top` connections; `name` is the name of its
    /// file.
    pub fn run(&self, name: &str, top: usize) -> StoredRun {
        let selected: Vec<&CapturedConnection> = self.connections.iter().take(top).collect();
        let sample_ns = self.sample_ns(&selected);
        let mut records = Vec::new();
        let mut events = Vec::new();
        for captured in &selected {
            let Some(connection) = self.connection(captured) else { continue };
            self.series(captured, connection, sample_ns, &mut records);
            Self::events(captured, connection, &mut events);
        }
        events.sort_by_key(|event| event.t_ns);
        records.extend(events.into_iter().map(Record::Event));
        records.sort_by_key(sort_time_ns);
        let (accounts, account) = self.account(sample_ns);
        records.extend(accounts.into_iter().map(|a| Record::Account(Box::new(a))));
        records
            .extend(selected.iter().map(|captured| Record::Capture(Box::new((*captured).clone()))));
        let pictures = self.sequences(top).into_iter();
        records.extend(pictures.map(|sequence| Record::Sequence(Box::new(sequence))));
        StoredRun {
            file: Some(name.to_owned()),
            meta: self.meta(name, &selected, sample_ns),
            records,
            summary: Some(self.summary(&selected, account)),
            truncated: false,
            skipped: 0,
        }
    }

    pub(super) fn connection(&self, captured: &CapturedConnection) -> Option<&TracedConnection> {
        self.tracker.connections.get(captured.flow as usize)
    }

    pub(super) fn sample_ns(&self, selected: &[&CapturedConnection]) -> u64 {
        let connections = selected.iter().filter_map(|captured| self.connection(captured));
        let widths = connections.flat_map(|connection| {
            let directions = self.tracker.subflows_of(connection).flat_map(|s| &s.directions);
            let subflow_widths = directions.map(|direction| {
                direction.series.width_ns().max(direction.sender.series.width_ns())
            });
            subflow_widths.chain(connection.data.iter().map(|data| data.series.width_ns()))
        });
        let sample_ns = widths.max().unwrap_or(0).max(MIN_SAMPLE_NS);
        self.bounded_sample_ns(selected, sample_ns)
    }

    /// Lengthens the period until the subflows have at most [`MAX_SUBFLOW_PERIODS`] together.
    fn bounded_sample_ns(&self, selected: &[&CapturedConnection], mut sample_ns: u64) -> u64 {
        let connections = selected.iter().filter_map(|captured| self.connection(captured));
        let subflows = connections.flat_map(|connection| self.tracker.subflows_of(connection));
        let directions = subflows.flat_map(|subflow| &subflow.directions);
        let spans: Vec<(u64, u64)> = directions
            .filter(|direction| direction.payload_bytes > 0)
            .filter_map(|direction| direction.series.span_ns())
            .collect();
        let periods = |sample_ns: u64| -> u64 {
            spans.iter().map(|(from, to)| to / sample_ns - from / sample_ns).sum()
        };
        let is_longest = |sample_ns: u64| sample_ns > u64::MAX / 2;
        while periods(sample_ns) > MAX_SUBFLOW_PERIODS && !is_longest(sample_ns) {
            sample_ns *= 2;
        }
        sample_ns
    }

    fn meta(&self, name: &str, selected: &[&CapturedConnection], sample_ns: u64) -> Meta {
        let multipath = selected.iter().any(|connection| connection.multipath);
        let mut conditions = BTreeMap::new();
        conditions.insert("source".to_owned(), "a capture of packets".to_owned());
        conditions.insert("frames".to_owned(), self.frames.to_string());
        conditions.insert("capture begins".to_owned(), number::date(self.begin_ns));
        for (reason, count) in self.skipped_frames() {
            conditions.insert(format!("frames skipped: {reason}"), count.to_string());
        }
        let transport = if multipath { Transport::Mptcp } else { Transport::Tcp };
        Meta {
            schema: SCHEMA_VERSION,
            run: format!("trace of {name}"),
            scenario: name.to_owned(),
            description: "Analysis of a capture.".to_owned(),
            scenario_toml: String::new(),
            world: World::Live,
            stack: "as captured".to_owned(),
            transport,
            order: None,
            repeat: 1,
            seed: 0,
            towpath: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: String::new(),
            started_us: Some(self.begin_ns / 1_000).filter(|start| *start > 0),
            duration_ns: self.duration_ns,
            sample_ns,
            congestion_control: String::new(),
            hosts: hosts(selected),
            paths: meta_paths(selected),
            flows: selected.iter().map(|connection| meta_flow(connection)).collect(),
            timeline: Vec::new(),
            conditions,
        }
    }

    fn series(
        &self,
        captured: &CapturedConnection,
        connection: &TracedConnection,
        sample_ns: u64,
        records: &mut Vec<Record>,
    ) {
        for ((data, captured_direction), direction) in
            connection.data.iter().zip(&captured.directions).zip(DIRECTIONS)
        {
            if captured_direction.bytes == 0 {
                continue;
            }
            let at_receiver = captured_direction.capture_point == CapturePoint::Receiver;
            for (number, bin) in data.series.bins(sample_ns) {
                let connection = at_receiver.then(|| ConnectionState {
                    reorder_bytes: Some(bin.waiting_bytes),
                    ..ConnectionState::default()
                });
                records.push(Record::Interval(Interval {
                    t_ns: (number + 1).saturating_mul(sample_ns),
                    span_ns: sample_ns,
                    flow: captured.flow,
                    stream: 0,
                    direction,
                    bytes: if at_receiver { bin.bytes } else { bin.acked_bytes },
                    connection,
                }));
            }
        }
        for subflow in self.tracker.subflows_of(connection) {
            self.subflow_series(captured, subflow, sample_ns, records);
        }
    }

    fn subflow_series(
        &self,
        captured: &CapturedConnection,
        subflow: &TracedSubflow,
        sample_ns: u64,
        records: &mut Vec<Record>,
    ) {
        let path = path_name(self, subflow);
        for ((direction_state, captured_direction), direction) in
            subflow.directions.iter().zip(&captured.directions).zip(DIRECTIONS)
        {
            if direction_state.payload_bytes == 0 {
                continue;
            }
            let at_receiver = captured_direction.capture_point == CapturePoint::Receiver;
            let (mut sent, mut acked, mut arrived, mut retransmitted_packets) = (0, 0, 0, 0_u32);
            for (number, bin) in direction_state.series.bins(sample_ns) {
                sent += bin.sent_bytes;
                acked += bin.acked_bytes;
                arrived += bin.bytes;
                retransmitted_packets = retransmitted_packets.saturating_add(bin.retrans_packets);
                let sender = SubflowRecord {
                    t_ns: (number + 1).saturating_mul(sample_ns),
                    span_ns: sample_ns,
                    flow: captured.flow,
                    stream: 0,
                    direction,
                    side: SubflowEnd::Sender,
                    subflow: u32::from(subflow.number),
                    path: path.clone(),
                    state: "established".to_owned(),
                    backup: subflow.backup,
                    bytes: bin.acked_bytes,
                    bytes_sent: sent,
                    bytes_acked: acked,
                    bytes_received: 0,
                    srtt_us: if at_receiver || captured.leaves_undecided("rtt") {
                        0
                    } else {
                        bin.srtt_us
                    },
                    rttvar_us: 0,
                    rto_us: 0,
                    backoff: 0,
                    cwnd_packets: 0,
                    ssthresh_packets: 0,
                    in_flight_packets: 0,
                    retransmissions: retransmitted_packets,
                    mss_bytes: direction_state
                        .mss_bytes
                        .map_or(direction_state.largest_payload, u32::from),
                    sender_activity: None,
                };
                let receiver = SubflowRecord {
                    side: SubflowEnd::Receiver,
                    bytes: if at_receiver { bin.bytes } else { bin.acked_bytes },
                    bytes_sent: 0,
                    bytes_acked: 0,
                    bytes_received: arrived,
                    srtt_us: 0,
                    retransmissions: 0,
                    ..sender.clone()
                };
                records.extend([sender, receiver].map(|s| Record::Subflow(Box::new(s))));
            }
        }
    }

    fn events(
        captured: &CapturedConnection,
        connection: &TracedConnection,
        events: &mut Vec<Event>,
    ) {
        let hosts = hosts_of(captured);
        for subflow in &captured.subflows {
            let verb = if subflow.join { "joins" } else { "begins" };
            let backup = if subflow.backup { ", as backup" } else { "" };
            let opener = usize::from(subflow.opened == DataDirection::Down);
            events.push(Event {
                t_ns: subflow.first_ns,
                kind: EventKind::Subflow,
                host: hosts.get(opener).cloned(),
                path: Some(subflow.path.clone()),
                text: format!("subflow {} {verb}{backup}: {}", subflow.subflow, subflow.state),
                detail: BTreeMap::new(),
            });
        }
        for (note, text) in &connection.notes {
            let subflow = captured.subflows.get(usize::from(note.subflow));
            events.push(Event {
                t_ns: note.now_ns,
                kind: match note.kind {
                    NoteKind::PathManager => EventKind::PathManager,
                    NoteKind::Subflow => EventKind::Subflow,
                    NoteKind::Fallback => EventKind::Fallback,
                },
                host: hosts.get(note.side).cloned(),
                path: subflow.map(|subflow| subflow.path.clone()),
                text: text.clone(),
                detail: BTreeMap::new(),
            });
        }
        for handover in captured.directions.iter().flat_map(|direction| &direction.handovers) {
            let target = captured.subflows.get(handover.to as usize);
            events.push(Event {
                t_ns: handover.first_new_ns,
                kind: EventKind::Subflow,
                host: None,
                path: target.map(|subflow| subflow.path.clone()),
                text: format!("data goes from subflow {} to {}", handover.from, handover.to),
                detail: BTreeMap::new(),
            });
        }
    }

    fn summary(
        &self,
        selected: &[&CapturedConnection],
        account: Option<AccountSummary>,
    ) -> Summary {
        let multipath = multipath(selected);
        let flows: Vec<FlowSummary> = selected.iter().flat_map(|c| Self::flows(c)).collect();
        Summary {
            cpu: None,
            account: account.map(Box::new),
            ok: true,
            verdict: self.verdict(),
            flows,
            subflows: selected.iter().flat_map(|connection| subflows(connection)).collect(),
            paths: Vec::new(),
            multipath,
            warnings: self.warnings(),
            expectations: Vec::new(),
        }
    }

    fn flows(captured: &CapturedConnection) -> Vec<FlowSummary> {
        let directions = captured.directions.iter().filter(|way| way.bytes > 0);
        let side = |direction| usize::from(direction == DataDirection::Down);
        let flow_summary = |captured_direction: &towpath_result::CapturedDirection| {
            let subflow_directions = captured
                .subflows
                .iter()
                .filter_map(|s| s.directions.get(side(captured_direction.direction)));
            let first = captured.subflows.first();
            FlowSummary {
                flow: captured.flow,
                direction: captured_direction.direction,
                bytes: captured_direction.bytes,
                duration_ns: captured_direction.duration_ns,
                goodput_bps: captured_direction.goodput_bps,
                completed: true,
                failure: None,
                connect_ns: first.and_then(|first| first.handshake_ns),
                stall: captured_direction.stall,
                recoveries: Vec::new(),
                congestion_control: Vec::new(),
                retransmissions: subflow_directions
                    .map(|b| b.retransmitted_packets + b.out_of_order_packets)
                    .sum(),
                stack: captured.multipath.then_some(StackStats {
                    reinjected_bytes: Some(captured_direction.reinjected_bytes),
                    discarded_bytes: captured_direction.discarded_bytes,
                    reorder_peak_bytes: captured_direction.reorder_peak_bytes,
                    window_blocked_ns: None,
                    penalisations: None,
                    switches: Some(captured_direction.switches),
                }),
                messages: None,
                datagrams: None,
            }
        };
        directions.map(flow_summary).collect()
    }
}

fn sort_time_ns(record: &Record) -> u64 {
    match record {
        Record::Interval(interval) => interval.t_ns,
        Record::Subflow(subflow) => subflow.t_ns,
        Record::Event(event) => event.t_ns,
        Record::Meta(_)
        | Record::Link(_)
        | Record::Account(_)
        | Record::Message(_)
        | Record::Probe(_)
        | Record::Datagrams(_)
        | Record::Capture(_)
        | Record::Sequence(_)
        | Record::Counter(_)
        | Record::Interface(_)
        | Record::Timing(_)
        | Record::Summary(_) => u64::MAX,
    }
}

/// Returns the addresses of the opener and the other end, without ports.
fn hosts_of(captured: &CapturedConnection) -> [String; 2] {
    let host = |socket: &str| {
        socket.parse().map_or(socket.to_owned(), |s: std::net::SocketAddr| s.ip().to_string())
    };
    match captured.subflows.first() {
        Some(first) => [host(&first.local), host(&first.remote)],
        None => Default::default(),
    }
}

fn hosts(selected: &[&CapturedConnection]) -> Vec<String> {
    let mut known = BTreeSet::new();
    let hosts = selected.iter().flat_map(|captured| hosts_of(captured));
    hosts.filter(|host| known.insert(host.clone())).collect()
}

fn meta_paths(selected: &[&CapturedConnection]) -> Vec<MetaPath> {
    let mut known = BTreeSet::new();
    let mut paths: Vec<MetaPath> = Vec::new();
    for captured in selected {
        let hosts = hosts_of(captured);
        for subflow in captured.subflows.iter().filter(|s| known.insert(s.path.as_str())) {
            paths.push(MetaPath {
                name: subflow.path.clone(),
                between: hosts.clone(),
                up_rate_bps: None,
                down_rate_bps: None,
                up_delay_ns: 0,
                down_delay_ns: 0,
                backup: subflow.backup,
                text: "as captured".to_owned(),
            });
        }
    }
    paths
}

fn meta_flow(captured: &CapturedConnection) -> MetaFlow {
    let [from, to] = match captured.subflows.first() {
        Some(first) => [first.local.clone(), first.remote.clone()],
        None => Default::default(),
    };
    MetaFlow {
        video: None,
        flow: captured.flow,
        from,
        to,
        pattern: match (captured.cut_options, captured.multipath) {
            (Some(CutEvidence::Unknown), _) => "TCP or MPTCP",
            (_, true) => "MPTCP",
            (_, false) => "TCP",
        }
        .to_owned(),
        direction: match captured.directions.as_slice() {
            [up, down] if up.bytes > 0 && down.bytes > 0 => DataDirection::Both,
            [_, down] if down.bytes > 0 => DataDirection::Down,
            _ => DataDirection::Up,
        },
        streams: 1,
        via: captured.subflows.first().map_or_else(String::new, |first| first.path.clone()),
    }
}

fn multipath(selected: &[&CapturedConnection]) -> MultipathUse {
    let multipath_connections: Vec<_> =
        selected.iter().filter(|captured| captured.multipath).collect();
    let fallback = multipath_connections.iter().find_map(|captured| captured.fallback.clone());
    let mut known = BTreeSet::new();
    let paths_used = { multipath_connections.iter().flat_map(|captured| &captured.subflows) }
        .filter(|subflow| subflow.directions.iter().any(|direction| direction.new_bytes > 0))
        .filter(|subflow| known.insert(subflow.path.as_str()))
        .map(|subflow| subflow.path.clone())
        .collect();
    let mut options: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, count) in multipath_connections.iter().flat_map(|captured| &captured.options) {
        *options.entry(name).or_default() += count;
    }
    let counts = options.into_iter().map(|(name, count)| format!("`{name}` in {count} packets"));
    let mut evidence: Vec<String> = counts.collect();
    if selected.iter().any(|captured| captured.cut_options.is_some()) {
        evidence.push("some options were not captured".to_owned());
    }
    let is_unknown =
        |captured: &CapturedConnection| captured.cut_options == Some(CutEvidence::Unknown);
    let is_used = multipath_connections.iter().any(|captured| !is_unknown(captured));
    MultipathUse {
        requested: !multipath_connections.is_empty(),
        used: is_used && fallback.is_none(),
        fallback,
        paths_used,
        evidence,
        flows: Vec::new(),
    }
}

fn subflows(captured: &CapturedConnection) -> Vec<SubflowSummary> {
    let directions = captured.subflows.iter().flat_map(|subflow| {
        subflow
            .directions
            .iter()
            .filter(|direction| direction.payload_bytes > 0)
            .map(move |direction| (subflow, direction))
    });
    let summary = directions.map(|(subflow, direction)| SubflowSummary {
        flow: captured.flow,
        stream: 0,
        direction: direction.direction,
        subflow: subflow.subflow,
        path: subflow.path.clone(),
        local: subflow.local.clone(),
        remote: subflow.remote.clone(),
        backup: subflow.backup,
        bytes: direction.new_bytes,
        share: direction.share,
        retransmissions: direction.retransmitted_packets + direction.out_of_order_packets,
        srtt_us: direction.rtt.map_or(0, |rtt| (rtt.p50_ns / 1_000) as u32),
        first_seen_ns: subflow.first_ns,
        closed_ns: matches!(subflow.state.as_str(), "closed" | "reset").then_some(subflow.last_ns),
    });
    summary.collect()
}

/// Formats a duration as `1.2 s`, for people.
pub(super) fn span(ns: u64) -> String {
    towpath_result::format::time(Duration::from_nanos(ns))
}
