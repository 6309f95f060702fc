#!/bin/bash
# Process 1 of the virtual machine: plays the jobs of /jobs, and prints each result as a line of its
# own that starts with `@@`. What a job is, `mod.rs` says.
export PATH=/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/net /tmp /run
mount -t tmpfs tmpfs /tmp
mount -t tmpfs tmpfs /run
for module in inet_diag tcp_diag mptcp_diag veth tun sch_tbf sch_netem; do
    insmod "/modules/$module.ko" || echo "no module $module"
done
ip link set lo up

# One path: phone - a - b - server. The queue is where it is in our link model: in the network, before
# the delay. No super-segments, which a kernel's link would take for one packet.
path() { # number, rate, one-way delay, longest wait
    local n=$1 rate=$2 delay=$3 wait=$4 host
    for host in a$n b$n; do
        ip netns add $host
        ip -n $host link set lo up
        ip netns exec $host sysctl -qw net.ipv4.ip_forward=1
    done
    ip link add p$n netns phone type veth peer name to_phone netns a$n
    ip link add forth netns a$n type veth peer name back netns b$n
    ip link add p$n netns server type veth peer name to_server netns b$n
    ip -n phone addr add 10.64.$n.1/24 dev p$n
    ip -n a$n addr add 10.64.$n.254/24 dev to_phone
    ip -n a$n addr add 10.66.$n.1/24 dev forth
    ip -n b$n addr add 10.66.$n.2/24 dev back
    ip -n b$n addr add 10.65.$n.254/24 dev to_server
    ip -n server addr add 10.65.$n.2/24 dev p$n
    for host in "phone p$n" "a$n to_phone" "a$n forth" "b$n back" "b$n to_server" "server p$n"; do
        set -- $host
        ip -n $1 link set $2 up txqueuelen 1000
        ip netns exec $1 ethtool -K $2 tso off gso off gro off > /dev/null
    done
    ip -n a$n route add 10.65.0.0/16 via 10.66.$n.2
    ip -n b$n route add 10.64.$n.0/24 via 10.66.$n.1
    # The server has one address for all paths, as ours has.
    [ $n = 1 ] || ip -n b$n route add 10.65.1.0/24 via 10.65.$n.2
    ip -n server route add 10.64.$n.0/24 via 10.65.$n.254
    ip -n phone route add default via 10.64.$n.254 dev p$n table $n
    ip -n phone rule add from 10.64.$n.1 table $n
    [ $n != 1 ] || ip -n phone route add default via 10.64.1.254 dev p1
    ip netns exec a$n tc qdisc add dev forth root tbf rate $rate burst 15000 latency $wait
    ip netns exec b$n tc qdisc add dev back root tbf rate $rate burst 15000 latency $wait
    ip netns exec b$n tc qdisc add dev to_server root netem delay $delay limit 100000
    ip netns exec a$n tc qdisc add dev to_phone root netem delay $delay limit 100000
    [ $n = 1 ] || ip -n phone mptcp endpoint add 10.64.$n.1 dev p$n subflow
}

network() { # RATE/DELAY/WAIT of each path
    local n=0 one
    for host in phone server; do
        ip netns add $host
        ip -n $host link set lo up
        ip -n $host mptcp limits set subflows 8 add_addr_accepted 8
    done
    for one in "$@"; do
        n=$((n + 1))
        path $n ${one//,/ }
    done
}

# The whole result, with its series.
keep() {
    local file
    for file in /tmp/result/*.jsonl.zst; do
        [ ! -e "$file" ] || echo "= $(base64 -w 0 "$file")"
    done
    rm -rf /tmp/result
}

# The kernel's queues, delays and Multipath TCP.
kernel() { # packets, transport, control, seconds, receive buffer or -, paths…
    local packets=$1 transport=$2 control=$3 seconds=$4 buffer=$5 n
    shift 5
    network "$@"
    # Packets in one piece each: what waits in the receiver cannot be merged, as behind a TUN device. Where
    # they begin: when the last host put them together, Wi-Fi alone filled the window (7.7 Mbit/s; why was
    # not traced).
    for n in $([ "$packets" = merged ] || echo 1 2); do
        ip netns exec phone ethtool -K p$n sg off > /dev/null
    done
    [ "$buffer" = - ] || ip netns exec server sysctl -qw net.ipv4.tcp_rmem="$buffer $buffer $buffer"
    ip netns exec server towpath server --once -J -B 10.65.1.2 > /tmp/server 2>&1 &
    until [ -s /tmp/server ]; do sleep 0.05; done
    ip netns exec phone towpath measure 10.65.1.2 --transport $transport -C $control -t $seconds \
        -q --json -o /tmp/result 2> /tmp/errors | grep '^{'
    if [ "${PIPESTATUS[0]}" != 0 ]; then
        head -5 /tmp/errors /tmp/server
        kill $!
    fi
    wait
    for host in $(ip netns list | cut -d' ' -f1); do ip netns del $host; done
    keep
}

# The kernel's Multipath TCP, or ours, over the emulator's links.
emulator() { # transport, stack, scenario
    towpath run "/scenarios/$3.toml" --world emu --transport $1 --stack $2 -q --json \
        -o /tmp/result 2> /tmp/errors | grep '^{'
    [ "${PIPESTATUS[0]}" = 0 ] || head -5 /tmp/errors
    keep
}

# What this kernel says of itself.
facts() {
    local file
    for file in /proc/sys/net/mptcp/* /proc/sys/net/ipv4/tcp_{rmem,wmem,adv_win_scale,mtu_probing} \
        /proc/sys/net/ipv4/tcp_{congestion_control,ecn,min_tso_segs,rmem_scaling,rcvbuf_low_rtt}; do
        [ ! -r "$file" ] || echo "@@ fact ${file#/proc/sys/net/} = $(cat "$file")"
    done
    echo "@@ fact counters $(grep MPTcpExt: /proc/net/netstat | head -1)"
}

facts
while read -r id what arguments; do
    # No two runs begin at the same phase of the kernel's timers.
    sleep "0.$((RANDOM % 1000))"
    $what $arguments | while read -r line; do echo "@@ $id $line"; done
done < /jobs
echo "@@ end"
poweroff -f
