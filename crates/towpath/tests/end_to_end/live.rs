//! `towpath server` and `towpath measure` on the loopback interface.

use std::net::{TcpListener, UdpSocket};

use towpath_measure::result::{DelayBasis, Record};
use towpath_measure::scenario::DataDirection;

use crate::program::{Running, TestDir, wait_for};

/// Closed port of this host.
const CLOSED: &str = "1";

/// Starts a server on a port that the kernel chooses, so that no other program can have it.
fn server(folder: &TestDir, options: &[&str]) -> (Running, String) {
    server_at("0", folder, options)
}

fn server_at(port: &str, folder: &TestDir, options: &[&str]) -> (Running, String) {
    let arguments = [&["server", "-B", "127.0.0.1", "-p", port], options].concat();
    let running = folder.start(&mut folder.towpath(&arguments));
    let port = wait_for("the server", || {
        let said = running.stderr();
        let (_, rest) = said.split_once("listening on 127.0.0.1:")?;
        Some(rest.split_once(' ')?.0.to_owned())
    });
    (running, port)
}

/// Returns a port that is in use for UDP and free for TCP.
fn taken_for_udp() -> (UdpSocket, String) {
    wait_for("a port", || {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port();
        TcpListener::bind(("127.0.0.1", port)).ok().map(|_| (taken, port.to_string()))
    })
}

fn measure(folder: &TestDir, port: &str, options: &[&str]) -> crate::program::ProgramOutput {
    measure_over("tcp", folder, port, options)
}

fn measure_over(
    transports: &str,
    folder: &TestDir,
    port: &str,
    options: &[&str],
) -> crate::program::ProgramOutput {
    let ours = ["measure", "127.0.0.1", "-p", port, "--transport", transports, "-o", "results"];
    folder.run(&[&ours[..], options].concat())
}

#[test]
fn a_measurement_leaves_lines_a_table_a_result_and_a_report() {
    let folder = TestDir::new();
    let (_server, port) = server(&folder, &[]);
    let ended = measure(&folder, &port, &["-t", "2", "-i", "0.5", "-b", "80M", "-C", "reno"]);
    assert_eq!(ended.code, Some(0), "{ended}");
    assert!(ended.out.contains("Goodput") && ended.out.contains("Paths used"), "{ended}");
    let lines = ended.err.lines().filter(|line| line.contains("tcp up")).count();
    assert!((3..=5).contains(&lines), "{ended}");
    assert!(folder.work().join("results/report.html").is_file());
    let result = folder.stored("results/live-tcp-1.jsonl.zst");
    let summary = result.summary.unwrap();
    let flow = &summary.flows[0];
    assert!((60e6..90e6).contains(&flow.goodput_bps), "{flow:?}");
    assert_eq!(flow.congestion_control, ["reno"]);
    assert!(result.meta.conditions.contains_key("kernel on server"));
}

/// Returns the fingerprint that a server prints when it starts.
fn certificate(server: &Running) -> String {
    let print = |line: &str| line.strip_prefix("certificate sha256:").map(str::to_owned);
    wait_for("the certificate", || server.stderr().lines().find_map(print))
}

#[test]
fn quic_and_multipath_quic_recognise_a_known_server() {
    let folder = TestDir::new();
    let first = {
        let (server, port) = server(&folder, &[]);
        let short = ["-t", "1", "-C", "cubic"];
        let ended = measure_over("quic,mpquic", &folder, &port, &short);
        assert_eq!(ended.code, Some(0), "{ended}");
        let print = certificate(&server);
        let named = format!("server certificate sha256:{print} (not checked)");
        assert!(ended.err.contains(&named), "{ended}");
        assert!(ended.err.contains("mpquic up"), "{ended}");
        for transport in ["quic", "mpquic"] {
            let result = folder.stored(&format!("results/live-{transport}-1.jsonl.zst"));
            let summary = result.summary.unwrap();
            assert!(summary.flows[0].bytes > 1_000_000, "{:?}", summary.flows);
            assert_eq!(summary.flows[0].congestion_control, ["cubic"]);
            assert_eq!(summary.multipath.used, transport == "mpquic");
            assert!(result.meta.conditions["server certificate"].contains(&print));
        }
        print
    };
    let (server, port) = server(&folder, &[]);
    assert_eq!(certificate(&server), first, "it was kept");
    let bulk = ["bulk", "-n", "1M", "-q", "--server-cert"];
    let logged = ["--qlog", "logs", "--path-policy", "ios"];
    let known = [&bulk[..], &[&first], &logged].concat();
    let ended = measure_over("mpquic", &folder, &port, &known);
    assert_eq!(ended.code, Some(0), "{ended}");
    let log =
        std::fs::read_to_string(folder.work().join("logs/live-mpquic-1-flow0.sqlog")).unwrap();
    // RFC 7464: each record begins with a separator.
    let records = log.split('\u{1e}').skip(1).map(serde_json::from_str::<serde_json::Value>);
    let records = records.collect::<Result<Vec<_>, _>>().unwrap();
    let named = |record: &serde_json::Value| record["name"].as_str() == Some("quic:packet_sent");
    assert!(records.iter().filter(|record| named(record)).count() > 100, "{}", records.len());
    let result = folder.stored("results/live-mpquic-1.jsonl.zst");
    assert_eq!(result.meta.conditions["path policy"], "ios");
    let ended = measure_over("quic", &folder, &port, &[&bulk[..], &[&"ab".repeat(32)]].concat());
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.err.contains("is not the server that is expected"), "{ended}");
    assert!(ended.err.contains(&first), "{ended}");
}

#[test]
fn tls_is_put_around_the_data_of_tcp_and_multipath_tcp() {
    let folder = TestDir::new();
    let (server, port) = server(&folder, &[]);
    let print = certificate(&server);
    let pinned = ["--tls", "--server-cert", &print, "-q", "--transport", "tcp,mptcp"];
    for (pattern, options) in [
        ("bulk", &["-n", "3M"][..]),
        ("iperf", &["-t", "1", "--bidir", "-P", "2", "-b", "40M"]),
        ("interactive", &["-t", "2"]),
    ] {
        let ended = measure(&folder, &port, &[&[pattern], options, &pinned].concat());
        assert_eq!(ended.code, Some(0), "{ended}");
        for transport in ["tcp", "mptcp"] {
            let result = folder.stored(&format!("results/live-{transport}-1.jsonl.zst"));
            assert!(result.meta.conditions.contains_key("tls"), "{:?}", result.meta.conditions);
            let flows = result.summary.unwrap().flows;
            assert!(flows.iter().all(|flow| flow.completed && flow.bytes > 0), "{flows:?}");
            if pattern == "bulk" {
                assert_eq!(flows[0].bytes, 3 << 20);
            }
        }
    }
    let other = "ab".repeat(32);
    let wrong = ["bulk", "-n", "1M", "--tls", "--server-cert", &other];
    let ended = measure(&folder, &port, &wrong);
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.err.contains("is not the server that is expected"), "{ended}");
}

#[test]
fn check_reports_open_and_blocked_transports() {
    let folder = TestDir::new();
    let findings = |port: &str, code: i32| {
        let ended = folder.run(&["check", "127.0.0.1", "-p", port, "--json"]);
        assert_eq!(ended.code, Some(code), "{ended}");
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let rows = ended.json();
        rows.iter().map(|row| (text(&row["probe"]), text(&row["finding"]))).collect::<Vec<_>>()
    };
    let rows = |findings: [&str; 5]| {
        let probes = ["tcp", "mptcp", "udp", "quic", "mpquic"];
        let rows = probes.into_iter().zip(findings);
        rows.map(|(probe, finding)| (probe.to_owned(), finding.to_owned())).collect::<Vec<_>>()
    };
    assert_eq!(findings(CLOSED, 1), rows(["refused"; 5]));
    {
        let (_server, port) = server(&folder, &[]);
        assert_eq!(findings(&port, 0), rows(["works"; 5]));
    }
    let (taken, port) = taken_for_udp();
    let (server, _) = server_at(&port, &folder, &[]);
    assert!(server.stderr().contains("warning: no QUIC on port"), "{}", server.stderr());
    let without = ["works", "works", "silent", "without", "without"];
    assert_eq!(findings(&port, 1), rows(without));
    drop(taken);
    let ended = folder.run(&["check", "127.0.0.1", "-p", &port]);
    let table = "the server does not speak QUIC on this port";
    assert!(ended.out.contains(table) && ended.out.contains("nobody listens there"), "{ended}");
    let ended = measure(&folder, &port, &["-t", "0.3", "-q"]);
    assert_eq!(ended.code, Some(0), "TCP is served all the same: {ended}");
}

#[test]
fn short_options_of_iperf3_and_json_work() {
    let folder = TestDir::new();
    let (_server, port) = server(&folder, &[]);
    for (options, flows) in [
        (&["-n", "3M", "-R"][..], 1),
        (&["-t", "0.5", "--bidir", "-P", "2"], 2),
        (&["-t", "500ms", "-l", "64K", "-w", "256K", "--skip-rx-copy"], 1),
        (&["ping", "--set", "count=3", "--set", "period=20ms"], 2),
        (&["interactive", "-t", "1", "--load", "down", "--preset", "multipathtester-app"], 3),
        (&["udping", "-t", "0.5"], 0),
        (&["bulk", "-n", "1M", "--udping"], 1),
        (&["udp", "-t", "0.5", "-b", "2M", "-l", "1K"], 1),
        (&["udp", "-t", "0.5", "-R"], 1),
        (&["latency", "-t", "0.5", "-P", "1", "--set", "off=100ms"], 6),
    ] {
        let ended = measure(&folder, &port, &[options, &["-q", "-J"]].concat());
        assert_eq!(ended.code, Some(0), "{ended}");
        let [run] = &ended.json()[..] else { panic!("{ended}") };
        assert_eq!(run["summary"]["flows"].as_array().unwrap().len(), flows, "{ended}");
        assert_eq!(run["summary"]["ok"], true, "{ended}");
        let pings = options.iter().any(|option| option.contains("udping") || *option == "latency");
        let paths = run["summary"]["paths"].as_array().map_or(&[][..], Vec::as_slice);
        assert_eq!(paths.len(), usize::from(pings), "{ended}");
        assert!(paths.iter().all(|path| path["path"] == "lo" && path["answered"] != 0), "{ended}");
    }
}

/// Loopback loses nothing, so the whole output is predictable.
#[test]
fn datagrams_at_a_constant_rate_flow_in_both_directions() {
    let folder = TestDir::new();
    let (_server, port) = server(&folder, &[]);
    let options = ["udp", "--bidir", "-b", "1M", "-l", "1250", "-t", "1", "-q"];
    let ended = measure(&folder, &port, &options);
    assert_eq!(ended.code, Some(0), "{ended}");
    let result = folder.stored("results/live-tcp-1.jsonl.zst");
    let summary = result.summary.as_ref().unwrap();
    let [up, down] = &summary.flows[..] else { panic!("{summary:#?}") };
    let figures = [up, down].map(|flow| flow.datagrams.as_ref().unwrap());
    let [up, down] = figures;
    // 100 a second; the server's datagrams start when it knows the client's address.
    assert_eq!((up.sent + up.unsent, up.path.as_str()), (100, "lo"));
    assert!((80..=100).contains(&(down.sent + down.unsent)), "{down:?}");
    for own in figures {
        assert_eq!((own.lost, own.duplicated, own.out_of_order), (0, 0, 0), "{own:?}");
        assert!(own.delay.is_none() && own.variation.is_some(), "{own:?}");
    }
    let sent = |way| {
        let rows = result.records.iter().filter_map(|record| {
            let Record::Datagrams(row) = record else { return None };
            row.sent.filter(|_| row.direction == way)
        });
        rows.sum::<u64>()
    };
    assert_eq!(sent(DataDirection::Up), up.sent);
    let csv = folder.run(&["report", "results", "--csv", "datagrams"]);
    assert!(csv.out.lines().count() > 15 && csv.out.contains("variation_max_ns"), "{csv}");
}

/// Both directions of a call have a delay: half of the round trip, or one by the clock offset.
#[test]
fn a_call_between_real_hosts_states_its_delay_source() {
    let folder = TestDir::new();
    let (_server, port) = server(&folder, &[]);
    for (options, basis) in
        [(&[][..], DelayBasis::HalfRoundTrip), (&["-R"], DelayBasis::ClockOffset)]
    {
        let call = ["call", "-t", "1", "-q", "--set", "codec=g729a", "--expect", "call.score >= 1"];
        let ended = measure(&folder, &port, &[&call, options].concat());
        assert_eq!(ended.code, Some(0), "{ended}");
        assert!(ended.out.contains("from mouth to ear"), "{ended}");
        let result = folder.stored("results/live-tcp-1.jsonl.zst");
        for flow in &result.summary.as_ref().unwrap().flows {
            let own = flow.datagrams.as_ref().unwrap();
            let call = own.call.as_ref().unwrap();
            assert_eq!(
                (call.medium.as_str(), call.basis, own.lost),
                ("g729a", basis, 0),
                "{own:?}"
            );
            // A packet of 20 ms, 5 ms lookahead, 60 ms in the buffer; almost nothing on loopback.
            assert!(call.mouth_to_ear_ns.unwrap() >= 85_000_000, "{own:?}");
        }
    }
    let ended = measure(&folder, &port, &["call", "-q", "-b", "1M"]);
    assert!(ended.code == Some(2) && ended.err.contains("`bitrate` does not apply"), "{ended}");
}

/// Datagrams beyond a limit are refused before the test, with the option that caused it.
#[test]
fn datagrams_beyond_limits_are_refused_with_a_hint() {
    let folder = TestDir::new();
    let (_server, port) = server(&folder, &["--max-rate", "10M", "--max-bytes", "2M"]);
    for (options, says) in [
        (&["-b", "20M"][..], "datagrams at 20.0 Mbit/s, and this server allows 10.0 Mbit/s"),
        (&["-b", "9M", "-t", "5"], "5.63 MB are to be sent, and this server allows 2.10 MB"),
        (&["-l", "65508"], "`-l 65508 B`: no datagram has a payload of 65508 bytes here"),
        (&["-l", "39"], "`-l 39 B`: no datagram has a payload of 39 bytes here"),
        (&["-b", "0"], "it is zero"),
        (&["--set", "transport=tcp"], "`udp` has no transport of its own"),
        (&["-P", "2"], "`streams` does not apply"),
    ] {
        let ended = measure(&folder, &port, &[&["udp", "-q"], options].concat());
        assert_eq!(ended.code, Some(2), "{ended}");
        assert!(ended.err.contains(says), "{says}: {ended}");
    }
}

#[test]
fn a_missed_expectation_exits_with_code_1() {
    let folder = TestDir::new();
    let (_server, port) = server(&folder, &[]);
    let short = ["-t", "0.3", "-q"];
    let ended = measure(&folder, &port, &[&short[..], &["--expect", "goodput>=1kbit/s"]].concat());
    assert_eq!(ended.code, Some(0), "{ended}");
    let ended =
        measure(&folder, &port, &[&short[..], &["--expect", "goodput <= 1 kbit/s"]].concat());
    assert_eq!(ended.code, Some(1), "{ended}");
    let ended = measure(&folder, &port, &[&short[..], &["--require-multipath"]].concat());
    assert_eq!(ended.code, Some(1), "{ended}");
    assert!(ended.err.contains("tcp is no multipath transport"), "{ended}");
}

#[test]
fn a_server_with_a_secret_and_for_one_test_ends_after_it() {
    let folder = TestDir::new();
    folder.write_secret("secret.txt", "words that both hosts know\n");
    let (server, port) = server(&folder, &["--once", "--secret-file", "secret.txt"]);
    let short = ["-t", "0.3", "-q"];
    let ended = measure(&folder, &port, &short);
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.err.contains("it wants a secret"), "{ended}");
    let known = [&short[..], &["--secret-file", "secret.txt"]].concat();
    let ended = measure(&folder, &port, &known);
    assert_eq!(ended.code, Some(0), "{ended}");
    let ended = server.wait();
    assert_eq!(ended.code, Some(0), "{ended}");
    assert!(ended.err.contains("measures iperf over tcp"), "{ended}");
}

#[test]
fn the_nearest_server_is_used_and_silent_ones_are_named() {
    let folder = TestDir::new();
    let (_server, port) = server(&folder, &[]);
    let closed = format!("127.0.0.1:{CLOSED}");
    let list = format!("# ours\n{closed}\n127.0.0.1:{port}  # this one\n");
    folder.write("servers.txt", list);
    let auto = ["--server", "auto", "--servers", "servers.txt", "--transport", "tcp", "-q"];
    let run = |words: &[&str]| folder.run(&[&["measure"], words, &auto[..]].concat());
    let ended = run(&["udping", "-t", "0.3", "-o", "results"]);
    assert_eq!(ended.code, Some(0), "{ended}");
    let line = |of: &str| {
        let found = ended.err.lines().find(|line| line.contains(of)).map(str::to_owned);
        found.unwrap_or_else(|| panic!("{ended}"))
    };
    assert!(line(&format!("{closed} ")).contains("refused: nobody listens there"), "{ended}");
    let ours = line(&format!("127.0.0.1:{port}"));
    assert!(ours.contains("5 of 5") && ours.ends_with("← nearest"), "{ended}");
    let meta = folder.stored("results/live-tcp-1.jsonl.zst").meta;
    let why = &meta.conditions["why this server"];
    assert!(why.contains("lowest median of 5 pings") && why.contains(&closed), "{why}");
    // Without a list, with two servers, or with no reply, nothing is measured.
    folder.write("servers.txt", format!("{closed}\nno-such-host.invalid\n"));
    let ended = run(&[]);
    assert_eq!(ended.code, Some(2), "{ended}");
    assert!(ended.err.contains("no server of `servers.txt` answers"), "{ended}");
    assert!(ended.err.contains("no address") && ended.err.contains("hint:"), "{ended}");
    for words in
        [&["measure", "--server", "auto"][..], &["measure", "a", "udping", "--server", "b"]]
    {
        let ended = folder.run(words);
        assert_eq!(ended.code, Some(2), "{ended}");
        assert!(ended.err.contains("hint:"), "{ended}");
    }
}
