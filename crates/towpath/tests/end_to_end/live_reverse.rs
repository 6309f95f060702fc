//! `towpath measure -R` and `--bidir` over emulated links: values of the sender come from the
//! sender, and the intervals add up to the total.

use std::collections::BTreeMap;

use towpath_result::store::RunResult;
use towpath_result::{Record, SubflowEnd};
use towpath_scenario::DataDirection;

use crate::program::{TestDir, acquire_emulator, binary};

/// Two links with a round-trip time of at least 10 ms.
const NETWORK: &str = r#"
name = "reverse"
[hosts.client.mptcp]
endpoints = [{ path = "eth", flags = ["subflow"] }, { path = "wlan", flags = ["subflow"] }]
[hosts.server]
[paths.eth]
between = ["client", "server"]
rate = "20 Mbit/s"
delay = "5 ms"
[paths.wlan]
between = ["client", "server"]
rate = "20 Mbit/s"
delay = "10 ms"
[[flows]]
from = "client"
to = "server"
pattern = "iperf"
"#;

/// Measures over emulated links; returns the live lines and the result.
fn measure(options: &str, transport: &str, is_v6: bool) -> Option<(String, RunResult)> {
    let _permit = acquire_emulator()?;
    let folder = TestDir::new();
    let family = if is_v6 { "family = \"v6\"\n" } else { "" };
    folder.write("scenario.toml", format!("{NETWORK}{family}"));
    let towpath = std::fs::canonicalize(binary()).unwrap();
    let towpath = towpath.display();
    let server = format!("{towpath} server --once > server.txt 2>&1");
    let client = format!(
        "until grep -q listening server.txt; do sleep 0.02; done; \
         {towpath} measure $TOWPATH_SERVER -t 1 --transport {transport} {options} -o results \
         > client.txt 2>&1"
    );
    let arguments =
        ["lab", "scenario.toml", "-q", "-o", "around", "--on", "server", &server, "--on", "client"];
    let output = folder.run(&[&arguments[..], &[&client]].concat());
    let text = std::fs::read_to_string(folder.work().join("client.txt")).unwrap_or_default();
    assert_eq!(output.code, Some(0), "{options} {transport}: {text}\n{output}");
    Some((text, folder.stored(&format!("results/live-{transport}-1.jsonl.zst"))))
}

/// Verifies that the intervals of each direction neither overlap nor leave a gap, and that their
/// sum is the total.
fn verify_intervals(result: &RunResult, context: &str) {
    let mut sums: BTreeMap<DataDirection, u64> = BTreeMap::new();
    let mut ends: BTreeMap<(DataDirection, u32), u64> = BTreeMap::new();
    for record in &result.records {
        let Record::Interval(interval) = record else { continue };
        *sums.entry(interval.direction).or_default() += interval.bytes;
        let end = ends.entry((interval.direction, interval.stream)).or_default();
        assert_eq!(interval.t_ns - interval.span_ns, *end, "{context}: {interval:?}");
        *end = interval.t_ns;
    }
    for flow in &result.summary.as_ref().unwrap().flows {
        assert!(flow.bytes > 0, "{context}: {flow:?}");
        assert_eq!(sums.remove(&flow.direction), Some(flow.bytes), "{context}");
    }
    assert!(sums.is_empty(), "{context}: {sums:?}");
}

/// Returns the columns after the rate, in the live lines for paths below lines of `direction`.
fn path_lines<'a>(text: &'a str, transport: &str, direction: &str) -> Vec<Vec<&'a str>> {
    let label = format!("{transport} {direction}");
    let mut is_of_direction = false;
    let mut lines = Vec::new();
    for line in text.lines().take_while(|line| !line.starts_with("live")) {
        if line.starts_with('[') {
            is_of_direction = line.contains(&label);
        } else if let Some((_, columns)) = line.split_once("bit/s").filter(|_| is_of_direction) {
            lines.push(columns.split_whitespace().collect());
        }
    }
    lines
}

#[test]
fn values_of_the_sender_come_from_the_server_if_it_sends() {
    let cases = [
        ("tcp", false, "-R"),
        ("tcp", true, "-R"),
        ("tcp", false, "-R -P 3"),
        ("tcp", true, "--bidir"),
        ("mptcp", false, "-R"),
        ("mptcp", true, "-R"),
        ("quic", false, "-R"),
        ("mpquic", true, "--bidir"),
    ];
    for (transport, is_v6, options) in cases {
        let context = format!("{transport} {options}, v6: {is_v6}");
        let Some((text, result)) = measure(&format!("{options} -C cubic"), transport, is_v6) else {
            return;
        };
        verify_intervals(&result, &context);
        let summary = result.summary.as_ref().unwrap();
        for flow in &summary.flows {
            assert_eq!(flow.congestion_control, ["cubic"], "{context}: {flow:?}");
        }
        let down_lines = path_lines(&text, transport, "down");
        assert!(!down_lines.is_empty(), "{context}: {text}");
        for columns in &down_lines {
            assert_eq!(columns.get(..3), Some(&["–", "–", "–"][..]), "{context}: {text}");
        }
        for columns in path_lines(&text, transport, "up") {
            assert!(!columns.contains(&"–"), "{context}: {text}");
        }
        let senders = result.records.iter().filter_map(|record| {
            let Record::Subflow(subflow) = record else { return None };
            let is_sender = subflow.side == SubflowEnd::Sender;
            is_sender.then_some((subflow.direction, subflow.srtt_us))
        });
        let max_rtt = senders.filter(|(direction, _)| *direction == DataDirection::Down);
        let max_rtt = max_rtt.map(|(_, srtt_us)| srtt_us).max().unwrap_or(0);
        assert!(max_rtt >= 10_000, "{context}: the series has the round trip of the link");
        for subflow in &summary.subflows {
            assert!(subflow.bytes == 0 || subflow.srtt_us >= 10_000, "{context}: {subflow:?}");
        }
    }
}

#[test]
fn the_intervals_of_every_kind_of_flow_add_up_to_its_total() {
    for (transport, options) in [("tcp", "-P 2"), ("mptcp", ""), ("tcp", "udp -R"), ("tcp", "udp")]
    {
        let Some((_, result)) = measure(options, transport, options.is_empty()) else { return };
        verify_intervals(&result, options);
    }
}
