//! There are several paths: does data take them as it should?

use towpath_measure::live::Look;
use towpath_measure::live::look::{Link, Subflow};

use super::configuration::arp_finding;
use super::view::{View, in_network, works};
use crate::doctor::finding::{Cause, Confidence, Finding};
use crate::doctor::observation::{SubflowSeen, Trial};
use crate::doctor::words;

/// Fewer bytes on an interface may be anything.
const ENOUGH_BYTES: u64 = 60_000;
/// A receive buffer below this is too small for any two paths worth having.
const SMALLEST_BUFFER: u64 = 256 * 1024;

pub(super) fn findings(view: &View<'_>) -> Vec<Finding> {
    let Some(trial) = view.trial else { return Vec::new() };
    let mut findings = Vec::new();
    findings.extend(shared_link_here(view, trial));
    findings.extend(shared_link_there(view));
    let working = || trial.subflows.iter().filter(|one| works(one));
    findings.extend(working().filter_map(|one| silent(view, one)));
    findings.extend(backup(trial));
    findings.extend(buffer(view));
    findings
}

/// Bytes of subflows by the interface that has their address.
#[derive(Debug, Clone, Copy)]
struct Load<'a> {
    link: &'a Link,
    /// What subflows say that arrived.
    expected: u64,
    /// What the interface says.
    counted: u64,
}

/// Interfaces of a host with what they should have received and what they did.
fn loads<'a>(
    before: &'a Look,
    after: &Look,
    subflows: &[(std::net::IpAddr, u64)],
) -> Vec<Load<'a>> {
    let links = before.links.iter().filter(|link| link.up && !link.loopback);
    let load = |link: &'a Link| {
        let on = |address| before.link_of(address).is_some_and(|one| one.index == link.index);
        let expected =
            subflows.iter().filter(|(local, _)| on(*local)).map(|(_, bytes)| bytes).sum();
        let now = after.link(link.index)?.rx_bytes;
        Some(Load { link, expected, counted: now.saturating_sub(link.rx_bytes) })
    };
    links.filter_map(load).collect()
}

/// An interface got almost nothing of what its subflows received, and another in the same network
/// got it.
fn misled(look: &Look, loads: &[Load<'_>], host: &str) -> Option<Finding> {
    let of = |link: &Link| {
        let index = link.index;
        look.addresses.iter().filter(move |one| one.link == index)
    };
    for one in loads.iter().filter(|one| one.expected > ENOUGH_BYTES) {
        if one.counted > one.expected / 2 {
            continue;
        }
        let taker = loads.iter().find(|other| {
            let shared = of(one.link).any(|mine| {
                of(other.link).any(|its| {
                    in_network(mine.address, mine.prefix_length.min(its.prefix_length), its.address)
                })
            });
            other.link.index != one.link.index
                && shared
                && other.counted > other.expected.saturating_add(one.expected / 2)
        });
        if let Some(other) = taker {
            let said = |load: &Load<'_>| {
                format!(
                    "{}: subflows received {}, the interface {}",
                    load.link.name,
                    words::bytes(load.expected),
                    words::bytes(load.counted)
                )
            };
            let finding = arp_finding(&one.link.name, &other.link.name, host);
            let finding = finding.because(said(one)).because(said(other));
            return Some(finding.because(format!(
                "net.ipv4.conf.{}.arp_ignore = {}",
                one.link.name, one.link.arp_ignore
            )));
        }
    }
    None
}

fn shared_link_here(view: &View<'_>, trial: &Trial) -> Option<Finding> {
    let after = view.all.after.as_ref()?;
    let bytes = |one: &SubflowSeen| (one.local.ip(), one.tcp.bytes_received);
    let subflows: Vec<_> = trial.subflows.iter().map(bytes).collect();
    misled(view.here, &loads(view.here, after, &subflows), "this host")
}

fn shared_link_there(view: &View<'_>) -> Option<Finding> {
    let peer = view.peer?;
    let after = peer.after.as_ref()?;
    let all = after.connections.iter().flat_map(|connection| &connection.subflows);
    let bytes = |one: &Subflow| (one.local.ip(), one.bytes_received);
    let subflows: Vec<_> = all.map(bytes).collect();
    misled(&peer.before, &loads(&peer.before, after, &subflows), "other host")
}

/// An established subflow over which nothing is acknowledged.
fn silent(view: &View<'_>, one: &SubflowSeen) -> Option<Finding> {
    let tcp = one.tcp;
    let stuck = tcp.unacked > 0 && (tcp.backoff > 0 || tcp.retransmissions > 0);
    if !stuck || (tcp.backoff < 2 && tcp.bytes_acked > u64::from(tcp.mss_bytes) * 4) {
        return None;
    }
    let (local, remote) = (one.local.ip(), one.remote.ip());
    let name = view.here.link_of(local).map_or_else(|| local.to_string(), |link| link.name.clone());
    let place = format!("{name} ({local}) -> {remote}");
    let after = view.all.after.as_ref().and_then(|after| after.link_of(local));
    let evidence = format!(
        "{} not acknowledged, {} in a row",
        words::count(tcp.unacked.into(), "packet"),
        words::count(tcp.backoff.into(), "timeout")
    );
    if after.is_some_and(|link| !link.running) {
        return Some(
            Finding::new(Cause::LinkDown, format!("the link of {name} is down"))
                .at(place)
                .because(evidence)
                .hint("the kernel sends no event for that"),
        );
    }
    let control = view.control(Some(local), remote);
    let (small, large) = control.map_or((None, None), |control| (control.small, control.large));
    if (small, large) == (Some(true), Some(false)) {
        return Some(
            Finding::new(
                Cause::PathMtuHole,
                format!("large packets are lost on {place}, and nobody says so"),
            )
            .at(&place)
            .because(evidence)
            .because("plain TCP over the same path: small packets come back, large ones do not")
            .because(format!("packets of up to {} bytes are sent", tcp.path_mtu))
            .fix(format!("ip link set {name} mtu 1280"))
            .fix("sysctl -w net.ipv4.tcp_mtu_probing=1")
            .hint(
                "a router or tunnel of that path has a smaller MTU and its messages are filtered",
            ),
        );
    }
    let finding = Finding::new(
        Cause::PathSilent,
        format!("{place} was established, and now nothing comes back over it"),
    )
    .at(&place)
    .because(evidence);
    let finding = match control {
        Some(control) => finding
            .because(format!("plain TCP over the same path: {}", words::outcome(control.outcome))),
        None => finding.sure(Confidence::Likely),
    };
    Some(finding.hint("the kernel sends no event for that, and counts the subflow as one"))
}

/// Data on backups while there is something better.
fn backup(trial: &Trial) -> Option<Finding> {
    let alive = |one: &&SubflowSeen| works(one) && one.tcp.backoff == 0;
    let is_backup = |one: &SubflowSeen| one.backup_here || one.backup_there;
    let bytes = |one: &SubflowSeen| one.tcp.bytes_acked.saturating_add(one.tcp.bytes_received);
    let regular = trial.subflows.iter().filter(alive).any(|one| !is_backup(one));
    let all: u64 = trial.subflows.iter().map(bytes).sum();
    let one = trial
        .subflows
        .iter()
        .filter(alive)
        .find(|one| is_backup(one) && bytes(one) > ENOUGH_BYTES && bytes(one) > all / 10)?;
    if !regular {
        return None;
    }
    let place = format!("{} -> {}", one.local.ip(), one.remote.ip());
    let asymmetric = one.backup_here != one.backup_there;
    let asked = if one.backup_here { "this host" } else { "the other host" };
    let (cause, sentence) = if asymmetric {
        (
            Cause::BackupFlagAsymmetric,
            format!(
                "{asked} wants {place} as a backup, and the other end sends over it all the same"
            ),
        )
    } else {
        (
            Cause::BackupUsed,
            format!("{place} is a backup and carries data while another path works"),
        )
    };
    Some(
        Finding::new(cause, sentence)
            .at(place)
            .because(format!(
                "{} sent and {} received over it",
                words::bytes(one.tcp.bytes_acked),
                words::bytes(one.tcp.bytes_received)
            ))
            .hint("set the flag on both hosts"),
    )
}

/// Several paths need room for what arrives early.
fn buffer(view: &View<'_>) -> Option<Finding> {
    let most = |look: &Look| {
        let value = look.settings.get("ipv4.tcp_rmem")?;
        value.split_whitespace().last()?.parse::<u64>().ok()
    };
    let here = most(view.here).map(|most| (most, "this host"));
    let there = view.peer.and_then(|peer| most(peer.latest())).map(|most| (most, "other host"));
    let (most, host) = here.into_iter().chain(there).find(|(most, _)| *most < SMALLEST_BUFFER)?;
    Some(
        Finding::new(
            Cause::ReceiveBufferTooSmall,
            format!(
                "the receive buffer ({}) is too small for several paths: the faster one waits for the \
                 slower one",
                words::bytes(most)
            ),
        )
        .at(host)
        .because(format!("{host}: net.ipv4.tcp_rmem ends with {most}"))
        .fix("sysctl -w net.ipv4.tcp_rmem=\"4096 131072 6291456\""),
    )
}
