//! Overall health: paths that were seen to work, and those never observed.

use super::view::ObservationView;
use crate::doctor::finding::{Cause, Finding, Health, PathShare};
use crate::doctor::observation::ObservedSubflow;
use crate::doctor::text;

/// Minimum of bytes for a conclusion about a path: about seven packets.
const MIN_DATA_BYTES: u64 = 10_000;

/// Returns the established subflows with their shares of the data.
pub(super) fn paths(view: &ObservationView<'_>) -> Vec<PathShare> {
    let all = view.trial.map(|trial| trial.subflows.as_slice()).unwrap_or_default();
    let bytes = |one: &ObservedSubflow| one.tcp.bytes_acked.saturating_add(one.tcp.bytes_received);
    let whole: u64 = all.iter().map(bytes).sum();
    let percent = |part: u64| {
        let share = u128::from(part) * 100 + u128::from(whole) / 2;
        u8::try_from(share.checked_div(whole.into()).unwrap_or(0)).unwrap_or(100)
    };
    let share = |one: &ObservedSubflow| PathShare {
        interface: view.here.link_of(one.local.ip()).map(|link| link.name.clone()),
        local: one.local.ip(),
        remote: one.remote.ip(),
        bytes: bytes(one),
        percent: percent(bytes(one)),
        backup: one.backup_here || one.backup_there,
    };
    all.iter().filter(|one| one.established).map(share).collect()
}

/// Returns the overall health, and the reason if it is not better.
pub(super) fn verdict(
    view: &ObservationView<'_>,
    findings: &[Finding],
    paths: &[PathShare],
) -> (Health, Option<String>) {
    if !findings.is_empty() {
        return (if is_broken(view, findings) { Health::Broken } else { Health::Impaired }, None);
    }
    let not_judged = |why: String| (Health::Undetermined, Some(why));
    let Some(trial) = view.trial else {
        return not_judged("no connection was tried".to_owned());
    };
    let server = trial.server.name();
    let carries = |path: &&PathShare| path.bytes >= MIN_DATA_BYTES;
    let idle: Vec<_> =
        paths.iter().filter(|path| !path.backup && !carries(path)).map(path_label).collect();
    let missing: Vec<_> = expected_addresses(view, trial.target.is_ipv4())
        .filter(|address| !paths.iter().any(|path| path.local == *address))
        .map(|address| address_label(view, address))
        .collect();
    let carrying = paths.iter().filter(carries).count();
    if trial.closed_by_peer && (carrying < 2 || !missing.is_empty()) {
        return not_judged(format!(
            "{server}: it closed the connection before paths could be seen"
        ));
    }
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return not_judged(format!("no subflow from {missing} was seen, nor why there is none"));
    }
    if !idle.is_empty() {
        let idle = idle.join(", ");
        return not_judged(format!(
            "the subflows are established, and little or no data was seen on {idle}: {server} took no more"
        ));
    }
    if let Some(lost) = trial.subflows.iter().find(|one| has_lost(one)) {
        let link = address_label(view, lost.local.ip());
        let again = text::count(lost.tcp.retransmissions.into(), "packet");
        return not_judged(format!(
            "{again} had to be sent again on {link}, and {server} does not show why"
        ));
    }
    if carrying < 2 {
        let only = paths.first().map(path_label);
        return (Health::OnePath, only);
    }
    (Health::Healthy, None)
}

/// Returns true if a subflow retransmitted too much to be chance. Used where no spaced packets
/// could be sent.
fn has_lost(one: &ObservedSubflow) -> bool {
    const MIN_RETRANSMISSIONS: u32 = 2;
    /// One retransmission in this many packets.
    const MAX_PACKETS_PER_LOSS: u64 = 20;
    let mss = u64::from(one.tcp.mss_bytes.max(1));
    let packets = one.tcp.bytes_sent.div_ceil(mss);
    let again = one.tcp.retransmissions;
    again >= MIN_RETRANSMISSIONS && u64::from(again) * MAX_PACKETS_PER_LOSS >= packets
}

/// Returns the addresses that should have a subflow that is not a backup.
fn expected_addresses<'a>(
    view: &ObservationView<'a>,
    v4: bool,
) -> impl Iterator<Item = std::net::IpAddr> + 'a {
    let endpoints = view.here.endpoints.iter();
    let opening = endpoints.filter(move |one| {
        one.opens_subflows()
            && !one.is_implicit()
            && !one.is_backup()
            && one.address.is_ipv4() == v4
    });
    opening.map(|one| one.address)
}

fn path_label(path: &PathShare) -> String {
    path.interface.clone().unwrap_or_else(|| path.local.to_string())
}

fn address_label(view: &ObservationView<'_>, address: std::net::IpAddr) -> String {
    let link = view.here.link_of(address);
    link.map_or_else(|| address.to_string(), |link| format!("{} ({address})", link.name))
}

/// Returns true if the findings leave no Multipath TCP at all.
fn is_broken(view: &ObservationView<'_>, findings: &[Finding]) -> bool {
    let ends_it = |finding: &Finding| {
        matches!(
            finding.cause,
            Cause::OldMptcpFork
                | Cause::KernelWithoutMptcp
                | Cause::MptcpDisabled
                | Cause::NoRoute
                | Cause::RemoteRefused
                | Cause::RemoteSilent
                | Cause::BlackholeFallbackActive
        )
    };
    let plain = view.trial.is_some_and(|trial| !trial.multipath_at_end && !trial.closed_by_peer);
    findings.iter().any(ends_it) || plain
}
