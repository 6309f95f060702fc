# Two hosts with two interfaces each, in network namespaces of your own; needs no root.
#
#   unshare -Urnpf --mount-proc --kill-child sh docs/guides/two-hosts.sh switch
#   unshare -Urnpf --mount-proc --kill-child sh docs/guides/two-hosts.sh cables
#
# opens a shell in which `client COMMAND` and `server COMMAND` (or `server2` and `server1`, at the
# ends of the cables) run there. All of it is gone when the shell ends.

client() { nsenter -t "$ONE" -n sh -c "$*"; }
server() { nsenter -t "$TWO" -n sh -c "$*"; }
server1() { server "$@"; }
server2() { client "$@"; }

limited() { # LINK: 40 Mbit/s, a little queue
    echo "tc qdisc add dev $1 root tbf rate 40mbit burst 32k latency 50ms"
}

# One network for everything, as at one switch: HOST's PID, LINK, ADDRESS.
plug() {
    ip link add "$1-$2" type veth peer name "$2" netns "$1"
    ip link set "$1-$2" master switch up
    $(limited "$1-$2")
    nsenter -t "$1" -n sh -c "ip addr add $3/24 dev $2 && ip link set $2 up && $(limited "$2")"
}

# A cable between both hosts: LINK, NETWORK.
cable() {
    nsenter -t "$ONE" -n ip link add "$1" type veth peer name "$1" netns "$TWO"
    client "ip addr add $2.2/24 dev $1 && ip link set $1 up && $(limited "$1")"
    server "ip addr add $2.1/24 dev $1 && ip link set $1 up && $(limited "$1")"
}

build() {
    own=$(readlink /proc/self/ns/net)
    unshare -n sleep infinity & ONE=$!
    unshare -n sleep infinity & TWO=$!
    export ONE TWO
    for host in $ONE $TWO; do
        until [ "$(readlink "/proc/$host/ns/net")" != "$own" ]; do sleep 0.01; done
        nsenter -t "$host" -n ip link set lo up
    done
    case $1 in
        switch)
            ip link add switch type bridge && ip link set switch up
            plug "$ONE" eth0 172.31.0.133
            plug "$ONE" wlan0 172.31.0.173
            plug "$TWO" eth0 172.31.0.218
            plug "$TWO" wlan0 172.31.0.237
            links='eth0 wlan0' ;;
        cables)
            cable eno1 10.0.0
            cable eno2 192.168.0
            links='eno1 eno2' ;;
    esac
    for link in $links; do
        until client ip link show "$link" | grep -q 'state UP'; do sleep 0.01; done
        until server ip link show "$link" | grep -q 'state UP'; do sleep 0.01; done
    done
}

case $0 in
    *two-hosts.sh)
        build "${1:?switch or cables}"
        ENV=$(readlink -f "$0") exec sh -i ;;
esac
