//! Time series of one endpoint's connections, sampled every period.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use towpath_measure::live::{ConnectionReport, SubflowReport};
use towpath_measure::result::{Counter, Event, EventKind, Interval, Record};
use towpath_measure::scenario::DataDirection;
use towpath_net::Instant;
use towpath_quic::PathNotice;

use super::data_stream::DataStream;
use super::flow_runner::FlowStream;
use super::host_info::PathNames;
use super::sender_sampler::SenderSampler;
use super::udp_flows::UdpByteCounters;
use crate::sample::{ConnectionSample, SubflowSample, TcpInfo};
use crate::subflow::{SubflowLabel, list_kernel_subflows};
use crate::traffic::quic::{QuicConnection, TimedNotice};
use crate::traffic::sends;

/// Interval of reading what the samples lack: congestion control and backup flag.
const READ_BACK_INTERVAL: Duration = Duration::from_secs(1);

/// Flow, stream, local address, remote address and QUIC path ID of a subflow.
pub(super) type HostSubflowKey = (u32, u32, SocketAddr, SocketAddr, u32);

/// Subflow over the whole run.
#[derive(Debug)]
struct HostSubflowTrack {
    report: SubflowReport,
    latest: TcpInfo,
    last_seen: Instant,
}

/// Time series of one endpoint.
#[derive(Debug)]
pub(super) struct EndSeries {
    is_client: bool,
    multipath: bool,
    /// Start of the traffic on this host's clock.
    zero: Instant,
    names: PathNames,
    subflows: BTreeMap<HostSubflowKey, HostSubflowTrack>,
    connections: BTreeMap<(u32, u32), ConnectionReport>,
    counted: BTreeMap<(u32, u32, DataDirection), u64>,
    at: Instant,
    /// Set if a subflow's congestion control has not been read yet.
    needs_read_back: bool,
    /// Time of the last such read.
    last_read_back: Instant,
    /// Number of QUIC path events by name, for each flow.
    counts: BTreeMap<u32, BTreeMap<&'static str, u64>>,
    /// Sampler of the senders' limits.
    sender_sampler: SenderSampler,
    /// Records of all samples and events so far.
    records: Vec<Record>,
}

impl EndSeries {
    pub(super) fn new(is_client: bool, multipath: bool, zero: Instant) -> Self {
        Self {
            is_client,
            multipath,
            zero,
            names: PathNames::default(),
            subflows: BTreeMap::new(),
            connections: BTreeMap::new(),
            counted: BTreeMap::new(),
            at: Instant::ZERO,
            needs_read_back: false,
            last_read_back: Instant::ZERO,
            counts: BTreeMap::new(),
            sender_sampler: SenderSampler::new(multipath),
            records: Vec::new(),
        }
    }

    /// Samples the sending streams; the flag is true if the application never limits the stream.
    /// `closing` marks the end of a period.
    pub(super) fn sample_senders(
        &mut self,
        streams: &[(&FlowStream, bool)],
        at: Instant,
        closing: bool,
    ) {
        self.sender_sampler.sample(streams, at, closing);
    }

    /// Takes the sample that ends a period at `at` and appends it to [`Self::records`].
    pub(super) fn sample(
        &mut self,
        (streams, counted): (&[FlowStream], &UdpByteCounters),
        at: Instant,
        last: bool,
    ) {
        let span = at.saturating_since(self.at);
        if span.is_zero() {
            return;
        }
        self.at = at;
        for stream in streams {
            self.count(stream, at, span);
            if let Some(connection) = stream.stream.connection() {
                self.emit_notices(stream.flow, connection);
            }
            self.sample_subflows(stream, at, span);
        }
        self.sender_sampler.begin_period();
        for (flow, direction, received) in counted {
            self.emit_bytes((*flow, 0, *direction), received, (at, span));
        }
        // All subflows close at the end, which is not an event.
        if !last {
            self.notice_closed(at);
        }
        // Closed subflows cannot be read any more, and a subflow may become a backup later.
        let again =
            self.multipath && at.saturating_since(self.last_read_back) >= READ_BACK_INTERVAL;
        if self.needs_read_back || again {
            self.last_read_back = at;
            self.read_back(streams, at);
        }
    }

    /// Samples QUIC paths once more for the totals, since QUIC has no final statistics.
    pub(super) fn sample_final_paths(&mut self, streams: &[FlowStream]) {
        for stream in streams {
            let Some(connection) = stream.stream.connection() else { continue };
            self.emit_notices(stream.flow, connection);
            let samples = match stream.stream.sample(self.multipath) {
                Ok(ConnectionSample::Multipath(_, samples)) => samples,
                Ok(ConnectionSample::Single(sample, _)) => vec![sample],
                Err(_) => continue,
            };
            for sample in samples {
                if let Some(known) = self.subflows.get_mut(&key_of(stream, &sample)) {
                    known.take(&sample);
                }
            }
        }
    }

    /// Converts the path notices of a QUIC connection to events.
    fn emit_notices(&mut self, flow: u32, connection: &QuicConnection) {
        for TimedNotice { at, notice, ends } in connection.notices() {
            // A single path is expected without multipath.
            if matches!(notice, PathNotice::SinglePath) && !self.multipath {
                continue;
            }
            *self.counts.entry(flow).or_default().entry(notice.counter()).or_default() += 1;
            let local = ends.map(|(local, _)| local.ip());
            let path = local.filter(|_| self.is_client).and_then(|local| self.names.of(local));
            let kind = match notice {
                PathNotice::SinglePath => EventKind::Fallback,
                PathNotice::Established { .. }
                | PathNotice::Abandoned { .. }
                | PathNotice::Switched { .. }
                | PathNotice::Migrated { .. } => EventKind::Subflow,
            };
            let text = notice.text(path.as_deref());
            let detail = ends.map_or_else(BTreeMap::new, |(local, remote)| {
                let text = |name: &str, address: SocketAddr| (name.to_owned(), address.to_string());
                BTreeMap::from([text("local", local), text("remote", remote)])
            });
            let t_ns = at.saturating_since(self.zero).as_nanos() as u64;
            let host = None;
            self.records.push(Record::Event(Event { t_ns, kind, host, path, text, detail }));
        }
    }

    /// Returns all records so far.
    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Returns connections, subflows and records at the end.
    pub(super) fn finish(self) -> (Vec<ConnectionReport>, Vec<SubflowReport>, Vec<Record>) {
        let mut subflows: Vec<_> = self.subflows.into_values().map(|known| known.report).collect();
        subflows.sort_by_key(|half| (half.flow, half.stream, half.subflow));
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, count) in self.counts.into_values().flatten() {
            *sums.entry(name).or_default() += count;
        }
        let mut records = self.records;
        records.extend(sums.into_iter().map(|(name, after)| {
            let (host, name) = (String::new(), format!("Towpath.{name}"));
            Record::Counter(Counter { host, name, before: 0, after })
        }));
        (self.connections.into_values().collect(), subflows, records)
    }

    fn count(&mut self, stream: &FlowStream, at: Instant, span: Duration) {
        let is_client = self.is_client;
        let incoming =
            stream.received.iter().filter(|(direction, _)| !sends(*direction, is_client));
        for (direction, received) in incoming {
            self.emit_bytes((stream.flow, stream.number, *direction), received, (at, span));
        }
    }

    fn emit_bytes(
        &mut self,
        (flow, stream, direction): (u32, u32, DataDirection),
        received: &AtomicU64,
        (at, span): (Instant, Duration),
    ) {
        let total = received.load(Ordering::Relaxed);
        let before = self.counted.insert((flow, stream, direction), total).unwrap_or(0);
        self.records.push(Record::Interval(Interval {
            t_ns: at.as_nanos(),
            span_ns: span.as_nanos() as u64,
            flow,
            stream,
            direction,
            bytes: total.saturating_sub(before),
            connection: None,
        }));
    }

    fn sample_subflows(&mut self, stream: &FlowStream, at: Instant, span: Duration) {
        // A closed socket has no statistics.
        let Ok(connection) = stream.stream.sample(self.multipath) else { return };
        let (info, samples) = match connection {
            ConnectionSample::Multipath(info, samples) => (Some(info), samples),
            ConnectionSample::Single(sample, _) => (None, vec![sample]),
        };
        if self.multipath {
            let one = self.connections.entry((stream.flow, stream.number));
            let one = one.or_insert_with(|| ConnectionReport {
                flow: stream.flow,
                stream: stream.number,
                multipath: true,
                reinjected_bytes: 0,
                reason: None,
            });
            one.multipath = info.is_some_and(|info| !info.fallback);
            let again = info.map_or(0, |info| info.bytes_retrans);
            one.reinjected_bytes = one.reinjected_bytes.max(again);
        }
        // A closing subflow may lack one of its addresses.
        let whole = |sample: &SubflowSample| {
            sample.remote.port() != 0 && !sample.local.ip().is_unspecified()
        };
        for sample in samples.iter().filter(|sample| whole(sample)) {
            self.add_sample(stream, sample, at, span);
        }
    }

    fn add_sample(
        &mut self,
        stream: &FlowStream,
        sample: &SubflowSample,
        at: Instant,
        span: Duration,
    ) {
        let key = key_of(stream, sample);
        if !self.subflows.contains_key(&key) {
            self.on_first_sample(key, sample.stream_frames.is_some(), at);
        }
        let is_client = self.is_client;
        let Some(known) = self.subflows.get_mut(&key) else { return };
        if sample.info.state == TcpInfo::QUIC_ABANDONED {
            let closed = *known.report.closed_ns.get_or_insert(at.as_nanos());
            if closed < at.as_nanos() {
                return;
            }
        }
        known.last_seen = at;
        let before = known.take(sample);
        let told = self.sender_sampler.take_limits(&key);
        let number =
            |key: &HostSubflowKey| self.subflows.get(key).map(|known| known.report.subflow);
        let held = told.map(|(mut held, waits_for)| {
            let waits = waits_for.iter().filter_map(|(key, span)| Some((number(key)?, *span)));
            held.blocked_by_ns = waits.collect();
            Box::new(held)
        });
        let Some(known) = self.subflows.get(&key) else { return };
        let half = &known.report;
        let named = SubflowLabel {
            flow: half.flow,
            stream: half.stream,
            number: half.subflow,
            path: half.path.as_deref().unwrap_or("unknown"),
            backup: half.backup,
        };
        for (direction, _) in &stream.received {
            let sends = sends(*direction, is_client);
            let mut record = named.record(*direction, sends, (&before, &sample.info), (at, span));
            record.sender_activity = held.clone().filter(|_| sends);
            self.records.push(Record::Subflow(Box::new(record)));
        }
    }

    fn on_first_sample(&mut self, key: HostSubflowKey, numbered: bool, at: Instant) {
        let (flow, stream, local, remote, number) = key;
        let same = |other: &&HostSubflowKey| other.0 == flow && other.1 == stream;
        let subflow = self.subflows.keys().filter(same).count() as u32;
        // Only the client's interfaces define path names.
        let path = self.is_client.then(|| self.names.of(local.ip())).flatten();
        let name = path.as_deref().unwrap_or("unknown");
        let text = format!("subflow {subflow} first seen on {name}: {local} → {remote}");
        self.event(at, path.clone(), text);
        self.needs_read_back = true;
        let half = SubflowReport {
            flow,
            stream,
            subflow,
            path,
            local: local.to_string(),
            remote: remote.to_string(),
            backup: false,
            bytes_acked: 0,
            bytes_received: 0,
            retransmissions: 0,
            srtt_us: 0,
            number: numbered.then_some(number),
            stream_frames: None,
            congestion_control: None,
            first_seen_ns: at.as_nanos(),
            closed_ns: None,
        };
        self.subflows.insert(
            key,
            HostSubflowTrack { report: half, latest: TcpInfo::default(), last_seen: at },
        );
    }

    fn notice_closed(&mut self, at: Instant) {
        let mut gone = Vec::new();
        for known in self.subflows.values_mut() {
            if known.report.closed_ns.is_none() && known.last_seen < at {
                known.report.closed_ns = Some(known.last_seen.as_nanos());
                gone.push((known.report.subflow, known.report.path.clone()));
            }
        }
        for (number, path) in gone {
            let name = path.as_deref().unwrap_or("unknown");
            let text = format!("subflow {number} on {name} is gone");
            self.event(at, path.clone(), text);
        }
    }

    fn event(&mut self, at: Instant, path: Option<String>, text: String) {
        self.records.push(Record::Event(Event {
            t_ns: at.as_nanos(),
            kind: EventKind::Subflow,
            host: None,
            path,
            text,
            detail: BTreeMap::new(),
        }));
    }

    fn read_back(&mut self, streams: &[FlowStream], at: Instant) {
        self.needs_read_back = false;
        if !streams.iter().any(|stream| matches!(stream.stream, DataStream::Socket(_))) {
            return;
        }
        let all = list_kernel_subflows();
        let mut switched = Vec::new();
        for ((_, _, local, remote, _), known) in &mut self.subflows {
            let own = all.iter().find(|one| (one.local, one.remote) == (*local, *remote));
            let Some(own) = own else { continue };
            let half = &mut known.report;
            half.congestion_control = half.congestion_control.take().or(own.congestion.clone());
            if std::mem::replace(&mut half.backup, own.backup) != own.backup
                && half.first_seen_ns < at.as_nanos()
            {
                switched.push((half.subflow, half.path.clone(), own.backup));
            }
        }
        for (number, path, backup) in switched {
            let name = path.as_deref().unwrap_or("unknown");
            let now = if backup { "is a backup now" } else { "is no backup any more" };
            self.event(at, path.clone(), format!("subflow {number} on {name} {now}"));
        }
    }
}

impl HostSubflowTrack {
    /// Stores a sample; returns the previous one.
    fn take(&mut self, sample: &SubflowSample) -> TcpInfo {
        let half = &mut self.report;
        half.bytes_acked = sample.info.bytes_acked;
        half.bytes_received = sample.info.bytes_received;
        half.retransmissions = sample.info.total_retrans.into();
        half.srtt_us = sample.info.srtt_us;
        half.stream_frames = sample.stream_frames;
        half.backup = sample.backup.unwrap_or(half.backup);
        if let Some(name) = sample.congestion_control {
            half.congestion_control = Some(name.to_owned());
        }
        std::mem::replace(&mut self.latest, sample.info)
    }
}

pub(super) fn key_of(stream: &FlowStream, sample: &SubflowSample) -> HostSubflowKey {
    (stream.flow, stream.number, sample.local, sample.remote, sample.number)
}
