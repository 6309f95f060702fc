//! Datagrams over single paths, independent of the transport.

use towpath_result::{PathStats, Probe, Record};
use towpath_scenario::{Scenario, Transport};

use crate::network;
use crate::simulated::{CompletedRun, scenario, simulate};

mod constant_rate;
mod latency;

const ALL_TRANSPORTS: [Transport; 4] =
    [Transport::Tcp, Transport::Mptcp, Transport::Quic, Transport::Mpquic];

/// Returns two paths for every transport, with the given flows and timeline events.
fn two_paths(rest: &str) -> Scenario {
    let run = "[run]\ntransports = [\"tcp\", \"mptcp\", \"quic\", \"mpquic\"]\n";
    network(&format!("{run}{rest}"))
}

fn udping(rest: &str) -> Scenario {
    let flow = "[[flows]]\nfrom = \"phone\"\nto = \"server\"\npattern = \"udping\"\n";
    two_paths(&format!("{flow}duration = \"5 s\"\n{rest}"))
}

fn path_stats<'a>(run: &'a CompletedRun, name: &str) -> &'a PathStats {
    run.summary().paths.iter().find(|path| path.path == name).unwrap()
}

fn probes<'a>(run: &'a CompletedRun, path: &str) -> Vec<&'a Probe> {
    let probes = run.records.iter().filter_map(|record| {
        let Record::Probe(probe) = record else { return None };
        Some(probe).filter(|probe| probe.path == path)
    });
    probes.collect()
}

#[test]
fn every_path_reports_its_round_trip_for_every_transport() {
    for transport in ALL_TRANSPORTS {
        let run = simulate(&udping(""), transport, 1, false);
        assert!(run.summary().ok, "{}", run.summary().verdict);
        for (name, round_trip_ms) in [("wifi", 20.0), ("cellular", 50.0)] {
            let stats = path_stats(&run, name);
            assert_eq!((stats.count, stats.sent, stats.answered), (50, 50, 50));
            let median = stats.round_trip.unwrap().p50_ns as f64 / 1e6;
            assert!((round_trip_ms..round_trip_ms * 1.02).contains(&median), "{median}");
            assert_eq!(stats.silence_ns, 100_000_000);
        }
        assert_eq!(run.summary().flows, []);
    }
}

#[test]
fn a_path_that_is_down_is_silent_and_the_other_is_not() {
    for (down_mode, expected_sent) in
        [("silent", 50), ("carrier", 30), ("interface\"\nhost = \"phone", 30)]
    {
        let event = |time_s: u32, set: &str| {
            format!("[[timeline]]\nat = \"{time_s} s\"\npath = \"wifi\"\nset = \"{set}\"\n")
        };
        let (down, up) = (event(1, "down"), event(3, "up"));
        let text = format!("{down}mode = \"{down_mode}\"\n{up}");
        let run = simulate(&udping(&text), Transport::Tcp, 1, false);
        let wifi = path_stats(&run, "wifi");
        assert_eq!((wifi.count, wifi.answered, wifi.sent), (50, 30, expected_sent), "{down_mode}");
        // From the last reply before the outage to the first one after it.
        assert_eq!(wifi.silence_at_ns / 1_000_000, 920, "{down_mode}");
        assert_eq!(wifi.silence_ns / 1_000_000, 2_100, "{down_mode}");
        assert!(wifi.delay.p90_ns > 2_970_000_000, "{down_mode}: {:?}", wifi.delay);
        assert_eq!(path_stats(&run, "cellular").answered, 50, "{down_mode}");
        let lost = probes(&run, "wifi").into_iter().filter(|probe| probe.answered_ns.is_none());
        let lost: Vec<_> = lost.map(|probe| probe.number).collect();
        assert_eq!(lost, (10..30).collect::<Vec<_>>(), "{down_mode}");
    }
}

#[test]
fn datagrams_wait_in_the_queues_that_the_traffic_fills() {
    let without_load = simulate(&udping(""), Transport::Tcp, 1, false);
    let loaded = udping("load = \"up\"");
    let with_load = simulate(&loaded, Transport::Tcp, 1, false);
    let median = |run: &CompletedRun, name| path_stats(run, name).round_trip.unwrap().p50_ns;
    assert!(
        median(&with_load, "wifi") > 2 * median(&without_load, "wifi"),
        "{:?}",
        path_stats(&with_load, "wifi")
    );
    // TCP uses only the first path.
    assert_eq!(median(&with_load, "cellular"), median(&without_load, "cellular"));
    assert_eq!(with_load.summary().flows.len(), 1);
}

#[test]
fn a_new_address_is_probed_at_once() {
    let address_change =
        "[[timeline]]\nat = \"2 s\"\npath = \"wifi\"\nset = \"address\"\nhost = \"phone\"\n";
    let run = simulate(&udping(address_change), Transport::Mptcp, 1, false);
    assert_eq!(path_stats(&run, "wifi").answered, 50);
}

#[test]
fn the_reverse_direction_and_ipv6_give_the_same_result() {
    let text = udping("family = \"v6\"").source;
    let text =
        text.replace("from = \"phone\"\nto = \"server\"", "from = \"server\"\nto = \"phone\"");
    let run = simulate(&scenario(&text), Transport::Mpquic, 1, false);
    assert_eq!(
        (path_stats(&run, "wifi").answered, path_stats(&run, "cellular").answered),
        (50, 50)
    );
}

#[test]
fn equal_runs_give_equal_bytes() {
    let lossy = udping("load = \"both\"")
        .source
        .replace("delay = \"25 ms\"", "delay = \"25 ms\"\nloss = \"5 %\"");
    let run = || simulate(&scenario(&lossy), Transport::Mptcp, 1, false);
    let (first, second) = (run(), run());
    assert!(path_stats(&first, "cellular").lost() > 0, "{:?}", path_stats(&first, "cellular"));
    assert_eq!(first.bytes, second.bytes);
}
