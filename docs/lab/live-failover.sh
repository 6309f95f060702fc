#!/bin/sh
# The path on which a Multipath TCP measurement began vanishes after 3 s of 10: towpath, then iperf3,
# side by side in the emulated network. iperf3 speaks Multipath TCP with `-m` since 3.19 (set
# IPERF3_CLIENT="iperf3 -m": its control connection stays plain TCP, and it hangs), an older one under
# `mptcpize run`, which is taken where it is there: its control connection is then Multipath TCP, too.
#
#   docs/lab/live-failover.sh [DIR]
set -eu
towpath=${TOWPATH:-towpath}
if [ -z "${IPERF3:-}" ] && [ -z "${IPERF3_CLIENT:-}" ] && command -v mptcpize > /dev/null; then
    IPERF3="mptcpize run iperf3"
fi
iperf3=${IPERF3:-iperf3}
iperf3_client=${IPERF3_CLIENT:-$iperf3}
folder=${1:-live-failover}
mkdir -p "$folder"
cd "$folder"

scenario() { # name, server's command, client's command
    cat > "$1.toml" <<END
name = "$1"
[hosts.client.mptcp]
endpoints = [{ path = "eth", flags = ["subflow"] }, { path = "wlan", flags = ["subflow"] }]
[hosts.server.mptcp]
endpoints = [{ path = "wlan", flags = ["signal"] }]
[paths.eth]
between = ["client", "server"]
rate = "100 Mbit/s"
delay = "500 us"
[paths.wlan]
between = ["client", "server"]
rate = "100 Mbit/s"
delay = "2 ms"
[[timeline]]
at = "3 s"
path = "eth"
set = "down"
[[flows]]
from = "server"
to = "client"
run = "$2 > $1-server.txt 2>&1"
duration = "25 s"
[[flows]]
from = "client"
to = "server"
run = "sleep 0.5; $3 > $1-client.txt 2>&1; echo exit code \$? >> $1-client.txt"
duration = "25 s"
END
    "$towpath" run "$1.toml" -q -T mptcp -o "$1-network" > /dev/null 2>&1 || true
    echo "=== $1: client"
    cat "$1-client.txt"
    grep -q 'exit code' "$1-client.txt" || echo "no end within 25 s: killed"
    echo
}

scenario towpath "$towpath server --once" "$towpath measure 10.64.0.2 -t 10 -o towpath-result"
scenario iperf3 "$iperf3 -s -1" "$iperf3_client -c 10.64.0.2 -t 10"
