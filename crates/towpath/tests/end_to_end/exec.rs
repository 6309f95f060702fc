//! `towpath exec`: runs programs over Multipath TCP and changes nothing else about them.

use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use towpath_result::store::read_run;
use towpath_result::{Record, SubflowEnd};
use towpath_scenario::DataDirection;

use crate::processes::signal;
use crate::program::{
    ProgramOutput, TWO_PATHS, TestDir, acquire_emulator, binary, is_root, missing, skip, wait_for,
};

/// Script prefix for a lab: $FAR is the server's address, $server its network. `listens PORT` waits
/// for a listener.
const LAB_PRELUDE: &str = r#"
FAR=10.64.0.2
for fd in /proc/1/fd/*; do
    case $(readlink "$fd") in net:*)
        # The phone has only a route to the address; the server has the address.
        nsenter --net="$fd" grep -A1 "|-- $FAR\$" /proc/net/fib_trie | grep -q 'host LOCAL' && server=$fd;;
    esac
done
listens() {
    port=$(printf %04X "$1")
    until nsenter --net="$server" cat /proc/net/tcp /proc/net/tcp6 | grep -q ":$port 0\{8,32\}:0000 0A"; do sleep 0.02; done
}
"#;

/// Size of a file that takes several hundred milliseconds over [`TestDir`].
///
/// `exec` samples sockets every 100 ms, or less often on a busy machine.
const LARGE_FILE_BYTES: usize = 6_000_000;

/// Script that prints a socket's protocol: 262 is Multipath TCP.
const PRINT_PROTOCOL: &str = "import socket; \
    print(socket.socket().getsockopt(socket.SOL_SOCKET, 38))";

/// Runs a script on the phone of two paths; `None` if a tool is missing.
pub(crate) fn run_in_lab(
    test: &str,
    tools: &[&str],
    folder: &TestDir,
    script: &str,
) -> Option<ProgramOutput> {
    if skip_if_missing(test, &[tools, &["nsenter"]].concat()) {
        return None;
    }
    let _permit = acquire_emulator()?;
    folder.write("scenario.toml", TWO_PATHS);
    folder.write("script.sh", format!("set -u\n{LAB_PRELUDE}\n{script}"));
    let mut command = folder.towpath(&["lab", "scenario.toml", "--", "sh", "script.sh"]);
    let output = folder.start(command.env("TOWPATH", binary())).wait();
    assert_eq!(output.code, Some(0), "{output}");
    Some(output)
}

fn skip_if_missing(test: &str, tools: &[&str]) -> bool {
    let reason = tools.iter().find_map(|tool| missing(tool));
    reason.inspect(|reason| skip(test, reason)).is_some()
}

/// Returns the JSON lines of `exec` in file `name`; programs also write to it.
fn summary(folder: &TestDir, name: &str) -> Value {
    let text = fs::read_to_string(folder.work().join(name)).unwrap();
    let is_summary = |line: &&str| line.starts_with('{') && line.contains("\"accepted\"");
    let line = text.lines().rfind(is_summary);
    let line = line.unwrap_or_else(|| panic!("nothing was said in {name}: {text}"));
    serde_json::from_str(line).unwrap()
}

/// Returns the number of connections of a kind, such as `opened.multipath`.
fn summary_count(summary: &Value, path: &str) -> u64 {
    let pointer = format!("/{}", path.replace('.', "/"));
    summary.pointer(&pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path}: {summary}"))
}

fn run_exec(folder: &TestDir, arguments: &[&str]) -> ProgramOutput {
    folder.run(&[&["exec"], arguments].concat())
}

/// Checks curl and python as client and server, by the kernel's socket listings.
#[test]
fn curl_and_a_python_server_use_both_paths() {
    let (folder, test) = (TestDir::new(), "curl_and_a_python_server_use_both_paths");
    fs::write(folder.work().join("big"), vec![7; 6_000_000]).unwrap();
    let script = r#"
        nsenter --net="$server" "$TOWPATH" exec --json -- python3 -m http.server 8000 --bind $FAR 2>server.log &
        listens 8000
        "$TOWPATH" exec --json --report r.jsonl -- curl -so got "http://$FAR:8000/big" 2>client.log
        kill -TERM $!; wait $!; [ $? = 143 ] && cmp big got
    "#;
    let Some(_) = run_in_lab(test, &["curl", "python3"], &folder, script) else { return };
    let (client, server) = (summary(&folder, "client.log"), summary(&folder, "server.log"));
    for path in ["opened.multipath", "opened.several_subflows"] {
        assert_eq!(summary_count(&client, path), 1, "{client}");
    }
    for path in ["listening", "accepted.multipath", "accepted.several_subflows"] {
        assert_eq!(summary_count(&server, path), 1, "{server}");
    }
    assert_eq!(summary_count(&client, "opened.tcp") + summary_count(&server, "accepted.tcp"), 0);
    assert_record(&folder.work().join("r.jsonl"));
    let report = folder.run(&["report", "r.jsonl"]);
    assert!(report.code == Some(0) && report.out.contains("curl -so got"), "{report}");
}

fn assert_record(path: &Path) {
    let result = read_run(BufReader::new(File::open(path).unwrap())).unwrap();
    let down_bytes = |record: &Record| {
        let Record::Interval(interval) = record else { return None };
        (interval.direction == DataDirection::Down).then_some(interval.bytes)
    };
    let bytes: u64 = result.records.iter().filter_map(down_bytes).sum();
    assert!((6_000_000..6_010_000).contains(&bytes), "{bytes}");
    let mut by_path = std::collections::BTreeMap::<_, u64>::new();
    for record in &result.records {
        if let Record::Subflow(subflow) = record
            && subflow.side == SubflowEnd::Receiver
        {
            *by_path.entry(subflow.path.clone()).or_default() += subflow.bytes;
        }
    }
    assert_eq!(by_path.keys().collect::<Vec<_>>(), ["cellular", "wifi"]);
    assert!(by_path.values().all(|bytes| *bytes > 500_000), "{by_path:?}");
    let summary = result.summary.unwrap();
    assert!(summary.multipath.used, "{:?}", summary.multipath);
    assert_eq!(summary.multipath.paths_used, ["cellular", "wifi"]);
}

/// `towpath monitor` during the same transfer.
#[test]
fn a_connection_is_listed_with_both_subflows_and_its_process() {
    let (folder, test) =
        (TestDir::new(), "a_connection_is_listed_with_both_subflows_and_its_process");
    fs::write(folder.work().join("big"), vec![7; 6_000_000]).unwrap();
    let script = r#"
        nsenter --net="$server" "$TOWPATH" exec -q -- python3 -m http.server 8000 --bind $FAR 2>/dev/null &
        python=$!
        listens 8000
        "$TOWPATH" monitor --json --interval 0.1 --count 300 >monitor.jsonl &
        monitor=$!
        until [ -s monitor.jsonl ] || ! kill -0 $monitor; do sleep 0.02; done
        "$TOWPATH" exec -q -- curl -so got "http://$FAR:8000/big"
        until grep -q '"CLOSED"' monitor.jsonl || ! kill -0 $monitor; do sleep 0.02; done
        kill -TERM $monitor $python; wait; true
    "#;
    let Some(_) = run_in_lab(test, &["curl", "python3"], &folder, script) else { return };
    let monitor_output = fs::read_to_string(folder.work().join("monitor.jsonl")).unwrap();
    let lines: Vec<Value> =
        monitor_output.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let connection = lines.iter().find(|line| {
        let subflows = line["subflows"].as_array();
        subflows.is_some_and(|subflows| {
            subflows.iter().filter(|s| s["condition"] == "established").count() == 2
        })
    });
    let connection = connection.unwrap_or_else(|| panic!("never two subflows: {monitor_output}"));
    assert_eq!(connection["processes"][0]["name"], "curl", "{connection}");
    let events: Vec<_> = lines.iter().filter(|line| line["type"] == "event").collect();
    let has_event = |name: &str| {
        events.iter().any(|line| line["event"] == name && line["token"] == connection["token"])
    };
    assert!(
        ["CREATED", "ESTABLISHED", "SF_ESTABLISHED", "CLOSED"].map(has_event) == [true; 4],
        "{monitor_output}"
    );
}

/// Static program, which no preloaded library can change.
#[test]
fn a_static_go_program_becomes_multipath() {
    let (folder, test) = (TestDir::new(), "a_static_go_program_becomes_multipath");
    if skip_if_missing(test, &["go"]) {
        return;
    }
    let source = r#"package main
import ("fmt"; "io"; "net"; "os"; "syscall")
func main() {
    c, err := net.Dial("tcp4", os.Args[1]); if err != nil { panic(err) }
    raw, err := c.(*net.TCPConn).SyscallConn(); if err != nil { panic(err) }
    raw.Control(func(fd uintptr) { fmt.Println(syscall.GetsockoptInt(int(fd), 1, 38)) })
    fmt.Fprint(c, "GET /big HTTP/1.0\r\n\r\n"); io.Copy(io.Discard, c)
}
"#;
    folder.write("main.go", source);
    // A short connection may be missed between two samples; this one lasts.
    fs::write(folder.work().join("big"), vec![7; 6_000_000]).unwrap();
    let mut build = folder.program("go");
    build.args(["build", "-o", "dial", "main.go"]).env("CGO_ENABLED", "0").env("GOFLAGS", "");
    build.env("GOCACHE", folder.temporary().join("go")).env("GO111MODULE", "off");
    build.env("HOME", folder.temporary());
    // The cache also holds the standard library, which is not compiled yet.
    let build_output = folder.start(&mut build).wait_at_most(Duration::from_secs(300));
    assert_eq!(build_output.code, Some(0), "{build_output}");
    let script = r#"
        nsenter --net="$server" "$TOWPATH" exec --json -- python3 -m http.server 8000 --bind $FAR 2>server.log &
        listens 8000
        ./dial $FAR:8000 >without
        "$TOWPATH" exec --json -- ./dial $FAR:8000 >with 2>client.log
        kill -TERM $!; wait $!; true
    "#;
    let Some(_) = run_in_lab(test, &["python3"], &folder, script) else { return };
    let read_output = |name: &str| fs::read_to_string(folder.work().join(name)).unwrap();
    assert_eq!((&*read_output("without"), &*read_output("with")), ("6 <nil>\n", "262 <nil>\n"));
    // Go opens further sockets to detect the kernel's features.
    assert_eq!(summary_count(&summary(&folder, "client.log"), "opened.multipath"), 1);
}

#[test]
fn iperf3_becomes_multipath_at_both_ends() {
    let (folder, test) = (TestDir::new(), "iperf3_becomes_multipath_at_both_ends");
    let script = r#"
        nsenter --net="$server" "$TOWPATH" exec --json -- iperf3 -s -1 -B $FAR >server.out 2>server.log &
        listens 5201
        "$TOWPATH" exec --json --report r.jsonl -- iperf3 -c $FAR -n 6M -J >client.out 2>client.log
        wait $!
    "#;
    let Some(_) = run_in_lab(test, &["iperf3"], &folder, script) else { return };
    let (client, server) = (summary(&folder, "client.log"), summary(&folder, "server.log"));
    // One connection for control and one for data.
    assert_eq!(summary_count(&client, "opened.multipath"), 2, "{client}");
    assert_eq!(summary_count(&server, "accepted.multipath"), 2, "{server}");
    assert!(summary_count(&client, "opened.several_subflows") >= 1, "{client}");
    // The record has the first subflow's metrics, although the kernel clears them at the end.
    let record = File::open(folder.work().join("r.jsonl")).unwrap();
    let subflows = read_run(BufReader::new(record)).unwrap().summary.unwrap().subflows;
    for path in ["wifi", "cellular"] {
        let subflow_rows = subflows
            .iter()
            .filter(|subflow| subflow.path == path && subflow.direction == DataDirection::Up);
        let bytes: u64 = subflow_rows.map(|subflow| subflow.bytes).sum();
        assert!(bytes > 500_000, "{path}: {bytes}");
    }
}

#[test]
fn nginx_and_its_workers_become_multipath() {
    let (folder, test) = (TestDir::new(), "nginx_and_its_workers_become_multipath");
    fs::write(folder.work().join("big"), vec![7; LARGE_FILE_BYTES]).unwrap();
    let folder_path = folder.work().display().to_string();
    let configuration = format!(
        "daemon off; pid {folder_path}/nginx.pid; error_log {folder_path}/error.log; worker_processes 2;\n\
         events {{}}\nhttp {{ access_log off;\n{}\n\
         server {{ listen 10.64.0.2:8080; root {folder_path}; }} }}\n{}",
        ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {folder_path}/{kind};"))
            .join(" "),
        // Root of a user namespace cannot switch to another user.
        "user root;"
    );
    folder.write("nginx.conf", configuration);
    let script = r#"
        nsenter --net="$server" "$TOWPATH" exec --json -- nginx -c "$PWD/nginx.conf" 2>server.log &
        listens 8080
        "$TOWPATH" exec --json -- curl -so got "http://$FAR:8080/big" 2>client.log
        kill -QUIT $!; wait $!; cmp big got
    "#;
    let Some(_) = run_in_lab(test, &["nginx", "curl"], &folder, script) else { return };
    let (client, server) = (summary(&folder, "client.log"), summary(&folder, "server.log"));
    assert_eq!(summary_count(&server, "accepted.multipath"), 1, "{server}");
    assert_eq!(summary_count(&client, "opened.multipath"), 1, "{client}");
}

#[test]
fn a_plain_peer_and_a_switched_off_kernel_give_tcp_and_the_reason() {
    let folder = TestDir::new();
    let test = "a_plain_peer_and_a_switched_off_kernel_give_tcp_and_the_reason";
    fs::write(folder.work().join("big"), vec![7; LARGE_FILE_BYTES]).unwrap();
    let script = r#"
        nsenter --net="$server" python3 -m http.server 8000 --bind $FAR 2>/dev/null &
        listens 8000
        "$TOWPATH" exec -- curl -so got "http://$FAR:8000/big" 2>plain.log
        echo 0 >/proc/sys/net/mptcp/enabled
        "$TOWPATH" exec -- curl -so got2 "http://$FAR:8000/big" 2>off.log
        kill -TERM $!; wait $!; cmp big got && cmp big got2
    "#;
    let Some(_) = run_in_lab(test, &["curl", "python3"], &folder, script) else { return };
    let read = |name: &str| fs::read_to_string(folder.work().join(name)).unwrap();
    let (plain, off) = (read("plain.log"), read("off.log"));
    assert!(plain.contains("0 were Multipath TCP and 1 plain TCP. Why: the SYN/ACK"), "{plain}");
    let expected = "towpath: 0 sockets upgraded: 1 socket stayed TCP (net.mptcp.enabled is 0)\n";
    assert_eq!(off, expected);
}

#[test]
fn the_exit_code_is_the_programs_own() {
    let folder = TestDir::new();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -s KILL $$", 128 + 9)] {
        let output = run_exec(&folder, &["--", "sh", "-c", script]);
        assert_eq!(output.code, Some(code), "{output}");
        assert_eq!(output.err, "towpath: 0 sockets upgraded\n", "{output}");
    }
    let output = run_exec(&folder, &["--quiet", "--", "echo", "hello"]);
    assert_eq!((output.out.as_str(), output.err.as_str()), ("hello\n", ""), "{output}");
}

#[test]
fn a_program_that_cannot_be_run_is_reported() {
    let folder = TestDir::new();
    let output = run_exec(&folder, &["--", "./no-such-program"]);
    assert_eq!(output.code, Some(2), "{output}");
    assert!(output.err.contains("cannot run `./no-such-program`: no such file"), "{output}");
    let towpath = binary().display().to_string();
    let output = run_exec(&folder, &["--", &towpath, "exec", "--", "true"]);
    assert!(output.code == Some(2) && output.err.contains("run this one directly"), "{output}");
    let output = run_exec(&folder, &["--report", "no/such/folder", "--", "true"]);
    assert!(output.code == Some(2) && output.err.contains("cannot write"), "{output}");
}

#[test]
fn sockets_have_the_requested_flags() {
    let (folder, test) = (TestDir::new(), "sockets_have_the_requested_flags");
    if skip_if_missing(test, &["python3"]) {
        return;
    }
    let script = r"
import ctypes, fcntl, itertools, os, socket
c = ctypes.CDLL(None)
for family, cloexec, nonblock, protocol in itertools.product(
        (socket.AF_INET, socket.AF_INET6), (0, socket.SOCK_CLOEXEC),
        (0, socket.SOCK_NONBLOCK), (0, socket.IPPROTO_TCP)):
    fd = c.socket(family, socket.SOCK_STREAM | cloexec | nonblock, protocol)
    s = socket.socket(fileno=os.dup(fd))
    print(fd, s.family == family, s.getsockopt(socket.SOL_SOCKET, 38),
        bool(fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC) == bool(cloexec),
        bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK) == bool(nonblock))
    s.close(); os.close(fd)
for kind, protocol in ((socket.SOCK_DGRAM, 0), (socket.SOCK_STREAM, 262)):
    print(socket.socket(socket.AF_INET, kind, protocol).getsockopt(socket.SOL_SOCKET, 38))
print(c.socket(socket.AF_INET, socket.SOCK_STREAM | 0x40, 0))
";
    let output = run_exec(&folder, &["--quiet", "--", "python3", "-c", script]);
    let mut lines: Vec<_> = output.out.lines().collect();
    assert_eq!(lines.split_off(16), ["17", "262", "-1"], "{output}");
    // Always the lowest free number, as the kernel itself does.
    assert!(lines.iter().all(|line| *line == "3 True 262 True True"), "{output}");
}

/// Regression: at its limit of descriptors, a program got ENOSYS from then on.
#[test]
fn a_program_at_its_limit_of_descriptors_gets_the_kernels_error_and_then_sockets_again() {
    let test = "a_program_at_its_limit_of_descriptors_gets_the_kernels_error";
    if skip_if_missing(test, &["python3"]) {
        return;
    }
    let folder = TestDir::new();
    let script = r"
import errno, resource, socket
resource.setrlimit(resource.RLIMIT_NOFILE, (20, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
for round in range(3):
    sockets, error = [], None
    while error is None:
        try:
            sockets.append(socket.socket())
        except OSError as failure:
            error = errno.errorcode[failure.errno]
    protocols = {s.getsockopt(socket.SOL_SOCKET, 38) for s in sockets}
    print(error, len(sockets) > 10, protocols)
    for s in sockets:
        s.close()
print(socket.socket().getsockopt(socket.SOL_SOCKET, 38))
";
    let output = run_exec(&folder, &["--json", "--", "python3", "-c", script]);
    let lines: Vec<_> = output.out.lines().take(4).collect();
    assert_eq!(lines[..3], ["EMFILE True {262}"; 3], "{output}");
    assert_eq!(lines[3], "262", "{output}");
    // The supervisor has the same limit, and its own descriptors.
    let script = "ulimit -n 9; exec \"$TOWPATH\" exec -q -- python3 -c \"$SCRIPT\"";
    let program = "import socket; [print(socket.socket().type == 1) for _ in range(20)]";
    let mut command = folder.program("sh");
    command.args(["-c", script]).env("SCRIPT", program).env("TOWPATH", binary());
    let output = folder.start(&mut command).wait();
    assert_eq!(output.out.lines().filter(|line| *line == "True").count(), 20, "{output}");
}

#[test]
fn threads_signals_and_children_get_their_sockets() {
    let (folder, test) = (TestDir::new(), "threads_signals_and_children_get_their_sockets");
    if skip_if_missing(test, &["python3"]) {
        return;
    }
    let script = r"
import os, signal, socket, threading
before = len(os.listdir('/proc/self/fd'))
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, False) # calls go on; see docs/guides/run-any-program.md for others
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
wrong = []
def work():
    for _ in range(100):
        s = socket.socket()
        if s.getsockopt(socket.SOL_SOCKET, 38) != 262: wrong.append(s)
        s.close()
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        work(); os._exit(len(wrong))
    children.append(child)
threads = [threading.Thread(target=work) for _ in range(4)]
[t.start() for t in threads]; work(); [t.join() for t in threads]
codes = [os.waitpid(child, 0)[1] for child in children]
signal.setitimer(signal.ITIMER_REAL, 0)
print(len(wrong), codes, len(os.listdir('/proc/self/fd')) - before)
";
    let output = run_exec(&folder, &["--json", "--", "python3", "-c", script]);
    // A socket with two descriptors would still be open.
    assert_eq!(output.out, "0 [0, 0, 0] 0\n", "{output}");
    let summary: Value = serde_json::from_str(&output.err).unwrap();
    assert_eq!(summary_count(&summary, "upgraded"), 800, "{output}");
}

/// Returns the child process of `parent` whose command line has `argument`.
fn find_child(parent: u32, argument: &str) -> Option<u32> {
    let list = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let mut ids = list.split_whitespace().filter_map(|id| id.parse().ok());
    ids.find(|id: &u32| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == argument.as_bytes())
    })
}

fn process_state(id: u32) -> Option<char> {
    let status = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    status.rsplit_once(") ")?.1.chars().next()
}

#[test]
fn signals_reach_the_program_and_a_stop_stops_both() {
    let folder = TestDir::new();
    let mut command = folder.towpath(&["exec", "-q", "--", "sleep", "60"]);
    // An orphaned process group ignores stop signals (setpgid(2)), and a test without a terminal
    // has one.
    let running = folder.start(command.process_group(0));
    let child = wait_for("the program", || find_child(running.id(), "sleep"));
    wait_for("the supervisor", || find_child(running.id(), "__supervise"));
    let wait_for_state = |expected: char| {
        wait_for(&format!("state {expected}"), || {
            let states = [running.id(), child].map(process_state);
            (states == [Some(expected); 2]).then_some(())
        });
    };
    signal("TSTP", i64::from(running.id()));
    wait_for_state('T');
    signal("CONT", i64::from(running.id()));
    wait_for_state('S');
    signal("TERM", i64::from(running.id()));
    let output = running.wait();
    assert_eq!(output.code, Some(128 + 15), "{output}");
}

/// Starts a program that opens a socket whenever the file `go` appears, and prints its protocol.
fn socket_opener(folder: &TestDir) -> Command {
    let script = "import os, socket, sys, time\n\
        while True:\n\
        \x20   while not os.path.exists('go'): time.sleep(0.01)\n\
        \x20   os.unlink('go')\n\
        \x20   try: print(socket.socket().getsockopt(socket.SOL_SOCKET, 38), flush=True)\n\
        \x20   except OSError as e: print(e.strerror, flush=True)\n";
    folder.towpath(&["exec", "-q", "--", "python3", "-c", script])
}

#[test]
fn the_program_outlives_the_command_and_does_not_hang_without_its_supervisor() {
    let test = "the_program_outlives_the_command_and_does_not_hang_without_its_supervisor";
    if skip_if_missing(test, &["python3"]) {
        return;
    }
    let folder = TestDir::new();
    let mut running = folder.start(&mut socket_opener(&folder));
    let child = wait_for("the program", || find_child(running.id(), "python3"));
    let supervisor = wait_for("the supervisor", || find_child(running.id(), "__supervise"));
    let open_socket = |expected: &str| {
        folder.write("go", "");
        wait_for(expected, || running.printed().ends_with(expected).then_some(()));
    };
    open_socket("262\n");
    signal("KILL", i64::from(running.id()));
    wait_for("the end of the command", || {
        matches!(process_state(running.id()), None | Some('Z')).then_some(())
    });
    open_socket("262\n262\n");
    signal("KILL", i64::from(supervisor));
    open_socket("Function not implemented\n");
    signal("KILL", i64::from(child));
    running.child.wait().unwrap();
}

#[test]
fn surviving_child_processes_stay_supervised() {
    let (folder, test) = (TestDir::new(), "surviving_child_processes_stay_supervised");
    if skip_if_missing(test, &["python3"]) {
        return;
    }
    folder.write(
        "late.py",
        format!(
            "import os, time\n\
        while not os.path.exists('go'): time.sleep(0.01)\n{PRINT_PROTOCOL}"
        ),
    );
    let script = "python3 late.py >late 2>&1 </dev/null & exit 3";
    let output = run_exec(&folder, &["--", "sh", "-c", script]);
    assert_eq!(output.code, Some(3), "{output}");
    folder.write("go", "");
    let socket_file = folder.work().join("late");
    wait_for("the late socket", || {
        (fs::read_to_string(&socket_file).unwrap() == "262\n").then_some(())
    });
}

#[test]
fn a_program_that_moves_to_another_network_gets_sockets_of_that_network() {
    let test = "a_program_that_moves_to_another_network_gets_sockets_of_that_network";
    if skip_if_missing(test, &["python3", "unshare"]) {
        return;
    }
    let unshare_status =
        Command::new("unshare").args(["-Urn", "true"]).stderr(Stdio::null()).status();
    if !unshare_status.is_ok_and(|status| status.success()) {
        return skip(test, "no user namespaces here");
    }
    let folder = TestDir::new();
    let script = format!("import ctypes\nctypes.CDLL(None).unshare(0x50000000)\n{PRINT_PROTOCOL}");
    let output = run_exec(&folder, &["--", "python3", "-c", &script]);
    assert_eq!(output.out, "6\n", "{output}");
    assert!(output.err.contains("(opened in another network namespace)"), "{output}");
}

#[test]
fn an_ordinary_user_needs_nothing_more() {
    let test = "an_ordinary_user_needs_nothing_more";
    if skip_if_missing(test, &["python3", "setpriv"]) {
        return;
    }
    if !is_root() {
        // Without root, the other tests of this file already ran as an ordinary user.
        return;
    }
    let folder = TestDir::new();
    let mut command = folder.program("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(folder.readable_binary());
    // The interpreter itself, since a wrapper in root's home could not be run.
    command.args(["exec", "--", "/usr/bin/env", "python3", "-c", PRINT_PROTOCOL]);
    let output = folder.start(&mut command).wait();
    assert_eq!((output.code, output.out.as_str()), (Some(0), "262\n"), "{output}");
}
