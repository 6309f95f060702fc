#!/bin/sh
# One trial of `rattan` with the probes of `emulator`, which starts this script. Needs root.
# Arguments: program, priority (ordinary or real-time), words of the receiving and of the sending
# probe. Rattan runs the sender and makes what lies between; the receiver is where rattan is.
set -eu
program=$1 priority=$2 receive=$3 send=$4

if [ "${ENTERED:-}" != yes ]; then
    # Network and mount namespaces of its own, gone with the script; nothing takes over a minute.
    ENTERED=yes exec timeout -k 5 90 unshare --net --mount --propagation private sh "$0" "$@"
fi
# Where rattan keeps the names of its namespaces and its log.
mount -t tmpfs tmpfs /run
cd /run
ip link set lo up

case $send in
*tcp-send*) set -- ;;
*udp-send*) set -- --uplink-delay 10ms --downlink-delay 10ms ;;
*) set -- --uplink-bandwidth 100Mbps --uplink-queue droptail --uplink-queue-args '{"byte_limit":625000}' ;;
esac
if [ "$priority" = real-time ]; then as="chrt --fifo 40" back="chrt --other 0"; else as="" back=""; fi

# shellcheck disable=SC2086 # the words are separate arguments
"$program" $receive &
receiver=$!
trap 'kill $receiver 2>/dev/null || true' EXIT
# shellcheck disable=SC2086
$as "$RATTAN" link "$@" -- sh -c "exec $back $program $send" >rattan.log 2>rattan.err || {
    tail -n 5 rattan.log rattan.err >&2
    exit 1
}
grep '^figure ' rattan.log rattan.err -h >&2 || true
wait $receiver
