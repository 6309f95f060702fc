//! Many addresses of one source.

use towpath_live::protocol::{ConnectionKind, frame};
use towpath_run::token::TestToken;

use super::{hello, preamble};
use crate::program::{TestDir, binary, missing, skip};

/// Starts a server in a network with two IPv6 networks of 64 bits, and the clients.
const NETWORK: &str = "
ip link set lo up
ip -6 route add local 2001:db8:0:7::/64 dev lo
ip -6 route add local 2001:db8:0:8::/64 dev lo
\"$TOWPATH\" server -B ::1 -p 5210 > server.log 2>&1 &
server=$!
python3 clients.py
code=$?
kill $server
exit $code
";

/// A crowd of addresses of one network connects again and again and says nothing. Meanwhile, honest
/// clients of another network speak 50 ms after they connected. Prints how many were served.
const CLIENTS: &str = "
import itertools, os, socket, threading, time
message = open('message', 'rb').read()
def connect(source):
    connection = socket.socket(socket.AF_INET6)
    connection.settimeout(10)
    # IPV6_FREEBIND: any address of the networks.
    connection.setsockopt(socket.IPPROTO_IPV6, 78, 1)
    connection.bind((source, 0))
    connection.connect(('::1', 5210))
    return connection
deadline = time.monotonic() + 30
while True:
    try:
        connect('::1').close()
        break
    except OSError:
        if time.monotonic() > deadline:
            raise
        time.sleep(0.05)
crowd = []
def gather():
    for number in itertools.count(1):
        try:
            crowd.append(connect(f'2001:db8:0:7::{number % 60000:x}'))
        except OSError:
            pass
        if len(crowd) > 600:
            crowd.pop(0).close()
        time.sleep(0.0005)
threading.Thread(target=gather, daemon=True).start()
while len(crowd) < 400:
    time.sleep(0.01)
served = 0
for number in range(int(os.environ['HONEST'])):
    try:
        with connect(f'2001:db8:0:8::{number + 1:x}') as client:
            time.sleep(0.05)
            client.sendall(message)
            served += b'welcome' in client.recv(1000)
    except OSError:
        pass
print(served)
";

/// S2: a crowd of addresses in one IPv6 /64 is one source, also before it has sent a preamble.
#[test]
fn a_crowd_of_addresses_of_one_network_blocks_no_slow_client() {
    let test = "a_crowd_of_addresses_of_one_network_blocks_no_slow_client";
    if let Some(reason) = ["ip", "unshare", "python3"].into_iter().find_map(missing) {
        skip(test, &reason);
        return;
    }
    let folder = TestDir::new();
    folder.write("clients.py", CLIENTS);
    let first_bytes = preamble(ConnectionKind::Control, TestToken::NONE).to_bytes();
    let message = [&first_bytes[..], &frame::to_bytes(&hello()).unwrap()].concat();
    folder.write("message", message);
    let mut command = folder.program("unshare");
    command.args(["-Urn", "sh", "-c", NETWORK]).env("TOWPATH", binary());
    command.env("HONEST", "40");
    let output = folder.start(&mut command).wait();
    assert_eq!(output.code, Some(0), "{output}");
    assert_eq!(output.out.trim(), "40", "{output}");
}
