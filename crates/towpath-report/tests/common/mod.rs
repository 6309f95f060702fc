//! Realistic results without a network: a small deterministic model of transfers over paths.

#![expect(clippy::indexing_slicing, reason = "the model knows its own indices")]

use std::collections::BTreeMap;

use towpath_result::store::StoredRun;
use towpath_result::{
    ConnectionState, Counter, EmulatorTiming, Event, EventKind, ExpectationResult, FlowSummary,
    Interface, Interval, Link, Meta, MetaEvent, MetaFlow, MetaPath, MultipathUse, Record, Recovery,
    ReinjectionCause, SCHEMA_VERSION, StackStats, Stall, Subflow, SubflowEnd, SubflowSummary,
    Summary, WakeupTiming, Warning,
};
use towpath_scenario::{DataDirection, Transport, World};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// A path of the model.
#[derive(Debug, Clone)]
pub(crate) struct Path {
    /// Name of the path.
    pub(crate) name: String,
    /// Bottleneck rate in Mbit/s.
    pub(crate) mbps: f64,
    /// Round-trip time without a queue.
    pub(crate) rtt_ms: f64,
    /// Queueing delay of a full queue.
    pub(crate) queue_ms: f64,
    /// Outages: start and end of each, in milliseconds.
    pub(crate) down: Vec<(u64, u64)>,
}

/// Parameters of a modelled run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Name of the scenario.
    pub(crate) scenario: String,
    /// Transport of the run.
    pub(crate) transport: Transport,
    /// Number of the repetition.
    pub(crate) repeat: u32,
    /// Paths; a single-path transport uses the first.
    pub(crate) paths: Vec<Path>,
    /// Length of the run in milliseconds.
    pub(crate) duration_ms: u64,
    /// Sampling period in milliseconds.
    pub(crate) sample_ms: u64,
    /// Number of parallel connections.
    pub(crate) streams: u32,
}

/// Returns a path that is never down.
pub(crate) fn path(name: &str, mbps: f64, rtt_ms: f64, queue_ms: f64) -> Path {
    Path { name: name.to_owned(), mbps, rtt_ms, queue_ms, down: Vec::new() }
}

/// Returns a plan with Wi-Fi 40 Mbit/s and cellular 20 Mbit/s; Wi-Fi goes down at 3 s.
pub(crate) fn handover(transport: Transport, repeat: u32) -> Plan {
    let mut wifi = path("wifi", 40.0, 30.0, 80.0);
    wifi.down = vec![(3_000, 10_001)];
    Plan {
        scenario: "wifi-cellular-handover".to_owned(),
        transport,
        repeat,
        paths: vec![wifi, path("cellular", 20.0, 80.0, 200.0)],
        duration_ms: 10_000,
        sample_ms: 100,
        streams: 1,
    }
}

/// Returns a plan with three paths, of which two fail in turn.
pub(crate) fn three_paths() -> Plan {
    let mut plan = handover(Transport::Mptcp, 1);
    "three-paths".clone_into(&mut plan.scenario);
    plan.paths = vec![
        path("wifi", 40.0, 30.0, 80.0),
        path("cellular", 20.0, 80.0, 200.0),
        path("satellite", 10.0, 550.0, 400.0),
    ];
    plan.paths[0].down = vec![(3_000, 7_000)];
    plan.paths[1].down = vec![(4_000, 6_000)];
    plan
}

/// Runs the handover once over TCP and once over MPTCP.
pub(crate) fn pair() -> Vec<StoredRun> {
    vec![run(&handover(Transport::Tcp, 1)), run(&handover(Transport::Mptcp, 1))]
}

/// Runs five repetitions of TCP and of MPTCP.
pub(crate) fn repeated() -> Vec<StoredRun> {
    let transports = [Transport::Tcp, Transport::Mptcp];
    transports.iter().flat_map(|t| (1..=5).map(|repeat| run(&handover(*t, repeat)))).collect()
}

/// Runs a cellular rate that fades in 40 steps.
pub(crate) fn fade() -> StoredRun {
    let mut fade = run(&handover(Transport::Mptcp, 1));
    for step in 0..40 {
        fade.records.push(Record::Event(Event {
            t_ns: 4 * SECOND + step * 50 * MS,
            kind: EventKind::Timeline,
            host: None,
            path: Some("cellular".to_owned()),
            text: format!("cellular rate {} kbit/s", 20_000 - step * 400),
            detail: BTreeMap::new(),
        }));
    }
    fade
}

/// Returns the handover over our own stack: cellular data waits for Wi-Fi data. After 3 s, the
/// data lost on Wi-Fi is reinjected.
pub(crate) fn own_stack() -> StoredRun {
    let mut run = run(&handover(Transport::Mptcp, 1));
    "towpath".clone_into(&mut run.meta.stack);
    let mut reinjected_bytes = 0;
    for record in &mut run.records {
        let Record::Interval(interval) = record else { continue };
        let step = interval.t_ns / (100 * MS);
        let is_outage = (31..=34).contains(&step);
        reinjected_bytes += if is_outage { 80_000 } else { 0 };
        let waiting = if is_outage { 900_000 } else { 40_000 + step % 7 * 9_000 };
        interval.connection = Some(ConnectionState {
            reorder_bytes: Some(waiting),
            receive_buffer_bytes: Some(1_000_000),
            reorder_peak_bytes: Some(if step < 31 { 94_000 } else { 900_000 }),
            reinjected_bytes: Some(reinjected_bytes),
            reinjected_by_cause: BTreeMap::from([(ReinjectionCause::Timeout, reinjected_bytes)]),
            discarded_bytes: Some(reinjected_bytes / 2),
            window_blocked_ns: Some(if is_outage { 60 * MS } else { 0 }),
            penalisations: Some(u64::from(step >= 32)),
            switches: Some(step * 40),
        });
    }
    for step in 1..=100 {
        let detail = [("switches", "40"), ("run_bytes", "80000")];
        run.records.push(Record::Event(Event {
            t_ns: step * 100 * MS,
            kind: EventKind::Scheduler,
            host: Some("phone".to_owned()),
            path: None,
            text: "40 switches between subflows, after 2.00 kB on average".to_owned(),
            detail: detail.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        }));
    }
    run.records.push(Record::Event(Event {
        t_ns: 3_200 * MS,
        kind: EventKind::Penalisation,
        host: Some("phone".to_owned()),
        path: Some("wifi".to_owned()),
        text: "wifi slowed down, 1 ×: it blocked the window (M2)".to_owned(),
        detail: BTreeMap::from([("times".to_owned(), "1".to_owned())]),
    }));
    if let Some(flow) = run.summary.as_mut().and_then(|summary| summary.flows.first_mut()) {
        flow.stack = Some(StackStats {
            reinjected_bytes: Some(reinjected_bytes),
            discarded_bytes: Some(reinjected_bytes / 2),
            reorder_peak_bytes: Some(900_000),
            window_blocked_ns: Some(240 * MS),
            penalisations: Some(1),
            switches: Some(4_000),
        });
    }
    run
}

/// Repeatable noise between -1 and 1.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as f64 / f64::from(1_u32 << 30)) - 1.0
    }
}

impl Path {
    fn is_down(&self, t_ms: u64) -> bool {
        self.down.iter().any(|(from, to)| (*from..*to).contains(&t_ms))
    }

    /// Returns the rate in Mbit/s at a time, with slow start and a pause when another path fails.
    fn rate_mbps(&self, plan: &Plan, t_ms: u64, noise: f64) -> f64 {
        if self.is_down(t_ms) {
            return 0.0;
        }
        let restarted_ms =
            self.down.iter().filter(|(_, to)| *to <= t_ms).map(|(_, to)| to + 800).max();
        let start_ms = restarted_ms.unwrap_or(self.rtt_ms as u64);
        if t_ms < start_ms {
            return 0.0;
        }
        let pauses_for =
            |other: &Self| other.down.iter().any(|(from, _)| (*from..*from + 300).contains(&t_ms));
        if plan.paths.iter().any(|other| other.name != self.name && pauses_for(other)) {
            return 0.0;
        }
        let ramp = ((t_ms - start_ms) as f64 / (self.rtt_ms * 6.0)).min(1.0);
        self.mbps * 0.948 * ramp * (1.0 + noise * 0.05)
    }
}

/// Runs the model and returns its result.
pub(crate) fn run(plan: &Plan) -> StoredRun {
    let mut model = Model::new(plan);
    let steps = plan.duration_ms / plan.sample_ms.max(1);
    for step in 1..=steps {
        model.step(step * plan.sample_ms);
    }
    model.finish()
}

struct Model<'a> {
    plan: &'a Plan,
    multipath: bool,
    noise: Noise,
    records: Vec<Record>,
    received: BTreeMap<(u32, u32), u64>,
    retransmissions: BTreeMap<u32, u32>,
    delivered: Vec<(u64, u64)>,
    drops: Vec<[u64; 3]>,
}

impl<'a> Model<'a> {
    fn new(plan: &'a Plan) -> Self {
        let multipath = matches!(plan.transport, Transport::Mptcp | Transport::Mpquic);
        Self {
            plan,
            multipath,
            noise: Noise(u64::from(plan.repeat) * 7_919 + plan.transport as u64),
            records: Vec::new(),
            received: BTreeMap::new(),
            retransmissions: BTreeMap::new(),
            delivered: Vec::new(),
            drops: vec![[0; 3]; plan.paths.len()],
        }
    }

    fn step(&mut self, t_ms: u64) {
        let plan = self.plan;
        let (end_ns, span_ns) = (t_ms * MS, plan.sample_ms * MS);
        let used_paths = if self.multipath { plan.paths.len() } else { 1 };
        let mut stream_bytes = vec![0; plan.streams as usize];
        for (number, path) in plan.paths.iter().enumerate().take(used_paths) {
            let noise = self.noise.next();
            let mbps = path.rate_mbps(plan, t_ms - plan.sample_ms, noise);
            for stream in 0..plan.streams {
                let bytes = (mbps * 1e6 / 8.0 * plan.sample_ms as f64 / 1e3) as u64
                    / u64::from(plan.streams);
                stream_bytes[stream as usize] += bytes;
                self.subflow(number, path, stream, t_ms, bytes);
            }
            self.link(number, path, t_ms, mbps);
        }
        for (stream, bytes) in stream_bytes.into_iter().enumerate() {
            self.delivered.push((end_ns, bytes));
            self.records.push(Record::Interval(Interval {
                t_ns: end_ns,
                span_ns,
                flow: 0,
                stream: stream as u32,
                direction: DataDirection::Up,
                bytes,
                connection: None,
            }));
        }
    }

    fn subflow(&mut self, number: usize, path: &Path, stream: u32, t_ms: u64, bytes: u64) {
        let number = number as u32;
        let received = self.received.entry((stream, number)).or_default();
        *received += bytes;
        let is_down = path.is_down(t_ms);
        let retransmissions = self.retransmissions.entry(number).or_default();
        if is_down || self.noise.next() > 0.97 {
            *retransmissions += if is_down { u32::from(self.noise.next() > 0.8) } else { 7 };
        }
        let fill = if is_down {
            1.0
        } else {
            (t_ms as f64 / 900.0).min(1.0) * (0.75 + 0.2 * (t_ms as f64 / 700.0).sin().abs())
        };
        let srtt_us = ((path.rtt_ms + path.queue_ms * fill) * 1e3) as u32;
        let cwnd = if is_down {
            2.0
        } else {
            path.mbps * 1e3 / 11.6 * (path.rtt_ms + path.queue_ms * fill) / 1e3
        };
        for side in [SubflowEnd::Sender, SubflowEnd::Receiver] {
            self.records.push(Record::Subflow(Box::new(Subflow {
                t_ns: t_ms * MS,
                span_ns: self.plan.sample_ms * MS,
                flow: 0,
                stream,
                direction: DataDirection::Up,
                side,
                subflow: number,
                path: path.name.clone(),
                state: "established".to_owned(),
                backup: false,
                bytes,
                bytes_sent: *received,
                bytes_acked: *received,
                bytes_received: *received,
                srtt_us,
                rttvar_us: 4_000,
                rto_us: 260_000,
                backoff: 0,
                cwnd_packets: cwnd as u32,
                ssthresh_packets: 300,
                in_flight_packets: cwnd as u32,
                retransmissions: *retransmissions,
                mss_bytes: 1_448,
                sender_activity: None,
            })));
        }
    }

    fn link(&mut self, number: usize, path: &Path, t_ms: u64, mbps: f64) {
        let fill = if mbps > 0.0 {
            (t_ms as f64 / 900.0).min(1.0) * (0.75 + 0.2 * (t_ms as f64 / 700.0).sin().abs())
        } else {
            0.0
        };
        let drops = &mut self.drops[number];
        if path.is_down(t_ms) {
            drops[2] += u64::from(self.noise.next() > 0.7);
        } else if self.noise.next() > 0.96 {
            drops[0] += 9;
        }
        for direction in [DataDirection::Up, DataDirection::Down] {
            let is_up = direction == DataDirection::Up;
            self.records.push(Record::Link(Link {
                t_ns: t_ms * MS,
                path: path.name.clone(),
                direction,
                offered_packets: t_ms * 4,
                delivered_bytes: t_ms * 5_000,
                delivered_packets: t_ms * 4 - drops[0],
                dropped_queue_packets: if is_up { drops[0] } else { 0 },
                dropped_loss_packets: drops[1],
                dropped_down_packets: drops[2],
                backlog_bytes: if is_up {
                    (path.mbps * 1e6 / 8.0 * path.queue_ms / 1e3 * fill) as u64
                } else {
                    0
                },
            }));
        }
    }

    fn event(
        &mut self,
        t_ms: u64,
        kind: EventKind,
        host: Option<&str>,
        path: Option<&str>,
        text: String,
    ) {
        let detail = if kind == EventKind::PathManager {
            BTreeMap::from([
                ("token".to_owned(), "0x5f3c2a11".to_owned()),
                ("address".to_owned(), "10.0.1.1:43210".to_owned()),
            ])
        } else {
            BTreeMap::new()
        };
        self.records.push(Record::Event(Event {
            t_ns: t_ms * MS,
            kind,
            host: host.map(str::to_owned),
            path: path.map(str::to_owned),
            text,
            detail,
        }));
    }

    fn finish(mut self) -> StoredRun {
        let plan = self.plan;
        self.event(32, EventKind::Flow, Some("phone"), None, "connection 0 opened".to_owned());
        let used_paths = if self.multipath { plan.paths.len() } else { 1 };
        for path in plan.paths.iter().take(used_paths).skip(1) {
            let established_ms = path.rtt_ms as u64 + 34;
            self.event(
                established_ms,
                EventKind::PathManager,
                Some("phone"),
                Some(&path.name),
                format!("subflow established on {}", path.name),
            );
        }
        for path in &plan.paths {
            for (from, to) in &path.down {
                self.event(
                    *from,
                    EventKind::Timeline,
                    None,
                    Some(&path.name),
                    format!("{} goes down", path.name),
                );
                if *to < plan.duration_ms {
                    self.event(
                        *to,
                        EventKind::Timeline,
                        None,
                        Some(&path.name),
                        format!("{} comes up", path.name),
                    );
                }
            }
        }
        let summary = self.summary();
        self.record_proof();
        let run = format!("{}-emu-{}-{}", plan.scenario, plan.transport, plan.repeat);
        StoredRun {
            file: Some(format!("{run}.jsonl.zst")),
            meta: meta(plan, run),
            records: self.records,
            summary: Some(summary),
            truncated: false,
            skipped: 0,
        }
    }

    fn record_proof(&mut self) {
        let counters = [
            ("MPTcpExt.MPCapableSYNTX", 1),
            ("MPTcpExt.MPJoinSynTx", 1),
            ("MPTcpExt.MPJoinSynAckRx", 1),
            ("TcpExt.TCPTimeouts", 5),
        ];
        let used_counters = if self.multipath { &counters[..] } else { &counters[3..] };
        for (name, after) in used_counters {
            let (host, name) = ("phone".to_owned(), (*name).to_owned());
            self.records.push(Record::Counter(Counter { host, name, before: 0, after: *after }));
        }
        for path in &self.plan.paths {
            self.records.push(Record::Interface(Interface {
                host: "phone".to_owned(),
                interface: path.name.clone(),
                rx_bytes: 312_000,
                tx_bytes: 15_900_000,
                rx_packets: 5_800,
                tx_packets: 3_020,
                rx_dropped: 0,
                tx_dropped: 0,
            }));
        }
        self.records.push(Record::Timing(EmulatorTiming {
            packets: 41_200,
            lateness_p50_ns: 9_800,
            lateness_p90_ns: 31_000,
            lateness_p99_ns: 118_000,
            lateness_p999_ns: 410_000,
            lateness_max_ns: 1_900_000,
            lost_packets: 0,
            load: 0.42,
            emulator_cpu_s: 1.31,
            waiting: Some(WakeupTiming {
                ran_s: 11.2,
                awake_s: 0.42,
                early_p50_ns: 38_000,
                early_p99_ns: 61_000,
                wake_up_p50_ns: 21_000,
                wake_up_p99_ns: 58_000,
            }),
            other_cpu_share: 0.06,
            unreliable: false,
            reason: None,
        }));
    }

    fn stall(&self) -> Stall {
        let mut gaps: Vec<(u64, u64)> = Vec::new();
        let mut last_ns = None;
        let mut times: Vec<u64> =
            self.delivered.iter().filter(|(_, bytes)| *bytes > 0).map(|(t, _)| *t).collect();
        let end_ns = self.plan.duration_ms * MS;
        let ends_silent = times.last() != Some(&end_ns);
        if ends_silent {
            times.push(end_ns);
        }
        times.dedup();
        for t in times {
            // The bytes of a sample may have arrived at its start.
            let period_start_ns = t.saturating_sub(self.plan.sample_ms * MS);
            let silence_end_ns = if t == end_ns && ends_silent { t } else { period_start_ns };
            if let Some(last_arrival_ns) = last_ns
                && silence_end_ns > last_arrival_ns
            {
                gaps.push((silence_end_ns - last_arrival_ns, last_arrival_ns));
            }
            last_ns = Some(t);
        }
        let longest = gaps.iter().max().copied().unwrap_or_default();
        let total_ns = gaps.iter().map(|gap| gap.0).sum();
        Stall {
            longest_ns: longest.0,
            longest_at_ns: longest.1,
            total_ns,
            count: gaps.len() as u32,
        }
    }

    fn summary(&self) -> Summary {
        let plan = self.plan;
        let bytes: u64 = self.delivered.iter().map(|(_, bytes)| bytes).sum();
        let stall = self.stall();
        let duration_ns = plan.duration_ms * MS;
        let completed = bytes > 0 && stall.longest_at_ns + stall.longest_ns < duration_ns;
        let goodput_bps =
            if duration_ns == 0 { 0.0 } else { bytes as f64 * 8e9 / duration_ns as f64 };
        let verdict = if completed {
            format!(
                "{} went on after wifi went down; the longest stall lasted {} ms",
                plan.transport,
                stall.longest_ns / MS
            )
        } else {
            format!("{} stopped at 3.00 s when wifi went down", plan.transport)
        };
        let recoveries =
            plan.paths.iter().flat_map(|path| path.down.iter().map(move |(from, _)| (path, *from)));
        let recoveries = recoveries.map(|(path, from)| Recovery {
            event_ns: from * MS,
            event: format!("{} goes down", path.name),
            reference_bps: 19e6,
            capacity_bps: None,
            t90_ns: completed.then_some(360 * MS + u64::from(plan.repeat) * 17 * MS),
            deficit_bytes: if completed { 812_000 } else { 16_600_000 },
            longest_gap_ns: stall.longest_ns,
            last_stall_end_ns: completed.then_some(410 * MS),
        });
        Summary {
            ok: completed,
            verdict,
            cpu: None,
            account: None,
            flows: vec![FlowSummary {
                flow: 0,
                direction: DataDirection::Up,
                bytes,
                duration_ns,
                goodput_bps,
                completed,
                failure: (!completed).then(|| "nothing arrived in the last second".to_owned()),
                connect_ns: Some(31_400_000),
                stall,
                recoveries: recoveries.collect(),
                congestion_control: vec!["cubic".to_owned()],
                retransmissions: self.retransmissions.values().map(|n| u64::from(*n)).sum(),
                stack: None,
                messages: None,
                datagrams: None,
            }],
            subflows: self.subflow_summaries(),
            paths: Vec::new(),
            multipath: self.multipath_proof(),
            warnings: self.warnings(),
            expectations: vec![ExpectationResult {
                text: "goodput >= 15 Mbit/s".to_owned(),
                measured: format!("{:.1} Mbit/s", goodput_bps / 1e6),
                passed: Some(goodput_bps >= 15e6),
            }],
        }
    }

    fn warnings(&self) -> Vec<Warning> {
        if self.multipath || self.plan.transport == Transport::Quic {
            return Vec::new();
        }
        vec![Warning {
            text: "the emulator's host was busy: other processes used 31 % of the processors"
                .to_owned(),
            hint: Some("stop other programs and run again".to_owned()),
        }]
    }

    fn multipath_proof(&self) -> MultipathUse {
        if !self.multipath {
            return MultipathUse { paths_used: vec!["wifi".to_owned()], ..MultipathUse::default() };
        }
        MultipathUse {
            requested: true,
            used: true,
            fallback: None,
            paths_used: self.plan.paths.iter().map(|path| path.name.clone()).collect(),
            evidence: vec![
                "MPTCP_INFO: connection 0 did not fall back".to_owned(),
                "MPTcpExt.MPJoinSynAckRx rose by 1 on phone".to_owned(),
                "payload arrived from 2 addresses".to_owned(),
            ],
            flows: Vec::new(),
        }
    }

    fn subflow_summaries(&self) -> Vec<SubflowSummary> {
        let total_bytes: u64 = self.received.values().sum();
        let summary = |((stream, number), bytes): (&(u32, u32), &u64)| SubflowSummary {
            flow: 0,
            stream: *stream,
            direction: DataDirection::Up,
            subflow: *number,
            path: self.plan.paths[*number as usize].name.clone(),
            local: format!("10.0.{number}.1:43210"),
            remote: format!("10.0.{number}.2:5201"),
            backup: false,
            bytes: *bytes,
            share: if total_bytes == 0 { 0.0 } else { *bytes as f64 / total_bytes as f64 },
            retransmissions: u64::from(self.retransmissions.get(number).copied().unwrap_or(0)),
            srtt_us: 96_000,
            first_seen_ns: u64::from(*number) * 114 * MS,
            closed_ns: (*number == 0 && self.multipath).then_some(5 * SECOND),
        };
        self.received.iter().map(summary).collect()
    }
}

fn meta(plan: &Plan, run: String) -> Meta {
    let paths = plan.paths.iter().map(|path| MetaPath {
        name: path.name.clone(),
        between: ["phone".to_owned(), "server".to_owned()],
        up_rate_bps: Some((path.mbps * 1e6) as u64),
        down_rate_bps: Some((path.mbps * 1e6) as u64),
        up_delay_ns: (path.rtt_ms / 2.0 * 1e6) as u64,
        down_delay_ns: (path.rtt_ms / 2.0 * 1e6) as u64,
        backup: false,
        text: format!("{} Mbit/s, {} ms, queue {} ms", path.mbps, path.rtt_ms / 2.0, path.queue_ms),
    });
    let timeline = plan.paths.iter().flat_map(|path| {
        path.down.iter().map(|(from, _)| MetaEvent {
            at_ns: from * MS,
            target: path.name.clone(),
            text: "down".to_owned(),
        })
    });
    Meta {
        schema: SCHEMA_VERSION,
        run,
        order: None,
        scenario: plan.scenario.clone(),
        description: "A phone uploads while it walks out of the reach of its Wi-Fi.".to_owned(),
        scenario_toml: format!(
            "name = \"{}\"\n\n[paths.wifi]\nrate = \"40 Mbit/s\"\n",
            plan.scenario
        ),
        world: World::Emu,
        stack: "kernel".to_owned(),
        transport: plan.transport,
        repeat: plan.repeat,
        seed: 1,
        towpath: "0.1.0".to_owned(),
        kernel: "6.18.5".to_owned(),
        started_us: None,
        duration_ns: plan.duration_ms * MS,
        sample_ns: plan.sample_ms * MS,
        congestion_control: "cubic".to_owned(),
        hosts: vec!["phone".to_owned(), "server".to_owned()],
        paths: paths.collect(),
        flows: vec![MetaFlow {
            video: None,
            flow: 0,
            from: "phone".to_owned(),
            to: "server".to_owned(),
            pattern: "bulk".to_owned(),
            direction: DataDirection::Up,
            streams: plan.streams,
            via: "wifi".to_owned(),
        }],
        timeline: timeline.collect(),
        conditions: BTreeMap::from([
            ("emulator back-end".to_owned(), "user space, TAP".to_owned()),
            ("emulator priority".to_owned(), "nice -10".to_owned()),
            ("processors".to_owned(), "2".to_owned()),
        ]),
    }
}
