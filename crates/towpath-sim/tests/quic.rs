//! Whole runs of QUIC and Multipath QUIC in virtual time.

#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod simulated;

use std::io::Write;
use std::process::Command;

use towpath_os::batch;
use towpath_result::{EventKind, Meta, Record};
use towpath_scenario::{Scenario, Transport};

use simulated::{CompletedRun, builtin_scenario, scenario, simulate};

impl CompletedRun {
    fn meta(&self) -> &Meta {
        match self.records.first() {
            Some(Record::Meta(meta)) => meta,
            other => panic!("no meta: {other:?}"),
        }
    }

    /// Checks that all data arrived unmodified.
    fn assert_complete(&self, context: &str) {
        let summary = self.summary();
        for flow in &summary.flows {
            assert!(flow.completed, "{context}: {:?}", flow.failure);
        }
        let damaged = summary.warnings.iter().find(|w| w.text.contains("something else"));
        assert!(damaged.is_none(), "{context}: {damaged:?}");
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

fn bulk_flow(settings: &str) -> String {
    format!("[[flows]]\nfrom = \"phone\"\nto = \"server\"\npattern = \"bulk\"\n{settings}\n")
}

#[test]
fn two_runs_give_the_same_bytes() {
    for transport in [Transport::Quic, Transport::Mpquic] {
        let handover = builtin_scenario("wifi-cellular-handover");
        let [first, second] = [(), ()].map(|()| simulate(&handover, transport, 1, false));
        assert!(first.bytes == second.bytes, "{transport}");
        let other_seed = simulate(&handover, transport, 2, false);
        assert!(first.meta().seed != other_seed.meta().seed, "{transport}");
    }
}

#[test]
fn another_process_gives_the_same_bytes() {
    let expected = result_digests();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "prints_digests", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout).into_owned();
    assert!(text.contains(&expected), "not `{expected}`: {text}");
}

#[test]
#[ignore = "run by `another_process_gives_the_same_bytes`"]
fn prints_digests() {
    writeln!(std::io::stdout(), "{}", result_digests()).unwrap();
}

/// Returns result digests of every congestion control and policy over a path that fails and
/// recovers.
fn result_digests() -> String {
    let mut digests = Vec::new();
    let settings = [
        "quic-congestion-control = \"olia\"",
        "quic-congestion-control = \"noq-cubic\"\npath-policy = \"ios\"",
        "path-policy = \"backup\"",
    ];
    for setting in settings {
        let rest = bulk_flow("duration = \"4 s\"")
            + "[[timeline]]\nat = \"1 s\"\npath = \"wifi\"\nset = \"down\"\n\
               [[timeline]]\nat = \"2500 ms\"\npath = \"wifi\"\nset = \"up\"\n";
        for transport in [Transport::Quic, Transport::Mpquic] {
            let completed = simulate(&two_paths(setting, &rest), transport, 1, false);
            // FNV-1a
            let digest = completed.bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
            digests.push(format!("{digest:016x}"));
        }
    }
    digests.join(" ")
}

/// Runs 20 repetitions, each with its own seed; returns the goodputs. All must complete.
fn goodputs_of_20_seeds(scenario: &Scenario, context: &str) -> Vec<f64> {
    let mut goodputs = Vec::new();
    batch::in_order(
        20,
        2,
        |index| simulate(scenario, Transport::Mpquic, index as u32 + 1, false),
        |index, completed| {
            completed.assert_complete(&format!("{context}, seed {}", completed.meta().seed));
            assert!(completed.summary().multipath.used, "{context}, repetition {index}");
            goodputs.push(completed.goodput_mbps());
            true
        },
    );
    goodputs
}

#[test]
fn the_handover_completes_with_20_seeds() {
    let goodputs = goodputs_of_20_seeds(&builtin_scenario("wifi-cellular-handover"), "handover");
    // 3 s at 60 Mbit/s and 7 s at 20 average to 32; TCP without a second path reaches 11.
    assert!(goodputs.iter().all(|goodput| *goodput > 25.0), "{goodputs:?}");
}

#[test]
fn a_transfer_survives_the_loss_of_either_path_with_20_seeds() {
    let silently = "set = \"down\"";
    let by_interface = "set = \"down\"\nmode = \"interface\"\nhost = \"phone\"";
    for (lost_path, change) in [("wifi", silently), ("cellular", by_interface)] {
        let rest = bulk_flow("duration = \"6 s\"")
            + &format!("[[timeline]]\nat = \"1 s\"\npath = \"{lost_path}\"\n{change}\n");
        goodputs_of_20_seeds(&two_paths("", &rest), lost_path);
    }
}

#[test]
fn two_links_carry_twice_as_much_as_one() {
    let two_links = builtin_scenario("two-links");
    let [quic, mpquic] = [Transport::Quic, Transport::Mpquic].map(|transport| {
        let completed = simulate(&two_links, transport, 1, false);
        completed.assert_complete("two links");
        completed.goodput_mbps()
    });
    assert!(mpquic >= 1.8 * quic, "{mpquic} and {quic} Mbit/s");
}

#[test]
fn a_lossy_link_delivers_every_byte_in_both_directions() {
    for direction in ["up", "down"] {
        for transport in [Transport::Quic, Transport::Mpquic] {
            let rest = bulk_flow(&format!(
                "size = \"1 MB\"\nduration = \"60 s\"\ndirection = \"{direction}\""
            ));
            let text = two_paths("", &rest).source.replace(
                "delay = \"10 ms\"",
                "delay = \"10 ms\"\nloss = \"3 %\"\nduplicate = \"1 %\"\ncorrupt = \"1 %\"",
            );
            let completed = simulate(&scenario(&text), transport, 1, false);
            completed.assert_complete(&format!("{transport} {direction}"));
            let flows = &completed.summary().flows;
            assert!(flows.iter().all(|flow| flow.bytes == 1_000_000), "{flows:?}");
        }
    }
}

#[test]
fn parallel_streams_share_a_connection() {
    let text = two_paths("", "").source
        + "[[flows]]\nfrom = \"phone\"\nto = \"server\"\npattern = \"iperf\"\nduration = \"3 s\"\n\
           direction = \"down\"\nstreams = 4\nfamily = \"v6\"\n";
    let completed = simulate(&scenario(&text), Transport::Mpquic, 1, false);
    completed.assert_complete("streams");
    let mut bytes = [0; 4];
    for record in &completed.records {
        if let Record::Interval(interval) = record {
            bytes[interval.stream as usize] += interval.bytes;
        }
    }
    assert!(bytes.iter().all(|bytes| *bytes > 500_000), "{bytes:?}");
    let subflows = &completed.summary().subflows;
    let paths: Vec<_> = subflows.iter().map(|s| (s.stream, s.path.as_str())).collect();
    assert_eq!(paths, [(0, "wifi"), (0, "cellular")]);
    assert!(subflows[0].local.starts_with('['), "{}", subflows[0].local);
    assert!(completed.goodput_mbps() > 20.0, "{}", completed.goodput_mbps());
}

#[test]
fn captures_show_udp_on_both_paths() {
    let rest = bulk_flow("size = \"200 KB\"\nduration = \"5 s\"");
    let completed = simulate(&two_paths("", &rest), Transport::Mpquic, 1, true);
    let [phone, server] = completed.captures.as_slice() else { panic!("two hosts") };
    for (capture, host) in [(phone, "phone"), (server, "server")] {
        for address in [[10, 64, 0, 1], [10, 64, 1, 1]] {
            // An IPv4 header: protocol 17 with a hop limit of 64, then checksum and source.
            let has_udp = capture
                .windows(8)
                .any(|bytes| bytes.starts_with(&[64, 17]) && bytes.ends_with(&address));
            assert!(has_udp, "no UDP from {address:?} at {host}");
        }
    }
}

#[test]
fn ios_leaves_a_path_that_becomes_slow_and_reports_the_reason() {
    let rest = bulk_flow("duration = \"8 s\"")
        + "[[timeline]]\nat = \"2 s\"\npath = \"wifi\"\nset = \"delay\"\ndelay = \"500 ms\"\n";
    let slow = two_paths("path-policy = \"ios\"", &rest);
    let completed = simulate(&slow, Transport::Mpquic, 1, false);
    completed.assert_complete("ios");
    let switches = completed.events(EventKind::Subflow);
    let is_switch_to_backup = |text: &&str| text.starts_with("path 0 on wifi is a backup now");
    assert!(switches.iter().any(is_switch_to_backup), "{switches:?}");
    let share = completed.summary().subflows.iter().find(|s| s.path == "cellular").unwrap().share;
    assert!(share > 0.25, "{share} of the bytes on cellular");
}

#[test]
fn a_result_names_the_protocol_and_the_library_limits() {
    let rest = bulk_flow("size = \"200 KB\"\nduration = \"5 s\"");
    let hosts = "receive-buffer = \"4 MB\"";
    let completed = simulate(&two_paths(hosts, &rest), Transport::Mpquic, 1, false);
    let summary = completed.summary();
    assert!(summary.multipath.evidence[0].contains("draft-ietf-quic-multipath-21"), "{summary:?}");
    let has_warning = |text: &str| summary.warnings.iter().any(|w| w.text.contains(text));
    assert!(
        has_warning("no selectable scheduler") && has_warning("window"),
        "{:?}",
        summary.warnings
    );
    let conditions = &completed.meta().conditions;
    assert_eq!(conditions["multipath quic"], "draft-ietf-quic-multipath-21");
    assert_eq!(conditions["path-policy on phone"], "aggregate");
}

#[test]
fn an_acceptor_with_the_other_addresses_gives_a_single_path_and_a_warning() {
    let rest = "[[flows]]\nfrom = \"server\"\nto = \"phone\"\npattern = \"bulk\"\n\
                size = \"200 KB\"\nduration = \"5 s\"\n";
    let completed = simulate(&two_paths("", rest), Transport::Mpquic, 1, false);
    completed.assert_complete("acceptor");
    assert_eq!(completed.summary().multipath.paths_used, ["wifi"]);
    assert!(completed.summary().warnings.iter().any(|w| w.text.contains("a single path")));
}

#[test]
fn a_server_that_cannot_be_reached_is_a_failure_with_a_reason() {
    let rest = bulk_flow("duration = \"3 s\"\nstart = \"100 ms\"")
        + "[[timeline]]\nat = \"0 s\"\npath = \"wifi\"\nset = \"down\"\n";
    let completed = simulate(&two_paths("", &rest), Transport::Quic, 1, false);
    let failure = completed.summary().flows[0].failure.as_deref();
    assert!(failure.is_some_and(|text| text.contains("cannot connect")), "{failure:?}");
}

#[test]
fn tcp_background_traffic_and_quic_share_a_link() {
    let rest =
        bulk_flow("duration = \"5 s\"") + &bulk_flow("duration = \"5 s\"\ntransport = \"tcp\"");
    let completed = simulate(&two_paths("", &rest), Transport::Quic, 1, false);
    completed.assert_complete("background");
    let rates: Vec<_> =
        completed.summary().flows.iter().map(|flow| flow.goodput_bps / 1e6).collect();
    assert!(rates.iter().all(|rate| *rate > 4.0) && rates.iter().sum::<f64>() > 17.0, "{rates:?}");
}

/// Both ends send requests, each on its own stream. The server learns of them from the client.
#[test]
fn messages_are_answered_in_both_directions() {
    let handover = builtin_scenario("interactive-handover");
    let message_counts = |transport| {
        let completed = simulate(&handover, transport, 1, false);
        completed.assert_complete(&transport.to_string());
        let flows = completed.summary().flows.iter();
        let stats: Vec<_> = flows.filter_map(|flow| flow.messages.as_ref()).collect();
        assert!(stats.iter().all(|s| s.answered == s.count), "{transport}: {stats:?}");
        stats.iter().map(|s| s.count).collect::<Vec<_>>()
    };
    let over_tcp = message_counts(Transport::Tcp);
    assert_eq!((over_tcp.len(), message_counts(Transport::Quic)), (2, over_tcp.clone()));
    assert_eq!(message_counts(Transport::Mpquic), over_tcp);
}
