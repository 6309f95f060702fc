//! `towpath exec --report` while an address of the program moves to another interface.

use std::fs::File;
use std::io::BufReader;

use towpath_result::Record;
use towpath_result::store::read_run;

use crate::program::{TestDir, missing, skip};

/// Builds a client with the interfaces `c1` and `c2`, and a server behind them. `$ON` runs a
/// command there.
const NETWORK: &str = "
ip link set lo up
unshare -n sleep 120 & server=$!
echo $server > server.pid
until [ \"$(readlink /proc/$server/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ]; do sleep 0.01; done
ON=\"nsenter -t $server -n\"
trap 'kill $server $echo' EXIT
$ON ip link set lo up
$ON ip addr add $SERVER/$HOST dev lo
for path in 1 2; do
    ip link add c$path type veth peer name s$path netns $server
    ip link set c$path up
    $ON ip link set s$path up
    until ip link show c$path | grep -q 'state UP'; do sleep 0.01; done
    ip addr add ${NET}$path$END2/$SUBNET dev c$path $NODAD
    $ON ip addr add ${NET}$path$END1/$SUBNET dev s$path $NODAD
done
ip route add $SERVER via ${NET}1$END1 dev c1 src ${NET}1$END2
$ON python3 echo.py & echo=$!
until [ -s listening ]; do sleep 0.01; done
$TOWPATH exec --quiet --report r.jsonl -- python3 client.py
";

/// Echoes all data of one connection over Multipath TCP.
const ECHO: &str = "
import os, socket
family = socket.AF_INET6 if ':' in os.environ['SERVER'] else socket.AF_INET
listener = socket.socket(family, socket.SOCK_STREAM, 262)
listener.bind((os.environ['SERVER'], 8000))
listener.listen()
open('listening', 'w').write('yes')
connection, _ = listener.accept()
while data := connection.recv(65536):
    connection.sendall(data)
";

/// Exchanges data until the record has both directions on the first interface; moves the address of
/// the connection; exchanges data until the record has both directions on the second interface.
const CLIENT: &str = "
import os, re, socket, subprocess, time
connection = socket.create_connection((os.environ['SERVER'], 8000))
def exchange_until(pattern):
    while not re.search(pattern, open('r.jsonl').read()):
        connection.sendall(bytes(10_000))
        left = 10_000
        while left:
            left -= len(connection.recv(left))
        time.sleep(0.02)
def exchange_both_ways(path):
    for direction in ('up', 'down'):
        exchange_until('\"direction\":\"' + direction + '\".*\"path\":\"' + path + '\",.*\"bytes\":[1-9]')
exchange_until('subflow on c1')
exchange_both_ways('c1')
subprocess.run(['sh', '-ec', os.environ['MOVE']], check=True)
exchange_until(' to c2')
exchange_both_ways('c2')
connection.close()
";

/// Moves the client's address from `c1` to `c2`. The server's way back follows.
const MOVE: &str = "
moved=${NET}1$END2
ip addr del $moved/$SUBNET dev c1
ip addr add $moved/$HOST dev c2 $NODAD
ip route replace $SERVER via ${NET}2$END1 dev c2 src $moved
nsenter -t $(cat server.pid) -n ip route add $moved via ${NET}2$END2 dev s2
";

#[test]
fn a_subflow_is_reported_on_each_interface_that_had_its_address() {
    let test = "a_subflow_is_reported_on_each_interface_that_had_its_address";
    let tools = ["ip", "unshare", "nsenter", "python3"];
    if let Some(reason) = tools.into_iter().find_map(missing) {
        skip(test, &reason);
        return;
    }
    let ipv4 = [("NET", "10.0."), ("END1", ".1"), ("END2", ".2"), ("SUBNET", "24"), ("HOST", "32")];
    let ipv6 =
        [("NET", "fd00:"), ("END1", "::1"), ("END2", "::2"), ("SUBNET", "64"), ("HOST", "128")];
    let families = [(ipv4, "10.9.0.1", "10.0.1.2", ""), (ipv6, "fd00:9::1", "fd00:1::2", "nodad")];
    for (variables, server, client, nodad) in families {
        let folder = TestDir::new();
        folder.write("echo.py", ECHO);
        folder.write("client.py", CLIENT);
        let mut command = folder.program("unshare");
        command.args(["-Urn", "sh", "-c", NETWORK]).envs(variables);
        command.env("TOWPATH", crate::program::binary()).env("MOVE", MOVE);
        command.env("SERVER", server).env("NODAD", nodad);
        let output = folder.start(&mut command).wait();
        assert_eq!(output.code, Some(0), "{output}");
        let file = File::open(folder.work().join("r.jsonl")).unwrap();
        let result = read_run(BufReader::new(file)).unwrap();
        let change = format!("{client} has moved from c1 to c2");
        let moved_at = result.records.iter().find_map(|record| {
            let Record::Event(event) = record else { return None };
            event.text.contains(&change).then_some(event.t_ns)
        });
        let moved_at = moved_at.unwrap_or_else(|| panic!("{change}: {output}"));
        for record in &result.records {
            let Record::Subflow(subflow) = record else { continue };
            let expected = if subflow.t_ns <= moved_at { "c1" } else { "c2" };
            assert_eq!(subflow.path, expected, "moved at {moved_at}: {subflow:?}");
        }
        let summary = result.summary.unwrap();
        assert_eq!(summary.multipath.paths_used, ["c1", "c2"], "{summary:?}");
        let names: Vec<_> = result.meta.paths.iter().map(|path| path.name.as_str()).collect();
        assert_eq!(names, ["c1", "c2"]);
        for flow in &summary.flows {
            let stays: Vec<_> =
                summary.subflows.iter().filter(|s| s.direction == flow.direction).collect();
            let [first, second] = &stays[..] else { panic!("{stays:?}") };
            assert_eq!((first.path.as_str(), second.path.as_str()), ("c1", "c2"));
            assert_eq!((first.closed_ns, second.first_seen_ns), (Some(moved_at), moved_at));
            assert!(first.bytes > 0 && second.bytes > 0, "{stays:?}");
        }
        let report = folder.run(&["report", "r.jsonl"]);
        assert_eq!(report.code, Some(0), "{report}");
        assert!(report.out.contains("c1") && report.out.contains("c2"), "{report}");
    }
}
