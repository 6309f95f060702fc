//! Error messages for wrong scenarios.

use std::fs;

use crate::program::{TestDir, names};

/// Valid beginning of a scenario, which the cases below extend or change.
const HEAD: &str = r#"name = "handover"
[hosts.phone]
[hosts.server]
[paths.wifi]
between = ["phone", "server"]
rate = "40 Mbit/s"
[paths.cellular]
between = ["phone", "server"]
rate = "20 Mbit/s"
"#;

const FLOW: &str = "[[flows]]\nfrom = \"phone\"\nto = \"server\"\n";

/// Runs a command and expects a refusal before any process starts. Returns the message.
pub(crate) fn refused(folder: &TestDir, arguments: &[&str]) -> String {
    let names_before = folder.names();
    let output = folder.run(arguments);
    assert_eq!(output.code, Some(2), "{output}");
    assert_eq!(output.out, "", "data of a run that did not happen");
    assert_eq!(folder.names(), names_before, "something was started");
    assert_eq!(names(&folder.temporary()), [""; 0], "something was started");
    for line in output.err.lines() {
        assert!(line.chars().count() <= 100, "too wide: {line}");
    }
    output.err
}

fn run_error(text: &[u8]) -> String {
    let folder = TestDir::new();
    folder.write("handover.toml", text);
    refused(&folder, &["run", "handover.toml"])
}

macro_rules! error_snapshots {
    ($($name:ident: $text:expr;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(run_error($text.as_ref()));
        })*
    };
}

fn with_head(text: &str) -> String {
    format!("{HEAD}{text}\n")
}

fn with_path(keys: &str) -> String {
    HEAD.replacen("rate = \"40 Mbit/s\"", keys, 1)
}

fn with_path_between(hosts: &str) -> String {
    HEAD.replacen("\"phone\", \"server\"", hosts, 1)
}

fn with_host(keys: &str) -> String {
    HEAD.replacen("[hosts.phone]", &format!("[hosts.phone]\n{keys}"), 1)
}

fn with_flow(keys: &str) -> String {
    with_head(&format!("{FLOW}{keys}"))
}

fn with_event(keys: &str) -> String {
    with_head(&format!("{FLOW}pattern = \"iperf\"\n[[timeline]]\n{keys}"))
}

fn with_expectation(line: &str) -> String {
    with_head(&format!("{FLOW}pattern = \"iperf\"\n[expect]\n{line}"))
}

fn many_hosts() -> String {
    let hosts: Vec<_> = (0..65).map(|n| format!("[hosts.h{n}]\n")).collect();
    let paths: Vec<_> =
        (1..65).map(|n| format!("[paths.p{n}]\nbetween = [\"h0\", \"h{n}\"]\n")).collect();
    format!("name = \"many\"\n{}{}", hosts.concat(), paths.concat())
}

error_snapshots! {
    empty_file: "";
    ten_megabytes_of_garbage: vec![b'{'; 10_000_000];
    not_utf8: [b"name = \"a\"\n".as_slice(), &[0xff, 0xfe]].concat();
    not_toml: "<scenario name=\"handover\"/>\n";
    syntax_error: with_path("rate = 40 Mbit/s");
    no_flows: HEAD;
    no_paths: "name = \"a\"\n[hosts.a]\n[hosts.b]\n";
    unknown_key: with_path("rate = \"40 Mbit/s\"\ndely = \"15 ms\"");
    unknown_table: with_head("[experiment]\nrepeat = 3");
    missing_unit: with_path("rate = 40");
    wrong_kind_of_unit: with_path("rate = \"15 ms\"");
    negative_rate: with_path("rate = \"-40 Mbit/s\"");
    zero_rate: with_path("rate = \"0 Mbit/s\"");
    absurd_rate: with_path("rate = \"40000 Gbit/s\"");
    absurd_size: with_flow("pattern = \"bulk\"\nsize = \"99999999999 GB\"");
    absurd_duration: with_flow("pattern = \"iperf\"\nduration = \"9 h\"\nstreams = 100000");
    duplicate_key: with_path("rate = \"40 Mbit/s\"\nrate = \"50 Mbit/s\"");
    duplicate_path: with_head("[paths.wifi]\nbetween = [\"phone\", \"server\"]");
    duplicate_host: HEAD.replacen("[hosts.server]", "[hosts.phone]", 1);
    more_hosts_than_allowed: many_hosts();
    path_to_itself: with_path_between("\"phone\", \"phone\"");
    path_to_unknown_host: with_path_between("\"phone\", \"sever\"");
    path_with_spaces: with_head("[paths.\"my path\"]\nbetween = [\"phone\", \"server\"]");
    trace_that_is_missing: with_path("rate = { trace = \"lte.trace\" }");
    trace_that_is_invalid: with_path("rate = { trace = \"handover.toml\" }");
    endpoint_flags_that_exclude_each_other:
        with_host("mptcp = { endpoints = [{ path = \"wifi\", flags = [\"signal\", \"fullmesh\"] }] }");
    endpoint_flag_that_is_unknown:
        with_host("mptcp = { endpoints = [{ path = \"wifi\", flags = [\"backp\"] }] }");
    sysctl_outside_of_the_network: with_host("sysctl = { \"kernel.hostname\" = \"phone\" }");
    event_on_an_unknown_path: with_event("at = \"3 s\"\npath = \"wlan\"\nset = \"down\"");
    event_after_the_end: with_event("at = \"12 s\"\npath = \"wifi\"\nset = \"down\"");
    event_without_a_host: with_event("at = \"1 s\"\npath = \"wifi\"\nset = \"address\"");
    flow_to_itself: with_head("[[flows]]\nfrom = \"phone\"\nto = \"phone\"\npattern = \"iperf\"");
    flow_without_a_path:
        with_head("[hosts.laptop]\n[paths.cable]\nbetween = [\"laptop\", \"server\"]\n[[flows]]\n\
            from = \"phone\"\nto = \"laptop\"\npattern = \"iperf\"");
    flow_of_an_unknown_pattern: with_flow("pattern = \"iperf3\"");
    flow_with_a_mistyped_key: with_flow("pattern = \"interactive\"\nperoid = \"100 ms\"");
    flow_with_a_key_of_another_pattern: with_flow("pattern = \"video\"\nperiod = \"100 ms\"");
    flow_that_expects_a_mistyped_delay: with_head(&format!(
        "{FLOW}pattern = \"interactive\"\n[expect]\ndelay.p95 = \"<= 100 ms\""));
    unknown_transport: with_flow("pattern = \"iperf\"\n[run]\ntransports = [\"tcp\", \"sctp\"]");
    world_of_a_later_version: with_flow("pattern = \"iperf\"\n[run]\nworlds = [\"live\"]");
    expectation_of_an_unknown_metric: with_expectation("\"mptcp.goodptu\" = \">= 15 Mbit/s\"");
    expectation_without_a_unit: with_expectation("\"mptcp.goodput\" = \">= 15\"");
    several_mistakes_at_once:
        with_flow("pattern = \"bulk\"\nvia = \"cell\"\n[[timeline]]\nat = 3\npath = \"wifi\"\n\
            set = \"down\"\n[run]\nseed = -1\nrepeats = 3");
}

#[test]
fn a_broken_trace_is_shown_with_its_line() {
    let folder = TestDir::new();
    folder.write("lte.trace", "1\n5\nfive\n");
    folder.write("handover.toml", with_path("rate = { trace = \"lte.trace\" }"));
    insta::assert_snapshot!(refused(&folder, &["run", "handover.toml"]));
}

#[test]
fn a_directory_is_not_a_scenario() {
    let folder = TestDir::new();
    fs::create_dir(folder.work().join("handover.toml")).unwrap();
    insta::assert_snapshot!(refused(&folder, &["run", "handover.toml"]));
}

#[test]
fn a_file_that_is_missing_is_named() {
    insta::assert_snapshot!(refused(&TestDir::new(), &["run", "handover.toml"]));
}

#[test]
fn the_nearest_name_of_a_built_in_scenario_is_offered() {
    insta::assert_snapshot!(refused(&TestDir::new(), &["run", "wifi-celular-handover"]));
}

#[test]
fn without_a_near_name_the_list_is_offered() {
    insta::assert_snapshot!(refused(&TestDir::new(), &["run", "qqq"]));
}
