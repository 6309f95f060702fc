//! Time series: samples of each connection and each subflow in every period.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

use towpath_kernel::sample::{ConnectionSample, SubflowSample, TcpInfo};
use towpath_kernel::subflow::{SubflowLabel, congestion_controls};
use towpath_net::Instant;
use towpath_quic::PathNotice;
use towpath_result::{ConnectionUse, Event, EventKind, Interval, Record, SubflowSummary};
use towpath_run::decisions::StackTotals;
use towpath_run::evidence::Totals;
use towpath_scenario::{DataDirection, Scenario, Transport};
use towpath_sockets::stack::status::{StackSample, direction_state};
use towpath_sockets::stream::quic::QuicStreamHandle;

use crate::network::EmulatedNetwork;
use crate::network::timeline::endpoints;
use crate::traffic::{SampledStream, StreamEndpoint, TrafficContext};

/// Key of a subflow: flow, stream, opener's and acceptor's address, and path number.
type SubflowKey = (u32, u32, SocketAddr, SocketAddr, u32);

/// State of one subflow over the whole run.
#[derive(Debug)]
struct SubflowTrack {
    number: u32,
    path: String,
    backup: bool,
    first_seen: Instant,
    last_seen: Instant,
    closed: Option<Instant>,
    /// Latest samples of the opener's and the acceptor's end.
    ends: [TcpInfo; 2],
    /// Congestion control of both ends, as reported or read back.
    congestion_control: [Option<String>; 2],
}

/// Samples all streams of a run.
#[derive(Debug)]
pub(super) struct RunSeries {
    records: Sender<Record>,
    subflows: BTreeMap<SubflowKey, SubflowTrack>,
    counted_bytes: BTreeMap<(u32, u32, DataDirection), u64>,
    /// Total time in which the sender was blocked by a full window.
    blocked: BTreeMap<(u32, u32, DataDirection), Duration>,
    /// Totals that our own stack reports of its connections.
    stack_totals: StackTotals,
    /// Time of the last sample.
    last_sample: Instant,
    /// True if the congestion control of a subflow has not been read back yet.
    needs_read_back: bool,
    /// Maximum of the reinjected bytes seen, by stream.
    reinjected_bytes: BTreeMap<(u32, u32), u64>,
    /// True if either end of a stream's connection was plain TCP in the last sample.
    fallbacks: BTreeMap<(u32, u32), bool>,
    /// Connections of programs that requested plain TCP.
    plain_tcp: BTreeSet<(u32, u32)>,
    /// Reasons for fallbacks that an end reported, with its host, by stream.
    reasons: BTreeMap<(u32, u32), String>,
    /// First of these reasons.
    reason: Option<String>,
}

impl RunSeries {
    pub(super) fn new(records: Sender<Record>) -> Self {
        Self {
            records,
            subflows: BTreeMap::new(),
            counted_bytes: BTreeMap::new(),
            blocked: BTreeMap::new(),
            stack_totals: StackTotals::default(),
            last_sample: Instant::ZERO,
            needs_read_back: false,
            reinjected_bytes: BTreeMap::new(),
            fallbacks: BTreeMap::new(),
            plain_tcp: BTreeSet::new(),
            reasons: BTreeMap::new(),
            reason: None,
        }
    }

    /// Takes samples at `time`, the end of a period.
    pub(super) fn sample(&mut self, context: &TrafficContext, time: Instant) {
        let span = time.saturating_since(self.last_sample);
        if span.is_zero() {
            return;
        }
        self.last_sample = time;
        for stream in context.streams() {
            let statuses = self.collect_stack_status(context, &stream, time);
            self.record_intervals(&stream, &statuses, time, span);
            self.sample_subflows(context, &stream, time, span);
        }
        self.count_datagrams(context, time, span);
        self.emit_closed_subflows(time);
        if self.needs_read_back {
            // Closed sockets no longer report it.
            self.read_back(&context.network);
        }
    }

    /// Counts the datagrams of constant-rate flows, which have no stream to sample.
    fn count_datagrams(&mut self, context: &TrafficContext, time: Instant, span: Duration) {
        let udp_flows = context.udp_bytes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (flow, direction, received) in udp_flows {
            let total = received.load(Ordering::Relaxed);
            let previous = self.counted_bytes.insert((flow, 0, direction), total).unwrap_or(0);
            let (t_ns, span_ns) = (time.as_nanos(), span.as_nanos() as u64);
            let bytes = total.saturating_sub(previous);
            let (stream, connection) = (0, None);
            self.emit(Record::Interval(Interval {
                t_ns,
                span_ns,
                flow,
                stream,
                direction,
                bytes,
                connection,
            }));
        }
    }

    fn emit(&self, record: Record) {
        // The writer outlives the series; if it has failed, the run fails with that error.
        let _ = self.records.send(record);
    }

    /// Collects the status of ends that use our own stack and emits their events.
    fn collect_stack_status(
        &self,
        context: &TrafficContext,
        stream: &SampledStream,
        time: Instant,
    ) -> [Option<StackSample>; 2] {
        let sample_end = |end: &StreamEndpoint| match end {
            StreamEndpoint::Kernel(_) | StreamEndpoint::Program(_) => None,
            StreamEndpoint::Own(connection) => {
                let mut snapshot = connection
                    .sample_stack(&context.network.scenario, context.run_clock.start_time())?;
                let host = connection.host.name();
                let decisions = snapshot.decision_events.drain(..);
                let decisions = decisions.map(|event| Event { t_ns: time.as_nanos(), ..event });
                for event in snapshot.blocked_events.drain(..).chain(decisions) {
                    let host = Some(host.to_owned());
                    self.emit(Record::Event(Event { host, ..event }));
                }
                Some(snapshot)
            }
            StreamEndpoint::Quic(end) => {
                self.emit_notices(context, end);
                None
            }
        };
        [sample_end(&stream.client), sample_end(&stream.server)]
    }

    /// Emits an event for each notice about the paths of a QUIC connection.
    fn emit_notices(&self, context: &TrafficContext, stream: &QuicStreamHandle) {
        for path_notice in stream.connection.notices() {
            let path = path_notice.ends.and_then(|(local, remote)| {
                let path = EmulatedNetwork::path_of(local.ip(), remote.ip())?;
                context.network.scenario.paths.get(path).map(|path| path.name.clone())
            });
            let fallback = matches!(path_notice.notice, PathNotice::SinglePath);
            let mut detail = BTreeMap::new();
            if let Some((local, remote)) = path_notice.ends {
                detail.insert("local".to_owned(), local.to_string());
                detail.insert("remote".to_owned(), remote.to_string());
            }
            if let Some((backup, why)) = path_notice.notice.switch() {
                detail.insert("backup".to_owned(), backup.to_string());
                detail.insert("why".to_owned(), why.to_owned());
            }
            self.emit(Record::Event(Event {
                t_ns: path_notice.at.saturating_since(context.run_clock.start_time()).as_nanos()
                    as u64,
                kind: if fallback { EventKind::Fallback } else { EventKind::Subflow },
                host: Some(stream.connection.host.name().to_owned()),
                text: path_notice.notice.text(path.as_deref()),
                path,
                detail,
            }));
        }
    }

    /// Samples program connections and QUIC paths once more for the sums. Neither has a final
    /// `tcp_info`.
    pub(super) fn sample_final_paths(&mut self, context: &TrafficContext) {
        for stream in context.streams() {
            if matches!(stream.client, StreamEndpoint::Program(_)) {
                self.sample_subflows(context, &stream, context.now(), Duration::ZERO);
            }
            for (end_index, endpoint) in [&stream.client, &stream.server].into_iter().enumerate() {
                let StreamEndpoint::Quic(quic_stream) = endpoint else { continue };
                self.emit_notices(context, quic_stream);
                let samples = match quic_stream.sample() {
                    Ok(ConnectionSample::Multipath(_, samples)) => samples,
                    Ok(ConnectionSample::Single(sample, _)) => vec![sample],
                    Err(_) => continue,
                };
                for sample in samples {
                    let key = subflow_key(&stream, end_index, &sample);
                    let track = self.subflows.get_mut(&key);
                    if let Some(latest) = track.and_then(|track| track.ends.get_mut(end_index)) {
                        *latest = sample.info;
                    }
                }
            }
        }
    }

    fn record_intervals(
        &mut self,
        stream: &SampledStream,
        [client, server]: &[Option<StackSample>; 2],
        time: Instant,
        span: Duration,
    ) {
        for (direction, received) in &stream.received {
            let (sender, receiver) = match direction {
                DataDirection::Down => (server.as_ref(), client.as_ref()),
                DataDirection::Up | DataDirection::Both => (client.as_ref(), server.as_ref()),
            };
            let blocked = sender.map(|snapshot| snapshot.status.window_blocked).unwrap_or_default();
            let key = (stream.flow, stream.number, *direction);
            let previous = self.blocked.insert(key, blocked).unwrap_or_default();
            let connection = direction_state(sender, receiver, previous);
            let total = received.load(Ordering::Relaxed);
            let previous =
                self.counted_bytes.entry((stream.flow, stream.number, *direction)).or_default();
            let bytes = total - *previous;
            *previous = total;
            let interval = Interval {
                t_ns: time.as_nanos(),
                span_ns: span.as_nanos() as u64,
                flow: stream.flow,
                stream: stream.number,
                direction: *direction,
                bytes,
                connection,
            };
            self.stack_totals.record(&interval);
            self.emit(Record::Interval(interval));
        }
    }

    fn sample_subflows(
        &mut self,
        context: &TrafficContext,
        stream: &SampledStream,
        time: Instant,
        span: Duration,
    ) {
        let transport = context.transport_of(stream.flow);
        let multipath = matches!(transport, Transport::Mptcp | Transport::Mpquic);
        let id = (stream.flow, stream.number);
        let mut fallen_back = None;
        let ends = [&stream.client, &stream.server];
        let is_plain =
            |end: &&StreamEndpoint| matches!(end, StreamEndpoint::Program(end) if end.is_plain());
        let all_plain = ends.iter().all(is_plain);
        for (end_index, endpoint) in ends.into_iter().enumerate() {
            // A closed socket has no state left.
            let Ok(connection) = endpoint.sample_last(multipath) else { continue };
            let (fallback, samples) = match connection {
                ConnectionSample::Multipath(info, samples) => {
                    let bytes = self.reinjected_bytes.entry(id).or_default();
                    *bytes = (*bytes).max(info.bytes_retrans);
                    (info.fallback, samples)
                }
                ConnectionSample::Single(sample, reason) => {
                    if let Some(reason) = reason {
                        let host = host_name(&context.network.scenario, stream.flow, end_index);
                        let text = format!("{reason} (seen by {host})");
                        self.reason.get_or_insert_with(|| text.clone());
                        self.reasons.entry(id).or_insert(text);
                    }
                    (true, vec![sample])
                }
            };
            // One end in fallback is enough: multipath use needs both ends.
            fallen_back = Some(fallen_back.unwrap_or(false) || fallback);
            for sample in &samples {
                self.add_sample(context, stream, end_index, sample, time, span);
            }
        }
        let is_program = matches!(stream.client, StreamEndpoint::Program(_));
        match fallen_back {
            // A connection may turn out to be plain TCP only after the first sample.
            Some(_) if all_plain => drop(self.plain_tcp.insert(id)),
            // A flow that did not request Multipath TCP is not evidence.
            Some(fallback) if multipath || is_program => {
                self.plain_tcp.remove(&id);
                self.fallbacks.insert(id, fallback);
            }
            Some(_) | None => {}
        }
    }

    fn add_sample(
        &mut self,
        context: &TrafficContext,
        stream: &SampledStream,
        end_index: usize,
        sample: &SubflowSample,
        time: Instant,
        span: Duration,
    ) {
        let key = subflow_key(stream, end_index, sample);
        if !self.subflows.contains_key(&key) {
            self.on_first_sample(context, key, time);
        }
        let Some(track) = self.subflows.get_mut(&key) else { return };
        if sample.info.state == TcpInfo::QUIC_ABANDONED {
            let closed = *track.closed.get_or_insert(time);
            if closed < time {
                return;
            }
        }
        track.last_seen = time;
        if let Some(name) = track.congestion_control.get_mut(end_index) {
            *name = sample.congestion_control.map(str::to_owned).or(name.take());
        }
        let Some(latest) = track.ends.get_mut(end_index) else { return };
        let previous = std::mem::replace(latest, sample.info);
        let records: Vec<Record> = stream
            .received
            .iter()
            .map(|(direction, _)| {
                let sends = (*direction == DataDirection::Up) == (end_index == 0);
                let label = SubflowLabel {
                    flow: key.0,
                    stream: key.1,
                    number: track.number,
                    path: &track.path,
                    backup: track.backup,
                };
                let infos = (&previous, &sample.info);
                Record::Subflow(Box::new(label.record(*direction, sends, infos, (time, span))))
            })
            .collect();
        for record in records {
            self.emit(record);
        }
    }

    fn on_first_sample(&mut self, context: &TrafficContext, key: SubflowKey, time: Instant) {
        let (flow, stream, opener, acceptor, _) = key;
        let same_stream = |other: &&SubflowKey| other.0 == flow && other.1 == stream;
        let number = self.subflows.keys().filter(same_stream).count() as u32;
        let scenario = &context.network.scenario;
        let index = EmulatedNetwork::path_of(opener.ip(), acceptor.ip());
        let path = index.and_then(|index| scenario.paths.get(index));
        let backup = path.zip(index).is_some_and(|(path, index)| {
            endpoints(scenario, path.between[0]).iter().any(|e| e.path == index && e.backup)
        });
        let name = path.map_or_else(|| "unknown".to_owned(), |path| path.name.clone());
        self.emit(Record::Event(Event {
            t_ns: time.as_nanos(),
            kind: EventKind::Subflow,
            host: None,
            path: Some(name.clone()),
            text: format!("subflow {number} first seen on {name}: {opener} → {acceptor}"),
            detail: BTreeMap::new(),
        }));
        self.needs_read_back = true;
        self.subflows.insert(
            key,
            SubflowTrack {
                number,
                path: name,
                backup,
                first_seen: time,
                last_seen: time,
                closed: None,
                ends: [TcpInfo::default(); 2],
                congestion_control: [None, None],
            },
        );
    }

    fn emit_closed_subflows(&mut self, time: Instant) {
        let mut closed = Vec::new();
        for track in self.subflows.values_mut() {
            if track.closed.is_none() && track.last_seen < time {
                track.closed = Some(track.last_seen);
                closed.push((track.number, track.path.clone()));
            }
        }
        for (number, path) in closed {
            self.emit(Record::Event(Event {
                t_ns: time.as_nanos(),
                kind: EventKind::Subflow,
                host: None,
                path: Some(path.clone()),
                text: format!("subflow {number} on {path} is gone"),
                detail: BTreeMap::new(),
            }));
        }
    }

    /// Reads back the congestion control that the subflows really use.
    ///
    /// It comes from the TCP sockets: the connection itself only reports the requested one.
    fn read_back(&mut self, network: &EmulatedNetwork) {
        self.needs_read_back = false;
        let mut controls = Vec::new();
        for host in &network.hosts {
            controls.extend(host.namespace.run(congestion_controls).unwrap_or_default());
        }
        for ((_, _, opener, acceptor, _), track) in &mut self.subflows {
            let ends = [(*opener, *acceptor), (*acceptor, *opener)];
            for (name, end) in track.congestion_control.iter_mut().zip(ends) {
                let control = controls.iter().find(|control| (control.0, control.1) == end);
                *name = name.take().or(control.map(|(_, _, name)| name.clone()));
            }
        }
    }

    /// Returns the congestion control of each sender's subflows, by flow and direction.
    pub(super) fn congestion_control(
        &mut self,
        network: &EmulatedNetwork,
        streams: &[SampledStream],
    ) -> BTreeMap<(u32, DataDirection), Vec<String>> {
        self.read_back(network);
        let mut names_by_direction: BTreeMap<(u32, DataDirection), Vec<String>> = BTreeMap::new();
        for ((flow, number, _, _, _), track) in &self.subflows {
            let stream = streams.iter().find(|s| (s.flow, s.number) == (*flow, *number));
            for (direction, _) in stream.into_iter().flat_map(|stream| &stream.received) {
                let [opener, acceptor] = &track.congestion_control;
                let reported = if *direction == DataDirection::Down { acceptor } else { opener };
                let names = names_by_direction.entry((*flow, *direction)).or_default();
                if let Some(name) = reported.as_ref().filter(|name| !names.contains(name)) {
                    names.push(name.clone());
                }
            }
        }
        names_by_direction
    }

    /// Stores the final `tcp_info` of a destroyed socket, seen from `local`. It arrives after the
    /// socket's row has left the samples.
    pub(super) fn on_final_tcp_info(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        info: TcpInfo,
    ) {
        for (key, track) in &mut self.subflows {
            let end_index = if (key.2, key.3) == (local, remote) {
                0
            } else if (key.3, key.2) == (local, remote) {
                1
            } else {
                continue;
            };
            // Linux clears the counters of a connection's first subflow before it is destroyed.
            let is_reset = |latest: &TcpInfo| {
                info.bytes_received < latest.bytes_received || info.bytes_acked < latest.bytes_acked
            };
            if let Some(latest) = track.ends.get_mut(end_index).filter(|latest| !is_reset(latest)) {
                *latest = info;
            }
        }
    }

    /// Returns the sums over all subflows and connections.
    pub(super) fn totals(&self, streams: &[SampledStream]) -> Totals {
        let mut subflows = Vec::new();
        for (key, track) in &self.subflows {
            let directions = streams
                .iter()
                .find(|stream| (stream.flow, stream.number) == (key.0, key.1))
                .map(|stream| stream.received.iter().map(|(direction, _)| *direction));
            for direction in directions.into_iter().flatten() {
                subflows.push(track.summary(*key, direction));
            }
        }
        let single = self.fallbacks.values().filter(|fallback| **fallback).count();
        let connections = self.fallbacks.iter().map(|(id, fallback)| ConnectionUse {
            flow: id.0,
            multipath: !fallback,
            reason: self.reasons.get(id).cloned(),
        });
        Totals {
            subflows,
            reinjected_bytes: self.reinjected_bytes.values().sum(),
            multipath: self.fallbacks.len() - single,
            single,
            connections: connections.collect(),
            plain_tcp: self.plain_tcp.len(),
            reason: self.reason.clone(),
            stack: self.stack_totals.clone(),
        }
    }
}

/// Returns the host at the opener's or the acceptor's end of a flow's connections.
fn host_name(scenario: &Scenario, flow: u32, end_index: usize) -> &str {
    let flow = scenario.flows.get(flow as usize);
    let host = flow.map(|flow| if end_index == 0 { flow.from } else { flow.to });
    host.and_then(|host| scenario.hosts.get(host)).map_or("?", |host| host.name.as_str())
}

impl SubflowTrack {
    fn summary(&self, key: SubflowKey, direction: DataDirection) -> SubflowSummary {
        let [opener, acceptor] = &self.ends;
        let (sender, receiver) =
            if direction == DataDirection::Down { (acceptor, opener) } else { (opener, acceptor) };
        SubflowSummary {
            flow: key.0,
            stream: key.1,
            direction,
            subflow: self.number,
            path: self.path.clone(),
            local: key.2.to_string(),
            remote: key.3.to_string(),
            backup: self.backup,
            bytes: receiver.bytes_received,
            share: 0.0,
            retransmissions: u64::from(sender.total_retrans),
            srtt_us: sender.srtt_us,
            first_seen_ns: self.first_seen.as_nanos(),
            closed_ns: self.closed.map(Instant::as_nanos),
        }
    }
}

/// Returns the identity of a subflow, sampled at one end.
fn subflow_key(stream: &SampledStream, end_index: usize, sample: &SubflowSample) -> SubflowKey {
    let (opener, acceptor) = match end_index {
        0 => (sample.local, sample.remote),
        _ => (sample.remote, sample.local),
    };
    (stream.flow, stream.number, opener, acceptor, sample.number)
}
