//! Metrics of every connection, computed at the end of the capture.

use std::time::Duration;

use towpath_measure::metrics::goodput::bits_per_second;
use towpath_measure::result::{
    CapturePoint, CapturedConnection, CapturedDirection, CapturedSubflow, SubflowDirection,
    SubflowHandover,
};
use towpath_measure::scenario::DataDirection;

use super::connection::{TracedConnection, TracedSubflow};
use super::direction::DirectionTracker;
use super::handshake::reset_reason;
use super::stats::ByteProgress;
use super::tracker::Tracker;
use super::{CaptureAnalysis, TakenAt};

pub(super) const DIRECTIONS: [DataDirection; 2] = [DataDirection::Up, DataDirection::Down];

/// Silence at the end of the capture after which a subflow counts as abandoned.
const ABANDONED_AFTER_NS: u64 = 1_000_000_000;

impl Tracker {
    /// Attaches subflows that have no connection yet.
    pub(super) fn close(&mut self) {
        // A join to a connection that was never captured is a connection of its own.
        for index in 0..self.subflows.len() {
            let Some(subflow) = self.subflows.get(index) else { continue };
            if subflow.connection.is_none() {
                let (first_ns, join) = (subflow.first_ns, subflow.is_join);
                let connection = self.connect(index, first_ns);
                if let Some(found) = self.connections.get_mut(connection) {
                    (found.multipath, found.late) = (join, true);
                }
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

    pub(super) fn of<'a>(
        &'a self,
        connection: &'a TracedConnection,
    ) -> impl Iterator<Item = &'a TracedSubflow> + Clone {
        connection.subflows.iter().filter_map(|index| self.subflows.get(*index as usize))
    }
}

/// Returns all connections, those with most payload first; their flow numbers are in order of
/// appearance.
pub(super) fn connections(trace: &CaptureAnalysis) -> Vec<CapturedConnection> {
    let all = trace.tracker.connections.iter().enumerate();
    let mut all: Vec<_> =
        all.map(|(flow, connection)| describe(trace, flow as u32, connection)).collect();
    all.sort_by_key(|connection| {
        let bytes = connection.subflows.iter().flat_map(|subflow| &subflow.directions);
        std::cmp::Reverse(bytes.map(|direction| direction.payload_bytes).sum::<u64>())
    });
    all
}

fn describe(
    trace: &CaptureAnalysis,
    flow: u32,
    connection: &TracedConnection,
) -> CapturedConnection {
    let subflows = || trace.tracker.of(connection);
    let last_ns = subflows().flat_map(|s| &s.directions).map(|way| way.last_ns).max();
    let last_ns = last_ns.unwrap_or(connection.first_ns);
    CapturedConnection {
        flow,
        version: connection.version.filter(|_| connection.multipath),
        multipath: connection.multipath,
        fallback: connection.fallback.map(|why| why.text().to_owned()),
        checksum: connection.checksum,
        truncated_start: connection.late || !subflows().next().is_some_and(|first| first.saw_syn),
        first_ns: connection.first_ns,
        last_ns,
        options: connection.options.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
        directions: [0, 1].into_iter().map(|side| direction(trace, connection, side)).collect(),
        subflows: subflows().map(|subflow| describe_subflow(trace, connection, subflow)).collect(),
    }
}

fn direction(
    trace: &CaptureAnalysis,
    connection: &TracedConnection,
    side: usize,
) -> CapturedDirection {
    let direction = DIRECTIONS.get(side).copied().unwrap_or(DataDirection::Up);
    let subflows: Vec<&TracedSubflow> = trace.tracker.of(connection).collect();
    let parts: Vec<&DirectionTracker> =
        subflows.iter().filter_map(|s| s.directions.get(side)).collect();
    let sum = |of: fn(&DirectionTracker) -> u64| parts.iter().map(|way| of(way)).sum::<u64>();
    let vantage = vantage_of(trace, &subflows, side);
    let received = vantage == CapturePoint::Receiver;
    let [up, down] = &connection.data;
    let data = if side == 0 { up } else { down };
    let progress = if received { &data.arrivals } else { &data.acks };
    let lasts = |progress: &ByteProgress| match progress.bytes {
        0 => 0,
        _ => progress.last_ns.saturating_sub(connection.first_ns),
    };
    let duration_ns = lasts(progress);
    let span = Duration::from_nanos(duration_ns);
    // A direction with only acknowledgements lasts as long as the data of the other direction.
    let both = { connection.data.iter().flat_map(|data| [&data.arrivals, &data.acks]) }
        .map(lasts)
        .fold(duration_ns, u64::max);
    let acknowledged = data.flight.samples.delays();
    let again = sum(|way| way.retrans_bytes);
    CapturedDirection {
        direction,
        capture_point: vantage,
        bytes: progress.bytes,
        duration_ns,
        goodput_bps: bits_per_second(progress.bytes, span),
        throughput_bps: bits_per_second(sum(|way| way.ip_bytes), Duration::from_nanos(both)),
        rtt: acknowledged.filter(|_| !received),
        acknowledged_after: acknowledged.filter(|_| received),
        head_of_line: data.wait.delays().filter(|_| received),
        reorder_peak_bytes: received.then_some(data.waiting_peak_bytes),
        reinjected_bytes: sum(|way| way.reinjected_bytes),
        remapped_bytes: sum(|way| way.repeated_bytes),
        retransmitted_bytes: again,
        spurious_bytes: sum(|way| way.spurious_bytes),
        discarded_bytes: received.then_some(again + data.copied_bytes),
        out_of_order_bytes: sum(|way| way.late_bytes),
        unseen_bytes: data.unseen_bytes,
        unmapped_bytes: sum(|way| way.unmapped_bytes),
        switches: data.switches,
        stall: progress.stall,
        handovers: handovers(&subflows, side),
    }
}

fn describe_subflow(
    trace: &CaptureAnalysis,
    connection: &TracedConnection,
    subflow: &TracedSubflow,
) -> CapturedSubflow {
    let [local, remote] = subflow.ends;
    let last_ns =
        subflow.directions.iter().map(|way| way.last_ns).max().unwrap_or(subflow.first_ns);
    let handshake_ns = match (subflow.syn_ns, subflow.established_ns, subflow.answered_ns) {
        (Some(syn), Some(end), Some(_)) => Some(end.saturating_sub(syn)),
        _ => None,
    };
    let all = |side: usize| {
        let ways = trace.tracker.of(connection).filter_map(move |s| s.directions.get(side));
        ways.map(|way| way.progress.bytes).sum::<u64>()
    };
    let ways = subflow.directions.iter().zip(DIRECTIONS).enumerate();
    let siblings: Vec<&TracedSubflow> = trace.tracker.of(connection).collect();
    CapturedSubflow {
        subflow: u32::from(subflow.number),
        path: path(trace, subflow),
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
        reset: subflow.reset_ns.map(|_| match subflow.reset_reason {
            Some(reason) => reset_reason(reason).to_owned(),
            None => "no reason given".to_owned(),
        }),
        directions: ways
            .map(|(side, (way, direction))| {
                let received = vantage_of(trace, &siblings, side) == CapturePoint::Receiver;
                subflow_direction(way, (direction, received), all(side))
            })
            .collect(),
    }
}

fn subflow_direction(
    packet_direction: &DirectionTracker,
    (direction, received): (DataDirection, bool),
    all_bytes: u64,
) -> SubflowDirection {
    let acknowledged = packet_direction.flight.samples.delays();
    SubflowDirection {
        direction,
        packets: packet_direction.packets,
        ip_bytes: packet_direction.ip_bytes,
        payload_bytes: packet_direction.payload_bytes,
        new_bytes: packet_direction.progress.bytes,
        acked_bytes: packet_direction.acked_bytes,
        share: packet_direction.progress.bytes as f64 / all_bytes.max(1) as f64,
        rtt: acknowledged.filter(|_| !received),
        acknowledged_after: acknowledged.filter(|_| received),
        retransmitted_bytes: packet_direction.retrans_bytes,
        retransmitted_packets: packet_direction.retrans_packets,
        spurious_bytes: packet_direction.spurious_bytes,
        out_of_order_bytes: packet_direction.late_bytes,
        out_of_order_packets: packet_direction.late_packets,
        reinjected_bytes: packet_direction.reinjected_bytes,
        unseen_bytes: packet_direction.unseen_bytes,
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
pub(super) fn path(trace: &CaptureAnalysis, subflow: &TracedSubflow) -> String {
    let named = || {
        let interface = subflow.interface.filter(|_| !subflow.several_interfaces)?;
        trace.interfaces.get(interface as usize)?.clone()
    };
    let several = trace.interfaces.len() > 1;
    named().filter(|_| several).unwrap_or_else(|| {
        let [local, remote] = subflow.ends;
        format!("{} – {}", local.ip(), remote.ip())
    })
}

/// Returns the capture point relative to data of `side`.
fn vantage_of(trace: &CaptureAnalysis, subflows: &[&TracedSubflow], side: usize) -> CapturePoint {
    let at = trace.taken_at.or_else(|| subflows.iter().find_map(|subflow| taken_at(subflow)));
    match at {
        None => CapturePoint::Unknown,
        Some(TakenAt::Between) => CapturePoint::Between,
        Some(TakenAt::Opener) if side == 0 => CapturePoint::Sender,
        Some(TakenAt::Acceptor) if side == 1 => CapturePoint::Sender,
        Some(TakenAt::Opener | TakenAt::Acceptor) => CapturePoint::Receiver,
    }
}

/// Returns the end of the capture. The capture may record outbound packets; else the two delays of
/// the handshake show the distance of both ends.
fn taken_at(subflow: &TracedSubflow) -> Option<TakenAt> {
    let [up, down] = &subflow.directions;
    let (out, into) = (up.outbound + down.inbound, up.inbound + down.outbound);
    if out + into > 0 {
        return Some(match (out, into) {
            (_, 0) => TakenAt::Opener,
            (0, _) => TakenAt::Acceptor,
            _ => TakenAt::Between,
        });
    }
    let (syn, answer, end) = (subflow.syn_ns?, subflow.answered_ns?, subflow.established_ns?);
    let to_accepter = answer.checked_sub(syn)?;
    let to_opener = end.checked_sub(answer)?;
    let opener_is_first = subflow.opened_by == 0;
    let near = |close: u64, far: u64| close.saturating_mul(4) < far;
    Some(match (near(to_opener, to_accepter), near(to_accepter, to_opener)) {
        (true, _) if opener_is_first => TakenAt::Opener,
        (true, _) => TakenAt::Acceptor,
        (_, true) if opener_is_first => TakenAt::Acceptor,
        (_, true) => TakenAt::Opener,
        _ => TakenAt::Between,
    })
}

/// Returns the handovers: changes from a subflow that then carries no data for at least a second.
/// The new subflow began to carry data while the old one was in use, or after it.
fn handovers(subflows: &[&TracedSubflow], side: usize) -> Vec<SubflowHandover> {
    let mut uses: Vec<(u32, u64, u64)> = Vec::new();
    for subflow in subflows {
        let Some(direction) = subflow.directions.get(side) else { continue };
        let number = u32::from(subflow.number);
        uses.extend(direction.active_periods.iter().map(|(from, until)| (number, *from, *until)));
    }
    let mut found = Vec::new();
    for &(old, began, left) in &uses {
        // The next subflow started after the old one did, and continued after the old one stopped.
        let next = uses.iter().filter(|(new, from, until)| {
            *new != old && *from > began && *until > left.saturating_add(ABANDONED_AFTER_NS)
        });
        let Some(&(to, first_new_ns, _)) = next.min_by_key(|(_, from, _)| *from) else { continue };
        let back =
            uses.iter().any(|(same, from, _)| *same == old && *from > left && *from < first_new_ns);
        if back {
            continue;
        }
        let overlap_ns = left.cast_signed().saturating_sub(first_new_ns.cast_signed());
        found.push(SubflowHandover { from: old, to, first_new_ns, last_old_ns: left, overlap_ns });
    }
    found.sort_by_key(|handover| handover.first_new_ns);
    found
}
