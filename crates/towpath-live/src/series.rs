//! Time series of one endpoint's connections, sampled every period.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use towpath_kernel::sample::{ConnectionSample, SubflowSample, TcpInfo};
use towpath_kernel::subflow::{SubflowLabel, list_kernel_subflows};
use towpath_net::Instant;
use towpath_quic::PathNotice;
use towpath_result::{Counter, Event, EventKind, Interval, Record};
use towpath_scenario::DataDirection;
use towpath_sockets::stream::quic::{QuicConnection, TimedNotice};
use towpath_sockets::stream::sends;

use super::byte_intervals::{ByteInterval, IntervalMeter};
use super::data_stream::DataStream;
use super::flow_runner::FlowStream;
use super::host_info::PathNames;
use super::sender_sampler::SenderSampler;
use super::udp_flows::UdpByteCounters;
use crate::protocol::{ConnectionReport, SubflowReport};

/// Interval of reading what the samples lack: congestion control and backup flag.
const READ_BACK_INTERVAL: Duration = Duration::from_secs(1);

/// Flow, stream, local address, remote address and QUIC path ID of a subflow.
pub(super) type HostSubflowKey = (u32, u32, SocketAddr, SocketAddr, u32);

/// Times until which receivers listened, by flow and direction.
pub(super) type ReceiverEnds = BTreeMap<(u32, DataDirection), Instant>;

/// Subflow over the whole run.
#[derive(Debug)]
struct HostSubflowTrack {
    report: SubflowReport,
    last_info: TcpInfo,
    last_seen: Instant,
}

/// Time series of one endpoint.
#[derive(Debug)]
pub(super) struct EndSeries {
    is_client: bool,
    multipath: bool,
    /// Start of the traffic on this host's clock.
    zero: Instant,
    path_names: PathNames,
    subflows: BTreeMap<HostSubflowKey, HostSubflowTrack>,
    connections: BTreeMap<(u32, u32), ConnectionReport>,
    /// Meters of received bytes by flow, stream and direction.
    meters: BTreeMap<(u32, u32, DataDirection), IntervalMeter>,
    last_sample: Instant,
    /// Set if a subflow's congestion control has not been read yet.
    needs_read_back: bool,
    /// Time of the last read of congestion control and backup flag.
    last_read_back: Instant,
    /// Number of QUIC path events by name, for each flow.
    notice_counts: BTreeMap<u32, BTreeMap<&'static str, u64>>,
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
            path_names: PathNames::default(),
            subflows: BTreeMap::new(),
            connections: BTreeMap::new(),
            meters: BTreeMap::new(),
            last_sample: Instant::ZERO,
            needs_read_back: false,
            last_read_back: Instant::ZERO,
            notice_counts: BTreeMap::new(),
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

    /// Takes a sample at `at`, which is now, and appends it to [`Self::records`].
    ///
    /// `ends` are known for the last sample only, when no data can arrive any more.
    pub(super) fn sample(
        &mut self,
        (streams, udp_counters): (&[FlowStream], &UdpByteCounters),
        at: Instant,
        ends: Option<(&ReceiverEnds, Duration)>,
    ) {
        let span = at.saturating_since(self.last_sample);
        if span.is_zero() {
            return;
        }
        self.last_sample = at;
        // Counters come first: the rest takes time in which more data arrives.
        for stream in streams {
            self.count_received(stream, at, ends);
        }
        for (flow, direction, received) in udp_counters {
            self.emit_bytes((*flow, 0, *direction), received, at, ends);
        }
        for stream in streams {
            if let Some(connection) = stream.stream.connection() {
                self.emit_notices(stream.flow, connection);
            }
            self.sample_subflows(stream, at, span);
        }
        self.sender_sampler.begin_period();
        // All subflows close at the end, which is not an event.
        if ends.is_none() {
            self.close_missing(at);
        }
        // Closed subflows cannot be read any more, and a subflow may become a backup later.
        let is_due =
            self.multipath && at.saturating_since(self.last_read_back) >= READ_BACK_INTERVAL;
        if self.needs_read_back || is_due {
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
                if let Some(track) = self.subflows.get_mut(&key_of(stream, &sample)) {
                    track.update(&sample);
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
            *self.notice_counts.entry(flow).or_default().entry(notice.counter()).or_default() += 1;
            let local = ends.map(|(local, _)| local.ip());
            let path =
                local.filter(|_| self.is_client).and_then(|local| self.path_names.lookup(local));
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

    /// Returns the records so far that were not discarded.
    pub(super) fn records(&self) -> &[Record] {
        &self.records
    }

    /// Discards the records so far. [`Self::finish`] does not return them.
    pub(super) fn discard_records(&mut self) {
        self.records.clear();
    }

    /// Returns connections, subflows and records at the end.
    pub(super) fn finish(self) -> (Vec<ConnectionReport>, Vec<SubflowReport>, Vec<Record>) {
        let mut subflows: Vec<_> = self.subflows.into_values().map(|track| track.report).collect();
        subflows.sort_by_key(|report| (report.flow, report.stream, report.subflow));
        let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, count) in self.notice_counts.into_values().flatten() {
            *sums.entry(name).or_default() += count;
        }
        let mut records = self.records;
        records.extend(sums.into_iter().map(|(name, after)| {
            let (host, name) = (String::new(), format!("Towpath.{name}"));
            Record::Counter(Counter { host, name, before: 0, after })
        }));
        (self.connections.into_values().collect(), subflows, records)
    }

    fn count_received(
        &mut self,
        stream: &FlowStream,
        at: Instant,
        ends: Option<(&ReceiverEnds, Duration)>,
    ) {
        let is_client = self.is_client;
        let incoming =
            stream.received.iter().filter(|(direction, _)| !sends(*direction, is_client));
        for (direction, received) in incoming {
            self.emit_bytes((stream.flow, stream.number, *direction), received, at, ends);
        }
    }

    fn emit_bytes(
        &mut self,
        (flow, stream, direction): (u32, u32, DataDirection),
        received: &AtomicU64,
        at: Instant,
        ends: Option<(&ReceiverEnds, Duration)>,
    ) {
        let total = received.load(Ordering::Relaxed);
        let meter = self.meters.entry((flow, stream, direction)).or_default();
        let interval = match ends {
            Some((ends, period)) => {
                meter.finish(total, (ends.get(&(flow, direction)).copied(), at), period)
            }
            None => meter.advance(total, at),
        };
        let Some(ByteInterval { end, span, bytes }) = interval else { return };
        self.records.push(Record::Interval(Interval {
            t_ns: end.as_nanos(),
            span_ns: span.as_nanos() as u64,
            flow,
            stream,
            direction,
            bytes,
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
            let report = self.connections.entry((stream.flow, stream.number));
            let report = report.or_insert_with(|| ConnectionReport {
                flow: stream.flow,
                stream: stream.number,
                multipath: true,
                reinjected_bytes: 0,
                reason: None,
            });
            report.multipath = info.is_some_and(|info| !info.fallback);
            let reinjected_bytes = info.map_or(0, |info| info.bytes_retrans);
            report.reinjected_bytes = report.reinjected_bytes.max(reinjected_bytes);
        }
        // A closing subflow may lack one of its addresses.
        let has_both_addresses = |sample: &SubflowSample| {
            sample.remote.port() != 0 && !sample.local.ip().is_unspecified()
        };
        for sample in samples.iter().filter(|sample| has_both_addresses(sample)) {
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
        let Some(track) = self.subflows.get_mut(&key) else { return };
        if sample.info.state == TcpInfo::QUIC_ABANDONED {
            let closed = *track.report.closed_ns.get_or_insert(at.as_nanos());
            if closed < at.as_nanos() {
                return;
            }
        }
        track.last_seen = at;
        let before = track.update(sample);
        let limits = self.sender_sampler.take_limits(&key);
        let subflow_number =
            |key: &HostSubflowKey| self.subflows.get(key).map(|track| track.report.subflow);
        let activity = limits.map(|(mut activity, waits_for)| {
            let blocked_by =
                waits_for.iter().filter_map(|(key, span)| Some((subflow_number(key)?, *span)));
            activity.blocked_by_ns = blocked_by.collect();
            Box::new(activity)
        });
        let Some(track) = self.subflows.get(&key) else { return };
        let report = &track.report;
        let label = SubflowLabel {
            flow: report.flow,
            stream: report.stream,
            number: report.subflow,
            path: report.path.as_deref().unwrap_or("unknown"),
            backup: report.backup,
        };
        for (direction, _) in &stream.received {
            let sends = sends(*direction, is_client);
            let mut record = label.record(*direction, sends, (&before, &sample.info), (at, span));
            record.sender_activity = activity.clone().filter(|_| sends);
            self.records.push(Record::Subflow(Box::new(record)));
        }
    }

    fn on_first_sample(&mut self, key: HostSubflowKey, numbered: bool, at: Instant) {
        let (flow, stream, local, remote, number) = key;
        let is_same_stream = |other: &&HostSubflowKey| other.0 == flow && other.1 == stream;
        let subflow = self.subflows.keys().filter(is_same_stream).count() as u32;
        // Only the client's interfaces define path names.
        let path = self.is_client.then(|| self.path_names.lookup(local.ip())).flatten();
        let name = path.as_deref().unwrap_or("unknown");
        let text = format!("subflow {subflow} first seen on {name}: {local} → {remote}");
        self.push_event(at, path.clone(), text);
        self.needs_read_back = true;
        let report = SubflowReport {
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
        self.subflows
            .insert(key, HostSubflowTrack { report, last_info: TcpInfo::default(), last_seen: at });
    }

    fn close_missing(&mut self, at: Instant) {
        let mut closed = Vec::new();
        for track in self.subflows.values_mut() {
            if track.report.closed_ns.is_none() && track.last_seen < at {
                track.report.closed_ns = Some(track.last_seen.as_nanos());
                closed.push((track.report.subflow, track.report.path.clone()));
            }
        }
        for (number, path) in closed {
            let name = path.as_deref().unwrap_or("unknown");
            let text = format!("subflow {number} on {name} is gone");
            self.push_event(at, path.clone(), text);
        }
    }

    fn push_event(&mut self, at: Instant, path: Option<String>, text: String) {
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
        let kernel_subflows = list_kernel_subflows();
        let mut changed_backups = Vec::new();
        for ((_, _, local, remote, _), track) in &mut self.subflows {
            let kernel_subflow = kernel_subflows
                .iter()
                .find(|subflow| (subflow.local, subflow.remote) == (*local, *remote));
            let Some(kernel_subflow) = kernel_subflow else { continue };
            let report = &mut track.report;
            report.congestion_control =
                report.congestion_control.take().or(kernel_subflow.congestion.clone());
            if std::mem::replace(&mut report.backup, kernel_subflow.backup) != kernel_subflow.backup
                && report.first_seen_ns < at.as_nanos()
            {
                changed_backups.push((report.subflow, report.path.clone(), kernel_subflow.backup));
            }
        }
        for (number, path, backup) in changed_backups {
            let name = path.as_deref().unwrap_or("unknown");
            let change = if backup { "is a backup now" } else { "is not a backup any more" };
            self.push_event(at, path.clone(), format!("subflow {number} on {name} {change}"));
        }
    }
}

impl HostSubflowTrack {
    /// Stores a sample; returns the previous one.
    fn update(&mut self, sample: &SubflowSample) -> TcpInfo {
        let report = &mut self.report;
        report.bytes_acked = sample.info.bytes_acked;
        report.bytes_received = sample.info.bytes_received;
        report.retransmissions = sample.info.total_retrans.into();
        report.srtt_us = sample.info.srtt_us;
        report.stream_frames = sample.stream_frames;
        report.backup = sample.backup.unwrap_or(report.backup);
        if let Some(name) = sample.congestion_control {
            report.congestion_control = Some(name.to_owned());
        }
        std::mem::replace(&mut self.last_info, sample.info)
    }
}

pub(super) fn key_of(stream: &FlowStream, sample: &SubflowSample) -> HostSubflowKey {
    (stream.flow, stream.number, sample.local, sample.remote, sample.number)
}
