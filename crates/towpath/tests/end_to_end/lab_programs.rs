//! Common programs in the lab: the result shows their traffic with its share per path.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use towpath_result::Summary;
use towpath_result::store::RunResult;
use towpath_scenario::{DataDirection, Transport};

use crate::program::{ProgramOutput, TWO_PATHS, TestDir, acquire_emulator, missing, skip};

/// Runs a server and a client in the lab of two paths; the result is in `results`.
fn run_server_and_client(
    folder: &TestDir,
    server: &str,
    client: &str,
) -> (ProgramOutput, RunResult) {
    folder.write("scenario.toml", TWO_PATHS);
    let program_options = ["--on", "server", server, "--on", "client", client];
    let output =
        folder.run(&[&["lab", "scenario.toml", "--out", "results"][..], &program_options].concat());
    assert_eq!(output.code, Some(0), "{output}");
    let result = folder.stored("results/lab-1.jsonl.zst");
    (output, result)
}

/// Returns true if one of these tools is missing, after printing that the test is skipped.
fn skip_if_missing(test: &str, tools: &[&str]) -> bool {
    let reason = tools.iter().find_map(|tool| missing(tool));
    reason.inspect(|reason| skip(test, reason)).is_some()
}

/// Returns the payload received by the client.
fn received_bytes(summary: &Summary) -> u64 {
    let down_flows = summary.flows.iter().filter(|flow| flow.direction == DataDirection::Down);
    down_flows.map(|flow| flow.bytes).sum()
}

/// Returns a path's share of the bytes that the client received.
fn share(summary: &Summary, path: &str) -> f64 {
    let path_subflows = summary.subflows.iter().filter(|subflow| subflow.path == path);
    path_subflows.filter(|s| s.direction == DataDirection::Down).map(|s| s.share).sum()
}

#[test]
fn a_static_go_program_shows_both_paths() {
    let (folder, test) = (TestDir::new(), "a_static_go_program_shows_both_paths");
    if skip_if_missing(test, &["go"]) {
        return;
    }
    let source = r#"package main
import ("io"; "net"; "os")
func must[T any](value T, err error) T { if err != nil { panic(err) }; return value }
func main() {
    if len(os.Args) > 1 {
        n := must(io.Copy(io.Discard, must(net.Dial("tcp4", os.Args[1]))))
        if n != 8000000 { panic(n) }
        return
    }
    // Closing this listener refuses further subflows.
    listener := must(net.Listen("tcp4", ":8000"))
    c := must(listener.Accept())
    must(c.Write(make([]byte, 8000000)))
    if err := c.Close(); err != nil { panic(err) }
    listener.Close()
}
"#;
    folder.write("main.go", source);
    let mut build = folder.program("go");
    build.args(["build", "-o", "move", "main.go"]).env("CGO_ENABLED", "0").env("GOFLAGS", "");
    build.env("GOCACHE", folder.temporary().join("go")).env("GO111MODULE", "off");
    build.env("HOME", folder.temporary());
    // The cache also holds the standard library, which is not compiled yet.
    let build_output = folder.start(&mut build).wait_at_most(Duration::from_secs(300));
    assert_eq!(build_output.code, Some(0), "{build_output}");
    let Some(_permit) = acquire_emulator() else { return };
    // Go requests Multipath TCP itself.
    let move_command = "GODEBUG=multipathtcp=1 ./move";
    let (output, result) = run_server_and_client(
        &folder,
        move_command,
        &format!("{move_command} $TOWPATH_SERVER:8000"),
    );
    let summary = result.summary.as_ref().unwrap();
    assert_eq!(result.meta.transport, Transport::Mptcp, "{output}");
    // Bytes received after the last sample of a Multipath TCP socket are missed.
    let received = received_bytes(summary);
    assert!((7_500_000..8_100_000).contains(&received), "{received}: {output}");
    // Reinjections count on each subflow.
    let down_subflows =
        summary.subflows.iter().filter(|subflow| subflow.direction == DataDirection::Down);
    let sum = down_subflows.map(|subflow| subflow.bytes).sum::<u64>();
    assert!(
        (received - received / 100..received + received / 10).contains(&sum),
        "{sum} of {received}: {output}"
    );
    let shares = [share(summary, "wifi"), share(summary, "cellular")];
    assert!(shares.iter().all(|share| *share > 0.1), "{shares:?}: {output}");
    assert!(output.err.contains("over wifi and cellular"), "{output}");
}

/// Forwarding host between two others; programs on it can observe and change packets.
#[test]
fn a_host_can_be_the_router_between_two_others() {
    let (folder, test) = (TestDir::new(), "a_host_can_be_the_router_between_two_others");
    if skip_if_missing(test, &["ip", "python3"]) {
        return;
    }
    folder.write(
        "scenario.toml",
        "name = \"router\"\n[hosts.client]\n[hosts.router]\nsysctl = { \"net.ipv4.ip_forward\" = 1 }\n\
         [hosts.server]\n[paths.near]\nbetween = [\"client\", \"router\"]\nrate = \"50 Mbit/s\"\n\
         delay = \"5 ms\"\n[paths.far]\nbetween = [\"router\", \"server\"]\nrate = \"20 Mbit/s\"\n\
         delay = \"10 ms\"\n",
    );
    let server = "import socket\n\
                  c, _ = socket.create_server(('', 8000)).accept()\n\
                  while c.recv(65536): pass\n";
    let client = "import os, socket\n\
                  c = socket.create_connection((os.environ['TOWPATH_SERVER'], 8000))\n\
                  c.sendall(bytes(1000000))\n\
                  c.shutdown(socket.SHUT_WR)\n\
                  c.recv(1)\n";
    folder.write("server.py", server);
    folder.write("client.py", client);
    let route = "ip route add 10.64.1.0/24 via 10.64.0.2 && python3 client.py";
    let Some(_permit) = acquire_emulator() else { return };
    let output = folder.run(&[
        "lab",
        "scenario.toml",
        "--out",
        "results",
        "--on",
        "server",
        "ip route add 10.64.0.0/24 via 10.64.1.1 && exec python3 server.py",
        "--on",
        "client",
        route,
    ]);
    assert_eq!(output.code, Some(0), "{output}");
    let result = folder.stored("results/lab-1.jsonl.zst");
    let summary = result.summary.as_ref().unwrap();
    let up = summary.flows.iter().find(|flow| flow.direction == DataDirection::Up).unwrap();
    // The kernel also counts the DATA_FIN as one byte.
    assert!((1_000_000..=1_000_001).contains(&up.bytes), "{}: {output}", up.bytes);
    assert_eq!(summary.multipath.paths_used, ["near"], "{output}");
}

/// An SSH server switches to another user for good, which is impossible in a lab. Without root it
/// does not need to.
#[test]
fn data_sent_by_ssh_is_shown() {
    let (folder, test) = (TestDir::new(), "data_sent_by_ssh_is_shown");
    if skip_if_missing(test, &["dropbear", "unshare"]) {
        return;
    }
    let folder_path = folder.work().display().to_string();
    let create_key = |name: &str| {
        let mut command = folder.program("dropbearkey");
        let key_output = folder.start(command.args(["-t", "ed25519", "-f", name])).wait();
        assert_eq!(key_output.code, Some(0), "{key_output}");
        key_output.out.lines().find(|line| line.starts_with("ssh-ed25519")).unwrap().to_owned()
            + "\n"
    };
    let (_, user) = (create_key("host"), create_key("user"));
    fs::create_dir(folder.work().join(".ssh")).unwrap();
    folder.write(".ssh/authorized_keys", user);
    for private in [".", ".ssh", ".ssh/authorized_keys"] {
        fs::set_permissions(folder.work().join(private), Permissions::from_mode(0o700)).unwrap();
    }
    // A user with a shell, for machines that only have root.
    let passwd =
        format!("walker:x:1000:1000::{folder_path}:/bin/sh\nroot:x:0:0:root:/root:/bin/sh\n");
    folder.write("passwd", passwd);
    let server = format!(
        "mount --bind {folder_path}/passwd /etc/passwd && exec unshare --user --map-user=1000 \
         --map-group=1000 \"$(command -v dropbear)\" -F -E -s -r {folder_path}/host -p 2222"
    );
    // Random bytes, since dropbear compresses zeros.
    let client = format!(
        "dbclient -y -y -i {folder_path}/user -p 2222 walker@$TOWPATH_SERVER 'head -c 3000000 /dev/urandom' \
         | wc -c"
    );
    let Some(_permit) = acquire_emulator() else { return };
    let (output, result) = run_server_and_client(&folder, &server, &client);
    assert!(output.out.contains("| 3000000"), "{output}");
    let summary = result.summary.as_ref().unwrap();
    assert!(
        (3_000_000..3_100_000).contains(&received_bytes(summary)),
        "{}: {output}",
        received_bytes(summary)
    );
    assert!(share(summary, "wifi") > 0.99, "{:?}: {output}", summary.subflows);
}

/// The server does not notice that the client has closed, and the client runs on for 8 s. The rate
/// is that of the transfer.
#[test]
fn the_time_after_a_client_exits_is_not_part_of_its_rate() {
    let (folder, test) = (TestDir::new(), "the_time_after_a_client_exits_is_not_part_of_its_rate");
    if skip_if_missing(test, &["python3"]) {
        return;
    }
    let server = "import socket, time\n\
                  s = socket.create_server(('', 8000))\n\
                  c, _ = s.accept()\n\
                  c.sendall(bytes(2000000))\n\
                  time.sleep(86390)\n";
    let client = "import os, socket, time\n\
                  c = socket.create_connection((os.environ['TOWPATH_SERVER'], 8000))\n\
                  n = 0\n\
                  while n < 2000000: n += len(c.recv(65536))\n\
                  c.close()\n\
                  time.sleep(8)\n";
    folder.write("server.py", server);
    folder.write("client.py", client);
    let Some(_permit) = acquire_emulator() else { return };
    let (output, result) = run_server_and_client(&folder, "python3 server.py", "python3 client.py");
    let summary = result.summary.as_ref().unwrap();
    let flow = summary.flows.iter().find(|flow| flow.direction == DataDirection::Down).unwrap();
    assert_eq!(flow.bytes, 2_000_000, "{output}");
    // After the transfer, the connection stays half-open for 8 s.
    let seconds = flow.duration_ns / 1_000_000_000;
    assert!(seconds < 8, "{seconds}: {output}");
}
