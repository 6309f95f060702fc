//! Everything works without root. For each obstacle, the output has a reason and a hint.

use std::fs;

use serde_json::Value;

use crate::monitor::CONNECTION;
use crate::program::{ProgramOutput, TestDir, acquire_emulator, is_root, missing, skip};

/// User and group IDs without any files.
const UNPRIVILEGED_USER: [&str; 3] = ["--reuid=65534", "--regid=65534", "--clear-groups"];

const HANDOVER: &str = r#"name = "handover"
[hosts.phone]
[hosts.server]
[paths.wifi]
between = ["phone", "server"]
rate = "20 Mbit/s"
delay = "5 ms"
[paths.cellular]
between = ["phone", "server"]
rate = "20 Mbit/s"
delay = "10 ms"
[[timeline]]
at = "500 ms"
path = "wifi"
set = "down"
[[flows]]
from = "phone"
to = "server"
pattern = "bulk"
duration = "2 s"
"#;

/// Runs a script as an ordinary user, or prints why the test is skipped.
///
/// `setup` runs first as root of a mount namespace, then `script`, in which `$TOWPATH` is the
/// command.
fn run_unprivileged(
    folder: &TestDir,
    test: &str,
    setup: &str,
    script: &str,
) -> Option<ProgramOutput> {
    run_unprivileged_in(&["--mount"], folder, test, setup, script)
}

/// As [`run_unprivileged`], in new namespaces of these kinds.
fn run_unprivileged_in(
    kinds: &[&str],
    folder: &TestDir,
    test: &str,
    setup: &str,
    script: &str,
) -> Option<ProgramOutput> {
    if !is_root() {
        skip(test, "only root can become another user");
        return None;
    }
    if let Some(reason) = missing("setpriv").or_else(|| missing("unshare")) {
        skip(test, &reason);
        return None;
    }
    folder.write("handover.toml", HANDOVER);
    let mut command = folder.program("unshare");
    command.args(kinds).args(["sh", "-ec"]);
    command
        .arg(format!("{setup}\nexec setpriv {} sh -c \"$0\"", UNPRIVILEGED_USER.join(" ")))
        .arg(script);
    command.env("TOWPATH", folder.readable_binary());
    Some(folder.start(&mut command).wait())
}

fn back_end(folder: &TestDir) -> String {
    let result = folder.stored("results/mptcp-1.jsonl.zst");
    assert!(result.summary.unwrap().multipath.used);
    result.meta.conditions["emulator back-end"].clone()
}

#[test]
fn an_ordinary_user_can_run_a_handover() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let script = "if (: <>/dev/net/tun) 2>/dev/null; then echo open; else echo closed; fi >tun
        \"$TOWPATH\" run handover.toml --json --out results";
    let name = "an_ordinary_user_can_run_a_handover";
    let Some(output) = run_unprivileged(&folder, name, ":", script) else { return };
    assert_eq!(output.code, Some(0), "{output}");
    let [_, mptcp] = output.json().try_into().unwrap();
    let paths = &mptcp["summary"]["multipath"]["paths_used"];
    assert_eq!(*paths, serde_json::json!(["wifi", "cellular"]), "{output}");
    assert!(folder.work().join("results/report.html").is_file());
    let tun = fs::read_to_string(folder.work().join("tun")).unwrap();
    assert_eq!(back_end(&folder).contains("packet"), tun == "closed\n", "{tun}");
}

#[test]
fn without_a_tun_device_packet_sockets_serve() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let script = "exec \"$TOWPATH\" run handover.toml -q -T mptcp -o results";
    let setup = "mount -t tmpfs none /dev/net";
    let name = "without_a_tun_device_packet_sockets_serve";
    let Some(output) = run_unprivileged(&folder, name, setup, script) else { return };
    assert_eq!(output.code, Some(0), "{output}");
    assert!(back_end(&folder).contains("packet"), "{}", back_end(&folder));
}

#[test]
fn a_missing_tun_device_is_reported_with_a_hint() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let script = "exec \"$TOWPATH\" run handover.toml -q -T tcp --backend tun";
    let setup = "mount -t tmpfs none /dev/net";
    let name = "a_missing_tun_device_is_reported_with_a_hint";
    let Some(output) = run_unprivileged(&folder, name, setup, script) else { return };
    assert_eq!((output.code, output.out.as_str()), (Some(2), ""), "{output}");
    assert!(output.err.contains("error: cannot open /dev/net/tun"), "{output}");
    assert!(output.err.contains("--backend packet"), "{output}");
}

#[test]
fn without_a_writable_directory_results_go_to_the_temporary_one() {
    let Some(_permit) = acquire_emulator() else { return };
    let folder = TestDir::new();
    let script = "mkdir locked && chmod 500 locked && cd locked &&
        exec \"$TOWPATH\" run ../handover.toml -q -T tcp";
    let name = "without_a_writable_directory_results_go_to_the_temporary_one";
    let Some(output) = run_unprivileged(&folder, name, ":", script) else { return };
    assert_eq!(output.code, Some(0), "{output}");
    let results_folder = folder.temporary().join("towpath-results-65534/handover/001");
    assert!(output.err.contains(&format!("results: {}", results_folder.display())), "{output}");
    assert!(results_folder.join("report.html").is_file());
}

/// Host of root's: a server's setup, with a connection of two subflows until a file appears.
const ROOTS_HOST: &str = r#"
mount -t tmpfs none /var/lib
ip link set lo up
ip addr add 10.0.0.2/32 dev lo
ip link add eth0 type veth peer name far
ip addr add 172.31.0.133/24 dev eth0
ip link set eth0 up && ip link set far up
until ip link show eth0 | grep -q 'state UP'; do sleep 0.01; done
"$TOWPATH" setup --role server --apply >applied
ip mptcp endpoint add 10.0.0.2 id 9 subflow
python3 connection.py 'touch open; until test -e over; do sleep 0.02; done' &
until test -e open; do sleep 0.02; done
"#;

/// Runs every command for hosts, with and without an action that needs root.
const VERBS: &str = r#"
set -u
verb() {
    name=$1; shift
    "$TOWPATH" "$@" >"$name.out" 2>"$name.err" && code=0 || code=$?
    echo "$code" >"$name.code"
}
verb plan setup --role client
verb apply setup --role client --apply
verb undo setup --undo
verb persist setup --role client --persist systemd
verb doctor doctor --json
verb all doctor --all
verb exec exec -- python3 -c 'import socket; print(socket.socket().getsockopt(1, 38))'
verb record exec -q --report exec.jsonl -- true
verb lines monitor --count 2 --interval 0.1
verb json monitor --json --count 1
verb figures monitor --prometheus 127.0.0.1:0 --count 1
verb classic monitor --classic --count 1
verb live trace --interface lo --duration 100ms
verb run run handover.toml --world sim -T mptcp -q -o results --pcap captures
verb trace trace captures/sim-mptcp-1-phone.pcapng
verb list lab failure
XDG_STATE_HOME=$PWD verb lab lab failure join-dropped -- "$TOWPATH" setup --role client --apply
touch over
"#;

/// Returns a command's exit code, standard output and standard error.
fn read_verb_output(folder: &TestDir, verb: &str) -> (i32, String, String) {
    let read =
        |ending: &str| fs::read_to_string(folder.work().join(format!("{verb}.{ending}"))).unwrap();
    (read("code").trim().parse().unwrap(), read("out"), read("err"))
}

#[test]
fn host_subcommands_work_unprivileged_or_name_what_they_need() {
    let (folder, test) =
        (TestDir::new(), "host_subcommands_work_unprivileged_or_name_what_they_need");
    if let Some(reason) = missing("ip").or_else(|| missing("python3")) {
        return skip(test, &reason);
    }
    let Some(_permit) = acquire_emulator() else { return };
    folder.write("connection.py", CONNECTION);
    let kinds = ["--mount", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"];
    let Some(output) = run_unprivileged_in(&kinds, &folder, test, ROOTS_HOST, VERBS) else {
        return;
    };
    assert_eq!(output.code, Some(0), "{output}");
    let verb_output = |verb| read_verb_output(&folder, verb);

    let working_verbs = [
        ("plan", "ip mptcp endpoint"),
        ("persist", "ExecStart="),
        ("exec", "262\n"),
        ("record", ""),
        ("figures", ""),
        ("trace", "MPTCP v1"),
        ("list", "join-dropped"),
        ("lab", "ip mptcp endpoint add"),
    ];
    for (verb, text) in working_verbs {
        let (code, out, err) = verb_output(verb);
        assert!(code == 0 && out.contains(text), "{verb}: {code}\n{out}{err}");
        assert!(!err.contains("root"), "{verb}: {err}");
    }
    let refused_verbs = [
        ("apply", "applying a plan changes this host, which needs root (CAP_NET_ADMIN)"),
        ("undo", "undoing the applied plan changes this host, which needs root (CAP_NET"),
        ("classic", "the path manager's events need root (CAP_NET_ADMIN)"),
        ("live", "capturing needs CAP_NET_RAW: run it as root, or in a lab"),
    ];
    for (verb, text) in refused_verbs {
        let (code, out, err) = verb_output(verb);
        assert!(code == 2 && out.is_empty() && err.contains(text), "{verb}: {code}\n{out}{err}");
        assert!(err.starts_with("error: ") && err.contains("\nhint: "), "{verb}: {err}");
    }
    // The connection belongs to another user.
    for verb in ["lines", "json"] {
        let (code, _, err) = verb_output(verb);
        let err = err.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(code == 0 && err.contains("without root (CAP_NET_ADMIN), path"), "{err}");
        assert!(err.contains("programs of other users are shown as `user`"), "{err}");
    }
    let (_, lines, _) = verb_output("lines");
    assert!(lines.contains("user 0 127.0.0.1:") && lines.contains(", 2 subflows"), "{lines}");
    let (_, json, _) = verb_output("json");
    let start: Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(start["hears_events"], false, "{start}");
    let connection: Value = serde_json::from_str(json.lines().nth(1).unwrap()).unwrap();
    assert_eq!(connection["processes"], Value::Array(Vec::new()), "{connection}");
    assert_eq!(connection["subflows"].as_array().unwrap().len(), 2, "{connection}");
    for verb in ["doctor", "all"] {
        let (code, out, err) = verb_output(verb);
        assert!(code < 2 && !out.is_empty(), "{verb}: {code}\n{out}{err}");
        let out = out.split_whitespace().collect::<Vec<_>>().join(" ");
        let names_check = out.contains("the hop that drops or strips packets");
        assert!(names_check && out.contains("needs root and --connect"), "{verb}: {out}");
    }
}
