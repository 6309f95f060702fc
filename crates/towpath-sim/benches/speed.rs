//! Simulator speed: the virtual time and packets that one core simulates in a second.
//!
//! Run `cargo bench -p towpath-sim --bench speed`. `--quick` simulates a tenth of the virtual
//! time. Words filter the cases by name. `--rounds N` repeats the cases in turn and prints
//! medians.

#![expect(clippy::unwrap_used, reason = "a bench fails by panicking")]
#![expect(clippy::print_stdout, reason = "a bench prints its table")]

use std::sync::Arc;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use towpath_result::Record;
use towpath_scenario::{Scenario, Transport, builtin, no_files};
use towpath_sim::{Components, SimJob, run};

const TWO_PATHS: &str = r#"
name = "two-paths"
[hosts.left]
[hosts.right]
[paths.first]
between = ["left", "right"]
rate = "100 Mbit/s"
delay = "10 ms"
queue = "80 ms"
[paths.second]
between = ["left", "right"]
rate = "100 Mbit/s"
delay = "40 ms"
queue = "80 ms"
[[flows]]
from = "left"
to = "right"
pattern = "bulk"
duration = "60 s"
"#;

struct Case {
    name: &'static str,
    scenario: Arc<Scenario>,
    transport: Transport,
}

/// Measurements of a single run.
struct Measurement {
    cpu: Duration,
    virtual_time: Duration,
    /// Data that reached the applications, in full packets.
    data_packets: f64,
    /// All packets that reached a host, including acknowledgements.
    packets: u64,
}

fn cases(divisor: u32) -> Vec<Case> {
    let two_paths = Scenario::parse("two-paths.toml", TWO_PATHS, &no_files);
    let two_paths = two_paths.unwrap_or_else(|errors| panic!("{errors}"));
    let with_seconds = |name: &str, seconds: u64| {
        let entry = builtin().iter().find(|builtin| builtin.name == name).unwrap();
        with_duration(entry.scenario().unwrap(), Duration::from_secs(seconds) / divisor)
    };
    let two_paths = with_duration(two_paths, Duration::from_secs(60) / divisor);
    let case = |name, scenario: &Scenario, transport| Case {
        name,
        scenario: Arc::new(scenario.clone()),
        transport,
    };
    let wifi = with_seconds("wifi-3g", 600);
    vec![
        case("two paths of 100 Mbit/s", &two_paths, Transport::Mptcp),
        case("one of them, TCP", &two_paths, Transport::Tcp),
        case("wifi-3g", &wifi, Transport::Mptcp),
        case("wifi-3g, TCP", &wifi, Transport::Tcp),
        case("two-links-gigabit", &with_seconds("two-links-gigabit", 10), Transport::Mptcp),
    ]
}

fn with_duration(mut scenario: Scenario, new_duration: Duration) -> Scenario {
    use towpath_scenario::Pattern::{Bulk, Exchange, Iperf, Run, Udp, Udping, Video, Web};
    for flow in &mut scenario.flows {
        match &mut flow.pattern {
            Bulk { duration, .. } | Iperf { duration, .. } | Run { duration, .. } => {
                *duration = new_duration;
            }
            // The measured scenarios contain only transfers.
            Exchange(_) | Video(_) | Web(_) | Udp(_) | Udping(_) => {}
        }
    }
    scenario
}

/// Returns the CPU time of this thread: other load on the machine is not counted, though it slows
/// the thread down.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).unwrap().into()
}

fn measure(case: &Case) -> Measurement {
    let job = SimJob {
        scenario: Arc::clone(&case.scenario),
        transport: case.transport,
        repeat: 1,
        trace: true,
        components: Components::default(),
    };
    let (mut bytes, mut mss) = (0, 0);
    let cpu_before = cpu_time();
    let report = run(&job, Vec::new(), &mut |record| {
        if let Record::Interval(interval) = record {
            bytes += interval.bytes;
        }
        if let Record::Subflow(subflow) = record {
            mss = mss.max(subflow.mss_bytes);
        }
        Ok(())
    });
    let (report, cpu) = (report.unwrap(), cpu_time().saturating_sub(cpu_before));
    let data_packets = bytes as f64 / f64::from(mss.max(1));
    let (virtual_time, packets) = (report.virtual_time, report.packets);
    Measurement { cpu, virtual_time, data_packets, packets }
}

fn median(measurements: &mut [Measurement]) -> &Measurement {
    measurements.sort_by_key(|m| m.cpu);
    measurements.get(measurements.len() / 2).unwrap()
}

fn main() {
    let mut filters: Vec<String> =
        std::env::args().skip(1).filter(|filter| filter != "--bench").collect();
    let mut rounds = 1;
    if let Some(rounds_index) = filters.iter().position(|filter| filter == "--rounds") {
        rounds =
            filters.get(rounds_index + 1).and_then(|filter| filter.parse().ok()).unwrap_or(rounds);
        filters.drain(rounds_index..filters.len().min(rounds_index + 2));
    }
    let quick = filters.iter().any(|filter| filter == "--quick");
    filters.retain(|filter| !filter.starts_with("--"));
    let is_selected =
        |case: &Case| filters.is_empty() || filters.iter().any(|filter| case.name.contains(filter));
    let cases: Vec<Case> =
        cases(if quick { 10 } else { 1 }).into_iter().filter(is_selected).collect();
    let mut measurements: Vec<Vec<Measurement>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (case, results) in cases.iter().zip(&mut measurements) {
            results.push(measure(case));
        }
    }
    println!(
        "| case | CPU s | data packets | million data packets/s | all packets | simulated s/s |"
    );
    println!("|---|---|---|---|---|---|");
    for (case, results) in cases.iter().zip(&mut measurements) {
        let Measurement { cpu, virtual_time, data_packets, packets } = median(results);
        let seconds = cpu.as_secs_f64();
        let rate = data_packets / seconds / 1e6;
        let speedup = virtual_time.as_secs_f64() / seconds;
        println!(
            "| {} | {seconds:.3} | {data_packets:.0} | {rate:.3} | {packets} | {speedup:.0} |",
            case.name
        );
    }
}
