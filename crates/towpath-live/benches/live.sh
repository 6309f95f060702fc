#!/bin/bash
# towpath against iperf3, and netperfmeter where it is installed: interleaved rounds of one second each over loopback and over veth between
# two network namespaces, TCP and Multipath TCP (two subflows over veth); quartiles of the receiver's
# goodput and of the processor time of both processes for each gigabit. Needs `ip` and a quiet
# machine; no root.
#
#   TOWPATH=target/release/towpath ROUNDS=20 crates/towpath-live/benches/live.sh
#
# IPERF3 is iperf3; IPERF3_MPTCP how its client is called for Multipath TCP (`iperf3 -m` since 3.19;
# `mptcpize run iperf3` where that is installed), IPERF3_MPTCP_SERVER its server. CONTROL is the
# congestion control (cubic), which netperfmeter cannot choose: set the system's. Where the kernel has
# no SCTP, netperfmeter starts only with no_sctp.c beside this script, which needs `cc`.
#
# BEFORE is another build of towpath that takes part in each round, to show what a change cost. PLACES
# (loopback veth) and TRANSPORTS (tcp mptcp; quic and mpquic, too, which others do not speak) choose.
set -u
here=$(dirname "$(realpath "$0")")
if [ "${INSIDE:-}" != yes ]; then
    export TOWPATH BEFORE IPERF3 IPERF3_MPTCP IPERF3_MPTCP_SERVER ROUNDS CONTROL PLACES TRANSPORTS
    TOWPATH=$(realpath "${TOWPATH:-target/release/towpath}")
    [ -n "${BEFORE:-}" ] && BEFORE=$(realpath "$BEFORE")
    INSIDE=yes exec unshare --user --map-root-user --net --mount "$0" "$@"
fi
rounds=${ROUNDS:-20}
iperf3=${IPERF3:-iperf3}
if [ -z "${IPERF3_MPTCP:-}" ] && command -v mptcpize > /dev/null; then
    IPERF3_MPTCP="mptcpize run $iperf3" IPERF3_MPTCP_SERVER="mptcpize run $iperf3"
fi
control=${CONTROL:-cubic}
work=$(mktemp -d)
meter=
if command -v netperfmeter > /dev/null && cc -shared -fPIC -o "$work/no_sctp.so" "$here/no_sctp.c" -ldl
then
    meter=netperfmeter
fi
unshare --net sleep 3600 & far=$!
trap 'kill $far; rm -rf "$work"' EXIT
sleep 0.3
there() { nsenter --target "$far" --net "$@"; }
ip link set lo up
there ip link set lo up
for n in 1 2; do
    ip link add c$n type veth peer name s$n netns "$far"
    ip addr add 10.91.$n.2/24 dev c$n && ip link set c$n up
    there ip addr add 10.91.$n.1/24 dev s$n && there ip link set s$n up
done
ip mptcp limits set subflows 2 add_addr_accepted 2
there ip mptcp limits set subflows 2 add_addr_accepted 2
there ip mptcp endpoint add 10.91.2.1 dev s2 signal

# `user system` of a command, into a file; its output into another.
timed() { # name, command…
    local name=$1; shift
    TIMEFORMAT='%U %S'
    { time "$@" > "$work/$name.out" 2> "$work/$name.err"; } 2> "$work/$name.time"
}

# One round: tool, transport, target address, prefix of the server. Prints Gbit/s and s/Gbit.
round() {
    local tool=$1 transport=$2 target=$3 there=$4 server client bits
    if [ "$tool" = towpath ] || [ "$tool" = before ]; then
        local build=$TOWPATH
        [ "$tool" = before ] && build=$BEFORE
        timed server $there "$build" server --once -J & server=$!
        sleep 0.15
        timed client "$build" measure "$target" --transport "$transport" -t 1 -C "$control" -q -J \
            -o "$work/result"
        bits=$(sed -n 's/.*"goodput_bps":\([0-9.e+]*\).*/\1/p' "$work/client.out" | head -1)
    elif [ "$tool" = netperfmeter ]; then
        # Its passive end says what arrived; it sends messages of its largest size. Its own Multipath
        # TCP is that of kernels before 5.6.
        local over=
        [ "$transport" = mptcp ] && over="$TOWPATH exec --quiet --"
        timed server $there $over env LD_PRELOAD="$work/no_sctp.so" netperfmeter 9000 \
            -control-over-tcp -runtime=2 & server=$!
        sleep 0.15
        timed client $over env LD_PRELOAD="$work/no_sctp.so" netperfmeter "$target:9000" \
            -control-over-tcp -runtime=1 -tcp const0:const65535:const0:const0:maxmsgsize=65535
        wait "$server"
        bits=$(sed -n '/Reception:/,/Frames:/s/.*Bits:.*-> *\([0-9]*\) bit.*/\1/p' "$work/server.out" |
            sort -n | tail -1)
    else
        server=$iperf3 client=$iperf3
        if [ "$transport" = mptcp ]; then
            server=${IPERF3_MPTCP_SERVER:-$iperf3} client=$IPERF3_MPTCP
        fi
        timed server $there $server -s -1 & server=$!
        sleep 0.15
        timed client $client -c "$target" -t 1 -C "$control" -J
        bits=$(sed -n '/"sum_received"/,/}/s/.*"bits_per_second":[[:space:]]*\([0-9.e+]*\).*/\1/p' \
            "$work/client.out" | head -1)
    fi
    wait "$server"
    # Both hosts know the length of the round: goodput times one second.
    cat "$work/server.time" "$work/client.time" | awk -v bits="${bits:-0}" \
        '{ cpu += $1 + $2 } END { if (bits > 0) printf "%.3f %.5f\n", bits / 1e9, cpu * 1e9 / bits }'
}

quartiles() { # file, column
    sort -n -k"$2" "$1" | awk -v column="$2" '{ v[NR] = $column }
        END { if (NR) printf "%.3f [%.3f – %.3f]", v[int((NR + 1) / 2)], v[int((NR + 3) / 4)], v[int((3 * NR + 1) / 4)] }'
}

for place in ${PLACES:-loopback veth}; do
    for transport in ${TRANSPORTS:-tcp mptcp}; do
        tools="towpath ${BEFORE:+before}"
        case $transport in
            tcp) tools="$tools iperf3 $meter" ;;
            mptcp) tools="$tools ${IPERF3_MPTCP:+iperf3} $meter" ;;
        esac
        rm -f "$work"/*.figures
        for _ in $(seq "$rounds"); do
            for tool in $tools; do
                if [ "$place" = veth ]; then
                    round $tool $transport 10.91.1.1 "nsenter --target $far --net"
                else
                    round $tool $transport 127.0.0.1 ""
                fi >> "$work/$tool.figures"
            done
        done
        for tool in $tools; do
            echo "$place $transport $tool: $(quartiles "$work/$tool.figures" 1) Gbit/s," \
                "$(quartiles "$work/$tool.figures" 2) CPU s/Gbit, $(wc -l < "$work/$tool.figures") rounds"
        done
    done
done
