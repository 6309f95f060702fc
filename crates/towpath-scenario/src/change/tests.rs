use super::*;

const TEXT: &str = r#"name = "t" # a name
[hosts.left]
[hosts.right]
receive-buffer = "100 KB"
[hosts.right.mptcp]
subflows = 2
[paths.wifi]
between = ["left", "right"]
rate = "10 Mbit/s" # of the radio
delay = { up = "5 ms", down = "6 ms" }
[paths.cellular]
between = ["left", "right"]
rate = "5 Mbit/s"
jitter = { sd = "1 ms" }
[[timeline]]
at = "1 s"
path = "wifi"
set = "down"
[[flows]]
from = "left"
to = "right"
pattern = "iperf"
duration = "10 s"
[[flows]]
from = "left"
to = "right"
pattern = "iperf"
"#;

/// Lines of the text that are removed, and new ones.
fn diff_after_set(key: &str, value: &str) -> String {
    let after = set(TEXT, key, value).unwrap();
    let removed = TEXT.lines().filter(|line| !after.lines().any(|candidate| candidate == *line));
    let is_new =
        |line: &&str| !line.is_empty() && !TEXT.lines().any(|candidate| candidate == *line);
    let added = after.lines().filter(is_new);
    let removed = removed.map(|line| format!("-{line}"));
    removed.chain(added.map(|line| format!("+{line}"))).collect::<Vec<_>>().join("\n")
}

fn set_error(key: &str) -> String {
    let error = set(TEXT, key, "1").unwrap_err();
    format!("{error}; {}", error.hint)
}

#[test]
fn a_former_key_is_changed_under_the_name_that_the_file_has() {
    let text = "[paths.p]\nsegments = \"split\"\n";
    for key in ["paths.p.segments", "paths.p.segmentation"] {
        assert_eq!(set(text, key, "auto").unwrap(), "[paths.p]\nsegments = \"auto\"\n");
    }
    let without = set("[paths.p]\n", "paths.p.segments", "auto").unwrap();
    assert_eq!(without, "[paths.p]\nsegmentation = \"auto\"\n");
}

#[test]
fn a_value_is_changed_in_place() {
    assert_eq!(
        diff_after_set("paths.wifi.rate", "50 Mbit/s"),
        "-rate = \"10 Mbit/s\" # of the radio\n+rate = \"50 Mbit/s\" # of the radio"
    );
    assert_eq!(diff_after_set("path.wifi.rate", "1kbit/s").lines().count(), 2);
    assert_eq!(diff_after_set("name", "u"), "-name = \"t\" # a name\n+name = \"u\" # a name");
    assert_eq!(diff_after_set("hosts.right.mptcp.subflows", "4"), "-subflows = 2\n+subflows = 4");
}

#[test]
fn a_missing_key_is_added_to_its_table() {
    assert_eq!(diff_after_set("paths.wifi.loss", "1%"), "+loss = \"1%\"");
    assert_eq!(diff_after_set("hosts.left.mptcp.subflows", "1"), "+mptcp.subflows = 1");
    assert_eq!(diff_after_set("run.seed", "7"), "+[run]\n+seed = 7");
    assert_eq!(diff_after_set("description", "d"), "+description = \"d\"");
    assert_eq!(
        diff_after_set("hosts.left.sysctl.net.mptcp.enabled", "1"),
        "+sysctl.\"net.mptcp.enabled\" = 1"
    );
    assert_eq!(
        diff_after_set("expect.mptcp.goodput", ">= 1 Mbit/s"),
        "+[expect]\n+\"mptcp.goodput\" = \">= 1 Mbit/s\""
    );
    let text = set(&set(TEXT, "run.seed", "7").unwrap(), "run.repeat", "2").unwrap();
    assert!(text.ends_with("[run]\nrepeat = 2\nseed = 7\n"), "{text}");
}

#[test]
fn one_direction_of_a_value_can_be_set() {
    let expected = "+delay = { up = \"1ms\", down = \"6 ms\" }";
    assert!(diff_after_set("paths.wifi.delay.up", "1ms").ends_with(expected));
    let expected_table = "+rate = { down = \"1 Mbit/s\", up = \"5 Mbit/s\" }";
    assert!(diff_after_set("paths.cellular.rate.down", "1 Mbit/s").ends_with(expected_table));
    assert!(set_error("paths.wifi.loss.up").contains("no value of its own for each direction"));
}

#[test]
fn a_star_and_an_array_without_number_mean_all_of_them() {
    assert!(
        diff_after_set("flows.duration", "2s").contains("-duration = \"10 s\"\n+duration = \"2s\"")
    );
    let changed_text = set(TEXT, "flows.duration", "2s").unwrap();
    assert_eq!(changed_text.matches("duration = \"2s\"").count(), 2);
    assert_eq!(set(TEXT, "flows.*.duration", "2s").unwrap(), changed_text);
    assert_eq!(set(TEXT, "flow.1.duration", "2s").unwrap().matches("\"2s\"").count(), 1);
    assert_eq!(set(TEXT, "paths.*.rate", "1 Mbit/s").unwrap().matches("\"1 Mbit/s\"").count(), 2);
}

#[test]
fn values_are_converted_to_the_type_of_the_key() {
    assert!(
        diff_after_set("run.transports", "tcp,mptcp")
            .ends_with("transports = [\"tcp\", \"mptcp\"]")
    );
    assert!(diff_after_set("run.transports", "[\"tcp\"]").ends_with("transports = [\"tcp\"]"));
    assert!(diff_after_set("hosts.left.checksum", "true").ends_with("checksum = true"));
    assert!(diff_after_set("name", "5").contains("+name = \"5\""));
    let expected = "receive-buffer = [\"1 KB\", \"2 KB\", \"3 KB\"]";
    assert!(diff_after_set("hosts.left.receive-buffer", "1 KB, 2 KB,3 KB").ends_with(expected));
    assert!(
        diff_after_set("hosts.left.receive_buffer", "1 KB").ends_with("receive-buffer = \"1 KB\"")
    );
}

#[test]
fn an_unknown_key_gets_a_suggestion() {
    for (key, hint) in [
        ("paths.wifi.dely", "did you mean `paths.wifi.delay`?"),
        ("paths.wifi.bandwidth", "did you mean `paths.wifi.rate`?"),
        ("paths.wfii.delay", "did you mean `paths.wifi`?"),
        ("pathes.wifi.delay", "did you mean `paths.wifi.delay` or `paths.cellular.delay`?"),
        ("delay", "did you mean `paths.wifi.delay`, `paths.cellular.delay` or `timeline.0.delay`?"),
        ("seed", "did you mean `run.seed`?"),
        ("duration", "did you mean `flows.0.duration` or `flows.1.duration`?"),
        ("paths.delay", "write `paths.wifi.delay`, `paths.cellular.delay` or `paths.*.delay`"),
        ("flows.7.duration", "they are `flows.0` to `flows.1`"),
        ("timeline.1.at", "the only one is `timeline.0`"),
        ("run.seed.x", "set it as a whole: `--set run.seed=…`"),
        ("bottlenecks.x.rate", "it has no bottlenecks at all"),
        ("colour", "`towpath schema scenario-keys` lists all keys"),
        ("a b", "write it with points between the names"),
    ] {
        let error = set_error(key);
        assert!(error.contains(hint), "{key}: {error}");
    }
    assert!(set_error("hosts.right.mptcp").contains("cannot be set as a whole"));
    assert!(set_error("paths.wifi").contains("is a table, not a value"));
}

#[test]
fn a_changed_scenario_is_still_valid() {
    use crate::{Scenario, no_files};

    let mut text = TEXT.to_owned();
    for (key, value) in [
        ("paths.wifi.delay.up", "1ms"),
        ("paths.*.loss", "0.5%"),
        ("run.scheduler", "lowest-rtt"),
        ("flows.duration", "3 s"),
        ("paths.cellular.jitter.sd", "2 ms"),
    ] {
        text = set(&text, key, value).unwrap();
    }
    let scenario = Scenario::parse("t.toml", &text, &no_files);
    let scenario = scenario.unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(scenario.flows[1].pattern.duration(), std::time::Duration::from_secs(3));
    assert_eq!(scenario.source, text);
}

#[test]
fn a_setting_has_a_key_and_a_value() {
    assert_eq!(split_assignment("a.b = c = d"), Ok(("a.b", "c = d")));
    for invalid in ["a", "a=", "=b", ""] {
        assert!(
            split_assignment(invalid).unwrap_err().hint.contains("--set paths.wifi.delay=30ms")
        );
    }
}
