//! Latency under load, over an oversized queue and over a managed one.

use towpath_result::LoadPhase;
use towpath_scenario::Load;
use towpath_scenario::Transport;

use crate::simulated::{CompletedRun, scenario, simulate};

/// Runs over 20 Mbit/s with 20 ms in each direction; returns the load phases.
fn load_phases(queue: &str, transport: Transport) -> Vec<LoadPhase> {
    let run = "[run]\ntransports = [\"tcp\", \"mptcp\", \"quic\", \"mpquic\"]\n";
    let completed: CompletedRun = simulate(
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
    let summary = completed.summary();
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
        let long_queue = load_phases("\"500 ms\"", transport);
        let codel = load_phases("{ codel = {} }", transport);
        for (phase, codel_phase) in long_queue.iter().zip(&codel) {
            let median_ms = |phase: &LoadPhase| phase.delay.unwrap().p50_ns / 1_000_000;
            if phase.load == Load::Idle {
                assert!((40..45).contains(&median_ms(phase)), "{transport}: {phase:?}");
                assert!((40..45).contains(&median_ms(codel_phase)), "{transport}: {codel_phase:?}");
                assert!(phase.round_trips_per_minute.unwrap() > 1_300.0, "{phase:?}");
                continue;
            }
            let increase_ms = |phase: &LoadPhase| phase.delay_increase_ns.unwrap() / 1_000_000;
            assert!((100..1_100).contains(&increase_ms(phase)), "{transport}: {phase:?}");
            assert!(increase_ms(codel_phase) < 60, "{transport}: {codel_phase:?}");
            let trips_per_minute = |phase: &LoadPhase| phase.round_trips_per_minute.unwrap();
            assert!(
                trips_per_minute(phase) < 450.0 && trips_per_minute(codel_phase) > 550.0,
                "{phase:?} {codel_phase:?}"
            );
            // Datagrams wait in the same queues.
            let [path] = &phase.paths[..] else { panic!("{phase:?}") };
            assert!(path.delay_increase_ns.unwrap() / 1_000_000 >= 100, "{transport}: {path:?}");
        }
    }
}
