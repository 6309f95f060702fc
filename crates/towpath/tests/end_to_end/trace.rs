//! `towpath trace`: the analysis of a run's capture agrees with the run's own counters.

use std::fs;

use serde_json::Value;
use towpath_result::store::{RunResult, read_run};
use towpath_result::{
    AccountSummary, Basis, CapturePoint, CapturedConnection, PartGroup, Record, Summary,
};

use crate::exec::run_in_lab;
use crate::program::{ProgramOutput, SIZED, TWO_PATHS, TestDir, acquire_emulator};
use crate::scenario_errors::refused;

const TRAFFIC: &str = r#"
[[timeline]]
at = "2 s"
path = "wifi"
set = "loss"
loss = "2 %"
[[flows]]
from = "phone"
to = "server"
pattern = "bulk"
duration = "4 s"
"#;

/// Runs a simulation and captures it at both hosts. Returns the run's result.
fn simulate(folder: &TestDir, transport: &str) -> RunResult {
    folder.write("scenario.toml", format!("{TWO_PATHS}{TRAFFIC}"));
    let output_arguments = ["--out", "results", "--pcap", "captures", "--transport", transport];
    let output = folder
        .run(&[&["run", "scenario.toml", "--world", "sim"][..], &output_arguments[..]].concat());
    assert_eq!(output.code, Some(0), "{output}");
    folder.stored(&format!("results/sim-{transport}-1.jsonl.zst"))
}

/// Returns the captured connections and the summary of a trace's output.
fn connections_of(output: &ProgramOutput) -> (Vec<CapturedConnection>, Summary) {
    assert_eq!(output.code, Some(0), "{output}");
    let run = read_run(output.out.as_bytes()).unwrap();
    let connections = run.records.into_iter().filter_map(|record| {
        let Record::Capture(connection) = record else { return None };
        Some(*connection)
    });
    (connections.collect(), run.summary.unwrap())
}

/// Runs `towpath trace` on the capture of a simulated run at a host.
fn trace(folder: &TestDir, transport: &str, host: &str) -> (Vec<CapturedConnection>, Summary) {
    let file = format!("captures/sim-{transport}-1-{host}.pcapng");
    connections_of(&folder.run(&["trace", &file, "--json"]))
}

/// Checks that two values agree within 0.1 %.
#[track_caller]
fn assert_close(quantity: &str, captured: u64, counted: u64) {
    assert!(
        captured.abs_diff(counted) * 1_000 <= counted,
        "{quantity}: {captured} in the capture, {counted} told"
    );
}

#[test]
fn the_receivers_capture_agrees_with_the_receivers_counters() {
    let folder = TestDir::new();
    let run = simulate(&folder, "mptcp");
    let run_summary = run.summary.unwrap();
    let (connections, capture_summary) = trace(&folder, "mptcp", "server");
    assert_eq!(connections.len(), 1);
    let (flow, stack) = (&run_summary.flows[0], run_summary.flows[0].stack.unwrap());
    let direction = &connections[0].directions[0];
    assert_close("bytes", direction.bytes, flow.bytes);
    assert_close("discarded", direction.discarded_bytes.unwrap(), stack.discarded_bytes.unwrap());
    // The stack samples only when data has left its subflow's queue, so it may miss a little.
    let (captured_peak, peak) =
        (direction.reorder_peak_bytes.unwrap(), stack.reorder_peak_bytes.unwrap());
    assert!(
        (peak..=peak + peak / 100).contains(&captured_peak),
        "{captured_peak} seen, {peak} told"
    );
    assert_close("longest stall", direction.stall.longest_ns, flow.stall.longest_ns);
    assert_eq!(capture_summary.subflows.len(), run_summary.subflows.len());
    for (capture_summary, run_summary) in capture_summary.subflows.iter().zip(&run_summary.subflows)
    {
        assert_eq!(
            (&capture_summary.path, &capture_summary.local),
            (&run_summary.path, &run_summary.local)
        );
        assert_close("bytes of a subflow", capture_summary.bytes, run_summary.bytes);
    }
    assert_eq!((direction.unseen_bytes, direction.unmapped_bytes), (0, 0));
}

#[test]
fn the_senders_capture_agrees_with_the_senders_counters() {
    for transport in ["mptcp", "tcp"] {
        let folder = TestDir::new();
        let run = simulate(&folder, transport);
        let run_summary = run.summary.unwrap();
        let (connections, capture_summary) = trace(&folder, transport, "phone");
        let direction = &connections[0].directions[0];
        assert_eq!(
            (direction.out_of_order_bytes, direction.unseen_bytes, direction.unmapped_bytes),
            (0, 0, 0)
        );
        assert!(
            run_summary.subflows.iter().map(|s| s.retransmissions).sum::<u64>() > 0,
            "{transport}"
        );
        for (capture_summary, run_summary) in
            capture_summary.subflows.iter().zip(&run_summary.subflows)
        {
            assert_close(
                "retransmissions",
                capture_summary.retransmissions,
                run_summary.retransmissions,
            );
        }
    }
}

/// Compares the payload of each path in the result and in the receiver's capture.
#[test]
fn a_capture_of_an_emulated_run_agrees_with_kernel_counters() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
    let size = |name: &str| fs::metadata(folder.work().join(name)).unwrap().len();
    for (out, snap_arguments) in [("whole", &[][..]), ("cut", &["--snap", "100"])] {
        let fixed_arguments = ["-q", "-T", "mptcp", "--out", out, "--pcap", out];
        let output =
            folder.run(&[&["run", "scenario.toml"], &fixed_arguments[..], snap_arguments].concat());
        assert_eq!(output.code, Some(0), "{output}");
        let run_summary = folder.stored(&format!("{out}/mptcp-1.jsonl.zst")).summary.unwrap();
        let file = format!("{out}/emu-mptcp-1-server.pcapng");
        let (connections, capture_summary) =
            connections_of(&folder.run(&["trace", &file, "--json"]));
        assert_close("bytes", connections[0].directions[0].bytes, run_summary.flows[0].bytes);
        assert_eq!(connections[0].directions[0].unseen_bytes, 0);
        let per_path = |summary: &Summary| {
            let subflows = summary.subflows.iter();
            let mut subflows: Vec<_> =
                subflows.map(|s| (s.local.clone(), s.remote.clone(), s.bytes)).collect();
            subflows.sort();
            subflows
        };
        assert_eq!(per_path(&capture_summary), per_path(&run_summary), "{out}");
        assert!(capture_summary.subflows.len() == 2, "{:?}", capture_summary.subflows);
        let sender_capture = format!("{out}/emu-mptcp-1-phone.pcapng");
        let (connections, _) = connections_of(&folder.run(&["trace", &sender_capture, "--json"]));
        assert_eq!(connections[0].directions[0].unseen_bytes, 0);
    }
    let (whole_bytes, cut_bytes) =
        (size("whole/emu-mptcp-1-server.pcapng"), size("cut/emu-mptcp-1-server.pcapng"));
    assert!(whole_bytes > 1_000_000 && cut_bytes < whole_bytes / 4, "{cut_bytes} of {whole_bytes}");
}

#[test]
fn a_simulated_capture_with_a_snap_length_gives_the_same() {
    let folder = TestDir::new();
    folder.write("scenario.toml", format!("{TWO_PATHS}{SIZED}"));
    let tables = ["whole", "cut"].map(|kind| {
        let fixed_arguments =
            ["--world", "sim", "-T", "mptcp", "-q", "--out", kind, "--pcap", kind];
        let snap_arguments: &[&str] = if kind == "cut" { &["--snap", "100"] } else { &[] };
        let output =
            folder.run(&[&["run", "scenario.toml"], &fixed_arguments[..], snap_arguments].concat());
        assert_eq!(output.code, Some(0), "{output}");
        connections_of(&folder.run(&[
            "trace",
            &format!("{kind}/sim-mptcp-1-server.pcapng"),
            "--json",
        ]))
    });
    let [(whole, _), (cut, _)] = tables;
    assert_eq!(whole[0].directions[0].bytes, cut[0].directions[0].bytes);
    let output = folder.run(&["run", "scenario.toml", "--pcap", "x", "--snap", "99"]);
    assert_eq!(output.code, Some(2), "{output}");
}

#[test]
fn two_captures_reveal_the_link_delays() {
    let folder = TestDir::new();
    simulate(&folder, "mptcp");
    let files = ["phone", "server"].map(|host| format!("captures/sim-mptcp-1-{host}.pcapng"));
    let output = folder.run(&["trace", &files[0], &files[1], "--json"]);
    let (connections, _) = connections_of(&output);
    assert!(output.err.contains("packets are in both captures"), "{output}");
    // 5 ms and 10 ms one way with equal clocks; a packet's transmission time adds to it.
    for (subflow, delay_ms) in connections[0].subflows.iter().zip([5, 10]) {
        for direction in &subflow.directions {
            let min_ns = direction.one_way.unwrap().min_ns;
            let error = min_ns.abs_diff(delay_ms * 1_000_000);
            assert!(error < 500_000, "{min_ns} ns on subflow {}", subflow.subflow);
        }
    }
}

#[test]
fn a_trace_is_a_table_a_report_and_a_result() {
    let folder = TestDir::new();
    simulate(&folder, "mptcp");
    let file = "captures/sim-mptcp-1-phone.pcapng";
    let output = folder.run(&["trace", file, "-o", "page.html"]);
    assert_eq!(output.code, Some(0), "{output}");
    for text in ["MPTCP v1", "captured at the sender", "wifi", "cellular", "goodput"] {
        assert!(output.out.contains(text), "{text}: {output}");
    }
    assert!(output.out.lines().all(|line| line.chars().count() <= 100), "{output}");
    let page = fs::read_to_string(folder.work().join("page.html")).unwrap();
    assert!(page.contains("Captured connections"));
    let json = folder.run(&["trace", file, "--json"]);
    assert!(json.out.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{json}");
    folder.write("again.jsonl", &json.out);
    let report = folder.run(&["report", "again.jsonl", "-o", "again.html"]);
    assert_eq!(report.code, Some(0), "{report}");
}

#[test]
fn a_file_that_is_not_a_capture_is_refused() {
    let folder = TestDir::new();
    folder.write("photo.pcap", "GIF89a");
    insta::assert_snapshot!(refused(&folder, &["trace", "photo.pcap"]));
}

#[test]
fn a_capture_that_is_missing_is_refused() {
    insta::assert_snapshot!(refused(&TestDir::new(), &["trace", "missing.pcap"]));
}

/// Script that accepts one connection and reads it to its end, or opens one and writes 3 MB.
const ENDS: &str = r#"
import socket, sys
one = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
if sys.argv[1] == "far":
    one.bind((sys.argv[2], 7000))
    one.listen()
    near, _ = one.accept()
    while near.recv(1 << 16): pass
else:
    one.connect((sys.argv[2], 7000))
    one.sendall(bytes(3000000))
"#;

/// Captures the server's interfaces while a client sends 3 MB over both paths.
#[test]
fn packets_of_an_interface_are_captured_live() {
    let (folder, test) = (TestDir::new(), "packets_of_an_interface_are_captured_live");
    folder.write("ends.py", ENDS);
    let script = r#"
        nsenter --net="$server" "$TOWPATH" trace --interface any --json --write kept.pcap >seen.jsonl 2>said.txt &
        trace=$!
        until grep -q "capturing on any" said.txt || ! kill -0 $trace; do sleep 0.02; done
        nsenter --net="$server" python3 ends.py far $FAR &
        far=$!
        listens 7000
        python3 ends.py near $FAR
        wait $far
        kill -TERM $trace; wait $trace; true
    "#;
    let Some(output) = run_in_lab(test, &["python3"], &folder, script) else { return };
    let written = fs::read(folder.work().join("seen.jsonl")).unwrap();
    let run = read_run(written.as_slice()).unwrap();
    let connection = run.records.iter().find_map(|record| {
        let Record::Capture(connection) = record else { return None };
        (connection.directions[0].bytes > 100_000).then_some(connection)
    });
    let connection = connection.unwrap_or_else(|| panic!("{output}"));
    assert_eq!(connection.directions[0].bytes, 3_000_000);
    assert_eq!(connection.subflows.len(), 2);
    // The stored capture gives the same result.
    let output = folder.run(&["trace", "kept.pcap", "--json"]);
    let (connections, _) = connections_of(&output);
    assert_eq!(connections[0].directions[0].bytes, 3_000_000);
}

#[test]
fn an_interface_that_does_not_exist_is_named() {
    let output = TestDir::new().run(&["trace", "--interface", "towpath9"]);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(
        output.err.starts_with("error: this host has no interface `towpath9`\nhint:"),
        "{output}"
    );
}

/// Returns a scenario with keys of the receiving host (such as a buffer size) and of each path.
fn limited_scenario(receiver: &str, paths: &[(&str, &str)], timeline: &str) -> String {
    let paths = { paths.iter() }
        .map(|(name, keys)| format!("[paths.{name}]\nbetween = [\"left\", \"right\"]\n{keys}\n"))
        .collect::<Vec<_>>()
        .concat();
    format!(
        "name = \"limited\"\n[hosts.left]\n[hosts.right]\n{receiver}\n{paths}\n[[flows]]\n\
         from = \"left\"\nto = \"right\"\npattern = \"bulk\"\nduration = \"4 s\"\n{timeline}"
    )
}

/// Returns the account of a simulated run, and those of the captures at its sender and receiver.
fn accounts(scenario: &str, transport: &str) -> [AccountSummary; 3] {
    let folder = TestDir::new();
    folder.write("scenario.toml", scenario);
    let output_arguments = ["--out", "results", "--pcap", "captures", "--transport", transport];
    let output = folder
        .run(&[&["run", "scenario.toml", "--world", "sim"][..], &output_arguments[..]].concat());
    assert_eq!(output.code, Some(0), "{output}");
    let run = folder.stored(&format!("results/sim-{transport}-1.jsonl.zst"));
    let run_summary = run.summary.unwrap();
    let [left, right] = ["left", "right"].map(|host| trace(&folder, transport, host).1);
    [run_summary, left, right].map(|summary| {
        let account = *summary.account.unwrap();
        assert_eq!(account.total.sum(), account.total.capacity_bytes);
        account
    })
}

/// Returns the share of the capacity that belongs to a group of the account's parts.
fn share(account: &AccountSummary, group: PartGroup) -> f64 {
    account.total.of_group(group) as f64 / account.total.capacity_bytes as f64
}

#[test]
fn a_captures_account_is_that_of_its_run() {
    use PartGroup::{Application, Congestion, Delivered, Headers, Unusable, Window};
    let (fast_path, slow_path) =
        ("rate = \"40 Mbit/s\"\ndelay = \"25 ms\"", "rate = \"20 Mbit/s\"\ndelay = \"5 ms\"");
    let lossy_path = format!("{fast_path}\nloss = \"1 %\"");
    let two_paths = [("one", slow_path), ("two", slow_path)];
    let path_down = "[[timeline]]\nat = \"1 s\"\npath = \"two\"\nset = \"down\"\n";
    let small_buffer = "receive-buffer = \"100 KB\"";
    // The limit, and true if a capture at the receiver can detect it.
    let cases = [
        (limited_scenario(small_buffer, &[("one", fast_path)], ""), "tcp", Window, true),
        (limited_scenario("", &[("one", &lossy_path)], ""), "tcp", Congestion, true),
        (limited_scenario("", &two_paths, ""), "mptcp", Delivered, true),
        (limited_scenario("", &two_paths, path_down), "mptcp", Unusable, false),
    ];
    for (scenario, transport, limit, is_visible_at_receiver) in cases {
        let [run_account, sender, receiver] = accounts(&scenario, transport);
        assert_eq!(sender.basis, Basis::Estimate);
        let assert_near = |account: &AccountSummary, group, max_difference: f64| {
            let (of_run, of_capture) = (share(&run_account, group), share(account, group));
            assert!(
                (of_run - of_capture).abs() <= max_difference,
                "{group:?}: {of_run} or {of_capture}\n{account:#?}"
            );
        };
        for group in [Delivered, Headers, Application, Window, Congestion, Unusable] {
            assert_near(&sender, group, 0.1);
        }
        for group in
            [Delivered, Headers, limit].into_iter().take(if is_visible_at_receiver { 3 } else { 2 })
        {
            assert_near(&receiver, group, 0.15);
        }
    }
}

#[test]
fn an_ack_only_direction_is_not_faster_than_its_link() {
    let folder = TestDir::new();
    let _ = simulate(&folder, "tcp");
    for host in ["phone", "server"] {
        let (connections, _) = trace(&folder, "tcp", host);
        let connection = &connections[0];
        for direction in &connection.directions {
            assert!(direction.throughput_bps < 50e6, "{direction:?}");
            // The receiver does not see the links.
            let at_receiver =
                direction.capture_point == CapturePoint::Receiver && direction.bytes > 0;
            let (rtt, has_ack_delay) =
                (direction.rtt.is_some(), direction.acknowledged_after.is_some());
            assert!(!at_receiver || (!rtt && has_ack_delay), "{direction:?}");
        }
    }
}

#[test]
fn a_trace_reports_the_capacity_account() {
    let folder = TestDir::new();
    let _ = simulate(&folder, "mptcp");
    let file = "captures/sim-mptcp-1-phone.pcapng";
    let table = folder.run(&["trace", file]);
    assert!(table.out.contains("(estimated: "), "{table}");
    let account = folder.run(&["trace", file, "--account"]);
    assert_eq!(account.code, Some(0), "{account}");
    for word in ["capacity", "delivered", "what held senders back"] {
        assert!(account.out.contains(word), "{word}: {account}");
    }
    assert!(account.out.lines().all(|line| line.chars().count() <= 100), "{account}");
}
