//! Time series of the program's connections, as a result that `towpath report` reads.
//!
//! The result has one flow with a stream for each connection. Up is from the end that opened the
//! connection. Only one end is observed: sent bytes count when they are acknowledged, received
//! bytes when they arrive. Paths are named after the interface that has the local address at that
//! time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Seek as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use towpath_kernel::sample::{MptcpInfo, TcpInfo};
use towpath_kernel::subflow::{SubflowLabel, canonical_addresses};
use towpath_net::Instant;
use towpath_netlink::DiagSocket;
use towpath_os::files;
use towpath_result::format;
use towpath_result::metrics::DeliveryLog;
use towpath_result::metrics::stall::stall;
use towpath_result::store::write_record;
use towpath_result::{
    Event, EventKind, FlowSummary, Interval, Meta, MetaFlow, MetaPath, MultipathUse, Record,
    SCHEMA_VERSION, SubflowSummary, Summary,
};
use towpath_scenario::{DataDirection, Transport, World};

use super::interface_history::InterfaceHistory;
use super::socket_tracker::{
    ConnectionRole, SocketId, SocketOutcome, SocketSnapshot, SocketTracker,
};
use super::summary::SocketSummary;
use crate::interface_map::InterfaceFollower;

const DIRECTIONS: [DataDirection; 2] = [DataDirection::Up, DataDirection::Down];

/// Writes a result line by line.
#[derive(Debug)]
pub(super) struct ExecRecorder {
    path: PathBuf,
    file: File,
    meta: Meta,
    start: Duration,
    last_snapshot: Duration,
    interfaces: InterfaceFollower,
    subflows: BTreeMap<u64, SubflowRecord>,
    streams: BTreeMap<SocketId, ConnectionRecord>,
    delivery: [DeliveryLog; 2],
    /// First error of writing the file; nothing is written after it.
    write_error: Option<io::Error>,
}

/// A subflow in the record, with its state at the last snapshot.
#[derive(Debug)]
struct SubflowRecord {
    connection: SocketId,
    number: u32,
    /// Interfaces that have had the local address.
    interfaces: InterfaceHistory,
    /// Local and remote address.
    addresses: (SocketAddr, SocketAddr),
    backup: bool,
    info: TcpInfo,
    congestion: Option<String>,
    closed_at: Option<Instant>,
}

/// A connection in the record, with its totals so far.
#[derive(Debug, Default, Clone, Copy)]
struct ConnectionRecord {
    number: u32,
    /// True if the program opened the connection.
    locally_opened: bool,
    subflows: u32,
    /// Application bytes up and down, as far as the intervals contain them.
    bytes: [u64; 2],
    fell_back: bool,
}

impl ExecRecorder {
    /// Begins a result about `command` in the file, which exists already.
    pub(super) fn begin(path: PathBuf, command: &str, now: Duration) -> io::Result<Self> {
        let mut file = files::OutputFile::find(&path)?.create()?;
        let meta = initial_meta(command);
        write_record(&mut file, &Record::Meta(Box::new(meta.clone())))?;
        let log = DeliveryLog::new(Instant::ZERO);
        Ok(Self {
            path,
            file,
            meta,
            start: now,
            last_snapshot: now,
            interfaces: InterfaceFollower::open(),
            subflows: BTreeMap::new(),
            streams: BTreeMap::new(),
            delivery: [log.clone(), log],
            write_error: None,
        })
    }

    /// Records a snapshot and the final counters of closed sockets.
    pub(super) fn record_snapshot(
        &mut self,
        tracker: &SocketTracker,
        snapshot: &SocketSnapshot,
        destroyed: &[DiagSocket],
        now: Duration,
    ) {
        let time = self.instant(now);
        let span = now.saturating_sub(self.last_snapshot);
        self.last_snapshot = now;
        self.interfaces.update();
        let mut present = BTreeSet::new();
        for socket in snapshot.tcp.iter().filter(|socket| !socket.info.is_empty()) {
            if let Some(connection) = tracker.connection_of(socket) {
                present.insert(socket.cookie);
                self.record_subflow(tracker, connection, socket, (time, span));
            }
        }
        for socket in destroyed {
            let open =
                self.subflows.get(&socket.cookie).filter(|subflow| subflow.closed_at.is_none());
            if let Some(connection) = open.map(|subflow| subflow.connection) {
                present.remove(&socket.cookie);
                self.record_subflow(tracker, connection, socket, (time, span));
            }
        }
        self.record_intervals(tracker, snapshot, (time, span));
        self.close_all_but(&present, time);
    }

    fn instant(&self, now: Duration) -> Instant {
        Instant::ZERO + now.saturating_sub(self.start)
    }

    fn write(&mut self, record: &Record) {
        if self.write_error.is_none() {
            self.write_error = write_record(&mut self.file, record).err();
        }
    }

    fn record_subflow(
        &mut self,
        tracker: &SocketTracker,
        connection: SocketId,
        socket: &DiagSocket,
        (time, span): (Instant, Duration),
    ) {
        let Some(entry) = tracker.get(connection) else { return };
        let now = TcpInfo::parse(&socket.info);
        let stream = self.streams.entry(connection).or_insert(ConnectionRecord {
            number: entry.number,
            locally_opened: entry.role == ConnectionRole::Opened,
            ..ConnectionRecord::default()
        });
        let mut stream = *stream;
        let (addresses, backup) = (canonical_addresses(socket), is_backup(socket));
        let new = !self.subflows.contains_key(&socket.cookie);
        let interface = self.interfaces.lookup(addresses.0.ip());
        let subflow = self.subflows.entry(socket.cookie).or_insert_with(|| SubflowRecord {
            connection,
            number: stream.subflows,
            interfaces: InterfaceHistory::begin(interface.clone(), addresses.0.ip(), time),
            addresses,
            backup,
            info: TcpInfo::default(),
            congestion: None,
            closed_at: None,
        });
        let counters_reset = now.bytes_acked < subflow.info.bytes_acked
            || now.bytes_received < subflow.info.bytes_received;
        if counters_reset {
            // Linux resets a connection's first subflow before it destroys it.
            return;
        }
        subflow.congestion = socket.congestion.clone().or(subflow.congestion.take());
        subflow.backup |= backup;
        let mut records = Vec::new();
        if new {
            let text =
                format!("connection {}: subflow on {}", stream.number, subflow.interfaces.path());
            records.push(subflow.event(time, text));
            stream.subflows += 1;
            self.streams.insert(connection, stream);
        }
        records.extend(subflow.advance(now, &stream, (time, span)));
        // The traffic since the last snapshot counts for the interface at that time.
        let address = subflow.addresses.0.ip();
        if let Some(change) = subflow.interfaces.follow(interface, address, &now, time) {
            let text = format!("connection {}: {change}", stream.number);
            records.push(subflow.event(time, text));
        }
        for record in &records {
            self.write(record);
        }
    }

    fn record_intervals(
        &mut self,
        tracker: &SocketTracker,
        snapshot: &SocketSnapshot,
        (time, span): (Instant, Duration),
    ) {
        let mut interval_bytes = [0; 2];
        let mut records = Vec::new();
        for (id, stream) in &mut self.streams {
            let outcome = tracker.get(*id).map(|tracked| tracked.outcome);
            let subflows = self.subflows.values().filter(|subflow| subflow.connection == *id);
            let mut totals = subflows.fold([0; 2], |[sent, received], subflow| {
                [sent + subflow.info.bytes_acked, received + subflow.info.bytes_received]
            });
            let mptcp_socket = snapshot
                .mptcp
                .iter()
                .find(|socket| tracker.mptcp_connection_of(socket) == Some(*id));
            if let (Some(SocketOutcome::Multipath), Some(mptcp_socket)) = (outcome, mptcp_socket) {
                // Copies on several subflows count once. Without these counters, the sum is used.
                let info = MptcpInfo::parse(&mptcp_socket.info);
                if info.bytes_acked + info.bytes_received > 0 {
                    totals = [info.bytes_acked, info.bytes_received];
                }
            }
            if !stream.locally_opened {
                totals.reverse();
            }
            if outcome == Some(SocketOutcome::Single) && !stream.fell_back {
                stream.fell_back = true;
                let text = format!("connection {} is plain TCP", stream.number);
                records.push(build_event(time, EventKind::Fallback, None, text));
            }
            let pairs =
                DIRECTIONS.iter().zip(totals).zip(&mut stream.bytes).zip(&mut interval_bytes);
            for (((direction, total), previous), bytes_sum) in pairs {
                let bytes = total.saturating_sub(*previous);
                *previous = total.max(*previous);
                *bytes_sum += bytes;
                records.push(Record::Interval(Interval {
                    t_ns: time.as_nanos(),
                    span_ns: span.as_nanos() as u64,
                    flow: 0,
                    stream: stream.number,
                    direction: *direction,
                    bytes,
                    connection: None,
                }));
            }
        }
        for record in &records {
            self.write(record);
        }
        for (log, bytes) in self.delivery.iter_mut().zip(interval_bytes) {
            log.record_evenly(bytes, (time, span));
            log.watch_until(time);
        }
    }

    fn close_all_but(&mut self, present: &BTreeSet<u64>, time: Instant) {
        let mut events = Vec::new();
        for (cookie, subflow) in &mut self.subflows {
            if subflow.closed_at.is_none() && !present.contains(cookie) {
                subflow.closed_at = Some(time);
                let number =
                    self.streams.get(&subflow.connection).map_or(0, |stream| stream.number);
                let path = subflow.interfaces.path();
                let text = format!("connection {number}: subflow on {path} closed");
                events.push(subflow.event(time, text));
            }
        }
        for event in &events {
            self.write(event);
        }
    }

    /// Writes the final conditions before the records, and the summary after them.
    pub(super) fn finish(mut self, sockets: &SocketSummary, now: Duration) -> io::Result<()> {
        if let Some(error) = self.write_error.take() {
            return Err(error);
        }
        let end = self.instant(now);
        self.meta.duration_ns = end.as_nanos();
        self.meta.paths = self.meta_paths();
        for flow in &mut self.meta.flows {
            flow.streams = u32::try_from(self.streams.len()).unwrap_or(u32::MAX);
        }
        let summary = self.summary(sockets, end);
        let output = files::OutputFile::find(&self.path)?;
        let mut temp_file = output.begin()?;
        let mut out = io::BufWriter::new(temp_file.file());
        write_record(&mut out, &Record::Meta(Box::new(self.meta.clone())))?;
        // The records come from the open descriptor: the name may belong to another file by now.
        self.file.rewind()?;
        let mut records = BufReader::new(&self.file);
        let mut provisional_meta = Vec::new();
        records.read_until(b'\n', &mut provisional_meta)?;
        io::copy(&mut records, &mut out)?;
        write_record(&mut out, &Record::Summary(Box::new(summary)))?;
        out.flush()?;
        drop(out);
        temp_file.persist().map(drop)
    }

    fn meta_paths(&self) -> Vec<MetaPath> {
        let names: BTreeSet<_> =
            self.subflows.values().flat_map(|subflow| subflow.interfaces.paths()).collect();
        let meta_path = |name: &str| MetaPath {
            name: name.to_owned(),
            between: ["here".to_owned(), "there".to_owned()],
            up_rate_bps: None,
            down_rate_bps: None,
            up_delay_ns: 0,
            down_delay_ns: 0,
            backup: false,
            text: "a real interface".to_owned(),
        };
        names.into_iter().map(meta_path).collect()
    }

    fn summary(&self, sockets: &SocketSummary, end: Instant) -> Summary {
        let flows: Vec<_> = DIRECTIONS
            .iter()
            .zip(&self.delivery)
            .filter(|(_, log)| log.total_bytes() > 0)
            .map(|(direction, log)| self.flow_summary(*direction, log, end))
            .collect();
        let subflows = self.subflow_summaries(&flows);
        let used_subflows = subflows.iter().filter(|subflow| subflow.bytes > 0);
        let paths: BTreeSet<_> = used_subflows.map(|subflow| subflow.path.clone()).collect();
        let paths_used: Vec<_> = paths.into_iter().collect();
        let multipath = sockets.opened.multipath + sockets.accepted.multipath;
        let plain_tcp = sockets.opened.single + sockets.accepted.single + sockets.refusals();
        let used = multipath > 0 && plain_tcp == 0;
        let fallback_cause = sockets.fallbacks.first().map(|cause| cause.meaning.to_owned());
        let default_cause = || "no connection used Multipath TCP to its end".to_owned();
        let amounts: Vec<_> = flows.iter().map(describe_flow).collect();
        let path_list =
            if paths_used.is_empty() { "no path".to_owned() } else { format::list(&paths_used) };
        Summary {
            ok: true,
            verdict: format!("{}: {} over {path_list}", self.meta.description, amounts.join(", ")),
            flows,
            subflows,
            paths: Vec::new(),
            multipath: MultipathUse {
                requested: true,
                used,
                fallback: (!used).then(|| fallback_cause.unwrap_or_else(default_cause)),
                paths_used,
                evidence: vec![
                    format!("{} sockets were upgraded to Multipath TCP", sockets.upgraded),
                    format!("{multipath} connections used Multipath TCP, {plain_tcp} plain TCP"),
                ],
                flows: Vec::new(),
            },
            warnings: Vec::new(),
            expectations: Vec::new(),
            cpu: None,
            account: None,
        }
    }

    fn flow_summary(
        &self,
        direction: DataDirection,
        log: &DeliveryLog,
        end: Instant,
    ) -> FlowSummary {
        let bytes = log.total_bytes();
        let retransmissions =
            self.subflows.values().map(|subflow| u64::from(subflow.info.total_retrans)).sum();
        let names = self.subflows.values().filter_map(|subflow| subflow.congestion.clone());
        let congestion_control: BTreeSet<_> = names.collect();
        let end_time = log.last().unwrap_or(end);
        let start_time = log.first().unwrap_or(log.start());
        let seconds = end_time.saturating_since(start_time).as_secs_f64().max(1e-3);
        FlowSummary {
            flow: 0,
            direction,
            bytes,
            duration_ns: end_time.saturating_since(start_time).as_nanos() as u64,
            goodput_bps: bytes as f64 * 8.0 / seconds,
            completed: true,
            failure: None,
            connect_ns: None,
            stall: stall(log, end_time),
            recoveries: Vec::new(),
            congestion_control: congestion_control.into_iter().collect(),
            retransmissions,
            stack: None,
            messages: None,
            datagrams: None,
        }
    }

    fn subflow_summaries(&self, flows: &[FlowSummary]) -> Vec<SubflowSummary> {
        let mut summaries = Vec::new();
        for flow in flows {
            let first_index = summaries.len();
            for subflow in self.subflows.values() {
                let stream = self.streams.get(&subflow.connection).copied().unwrap_or_default();
                let sends = (flow.direction == DataDirection::Up) == stream.locally_opened;
                let (local, remote) = subflow.addresses;
                let (local, remote) =
                    if stream.locally_opened { (local, remote) } else { (remote, local) };
                // One entry for each interface, with its times and its traffic.
                for period in subflow.interfaces.list(&subflow.info, subflow.closed_at) {
                    summaries.push(SubflowSummary {
                        flow: 0,
                        stream: stream.number,
                        direction: flow.direction,
                        subflow: subflow.number,
                        path: period.path.to_owned(),
                        local: local.to_string(),
                        remote: remote.to_string(),
                        backup: subflow.backup,
                        bytes: if sends { period.bytes_acked } else { period.bytes_received },
                        share: 0.0,
                        retransmissions: if sends { period.retransmissions } else { 0 },
                        srtt_us: subflow.info.srtt_us,
                        first_seen_ns: period.from.as_nanos(),
                        closed_ns: period.until.map(Instant::as_nanos),
                    });
                }
            }
            let flow_subflows = summaries.get_mut(first_index..).unwrap_or_default();
            let total: u64 = flow_subflows.iter().map(|subflow| subflow.bytes).sum();
            for subflow in flow_subflows.iter_mut().filter(|_| total > 0) {
                subflow.share = subflow.bytes as f64 / total as f64;
            }
        }
        summaries
    }
}

impl SubflowRecord {
    /// Stores the counters; returns the records since the last ones.
    fn advance(
        &mut self,
        now: TcpInfo,
        stream: &ConnectionRecord,
        times: (Instant, Duration),
    ) -> [Record; 2] {
        let before = std::mem::replace(&mut self.info, now);
        let label = SubflowLabel {
            flow: 0,
            stream: stream.number,
            number: self.number,
            path: self.interfaces.path(),
            backup: self.backup,
        };
        DIRECTIONS.map(|direction| {
            let sends = (direction == DataDirection::Up) == stream.locally_opened;
            Record::Subflow(Box::new(label.record(direction, sends, (&before, &now), times)))
        })
    }

    fn event(&self, time: Instant, text: String) -> Record {
        build_event(time, EventKind::Subflow, Some(self.interfaces.path().to_owned()), text)
    }
}

fn describe_flow(flow: &FlowSummary) -> String {
    let direction = if flow.direction == DataDirection::Down { "down" } else { "up" };
    format!("{} {direction} at {}", format::bytes(flow.bytes), format::rate(flow.goodput_bps))
}

fn initial_meta(command: &str) -> Meta {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let mut conditions = BTreeMap::new();
    for name in ["net.mptcp.enabled", "net.mptcp.scheduler", "net.ipv4.tcp_congestion_control"] {
        conditions.insert(name.to_owned(), read(&format!("/proc/sys/{}", name.replace('.', "/"))));
    }
    let method =
        "seen from one host: sent bytes count when acknowledged, received bytes on arrival";
    conditions.insert("method".to_owned(), method.to_owned());
    Meta {
        schema: SCHEMA_VERSION,
        run: format!("exec-{}", std::process::id()),
        scenario: "exec".to_owned(),
        description: command.to_owned(),
        scenario_toml: format!("# no scenario: towpath exec -- {command}\n"),
        world: World::Live,
        stack: "kernel".to_owned(),
        transport: Transport::Mptcp,
        repeat: 1,
        order: None,
        seed: 0,
        towpath: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: read("/proc/sys/kernel/osrelease"),
        started_us: Some(towpath_os::clock::unix_us()),
        duration_ns: 0,
        sample_ns: super::observe::MAX_POLL_INTERVAL.as_nanos() as u64,
        congestion_control: String::new(),
        hosts: vec!["here".to_owned(), "there".to_owned()],
        paths: Vec::new(),
        flows: vec![MetaFlow {
            video: None,
            flow: 0,
            from: "here".to_owned(),
            to: "there".to_owned(),
            pattern: "run".to_owned(),
            direction: DataDirection::Both,
            streams: 0,
            via: String::new(),
        }],
        timeline: Vec::new(),
        conditions,
    }
}

fn build_event(time: Instant, kind: EventKind, path: Option<String>, text: String) -> Record {
    let host = Some("here".to_owned());
    Record::Event(Event { t_ns: time.as_nanos(), kind, host, path, text, detail: BTreeMap::new() })
}

fn is_backup(socket: &DiagSocket) -> bool {
    use towpath_netlink::SubflowFlags as Flags;
    socket.subflow.is_some_and(|subflow| {
        subflow.flags.contains(Flags::BACKUP_LOCAL) || subflow.flags.contains(Flags::BACKUP_REMOTE)
    })
}
