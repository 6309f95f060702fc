//! Parallel links of a path: routers choose one for each connection by its addresses and ports.

use std::net::IpAddr;

use super::view::ObservationView;
use crate::finding::{Cause, Finding};
use crate::observation::{PlainTcpCheck, TestConnection};

/// Minimum of unanswered connections; fewer may have lost their packets by chance.
const MIN_SILENT: u32 = 4;

/// Reports a path over which some connections pass and others get no answer.
///
/// On a lossy path, retransmitted SYN packets are answered late. A link that is chosen by ports
/// answers every packet of a connection, or none.
pub(super) fn find_silent_link(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    (local, remote): (Option<IpAddr>, IpAddr),
) -> Option<Finding> {
    let is_on_path = |check: &&PlainTcpCheck| {
        check.remote.ip() == remote && local.is_none_or(|local| check.local == local)
    };
    let check = trial.controls.iter().filter(is_on_path).find(|check| is_split(check))?;
    Some(report_silent_link(view, check))
}

/// Reports silent links of all paths, those included over which the subflow works.
pub(super) fn findings<'a>(
    view: &'a ObservationView<'a>,
    trial: &'a TestConnection,
) -> impl Iterator<Item = Finding> + 'a {
    let split = trial.controls.iter().filter(|check| is_split(check));
    split.map(|check| report_silent_link(view, check))
}

fn report_silent_link(view: &ObservationView<'_>, check: &PlainTcpCheck) -> Finding {
    let remote = check.remote.ip();
    let link = view.here.link_of(check.local);
    let name = link.map_or_else(|| check.local.to_string(), |link| link.name.clone());
    let path = format!("{name} ({}) -> {remote}", check.local);
    Finding::new(
        Cause::ParallelLinkSilent,
        format!(
            "on {path}, some connections pass and others get no answer, depending on their ports: \
                 one of several parallel links (ECMP) is down"
        ),
    )
    .at_location(&path)
    .with_evidence(format!(
        "of {} connections from different ports, {} were answered at once, and {} never",
        check.port_attempts,
        check.ports_answered,
        check.port_attempts.saturating_sub(check.ports_answered)
    ))
    .hint(
        "a router on the path distributes connections over parallel links by their addresses and \
             ports, and one link fails: ask the operator of that path. Until then, a program that \
             connects again gets another port and may succeed",
    )
}

fn is_split(check: &PlainTcpCheck) -> bool {
    let silent = check.port_attempts.saturating_sub(check.ports_answered);
    check.ports_answered > 0
        && silent >= MIN_SILENT
        && check.ports_answered_late == 0
        && check.resent == 0
}
