//! A lost path loses no result: server and client in an emulated network whose paths fail during a
//! measurement.

use std::time::Duration;

use towpath_result::{Record, SubflowEnd};

use crate::program::{ProgramOutput, TestDir, acquire_emulator_for_timing, binary, busy, is_long};

/// Timeout for client and scenario.
const TEST_TIMEOUT: Duration = Duration::from_secs(90);

const TWO_PATHS: &str = r#"
[hosts.client.mptcp]
endpoints = [{ path = "eth", flags = ["subflow"] }, { path = "wlan", flags = ["subflow"] }]
[hosts.server.mptcp]
endpoints = [{ path = "wlan", flags = ["signal"] }]
[paths.eth]
between = ["client", "server"]
rate = "50 Mbit/s"
delay = "1 ms"
[paths.wlan]
between = ["client", "server"]
rate = "50 Mbit/s"
delay = "2 ms"
"#;

const ONE_PATH: &str = r#"
[hosts.client]
[hosts.server]
[paths.eth]
between = ["client", "server"]
rate = "50 Mbit/s"
delay = "1 ms"
"#;

/// Outcome of a measurement.
struct Measurement {
    code: i32,
    /// Output of the client.
    text: String,
    /// Set when the network's own run reports a busy machine.
    busy: bool,
}

/// Measures in `network` while `timeline` happens.
fn measure(folder: &TestDir, network: &str, timeline: &str, options: &str) -> Option<Measurement> {
    let _permit = acquire_emulator_for_timing()?;
    let towpath = binary();
    let towpath = std::fs::canonicalize(towpath).unwrap();
    let towpath = towpath.display();
    let once_option = if options.contains("-t 30") { "" } else { "--once" };
    let scenario = format!(
        "name = \"live-paths\"\n{network}\n{timeline}\n[[flows]]\nfrom = \"server\"\n\
         to = \"client\"\nrun = \"{towpath} server {once_option} > server.txt 2>&1\"\n\
         duration = \"25 s\"\n[[flows]]\nfrom = \"client\"\nto = \"server\"\nrun = \"until grep -q \
         listening server.txt; do sleep 0.02; done; {towpath} measure 10.64.0.2 -o results {options} \
         > client.txt 2>&1; echo $? > code.txt\"\n\
         duration = \"40 s\"\n"
    );
    folder.write("scenario.toml", scenario);
    let arguments = ["run", "scenario.toml", "-q", "-T", "mptcp", "-o", "around"];
    let output: ProgramOutput =
        folder.start(&mut folder.towpath(&arguments)).wait_at_most(TEST_TIMEOUT);
    let read = |name: &str| std::fs::read_to_string(folder.work().join(name)).unwrap_or_default();
    let code = read("code.txt").trim().parse();
    let text = read("client.txt");
    let code = code.unwrap_or_else(|_| panic!("the client did not end: {text}\n{output}"));
    let busy = busy(&folder.stored("around/mptcp-1.jsonl.zst")).is_some();
    Some(Measurement { code, text, busy })
}

#[test]
fn the_merged_result_is_complete_after_the_initial_path_fails() {
    let (silent, interface) = ("mode = \"silent\"", "mode = \"interface\"\nhost = \"client\"");
    let stationary_options = "iperf -t 5 --require-multipath --udping";
    let mobile_options = "iperf -t 5 --require-multipath --udping --mobile";
    // Only changes that the host itself sees make a measurement invalid.
    let cases = [
        ("mptcp", silent, stationary_options, 0),
        ("mpquic", interface, mobile_options, 0),
        ("mptcp", interface, stationary_options, 1),
        ("mptcp", interface, mobile_options, 0),
        ("mpquic", silent, stationary_options, 0),
    ];
    let case_count = if is_long() { cases.len() } else { 3 };
    for (transport, down_mode, options, expected_code) in cases.into_iter().take(case_count) {
        let options = &format!("--transport {transport} {options}");
        let folder = TestDir::new();
        let down_event =
            format!("[[timeline]]\nat = \"2 s\"\npath = \"eth\"\nset = \"down\"\n{down_mode}\n");
        let Some(Measurement { code, text, busy }) =
            measure(&folder, TWO_PATHS, &down_event, options)
        else {
            return;
        };
        assert_eq!(code, expected_code, "{down_mode}, {options}: {text}");
        let message = if busy { "invalid: at " } else { "invalid: at 1." };
        assert_eq!(text.contains(message), expected_code == 1, "{down_mode}, {options}: {text}");
        let result = folder.stored(&format!("results/live-{transport}-1.jsonl.zst"));
        let summary = result.summary.unwrap();
        let flow = &summary.flows[0];
        assert!(flow.completed && flow.bytes > 10_000_000, "{down_mode}: {flow:?}");
        assert!(summary.multipath.used, "{:?}", summary.multipath);
        // The `udping` datagrams show over any transport that only the path `eth` failed.
        let [eth, wlan] = &summary.paths[..] else { panic!("{text}") };
        assert!(eth.path == "eth" && wlan.path == "wlan", "{text}");
        assert!(
            eth.answered < wlan.answered && eth.silence_ns > wlan.silence_ns,
            "{down_mode}: {eth:?}"
        );
        if !busy {
            assert!((10..=22).contains(&eth.answered), "{down_mode}: {eth:?}");
            assert!(eth.silence_ns > 2_500_000_000, "{down_mode}: {eth:?}");
            assert!(wlan.answered >= 48 && wlan.lost() <= 1, "{down_mode}: {wlan:?}");
        }
        let sides = result.records.iter().filter_map(|record| {
            let Record::Subflow(subflow) = record else { return None };
            Some(subflow.side)
        });
        let (sender_sides, receiver_sides): (Vec<_>, Vec<_>) =
            sides.partition(|side| *side == SubflowEnd::Sender);
        assert!(
            !sender_sides.is_empty() && !receiver_sides.is_empty(),
            "{down_mode}: one half only"
        );
    }
}

#[test]
fn tcp_loses_nothing_if_its_only_path_comes_back() {
    let folder = TestDir::new();
    let outage_events = "[[timeline]]\nat = \"2 s\"\npath = \"eth\"\nset = \"down\"\n\
        [[timeline]]\nat = \"7 s\"\npath = \"eth\"\nset = \"up\"\n";
    let Some(Measurement { text, .. }) =
        measure(&folder, ONE_PATH, outage_events, "-t 5 --transport tcp")
    else {
        return;
    };
    let result = folder.stored("results/live-tcp-1.jsonl.zst");
    let summary = result.summary.unwrap();
    assert!(summary.flows[0].bytes > 1_000_000, "{text}");
    assert!(!text.contains("server's results are missing"), "{text}");
}

#[test]
fn after_losing_its_only_path_tcp_reports_the_missing_data() {
    let folder = TestDir::new();
    let down_event = "[[timeline]]\nat = \"2 s\"\npath = \"eth\"\nset = \"down\"\n";
    let options = "-t 5 --transport tcp --result-timeout 3";
    let Some(Measurement { code, text, .. }) = measure(&folder, ONE_PATH, down_event, options)
    else {
        return;
    };
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("the server's results are missing"), "{text}");
    let result = folder.stored("results/live-tcp-1.jsonl.zst");
    let failure = result.summary.unwrap().flows[0].failure.clone().unwrap();
    assert!(failure.contains("were acknowledged"), "{failure}");
}

#[test]
fn a_host_that_moves_is_measured_over_all_transports_until_it_has_left_a_network() {
    // The interface fails, which the host notices; or the path fails silently, which only the
    // datagrams show.
    for down_mode in ["interface\"\nhost = \"client", "silent"] {
        let folder = TestDir::new();
        let down_event = format!(
            "[[timeline]]\nat = \"3 s\"\npath = \"eth\"\nset = \"down\"\nmode = \"{down_mode}\"\n"
        );
        // Without this option, the transports are Multipath TCP and Multipath QUIC.
        let options = if down_mode == "silent" {
            "--mobile -t 30 --transport mptcp,tcp -B %wlan"
        } else {
            "--mobile -t 30"
        };
        let Some(Measurement { code, text, busy }) =
            measure(&folder, TWO_PATHS, &down_event, options)
        else {
            return;
        };
        let result = folder.stored("results/live-mptcp-1.jsonl.zst");
        let gone_seconds = result.records.iter().find_map(|record| {
            let Record::Event(event) = record else { return None };
            event.text.contains("first network was lost").then_some(event.t_ns)
        });
        let gone_seconds =
            gone_seconds.unwrap_or_else(|| panic!("{down_mode}: {text}")) as f64 / 1e9;
        assert!(busy || (1.0..3.0).contains(&gone_seconds), "{down_mode}: {gone_seconds}: {text}");
        // Runs continue until the change is certain, and a few seconds more.
        let duration_seconds = result.meta.duration_ns as f64 / 1e9;
        assert!(
            duration_seconds >= gone_seconds + 4.9,
            "{down_mode}: {gone_seconds} {duration_seconds}: {text}"
        );
        assert!(
            busy || duration_seconds < gone_seconds + 7.5,
            "{down_mode}: {gone_seconds} {duration_seconds}: {text}"
        );
        let summary = result.summary.unwrap();
        assert_eq!(code, 0, "{down_mode}: {text}");
        for flow in &summary.flows {
            let messages = flow.messages.as_ref().unwrap();
            assert_eq!(messages.answered, messages.count, "{down_mode}: {flow:?}");
            let count_error = (messages.count as f64 - duration_seconds * 10.0).abs();
            assert!(busy || count_error < 3.0, "{down_mode}: {flow:?}");
        }
        let lost_datagrams =
            |name| summary.paths.iter().find(|path| path.path == name).unwrap().lost();
        let (eth, wlan) = (lost_datagrams("eth"), lost_datagrams("wlan"));
        assert!(eth > 30 && (busy || wlan <= 2), "{down_mode}: {:?}", summary.paths);
        let other_transport = if down_mode == "silent" { "tcp" } else { "mpquic" };
        let other_result = folder.stored(&format!("results/live-{other_transport}-1.jsonl.zst"));
        let end_difference_ns = other_result.meta.duration_ns.abs_diff(result.meta.duration_ns);
        assert!(busy || end_difference_ns < 500_000_000, "{end_difference_ns} ns");
        assert_eq!(other_result.summary.unwrap().paths, []);
    }
}
