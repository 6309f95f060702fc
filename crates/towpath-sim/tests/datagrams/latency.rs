//! Latency under load, over an oversized queue and over a managed one.

use towpath_measure::result::{Load, LoadPhase};
use towpath_measure::scenario::Transport;

use crate::simulated::{CompletedRun, scenario, simulate};

/// Runs over 20 Mbit/s with 20 ms in each direction; returns the load phases.
fn phases(queue: &str, transport: Transport) -> Vec<LoadPhase> {
    let run = "[run]\ntransports = [\"tcp\", \"mptcp\", \"quic\", \"mpquic\"]\n";
    let ended: CompletedRun = simulate(
        &scenario(&format!(
            "name = \"latency\"\n[hosts.phone]\n[hosts.server]\n[paths.wifi]\n\
             between = [\"phone\", \"server\"]\nrate = \"20 Mbit/s\"\ndelay = \"20 ms\"\n\
             queue = {queue}\n[[flows]]\nfrom = \"phone\"\nto = \"server\"\n\
             pattern = \"latency\"\n{run}"
        )),
        transport,
        1,
        false,
    );
    let summary = ended.summary();
    assert!(summary.ok, "{}", summary.verdict);
    // The requests and three loads, one of them in both directions; datagrams belong to the paths.
    assert_eq!(summary.flows.len(), 2 + 1 + 1 + 2, "{summary:#?}");
    summary.flows[0].messages.clone().unwrap().phases
}

/// Bounds were set in advance: two queue fills of 100 to 500 ms, against CoDel's target of 5 ms
/// plus the bursts of a few windows.
#[test]
fn a_long_queue_raises_latency_and_an_aqm_hardly_does() {
    for transport in [Transport::Tcp, Transport::Mptcp, Transport::Quic] {
        let long = phases("\"500 ms\"", transport);
        let managed = phases("{ codel = {} }", transport);
        for (phase, other) in long.iter().zip(&managed) {
            let median = |phase: &LoadPhase| phase.delay.unwrap().p50_ns / 1_000_000;
            if phase.load == Load::Idle {
                assert!((40..45).contains(&median(phase)), "{transport}: {phase:?}");
                assert!((40..45).contains(&median(other)), "{transport}: {other:?}");
                assert!(phase.round_trips_per_minute.unwrap() > 1_300.0, "{phase:?}");
                continue;
            }
            let rise = |phase: &LoadPhase| phase.delay_increase_ns.unwrap() / 1_000_000;
            assert!((100..1_100).contains(&rise(phase)), "{transport}: {phase:?}");
            assert!(rise(other) < 60, "{transport}: {other:?}");
            let minute = |phase: &LoadPhase| phase.round_trips_per_minute.unwrap();
            assert!(minute(phase) < 450.0 && minute(other) > 550.0, "{phase:?} {other:?}");
            // Datagrams wait in the same queues.
            let [path] = &phase.paths[..] else { panic!("{phase:?}") };
            assert!(path.delay_increase_ns.unwrap() / 1_000_000 >= 100, "{transport}: {path:?}");
        }
    }
}
