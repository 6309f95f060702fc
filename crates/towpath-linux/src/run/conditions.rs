//! The conditions of a run: what a reader must know to judge or repeat it.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use towpath_measure::format;
use towpath_measure::metrics::disruption::describe;
use towpath_measure::result::{
    Counter, Interface, Meta, MetaEvent, MetaFlow, MetaPath, Noise, SCHEMA_VERSION,
};
use towpath_measure::scenario::{
    Change, DataDirection, Down, Path, Pattern, Scenario, Target, World,
};
use towpath_measure::traffic::{directions, streams};
use towpath_net::Rate;
use towpath_net::config::{DirectionConfig, Loss, Queue, QueueLimit, Shaper};

use super::Job;
use crate::emulator::engine::EmulatorReport;
use crate::netlink::Counters;
use crate::network::Network;
use crate::sys;

/// A run whose packets were later than this (99th percentile) is marked degraded.
const LATENESS_LIMIT: Duration = Duration::from_millis(2);
/// So is one during which others used more than this share of the processors.
const FOREIGN_LIMIT: f64 = 0.5;

/// What was true before the traffic.
#[derive(Debug)]
pub(super) struct Before {
    counters: Vec<Counters>,
    processors: ProcessorTime,
    own: Duration,
}

#[derive(Debug, Clone, Copy, Default)]
struct ProcessorTime {
    busy_ticks: u64,
    all_ticks: u64,
}

impl Before {
    pub(super) fn read(network: &Network) -> Self {
        Self {
            counters: network.hosts.iter().map(|host| counters(&host.namespace)).collect(),
            processors: processor_time(),
            own: sys::process_cpu_time(),
        }
    }

    /// Counters of every host that have changed since.
    pub(super) fn changes(&self, network: &Network) -> Vec<Counter> {
        let mut changes = Vec::new();
        for (host, before) in network.hosts.iter().zip(&self.counters) {
            let now = counters(&host.namespace);
            changes.extend(now.iter().filter_map(|(name, after)| {
                let before = before.get(name).unwrap_or(0);
                (after > before).then(|| Counter {
                    host: host.name.clone(),
                    name: name.to_owned(),
                    before,
                    after,
                })
            }));
        }
        changes
    }
}

fn counters(namespace: &crate::Namespace) -> Counters {
    // A kernel that shows no counters leaves the proof to the sockets.
    namespace.run(Counters::read).ok().and_then(Result::ok).unwrap_or_else(|| Counters::parse(""))
}

/// The first line of `/proc/stat`: all processors together.
fn processor_time() -> ProcessorTime {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: Vec<u64> = text
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .take(8)
        .filter_map(|field| field.parse().ok())
        .collect();
    let all_ticks = ticks.iter().sum();
    // user nice system IDLE IOWAIT irq softirq steal
    let idle_ticks: u64 = ticks.iter().skip(3).take(2).sum();
    ProcessorTime { busy_ticks: all_ticks - idle_ticks, all_ticks }
}

/// The first record.
pub(super) fn meta(job: &Job, network: &Network, seed: u64) -> Meta {
    let scenario = &*job.scenario;
    let end = scenario.flows.iter().map(|flow| flow.start + flow.pattern.duration()).max();
    Meta {
        schema: SCHEMA_VERSION,
        run: format!("{}-emu-{}-{}", scenario.name, job.transport, job.repeat),
        scenario: scenario.name.clone(),
        description: scenario.description.clone(),
        scenario_toml: scenario.source.clone(),
        world: World::Emu,
        stack: "kernel".to_owned(),
        transport: job.transport,
        repeat: job.repeat,
        seed,
        towpath: env!("CARGO_PKG_VERSION").to_owned(),
        kernel: read("/proc/sys/kernel/osrelease"),
        duration_ns: end.unwrap_or_default().as_nanos() as u64,
        sample_ns: scenario.run.sample.as_nanos() as u64,
        congestion_control: scenario.run.congestion_control.clone(),
        hosts: scenario.hosts.iter().map(|host| host.name.clone()).collect(),
        paths: scenario.paths.iter().map(|path| meta_path(scenario, path)).collect(),
        flows: meta_flows(scenario),
        timeline: meta_timeline(scenario),
        conditions: conditions(network),
    }
}

fn read(path: &str) -> String {
    match fs::read_to_string(path) {
        Ok(text) => text.split_whitespace().collect::<Vec<_>>().join(" "),
        Err(_) => "not available".to_owned(),
    }
}

fn conditions(network: &Network) -> BTreeMap<String, String> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut all = BTreeMap::from([
        ("emulator back-end".to_owned(), network.backend.name().to_owned()),
        ("emulator priority".to_owned(), network.emulator.priority().to_owned()),
        ("processors".to_owned(), processors.to_string()),
        ("load before".to_owned(), read("/proc/loadavg")),
    ]);
    for host in &network.hosts {
        let settings = host.namespace.run(|| {
            ["ipv4.tcp_rmem", "ipv4.tcp_wmem", "mptcp.enabled", "mptcp.scheduler"]
                .map(|name| (name, read(&format!("/proc/sys/net/{}", name.replace('.', "/")))))
        });
        for (name, value) in settings.into_iter().flatten() {
            all.insert(format!("net.{name} on {}", host.name), value);
        }
    }
    all
}

fn meta_path(scenario: &Scenario, path: &Path) -> MetaPath {
    let host =
        |index: usize| scenario.hosts.get(index).map_or_else(String::new, |h| h.name.clone());
    let rate = |config: &DirectionConfig| nominal_rate(config).map(Rate::as_bps);
    let [first, second] = path.between;
    MetaPath {
        name: path.name.clone(),
        between: [host(first), host(second)],
        up_rate_bps: rate(&path.up),
        down_rate_bps: rate(&path.down),
        up_delay_ns: path.up.delay.base.as_nanos() as u64,
        down_delay_ns: path.down.delay.base.as_nanos() as u64,
        backup: path.backup,
        text: path_text(path),
    }
}

fn nominal_rate(config: &DirectionConfig) -> Option<Rate> {
    match config.shaper {
        Shaper::Line(rate) | Shaper::TokenBucket { rate, .. } | Shaper::Htb { rate, .. } => {
            Some(rate)
        }
        Shaper::Unlimited | Shaper::Trace(_) => config.delay.rate,
    }
}

fn path_text(path: &Path) -> String {
    let (up, down) = (direction_text(&path.up), direction_text(&path.down));
    if up == down { up } else { format!("up {up}; down {down}") }
}

/// `40 Mbit/s, 15 ms, queue 80 ms`.
fn direction_text(config: &DirectionConfig) -> String {
    let mut parts = vec![match (&config.shaper, nominal_rate(config)) {
        (Shaper::Trace(_), _) => "rate from a trace".to_owned(),
        (_, Some(rate)) => rate.to_string(),
        (_, None) => "no rate limit".to_owned(),
    }];
    parts.push(format::time(config.delay.base));
    let limit = match config.queue {
        Queue::DropTail(limit) => Some(limit).filter(|limit| *limit != QueueLimit::Unlimited),
        Queue::CoDel { limit, .. } | Queue::Pie { limit, .. } => Some(limit),
    };
    parts.extend(limit.map(|limit| match limit {
        QueueLimit::Unlimited => "queue without limit".to_owned(),
        QueueLimit::Bytes(bytes) => format!("queue {}", format::bytes(bytes)),
        QueueLimit::Packets(packets) => format!("queue {packets} packets"),
        QueueLimit::Time(span) => format!("queue {}", format::time(span)),
    }));
    match config.loss {
        Loss::None => {}
        Loss::Random(chance) => parts.push(format!("loss {:.3} %", chance.as_f64() * 100.0)),
        Loss::GilbertElliott { .. } | Loss::Burst { .. } => parts.push("bursty loss".to_owned()),
    }
    parts.join(", ")
}

fn meta_flows(scenario: &Scenario) -> Vec<MetaFlow> {
    let host =
        |index: usize| scenario.hosts.get(index).map_or_else(String::new, |h| h.name.clone());
    let flows = scenario.flows.iter().enumerate();
    flows
        .map(|(index, flow)| MetaFlow {
            flow: index as u32,
            from: host(flow.from),
            to: host(flow.to),
            pattern: match &flow.pattern {
                Pattern::Bulk { .. } => "bulk",
                Pattern::Iperf { .. } => "iperf",
                Pattern::Run { .. } => "run",
            }
            .to_owned(),
            direction: match directions(&flow.pattern) {
                [one] => *one,
                _ => DataDirection::Both,
            },
            streams: streams(&flow.pattern),
            via: scenario.paths.get(flow.via).map_or_else(String::new, |path| path.name.clone()),
        })
        .collect()
}

fn meta_timeline(scenario: &Scenario) -> Vec<MetaEvent> {
    let events = scenario.timeline.iter().map(|event| {
        let (target, text) = describe(scenario, event);
        MetaEvent { at_ns: event.at.as_nanos() as u64, target, text }
    });
    events.collect()
}

/// Totals of every path's interfaces.
pub(super) fn interfaces(network: &Network) -> Vec<Interface> {
    let mut all = Vec::new();
    for host in &network.hosts {
        let links = host.route().links().unwrap_or_default();
        let own = links
            .into_iter()
            .filter(|link| network.scenario.paths.iter().any(|path| path.name == link.name));
        all.extend(own.map(|link| Interface {
            host: host.name.clone(),
            interface: link.name,
            rx_bytes: link.stats.rx_bytes,
            tx_bytes: link.stats.tx_bytes,
            rx_packets: link.stats.rx_packets,
            tx_packets: link.stats.tx_packets,
            rx_dropped: link.stats.rx_dropped,
            tx_dropped: link.stats.tx_dropped,
        }));
    }
    all
}

/// Packets that a TUN device dropped because the emulator did not read it in time. What an
/// interface drops while the timeline has switched it off is no fault of the emulator's, and cannot
/// be told apart, so such paths are left out.
pub(super) fn lost_at_interfaces(network: &Network, interfaces: &[Interface]) -> u64 {
    let switched = |name: &str| {
        network.scenario.timeline.iter().any(|event| {
            let Target::Path(index) = event.target else { return false };
            let named = network.scenario.paths.get(index).is_some_and(|path| path.name == name);
            named && matches!(event.change, Change::Down(Down::Carrier | Down::Interface { .. }))
        })
    };
    let own = interfaces.iter().filter(|interface| !switched(&interface.interface));
    own.map(|interface| interface.tx_dropped).sum()
}

/// How exactly the emulator kept time.
pub(super) fn noise(report: &EmulatorReport, before: &Before, lost_packets: u64) -> Noise {
    let now = processor_time();
    let all = now.all_ticks.saturating_sub(before.processors.all_ticks).max(1) as f64;
    let busy = now.busy_ticks.saturating_sub(before.processors.busy_ticks) as f64;
    let own = sys::process_cpu_time().saturating_sub(before.own).as_secs_f64();
    // USER_HZ is 100 on every Linux; what is shown is a share, not a time.
    let foreign_cpu = ((busy - own * 100.0) / all).clamp(0.0, 1.0);
    let load = read("/proc/loadavg").split(' ').next().and_then(|text| text.parse().ok());
    let mut noise = Noise {
        lost_packets,
        load: load.unwrap_or(0.0),
        emulator_cpu_s: report.cpu.as_secs_f64(),
        foreign_cpu,
        ..report.lateness.lateness()
    };
    let late = Duration::from_nanos(noise.lateness_p99_ns);
    let reason = if late > LATENESS_LIMIT {
        Some(format!("1 % of the packets left the emulator {} late or more", format::time(late)))
    } else if lost_packets > 0 {
        Some(format!("the emulator could not keep up and lost {lost_packets} packets"))
    } else if foreign_cpu > FOREIGN_LIMIT {
        Some(format!("other work used {:.0} % of the processors", foreign_cpu * 100.0))
    } else {
        None
    };
    noise.degraded = reason.is_some();
    noise.reason = reason;
    noise
}
