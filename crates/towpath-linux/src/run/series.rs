//! Time series: samples of each connection and each subflow in every period.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;
use std::time::Duration;

use towpath_measure::decisions::StackTotals;
use towpath_measure::result::{Event, EventKind, Interval, Record, SubflowSummary};
use towpath_measure::scenario::{DataDirection, Scenario, Transport};
use towpath_net::Instant;
use towpath_quic::PathNotice;

use crate::network::EmulatedNetwork;
use crate::network::timeline::endpoints;
use crate::sample::{ConnectionSample, SubflowSample, TcpInfo};
use crate::stack::status::{StackSample, direction_state};
use crate::subflow::{SubflowLabel, congestion_controls};
use crate::traffic::quic::QuicStreamHandle;
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
    counted: BTreeMap<(u32, u32, DataDirection), u64>,
    /// Total time in which the sender was blocked by a full window.
    blocked: BTreeMap<(u32, u32, DataDirection), Duration>,
    /// Totals that our own stack reports of its connections.
    log: StackTotals,
    at: Instant,
    /// True if the congestion control of a subflow has not been read back yet.
    needs_read_back: bool,
    /// Maximum of the reinjected bytes seen, by stream.
    reinjected_bytes: BTreeMap<(u32, u32), u64>,
    /// True if either end of a stream's connection was plain TCP in the last sample.
    fallbacks: BTreeMap<(u32, u32), bool>,
    /// Connections of programs that requested plain TCP.
    plain_tcp: BTreeSet<(u32, u32)>,
    /// Reason for the first fallback that an end reported, with its host.
    reason: Option<String>,
}

/// Totals of the series for the summary.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) subflows: Vec<SubflowSummary>,
    pub(crate) reinjected_bytes: u64,
    /// Number of connections that used Multipath TCP in the last sample, and of those that did
    /// not.
    pub(crate) multipath: usize,
    pub(crate) single: usize,
    /// Number of connections of programs that requested plain TCP.
    pub(crate) plain_tcp: usize,
    /// Reason for a fallback, if an end reported one.
    pub(crate) reason: Option<String>,
    pub(crate) stack: StackTotals,
}

impl RunSeries {
    pub(super) fn new(records: Sender<Record>) -> Self {
        Self {
            records,
            subflows: BTreeMap::new(),
            counted: BTreeMap::new(),
            blocked: BTreeMap::new(),
            log: StackTotals::default(),
            at: Instant::ZERO,
            needs_read_back: false,
            reinjected_bytes: BTreeMap::new(),
            fallbacks: BTreeMap::new(),
            plain_tcp: BTreeSet::new(),
            reason: None,
        }
    }

    /// Takes samples at `at`, the end of a period.
    pub(super) fn sample(&mut self, stage: &TrafficContext, at: Instant) {
        let span = at.saturating_since(self.at);
        if span.is_zero() {
            return;
        }
        self.at = at;
        for stream in stage.streams() {
            let statuses = self.collect_stack_status(stage, &stream, at);
            self.count(&stream, &statuses, at, span);
            self.sample_subflows(stage, &stream, at, span);
        }
        self.count_datagrams(stage, at, span);
        self.notice_closed(at);
        if self.needs_read_back {
            // Closed sockets no longer report it.
            self.read_back(&stage.network);
        }
    }

    /// Counts the datagrams of constant-rate flows, which have no stream to sample.
    fn count_datagrams(&mut self, stage: &TrafficContext, at: Instant, span: Duration) {
        let steady = stage.udp_bytes.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (flow, direction, received) in steady {
            let total = received.load(Ordering::Relaxed);
            let before = self.counted.insert((flow, 0, direction), total).unwrap_or(0);
            let (t_ns, span_ns) = (at.as_nanos(), span.as_nanos() as u64);
            let bytes = total.saturating_sub(before);
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
        stage: &TrafficContext,
        stream: &SampledStream,
        at: Instant,
    ) -> [Option<StackSample>; 2] {
        let ask = |end: &StreamEndpoint| match end {
            StreamEndpoint::Kernel(_) | StreamEndpoint::Program(_) => None,
            StreamEndpoint::Own(connection) => {
                let mut snapshot =
                    connection.sample_stack(&stage.network.scenario, stage.pace.zero())?;
                let host = connection.host.name();
                let decided = snapshot.decided.drain(..);
                let decided = decided.map(|event| Event { t_ns: at.as_nanos(), ..event });
                for event in snapshot.blocked.drain(..).chain(decided) {
                    let host = Some(host.to_owned());
                    self.emit(Record::Event(Event { host, ..event }));
                }
                Some(snapshot)
            }
            StreamEndpoint::Quic(end) => {
                self.emit_notices(stage, end);
                None
            }
        };
        [ask(&stream.client), ask(&stream.server)]
    }

    /// Emits an event for each notice about the paths of a QUIC connection.
    fn emit_notices(&self, stage: &TrafficContext, end: &QuicStreamHandle) {
        for noticed in end.connection.notices() {
            let path = noticed.ends.and_then(|(local, remote)| {
                let path = EmulatedNetwork::path_of(local.ip(), remote.ip())?;
                stage.network.scenario.paths.get(path).map(|path| path.name.clone())
            });
            let fallback = matches!(noticed.notice, PathNotice::SinglePath);
            let mut detail = BTreeMap::new();
            if let Some((local, remote)) = noticed.ends {
                detail.insert("local".to_owned(), local.to_string());
                detail.insert("remote".to_owned(), remote.to_string());
            }
            if let Some((backup, why)) = noticed.notice.switch() {
                detail.insert("backup".to_owned(), backup.to_string());
                detail.insert("why".to_owned(), why.to_owned());
            }
            self.emit(Record::Event(Event {
                t_ns: noticed.at.saturating_since(stage.pace.zero()).as_nanos() as u64,
                kind: if fallback { EventKind::Fallback } else { EventKind::Subflow },
                host: Some(end.connection.host.name().to_owned()),
                text: noticed.notice.text(path.as_deref()),
                path,
                detail,
            }));
        }
    }

    /// Samples program connections and QUIC paths once more for the sums. Neither has a final
    /// `tcp_info`.
    pub(super) fn sample_final_paths(&mut self, stage: &TrafficContext) {
        for stream in stage.streams() {
            if matches!(stream.client, StreamEndpoint::Program(_)) {
                self.sample_subflows(stage, &stream, stage.now(), Duration::ZERO);
            }
            for (end, asked) in [&stream.client, &stream.server].into_iter().enumerate() {
                let StreamEndpoint::Quic(own) = asked else { continue };
                self.emit_notices(stage, own);
                let samples = match own.sample() {
                    Ok(ConnectionSample::Multipath(_, samples)) => samples,
                    Ok(ConnectionSample::Single(sample, _)) => vec![sample],
                    Err(_) => continue,
                };
                for sample in samples {
                    let key = key_of(&stream, end, &sample);
                    let known = self.subflows.get_mut(&key);
                    if let Some(latest) = known.and_then(|known| known.ends.get_mut(end)) {
                        *latest = sample.info;
                    }
                }
            }
        }
    }

    fn count(
        &mut self,
        stream: &SampledStream,
        [client, server]: &[Option<StackSample>; 2],
        at: Instant,
        span: Duration,
    ) {
        for (direction, received) in &stream.received {
            let (sender, receiver) = match direction {
                DataDirection::Down => (server.as_ref(), client.as_ref()),
                DataDirection::Up | DataDirection::Both => (client.as_ref(), server.as_ref()),
            };
            let blocked = sender.map(|snapshot| snapshot.status.window_blocked).unwrap_or_default();
            let key = (stream.flow, stream.number, *direction);
            let before = self.blocked.insert(key, blocked).unwrap_or_default();
            let connection = direction_state(sender, receiver, before);
            let total = received.load(Ordering::Relaxed);
            let before = self.counted.entry((stream.flow, stream.number, *direction)).or_default();
            let bytes = total - *before;
            *before = total;
            let interval = Interval {
                t_ns: at.as_nanos(),
                span_ns: span.as_nanos() as u64,
                flow: stream.flow,
                stream: stream.number,
                direction: *direction,
                bytes,
                connection,
            };
            self.log.record(&interval);
            self.emit(Record::Interval(interval));
        }
    }

    fn sample_subflows(
        &mut self,
        stage: &TrafficContext,
        stream: &SampledStream,
        at: Instant,
        span: Duration,
    ) {
        let transport = stage.transport_of(stream.flow);
        let multipath = matches!(transport, Transport::Mptcp | Transport::Mpquic);
        let id = (stream.flow, stream.number);
        let mut fallen_back = None;
        let ends = [&stream.client, &stream.server];
        let own =
            |end: &&StreamEndpoint| matches!(end, StreamEndpoint::Program(end) if end.is_plain());
        let plain = ends.iter().all(own);
        for (end, asked) in ends.into_iter().enumerate() {
            // A closed socket has no state left.
            let Ok(connection) = asked.sample_last(multipath) else { continue };
            let (fallback, samples) = match connection {
                ConnectionSample::Multipath(info, samples) => {
                    let bytes = self.reinjected_bytes.entry(id).or_default();
                    *bytes = (*bytes).max(info.bytes_retrans);
                    (info.fallback, samples)
                }
                ConnectionSample::Single(sample, why) => {
                    if let (Some(why), None) = (why, &self.reason) {
                        let host = host_name(&stage.network.scenario, stream.flow, end);
                        self.reason = Some(format!("{why} (seen by {host})"));
                    }
                    (true, vec![sample])
                }
            };
            // One end in fallback is enough: multipath use needs both ends.
            fallen_back = Some(fallen_back.unwrap_or(false) || fallback);
            for sample in &samples {
                self.add_sample(stage, stream, end, sample, at, span);
            }
        }
        let of_program = matches!(stream.client, StreamEndpoint::Program(_));
        match fallen_back {
            // A connection may turn out to be plain TCP only after the first sample.
            Some(_) if plain => drop(self.plain_tcp.insert(id)),
            // A flow that did not request Multipath TCP is not evidence.
            Some(fallback) if multipath || of_program => {
                self.plain_tcp.remove(&id);
                self.fallbacks.insert(id, fallback);
            }
            Some(_) | None => {}
        }
    }

    fn add_sample(
        &mut self,
        stage: &TrafficContext,
        stream: &SampledStream,
        end: usize,
        sample: &SubflowSample,
        at: Instant,
        span: Duration,
    ) {
        let key = key_of(stream, end, sample);
        if !self.subflows.contains_key(&key) {
            self.on_first_sample(stage, key, at);
        }
        let Some(known) = self.subflows.get_mut(&key) else { return };
        if sample.info.state == TcpInfo::QUIC_ABANDONED {
            let closed = *known.closed.get_or_insert(at);
            if closed < at {
                return;
            }
        }
        known.last_seen = at;
        if let Some(named) = known.congestion_control.get_mut(end) {
            *named = sample.congestion_control.map(str::to_owned).or(named.take());
        }
        let Some(latest) = known.ends.get_mut(end) else { return };
        let before = std::mem::replace(latest, sample.info);
        let records: Vec<Record> = stream
            .received
            .iter()
            .map(|(direction, _)| {
                let sends = (*direction == DataDirection::Up) == (end == 0);
                let named = SubflowLabel {
                    flow: key.0,
                    stream: key.1,
                    number: known.number,
                    path: &known.path,
                    backup: known.backup,
                };
                let infos = (&before, &sample.info);
                Record::Subflow(Box::new(named.record(*direction, sends, infos, (at, span))))
            })
            .collect();
        for record in records {
            self.emit(record);
        }
    }

    fn on_first_sample(&mut self, stage: &TrafficContext, key: SubflowKey, at: Instant) {
        let (flow, stream, opener, acceptor, _) = key;
        let same = |other: &&SubflowKey| other.0 == flow && other.1 == stream;
        let number = self.subflows.keys().filter(same).count() as u32;
        let scenario = &stage.network.scenario;
        let index = EmulatedNetwork::path_of(opener.ip(), acceptor.ip());
        let path = index.and_then(|index| scenario.paths.get(index));
        let backup = path.zip(index).is_some_and(|(path, index)| {
            endpoints(scenario, path.between[0]).iter().any(|e| e.path == index && e.backup)
        });
        let name = path.map_or_else(|| "unknown".to_owned(), |path| path.name.clone());
        self.emit(Record::Event(Event {
            t_ns: at.as_nanos(),
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
                first_seen: at,
                last_seen: at,
                closed: None,
                ends: [TcpInfo::default(); 2],
                congestion_control: [None, None],
            },
        );
    }

    fn notice_closed(&mut self, at: Instant) {
        let mut gone = Vec::new();
        for known in self.subflows.values_mut() {
            if known.closed.is_none() && known.last_seen < at {
                known.closed = Some(known.last_seen);
                gone.push((known.number, known.path.clone()));
            }
        }
        for (number, path) in gone {
            self.emit(Record::Event(Event {
                t_ns: at.as_nanos(),
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
        for ((_, _, opener, acceptor, _), known) in &mut self.subflows {
            let ends = [(*opener, *acceptor), (*acceptor, *opener)];
            for (named, end) in known.congestion_control.iter_mut().zip(ends) {
                let own = controls.iter().find(|control| (control.0, control.1) == end);
                *named = named.take().or(own.map(|(_, _, name)| name.clone()));
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
        let mut found: BTreeMap<(u32, DataDirection), Vec<String>> = BTreeMap::new();
        for ((flow, number, _, _, _), known) in &self.subflows {
            let stream = streams.iter().find(|s| (s.flow, s.number) == (*flow, *number));
            for (direction, _) in stream.into_iter().flat_map(|stream| &stream.received) {
                let [opener, acceptor] = &known.congestion_control;
                let says = if *direction == DataDirection::Down { acceptor } else { opener };
                let names = found.entry((*flow, *direction)).or_default();
                if let Some(name) = says.as_ref().filter(|name| !names.contains(name)) {
                    names.push(name.clone());
                }
            }
        }
        found
    }

    /// Stores the final `tcp_info` of a destroyed socket, seen from `local`. It arrives after the
    /// socket's row has left the samples.
    pub(super) fn on_final_tcp_info(
        &mut self,
        local: SocketAddr,
        remote: SocketAddr,
        info: TcpInfo,
    ) {
        for (key, known) in &mut self.subflows {
            let end = if (key.2, key.3) == (local, remote) {
                0
            } else if (key.3, key.2) == (local, remote) {
                1
            } else {
                continue;
            };
            // Linux clears the counters of a connection's first subflow before it is destroyed.
            let wiped = |latest: &TcpInfo| {
                info.bytes_received < latest.bytes_received || info.bytes_acked < latest.bytes_acked
            };
            if let Some(latest) = known.ends.get_mut(end).filter(|latest| !wiped(latest)) {
                *latest = info;
            }
        }
    }

    /// Returns the sums over all subflows and connections.
    pub(super) fn totals(&self, streams: &[SampledStream]) -> Totals {
        let mut subflows = Vec::new();
        for (key, known) in &self.subflows {
            let directions = streams
                .iter()
                .find(|stream| (stream.flow, stream.number) == (key.0, key.1))
                .map(|stream| stream.received.iter().map(|(direction, _)| *direction));
            for direction in directions.into_iter().flatten() {
                subflows.push(known.summary(*key, direction));
            }
        }
        let single = self.fallbacks.values().filter(|fallback| **fallback).count();
        Totals {
            subflows,
            reinjected_bytes: self.reinjected_bytes.values().sum(),
            multipath: self.fallbacks.len() - single,
            single,
            plain_tcp: self.plain_tcp.len(),
            reason: self.reason.clone(),
            stack: self.log.clone(),
        }
    }
}

/// Returns the host at the opener's or the acceptor's end of a flow's connections.
fn host_name(scenario: &Scenario, flow: u32, end: usize) -> &str {
    let flow = scenario.flows.get(flow as usize);
    let host = flow.map(|flow| if end == 0 { flow.from } else { flow.to });
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
fn key_of(stream: &SampledStream, end: usize, sample: &SubflowSample) -> SubflowKey {
    let (opener, acceptor) = match end {
        0 => (sample.local, sample.remote),
        _ => (sample.remote, sample.local),
    };
    (stream.flow, stream.number, opener, acceptor, sample.number)
}
