//! Quality of a connection with several paths: distribution of the data, losses, round-trip times
//! and buffers.

mod dropped_state;
mod stuck;

use std::net::IpAddr;

use towpath_host::setup::quoted;
use towpath_host::snapshot::HostSnapshot;
use towpath_host::snapshot::{LinkSnapshot, SubflowSnapshot};

use super::addresses::share_address;
use super::configuration::arp_finding;
use super::limits::raise_receive_buffer;
use super::view::{ObservationView, in_network, is_working};
use crate::finding::{Cause, Finding};
use crate::observation::{ObservedSubflow, PlainTcpCheck, TestConnection};
use crate::text;

/// Silence of a subflow that waits for an acknowledgement, after which it counts as stuck.
const SILENT_AFTER_MS: u32 = 400;
/// Maximum number of packets per loss at which the losses are more than chance.
const MAX_PACKETS_PER_LOSS: u32 = 16;
/// Minimum of lost packets, as a single loss may be chance.
const MIN_LOST: u32 = 2;
/// Ratio and difference of round-trip times from which a path is much slower.
const RTT_RATIO: u32 = 10;
const RTT_GAP_US: u32 = 150_000;
/// Minimum of additional delay, in microseconds, that shows a queue.
const MIN_QUEUE_US: u32 = 10_000;
/// Minimum of bytes on an interface for a conclusion.
const MIN_BYTES: u64 = 60_000;
/// Minimum MTU of every IPv6 link (RFC 8200 §5).
const IPV6_MIN_MTU: u32 = 1_280;
/// Minimum receive buffer for two paths.
const MIN_BUFFER_BYTES: u64 = 256 * 1024;

pub(super) fn findings(view: &ObservationView<'_>) -> Vec<Finding> {
    let Some(trial) = view.trial else { return Vec::new() };
    let mut findings = Vec::new();
    findings.extend(find_own_shared_link(view, trial));
    findings.extend(find_peer_shared_link(view));
    let working_subflows = || trial.subflows.iter().filter(|subflow| is_working(subflow));
    findings.extend(working_subflows().filter_map(|subflow| stuck::find_stuck(view, subflow)));
    findings.extend(trial.controls.iter().filter_map(|check| find_loss(view, trial, check)));
    findings.extend(working_subflows().filter_map(|subflow| find_mtu_black_hole(view, subflow)));
    findings.extend(find_slow_path(view, trial));
    findings.extend(find_backup_problem(trial));
    findings.extend(find_small_buffer(view));
    findings
}

/// Traffic of an interface in one direction, expected and counted.
#[derive(Debug, Clone, Copy)]
struct InterfaceLoad<'a> {
    link: &'a LinkSnapshot,
    /// Bytes according to the subflows.
    expected: u64,
    /// Bytes according to the interface counters.
    counted: u64,
}

/// Bytes of the subflows of a local address: received and sent.
type AddressTraffic = (IpAddr, [u64; 2]);

/// Returns the expected and counted traffic of a host's interfaces; `direction` is 0 for received
/// and 1 for sent.
fn loads<'a>(
    before: &'a HostSnapshot,
    after: &HostSnapshot,
    traffic: &[AddressTraffic],
    direction: usize,
) -> Vec<InterfaceLoad<'a>> {
    let links = before.links.iter().filter(|link| link.up && !link.loopback);
    let load = |link: &'a LinkSnapshot| {
        let is_on_link =
            |address| before.link_of(address).is_some_and(|other| other.index == link.index);
        let link_traffic = traffic.iter().filter(|(local, _)| is_on_link(*local));
        let expected = link_traffic.filter_map(|(_, bytes)| bytes.get(direction)).sum();
        let link_after = after.link(link.index)?;
        let byte_count =
            |link: &LinkSnapshot| if direction == 0 { link.rx_bytes } else { link.tx_bytes };
        Some(InterfaceLoad {
            link,
            expected,
            counted: byte_count(link_after).saturating_sub(byte_count(link)),
        })
    };
    links.filter_map(load).collect()
}

/// Finds an interface that carried little of its subflows' data, and the one that carried it.
fn find_wrong_interface<'a>(
    loads: &[InterfaceLoad<'a>],
) -> Option<(InterfaceLoad<'a>, InterfaceLoad<'a>)> {
    let lacks_traffic =
        |load: &&InterfaceLoad<'_>| load.expected > MIN_BYTES && load.counted < load.expected / 2;
    loads.iter().filter(lacks_traffic).find_map(|load| {
        let has_excess = |other: &&InterfaceLoad<'_>| {
            other.link.index != load.link.index
                && other.counted > other.expected.saturating_add(load.expected / 2)
        };
        Some((*load, *loads.iter().find(has_excess)?))
    })
}

/// Returns true if two interfaces are in the same IPv4 network.
pub(super) fn share_network(
    snapshot: &HostSnapshot,
    first: &LinkSnapshot,
    second: &LinkSnapshot,
) -> bool {
    let addresses_of =
        |index: u32| snapshot.addresses.iter().filter(move |address| address.link == index);
    addresses_of(first.index).filter(|entry| entry.address.is_ipv4()).any(|entry| {
        addresses_of(second.index).any(|other| {
            let length = entry.prefix_length.min(other.prefix_length);
            length < 32 && in_network(entry.address, length, other.address)
        })
    })
}

/// Reports data that leave or arrive by another interface than the one with their address.
fn find_shared_link(
    before: &HostSnapshot,
    after: &HostSnapshot,
    traffic: &[AddressTraffic],
    host: &str,
) -> Option<Finding> {
    let directions = [(0, "received"), (1, "sent")];
    for (direction, verb) in directions {
        let Some((idle_load, excess_load)) =
            find_wrong_interface(&loads(before, after, traffic, direction))
        else {
            continue;
        };
        let load_text = |load: &InterfaceLoad<'_>| {
            format!(
                "{}: subflows {verb} {}, the interface {}",
                load.link.name,
                text::bytes(load.expected),
                text::bytes(load.counted)
            )
        };
        if share_address(before, idle_load.link.index, excess_load.link.index) {
            continue; // a problem of its own
        }
        let (name, excess_name) = (&idle_load.link.name, &excess_load.link.name);
        if share_network(before, idle_load.link, excess_load.link) {
            let arp_ignore_text =
                format!("net.ipv4.conf.{name}.arp_ignore = {}", idle_load.link.arp_ignore);
            let finding = arp_finding(name, excess_name, host)
                .with_evidence(load_text(&idle_load))
                .with_evidence(load_text(&excess_load));
            return Some(finding.with_evidence(arp_ignore_text));
        }
        if direction == 1 {
            let entry = before.addresses.iter().find(|entry| entry.link == idle_load.link.index);
            let address =
                entry.map_or_else(|| "ADDRESS".to_owned(), |entry| entry.address.to_string());
            let table = idle_load.link.index.saturating_add(100);
            let ip_command = if address.contains(':') { "ip -6" } else { "ip" };
            let comment = if host == "this host" { "" } else { "   # on the other host" };
            return Some(
                Finding::new(
                    Cause::NoSourceRoute,
                    format!(
                        "data from the address of {name} leaves through {excess_name}: both share one link"
                    ),
                )
                .at_location(format!("{host}, {name}"))
                .with_evidence(load_text(&idle_load))
                .with_evidence(load_text(&excess_load))
                .hint(format!(
                    "set its gateway: `{ip_command} rule add from {address} table {table}` and \
                     `{ip_command} route add default via GATEWAY dev {} table {table}`{comment}",
                    quoted(name)
                )),
            );
        }
    }
    None
}

pub(super) fn find_own_shared_link(
    view: &ObservationView<'_>,
    trial: &TestConnection,
) -> Option<Finding> {
    let after = view.observation.after.as_ref()?;
    let bytes = |subflow: &ObservedSubflow| {
        (subflow.local.ip(), [subflow.tcp.bytes_received, subflow.tcp.bytes_acked])
    };
    let traffic: Vec<_> = trial.subflows.iter().map(bytes).collect();
    find_shared_link(view.here, after, &traffic, "this host")
}

fn find_peer_shared_link(view: &ObservationView<'_>) -> Option<Finding> {
    let peer = view.peer?;
    let after = peer.after.as_ref()?;
    let subflows = after.connections.iter().flat_map(|connection| &connection.subflows);
    let bytes = |subflow: &SubflowSnapshot| {
        (subflow.local.ip(), [subflow.bytes_received, subflow.bytes_acked])
    };
    let traffic: Vec<_> = subflows.map(bytes).collect();
    find_shared_link(&peer.before, after, &traffic, "other host")
}

/// Reports a path that passes only small packets.
fn report_mtu_black_hole(
    name: &str,
    path: &str,
    subflow: &ObservedSubflow,
    evidence: String,
) -> Finding {
    let sentence =
        format!("large packets are lost on {path} without an ICMP message (MTU black hole)");
    Finding::new(Cause::PathMtuHole, sentence)
        .at_location(path)
        .with_evidence(evidence)
        .with_evidence("plain TCP over the same path: small packets pass")
        .with_evidence(format!("packets of up to {} bytes are sent", subflow.tcp.path_mtu))
        .fix(format!("ip link set {} mtu {IPV6_MIN_MTU}", quoted(name)))
        .fix("sysctl -w net.ipv4.tcp_mtu_probing=1")
        .hint(format!(
            "a router or tunnel (VPN) of that path has a smaller MTU, and its messages are lost. To \
             find the MTU: `ping -M do -s SIZE -I {} {}` with the largest SIZE that is answered, \
             plus {} bytes",
            quoted(name),
            subflow.remote.ip(),
            if subflow.remote.is_ipv6() { 48 } else { 28 }
        ))
}

/// Detects an MTU black hole on the path. Small packets pass before and after large ones that do
/// not, or large packets arrive and their large replies do not.
fn find_mtu_black_hole(view: &ObservationView<'_>, subflow: &ObservedSubflow) -> Option<Finding> {
    /// Longest round-trip time; above it, the path may just be slow.
    const MAX_RTT_US: u32 = 50_000;
    /// Longest round-trip time if small packets passed during the test of the large ones.
    const MAX_RTT_SMALL_PASSED_US: u32 = 150_000;
    /// Minimum ratio of bytes sent to bytes received.
    const REPLY_RATIO: u64 = 4;
    let (local, remote) = (subflow.local.ip(), subflow.remote.ip());
    let check = view.plain_tcp_check(Some(local), remote)?;
    let only_small = passes_only_small(check);
    let small_passed_later = check.small_retry == Some(true);
    let max_rtt_us = if small_passed_later { MAX_RTT_SMALL_PASSED_US } else { MAX_RTT_US };
    let is_fast_and_lossless = check.min_rtt_us < max_rtt_us && check.resent == 0;
    // A single random loss also delays large packets.
    if check.large_retry == Some(true) || large_passed(subflow) {
        return None;
    }
    let (acked, received) = (subflow.tcp.bytes_acked, subflow.tcp.bytes_received);
    let only_sent_passes = acked > MIN_BYTES && received < acked / REPLY_RATIO;
    if !(only_small && is_fast_and_lossless && (only_sent_passes || small_passed_later))
        || (!small_passed_later && subflow.tcp.unacked > 0)
    {
        return None;
    }
    let name = view.here.link_of(local).map_or_else(|| local.to_string(), |link| link.name.clone());
    let path = format!("{name} ({local}) -> {remote}");
    let (acked, received) = (text::bytes(acked), text::bytes(received));
    let evidence = format!("{acked} arrived there, and {received} came back over this subflow");
    Some(report_mtu_black_hole(&name, &path, subflow, evidence))
}

/// Returns true if small packets pass and large ones do not. If small packets after the large ones
/// got no echo, or SYN packets were answered late, the path is slow or dead.
fn passes_only_small(check: &PlainTcpCheck) -> bool {
    (check.small, check.large) == (Some(true), Some(false))
        && check.small_retry != Some(false)
        && check.ports_answered_late == 0
}

/// Returns true if full-size segments passed in both directions: there are too many bytes for small
/// ones alone. Bytes behind a lost segment are not acknowledged.
pub(super) fn large_passed(subflow: &ObservedSubflow) -> bool {
    const MIN_SEGMENTS: u64 = 16;
    let fewer_bytes = subflow.tcp.bytes_acked.min(subflow.tcp.bytes_received);
    fewer_bytes > MIN_SEGMENTS * u64::from(subflow.tcp.mss_bytes.max(IPV6_MIN_MTU))
}

/// Returns true if a subflow waits for acknowledgements and receives nothing at all.
pub(super) fn is_stuck(subflow: &ObservedSubflow) -> bool {
    let tcp = subflow.tcp;
    tcp.unacked > 0
        && (tcp.backoff > 0 || tcp.retransmissions > 0)
        && tcp.silent_ms >= SILENT_AFTER_MS
}

/// Returns true if packets were lost without congestion, both in the plain TCP test and on a
/// subflow. One of the two alone may be a delay of this machine.
fn is_lossy(check: &PlainTcpCheck, subflow: &ObservedSubflow) -> bool {
    let losses = [(check.packets, check.resent), (check.answers, lost_replies(check))];
    // While a queue stands, small packets may be lost because it is full.
    let idle_rtt_us = subflow.tcp.min_rtt_us;
    if idle_rtt_us > 0
        && check.min_rtt_us > idle_rtt_us.saturating_mul(2).saturating_add(MIN_QUEUE_US)
    {
        return false;
    }
    let subflow_lost = subflow.tcp.retransmissions > 0 || subflow.tcp.out_of_order > 0;
    let is_significant = |((packets, lost), lost_in_bulk): ((u32, u32), bool)| {
        lost_in_bulk && lost >= MIN_LOST && lost.saturating_mul(MAX_PACKETS_PER_LOSS) >= packets
    };
    let in_bulk = bulk_losses(subflow);
    // A single loss is more than chance if the subflow is stuck, or large packets get no echo.
    let any_lost = losses.iter().any(|(_, lost)| *lost > 0);
    // In bulk transfers, an overflowing queue also reorders packets, but not most of the time.
    let reordered_bytes = u64::from(subflow.tcp.out_of_order) * u64::from(subflow.tcp.mss_bytes);
    let is_mostly_reordered =
        check.behind_gap > 0 && reordered_bytes.saturating_mul(2) > subflow.tcp.bytes_received;
    subflow_lost
        && (is_mostly_reordered
            || losses.into_iter().zip(in_bulk).any(is_significant)
            || (any_lost && (is_stuck(subflow) || check.large == Some(false))))
}

/// Returns true for each direction, sent and received, if the data of a subflow do not contradict a
/// lossy path: there are few of them, or many of them were lost. Each lost packet delays several.
fn bulk_losses(subflow: &ObservedSubflow) -> [bool; 2] {
    const MIN_PACKETS: u64 = 100;
    /// Minimum retransmissions, and minimum packets out of order, in percent.
    const MIN_PERCENT: [u64; 2] = [3, 6];
    let tcp = subflow.tcp;
    let mss = u64::from(tcp.mss_bytes.max(1));
    let is_consistent = |bytes: u64, lost: u32, min_percent: u64| {
        let packets = bytes / mss;
        packets < MIN_PACKETS
            || u64::from(lost).saturating_mul(100) >= packets.saturating_mul(min_percent)
    };
    let [sent_percent, received_percent] = MIN_PERCENT;
    [
        is_consistent(tcp.bytes_sent, tcp.retransmissions, sent_percent),
        is_consistent(tcp.bytes_received, tcp.out_of_order, received_percent),
    ]
}

/// Returns the lost replies: until a gap is filled, about three packets arrive behind it, and those
/// of one round-trip time.
pub(super) fn lost_replies(check: &PlainTcpCheck) -> u32 {
    const OOO_PER_LOSS: u32 = 3;
    /// Time between two packets of one of the three connections.
    const PACKET_INTERVAL_US: u32 = 36_000;
    check.behind_gap / (OOO_PER_LOSS + check.min_rtt_us / PACKET_INTERVAL_US)
}

/// Reports a path that loses packets without congestion.
pub(super) fn find_loss(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    check: &PlainTcpCheck,
) -> Option<Finding> {
    let (local, remote) = (check.local, check.remote.ip());
    let is_same_path =
        |subflow: &&ObservedSubflow| subflow.local.ip() == local && subflow.remote.ip() == remote;
    let subflow = trial.subflows.iter().find(is_same_path)?;
    if !is_lossy(check, subflow) {
        return None;
    }
    let name = view.here.link_of(local).map_or_else(|| local.to_string(), |link| link.name.clone());
    let path = format!("{name} ({local}) -> {remote}");
    Some(
        Finding::new(Cause::PathLossy, format!("{path} loses packets, and not because of a full queue"))
            .at_location(&path)
            .with_evidence(format!(
                "plain TCP over it: of {} small packets sent at intervals, {} were retransmitted; of {} replies, {} arrived after a gap",
                check.packets, check.resent, check.answers, check.behind_gap
            ))
            .with_evidence(format!(
                "the subflow retransmitted {}",
                text::count(subflow.tcp.retransmissions.into(), "packet")
            ))
            .hint(
                "possible causes: radio, a bad cable, a policer. Multipath TCP reinjects the lost data on another path",
            ),
    )
}

/// Reports round-trip times so different that reordering blocks data for long.
pub(super) fn find_slow_path(
    view: &ObservationView<'_>,
    trial: &TestConnection,
) -> Option<Finding> {
    let rtt_us = |subflow: &ObservedSubflow| {
        let idle_rtt_us = view
            .plain_tcp_check(Some(subflow.local.ip()), subflow.remote.ip())
            .map(|check| check.min_rtt_us);
        // A round-trip time with retransmissions includes the loss recovery.
        let subflow_rtt_us = Some(subflow.tcp.srtt_us).filter(|_| subflow.tcp.retransmissions == 0);
        // The smallest sample is from a time at which the queue of the path was not full.
        let min_rtt_us = Some(subflow.tcp.min_rtt_us);
        // A single sample may be late by chance.
        [idle_rtt_us, subflow_rtt_us, min_rtt_us]
            .into_iter()
            .flatten()
            .filter(|time| *time > 0)
            .min()
    };
    let subflows = trial.subflows.iter().filter(|subflow| is_working(subflow));
    let round_trips: Vec<_> =
        subflows.filter_map(|subflow| Some((rtt_us(subflow)?, subflow))).collect();
    let (fast_us, _) = round_trips.iter().min_by_key(|(time, _)| *time)?;
    let (slow_us, subflow) = round_trips.iter().max_by_key(|(time, _)| *time)?;
    if *slow_us < fast_us.saturating_mul(RTT_RATIO) || slow_us.saturating_sub(*fast_us) < RTT_GAP_US
    {
        return None;
    }
    let (local, remote) = (subflow.local.ip(), subflow.remote.ip());
    let name = view.here.link_of(local).map_or_else(|| local.to_string(), |link| link.name.clone());
    let path = format!("{name} ({local}) -> {remote}");
    Some(
        Finding::new(
            Cause::PathMuchSlower,
            format!(
                "{path} has a round-trip time of {} ms, another path {} ms",
                slow_us / 1_000,
                fast_us / 1_000
            ),
        )
        .at_location(&path)
        .with_evidence("round-trip times of small packets on each path")
        .hint(
            "data sent there arrives late, and later data waits for it: make it a backup \
               (`ip mptcp endpoint change id N backup`)",
        ),
    )
}

/// Reports backup flags that differ between the hosts, or data on backups although a regular path
/// exists.
pub(super) fn find_backup_problem(trial: &TestConnection) -> Option<Finding> {
    let is_alive = |subflow: &&ObservedSubflow| is_working(subflow) && subflow.tcp.backoff == 0;
    let is_backup = |subflow: &ObservedSubflow| subflow.backup_here || subflow.backup_there;
    let bytes = |subflow: &ObservedSubflow| {
        subflow.tcp.bytes_acked.saturating_add(subflow.tcp.bytes_received)
    };
    let further_subflows =
        || trial.subflows.iter().filter(is_alive).filter(|subflow| !subflow.first);
    let path_text =
        |subflow: &ObservedSubflow| format!("{} -> {}", subflow.local.ip(), subflow.remote.ip());
    if let Some(subflow) =
        further_subflows().find(|subflow| subflow.backup_there && !subflow.backup_here)
    {
        return Some(
            Finding::new(
                Cause::BackupFlagAsymmetric,
                format!(
                    "the other host marks {} as a backup, but this host does not",
                    path_text(subflow)
                ),
            )
            .at_location(path_text(subflow))
            .with_evidence(
                "its SYN/ACK with MP_JOIN has the flag B (MPJoinSynAckBackupRx), ours does not",
            )
            .hint("set the flag on both hosts or on neither: each host obeys the other's flag"),
        );
    }
    let has_regular = trial.subflows.iter().filter(is_alive).any(|subflow| !is_backup(subflow));
    let total_bytes: u64 = trial.subflows.iter().map(bytes).sum();
    let is_used_backup = |subflow: &&ObservedSubflow| {
        is_backup(subflow) && bytes(subflow) > MIN_BYTES.max(total_bytes / 10)
    };
    let subflow = further_subflows().find(is_used_backup).filter(|_| has_regular)?;
    Some(
        Finding::new(
            Cause::BackupUsed,
            format!("{} is a backup and carries data while another path works", path_text(subflow)),
        )
        .at_location(path_text(subflow))
        .with_evidence(format!(
            "{} sent and {} received over it",
            text::bytes(subflow.tcp.bytes_acked),
            text::bytes(subflow.tcp.bytes_received)
        ))
        .hint("set the flag on both hosts"),
    )
}

/// Reports a receive buffer too small for the data that arrive early on several paths.
pub(super) fn find_small_buffer(view: &ObservationView<'_>) -> Option<Finding> {
    let max_receive_buffer = |snapshot: &HostSnapshot| {
        let value = snapshot.settings.get("ipv4.tcp_rmem")?;
        value.split_whitespace().last()?.parse::<u64>().ok()
    };
    let own_buffer = max_receive_buffer(view.here).map(|bytes| (bytes, "this host"));
    let peer_buffer = view
        .peer
        .and_then(|peer| max_receive_buffer(peer.latest()))
        .map(|bytes| (bytes, "other host"));
    let (bytes, host) =
        own_buffer.into_iter().chain(peer_buffer).find(|(bytes, _)| *bytes < MIN_BUFFER_BYTES)?;
    let (snapshot, comment) = match view.peer {
        Some(peer) if host != "this host" => (peer.latest(), "   # on the other host"),
        Some(_) | None => (view.here, ""),
    };
    let current = snapshot.settings.get("ipv4.tcp_rmem").map(String::as_str);
    Some(
        Finding::new(
            Cause::ReceiveBufferTooSmall,
            format!(
                "the receive buffer ({}) is too small for several paths: the faster one waits for the \
                 slower one",
                text::bytes(bytes)
            ),
        )
        .at_location(host)
        .with_evidence(format!("{host}: net.ipv4.tcp_rmem ends with {bytes}"))
        .fix(raise_receive_buffer(current, comment)),
    )
}
