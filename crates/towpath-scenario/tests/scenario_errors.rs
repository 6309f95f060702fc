//! Error messages for wrong scenarios.

use std::io;

use towpath_scenario::{Scenario, no_files};

/// A valid beginning: two hosts and two paths.
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

fn load_file(name: &str) -> io::Result<String> {
    match name {
        "broken.trace" => Ok("1\n5\nfive\n".to_owned()),
        _ => no_files(name),
    }
}

fn errors(bytes: &[u8]) -> String {
    let text = match Scenario::parse_bytes("handover.toml", bytes, &load_file) {
        Ok(scenario) => panic!("this is accepted: {scenario:#?}"),
        Err(errors) => errors.to_string(),
    };
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "too wide: {line}");
    }
    text
}

/// Defines one snapshot test of the error messages for each text.
macro_rules! error_snapshots {
    ($($name:ident: $text:expr;)*) => {
        $(#[test]
        fn $name() {
            insta::assert_snapshot!(errors(&$text));
        })*
    };
}

fn to_bytes(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn after_head(text: &str) -> Vec<u8> {
    format!("{HEAD}{text}\n").into_bytes()
}

fn path(keys: &str) -> Vec<u8> {
    let text = HEAD.replacen("rate = \"40 Mbit/s\"", keys, 1);
    text.into_bytes()
}

fn event(keys: &str) -> Vec<u8> {
    after_head(&format!("[[timeline]]\n{keys}"))
}

fn flow(keys: &str) -> Vec<u8> {
    after_head(&format!("[[flows]]\nfrom = \"phone\"\nto = \"server\"\n{keys}"))
}

fn host(keys: &str) -> Vec<u8> {
    HEAD.replacen("[hosts.phone]", &format!("[hosts.phone]\n{keys}"), 1).into_bytes()
}

fn expectation(line: &str) -> Vec<u8> {
    after_head(&format!("[expect]\n{line}"))
}

fn unknown_keys(count: u32) -> Vec<u8> {
    let lines: Vec<String> = (0..count).map(|i| format!("k{i} = 1")).collect();
    lines.join("\n").into_bytes()
}

error_snapshots! {
    empty_file: to_bytes("");
    only_comments: to_bytes("# to be written\n\n");
    ten_megabytes_of_garbage: vec![b'{'; 10_000_000];
    a_megabyte_of_garbage: vec![b'{'; 1_000_000];
    a_megabyte_of_unknown_keys:
        unknown_keys(60_000);
    not_utf8: [to_bytes("name = \"a\"\n"), vec![0xff, 0xfe]].concat();
    not_toml: to_bytes("<scenario name=\"handover\"/>\n");
    quantity_without_quotes: path("rate = 40 Mbit/s");
    value_missing: path("rate =");
    unclosed_text: path("rate = \"40 Mbit/s");
    duplicate_key: path("rate = \"40 Mbit/s\"\nrate = \"50 Mbit/s\"");
    nothing_but_a_name: to_bytes("name = \"handover\"\n");
    no_name: to_bytes(HEAD.trim_start_matches("name = \"handover\"\n"));
    capital_name: to_bytes(&HEAD.replace("\"handover\"", "\"Wi-Fi handover\""));
    one_host: to_bytes("name = \"lonely\"\n[hosts.phone]\n[paths]\n");
    host_without_path: after_head("[hosts.laptop]");
    unknown_top_level_key: to_bytes(&format!("hostnames = [\"a\"]\n{HEAD}"));
    unknown_key_near: path("rate = \"40 Mbit/s\"\ndely = \"15 ms\"");
    unknown_key_of_another_tool: path("bandwidth = \"40 Mbit/s\"");
    unknown_key_far: path("colour = \"blue\"");
    rate_without_unit: path("rate = 40");
    rate_in_words: path("rate = \"fast\"");
    rate_in_bytes: path("rate = \"5 MB/s\"");
    rate_in_mbps: path("rate = \"40Mbps\"");
    rate_is_a_time: path("rate = \"15 ms\"");
    rate_negative: path("rate = \"-40 Mbit/s\"");
    rate_zero: path("rate = \"0 Mbit/s\"");
    rate_absurd: path("rate = \"40000 Gbit/s\"");
    rate_with_comma: path("rate = \"2,5 Mbit/s\"");
    rate_up_only: path("rate = { up = \"5 Mbit/s\" }");
    rate_twice: path("rate = { up = \"5 Mbit/s\", trace = \"lte.trace\" }");
    trace_missing: path("rate = { trace = \"lte.trace\" }");
    trace_broken: path("rate = { trace = \"broken.trace\" }");
    delay_absurd: path("delay = \"2 h\"");
    delay_boolean: path("delay = true");
    delay_up_only: path("delay = { up = \"5 ms\" }");
    jitter_as_text: path("jitter = \"2 ms\"");
    loss_above_all: path("loss = \"120 %\"");
    loss_as_fraction: path("loss = 0.01");
    loss_of_two_kinds:
        path("loss = { burst = { start = \"1 %\", length = \"2 packets\" }, \
            gilbert-elliott = { p = \"1 %\", r = \"9 %\" } }");
    queue_without_rate: path("queue = \"80 ms\"");
    queue_without_unit: path("rate = \"1 Mbit/s\"\nqueue = 50");
    queue_is_a_rate: path("rate = \"1 Mbit/s\"\nqueue = \"50 Mbit/s\"");
    queue_unknown: path("rate = \"1 Mbit/s\"\nqueue = { red = {} }");
    tbf_without_limit: path("rate = \"1 Mbit/s\"\nqueue = { tbf = { burst = \"15 KB\" } }");
    preset_unknown: path("rate = \"1 Mbit/s\"\npreset = \"mininett\"");
    preset_without_rate: path("preset = \"tbf\"");
    preset_with_queue_in_bytes: path("rate = \"1 Mbit/s\"\npreset = \"netem\"\nqueue = \"100 KB\"");
    preset_with_queue_kind: path("rate = \"1 Mbit/s\"\npreset = \"tbf\"\nqueue = { pie = {} }");
    link_mtu_too_large: path("link-mtu = 1500");
    mtu_too_small: path("mtu = 512");
    path_to_itself: to_bytes(&HEAD.replacen("\"phone\", \"server\"", "\"phone\", \"phone\"", 1));
    path_with_three_ends:
        to_bytes(&HEAD.replacen("\"phone\", \"server\"", "\"phone\", \"server\", \"phone\"", 1));
    path_to_unknown_host: to_bytes(&HEAD.replacen("\"phone\", \"server\"", "\"phone\", \"sever\"", 1));
    path_name_too_long: after_head("[paths.satellite-link]\nbetween = [\"phone\", \"server\"]");
    path_is_a_list:
        to_bytes("name = \"a\"\n[hosts.a]\n[hosts.b]\n[[paths]]\nbetween = [\"a\", \"b\"]\n");
    through_unknown_bottleneck: path("through = [\"uplink\"]");
    unused_bottleneck: after_head("[bottlenecks.uplink]\nrate = \"10 Mbit/s\"");
    buffer_of_two_sizes: host("receive-buffer = [\"4 KB\", \"1 MB\"]");
    sysctl_outside_net: host("sysctl = { \"kernel.hostname\" = \"phone\" }");
    endpoint_signal_and_fullmesh:
        host("mptcp = { endpoints = [{ path = \"wifi\", flags = [\"signal\", \"fullmesh\"] }] }");
    endpoint_unknown_flag:
        host("mptcp = { endpoints = [{ path = \"wifi\", flags = [\"backp\"] }] }");
    stack_unknown: host("stack = \"towpth\"");
    scheduler_that_is_not_a_name: host("scheduler = \"min rtt\"");
    profile_unknown: after_head("[run]\nprofile = \"linux-5.x\"");
    profile_switch_unknown: after_head("[run]\nprofile-switches = { tso = true }");
    profile_switch_of_wrong_type: host("profile-switches = { timer-granularity = true }");
    penalisation_as_truth: host("penalisation = true");
    middlebox_without_action: after_head("[[middleboxes]]\npath = \"wifi\"");
    middlebox_unknown_action:
        after_head("[[middleboxes]]\npath = \"wifi\"\naction = \"strip-mpcp\"");
    middlebox_nat_one_way:
        after_head("[[middleboxes]]\npath = \"wifi\"\naction = \"nat\"\ndirection = \"up\"");
    too_many_subflows: host("mptcp = { subflows = 9 }");
    event_on_unknown_path: event("at = \"3 s\"\npath = \"wlan\"\nset = \"down\"");
    event_without_time: event("path = \"wifi\"\nset = \"down\"");
    event_without_target: event("at = \"3 s\"\nset = \"down\"");
    event_unknown_set: event("at = \"3 s\"\npath = \"wifi\"\nset = \"off\"");
    event_interface_without_host:
        event("at = \"3 s\"\npath = \"wifi\"\nset = \"down\"\nmode = \"interface\"");
    event_key_without_meaning:
        event("at = \"3 s\"\npath = \"wifi\"\nset = \"up\"\nmode = \"carrier\"");
    event_rate_missing: event("at = \"3 s\"\npath = \"wifi\"\nset = \"rate\"");
    event_after_the_end:
        flow("pattern = \"iperf\"\n[[timeline]]\nat = \"12 s\"\npath = \"wifi\"\n\
         set = \"down\"");
    fade_without_target: event("at = \"3 s\"\npath = \"wifi\"\nset = \"fade\"\nover = \"2 s\"");
    fades_that_overlap:
        event("at = \"3 s\"\npath = \"wifi\"\nset = \"fade\"\nover = \"2 s\"\nrate = \"1 Mbit/s\"\n\
         [[timeline]]\nat = \"4 s\"\npath = \"wifi\"\nset = \"rate\"\nrate = \"2 Mbit/s\"");
    flow_to_itself: after_head("[[flows]]\nfrom = \"phone\"\nto = \"phone\"\npattern = \"iperf\"");
    flow_without_path:
        after_head("[hosts.laptop]\n[paths.cable]\nbetween = [\"laptop\", \"server\"]\n[[flows]]\n\
         from = \"phone\"\nto = \"laptop\"\npattern = \"iperf\"");
    flow_without_pattern: flow("duration = \"10 s\"");
    flow_without_end: flow("pattern = \"bulk\"");
    flow_of_a_load_alone: flow("pattern = \"load\"");
    load_alongside_a_transfer: flow("pattern = \"bulk\"\nsize = \"1 MB\"\nload = \"up\"");
    preset_of_another_pattern: flow("pattern = \"interactive\"\npreset = \"voice-assistant\"");
    request_below_its_header: flow("pattern = \"ping\"\nrequest = \"12 B\"\nreply = \"2 GB\"");
    period_of_nothing: flow("pattern = \"reqres\"\nperiod = \"0 s\"");
    period_too_short: flow("pattern = \"reqres\"\nperiod = \"1 us\"\nduration = \"60 s\"");
    trace_without_messages: flow("pattern = \"trace\"");
    trace_of_nothing: flow("pattern = \"trace\"\nmessages = []");
    trace_with_a_wrong_line: flow(
        "pattern = \"trace\"\nmessages = [\"0 s up 2000 B 750 B\", \"1 s left 5 B\"]");
    video_without_room: flow("pattern = \"video\"\nbuffer = \"1 s\"");
    video_that_waits_for_more_than_fits: flow(
        "pattern = \"video\"\nbuffer = \"4 s\"\nstartup = \"6 s\"");
    objects_of_a_transfer: flow("pattern = \"iperf\"\nobjects = 3\nperiod = \"1 s\"");
    flow_of_an_unknown_pattern: flow("pattern = \"iperf3\"");
    flow_v6_on_small_mtu: to_bytes(&format!("{HEAD}mtu = 1000\n\
        [[flows]]\nfrom = \"phone\"\nto = \"server\"\npattern = \"iperf\"\n\
        via = \"cellular\"\nfamily = \"v6\"\n"));
    flow_in_both_directions: flow("pattern = \"bulk\"\nsize = \"1 MB\"\ndirection = \"both\"");
    flow_too_long: flow("pattern = \"iperf\"\nduration = \"25 h\"");
    streams_of_bulk: flow("pattern = \"bulk\"\nsize = \"1 MB\"\nstreams = 4");
    run_unknown_transport: after_head("[run]\ntransports = [\"tcp\", \"sctp\"]");
    run_sample_too_short: after_head("[run]\nsample = \"1 ms\"\nrepeat = 0");
    expect_unknown_metric: expectation("\"mptcp.goodptu\" = \">= 15 Mbit/s\"");
    expect_without_operator: expectation("\"mptcp.goodput\" = \"15 Mbit/s\"");
    expect_without_unit: expectation("\"mptcp.goodput\" = \">= 15\"");
    expect_wrong_unit: expectation("\"mptcp.goodput\" = \">= 15 ms\"");
    expect_never_checked: expectation("\"quic.goodput\" = \">= 15 Mbit/s\"");
    expect_share_of_unknown_path: expectation("\"mptcp.share.wlan\" = \">= 15 %\"");
    many_mistakes: after_head("
[paths.lte]
betwen = [\"phone\", \"server\"]
rate = 5
delay = \"1 parsec\"
loss = \"0.1\"
[[flows]]
from = \"phone\"
to = \"servr\"
pattern = \"bulk\"
via = \"cell\"
duration = \"ten seconds\"
[[timeline]]
at = 3
path = \"wifi\"
set = \"down\"
[run]
seed = -1
repeats = 3
worlds = []
[expect]
\"goodput\" = \"lots\"
");
    long_line:
        after_head(&format!("[run]\n\
         transports = [\"tcp\", \"sctp\"{} ]", " ".repeat(300)));
    long_text: flow(&format!("pattern = \"{}\"", "x".repeat(500)));
}
