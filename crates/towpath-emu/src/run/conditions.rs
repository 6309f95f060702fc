//! The conditions of a run: what a reader must know to judge or repeat it.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use towpath_netlink::MibCounters;
use towpath_os::sys;
use towpath_result::format;
use towpath_result::{Counter, EmulatorTiming, Interface, Meta, WakeupTiming};
use towpath_scenario::{DownMode, TimelineChange, TimelineTarget, Transport, World};

use super::RunJob;
use crate::emulator::engine::EmulatorReport;
use crate::emulator::wakeup_timer::WakeupStats;
use crate::network::{EmulatedNetwork, stack_plan};

/// Lateness (99th percentile) above which a run is marked unreliable.
const MAX_LATENESS: Duration = Duration::from_millis(2);
/// CPU share of other processes above which a run is marked unreliable.
const MAX_OTHER_CPU: f64 = 0.5;

/// State before the traffic, to compute differences.
#[derive(Debug)]
pub(super) struct RunBaseline {
    counters: Vec<MibCounters>,
    processors: CpuTicks,
    /// Processor time of this process.
    own_cpu_time: Duration,
}

#[derive(Debug, Clone, Copy, Default)]
struct CpuTicks {
    busy_ticks: u64,
    all_ticks: u64,
}

impl RunBaseline {
    pub(super) fn read(network: &EmulatedNetwork) -> Self {
        Self {
            counters: network.hosts.iter().map(|host| read_counters(&host.namespace)).collect(),
            processors: read_cpu_ticks(),
            own_cpu_time: sys::process_cpu_time(),
        }
    }

    /// Returns the counters of every host that have changed since.
    pub(super) fn changes(&self, network: &EmulatedNetwork) -> Vec<Counter> {
        let mut changes = Vec::new();
        for (host, before) in network.hosts.iter().zip(&self.counters) {
            let now = read_counters(&host.namespace);
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

fn read_counters(namespace: &towpath_os::Namespace) -> MibCounters {
    // If a kernel has no counters, the sockets alone are the evidence.
    namespace
        .run(MibCounters::read)
        .ok()
        .and_then(Result::ok)
        .unwrap_or_else(|| MibCounters::parse(""))
}

/// Reads the first line of `/proc/stat`: the sum over all processors.
fn read_cpu_ticks() -> CpuTicks {
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
    CpuTicks { busy_ticks: all_ticks - idle_ticks, all_ticks }
}

/// Builds the first record of a run.
pub(super) fn meta(job: &RunJob, network: &EmulatedNetwork, seed: u64) -> Meta {
    Meta {
        stack: stack_plan::stack_name(&network.scenario).to_owned(),
        kernel: read_or_unavailable("/proc/sys/kernel/osrelease"),
        started_us: Some(towpath_os::clock::unix_us()),
        order: job.order,
        conditions: conditions(network, job.transport),
        ..Meta::of(&job.scenario, World::Emu, (job.transport, job.repeat), seed)
    }
}

fn read_or_unavailable(path: &str) -> String {
    match fs::read_to_string(path) {
        Ok(text) => text.split_whitespace().collect::<Vec<_>>().join(" "),
        Err(_) => "not available".to_owned(),
    }
}

fn conditions(network: &EmulatedNetwork, transport: Transport) -> BTreeMap<String, String> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut conditions = BTreeMap::from([
        ("emulator back-end".to_owned(), network.backend.name().to_owned()),
        ("emulator priority".to_owned(), network.emulator.priority().to_owned()),
        ("processors".to_owned(), processors.to_string()),
        ("load before".to_owned(), read_or_unavailable("/proc/loadavg")),
    ]);
    conditions.extend(network.scenario.remarks.clone());
    if transport.is_quic() {
        conditions.insert("quic".to_owned(), towpath_quic::QUIC_LIBRARY.to_owned());
        let meaning = "UDP payload, including QUIC's overhead".to_owned();
        conditions.insert("bytes of paths".to_owned(), meaning);
        for host in &network.scenario.hosts {
            for (name, value) in network.scenario.quic_settings(host) {
                conditions.insert(format!("{name} on {}", host.name), value);
            }
        }
    }
    if transport == Transport::Mpquic {
        conditions.insert("multipath quic".to_owned(), towpath_quic::MULTIPATH_DRAFT.to_owned());
    }
    for host in network.hosts.iter().filter(|host| host.stack.is_none()) {
        let settings = host.namespace.run(|| {
            ["ipv4.tcp_rmem", "ipv4.tcp_wmem", "mptcp.enabled", "mptcp.scheduler"].map(|name| {
                (name, read_or_unavailable(&format!("/proc/sys/net/{}", name.replace('.', "/"))))
            })
        });
        for (name, value) in settings.into_iter().flatten() {
            conditions.insert(format!("net.{name} on {}", host.name), value);
        }
    }
    conditions
}

/// Reads the totals of every path's interfaces.
pub(super) fn interfaces(network: &EmulatedNetwork) -> Vec<Interface> {
    let mut interfaces = Vec::new();
    for host in &network.hosts {
        let links = host.route().links().unwrap_or_default();
        let path_links = links
            .into_iter()
            .filter(|link| network.scenario.paths.iter().any(|path| path.name == link.name));
        interfaces.extend(path_links.map(|link| Interface {
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
    interfaces
}

/// Counts packets that a TUN device dropped because the emulator did not read them in time.
///
/// Drops of an interface that the timeline has set down cannot be distinguished from these. Such
/// paths are left out.
pub(super) fn lost_at_interfaces(network: &EmulatedNetwork, interfaces: &[Interface]) -> u64 {
    let is_switched_off = |name: &str| {
        network.scenario.timeline.iter().any(|event| {
            let TimelineTarget::Path(index) = event.target else { return false };
            let is_path = network.scenario.paths.get(index).is_some_and(|path| path.name == name);
            is_path
                && matches!(
                    event.change,
                    TimelineChange::Down(DownMode::Carrier | DownMode::Interface { .. })
                )
        })
    };
    let always_up = interfaces.iter().filter(|interface| !is_switched_off(&interface.interface));
    always_up.map(|interface| interface.tx_dropped).sum()
}

/// Returns the timing accuracy of the emulator and the load of the machine.
pub(super) fn emulator_timing(
    report: &EmulatorReport,
    baseline: &RunBaseline,
    lost_packets: u64,
) -> EmulatorTiming {
    let now = read_cpu_ticks();
    let all_ticks = now.all_ticks.saturating_sub(baseline.processors.all_ticks).max(1) as f64;
    let busy_ticks = now.busy_ticks.saturating_sub(baseline.processors.busy_ticks) as f64;
    let own_cpu_s = sys::process_cpu_time().saturating_sub(baseline.own_cpu_time).as_secs_f64();
    // USER_HZ is 100 on every Linux; the result is a share, not a time.
    let other_cpu_share = ((busy_ticks - own_cpu_s * 100.0) / all_ticks).clamp(0.0, 1.0);
    let load =
        read_or_unavailable("/proc/loadavg").split(' ').next().and_then(|text| text.parse().ok());
    let mut timing = EmulatorTiming {
        lost_packets,
        load: load.unwrap_or(0.0),
        emulator_cpu_s: report.cpu_time.as_secs_f64(),
        waiting: Some(wakeup_timing(report)),
        other_cpu_share,
        ..report.lateness.lateness()
    };
    let lateness = Duration::from_nanos(timing.lateness_p99_ns);
    let reason = if lateness > MAX_LATENESS {
        Some(format!(
            "1 % of the packets left the emulator {} late or more",
            format::time(lateness)
        ))
    } else if lost_packets > 0 {
        Some(format!("the emulator could not keep up and lost {lost_packets} packets"))
    } else if other_cpu_share > MAX_OTHER_CPU {
        Some(format!("other processes used {:.0} % of the processors", other_cpu_share * 100.0))
    } else {
        None
    };
    timing.unreliable = reason.is_some();
    timing.reason = reason;
    timing
}

fn wakeup_timing(report: &EmulatorReport) -> WakeupTiming {
    let WakeupStats { lateness, lead_time, busy_wait } = &report.wakeup_stats;
    WakeupTiming {
        ran_s: report.running_time.as_secs_f64(),
        awake_s: busy_wait.as_secs_f64(),
        early_p50_ns: lead_time.percentile(50.0),
        early_p99_ns: lead_time.percentile(99.0),
        wake_up_p50_ns: lateness.percentile(50.0),
        wake_up_p99_ns: lateness.percentile(99.0),
    }
}
