//! `towpath monitor` from outside, in a network namespace with a connection of its own.

use std::fs;

use crate::program::{ProgramOutput, TestDir, missing, skip};

/// Script with a connection of two subflows over loopback, which runs `$1` in its middle.
pub(crate) const CONNECTION: &str = r#"
import socket, subprocess, sys
def end(kind):
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    if kind == "listener":
        sock.bind(("127.0.0.1", 0))
        sock.listen()
    return sock
listener, client = end("listener"), end("client")
client.connect(listener.getsockname())
server, _ = listener.accept()
for one, other in ((client, server), (server, client)):
    one.send(b"x")
    other.recv(1)
subprocess.run(["sh", "-ec", sys.argv[1]], check=True)
client.close()
server.close()
"#;

const SETUP_HOST: &str = "
ip link set lo up
ip addr add 10.0.0.2/32 dev lo
ip mptcp limits set subflows 4 add_addr_accepted 4
ip mptcp endpoint add 10.0.0.2 id 1 subflow backup
until_said() { until grep -q \"$2\" \"$1\"; do sleep 0.02; done; }
";

fn run_on_host(test: &str, folder: &TestDir, script: &str) -> Option<ProgramOutput> {
    let tools = ["ip", "unshare", "python3", "curl"];
    if let Some(reason) = tools.iter().find_map(|tool| missing(tool)) {
        skip(test, &reason);
        return None;
    }
    folder.write("connection.py", CONNECTION);
    let mut command = folder.program("unshare");
    let script = format!("{SETUP_HOST}{script}");
    command.args(["-Urnpf", "--mount-proc", "--kill-child", "sh", "-ec", &script]);
    command.env("TOWPATH", crate::program::binary());
    Some(folder.start(&mut command).wait())
}

fn read(folder: &TestDir, name: &str) -> String {
    fs::read_to_string(folder.work().join(name)).unwrap()
}

#[test]
fn classic_events_are_those_of_iproute2() {
    let (test, folder) = ("classic_events_are_those_of_iproute2", TestDir::new());
    let script = r"
        : >ours; : >theirs
        $TOWPATH monitor --classic >ours & ours=$!
        stdbuf -oL ip mptcp monitor >theirs & theirs=$!
        # Both hear when a listener comes and goes.
        until test -s ours && test -s theirs; do
            ip mptcp endpoint add 127.0.0.1 id 9 signal port 9000
            ip mptcp endpoint delete id 9
            sleep 0.05
        done
        python3 connection.py '
            until ip mptcp endpoint change id 1 nobackup; do sleep 0.02; done
            until grep -q SF_ESTABLISHED theirs; do sleep 0.02; done
            ip mptcp endpoint delete id 1
            until grep -q SF_CLOSED theirs; do sleep 0.02; done'
        for file in ours theirs; do
            until test $(grep -c ' CLOSED' $file) = 2; do sleep 0.02; done
        done
        kill $ours $theirs";
    let Some(output) = run_on_host(test, &folder, script) else { return };
    assert_eq!(output.code, Some(0), "{output}");
    // Before version 6.18, iproute2 has no keywords for the side and for listeners.
    let in_new_format = |line: &str| match line.strip_suffix(" flags=2") {
        Some(line) => format!("{line} server_side"),
        None => line.to_owned(),
    };
    let connection_events = |name: &str| -> Vec<String> {
        read(&folder, name)
            .lines()
            .filter(|line| line.contains("token="))
            .map(in_new_format)
            .collect()
    };
    let (towpath_events, iproute2_events) =
        (connection_events("ours"), connection_events("theirs"));
    assert!(towpath_events.len() >= 8, "{towpath_events:#?}");
    assert_eq!(towpath_events, iproute2_events);
}

#[test]
fn a_round_is_printed_as_text_json_and_metrics() {
    let test = "a_round_is_printed_as_text_json_and_metrics";
    let folder = TestDir::new();
    let script = r#"
        python3 connection.py '
            $TOWPATH monitor --prometheus 127.0.0.1:0 --interval 0.1 2>listens & figures=$!
            until grep -q metrics listens; do sleep 0.02; done
            address=$(sed -n "s/listening at //p" listens)
            until curl -s $address | tee page | grep -q "subflows{status=.backup.} 2"; do
                sleep 0.02
            done
            kill $figures
            $TOWPATH monitor --count 2 --interval 0.1 >lines
            $TOWPATH monitor --count 1 --json >json'"#;
    let Some(output) = run_on_host(test, &folder, script) else { return };
    assert_eq!(output.code, Some(0), "{output}");
    let lines = read(&folder, "lines");
    assert!(lines.contains("python3 ("), "{lines}");
    assert!(lines.contains("backup       lo 10.0.0.2:"), "{lines}");
    assert!(lines.contains(", 2 subflows\n"), "{lines}");
    let json = read(&folder, "json");
    assert!(json.contains("\"status\":\"backup\""), "{json}");
    let page = read(&folder, "page");
    assert!(page.contains("\ntowpath_mptcp_connections 2\n"), "{page}");
}

/// Name, labels and value of a metric.
type MetricSample = (String, Vec<(String, String)>, f64);

/// Parses a line of metrics.
fn parse_sample(line: &str) -> MetricSample {
    let is_name = |name: &str| {
        !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
    };
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("no value: {line}"));
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line}"));
            assert!(is_name(label) && !label.contains(':'), "{line}");
            let (mut text, mut letters) = (String::new(), value.char_indices());
            let end = loop {
                match letters.next() {
                    Some((index, '"')) => break index + 1,
                    Some((_, '\\')) => match letters.next() {
                        Some((_, 'n')) => text.push('\n'),
                        Some((_, letter @ ('"' | '\\'))) => text.push(letter),
                        other => panic!("{other:?} after a backslash: {line}"),
                    },
                    Some((_, letter)) => text.push(letter),
                    None => panic!("no end of a label: {line}"),
                }
            };
            labels.push((label.to_owned(), text));
            let after_value = &value[end..];
            rest = after_value.strip_prefix(',').unwrap_or(after_value);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').and_then(|value| value.parse().ok());
    (name.to_owned(), labels, value.unwrap_or_else(|| panic!("no value: {line}")))
}

/// Checks a page by the rules of the text format, version 0.0.4. Returns its samples.
fn parse_page(page: &str) -> Vec<MetricSample> {
    assert!(page.ends_with('\n'), "the last line has an end too");
    let mut families: Vec<(String, String)> = Vec::new();
    let mut help_names = Vec::new();
    let mut samples: Vec<MetricSample> = Vec::new();
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            help_names.push(help.split_once(' ').unwrap().0.to_owned());
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(families.iter().all(|(family, _)| family != name), "a family twice: {line}");
            assert!(["gauge", "counter"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            families.push((name.to_owned(), kind.to_owned()));
        } else {
            let (name, labels, value) = parse_sample(line);
            assert_eq!(families.last().map(|(family, _)| family), Some(&name), "{line}");
            assert!(
                samples.iter().all(|sample| (&sample.0, &sample.1) != (&name, &labels)),
                "twice: {line}"
            );
            samples.push((name, labels, value));
        }
    }
    assert_eq!(help_names, families.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>());
    samples
}

/// Interface names may contain characters that a label value must escape.
#[test]
fn the_metrics_are_in_prometheus_format() {
    let test = "the_metrics_are_in_prometheus_format";
    let folder = TestDir::new();
    let script = r#"
        link='w"1\'
        ip addr delete 10.0.0.2/32 dev lo
        ip link add "$link" type veth peer name far
        ip addr add 10.0.0.2/32 dev "$link"
        ip link set "$link" up; ip link set far up
        python3 connection.py '
            $TOWPATH monitor --prometheus 127.0.0.1:0 --interval 0.1 2>listens & figures=$!
            until grep -q metrics listens; do sleep 0.02; done
            address=$(sed -n "s/listening at //p" listens)
            # Both further subflows are there.
            until curl -si $address >page && grep -q "subflows{status=.backup.} 2" page; do
                sleep 0.02
            done
            kill $figures'"#;
    let Some(output) = run_on_host(test, &folder, script) else { return };
    assert_eq!(output.code, Some(0), "{output}");
    let response = read(&folder, "page");
    let (head, page) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    let samples = parse_page(page);
    let samples_on_link = |name: &str| {
        let name = format!("towpath_mptcp_{name}");
        let is_link =
            |label: &(String, String)| *label == ("interface".to_owned(), r#"w"1\"#.to_owned());
        samples.iter().filter(|sample| sample.0 == name && sample.1.iter().any(is_link)).count()
    };
    // Both ends of the connection are on this host; each has its second subflow between the two.
    for name in ["subflow_srtt_seconds", "subflow_received_bytes_total", "subflow_stale"] {
        assert!(samples_on_link(name) >= 1, "{name}: {page}");
    }
    let count = |name: &str| {
        samples.iter().filter(|sample| sample.0 == name).map(|sample| sample.2).sum::<f64>()
    };
    assert!((count("towpath_mptcp_connections") - 2.0).abs() < 0.1, "{page}");
    assert!((count("towpath_mptcp_subflows") - 4.0).abs() < 0.1, "{page}");
}
