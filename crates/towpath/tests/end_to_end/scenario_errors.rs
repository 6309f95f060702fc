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

/// Runs a folder's scenario and expects a refusal before any process starts. Returns the message.
pub(crate) fn refused(folder: &TestDir, arguments: &[&str]) -> String {
    let before = folder.names();
    let ended = folder.run(arguments);
    assert_eq!(ended.code, Some(2), "{ended}");
    assert_eq!(ended.out, "", "data of a run that did not happen");
    assert_eq!(folder.names(), before, "something was started");
    assert_eq!(names(&folder.temporary()), [""; 0], "something was started");
    for line in ended.err.lines() {
        assert!(line.chars().count() <= 100, "too wide: {line}");
    }
    ended.err
}

fn wrong(text: &[u8]) -> String {
    let folder = TestDir::new();
    folder.write("handover.toml", text);
    refused(&folder, &["run", "handover.toml"])
}

macro_rules! wrong {
    ($($name:ident: $text:expr;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(wrong($text.as_ref()));
        })*
    };
}

fn after_head(text: &str) -> String {
    format!("{HEAD}{text}\n")
}

fn path(keys: &str) -> String {
    HEAD.replacen("rate = \"40 Mbit/s\"", keys, 1)
}

fn between(hosts: &str) -> String {
    HEAD.replacen("\"phone\", \"server\"", hosts, 1)
}

fn host(keys: &str) -> String {
    HEAD.replacen("[hosts.phone]", &format!("[hosts.phone]\n{keys}"), 1)
}

fn flow(keys: &str) -> String {
    after_head(&format!("{FLOW}{keys}"))
}

fn event(keys: &str) -> String {
    after_head(&format!("{FLOW}pattern = \"iperf\"\n[[timeline]]\n{keys}"))
}

fn expectation(line: &str) -> String {
    after_head(&format!("{FLOW}pattern = \"iperf\"\n[expect]\n{line}"))
}

fn many_hosts() -> String {
    let hosts: Vec<_> = (0..65).map(|n| format!("[hosts.h{n}]\n")).collect();
    let paths: Vec<_> =
        (1..65).map(|n| format!("[paths.p{n}]\nbetween = [\"h0\", \"h{n}\"]\n")).collect();
    format!("name = \"many\"\n{}{}", hosts.concat(), paths.concat())
}

wrong! {
    empty_file: "";
    ten_megabytes_of_garbage: vec![b'{'; 10_000_000];
    not_utf8: [b"name = \"a\"\n".as_slice(), &[0xff, 0xfe]].concat();
    not_toml: "<scenario name=\"handover\"/>\n";
    syntax_error: path("rate = 40 Mbit/s");
    no_flows: HEAD;
    no_paths: "name = \"a\"\n[hosts.a]\n[hosts.b]\n";
    unknown_key: path("rate = \"40 Mbit/s\"\ndely = \"15 ms\"");
    unknown_table: after_head("[experiment]\nrepeat = 3");
    missing_unit: path("rate = 40");
    wrong_kind_of_unit: path("rate = \"15 ms\"");
    negative_rate: path("rate = \"-40 Mbit/s\"");
    zero_rate: path("rate = \"0 Mbit/s\"");
    absurd_rate: path("rate = \"40000 Gbit/s\"");
    absurd_size: flow("pattern = \"bulk\"\nsize = \"99999999999 GB\"");
    absurd_duration: flow("pattern = \"iperf\"\nduration = \"9 h\"\nstreams = 100000");
    duplicate_key: path("rate = \"40 Mbit/s\"\nrate = \"50 Mbit/s\"");
    duplicate_path: after_head("[paths.wifi]\nbetween = [\"phone\", \"server\"]");
    duplicate_host: HEAD.replacen("[hosts.server]", "[hosts.phone]", 1);
    more_hosts_than_allowed: many_hosts();
    path_to_itself: between("\"phone\", \"phone\"");
    path_to_unknown_host: between("\"phone\", \"sever\"");
    path_with_spaces: after_head("[paths.\"my path\"]\nbetween = [\"phone\", \"server\"]");
    trace_that_is_missing: path("rate = { trace = \"lte.trace\" }");
    trace_that_is_invalid: path("rate = { trace = \"handover.toml\" }");
    endpoint_flags_that_exclude_each_other:
        host("mptcp = { endpoints = [{ path = \"wifi\", flags = [\"signal\", \"fullmesh\"] }] }");
    endpoint_flag_that_is_unknown:
        host("mptcp = { endpoints = [{ path = \"wifi\", flags = [\"backp\"] }] }");
    sysctl_outside_of_the_network: host("sysctl = { \"kernel.hostname\" = \"phone\" }");
    event_on_an_unknown_path: event("at = \"3 s\"\npath = \"wlan\"\nset = \"down\"");
    event_after_the_end: event("at = \"12 s\"\npath = \"wifi\"\nset = \"down\"");
    event_without_a_host: event("at = \"1 s\"\npath = \"wifi\"\nset = \"address\"");
    flow_to_itself: after_head("[[flows]]\nfrom = \"phone\"\nto = \"phone\"\npattern = \"iperf\"");
    flow_without_a_path:
        after_head("[hosts.laptop]\n[paths.cable]\nbetween = [\"laptop\", \"server\"]\n[[flows]]\n\
            from = \"phone\"\nto = \"laptop\"\npattern = \"iperf\"");
    flow_of_an_unknown_pattern: flow("pattern = \"iperf3\"");
    flow_with_a_mistyped_key: flow("pattern = \"interactive\"\nperoid = \"100 ms\"");
    flow_with_a_key_of_another_pattern: flow("pattern = \"video\"\nperiod = \"100 ms\"");
    flow_that_expects_a_mistyped_delay: after_head(&format!(
        "{FLOW}pattern = \"interactive\"\n[expect]\ndelay.p95 = \"<= 100 ms\""));
    unknown_transport: flow("pattern = \"iperf\"\n[run]\ntransports = [\"tcp\", \"sctp\"]");
    world_of_a_later_version: flow("pattern = \"iperf\"\n[run]\nworlds = [\"live\"]");
    expectation_of_an_unknown_metric: expectation("\"mptcp.goodptu\" = \">= 15 Mbit/s\"");
    expectation_without_a_unit: expectation("\"mptcp.goodput\" = \">= 15\"");
    several_mistakes_at_once:
        flow("pattern = \"bulk\"\nvia = \"cell\"\n[[timeline]]\nat = 3\npath = \"wifi\"\n\
            set = \"down\"\n[run]\nseed = -1\nrepeats = 3");
}

#[test]
fn a_broken_trace_is_shown_with_its_line() {
    let folder = TestDir::new();
    folder.write("lte.trace", "1\n5\nfive\n");
    folder.write("handover.toml", path("rate = { trace = \"lte.trace\" }"));
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
