//! Capacity account between two hosts that have no description of their links.
//!
//! Server and client run in emulated networks with one known limit.

use std::time::Duration;

use serde_json::Value;
use towpath_result::{AccountSummary, Basis, Part, Record};
use towpath_scenario::DataDirection;

use crate::program::{ProgramOutput, TestDir, acquire_emulator_for_timing, binary, busy, skip};

const TEST_TIMEOUT: Duration = Duration::from_secs(90);

/// Account of a measurement.
struct MeasuredAccount {
    account: AccountSummary,
    /// Output of the client.
    text: String,
    /// True if the machine was too busy for bounds on times.
    busy: bool,
}

fn path(name: &str, keys: &str) -> String {
    format!("[paths.{name}]\nbetween = [\"client\", \"server\"]\n{keys}\n")
}

/// Measures in a network with these paths; `options` are those of `towpath measure`.
fn measure_account(paths: &str, transport: &str, options: &str) -> Option<MeasuredAccount> {
    let _permit = acquire_emulator_for_timing()?;
    let folder = TestDir::new();
    let towpath = std::fs::canonicalize(binary()).unwrap();
    let towpath = towpath.display();
    let scenario = format!(
        "name = \"live-account\"\n[hosts.client]\n[hosts.server]\n{paths}\n[[flows]]\n\
         from = \"server\"\nto = \"client\"\nrun = \"{towpath} server --once > server.txt 2>&1\"\n\
         duration = \"20 s\"\n[[flows]]\nfrom = \"client\"\nto = \"server\"\nrun = \"until grep -q \
         listening server.txt; do sleep 0.02; done; {towpath} measure 10.64.0.2 -o results \
         --transport {transport} {options} > client.txt 2>&1; echo $? > code.txt\"\n\
         duration = \"30 s\"\n"
    );
    folder.write("scenario.toml", scenario);
    let arguments = ["run", "scenario.toml", "-q", "-T", "mptcp", "-o", "around"];
    let output: ProgramOutput =
        folder.start(&mut folder.towpath(&arguments)).wait_at_most(TEST_TIMEOUT);
    let read = |name: &str| std::fs::read_to_string(folder.work().join(name)).unwrap_or_default();
    let text = read("client.txt");
    assert_eq!(read("code.txt").trim(), "0", "{text}\n{output}");
    let busy = busy(&folder.stored("around/mptcp-1.jsonl.zst")).is_some();
    let result = folder.stored(&format!("results/live-{transport}-1.jsonl.zst"));
    let account = *result.summary.unwrap().account.unwrap_or_else(|| panic!("no account: {text}"));
    assert_eq!(account.basis, Basis::Estimate);
    let record_capacities = result.records.iter().filter_map(|record| {
        let Record::Account(record_account) = record else { return None };
        assert_eq!(
            record_account.parts.sum(),
            record_account.parts.capacity_bytes,
            "{record_account:#?}"
        );
        Some(record_account.parts.capacity_bytes)
    });
    assert_eq!(record_capacities.sum::<u64>(), account.total.capacity_bytes);
    assert_eq!(account.total.sum(), account.total.capacity_bytes);
    Some(MeasuredAccount { account, text, busy })
}

/// Fails unless one of `parts` limited a path's sender for the longest time. Never fails on a busy
/// machine.
fn assert_limited_by(measured: &MeasuredAccount, path: &str, parts: &[Part]) {
    let link = measured.account.links.iter().find(|link| link.path == path).unwrap();
    let longest_limit = link.limits_ns.iter().max_by_key(|(_, span)| **span).map(|(part, _)| *part);
    let is_expected = longest_limit.is_some_and(|longest_limit| parts.contains(&longest_limit));
    assert!(measured.busy || is_expected, "{path}: {longest_limit:?}: {:#?}", measured.account);
}

#[test]
fn a_small_window_of_the_receiver_is_named_in_both_directions() {
    let paths = path("eth", "rate = \"40 Mbit/s\"\ndelay = \"25 ms\"");
    for (options, direction) in [("", DataDirection::Up), ("-R", DataDirection::Down)] {
        let Some(measured) = measure_account(&paths, "tcp", &format!("-t 3 -w 50k {options}"))
        else {
            return;
        };
        let link = &measured.account.links[0];
        assert_eq!(link.direction, direction);
        assert_limited_by(&measured, "eth", &[Part::PeerWindow, Part::SendBuffer]);
        let states_estimate =
            measured.text.contains("(estimated: the most that arrived within 20 ms)");
        assert!(states_estimate, "{}", measured.text);
    }
}

#[test]
fn an_application_at_a_constant_rate_is_named() {
    let paths = path("eth", "rate = \"40 Mbit/s\"\ndelay = \"10 ms\"");
    for transport in ["tcp", "mptcp", "quic"] {
        let Some(measured) = measure_account(&paths, transport, "-t 3 -b 4M") else { return };
        assert_limited_by(&measured, "eth", &[Part::Application]);
        let names_limit = measured.account.sentence.contains("there was nothing to send");
        assert!(measured.busy || names_limit, "{}", measured.account.sentence);
    }
}

#[test]
fn a_slow_link_and_random_loss_show_in_the_congestion_window() {
    let slow_link = path("eth", "rate = \"10 Mbit/s\"\ndelay = \"10 ms\"\nqueue = \"100 ms\"");
    for transport in ["tcp", "quic"] {
        // The host's own congestion control may be BBR, which the window limits only at its start.
        let Some(measured) = measure_account(&slow_link, transport, "-t 3 -C cubic") else {
            return;
        };
        let parts = [Part::SlowStart, Part::CongestionAvoidance, Part::AfterLoss];
        assert_limited_by(&measured, "eth", &parts);
        // The estimate is the link's rate, within the effects of bursts and headers.
        let bytes = measured.account.total.capacity_bytes as f64;
        let mbps = bytes * 8e3 / measured.account.span_ns as f64;
        assert!(measured.busy || (8.5..11.5).contains(&mbps), "{mbps}: {}", measured.text);
        assert!(!measured.account.estimate.as_ref().unwrap().at_least);
    }
    let lossy_link = path("eth", "rate = \"40 Mbit/s\"\ndelay = \"25 ms\"\nloss = \"1 %\"");
    let Some(measured) = measure_account(&lossy_link, "tcp", "-t 3 -C reno") else { return };
    assert_limited_by(&measured, "eth", &[Part::AfterLoss]);
}

/// BBR, a common default, keeps its window open and paces.
#[test]
fn bbr_is_held_back_by_its_pacing() {
    let available_controls = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let available_controls = std::fs::read_to_string(available_controls).unwrap_or_default();
    if !available_controls.split_whitespace().any(|name| name == "bbr") {
        return skip("bbr_is_held_back_by_its_pacing", "the kernel has no `bbr`");
    }
    let slow_link = path("eth", "rate = \"10 Mbit/s\"\ndelay = \"10 ms\"\nqueue = \"100 ms\"");
    let Some(measured) = measure_account(&slow_link, "tcp", "-t 3 -C bbr") else { return };
    let parts = [Part::SlowStart, Part::CongestionAvoidance, Part::Pacing];
    assert_limited_by(&measured, "eth", &parts);
    let is_paced = measured.account.links[0].limits_ns.contains_key(&Part::Pacing);
    assert!(measured.busy || is_paced, "{:#?}", measured.account);
}

#[test]
fn a_blocking_path_is_named_between_two_hosts() {
    let paths = "[hosts.client.mptcp]\nendpoints = [{ path = \"wifi\", flags = [\"subflow\"] }, \
        { path = \"umts\", flags = [\"subflow\"] }]\n"
        .to_owned()
        + &path("wifi", "rate = \"8 Mbit/s\"\ndelay = \"10 ms\"\nqueue = \"80 ms\"")
        + &path("umts", "rate = \"2 Mbit/s\"\ndelay = \"75 ms\"\nqueue = \"2 s\"");
    let Some(measured) = measure_account(&paths, "mptcp", "-t 6 -w 100k") else { return };
    let wifi = measured.account.links.iter().find(|link| link.path == "wifi").unwrap();
    let is_blocked = wifi.parts.blocked_by.contains_key("umts");
    assert!(measured.busy || is_blocked, "{:#?}", measured.account);
    assert_eq!(measured.account.links.len(), 2, "{:#?}", measured.account);
}

/// Runs the monitor and the doctor on the sender's host during a measurement with these options.
///
/// Returns the limits of subflows in each sample, the causes, and true if the machine was too busy.
fn monitor_and_doctor(server: &str, options: &str) -> Option<(Vec<String>, Vec<String>, bool)> {
    let _permit = acquire_emulator_for_timing()?;
    let folder = TestDir::new();
    let towpath = std::fs::canonicalize(binary()).unwrap();
    let towpath = towpath.display();
    let path = path("eth", "rate = \"40 Mbit/s\"\ndelay = \"25 ms\"");
    let scenario = format!(
        "name = \"live-limits\"\n[hosts.client]\n[hosts.server]\n{server}\n{path}\n[[flows]]\n\
         from = \"server\"\nto = \"client\"\nrun = \"{towpath} server --once > server.txt 2>&1\"\n\
         duration = \"20 s\"\n[[flows]]\nfrom = \"client\"\nto = \"server\"\nrun = \"until grep -q \
         listening server.txt; do sleep 0.02; done; {towpath} measure 10.64.0.2 -o results \
         --transport mptcp -t 6 {options} > client.txt 2>&1 & sleep 1.5; {towpath} monitor --json \
         --count 6 --interval 0.2 > monitor.txt 2> monitor-err.txt; {towpath} doctor --json > \
         doctor.txt 2> doctor-err.txt; wait\"\nduration = \"30 s\"\n"
    );
    folder.write("scenario.toml", scenario);
    let arguments = ["run", "scenario.toml", "-q", "-T", "mptcp", "-o", "around"];
    let output: ProgramOutput =
        folder.start(&mut folder.towpath(&arguments)).wait_at_most(TEST_TIMEOUT);
    let read = |name: &str| std::fs::read_to_string(folder.work().join(name)).unwrap_or_default();
    let mut limits = Vec::new();
    for line in read("monitor.txt").lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let longest_limit = &line["subflows"][0]["limits"][0]["limit"];
        limits.extend(longest_limit.as_str().map(str::to_owned));
    }
    let doctor = read("doctor.txt");
    let report: Value = serde_json::from_str(&doctor).unwrap_or_else(|_| {
        panic!("{doctor}{}\n{}\n{output}", read("doctor-err.txt"), read("client.txt"))
    });
    let causes = report["findings"].as_array().unwrap().iter();
    let causes = causes.map(|finding| finding["cause"].as_str().unwrap().to_owned());
    let busy = busy(&folder.stored("around/mptcp-1.jsonl.zst")).is_some();
    Some((limits, causes.collect(), busy))
}

#[test]
fn monitor_and_doctor_name_the_receivers_window_of_a_live_connection() {
    let Some((limits, causes, busy)) = monitor_and_doctor("receive-buffer = \"100 KB\"", "") else {
        return;
    };
    let peer_window_count = limits.iter().filter(|limit| *limit == "peer-window").count();
    assert!(busy || peer_window_count * 2 > limits.len(), "{limits:?}");
    assert!(busy || causes.iter().any(|cause| cause == "receive-window-full"), "{causes:?}");
}

#[test]
fn monitor_names_an_application_limit_and_doctor_omits_it() {
    let Some((limits, causes, busy)) = monitor_and_doctor("", "-b 1M") else { return };
    let application_count = limits.iter().filter(|limit| *limit == "application").count();
    assert!(busy || application_count * 2 > limits.len(), "{limits:?}");
    let names_a_window =
        |cause: &&String| cause.contains("window") || cause.contains("buffer-full");
    assert_eq!(causes.iter().find(names_a_window), None);
}
