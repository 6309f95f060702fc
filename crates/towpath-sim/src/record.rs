//! Records of a run, of the same kinds as in the emulated world.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_mptcp::stack::{
    ConnectionStatus, FallbackReason, StackDecision, StackNotice, SubflowStatus,
};
use towpath_mptcp::subflow::{CloseReason, SubflowStats, TcpState};
use towpath_multipath::scheduler::SwitchReason;
use towpath_net::Instant;
use towpath_result::{
    ConnectionState, Event, EventKind, Interval, Record, ReinjectionCause, Subflow, SubflowEnd,
    SubflowSummary,
};
use towpath_run::decisions::{DecisionLog, StackTotals};
use towpath_scenario::flow_plan::directions;
use towpath_scenario::network::{endpoints, path_of};
use towpath_scenario::{DataDirection, Scenario};
use towpath_wire::ConnectionId;

use crate::error::SimError;
use crate::host::SimHost;
use crate::network::SimNetwork;
use crate::quic_record::path_state;
use crate::socket::StreamSocket;
use crate::traffic::SimStream;

/// Callback that receives each record of a run.
pub(crate) type RecordSink<'a> = &'a mut dyn FnMut(&Record) -> io::Result<()>;

/// A subflow's identity: stream, then the opener's and the acceptor's address. A QUIC path may
/// succeed another one between the same addresses, so its number is included; 0 for TCP.
type SubflowKey = (usize, SocketAddr, SocketAddr, u32);

/// Data about one subflow over the whole run.
#[derive(Debug)]
struct SubflowTrack {
    number: u32,
    path: String,
    backup: bool,
    first_seen: Instant,
    closed_at: Option<Instant>,
    /// Latest statistics of the opener's and the acceptor's end.
    ends: [SubflowStats; 2],
}

/// Writes records and keeps the data for the summary.
pub(crate) struct SimRecorder<'a> {
    scenario: &'a Scenario,
    write: RecordSink<'a>,
    /// First write error.
    write_result: io::Result<()>,
    subflows: BTreeMap<SubflowKey, SubflowTrack>,
    /// Bytes counted so far, by stream and direction.
    counted_bytes: BTreeMap<(usize, DataDirection), u64>,
    /// Time that the peer's window has blocked sending so far, by stream and end.
    window_blocked: BTreeMap<(usize, usize), Duration>,
    /// Logs of stack decisions, by host and connection.
    decisions: BTreeMap<(usize, ConnectionId), DecisionLog>,
    pub(crate) stack_totals: StackTotals,
    /// Longest smoothed round-trip time so far.
    pub(crate) longest_srtt: Duration,
    /// Host and reason of each fallback.
    pub(crate) fallbacks: Vec<(String, FallbackReason)>,
    /// Number of notices, by host and counter name.
    pub(crate) notices: BTreeMap<(String, &'static str), u64>,
}

impl std::fmt::Debug for SimRecorder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("subflows", &self.subflows).finish_non_exhaustive()
    }
}

/// Returns an event without time, host and path.
pub(crate) fn event(kind: EventKind, text: String) -> Event {
    Event { t_ns: 0, kind, host: None, path: None, text, detail: BTreeMap::new() }
}

impl<'a> SimRecorder<'a> {
    pub(crate) fn new(scenario: &'a Scenario, write: RecordSink<'a>) -> Self {
        Self {
            scenario,
            write,
            write_result: Ok(()),
            subflows: BTreeMap::new(),
            counted_bytes: BTreeMap::new(),
            window_blocked: BTreeMap::new(),
            decisions: BTreeMap::new(),
            stack_totals: StackTotals::default(),
            longest_srtt: Duration::ZERO,
            fallbacks: Vec::new(),
            notices: BTreeMap::new(),
        }
    }

    /// Writes a record. After a failure nothing more is written.
    pub(crate) fn add(&mut self, record: &Record) {
        if self.write_result.is_ok() {
            self.write_result = (self.write)(record);
        }
    }

    /// Returns the first write error.
    pub(crate) fn check(&mut self) -> Result<(), SimError> {
        std::mem::replace(&mut self.write_result, Ok(())).map_err(SimError::Write)
    }

    pub(crate) fn add_event(&mut self, now: Instant, path: Option<usize>, event: Event) {
        let path = path.and_then(|path| self.scenario.paths.get(path)).map(|p| p.name.clone());
        let path = path.or_else(|| event.path.clone());
        self.add(&Record::Event(Event { t_ns: now.as_nanos(), path, ..event }));
    }

    /// Returns the path's name, if the path exists.
    pub(crate) fn path_name(&self, path: usize) -> Option<&str> {
        self.scenario.paths.get(path).map(|path| path.name.as_str())
    }

    /// Records a notice about subflows, addresses or fallback.
    pub(crate) fn notice(
        &mut self,
        now: Instant,
        host: &str,
        status: Option<&ConnectionStatus>,
        notice: StackNotice,
    ) {
        let (kind, counter, number, event_text) = match notice {
            StackNotice::SubflowEstablished { number, .. } => {
                (EventKind::Subflow, "SubflowsEstablished", Some(number), "established".to_owned())
            }
            StackNotice::SubflowClosed { number, reason, .. } => {
                let text = format!("closed: {}", reason_text(reason));
                (EventKind::Subflow, "SubflowsClosed", Some(number), text)
            }
            StackNotice::Priority { number, backup } => {
                let text = if backup { "is a backup now" } else { "is not a backup any more" };
                (EventKind::Subflow, "PriorityChanges", Some(number), text.to_owned())
            }
            StackNotice::Stale { number, stale } => {
                let text = if stale { "is stale" } else { "is alive again" };
                (EventKind::Subflow, "StaleChanges", Some(number), text.to_owned())
            }
            StackNotice::AddressAnnounced { address_id, address } => {
                let text = format!("address {address} announced (id {address_id})");
                (EventKind::PathManager, "AddressesAnnounced", None, text)
            }
            StackNotice::AddressWithdrawn { address_id } => {
                let text = format!("address with id {address_id} withdrawn");
                (EventKind::PathManager, "AddressesWithdrawn", None, text)
            }
            StackNotice::Fallback(reason) => {
                self.fallbacks.push((host.to_owned(), reason));
                let text = format!("plain TCP from now on: {reason}");
                (EventKind::Fallback, "Fallbacks", None, text)
            }
        };
        *self.notices.entry((host.to_owned(), counter)).or_default() += 1;
        let subflow = number.and_then(|n| status?.subflows.iter().find(|s| s.number == n));
        let path = subflow.and_then(subflow_path);
        let name = path.and_then(|path| self.scenario.paths.get(path)).map(|p| p.name.as_str());
        let text = match (number, name) {
            (Some(number), Some(path)) => format!("subflow {number} on {path} {event_text}"),
            (Some(number), None) => format!("subflow {number} {event_text}"),
            (None, _) => event_text,
        };
        let mut record = Event { host: Some(host.to_owned()), ..event(kind, text) };
        if let Some(subflow) = subflow {
            record.detail.insert("local".to_owned(), subflow.local.to_string());
            record.detail.insert("remote".to_owned(), subflow.remote.to_string());
        }
        self.add_event(now, path, record);
    }

    /// Adds a decision of the stack to its log. Samples sum decisions up: there are too many to
    /// record each.
    pub(crate) fn trace(
        &mut self,
        now: Instant,
        (host, name): (usize, &str),
        connection: ConnectionId,
        trace: StackDecision,
    ) {
        let decisions = self.decisions.entry((host, connection)).or_default();
        let window_change = match trace {
            StackDecision::Scheduled { number, run_bytes, reason } => {
                decisions.scheduled(number, run_bytes, reason.map(SwitchReason::name));
                None
            }
            StackDecision::Reinjected { number, bytes, cause: stack_cause } => {
                decisions.reinjected(number, bytes, reinjection_cause(stack_cause));
                None
            }
            StackDecision::Penalised { number } => {
                decisions.penalised(number);
                None
            }
            StackDecision::WindowBlocked(full) => decisions.window(now, full),
        };
        if let Some(window_change) = window_change {
            let event = window_change.event(Instant::ZERO);
            self.add_event(now, None, Event { host: Some(name.to_owned()), ..event });
        }
    }

    /// Records the samples at the end of a period.
    pub(crate) fn sample(
        &mut self,
        (at, span): (Instant, Duration),
        network: &SimNetwork<'_>,
        hosts: &[SimHost],
        streams: &[SimStream],
    ) {
        for (index, stream) in streams.iter().enumerate() {
            let status = stream.ends.each_ref().map(|end| connection_status(hosts, end));
            self.add_intervals((at, span), (index, stream), &status);
            self.sample_subflows((at, span), (index, stream), &status, network);
        }
        self.emit_decisions(at, hosts);
        for link in network.link_records(at) {
            self.add(&Record::Link(link));
        }
    }

    /// Samples every subflow once more for the summary, without a record.
    pub(crate) fn sample_final(
        &mut self,
        now: Instant,
        network: &SimNetwork<'_>,
        hosts: &[SimHost],
        streams: &[SimStream],
    ) {
        for (index, stream) in streams.iter().enumerate() {
            let status = stream.ends.each_ref().map(|end| connection_status(hosts, end));
            for (end, status) in status.iter().enumerate() {
                for subflow in status.iter().flat_map(|status| &status.subflows) {
                    self.update_subflow(
                        (now, Duration::ZERO),
                        (index, stream),
                        (end, subflow),
                        network,
                    );
                }
            }
        }
    }

    fn add_intervals(
        &mut self,
        (at, span): (Instant, Duration),
        (index, stream): (usize, &SimStream),
        status: &[Option<ConnectionStatus>; 2],
    ) {
        let flow = self.scenario.flows.get(stream.flow);
        for direction in flow.map_or(&[][..], |flow| directions(&flow.pattern)) {
            let total = stream.receiver(*direction).received_bytes;
            let counted_before = self.counted_bytes.insert((index, *direction), total).unwrap_or(0);
            let connection = self.connection_state((index, stream), *direction, status);
            let interval = Interval {
                t_ns: at.as_nanos(),
                span_ns: span.as_nanos() as u64,
                flow: stream.flow as u32,
                stream: stream.number,
                direction: *direction,
                bytes: total - counted_before,
                connection,
            };
            self.stack_totals.record(&interval);
            self.add(&Record::Interval(interval));
        }
    }

    fn connection_state(
        &mut self,
        (index, stream): (usize, &SimStream),
        direction: DataDirection,
        [opener, acceptor]: &[Option<ConnectionStatus>; 2],
    ) -> Option<ConnectionState> {
        if stream.transport.is_quic() {
            return None; // the library does not report it
        }
        let (sender, receiver, end) = match direction {
            DataDirection::Down => (acceptor, opener, 1),
            DataDirection::Up | DataDirection::Both => (opener, acceptor, 0),
        };
        let (sender, receiver) = (sender.as_ref()?, receiver.as_ref()?);
        let blocked_before =
            self.window_blocked.insert((index, end), sender.window_blocked).unwrap_or_default();
        let by_cause = ReinjectionCause::ALL.into_iter().zip(sender.reinjected_bytes);
        let sending_connection =
            stream.ends.get(end).and_then(|end| Some((end.host, end.socket?.tcp()?)));
        let decisions = sending_connection.and_then(|key| self.decisions.get(&key));
        Some(ConnectionState {
            reorder_bytes: Some(receiver.reorder_bytes),
            receive_buffer_bytes: Some(receiver.receive_buffer_bytes),
            reorder_peak_bytes: Some(receiver.reorder_peak_bytes),
            reinjected_bytes: Some(sender.reinjected_bytes.iter().sum()),
            reinjected_by_cause: by_cause.filter(|(_, bytes)| *bytes > 0).collect(),
            discarded_bytes: Some(receiver.discarded_bytes),
            window_blocked_ns: Some(
                sender.window_blocked.saturating_sub(blocked_before).as_nanos() as u64,
            ),
            penalisations: Some(sender.penalisations),
            switches: Some(decisions.map_or(0, DecisionLog::switches)),
        })
    }

    fn sample_subflows(
        &mut self,
        time_and_span: (Instant, Duration),
        (index, stream): (usize, &SimStream),
        status: &[Option<ConnectionStatus>; 2],
        network: &SimNetwork<'_>,
    ) {
        let flow = self.scenario.flows.get(stream.flow);
        let directions = flow.map_or(&[][..], |flow| directions(&flow.pattern));
        for (end, status) in status.iter().enumerate() {
            for subflow in status.iter().flat_map(|status| &status.subflows) {
                let updated =
                    self.update_subflow(time_and_span, (index, stream), (end, subflow), network);
                let Some((key, previous)) = updated else { continue };
                let Some(track) = self.subflows.get(&key) else { continue };
                let describe_direction = |direction: &DataDirection| {
                    let sends = (*direction == DataDirection::Up) == (end == 0);
                    subflow_record(
                        stream,
                        (track, subflow),
                        (*direction, sends),
                        &previous,
                        time_and_span,
                    )
                };
                let records: Vec<_> = directions.iter().map(describe_direction).collect();
                for record in records {
                    self.add(&Record::Subflow(Box::new(record)));
                }
            }
        }
    }

    /// Stores a subflow's statistics; returns its key and the previous ones, unless the subflow
    /// was already closed.
    fn update_subflow(
        &mut self,
        (at, _): (Instant, Duration),
        (index, stream): (usize, &SimStream),
        (end, subflow): (usize, &SubflowStatus),
        network: &SimNetwork<'_>,
    ) -> Option<(SubflowKey, SubflowStats)> {
        let path = subflow_path(subflow);
        let untranslated =
            |address| path.map_or(address, |path| network.untranslated_address(path, address));
        let number = if stream.transport.is_quic() { subflow.number } else { 0 };
        let key = match end {
            0 => (index, subflow.local, subflow.remote, number),
            _ => (index, untranslated(subflow.remote), subflow.local, number),
        };
        if !self.subflows.contains_key(&key) {
            let number = self.subflows.keys().filter(|key| key.0 == index).count() as u32;
            let scenario_path = path.and_then(|path| self.scenario.paths.get(path));
            let backup = path.zip(scenario_path).is_some_and(|(index, path)| {
                let [first, _] = path.between;
                endpoints(self.scenario, first).iter().any(|e| e.path == index && e.backup)
            });
            let track = SubflowTrack {
                number,
                path: scenario_path.map_or_else(|| "unknown".to_owned(), |path| path.name.clone()),
                backup: backup || subflow.backup,
                first_seen: at,
                closed_at: None,
                ends: [SubflowStats::default(); 2],
            };
            self.subflows.insert(key, track);
        }
        self.longest_srtt = self.longest_srtt.max(subflow.tcp.srtt);
        let track = self.subflows.get_mut(&key)?;
        if subflow.state == TcpState::Closed {
            let already_closed = track.closed_at.is_some_and(|closed| closed < at);
            track.closed_at.get_or_insert(at);
            if already_closed {
                return None;
            }
        }
        let latest = track.ends.get_mut(end)?;
        Some((key, std::mem::replace(latest, subflow.tcp)))
    }

    fn emit_decisions(&mut self, at: Instant, hosts: &[SimHost]) {
        // Two logs belong to a single connection, which its two hosts identify without a number.
        let has_several_connections = self.decisions.len() > 2;
        let mut events = Vec::new();
        for ((host, connection), decisions) in &mut self.decisions {
            let Some(host) = hosts.get(*host) else { continue };
            let status = host.stack.status(*connection);
            let path_of = |number: u32| {
                let subflows = status.iter().flat_map(|status| &status.subflows);
                let path = subflow_path(subflows.clone().find(|s| s.number == number)?)?;
                self.scenario.paths.get(path).map(|path| path.name.clone())
            };
            let stream = host.ends.get(&StreamSocket::Tcp(*connection)).map(|(stream, _)| *stream);
            for mut event in decisions.take(path_of) {
                event.host = Some(host.name.clone());
                if let Some(stream) = stream.filter(|_| has_several_connections) {
                    event.detail.insert("stream".to_owned(), stream.to_string());
                }
                events.push(event);
            }
        }
        for event in events {
            self.add_event(at, None, event);
        }
    }

    /// Returns the totals of every subflow.
    pub(crate) fn totals(&self, streams: &[SimStream]) -> Vec<SubflowSummary> {
        let mut totals = Vec::new();
        for (key, track) in &self.subflows {
            let Some(stream) = streams.get(key.0) else { continue };
            let flow = self.scenario.flows.get(stream.flow);
            for direction in flow.map_or(&[][..], |flow| directions(&flow.pattern)) {
                totals.push(subflow_summary(*key, stream, track, *direction));
            }
        }
        totals
    }
}

/// Returns the path of a subflow.
fn subflow_path(subflow: &SubflowStatus) -> Option<usize> {
    path_of(subflow.local.ip(), subflow.remote.ip())
}

fn connection_status(hosts: &[SimHost], end: &crate::traffic::AppEnd) -> Option<ConnectionStatus> {
    hosts.get(end.host)?.status(end.socket?)
}

fn subflow_summary(
    key: SubflowKey,
    stream: &SimStream,
    track: &SubflowTrack,
    direction: DataDirection,
) -> SubflowSummary {
    let [opener, acceptor] = &track.ends;
    let (sender, receiver) =
        if direction == DataDirection::Down { (acceptor, opener) } else { (opener, acceptor) };
    SubflowSummary {
        flow: stream.flow as u32,
        stream: stream.number,
        direction,
        subflow: track.number,
        path: track.path.clone(),
        local: key.1.to_string(),
        remote: key.2.to_string(),
        backup: track.backup,
        bytes: receiver.received_bytes,
        share: 0.0,
        retransmissions: sender.retransmissions,
        srtt_us: micros(sender.srtt),
        first_seen_ns: track.first_seen.as_nanos(),
        closed_ns: track.closed_at.map(Instant::as_nanos),
    }
}

fn subflow_record(
    stream: &SimStream,
    (track, subflow): (&SubflowTrack, &SubflowStatus),
    (direction, sends): (DataDirection, bool),
    previous: &SubflowStats,
    (at, span): (Instant, Duration),
) -> Subflow {
    let current = &subflow.tcp;
    let bytes = if sends {
        current.acked_bytes.saturating_sub(previous.acked_bytes)
    } else {
        current.received_bytes.saturating_sub(previous.received_bytes)
    };
    let packets = |bytes: u64| narrow(bytes / u64::from(current.mss_bytes.max(1)));
    Subflow {
        t_ns: at.as_nanos(),
        span_ns: span.as_nanos() as u64,
        flow: stream.flow as u32,
        stream: stream.number,
        direction,
        side: if sends { SubflowEnd::Sender } else { SubflowEnd::Receiver },
        subflow: track.number,
        path: track.path.clone(),
        state: if stream.transport.is_quic() {
            path_state(subflow.state).to_owned()
        } else {
            state_text(subflow.state).to_owned()
        },
        backup: track.backup,
        bytes,
        bytes_sent: current.sent_bytes,
        bytes_acked: current.acked_bytes,
        bytes_received: current.received_bytes,
        srtt_us: micros(current.srtt),
        rttvar_us: micros(current.rttvar),
        rto_us: micros(current.rto),
        backoff: current.timeouts,
        cwnd_packets: packets(current.cwnd_bytes),
        ssthresh_packets: packets(current.ssthresh_bytes),
        in_flight_packets: packets(current.in_flight_bytes),
        retransmissions: narrow(current.retransmissions),
        mss_bytes: current.mss_bytes,
        sender_activity: None,
    }
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn micros(span: Duration) -> u32 {
    u32::try_from(span.as_micros()).unwrap_or(u32::MAX)
}

/// Returns Linux's name of a TCP state.
fn state_text(state: TcpState) -> &'static str {
    match state {
        TcpState::SynSent => "syn-sent",
        TcpState::SynReceived => "syn-received",
        TcpState::Established => "established",
        TcpState::FinWait1 => "fin-wait-1",
        TcpState::FinWait2 => "fin-wait-2",
        TcpState::CloseWait => "close-wait",
        TcpState::Closing => "closing",
        TcpState::LastAck => "last-ack",
        TcpState::TimeWait => "time-wait",
        TcpState::Closed => "closed",
    }
}

fn reason_text(reason: CloseReason) -> &'static str {
    match reason {
        CloseReason::Finished => "both hosts closed it",
        CloseReason::Reset => "the peer reset it",
        CloseReason::Refused => "the peer refused it",
        CloseReason::TimedOut => "timeout without a reply",
        CloseReason::Aborted => "reset by this host",
        CloseReason::Unreachable => "the peer cannot be reached",
    }
}

fn reinjection_cause(cause: towpath_mptcp::stack::ReinjectionCause) -> ReinjectionCause {
    use towpath_mptcp::stack::ReinjectionCause as Cause;

    match cause {
        Cause::Timeout => ReinjectionCause::Timeout,
        Cause::Closed => ReinjectionCause::Closed,
        Cause::Connection => ReinjectionCause::Connection,
        Cause::Opportunistic => ReinjectionCause::Opportunistic,
        Cause::Scheduler => ReinjectionCause::Scheduler,
    }
}
