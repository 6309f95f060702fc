//! Datagrams over single paths, independent of the transport.

use towpath_measure::result::{PathStats, Probe, Record};
use towpath_measure::scenario::{Scenario, Transport};

use crate::network;
use crate::simulated::{CompletedRun, scenario, simulate};

mod constant_rate;
mod latency;

const ALL: [Transport; 4] = [Transport::Tcp, Transport::Mptcp, Transport::Quic, Transport::Mpquic];

/// Returns two paths for every transport, with the given flows and timeline events.
fn two_paths(rest: &str) -> Scenario {
    let run = "[run]\ntransports = [\"tcp\", \"mptcp\", \"quic\", \"mpquic\"]\n";
    network(&format!("{run}{rest}"))
}

fn udping(rest: &str) -> Scenario {
    let flow = "[[flows]]\nfrom = \"phone\"\nto = \"server\"\npattern = \"udping\"\n";
    two_paths(&format!("{flow}duration = \"5 s\"\n{rest}"))
}

fn path<'a>(ended: &'a CompletedRun, name: &str) -> &'a PathStats {
    ended.summary().paths.iter().find(|path| path.path == name).unwrap()
}

fn probes<'a>(ended: &'a CompletedRun, path: &str) -> Vec<&'a Probe> {
    let probes = ended.records.iter().filter_map(|record| {
        let Record::Probe(probe) = record else { return None };
        Some(probe).filter(|probe| probe.path == path)
    });
    probes.collect()
}

#[test]
fn every_path_reports_its_round_trip_for_every_transport() {
    for transport in ALL {
        let ended = simulate(&udping(""), transport, 1, false);
        assert!(ended.summary().ok, "{}", ended.summary().verdict);
        for (name, round_trip_ms) in [("wifi", 20.0), ("cellular", 50.0)] {
            let figures = path(&ended, name);
            assert_eq!((figures.count, figures.sent, figures.answered), (50, 50, 50));
            let median = figures.round_trip.unwrap().p50_ns as f64 / 1e6;
            assert!((round_trip_ms..round_trip_ms * 1.02).contains(&median), "{median}");
            assert_eq!(figures.silence_ns, 100_000_000);
        }
        assert_eq!(ended.summary().flows, []);
    }
}

#[test]
fn a_path_that_is_down_is_silent_and_the_other_is_not() {
    for (how, sent) in [("silent", 50), ("carrier", 30), ("interface\"\nhost = \"phone", 30)] {
        let event = |at: u32, set: &str| {
            format!("[[timeline]]\nat = \"{at} s\"\npath = \"wifi\"\nset = \"{set}\"\n")
        };
        let (down, up) = (event(1, "down"), event(3, "up"));
        let text = format!("{down}how = \"{how}\"\n{up}");
        let ended = simulate(&udping(&text), Transport::Tcp, 1, false);
        let wifi = path(&ended, "wifi");
        assert_eq!((wifi.count, wifi.answered, wifi.sent), (50, 30, sent), "{how}");
        // From the last reply before the outage to the first one after it.
        assert_eq!(wifi.silence_at_ns / 1_000_000, 920, "{how}");
        assert_eq!(wifi.silence_ns / 1_000_000, 2_100, "{how}");
        assert!(wifi.delay.p90_ns > 2_970_000_000, "{how}: {:?}", wifi.delay);
        assert_eq!(path(&ended, "cellular").answered, 50, "{how}");
        let lost = probes(&ended, "wifi").into_iter().filter(|one| one.answered_ns.is_none());
        let lost: Vec<_> = lost.map(|probe| probe.number).collect();
        assert_eq!(lost, (10..30).collect::<Vec<_>>(), "{how}");
    }
}

#[test]
fn datagrams_wait_in_the_queues_that_the_traffic_fills() {
    let alone = simulate(&udping(""), Transport::Tcp, 1, false);
    let loaded = udping("load = \"up\"");
    let beside = simulate(&loaded, Transport::Tcp, 1, false);
    let median = |ended: &CompletedRun, name| path(ended, name).round_trip.unwrap().p50_ns;
    assert!(median(&beside, "wifi") > 2 * median(&alone, "wifi"), "{:?}", path(&beside, "wifi"));
    // TCP uses only the first path.
    assert_eq!(median(&beside, "cellular"), median(&alone, "cellular"));
    assert_eq!(beside.summary().flows.len(), 1);
}

#[test]
fn a_new_address_is_probed_at_once() {
    let moved =
        "[[timeline]]\nat = \"2 s\"\npath = \"wifi\"\nset = \"address\"\nhost = \"phone\"\n";
    let ended = simulate(&udping(moved), Transport::Mptcp, 1, false);
    assert_eq!(path(&ended, "wifi").answered, 50);
}

#[test]
fn the_reverse_direction_and_ipv6_give_the_same_result() {
    let text = udping("family = \"v6\"").source;
    let text =
        text.replace("from = \"phone\"\nto = \"server\"", "from = \"server\"\nto = \"phone\"");
    let ended = simulate(&scenario(&text), Transport::Mpquic, 1, false);
    assert_eq!((path(&ended, "wifi").answered, path(&ended, "cellular").answered), (50, 50));
}

#[test]
fn equal_runs_give_equal_bytes() {
    let lossy = udping("load = \"both\"")
        .source
        .replace("delay = \"25 ms\"", "delay = \"25 ms\"\nloss = \"5 %\"");
    let run = || simulate(&scenario(&lossy), Transport::Mptcp, 1, false);
    let (one, other) = (run(), run());
    assert!(path(&one, "cellular").lost() > 0, "{:?}", path(&one, "cellular"));
    assert_eq!(one.bytes, other.bytes);
}
