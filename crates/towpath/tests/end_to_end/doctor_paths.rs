//! `towpath doctor`, `check` and `measure` on hosts with several paths, built in new namespaces.

use serde_json::Value;

use crate::program::{ProgramOutput, TestDir, acquire_emulator_for_timing, missing, skip};

/// Builds a client with the interfaces `c1` and `c2`, and a server behind them that runs
/// `towpath server`. `$ON` runs a command there.
///
/// The server's address 10.9.0.1 is reached over each path; the first route is that of `c1`.
const NETWORK: &str = "
ip link set lo up
unshare -n sleep 120 & server=$!
until [ \"$(readlink /proc/$server/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ]; do sleep 0.01; done
ON=\"nsenter -t $server -n\"
trap 'kill $server $listener' EXIT
$ON ip link set lo up
$ON ip addr add 10.9.0.1/32 dev lo
for path in 1 2; do
    ip link add c$path type veth peer name s$path netns $server
    ip link set c$path up
    $ON ip link set s$path up
    until ip link show c$path | grep -q 'state UP'; do sleep 0.01; done
done
$ON $TOWPATH server --public-diagnostics >&2 & listener=$!
";

/// Adds an IPv4 network to each path, and routes to the server.
const TWO_NETWORKS: &str = "
for path in 1 2; do
    ip addr add 10.0.$path.2/24 dev c$path
    $ON ip addr add 10.0.$path.1/24 dev s$path
    ip route add 10.9.0.1/32 via 10.0.$path.1 dev c$path metric ${path}00
    ip route add default via 10.0.$path.1 dev c$path table 10$path
    ip rule add from 10.0.$path.2 table 10$path
done
";

/// Waits until the server listens.
const LISTENING: &str = "until $ON ss -ltn | grep -q ':5210'; do sleep 0.01; done\n";

/// Runs a script on the client; `None` if a tool is missing.
fn run_on_client(test: &str, network: &str, script: &str) -> Option<ProgramOutput> {
    let tools = ["ip", "unshare", "nsenter", "ss"];
    if let Some(reason) = tools.into_iter().find_map(missing) {
        skip(test, &reason);
        return None;
    }
    let folder = TestDir::new();
    let mut command = folder.program("unshare");
    command.args(["-Urn", "sh", "-c", &format!("{NETWORK}{network}{LISTENING}{script}")]);
    command.env("TOWPATH", crate::program::binary()).env("XDG_STATE_HOME", folder.temporary());
    Some(folder.start(&mut command).wait())
}

/// Returns the report in the first line of a program's output.
fn report(output: &ProgramOutput) -> Value {
    let line = output.out.lines().find(|line| line.starts_with('{'));
    serde_json::from_str(line.unwrap_or_else(|| panic!("{output}"))).unwrap()
}

/// The server gets the packets of the first path, and has no route back.
const FIRST_PATH_SILENT: &str = "$ON ip rule add to 10.0.1.2 blackhole pref 1\n";

#[test]
fn a_silent_first_path_is_not_a_server_that_is_down() {
    let test = "a_silent_first_path_is_not_a_server_that_is_down";
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let network = format!("{TWO_NETWORKS}{FIRST_PATH_SILENT}");
    let script = "
        $TOWPATH doctor --connect 10.9.0.1:5210 --json
        echo $?
        $TOWPATH measure 10.9.0.1 -t 1 -q >&2
        echo $?
        $TOWPATH check 10.9.0.1
        echo $?
        $(ip route add 10.9.0.1 via 10.0.2.1 dev c2 src 10.0.2.2)
        $TOWPATH doctor --connect 10.9.0.1:5210 --json | grep -c '\"first-path-unusable\",\"confidence'";
    let Some(output) = run_on_client(test, &network, script) else { return };
    let report = report(&output);
    let finding = &report["findings"][0];
    assert_eq!(finding["cause"], "first-path-unusable", "{output}");
    let sentence = finding["sentence"].as_str().unwrap();
    assert_eq!(
        sentence,
        "10.9.0.1:5210 answers from 10.0.2.2 on c2, but new connections start on the first route \
         (c1) and time out",
        "{output}"
    );
    let command = "ip route add 10.9.0.1 via 10.0.2.1 dev c2 src 10.0.2.2";
    assert_eq!(finding["fix"][0], command, "{output}");
    // `measure` and `check` come to the same conclusion.
    let errors = output.err.split_whitespace().collect::<Vec<_>>().join(" ");
    for target in ["10.9.0.1:5210", "10.9.0.1"] {
        let answer = format!("{target} answers from 10.0.2.2 on c2, but new connections start");
        assert!(errors.contains(&answer), "{output}");
    }
    assert!(output.out.contains("no answer over c1, but over c2"), "{output}");
    assert!(!output.err.contains("running there"), "{output}");
    let numbers: Vec<_> = output.out.lines().filter(|line| line.parse::<u8>().is_ok()).collect();
    assert_eq!(numbers, ["1", "2", "1", "0"], "{output}");
}

#[test]
fn a_second_path_of_the_other_family_is_one_path_with_an_explanation() {
    let test = "a_second_path_of_the_other_family_is_one_path_with_an_explanation";
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let network = "
        ip addr add 10.0.1.2/24 dev c1
        $ON ip addr add 10.0.1.1/24 dev s1
        ip addr add fd00:2::2/64 dev c2 nodad
        $ON ip addr add fd00:2::1/64 dev s2 nodad
        ip mptcp limits set subflows 8 add_addr_accepted 8
        ip mptcp endpoint add fd00:2::2 dev c2 subflow
        # Two subflows over the first path.
        ip route add 10.9.0.1 via 10.0.1.1
        $ON ip mptcp limits set subflows 8
        $ON ip mptcp endpoint add 10.9.0.1 signal
    ";
    let script = "
        $TOWPATH doctor --connect 10.0.1.1:5210 --json
        $TOWPATH doctor --connect 10.0.1.1:5210
        # The kernel uses the path under the conditions of the explanation.
        $ON ip mptcp endpoint add fd00:2::1 dev s2 signal
        $TOWPATH doctor --connect '[::ffff:10.0.1.1]:5210' --json | grep -c '\"local\":\"fd00:2::2\"'";
    let Some(output) = run_on_client(test, network, script) else { return };
    let report = report(&output);
    assert_eq!(report["verdict"], "one-path", "{output}");
    assert_eq!(report["findings"], serde_json::json!([]), "{output}");
    assert_eq!(report["unused"][0]["interface"], "c2", "{output}");
    assert!(output.out.contains("\n1 path: Multipath TCP works, over c1 alone\n"), "{output}");
    let sentence = "unused: c2 (fd00:2::2): it has only IPv6 addresses, and the connection is IPv4";
    assert!(output.out.contains(sentence), "{output}");
    assert!(output.out.ends_with("\n1\n"), "{output}");
}

#[test]
fn the_same_address_on_two_interfaces_is_named_and_never_set_up() {
    let test = "the_same_address_on_two_interfaces_is_named_and_never_set_up";
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let network = "
        for path in 1 2; do
            ip addr add 192.168.8.100/24 dev c$path
            $ON ip addr add 192.168.8.1/24 dev s$path
        done
    ";
    let script = "
        show() { ip mptcp endpoint; ip mptcp limits; ip rule; ip -4 route show table all; }
        before=$(show)
        $TOWPATH doctor --json
        $TOWPATH doctor --connect 192.168.8.1:5210 --json | grep -c '\"duplicate-address\",\"confidence'
        $TOWPATH setup --role client --apply
        echo $?
        test \"$(show)\" = \"$before\"
        echo $?
        $TOWPATH setup --role client --dev c1 >/dev/null
        echo $?";
    let Some(output) = run_on_client(test, network, script) else { return };
    let report = report(&output);
    assert_eq!(report["findings"][0]["cause"], "duplicate-address", "{output}");
    let sentence = report["findings"][0]["sentence"].as_str().unwrap();
    assert!(sentence.starts_with("c1 and c2 have the same address 192.168.8.100"), "{output}");
    let error = "error: c1 and c2 have the same address 192.168.8.100, expected one for each";
    assert!(output.err.contains(error), "{output}");
    let numbers: Vec<_> = output.out.lines().filter(|line| line.parse::<u8>().is_ok()).collect();
    assert_eq!(numbers, ["1", "2", "0", "0"], "{output}");
}

#[test]
fn a_subflow_of_a_removed_address_is_not_a_dead_path() {
    let test = "a_subflow_of_a_removed_address_is_not_a_dead_path";
    let Some(_permit) = acquire_emulator_for_timing() else { return };
    let network = format!(
        "{TWO_NETWORKS}
        ip mptcp limits set subflows 8
        $ON ip mptcp limits set subflows 8
        ip mptcp endpoint add 10.0.2.2 id 2 dev c2 subflow
        "
    );
    // The address is replaced while data and the FIN of its subflow are unacknowledged.
    let script = "
        $TOWPATH measure 10.9.0.1 -T mptcp -t 60 -b 5M -q >/dev/null 2>&1 & program=$!
        timers() { ss -tnoH state \"$1\" src 10.0.2.2; }
        wait_for_timer() { until timers $1 | grep -q \"timer:(on,[^,]*,$2)\"; do sleep 0.01; done; }
        until timers established | grep -q 10.9.0.1; do sleep 0.01; done
        $ON ip rule add to 10.0.2.2 blackhole pref 1
        wait_for_timer established '[1-9]'
        ip addr del 10.0.2.2/24 dev c2
        ip mptcp endpoint delete id 2
        ip addr add 10.0.2.7/24 dev c2
        ip rule add from 10.0.2.7 table 102
        ip route add default via 10.0.2.1 dev c2 table 102
        ip mptcp endpoint add 10.0.2.7 dev c2 subflow
        wait_for_timer fin-wait-1 '[4-9]'
        $TOWPATH doctor --connect 10.9.0.1:5210 --json
        kill $program";
    let Some(output) = run_on_client(test, &network, script) else { return };
    let report = report(&output);
    assert_eq!(report["findings"], serde_json::json!([]), "{output}");
    assert_eq!(report["verdict"], "healthy", "{output}");
}
