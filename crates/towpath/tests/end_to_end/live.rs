//! `towpath server` and `towpath measure` on the loopback interface.

use std::net::{TcpListener, UdpSocket};

use towpath_result::{DelayBasis, Record};
use towpath_scenario::DataDirection;

use crate::program::{Running, TestDir, wait_for};

/// Closed port of this host.
const CLOSED_PORT: &str = "1";

/// Starts a server on a port that the kernel chooses, so that no other program can have it.
fn start_server(folder: &TestDir, options: &[&str]) -> (Running, String) {
    start_server_at("0", folder, options)
}

fn start_server_at(port: &str, folder: &TestDir, options: &[&str]) -> (Running, String) {
    let arguments = [&["server", "-B", "127.0.0.1", "-p", port], options].concat();
    let running = folder.start(&mut folder.towpath(&arguments));
    let port = wait_for("the server", || {
        let stderr = running.stderr();
        let (_, rest) = stderr.split_once("listening on 127.0.0.1:")?;
        Some(rest.split_once(' ')?.0.to_owned())
    });
    (running, port)
}

/// Returns a port that is in use for UDP and free for TCP.
fn bind_udp_port() -> (UdpSocket, String) {
    wait_for("a port", || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        TcpListener::bind(("127.0.0.1", port)).ok().map(|_| (socket, port.to_string()))
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
    let base_arguments =
        ["measure", "127.0.0.1", "-p", port, "--transport", transports, "-o", "results"];
    folder.run(&[&base_arguments[..], options].concat())
}

#[test]
fn a_measurement_leaves_lines_a_table_a_result_and_a_report() {
    let folder = TestDir::new();
    let (_server, port) = start_server(&folder, &[]);
    let output = measure(&folder, &port, &["-t", "2", "-i", "0.5", "-b", "80M", "-C", "reno"]);
    assert_eq!(output.code, Some(0), "{output}");
    assert!(output.out.contains("Goodput") && output.out.contains("Paths used"), "{output}");
    let lines = output.err.lines().filter(|line| line.contains("tcp up")).count();
    assert!((3..=5).contains(&lines), "{output}");
    assert!(folder.work().join("results/report.html").is_file());
    let result = folder.stored("results/live-tcp-1.jsonl.zst");
    let summary = result.summary.unwrap();
    let flow = &summary.flows[0];
    assert!((60e6..90e6).contains(&flow.goodput_bps), "{flow:?}");
    assert_eq!(flow.congestion_control, ["reno"]);
    assert!(result.meta.conditions.contains_key("kernel on server"));
}

/// Returns the fingerprint that a server prints when it starts.
fn server_fingerprint(server: &Running) -> String {
    let fingerprint_of_line =
        |line: &str| line.strip_prefix("certificate sha256:").map(str::to_owned);
    wait_for("the certificate", || server.stderr().lines().find_map(fingerprint_of_line))
}

#[test]
fn quic_and_multipath_quic_recognise_a_known_server() {
    let folder = TestDir::new();
    let first_fingerprint = {
        let (server, port) = start_server(&folder, &[]);
        let short_run = ["-t", "1", "-C", "cubic"];
        let output = measure_over("quic,mpquic", &folder, &port, &short_run);
        assert_eq!(output.code, Some(0), "{output}");
        let fingerprint = server_fingerprint(&server);
        let message = format!("server certificate sha256:{fingerprint} (not checked)");
        assert!(output.err.contains(&message), "{output}");
        assert!(output.err.contains("mpquic up"), "{output}");
        let server_arguments = ["127.0.0.1", "-p", &port, "--transport", "quic", "-t", "1"];
        let quiet =
            folder.run(&[&["measure"][..], &server_arguments, &["-q", "-o", "quiet"]].concat());
        let warning = "warning: the server's certificate was not checked";
        assert!(quiet.err.contains(warning), "{quiet}");
        for transport in ["quic", "mpquic"] {
            let result = folder.stored(&format!("results/live-{transport}-1.jsonl.zst"));
            let summary = result.summary.unwrap();
            assert!(summary.flows[0].bytes > 1_000_000, "{:?}", summary.flows);
            assert_eq!(summary.flows[0].congestion_control, ["cubic"]);
            assert_eq!(summary.multipath.used, transport == "mpquic");
            assert!(result.meta.conditions["server certificate"].contains(&fingerprint));
        }
        fingerprint
    };
    let (server, port) = start_server(&folder, &[]);
    assert_eq!(server_fingerprint(&server), first_fingerprint, "it was kept");
    let bulk_options = ["bulk", "-n", "1M", "-q", "--server-cert"];
    let log_options = ["--qlog", "logs", "--path-policy", "ios"];
    let pinned_options = [&bulk_options[..], &[&first_fingerprint], &log_options].concat();
    let output = measure_over("mpquic", &folder, &port, &pinned_options);
    assert_eq!(output.code, Some(0), "{output}");
    let log =
        std::fs::read_to_string(folder.work().join("logs/live-mpquic-1-flow0.sqlog")).unwrap();
    // RFC 7464: each record begins with a separator.
    let records = log.split('\u{1e}').skip(1).map(serde_json::from_str::<serde_json::Value>);
    let records = records.collect::<Result<Vec<_>, _>>().unwrap();
    let is_packet_sent =
        |record: &serde_json::Value| record["name"].as_str() == Some("quic:packet_sent");
    assert!(
        records.iter().filter(|record| is_packet_sent(record)).count() > 100,
        "{}",
        records.len()
    );
    let result = folder.stored("results/live-mpquic-1.jsonl.zst");
    assert_eq!(result.meta.conditions["path policy"], "ios");
    let output =
        measure_over("quic", &folder, &port, &[&bulk_options[..], &[&"ab".repeat(32)]].concat());
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("is not the expected server"), "{output}");
    assert!(output.err.contains(&first_fingerprint), "{output}");
}

#[test]
fn tls_is_put_around_the_data_of_tcp_and_multipath_tcp() {
    let folder = TestDir::new();
    let (server, port) = start_server(&folder, &[]);
    let fingerprint = server_fingerprint(&server);
    let tls_options = ["--tls", "--server-cert", &fingerprint, "-q", "--transport", "tcp,mptcp"];
    for (pattern, options) in [
        ("bulk", &["-n", "3M"][..]),
        ("iperf", &["-t", "1", "--bidir", "-P", "2", "-b", "40M"]),
        ("interactive", &["-t", "2"]),
    ] {
        let output = measure(&folder, &port, &[&[pattern], options, &tls_options].concat());
        assert_eq!(output.code, Some(0), "{output}");
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
    let wrong_fingerprint = "ab".repeat(32);
    let wrong_options = ["bulk", "-n", "1M", "--tls", "--server-cert", &wrong_fingerprint];
    let output = measure(&folder, &port, &wrong_options);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("is not the expected server"), "{output}");
}

#[test]
fn check_reports_open_and_blocked_transports() {
    let folder = TestDir::new();
    let check_findings = |port: &str, code: i32| {
        let output = folder.run(&["check", "127.0.0.1", "-p", port, "--json"]);
        assert_eq!(output.code, Some(code), "{output}");
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let expected_rows = output.json();
        expected_rows
            .iter()
            .map(|row| (text(&row["probe"]), text(&row["finding"])))
            .collect::<Vec<_>>()
    };
    let expected_rows = |check_findings: [&str; 5]| {
        let probes = ["tcp", "mptcp", "udp", "quic", "mpquic"];
        let expected_rows = probes.into_iter().zip(check_findings);
        expected_rows
            .map(|(probe, finding)| (probe.to_owned(), finding.to_owned()))
            .collect::<Vec<_>>()
    };
    assert_eq!(check_findings(CLOSED_PORT, 1), expected_rows(["refused"; 5]));
    {
        let (_server, port) = start_server(&folder, &[]);
        assert_eq!(check_findings(&port, 0), expected_rows(["works"; 5]));
    }
    let (socket, port) = bind_udp_port();
    let (server, _) = start_server_at(&port, &folder, &[]);
    assert!(
        server.stderr().contains("warning: QUIC is not available on port"),
        "{}",
        server.stderr()
    );
    let without_quic = ["works", "works", "silent", "no-quic", "no-quic"];
    assert_eq!(check_findings(&port, 1), expected_rows(without_quic));
    drop(socket);
    let output = folder.run(&["check", "127.0.0.1", "-p", &port]);
    let table = "the server does not offer QUIC on this port";
    assert!(
        output.out.contains(table) && output.out.contains("no program listens there"),
        "{output}"
    );
    let output = measure(&folder, &port, &["-t", "0.3", "-q"]);
    assert_eq!(output.code, Some(0), "TCP is still served: {output}");
}

#[test]
fn short_options_of_iperf3_and_json_work() {
    let folder = TestDir::new();
    let (_server, port) = start_server(&folder, &[]);
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
        let output = measure(&folder, &port, &[options, &["-q", "-J"]].concat());
        assert_eq!(output.code, Some(0), "{output}");
        let [run] = &output.json()[..] else { panic!("{output}") };
        assert_eq!(run["summary"]["flows"].as_array().unwrap().len(), flows, "{output}");
        assert_eq!(run["summary"]["ok"], true, "{output}");
        let has_pings =
            options.iter().any(|option| option.contains("udping") || *option == "latency");
        let paths = run["summary"]["paths"].as_array().map_or(&[][..], Vec::as_slice);
        assert_eq!(paths.len(), usize::from(has_pings), "{output}");
        assert!(paths.iter().all(|path| path["path"] == "lo" && path["answered"] != 0), "{output}");
    }
}

/// Loopback loses nothing, so the whole output is predictable.
#[test]
fn datagrams_at_a_constant_rate_flow_in_both_directions() {
    let folder = TestDir::new();
    let (_server, port) = start_server(&folder, &[]);
    let options = ["udp", "--bidir", "-b", "1M", "-l", "1250", "-t", "1", "-q"];
    let output = measure(&folder, &port, &options);
    assert_eq!(output.code, Some(0), "{output}");
    let result = folder.stored("results/live-tcp-1.jsonl.zst");
    let summary = result.summary.as_ref().unwrap();
    let [up, down] = &summary.flows[..] else { panic!("{summary:#?}") };
    let stats = [up, down].map(|flow| flow.datagrams.as_ref().unwrap());
    let [up, down] = stats;
    // 100 a second; the server's datagrams start when it knows the client's address.
    assert_eq!((up.sent + up.unsent, up.path.as_str()), (100, "lo"));
    assert!((80..=100).contains(&(down.sent + down.unsent)), "{down:?}");
    for flow_stats in stats {
        assert_eq!(
            (flow_stats.lost, flow_stats.duplicated, flow_stats.out_of_order),
            (0, 0, 0),
            "{flow_stats:?}"
        );
        assert!(flow_stats.delay.is_none() && flow_stats.variation.is_some(), "{flow_stats:?}");
    }
    let sent_in_direction = |direction| {
        let rows = result.records.iter().filter_map(|record| {
            let Record::Datagrams(row) = record else { return None };
            row.sent.filter(|_| row.direction == direction)
        });
        rows.sum::<u64>()
    };
    assert_eq!(sent_in_direction(DataDirection::Up), up.sent);
    let csv = folder.run(&["report", "results", "--csv", "datagrams"]);
    assert!(csv.out.lines().count() > 15 && csv.out.contains("variation_max_ns"), "{csv}");
}

/// Both directions of a call have a delay: half of the round trip, or one by the clock offset.
#[test]
fn a_call_between_real_hosts_states_its_delay_source() {
    let folder = TestDir::new();
    let (_server, port) = start_server(&folder, &[]);
    for (options, basis) in
        [(&[][..], DelayBasis::HalfRoundTrip), (&["-R"], DelayBasis::ClockOffset)]
    {
        let call = ["call", "-t", "1", "-q", "--set", "codec=g729a", "--expect", "call.score >= 1"];
        let output = measure(&folder, &port, &[&call, options].concat());
        assert_eq!(output.code, Some(0), "{output}");
        assert!(output.out.contains("from mouth to ear"), "{output}");
        let result = folder.stored("results/live-tcp-1.jsonl.zst");
        for flow in &result.summary.as_ref().unwrap().flows {
            let stats = flow.datagrams.as_ref().unwrap();
            let call = stats.call.as_ref().unwrap();
            assert_eq!(
                (call.medium.as_str(), call.basis, stats.lost),
                ("g729a", basis, 0),
                "{stats:?}"
            );
            // A packet of 20 ms, 5 ms lookahead, 60 ms in the buffer; almost nothing on loopback.
            assert!(call.mouth_to_ear_ns.unwrap() >= 85_000_000, "{stats:?}");
        }
    }
    let output = measure(&folder, &port, &["call", "-q", "-b", "1M"]);
    assert!(output.code == Some(2) && output.err.contains("`bitrate` does not apply"), "{output}");
}

/// Datagrams beyond a limit are refused before the test, with the option that caused it.
#[test]
fn datagrams_beyond_limits_are_refused_with_a_hint() {
    let folder = TestDir::new();
    let (_server, port) = start_server(&folder, &["--max-rate", "10M", "--max-bytes", "2M"]);
    for (options, message) in [
        (&["-b", "20M"][..], "datagrams at 20.0 Mbit/s, but this server allows 10.0 Mbit/s"),
        (&["-b", "9M", "-t", "5"], "a transfer of 5.63 MB, but this server allows 2.10 MB"),
        (&["-l", "65508"], "`-l 65508 B`: no datagram has a payload of 65508 bytes here"),
        (&["-l", "39"], "`-l 39 B`: no datagram has a payload of 39 bytes here"),
        (&["-b", "0"], "it is zero"),
        (&["--set", "transport=tcp"], "`udp` has no transport of its own"),
        (&["-P", "2"], "`streams` does not apply"),
    ] {
        let output = measure(&folder, &port, &[&["udp", "-q"], options].concat());
        assert_eq!(output.code, Some(2), "{output}");
        assert!(output.err.contains(message), "{message}: {output}");
    }
}

#[test]
fn a_missed_expectation_exits_with_code_1() {
    let folder = TestDir::new();
    let (_server, port) = start_server(&folder, &[]);
    let short_run = ["-t", "0.3", "-q"];
    let output =
        measure(&folder, &port, &[&short_run[..], &["--expect", "goodput>=1kbit/s"]].concat());
    assert_eq!(output.code, Some(0), "{output}");
    let output =
        measure(&folder, &port, &[&short_run[..], &["--expect", "goodput <= 1 kbit/s"]].concat());
    assert_eq!(output.code, Some(1), "{output}");
    let output = measure(&folder, &port, &[&short_run[..], &["--require-multipath"]].concat());
    assert_eq!(output.code, Some(1), "{output}");
    assert!(output.err.contains("tcp is not a multipath transport"), "{output}");
}

#[test]
fn a_server_with_a_secret_and_for_one_test_ends_after_it() {
    let folder = TestDir::new();
    folder.write_secret("secret.txt", "words that both hosts know\n");
    let (server, port) = start_server(&folder, &["--once", "--secret-file", "secret.txt"]);
    let short_run = ["-t", "0.3", "-q"];
    let output = measure(&folder, &port, &short_run);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("it requires a secret"), "{output}");
    let with_secret = [&short_run[..], &["--secret-file", "secret.txt"]].concat();
    let output = measure(&folder, &port, &with_secret);
    assert_eq!(output.code, Some(0), "{output}");
    let output = server.wait();
    assert_eq!(output.code, Some(0), "{output}");
    assert!(output.err.contains("measures iperf over tcp"), "{output}");
}

#[test]
fn the_nearest_server_is_used_and_silent_ones_are_named() {
    let folder = TestDir::new();
    let (_server, port) = start_server(&folder, &[]);
    let closed_server = format!("127.0.0.1:{CLOSED_PORT}");
    let list = format!("# ours\n{closed_server}\n127.0.0.1:{port}  # this one\n");
    folder.write("servers.txt", list);
    let auto = ["--server", "auto", "--servers", "servers.txt", "--transport", "tcp", "-q"];
    let measure_auto =
        |arguments: &[&str]| folder.run(&[&["measure"], arguments, &auto[..]].concat());
    let output = measure_auto(&["udping", "-t", "0.3", "-o", "results"]);
    assert_eq!(output.code, Some(0), "{output}");
    let line_with = |text: &str| {
        let line = output.err.lines().find(|line_with| line_with.contains(text)).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{output}"))
    };
    assert!(
        line_with(&format!("{closed_server} ")).contains("refused: no program listens there"),
        "{output}"
    );
    let server_line = line_with(&format!("127.0.0.1:{port}"));
    assert!(server_line.contains("5 of 5") && server_line.ends_with("← nearest"), "{output}");
    let meta = folder.stored("results/live-tcp-1.jsonl.zst").meta;
    let reason = &meta.conditions["reason for this server"];
    assert!(
        reason.contains("lowest median of 5 pings") && reason.contains(&closed_server),
        "{reason}"
    );
    // Without a list, with two servers, or with no reply, nothing is measured.
    folder.write("servers.txt", format!("{closed_server}\nno-such-host.invalid\n"));
    let output = measure_auto(&[]);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("no server in `servers.txt` answers"), "{output}");
    assert!(output.err.contains("no address") && output.err.contains("hint:"), "{output}");
    for arguments in
        [&["measure", "--server", "auto"][..], &["measure", "a", "udping", "--server", "b"]]
    {
        let output = folder.run(arguments);
        assert_eq!(output.code, Some(2), "{output}");
        assert!(output.err.contains("hint:"), "{output}");
    }
}
