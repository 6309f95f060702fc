//! Overall health: paths that were seen to work, and those never observed.

use std::collections::BTreeSet;

use towpath_host::snapshot::LinkSnapshot;

use super::view::ObservationView;
use crate::finding::{Cause, Diagnosis, Finding, Health, PathShare};
use crate::observation::{ObservedSubflow, TestConnection};
use crate::text;

/// Returns the established subflows with their shares of the data.
pub(super) fn paths(view: &ObservationView<'_>) -> Vec<PathShare> {
    let subflows = view.trial.map(|trial| trial.subflows.as_slice()).unwrap_or_default();
    let bytes = |subflow: &ObservedSubflow| {
        subflow.tcp.bytes_acked.saturating_add(subflow.tcp.bytes_received)
    };
    let total: u64 = subflows.iter().map(bytes).sum();
    let percent = |part: u64| {
        let share = u128::from(part) * 100 + u128::from(total) / 2;
        u8::try_from(share.checked_div(total.into()).unwrap_or(0)).unwrap_or(100)
    };
    let share = |subflow: &ObservedSubflow| PathShare {
        interface: view
            .path_link(subflow.local.ip(), subflow.remote.ip())
            .map(|link| link.name.clone()),
        local: subflow.local.ip(),
        remote: subflow.remote.ip(),
        bytes: bytes(subflow),
        percent: percent(bytes(subflow)),
        backup: subflow.backup_here || subflow.backup_there,
    };
    subflows.iter().filter(|subflow| subflow.established).map(share).collect()
}

/// Returns the overall health; for `Undetermined` also the reason, and for `OnePath` the path.
pub(super) fn verdict(
    view: &ObservationView<'_>,
    findings: &[Finding],
    paths: &[PathShare],
) -> (Health, Option<String>) {
    if !findings.is_empty() {
        return (if is_broken(view, findings) { Health::Broken } else { Health::Impaired }, None);
    }
    let undetermined = |reason: String| (Health::Undetermined, Some(reason));
    let Some(trial) = view.trial else {
        return undetermined("no connection was tried".to_owned());
    };
    let server = trial.server.name();
    let carries = |path: &&PathShare| path.bytes >= Diagnosis::MIN_DATA_BYTES;
    let missing: Vec<_> = expected_addresses(view, trial.target.is_ipv4())
        .filter(|address| !paths.iter().any(|path| path.local == *address))
        .filter(|address| {
            let link = view.path_link(*address, trial.target.ip()).map(|link| &link.name);
            link.is_none() || !paths.iter().any(|path| path.interface.as_ref() == link)
        })
        .map(|address| address_label(view, address))
        .collect();
    // Several subflows over one interface are one path.
    let carrying: BTreeSet<_> = paths.iter().filter(carries).map(PathShare::label).collect();
    let carrying_count = carrying.len();
    let is_idle = |path: &&PathShare| !path.backup && !carrying.contains(&path.label());
    let idle: BTreeSet<_> = paths.iter().filter(is_idle).map(PathShare::label).collect();
    if trial.closed_by_peer && (carrying_count < 2 || !missing.is_empty()) {
        return undetermined(format!(
            "{server} closed the connection before paths could be observed"
        ));
    }
    if !missing.is_empty() && view.here.link_of(trial.target.ip()).is_some() {
        return undetermined(
            "the server is on this host, so the connection uses no path".to_owned(),
        );
    }
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return undetermined(format!(
            "no subflow from {missing} was observed, and no cause was found"
        ));
    }
    if !idle.is_empty() {
        let idle = idle.into_iter().collect::<Vec<_>>().join(", ");
        return undetermined(format!(
            "the subflows are established, and {idle} carried little or no data: not more was exchanged with {server}"
        ));
    }
    let has_unexplained_loss =
        |subflow: &&ObservedSubflow| is_lossy(subflow) && !passed_spaced_packets(view, subflow);
    if let Some(lossy) = trial.subflows.iter().find(has_unexplained_loss) {
        let link = address_label(view, lossy.local.ip());
        let packets = text::count(lossy.tcp.retransmissions.into(), "packet");
        return undetermined(format!(
            "{packets} had to be retransmitted on {link}; {server} does not show the cause"
        ));
    }
    if let Some(reason) = find_detour(view, trial) {
        return undetermined(reason);
    }
    if carrying_count < 2 {
        let path = paths.iter().max_by_key(|path| path.bytes).map(PathShare::label);
        return (Health::OnePath, path);
    }
    (Health::Healthy, None)
}

/// Finds an interface that did not receive the data of its subflows, because they arrive over
/// another one. The routes of the other host and of the routers decide that.
fn find_detour(view: &ObservationView<'_>, trial: &TestConnection) -> Option<String> {
    const MIN_BYTES: u64 = 60_000;
    let after = view.observation.after.as_ref()?;
    let load = |link: &LinkSnapshot| {
        let is_here = |subflow: &&ObservedSubflow| {
            let path_link = view.path_link(subflow.local.ip(), subflow.remote.ip());
            path_link.is_some_and(|path_link| path_link.index == link.index)
        };
        let own_subflows = trial.subflows.iter().filter(is_here);
        let expected: u64 = own_subflows.map(|subflow| subflow.tcp.bytes_received).sum();
        let counted = after.link(link.index)?.rx_bytes.saturating_sub(link.rx_bytes);
        Some((link.name.clone(), expected, counted))
    };
    let links = view.here.links.iter().filter(|link| link.up && !link.loopback);
    let loads: Vec<_> = links.filter_map(load).collect();
    loads.iter().find_map(|(name, expected, counted)| {
        let is_missing = *expected > MIN_BYTES && *counted < expected / 2;
        let has_excess = |(other, other_expected, other_counted): &&(String, u64, u64)| {
            other != name && *other_counted > other_expected.saturating_add(expected / 2)
        };
        let (other, ..) = loads.iter().find(has_excess).filter(|_| is_missing)?;
        let (expected, counted) = (text::bytes(*expected), text::bytes(*counted));
        Some(format!(
            "the subflows of {name} received {expected}, but the interface only {counted}: their data \
             arrive over {other}, as the routes of the other host or of a router decide"
        ))
    })
}

/// Returns true if the plain TCP test of the path lost none of its spaced packets. Retransmissions
/// of bulk data then come from a full queue.
fn passed_spaced_packets(view: &ObservationView<'_>, subflow: &ObservedSubflow) -> bool {
    const MIN_PACKETS: u32 = 20;
    let check = view.plain_tcp_check(Some(subflow.local.ip()), subflow.remote.ip());
    check.is_some_and(|check| {
        check.packets >= MIN_PACKETS && check.resent == 0 && check.behind_gap == 0
    })
}

/// Returns true if a subflow retransmitted too much to be chance.
fn is_lossy(subflow: &ObservedSubflow) -> bool {
    const MIN_RETRANSMISSIONS: u32 = 2;
    /// One retransmission in this many packets.
    const MAX_PACKETS_PER_LOSS: u64 = 20;
    let mss = u64::from(subflow.tcp.mss_bytes.max(1));
    let packets = subflow.tcp.bytes_sent.div_ceil(mss);
    let retransmissions = subflow.tcp.retransmissions;
    retransmissions >= MIN_RETRANSMISSIONS
        && u64::from(retransmissions) * MAX_PACKETS_PER_LOSS >= packets
}

/// Returns the addresses that should have a subflow that is not a backup.
fn expected_addresses<'a>(
    view: &ObservationView<'a>,
    v4: bool,
) -> impl Iterator<Item = std::net::IpAddr> + 'a {
    let endpoints = view.here.endpoints.iter();
    let expected = endpoints.filter(move |endpoint| {
        endpoint.opens_subflows()
            && !endpoint.is_implicit()
            && !endpoint.is_backup()
            && endpoint.address.is_ipv4() == v4
    });
    expected.map(|endpoint| endpoint.address)
}

fn address_label(view: &ObservationView<'_>, address: std::net::IpAddr) -> String {
    let link = view.here.link_of(address);
    link.map_or_else(|| address.to_string(), |link| format!("{} ({address})", link.name))
}

/// Returns true if the findings leave no Multipath TCP at all.
fn is_broken(view: &ObservationView<'_>, findings: &[Finding]) -> bool {
    let prevents_mptcp = |finding: &Finding| {
        matches!(
            finding.cause,
            Cause::OldMptcpFork
                | Cause::KernelWithoutMptcp
                | Cause::MptcpDisabled
                | Cause::NoRoute
                | Cause::RemoteRefused
                | Cause::RemoteSilent
                | Cause::FirstPathUnusable
                | Cause::BlackholeFallbackActive
        )
    };
    let is_plain = view.trial.is_some_and(|trial| !trial.multipath_at_end && !trial.closed_by_peer);
    findings.iter().any(prevents_mptcp) || is_plain
}
