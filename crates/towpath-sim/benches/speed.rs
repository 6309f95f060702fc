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
use towpath_measure::result::Record;
use towpath_measure::scenario::{Scenario, Transport, builtin, no_files};
use towpath_sim::{SimJob, run};

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
struct Measured {
    cpu: Duration,
    virtual_time: Duration,
    /// Data that reached the applications, in full packets.
    data_packets: f64,
    /// All packets that reached a host, including acknowledgements.
    packets: u64,
}

fn cases(share: u32) -> Vec<Case> {
    let two = Scenario::parse("two-paths.toml", TWO_PATHS, &no_files);
    let two = two.unwrap_or_else(|errors| panic!("{errors}"));
    let lasting = |name: &str, seconds: u64| {
        let found = builtin().iter().find(|builtin| builtin.name == name).unwrap();
        with_duration(found.scenario().unwrap(), Duration::from_secs(seconds) / share)
    };
    let two = with_duration(two, Duration::from_secs(60) / share);
    let case = |name, scenario: &Scenario, transport| Case {
        name,
        scenario: Arc::new(scenario.clone()),
        transport,
    };
    let wifi = lasting("wifi-3g", 600);
    vec![
        case("two paths of 100 Mbit/s", &two, Transport::Mptcp),
        case("one of them, TCP", &two, Transport::Tcp),
        case("wifi-3g", &wifi, Transport::Mptcp),
        case("wifi-3g, TCP", &wifi, Transport::Tcp),
        case("two-links-gigabit", &lasting("two-links-gigabit", 10), Transport::Mptcp),
    ]
}

fn with_duration(mut scenario: Scenario, lasting: Duration) -> Scenario {
    use towpath_measure::scenario::Pattern::{Bulk, Exchange, Iperf, Run, Udp, Udping, Video, Web};
    for flow in &mut scenario.flows {
        match &mut flow.pattern {
            Bulk { duration, .. } | Iperf { duration, .. } | Run { duration, .. } => {
                *duration = lasting;
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

fn measure(case: &Case) -> Measured {
    let job = SimJob {
        scenario: Arc::clone(&case.scenario),
        transport: case.transport,
        repeat: 1,
        trace: true,
    };
    let (mut bytes, mut mss) = (0, 0);
    let before = cpu_time();
    let report = run(&job, Vec::new(), &mut |record| {
        if let Record::Interval(interval) = record {
            bytes += interval.bytes;
        }
        if let Record::Subflow(subflow) = record {
            mss = mss.max(subflow.mss_bytes);
        }
        Ok(())
    });
    let (report, cpu) = (report.unwrap(), cpu_time().saturating_sub(before));
    let data_packets = bytes as f64 / f64::from(mss.max(1));
    let (virtual_time, packets) = (report.virtual_time, report.packets);
    Measured { cpu, virtual_time, data_packets, packets }
}

fn median(rounds: &mut [Measured]) -> &Measured {
    rounds.sort_by_key(|round| round.cpu);
    rounds.get(rounds.len() / 2).unwrap()
}

fn main() {
    let mut words: Vec<String> =
        std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let mut rounds = 1;
    if let Some(at) = words.iter().position(|word| word == "--rounds") {
        rounds = words.get(at + 1).and_then(|word| word.parse().ok()).unwrap_or(rounds);
        words.drain(at..words.len().min(at + 2));
    }
    let quick = words.iter().any(|word| word == "--quick");
    words.retain(|word| !word.starts_with("--"));
    let wanted =
        |case: &Case| words.is_empty() || words.iter().any(|word| case.name.contains(word));
    let cases: Vec<Case> = cases(if quick { 10 } else { 1 }).into_iter().filter(wanted).collect();
    let mut measured: Vec<Vec<Measured>> = cases.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (case, results) in cases.iter().zip(&mut measured) {
            results.push(measure(case));
        }
    }
    println!(
        "| case | CPU s | data packets | million data packets/s | all packets | simulated s/s |"
    );
    println!("|---|---|---|---|---|---|");
    for (case, results) in cases.iter().zip(&mut measured) {
        let Measured { cpu, virtual_time, data_packets, packets } = median(results);
        let seconds = cpu.as_secs_f64();
        let rate = data_packets / seconds / 1e6;
        let times = virtual_time.as_secs_f64() / seconds;
        println!(
            "| {} | {seconds:.3} | {data_packets:.0} | {rate:.3} | {packets} | {times:.0} |",
            case.name
        );
    }
}
