//! Metrics of every connection, computed at the end of the capture.

use std::time::Duration;

use towpath_result::metrics::goodput::bits_per_second;
use towpath_result::{
    CapturePoint, CapturedConnection, CapturedDirection, CapturedSubflow, CutEvidence,
    SubflowDirection,
};
use towpath_scenario::DataDirection;

use super::connection::{CutCounts, FallbackReason, TracedConnection, TracedSubflow};
use super::direction::DirectionTracker;
use super::handover::handovers;
use super::handshake::reset_text;
use super::stats::ByteProgress;
use super::tracker::Tracker;
use super::{CaptureAnalysis, TakenAt};

pub(super) const DIRECTIONS: [DataDirection; 2] = [DataDirection::Up, DataDirection::Down];

impl Tracker {
    /// Attaches subflows that have no connection yet.
    pub(super) fn close(&mut self) {
        // A join to a connection that was never captured is a connection of its own.
        for index in 0..self.subflows.len() {
            let Some(subflow) = self.subflows.get(index) else { continue };
            if subflow.connection.is_some() {
                continue;
            }
            let (first_ns, token) = (subflow.first_ns, subflow.token);
            let is_multipath = subflow.is_join || !subflow.early_options.is_empty();
            // All joins with one token belong to one connection.
            if let Some(&(connection, end)) = token.and_then(|token| self.tokens.get(&token)) {
                self.attach(index, connection as usize, end == 0);
                continue;
            }
            let connection = self.connect(index, first_ns);
            if let Some(state) = self.connections.get_mut(connection) {
                (state.multipath, state.late) = (is_multipath, true);
            }
            if let Some(token) = token {
                self.tokens.insert(token, (connection as u32, 1));
            }
        }
        self.close_gaps();
        self.note_unreachable_announcements();
        for connection in &mut self.connections {
            let evidence = connection.cut.map(CutCounts::evidence);
            if evidence == Some(CutEvidence::Tcp) && connection.multipath {
                connection.fallback.get_or_insert(FallbackReason::PlainData);
            }
        }
        for direction in self.subflows.iter_mut().flat_map(|subflow| &mut subflow.directions) {
            direction.sender.close();
        }
        for connection in &mut self.connections {
            let last_ns = connection.last_data_ns;
            connection.data.iter_mut().for_each(|data| data.close(last_ns));
        }
    }

    pub(super) fn subflows_of<'a>(
        &'a self,
        connection: &'a TracedConnection,
    ) -> impl Iterator<Item = &'a TracedSubflow> + Clone {
        connection.subflows.iter().filter_map(|index| self.subflows.get(*index as usize))
    }
}

/// Returns all connections, those with most payload first; their flow numbers are in order of
/// appearance.
pub(super) fn connections(trace: &CaptureAnalysis) -> Vec<CapturedConnection> {
    let connections = trace.tracker.connections.iter().enumerate();
    let mut connections: Vec<_> =
        connections.map(|(flow, connection)| describe(trace, flow as u32, connection)).collect();
    connections.sort_by_cached_key(|connection| {
        let bytes = connection.subflows.iter().flat_map(|subflow| &subflow.directions);
        std::cmp::Reverse(bytes.map(|direction| direction.payload_bytes).sum::<u64>())
    });
    connections
}

/// Facts of a connection that the description of each of its subflows needs.
struct ConnectionFacts {
    /// Position of the capture for the data of each side.
    capture_points: [CapturePoint; 2],
    has_two_places: bool,
    /// New payload bytes of all subflows, by side.
    new_bytes: [u64; 2],
}

impl ConnectionFacts {
    fn of(trace: &CaptureAnalysis, connection: &TracedConnection) -> Self {
        let subflows: Vec<&TracedSubflow> = trace.tracker.subflows_of(connection).collect();
        let new_bytes = |side: usize| {
            let directions = subflows.iter().filter_map(|subflow| subflow.directions.get(side));
            directions.map(|direction| direction.progress.bytes).sum()
        };
        Self {
            capture_points: [0, 1].map(|side| capture_point_of(trace, &subflows, side)),
            has_two_places: has_two_places(&subflows),
            new_bytes: [0, 1].map(new_bytes),
        }
    }
}

fn describe(
    trace: &CaptureAnalysis,
    flow: u32,
    connection: &TracedConnection,
) -> CapturedConnection {
    let subflows = || trace.tracker.subflows_of(connection);
    let facts = ConnectionFacts::of(trace, connection);
    let last_ns = subflows().flat_map(|s| &s.directions).map(|d| d.last_ns).max();
    let last_ns = last_ns.unwrap_or(connection.first_ns);
    CapturedConnection {
        flow,
        version: connection.version.filter(|_| connection.multipath),
        multipath: connection.multipath,
        fallback: connection.fallback.map(|reason| reason.text().to_owned()),
        cut_options: connection.cut.map(CutCounts::evidence),
        checksum: connection.checksum,
        truncated_start: connection.late || !subflows().next().is_some_and(|first| first.saw_syn),
        first_ns: connection.first_ns,
        last_ns,
        options: connection.options.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
        copied_packets: subflows().map(|subflow| subflow.copies.packets).sum(),
        undecided: undecided(subflows()),
        directions: [0, 1].into_iter().map(|side| direction(trace, connection, side)).collect(),
        subflows: subflows().map(|subflow| describe_subflow(trace, &facts, subflow)).collect(),
    }
}

/// Returns the names of the values that copies of packets leave undecided.
fn undecided<'a>(subflows: impl Iterator<Item = &'a TracedSubflow>) -> Vec<String> {
    let (mut has_two_places, mut hides_retransmissions) = (false, false);
    for subflow in subflows {
        has_two_places |= subflow.copies.has_two_places();
        // Segmentation offload splits packets between the two places, so the parts are no copies.
        let is_super_segment = |direction: &DirectionTracker| {
            direction.mss_bytes.is_some_and(|mss| direction.largest_payload > u32::from(mss))
        };
        hides_retransmissions |= subflow.copies.hides_retransmissions()
            || subflow.copies.counts_first_sights()
                && subflow.directions.iter().any(is_super_segment);
    }
    let of_places =
        ["capture_point", "rtt", "out_of_order_bytes", "out_of_order_packets", "spurious_bytes"];
    let of_copies = ["retransmitted_bytes", "retransmitted_packets", "discarded_bytes"];
    let of_places = of_places
        .into_iter()
        .filter(|name| has_two_places || hides_retransmissions && *name == "spurious_bytes");
    let of_copies = of_copies.into_iter().filter(|_| hides_retransmissions);
    of_places.chain(of_copies).map(str::to_owned).collect()
}

fn direction(
    trace: &CaptureAnalysis,
    connection: &TracedConnection,
    side: usize,
) -> CapturedDirection {
    let direction = DIRECTIONS.get(side).copied().unwrap_or(DataDirection::Up);
    let subflows: Vec<&TracedSubflow> = trace.tracker.subflows_of(connection).collect();
    let directions: Vec<&DirectionTracker> =
        subflows.iter().filter_map(|s| s.directions.get(side)).collect();
    let sum = |value_of: fn(&DirectionTracker) -> u64| {
        directions.iter().map(|d| value_of(d)).sum::<u64>()
    };
    let capture_point = capture_point_of(trace, &subflows, side);
    let at_receiver = capture_point == CapturePoint::Receiver;
    let [up, down] = &connection.data;
    let data = if side == 0 { up } else { down };
    let progress = if at_receiver { &data.arrivals } else { &data.acks };
    let active_ns = |progress: &ByteProgress| match progress.bytes {
        0 => 0,
        _ => progress.last_ns.saturating_sub(connection.first_ns),
    };
    let duration_ns = active_ns(progress);
    let span = Duration::from_nanos(duration_ns);
    // A direction with only acknowledgements lasts as long as the data of the other direction.
    let both_ns = { connection.data.iter().flat_map(|data| [&data.arrivals, &data.acks]) }
        .map(active_ns)
        .fold(duration_ns, u64::max);
    let ack_delays = data.flight.samples.delays();
    let retrans_bytes = sum(|d| d.retrans_bytes);
    // Packets that the network duplicated reached the receiver again.
    let duplicated_subflows = subflows.iter().filter(|subflow| !subflow.copies.is_merged());
    let duplicates: u64 = duplicated_subflows
        .filter_map(|subflow| subflow.directions.get(side))
        .map(|direction| direction.copied_bytes)
        .sum();
    CapturedDirection {
        direction,
        capture_point,
        bytes: progress.bytes,
        duration_ns,
        goodput_bps: bits_per_second(progress.bytes, span),
        throughput_bps: bits_per_second(sum(|d| d.ip_bytes), Duration::from_nanos(both_ns)),
        rtt: ack_delays.filter(|_| !at_receiver && !has_two_places(&subflows)),
        acknowledged_after: ack_delays.filter(|_| at_receiver),
        head_of_line: data.wait.delays().filter(|_| at_receiver),
        reorder_peak_bytes: at_receiver.then_some(data.waiting_peak_bytes),
        reinjected_bytes: sum(|d| d.reinjected_bytes),
        remapped_bytes: sum(|d| d.repeated_bytes),
        retransmitted_bytes: retrans_bytes,
        spurious_bytes: sum(|d| d.spurious_bytes),
        discarded_bytes: at_receiver.then_some(retrans_bytes + data.copied_bytes + duplicates),
        out_of_order_bytes: sum(|d| d.late_bytes),
        // Data without a mapping is missing above, although it is in the capture.
        unseen_bytes: data.unseen_bytes.saturating_sub(sum(|d| d.unmapped_bytes)),
        unmapped_bytes: sum(|d| d.unmapped_bytes),
        switches: data.switches,
        stall: progress.stall,
        handovers: handovers(&subflows, side),
    }
}

fn describe_subflow(
    trace: &CaptureAnalysis,
    facts: &ConnectionFacts,
    subflow: &TracedSubflow,
) -> CapturedSubflow {
    let [local, remote] = subflow.ends;
    let last_ns = subflow.directions.iter().map(|d| d.last_ns).max().unwrap_or(subflow.first_ns);
    let handshake_ns = match (subflow.syn_ns, subflow.established_ns, subflow.answered_ns) {
        (Some(syn), Some(end), Some(_)) => Some(end.saturating_sub(syn)),
        _ => None,
    };
    let facts_by_side = facts.capture_points.iter().zip(facts.new_bytes);
    let directions = subflow.directions.iter().zip(DIRECTIONS).zip(facts_by_side);
    CapturedSubflow {
        subflow: u32::from(subflow.number),
        path: path_name(trace, subflow),
        local: local.socket().to_string(),
        remote: remote.socket().to_string(),
        opened: DIRECTIONS.get(subflow.opened_by).copied().unwrap_or(DataDirection::Up),
        state: state(subflow).to_owned(),
        join: subflow.is_join,
        backup: subflow.backup,
        address_ids: subflow.address_ids,
        syns: subflow.syns,
        handshake_ns,
        first_ns: subflow.first_ns,
        last_ns,
        reset: subflow
            .reset_ns
            .map(|_| subflow.reset_reason.map_or_else(|| "no reason given".to_owned(), reset_text)),
        directions: directions
            .map(|((d, direction), (capture_point, total_bytes))| {
                let at_receiver = *capture_point == CapturePoint::Receiver;
                let described = subflow_direction(d, (direction, at_receiver), total_bytes);
                let rtt = described.rtt.filter(|_| !facts.has_two_places);
                SubflowDirection { rtt, ..described }
            })
            .collect(),
    }
}

fn subflow_direction(
    tracked: &DirectionTracker,
    (direction, at_receiver): (DataDirection, bool),
    all_bytes: u64,
) -> SubflowDirection {
    let ack_delays = tracked.flight.samples.delays();
    SubflowDirection {
        direction,
        packets: tracked.packets,
        ip_bytes: tracked.ip_bytes,
        payload_bytes: tracked.payload_bytes,
        new_bytes: tracked.progress.bytes,
        acked_bytes: tracked.acked_bytes,
        share: tracked.progress.bytes as f64 / all_bytes.max(1) as f64,
        rtt: ack_delays.filter(|_| !at_receiver),
        acknowledged_after: ack_delays.filter(|_| at_receiver),
        retransmitted_bytes: tracked.retrans_bytes,
        retransmitted_packets: tracked.retrans_packets,
        spurious_bytes: tracked.spurious_bytes,
        out_of_order_bytes: tracked.late_bytes,
        out_of_order_packets: tracked.late_packets,
        reinjected_bytes: tracked.reinjected_bytes,
        unseen_bytes: tracked.unseen_bytes,
        one_way: None,
    }
}

fn state(subflow: &TracedSubflow) -> &'static str {
    match subflow {
        TracedSubflow { reset_ns: Some(_), .. } => "reset",
        TracedSubflow { fin_ns: Some(_), .. } => "closed",
        TracedSubflow {
            established_ns: Some(_), syn_ns: Some(_), answered_ns: Some(_), ..
        } => "established",
        TracedSubflow { answered_ns: Some(_), .. } => "syn-answered",
        TracedSubflow { syn_ns: Some(_), .. } => "syn-sent",
        _ => "seen",
    }
}

/// Returns the interface's name if the capture has several, else the two addresses.
pub(super) fn path_name(trace: &CaptureAnalysis, subflow: &TracedSubflow) -> String {
    let interface_name = || {
        let interface = subflow.interface.filter(|_| !subflow.several_interfaces)?;
        trace.interfaces.get(interface as usize)?.clone()
    };
    let has_several_interfaces = trace.interfaces.len() > 1;
    interface_name().filter(|_| has_several_interfaces).unwrap_or_else(|| {
        let [local, remote] = subflow.ends;
        format!("{} – {}", local.ip(), remote.ip())
    })
}

fn has_two_places(subflows: &[&TracedSubflow]) -> bool {
    subflows.iter().any(|subflow| subflow.copies.has_two_places())
}

/// Returns the capture point relative to data of `side`.
fn capture_point_of(
    trace: &CaptureAnalysis,
    subflows: &[&TracedSubflow],
    side: usize,
) -> CapturePoint {
    if has_two_places(subflows) {
        return CapturePoint::Between;
    }
    let taken_at_place =
        trace.taken_at.or_else(|| subflows.iter().find_map(|subflow| taken_at(subflow)));
    match taken_at_place {
        None => CapturePoint::Unknown,
        Some(TakenAt::Between) => CapturePoint::Between,
        Some(TakenAt::Opener) if side == 0 => CapturePoint::Sender,
        Some(TakenAt::Acceptor) if side == 1 => CapturePoint::Sender,
        Some(TakenAt::Opener | TakenAt::Acceptor) => CapturePoint::Receiver,
    }
}

/// Returns the place of the capture.
///
/// The direction flags of packets show it. Without them, the two delays of the handshake show the
/// distances to both ends.
fn taken_at(subflow: &TracedSubflow) -> Option<TakenAt> {
    let [up, down] = &subflow.directions;
    let (outbound, inbound) = (up.outbound + down.inbound, up.inbound + down.outbound);
    if outbound + inbound > 0 {
        return Some(match (outbound, inbound) {
            (_, 0) => TakenAt::Opener,
            (0, _) => TakenAt::Acceptor,
            _ => TakenAt::Between,
        });
    }
    let (syn, answer, ack) = (subflow.syn_ns?, subflow.answered_ns?, subflow.established_ns?);
    let to_accepter = answer.checked_sub(syn)?;
    let to_opener = ack.checked_sub(answer)?;
    let opener_is_first = subflow.opened_by == 0;
    let is_much_shorter = |short: u64, long: u64| short.saturating_mul(4) < long;
    Some(match (is_much_shorter(to_opener, to_accepter), is_much_shorter(to_accepter, to_opener)) {
        (true, _) if opener_is_first => TakenAt::Opener,
        (true, _) => TakenAt::Acceptor,
        (_, true) if opener_is_first => TakenAt::Acceptor,
        (_, true) => TakenAt::Opener,
        _ => TakenAt::Between,
    })
}
