//! `towpath monitor` from outside, in a network namespace with a connection of its own.

use std::fs;

use crate::program::{Ended, Folder, missing, skip};

/// A connection of two subflows over the loopback interface, which does `$1` in its middle.
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

const HOST: &str = "
ip link set lo up
ip addr add 10.0.0.2/32 dev lo
ip mptcp limits set subflows 4 add_addr_accepted 4
ip mptcp endpoint add 10.0.0.2 id 1 subflow backup
until_said() { until grep -q \"$2\" \"$1\"; do sleep 0.02; done; }
";

fn on_a_host(test: &str, folder: &Folder, script: &str) -> Option<Ended> {
    let tools = ["ip", "unshare", "python3", "curl"];
    if let Some(reason) = tools.iter().find_map(|tool| missing(tool)) {
        skip(test, &reason);
        return None;
    }
    folder.write("connection.py", CONNECTION);
    let mut command = folder.program("unshare");
    let script = format!("{HOST}{script}");
    command.args(["-Urnpf", "--mount-proc", "--kill-child", "sh", "-ec", &script]);
    command.env("TOWPATH", crate::program::binary());
    Some(folder.start(&mut command).wait())
}

fn read(folder: &Folder, name: &str) -> String {
    fs::read_to_string(folder.work().join(name)).unwrap()
}

#[test]
fn classic_events_are_those_of_iproute2() {
    let (test, folder) = ("classic_events_are_those_of_iproute2", Folder::new());
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
    let Some(ended) = on_a_host(test, &folder, script) else { return };
    assert_eq!(ended.code, Some(0), "{ended}");
    // Before its version 6.18, iproute2 has no words for the side and for listeners.
    let newer = |line: &str| match line.strip_suffix(" flags=2") {
        Some(line) => format!("{line} server_side"),
        None => line.to_owned(),
    };
    let of_connections = |name: &str| -> Vec<String> {
        read(&folder, name).lines().filter(|it| it.contains("token=")).map(newer).collect()
    };
    let (ours, theirs) = (of_connections("ours"), of_connections("theirs"));
    assert!(ours.len() >= 8, "{ours:#?}");
    assert_eq!(ours, theirs);
}

#[test]
fn a_round_is_told_in_lines_of_text_json_and_figures() {
    let test = "a_round_is_told_in_lines_of_text_json_and_figures";
    let folder = Folder::new();
    let script = r#"
        python3 connection.py '
            $TOWPATH monitor --prometheus 127.0.0.1:0 --interval 0.1 2>listens & figures=$!
            until grep -q metrics listens; do sleep 0.02; done
            address=$(sed -n "s/listening at //p" listens)
            until curl -s $address | tee page | grep -q "subflows{status=.backup.} 2"; do
                sleep 0.02
            done
            kill $figures
            $TOWPATH monitor -n 2 --interval 0.1 >lines
            $TOWPATH monitor -n 1 --json >json'"#;
    let Some(ended) = on_a_host(test, &folder, script) else { return };
    assert_eq!(ended.code, Some(0), "{ended}");
    let lines = read(&folder, "lines");
    assert!(lines.contains("python3 ("), "{lines}");
    assert!(lines.contains("backup       lo 10.0.0.2:"), "{lines}");
    assert!(lines.contains(", 2 subflows\n"), "{lines}");
    let json = read(&folder, "json");
    assert!(json.contains("\"status\":\"backup\""), "{json}");
    let page = read(&folder, "page");
    assert!(page.contains("\ntowpath_mptcp_connections 2\n"), "{page}");
}
