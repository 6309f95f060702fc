//! Whole runs of QUIC and Multipath QUIC in virtual time.

#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod simulated;

use std::io::Write;
use std::process::Command;

use towpath_measure::batch;
use towpath_measure::result::{EventKind, Meta, Record};
use towpath_measure::scenario::{Scenario, Transport};

use simulated::{CompletedRun, named, scenario, simulate};

impl CompletedRun {
    fn meta(&self) -> &Meta {
        match self.records.first() {
            Some(Record::Meta(meta)) => meta,
            other => panic!("no meta: {other:?}"),
        }
    }

    /// Checks that all data arrived unmodified.
    fn assert_whole(&self, about: &str) {
        let summary = self.summary();
        for flow in &summary.flows {
            assert!(flow.completed, "{about}: {:?}", flow.failure);
        }
        let damaged = summary.warnings.iter().find(|w| w.text.contains("something else"));
        assert!(damaged.is_none(), "{about}: {damaged:?}");
    }
}

/// Returns two paths of 20 and 10 Mbit/s, with further parts of the scenario.
fn two_paths(hosts: &str, rest: &str) -> Scenario {
    scenario(&format!(
        "name = \"two-paths\"
        [hosts.phone]
        {hosts}
        [hosts.server]
        {hosts}
        [paths.wifi]
        between = [\"phone\", \"server\"]
        rate = \"20 Mbit/s\"
        delay = \"10 ms\"
        [paths.cellular]
        between = [\"phone\", \"server\"]
        rate = \"10 Mbit/s\"
        delay = \"30 ms\"
        {rest}"
    ))
}

fn bulk(more: &str) -> String {
    format!("[[flows]]\nfrom = \"phone\"\nto = \"server\"\npattern = \"bulk\"\n{more}\n")
}

#[test]
fn two_runs_give_the_same_bytes() {
    for transport in [Transport::Quic, Transport::Mpquic] {
        let handover = named("wifi-cellular-handover");
        let [first, second] = [(), ()].map(|()| simulate(&handover, transport, 1, false));
        assert!(first.bytes == second.bytes, "{transport}");
        let other = simulate(&handover, transport, 2, false);
        assert!(first.meta().seed != other.meta().seed, "{transport}");
    }
}

#[test]
fn another_process_gives_the_same_bytes() {
    let own = digests();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "prints_digests", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout).into_owned();
    assert!(text.contains(&own), "not `{own}`: {text}");
}

#[test]
#[ignore = "run by `another_process_gives_the_same_bytes`"]
fn prints_digests() {
    writeln!(std::io::stdout(), "{}", digests()).unwrap();
}

/// Returns result digests of every congestion control and policy over a path that fails and
/// recovers.
fn digests() -> String {
    let mut all = Vec::new();
    let settings = [
        "quic-congestion-control = \"olia\"",
        "quic-congestion-control = \"noq-cubic\"\npath-policy = \"ios\"",
        "path-policy = \"backup\"",
    ];
    for setting in settings {
        let rest = bulk("duration = \"4 s\"")
            + "[[timeline]]\nat = \"1 s\"\npath = \"wifi\"\nset = \"down\"\n\
               [[timeline]]\nat = \"2500 ms\"\npath = \"wifi\"\nset = \"up\"\n";
        for transport in [Transport::Quic, Transport::Mpquic] {
            let ended = simulate(&two_paths(setting, &rest), transport, 1, false);
            // FNV-1a
            let digest = ended.bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
            all.push(format!("{digest:016x}"));
        }
    }
    all.join(" ")
}

/// Runs 20 repetitions, each with its own seed; returns the goodputs. All must complete.
fn twenty(scenario: &Scenario, about: &str) -> Vec<f64> {
    let mut goodputs = Vec::new();
    batch::in_order(
        20,
        2,
        |index| simulate(scenario, Transport::Mpquic, index as u32 + 1, false),
        |index, ended| {
            ended.assert_whole(&format!("{about}, seed {}", ended.meta().seed));
            assert!(ended.summary().multipath.used, "{about}, repetition {index}");
            goodputs.push(ended.goodput_mbps());
            true
        },
    );
    goodputs
}

#[test]
fn the_handover_completes_with_20_seeds() {
    let goodputs = twenty(&named("wifi-cellular-handover"), "handover");
    // 3 s at 60 Mbit/s and 7 s at 20 average to 32; TCP without a second path reaches 11.
    assert!(goodputs.iter().all(|goodput| *goodput > 25.0), "{goodputs:?}");
}

#[test]
fn a_transfer_survives_the_loss_of_either_path_with_20_seeds() {
    let silently = "set = \"down\"";
    let by_interface = "set = \"down\"\nmode = \"interface\"\nhost = \"phone\"";
    for (lost, set) in [("wifi", silently), ("cellular", by_interface)] {
        let rest = bulk("duration = \"6 s\"")
            + &format!("[[timeline]]\nat = \"1 s\"\npath = \"{lost}\"\n{set}\n");
        twenty(&two_paths("", &rest), lost);
    }
}

#[test]
fn two_links_carry_twice_as_much_as_one() {
    let two_links = named("two-links");
    let [quic, mpquic] = [Transport::Quic, Transport::Mpquic].map(|transport| {
        let ended = simulate(&two_links, transport, 1, false);
        ended.assert_whole("two links");
        ended.goodput_mbps()
    });
    assert!(mpquic >= 1.8 * quic, "{mpquic} and {quic} Mbit/s");
}

#[test]
fn a_lossy_link_delivers_every_byte_in_both_directions() {
    for direction in ["up", "down"] {
        for transport in [Transport::Quic, Transport::Mpquic] {
            let rest =
                bulk(&format!("size = \"1 MB\"\nduration = \"60 s\"\ndirection = \"{direction}\""));
            let text = two_paths("", &rest).source.replace(
                "delay = \"10 ms\"",
                "delay = \"10 ms\"\nloss = \"3 %\"\nduplicate = \"1 %\"\ncorrupt = \"1 %\"",
            );
            let ended = simulate(&scenario(&text), transport, 1, false);
            ended.assert_whole(&format!("{transport} {direction}"));
            let flows = &ended.summary().flows;
            assert!(flows.iter().all(|flow| flow.bytes == 1_000_000), "{flows:?}");
        }
    }
}

#[test]
fn parallel_streams_share_a_connection() {
    let text = two_paths("", "").source
        + "[[flows]]\nfrom = \"phone\"\nto = \"server\"\npattern = \"iperf\"\nduration = \"3 s\"\n\
           direction = \"down\"\nstreams = 4\nfamily = \"v6\"\n";
    let ended = simulate(&scenario(&text), Transport::Mpquic, 1, false);
    ended.assert_whole("streams");
    let mut bytes = [0; 4];
    for record in &ended.records {
        if let Record::Interval(interval) = record {
            bytes[interval.stream as usize] += interval.bytes;
        }
    }
    assert!(bytes.iter().all(|bytes| *bytes > 500_000), "{bytes:?}");
    let subflows = &ended.summary().subflows;
    let paths: Vec<_> = subflows.iter().map(|s| (s.stream, s.path.as_str())).collect();
    assert_eq!(paths, [(0, "wifi"), (0, "cellular")]);
    assert!(subflows[0].local.starts_with('['), "{}", subflows[0].local);
    assert!(ended.goodput_mbps() > 20.0, "{}", ended.goodput_mbps());
}

#[test]
fn captures_show_udp_on_both_paths() {
    let rest = bulk("size = \"200 KB\"\nduration = \"5 s\"");
    let ended = simulate(&two_paths("", &rest), Transport::Mpquic, 1, true);
    let [phone, server] = ended.captures.as_slice() else { panic!("two hosts") };
    for (capture, host) in [(phone, "phone"), (server, "server")] {
        for address in [[10, 64, 0, 1], [10, 64, 1, 1]] {
            // An IPv4 header: protocol 17 with a hop limit of 64, then checksum and source.
            let found = capture
                .windows(8)
                .any(|bytes| bytes.starts_with(&[64, 17]) && bytes.ends_with(&address));
            assert!(found, "no UDP from {address:?} at {host}");
        }
    }
}

#[test]
fn ios_leaves_a_path_that_becomes_slow_and_reports_the_reason() {
    let rest = bulk("duration = \"8 s\"")
        + "[[timeline]]\nat = \"2 s\"\npath = \"wifi\"\nset = \"delay\"\ndelay = \"500 ms\"\n";
    let slow = two_paths("path-policy = \"ios\"", &rest);
    let ended = simulate(&slow, Transport::Mpquic, 1, false);
    ended.assert_whole("ios");
    let switches = ended.events(EventKind::Subflow);
    let left = |text: &&str| text.starts_with("path 0 on wifi is a backup now");
    assert!(switches.iter().any(left), "{switches:?}");
    let share = ended.summary().subflows.iter().find(|s| s.path == "cellular").unwrap().share;
    assert!(share > 0.25, "{share} of the bytes on cellular");
}

#[test]
fn a_result_names_the_protocol_and_the_library_limits() {
    let rest = bulk("size = \"200 KB\"\nduration = \"5 s\"");
    let hosts = "receive-buffer = \"4 MB\"";
    let ended = simulate(&two_paths(hosts, &rest), Transport::Mpquic, 1, false);
    let summary = ended.summary();
    assert!(summary.multipath.evidence[0].contains("draft-ietf-quic-multipath-21"), "{summary:?}");
    let warned = |text: &str| summary.warnings.iter().any(|w| w.text.contains(text));
    assert!(warned("no scheduler") && warned("window"), "{:?}", summary.warnings);
    let conditions = &ended.meta().conditions;
    assert_eq!(conditions["multipath quic"], "draft-ietf-quic-multipath-21");
    assert_eq!(conditions["path-policy on phone"], "aggregate");
}

#[test]
fn an_acceptor_with_the_other_addresses_gives_a_single_path_and_a_warning() {
    let rest = "[[flows]]\nfrom = \"server\"\nto = \"phone\"\npattern = \"bulk\"\n\
                size = \"200 KB\"\nduration = \"5 s\"\n";
    let ended = simulate(&two_paths("", rest), Transport::Mpquic, 1, false);
    ended.assert_whole("acceptor");
    assert_eq!(ended.summary().multipath.paths_used, ["wifi"]);
    assert!(ended.summary().warnings.iter().any(|w| w.text.contains("a single path")));
}

#[test]
fn a_server_that_cannot_be_reached_is_a_failure_with_a_reason() {
    let rest = bulk("duration = \"3 s\"\nstart = \"100 ms\"")
        + "[[timeline]]\nat = \"0 s\"\npath = \"wifi\"\nset = \"down\"\n";
    let ended = simulate(&two_paths("", &rest), Transport::Quic, 1, false);
    let failure = ended.summary().flows[0].failure.as_deref();
    assert!(failure.is_some_and(|text| text.contains("cannot connect")), "{failure:?}");
}

#[test]
fn tcp_background_traffic_and_quic_share_a_link() {
    let rest = bulk("duration = \"5 s\"") + &bulk("duration = \"5 s\"\ntransport = \"tcp\"");
    let ended = simulate(&two_paths("", &rest), Transport::Quic, 1, false);
    ended.assert_whole("background");
    let rates: Vec<_> = ended.summary().flows.iter().map(|flow| flow.goodput_bps / 1e6).collect();
    assert!(rates.iter().all(|rate| *rate > 4.0) && rates.iter().sum::<f64>() > 17.0, "{rates:?}");
}

/// Both ends send requests, each on its own stream. The server learns of them from the client.
#[test]
fn messages_are_answered_in_both_directions() {
    let handover = named("interactive-handover");
    let asked = |transport| {
        let ended = simulate(&handover, transport, 1, false);
        ended.assert_whole(&transport.to_string());
        let flows = ended.summary().flows.iter();
        let figures: Vec<_> = flows.filter_map(|flow| flow.messages.as_ref()).collect();
        assert!(figures.iter().all(|own| own.answered == own.count), "{transport}: {figures:?}");
        figures.iter().map(|own| own.count).collect::<Vec<_>>()
    };
    let over_tcp = asked(Transport::Tcp);
    assert_eq!((over_tcp.len(), asked(Transport::Quic)), (2, over_tcp.clone()));
    assert_eq!(asked(Transport::Mpquic), over_tcp);
}
