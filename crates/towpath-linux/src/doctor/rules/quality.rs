//! Quality of a connection with several paths: distribution of the data, losses, round-trip times
//! and buffers.

use std::net::IpAddr;

use towpath_measure::live::HostSnapshot;
use towpath_measure::live::snapshot::{LinkSnapshot, SubflowSnapshot};

use super::configuration::arp_finding;
use super::view::{ObservationView, in_network, works};
use crate::doctor::finding::{Cause, Confidence, Finding};
use crate::doctor::observation::{ObservedSubflow, PlainTcpCheck, TestConnection};
use crate::doctor::text;
use crate::setup::quoted;

/// Silence of a subflow that waits for an acknowledgement, after which it counts as stuck.
const SILENT_AFTER_MS: u32 = 400;
/// Small packets are echoed, and so are large ones.
const BOTH_ECHOED: (Option<bool>, Option<bool>) = (Some(true), Some(true));
/// One retransmission in this many packets is more than chance.
const LOSS_RATIO: u32 = 16;
/// Minimum of lost packets, as a single loss may be chance.
const MIN_LOST: u32 = 2;
/// Ratio and difference of round-trip times from which a path is much slower.
const RTT_RATIO: u32 = 10;
const RTT_GAP_US: u32 = 150_000;
/// Minimum of bytes on an interface for a conclusion.
const MIN_BYTES: u64 = 60_000;
/// Minimum MTU of every IPv6 link (RFC 8200 §5).
const IPV6_MIN_MTU: u32 = 1_280;
/// Minimum receive buffer for two paths.
const MIN_BUFFER_BYTES: u64 = 256 * 1024;

pub(super) fn findings(view: &ObservationView<'_>) -> Vec<Finding> {
    let Some(trial) = view.trial else { return Vec::new() };
    let mut findings = Vec::new();
    findings.extend(shared_link_here(view, trial));
    findings.extend(shared_link_there(view));
    let working = || trial.subflows.iter().filter(|one| works(one));
    findings.extend(working().filter_map(|one| stuck(view, one)));
    findings.extend(trial.controls.iter().filter_map(|control| lossy(view, trial, control)));
    findings.extend(working().filter_map(|one| reverse_path_blackhole(view, one)));
    findings.extend(slower(view, trial));
    findings.extend(backup(trial));
    findings.extend(buffer(view));
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
    moved: &[AddressTraffic],
    direction: usize,
) -> Vec<InterfaceLoad<'a>> {
    let links = before.links.iter().filter(|link| link.up && !link.loopback);
    let load = |link: &'a LinkSnapshot| {
        let on = |address| before.link_of(address).is_some_and(|one| one.index == link.index);
        let its = moved.iter().filter(|(local, _)| on(*local));
        let expected = its.filter_map(|(_, bytes)| bytes.get(direction)).sum();
        let now = after.link(link.index)?;
        let count =
            |link: &LinkSnapshot| if direction == 0 { link.rx_bytes } else { link.tx_bytes };
        Some(InterfaceLoad { link, expected, counted: count(now).saturating_sub(count(link)) })
    };
    links.filter_map(load).collect()
}

/// Finds an interface that carried little of its subflows' data, and the one that carried it.
fn wrong_interface<'a>(
    loads: &[InterfaceLoad<'a>],
) -> Option<(InterfaceLoad<'a>, InterfaceLoad<'a>)> {
    let missing =
        |one: &&InterfaceLoad<'_>| one.expected > MIN_BYTES && one.counted < one.expected / 2;
    loads.iter().filter(missing).find_map(|one| {
        let took = |other: &&InterfaceLoad<'_>| {
            other.link.index != one.link.index
                && other.counted > other.expected.saturating_add(one.expected / 2)
        };
        Some((*one, *loads.iter().find(took)?))
    })
}

/// Returns true if two interfaces are in the same IPv4 network.
fn share_network(look: &HostSnapshot, one: &LinkSnapshot, other: &LinkSnapshot) -> bool {
    let of = |index: u32| look.addresses.iter().filter(move |address| address.link == index);
    of(one.index).filter(|mine| mine.address.is_ipv4()).any(|mine| {
        of(other.index).any(|its| {
            let length = mine.prefix_length.min(its.prefix_length);
            length < 32 && in_network(mine.address, length, its.address)
        })
    })
}

/// Reports data that leave or arrive by another interface than the one with their address.
fn shared_link(
    before: &HostSnapshot,
    after: &HostSnapshot,
    moved: &[AddressTraffic],
    host: &str,
) -> Option<Finding> {
    let directions = [(0, "received"), (1, "sent")];
    for (direction, verb) in directions {
        let Some((one, other)) = wrong_interface(&loads(before, after, moved, direction)) else {
            continue;
        };
        let said = |load: &InterfaceLoad<'_>| {
            format!(
                "{}: subflows {verb} {}, the interface {}",
                load.link.name,
                text::bytes(load.expected),
                text::bytes(load.counted)
            )
        };
        let (name, taker) = (&one.link.name, &other.link.name);
        if share_network(before, one.link, other.link) {
            let ignore = format!("net.ipv4.conf.{name}.arp_ignore = {}", one.link.arp_ignore);
            let finding = arp_finding(name, taker, host)
                .with_evidence(said(&one))
                .with_evidence(said(&other));
            return Some(finding.with_evidence(ignore));
        }
        if direction == 1 {
            let address = before.addresses.iter().find(|address| address.link == one.link.index);
            let address =
                address.map_or_else(|| "ADDRESS".to_owned(), |one| one.address.to_string());
            let table = one.link.index.saturating_add(100);
            let ip = if address.contains(':') { "ip -6" } else { "ip" };
            let there = if host == "this host" { "" } else { "   # on the other host" };
            return Some(
                Finding::new(
                    Cause::NoSourceRoute,
                    format!(
                        "data from the address of {name} leaves by {taker}: they share one link"
                    ),
                )
                .at_location(format!("{host}, {name}"))
                .with_evidence(said(&one))
                .with_evidence(said(&other))
                .hint(format!(
                    "with its gateway: `{ip} rule add from {address} table {table}` and `{ip} route add \
                     default via GATEWAY dev {} table {table}`{there}",
                    quoted(name)
                )),
            );
        }
    }
    None
}

fn shared_link_here(view: &ObservationView<'_>, trial: &TestConnection) -> Option<Finding> {
    let after = view.all.after.as_ref()?;
    let bytes =
        |one: &ObservedSubflow| (one.local.ip(), [one.tcp.bytes_received, one.tcp.bytes_acked]);
    let moved: Vec<_> = trial.subflows.iter().map(bytes).collect();
    shared_link(view.here, after, &moved, "this host")
}

fn shared_link_there(view: &ObservationView<'_>) -> Option<Finding> {
    let peer = view.peer?;
    let after = peer.after.as_ref()?;
    let all = after.connections.iter().flat_map(|connection| &connection.subflows);
    let bytes = |one: &SubflowSnapshot| (one.local.ip(), [one.bytes_received, one.bytes_acked]);
    let moved: Vec<_> = all.map(bytes).collect();
    shared_link(&peer.before, after, &moved, "other host")
}

/// Reports an established subflow on which data are not acknowledged.
fn stuck(view: &ObservationView<'_>, one: &ObservedSubflow) -> Option<Finding> {
    let tcp = one.tcp;
    let waits = tcp.unacked > 0 && (tcp.backoff > 0 || tcp.retransmissions > 0);
    let (local, remote) = (one.local.ip(), one.remote.ip());
    let control = view.control(Some(local), remote);
    let (small, large) = control.map_or((None, None), |control| (control.small, control.large));
    // If small packets also wait behind our own data, the path is slow.
    let again = control.and_then(|control| control.small_retry);
    let only_small = (small, large) == (Some(true), Some(false)) && again != Some(false);
    // If only large packets are lost, the opposite direction still works.
    if !waits || (tcp.silent_ms < SILENT_AFTER_MS && !only_small) {
        return None;
    }
    // Losses are a finding of their own. If new packets pass, the path is not dead.
    let anew = control.is_some_and(|control| control.large_retry == Some(true));
    if control.is_some_and(|control| is_lossy(control, one))
        || anew
        || (small, large) == BOTH_ECHOED
    {
        return None;
    }
    let name = view.here.link_of(local).map_or_else(|| local.to_string(), |link| link.name.clone());
    let place = format!("{name} ({local}) -> {remote}");
    let evidence = format!(
        "{} not acknowledged, {} in a row, nothing heard for {} ms",
        text::count(tcp.unacked.into(), "packet"),
        text::count(tcp.backoff.into(), "timeout"),
        tcp.silent_ms
    );
    let after = view.all.after.as_ref().and_then(|after| after.link_of(local));
    if after.is_some_and(|link| !link.running) {
        return Some(
            Finding::new(Cause::LinkDown, format!("the link of {name} is down"))
                .at_location(name)
                .with_evidence(evidence)
                .hint("the kernel sends no event of the path manager for that"),
        );
    }
    if only_small {
        return Some(mtu_black_hole(&name, &place, one, evidence));
    }
    let finding = Finding::new(
        Cause::PathSilent,
        format!("{place} was established, and now nothing comes back over it"),
    )
    .at_location(&place)
    .with_evidence(evidence);
    let finding = match control {
        Some(control) => finding.with_evidence(format!(
            "plain TCP over the same path: {}",
            text::outcome(control.outcome)
        )),
        None => finding.with_confidence(Confidence::Likely),
    };
    Some(finding.hint("the kernel sends no event for that, and counts the subflow as one"))
}

/// Reports a path that passes only small packets.
fn mtu_black_hole(name: &str, place: &str, one: &ObservedSubflow, evidence: String) -> Finding {
    let sentence = format!("large packets are lost on {place}, and nobody says so");
    Finding::new(Cause::PathMtuHole, sentence)
        .at_location(place)
        .with_evidence(evidence)
        .with_evidence("plain TCP over the same path: small packets come back, large ones do not")
        .with_evidence(format!("packets of up to {} bytes are sent", one.tcp.path_mtu))
        .fix(format!("ip link set {} mtu {IPV6_MIN_MTU}", quoted(name)))
        .fix("sysctl -w net.ipv4.tcp_mtu_probing=1")
        .hint("a router or tunnel of that path has a smaller MTU and its messages are filtered")
}

/// Detects an MTU black hole on the path. Small packets pass before and after large ones that do
/// not, or large packets arrive and their large replies do not.
fn reverse_path_blackhole(view: &ObservationView<'_>, one: &ObservedSubflow) -> Option<Finding> {
    /// Longest round-trip time; above it, the path may just be slow.
    const MAX_RTT_US: u32 = 50_000;
    /// The same if small packets passed during the test of the large ones.
    const MAX_RTT_SMALL_PASSED_US: u32 = 150_000;
    /// Minimum ratio of bytes sent to bytes received.
    const REPLY_RATIO: u64 = 4;
    let (local, remote) = (one.local.ip(), one.remote.ip());
    let control = view.control(Some(local), remote)?;
    let only_small = (control.small, control.large) == (Some(true), Some(false));
    let told = control.small_retry == Some(true);
    let longest = if told { MAX_RTT_SMALL_PASSED_US } else { MAX_RTT_US };
    let near = control.min_rtt_us < longest && control.resent == 0;
    // A single random loss also delays large packets.
    if control.large_retry == Some(true) || large_passed(one) {
        return None;
    }
    let (acked, received) = (one.tcp.bytes_acked, one.tcp.bytes_received);
    let one_way = acked > MIN_BYTES && received < acked / REPLY_RATIO;
    if !(only_small && near && (one_way || told)) || (!told && one.tcp.unacked > 0) {
        return None;
    }
    let name = view.here.link_of(local).map_or_else(|| local.to_string(), |link| link.name.clone());
    let place = format!("{name} ({local}) -> {remote}");
    let (acked, received) = (text::bytes(acked), text::bytes(received));
    let evidence = format!("{acked} arrived there, and {received} came back over this subflow");
    Some(mtu_black_hole(&name, &place, one, evidence))
}

/// Returns true if full-size segments passed in both directions: there are too many bytes for small
/// ones alone. Bytes behind a lost segment are not acknowledged.
fn large_passed(one: &ObservedSubflow) -> bool {
    const MIN_SEGMENTS: u64 = 16;
    let both = one.tcp.bytes_acked.min(one.tcp.bytes_received);
    both > MIN_SEGMENTS * u64::from(one.tcp.mss_bytes.max(IPV6_MIN_MTU))
}

/// Returns true if it waits for acknowledgements and receives nothing at all.
fn is_stuck(one: &ObservedSubflow) -> bool {
    let tcp = one.tcp;
    tcp.unacked > 0
        && (tcp.backoff > 0 || tcp.retransmissions > 0)
        && tcp.silent_ms >= SILENT_AFTER_MS
}

/// Returns true if packets were lost without congestion, both in the plain TCP test and on a
/// subflow. One of the two alone may be a delay of this machine.
fn is_lossy(control: &PlainTcpCheck, subflow: &ObservedSubflow) -> bool {
    let lost = [(control.packets, control.resent), (control.answers, lost_replies(control))];
    let there = subflow.tcp.retransmissions > 0 || subflow.tcp.out_of_order > 0;
    // A stuck subflow plus one lost packet is more than chance.
    let many = |(all, lost): (u32, u32)| lost >= MIN_LOST && lost.saturating_mul(LOSS_RATIO) >= all;
    let one = lost.iter().any(|(_, lost)| *lost > 0);
    // In bulk transfers, an overflowing queue also reorders packets, but not most of the time.
    let bulk = u64::from(subflow.tcp.out_of_order) * u64::from(subflow.tcp.mss_bytes);
    let mostly = control.behind_gap > 0 && bulk.saturating_mul(2) > subflow.tcp.bytes_received;
    there
        && (mostly
            || lost.into_iter().any(many)
            || (one && (is_stuck(subflow) || control.large == Some(false))))
}

/// Returns the lost replies: until a gap is filled, about three packets arrive behind it.
fn lost_replies(control: &PlainTcpCheck) -> u32 {
    const OOO_PER_LOSS: u32 = 3;
    control.behind_gap / OOO_PER_LOSS
}

/// Reports a path that loses packets without congestion.
pub(super) fn lossy(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    control: &PlainTcpCheck,
) -> Option<Finding> {
    let (local, remote) = (control.local, control.remote.ip());
    let same = |one: &&ObservedSubflow| one.local.ip() == local && one.remote.ip() == remote;
    let subflow = trial.subflows.iter().find(same)?;
    if !is_lossy(control, subflow) {
        return None;
    }
    let name = view.here.link_of(local).map_or_else(|| local.to_string(), |link| link.name.clone());
    let place = format!("{name} ({local}) -> {remote}");
    Some(
        Finding::new(Cause::PathLossy, format!("{place} loses packets, and not for want of room"))
            .at_location(&place)
            .with_evidence(format!(
                "plain TCP over it: of {} small packets with room between them, {} were sent again; \
                 of {} with answers, {} came behind a gap",
                control.packets, control.resent, control.answers, control.behind_gap
            ))
            .with_evidence(format!(
                "the subflow sent {} again",
                text::count(subflow.tcp.retransmissions.into(), "packet")
            ))
            .hint(
                "radio, a bad cable, a policer: Multipath TCP repeats on another path what is lost",
            ),
    )
}

/// Reports round-trip times so different that reordering blocks data for long.
fn slower(view: &ObservationView<'_>, trial: &TestConnection) -> Option<Finding> {
    let timed = |one: &ObservedSubflow| {
        let idle = view.control(Some(one.local.ip()), one.remote.ip()).map(|one| one.min_rtt_us);
        // A round-trip time with retransmissions includes the loss recovery.
        let measured = Some(one.tcp.srtt_us).filter(|_| one.tcp.retransmissions == 0);
        idle.filter(|time| *time > 0).or(measured.filter(|time| *time > 0))
    };
    let all = trial.subflows.iter().filter(|one| works(one));
    let round_trips: Vec<_> = all.filter_map(|one| Some((timed(one)?, one))).collect();
    let (fast, _) = round_trips.iter().min_by_key(|(time, _)| *time)?;
    let (slow, one) = round_trips.iter().max_by_key(|(time, _)| *time)?;
    if *slow < fast.saturating_mul(RTT_RATIO) || slow.saturating_sub(*fast) < RTT_GAP_US {
        return None;
    }
    let (local, remote) = (one.local.ip(), one.remote.ip());
    let name = view.here.link_of(local).map_or_else(|| local.to_string(), |link| link.name.clone());
    let place = format!("{name} ({local}) -> {remote}");
    Some(
        Finding::new(
            Cause::PathMuchSlower,
            format!(
                "{place} takes {} ms there and back, another path {} ms",
                slow / 1_000,
                fast / 1_000
            ),
        )
        .at_location(&place)
        .with_evidence("round-trip times of small packets on each path")
        .hint(
            "what is sent there arrives late, and all that follows waits for it: make it a backup \
               (`ip mptcp endpoint change id N backup`)",
        ),
    )
}

/// Reports backup flags that differ between the hosts, or data on backups although a regular path
/// exists.
fn backup(trial: &TestConnection) -> Option<Finding> {
    let alive = |one: &&ObservedSubflow| works(one) && one.tcp.backoff == 0;
    let is_backup = |one: &ObservedSubflow| one.backup_here || one.backup_there;
    let bytes = |one: &ObservedSubflow| one.tcp.bytes_acked.saturating_add(one.tcp.bytes_received);
    let further = || trial.subflows.iter().filter(alive).filter(|one| !one.first);
    let place = |one: &ObservedSubflow| format!("{} -> {}", one.local.ip(), one.remote.ip());
    if let Some(one) = further().find(|one| one.backup_there && !one.backup_here) {
        return Some(
            Finding::new(
                Cause::BackupFlagAsymmetric,
                format!("the other host wants {} as a backup, and this host does not", place(one)),
            )
            .at_location(place(one))
            .with_evidence(
                "its answer to MP_JOIN has the flag B (MPJoinSynAckBackupRx), ours has not",
            )
            .hint("set the flag on both hosts, or on none: each end obeys what the other asks for"),
        );
    }
    let regular = trial.subflows.iter().filter(alive).any(|one| !is_backup(one));
    let all: u64 = trial.subflows.iter().map(bytes).sum();
    let used = |one: &&ObservedSubflow| is_backup(one) && bytes(one) > MIN_BYTES.max(all / 10);
    let one = further().find(used).filter(|_| regular)?;
    Some(
        Finding::new(
            Cause::BackupUsed,
            format!("{} is a backup and carries data while another path works", place(one)),
        )
        .at_location(place(one))
        .with_evidence(format!(
            "{} sent and {} received over it",
            text::bytes(one.tcp.bytes_acked),
            text::bytes(one.tcp.bytes_received)
        ))
        .hint("set the flag on both hosts"),
    )
}

/// Reports a receive buffer too small for the data that arrive early on several paths.
fn buffer(view: &ObservationView<'_>) -> Option<Finding> {
    let most = |poll: &HostSnapshot| {
        let value = poll.settings.get("ipv4.tcp_rmem")?;
        value.split_whitespace().last()?.parse::<u64>().ok()
    };
    let here = most(view.here).map(|most| (most, "this host"));
    let there = view.peer.and_then(|peer| most(peer.latest())).map(|most| (most, "other host"));
    let (most, host) = here.into_iter().chain(there).find(|(most, _)| *most < MIN_BUFFER_BYTES)?;
    let there = if host == "this host" { "" } else { "   # on the other host" };
    Some(
        Finding::new(
            Cause::ReceiveBufferTooSmall,
            format!(
                "the receive buffer ({}) is too small for several paths: the faster one waits for the \
                 slower one",
                text::bytes(most)
            ),
        )
        .at_location(host)
        .with_evidence(format!("{host}: net.ipv4.tcp_rmem ends with {most}"))
        .fix(format!("sysctl -w net.ipv4.tcp_rmem=\"4096 131072 6291456\"{there}")),
    )
}
