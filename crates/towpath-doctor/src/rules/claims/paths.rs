//! Readings of facts about the subflows of the test connection.

use towpath_host::snapshot::EndpointSnapshot;

use super::reading::Reading;
use crate::finding::Cause;
use crate::observation::{ObservedSubflow, PlainTcpCheck, TestConnection};
use crate::rules::path::expected_endpoints;
use crate::rules::quality;
use crate::rules::view::{ObservationView, is_working};

/// Returns true if every endpoint has a subflow that works.
pub(super) fn every_join_holds(view: &ObservationView<'_>, trial: &TestConnection) -> bool {
    matches!(every_join(view, trial), Reading::Holds(_))
}

pub(super) fn every_join(view: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    let further = || trial.subflows.iter().filter(|subflow| !subflow.first && subflow.opened_here);
    let has_subflow =
        |address| further().any(|subflow| is_working(subflow) && subflow.local.ip() == address);
    let expected: Vec<_> =
        expected_endpoints(view, trial).map(|endpoint| endpoint.address).collect();
    let closed_early = || Reading::unknown("a server that keeps the connection open");
    if let Some(address) = expected.iter().find(|address| !has_subflow(**address)) {
        let reason = format!("no subflow from {address}");
        return if trial.closed_by_peer { closed_early() } else { Reading::Fails(reason) };
    }
    if let Some(failed) = further().find(|subflow| !is_working(subflow)) {
        let reason = format!("{} -> {}: {}", failed.local.ip(), failed.remote.ip(), failed.state);
        return if trial.closed_by_peer { closed_early() } else { Reading::Fails(reason) };
    }
    // Without events, a subflow that ends at once may appear only in the counters.
    let is_counted = trial.counter_delta("MPJoinSynTx") > further().count() as u64;
    if is_counted || trial.events_of("SF_CLOSED").next().is_some() {
        return Reading::Fails("a further subflow was closed".to_owned());
    }
    if further().next().is_none() {
        return Reading::unknown("an endpoint for a second path");
    }
    let locals: Vec<_> = further().map(|subflow| subflow.local.ip().to_string()).collect();
    Reading::Holds(format!("subflows from {}", locals.join(", ")))
}

pub(super) fn some_join(view: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    match view.joined_subflows().next() {
        Some(subflow) => Reading::Holds(format!("a subflow from {}", subflow.local.ip())),
        None if trial.closed_by_peer => Reading::unknown("a server that keeps the connection open"),
        None => Reading::Fails("no further subflow".to_owned()),
    }
}

pub(super) fn join_ends(view: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    let further = || trial.subflows.iter().filter(|subflow| !subflow.first && subflow.opened_here);
    let closed_by_event = trial.events_of("SF_CLOSED").next().is_some();
    let is_counted = trial.counter_delta("MPJoinSynTx") > further().count() as u64;
    let ended = further().find(|subflow| subflow.gone);
    let unanswered = further().find(|subflow| !subflow.established && !subflow.gone);
    match (ended, unanswered) {
        (Some(subflow), _) => Reading::Holds(format!("{} ended", subflow.local.ip())),
        _ if closed_by_event || is_counted => Reading::Holds("a subflow was closed".to_owned()),
        _ if trial.closed_by_peer => Reading::unknown("a server that keeps the connection open"),
        (None, Some(subflow)) => {
            Reading::Fails(format!("the SYN from {} is unanswered", subflow.local.ip()))
        }
        (None, None) if every_join_holds(view, trial) => {
            Reading::Fails("every subflow is established".to_owned())
        }
        (None, None) => Reading::unknown("an endpoint for a second path"),
    }
}

pub(super) fn regular_join(view: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    let is_regular = |subflow: &&ObservedSubflow| !subflow.backup_here && !subflow.backup_there;
    match view.joined_subflows().find(is_regular) {
        Some(subflow) => Reading::Holds(format!("a subflow from {}", subflow.local.ip())),
        None => some_join_else(view, trial, "every further subflow is a backup"),
    }
}

/// Returns `Fails` with that reason if further subflows exist, else the reading of `some_join`.
fn some_join_else(view: &ObservationView<'_>, trial: &TestConnection, reason: &str) -> Reading {
    match some_join(view, trial) {
        Reading::Holds(_) => Reading::Fails(reason.to_owned()),
        other @ (Reading::Fails(_) | Reading::Unknown(_)) => other,
    }
}

pub(super) fn several_interfaces(view: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    let working = trial.subflows.iter().filter(|subflow| is_working(subflow));
    let mut names: Vec<_> = working
        .filter_map(|subflow| view.path_link(subflow.local.ip(), subflow.remote.ip()))
        .collect();
    names.dedup_by_key(|link| link.index);
    match names.as_slice() {
        [first, second, ..] => {
            Reading::Holds(format!("subflows over {} and {}", first.name, second.name))
        }
        _ => some_join_else(view, trial, "all subflows use one interface"),
    }
}

pub(super) fn join_to_first_address(view: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    let target = trial.target.ip();
    let joined = view.joined_subflows().find(|subflow| subflow.remote.ip() == target);
    let is_denied = trial.events.iter().flatten().any(|event| event.denies_first_address);
    let setting =
        view.peer.and_then(|peer| peer.latest().number("mptcp.allow_join_initial_addr_port"));
    match (joined, setting) {
        (Some(_), _) => Reading::Holds(format!("a further subflow to {target}")),
        _ if is_denied => Reading::Fails("its SYN/ACK has the flag C".to_owned()),
        (None, Some(value)) => Reading::of(
            value != 0,
            format!("there: net.mptcp.allow_join_initial_addr_port = {value}"),
        ),
        (None, None) if trial.events.is_some() => {
            Reading::Holds("its SYN/ACK does not have the flag C".to_owned())
        }
        (None, None) => Reading::unknown("root, or an endpoint for a second path"),
    }
}

pub(super) fn limit_suffices(view: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    let Some(limits) = view.here.limits else { return Reading::unknown("readable limits") };
    let further = trial.subflows.iter().filter(|subflow| !subflow.first && !subflow.gone);
    // An endpoint with the wrong role opens a subflow as soon as its role is right.
    let first_local = trial.first().map(|first| first.local.ip());
    let is_further = |endpoint: &&EndpointSnapshot| {
        !endpoint.is_implicit()
            && Some(endpoint.address) != first_local
            && endpoint.address.is_ipv4() == trial.target.is_ipv4()
    };
    let endpoint_count = view.here.endpoints.iter().filter(is_further).count() as u64;
    let needed = endpoint_count.saturating_add(trial.counter_delta("AddAddr")).max(1);
    let started = further.count() as u64;
    let (allowed, wanted) = (u64::from(limits.subflows), needed.max(started));
    Reading::of(allowed >= wanted, format!("{allowed} subflows allowed, {wanted} possible"))
}

pub(super) fn announcement_arrives(_: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    let count = trial.counter_delta("AddAddr").max(trial.counter_delta("AddAddrDrop"));
    let is_joined = |subflow: &ObservedSubflow| subflow.remote.ip() != trial.target.ip();
    let is_seen = count > 0
        || trial.events_of("ANNOUNCED").next().is_some()
        || trial.subflows.iter().any(is_joined);
    if !is_seen && (trial.closed_by_peer || !trial.multipath_at_end) {
        return Reading::unknown("a connection that stays open over Multipath TCP");
    }
    Reading::of(is_seen, format!("{count} announced (AddAddr)"))
}

pub(super) fn announcement_accepted(view: &ObservationView<'_>, _: &TestConnection) -> Reading {
    match view.here.limits {
        Some(limits) => {
            let accepted = limits.add_addr_accepted;
            Reading::of(accepted > 0, format!("add_addr_accepted {accepted}"))
        }
        None => Reading::unknown("readable limits"),
    }
}

pub(super) fn announced_reached(view: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    let is_reached = |remote| {
        let mut working = trial.subflows.iter().filter(|subflow| is_working(subflow));
        working.any(|subflow| Some(subflow.remote.ip()) == remote)
    };
    let Reading::Holds(_) = announcement_arrives(view, trial) else {
        return Reading::unknown("an announced address");
    };
    if trial.events.is_none() {
        return Reading::unknown("root");
    }
    match trial.events_of("ANNOUNCED").find(|event| !is_reached(event.remote)) {
        Some(event) => Reading::Fails(
            event.remote.map_or_else(String::new, |remote| format!("no subflow to {remote}")),
        ),
        None => Reading::Holds("a subflow to each announced address".to_owned()),
    }
}

pub(super) fn peer_announces(view: &ObservationView<'_>, _: &TestConnection) -> Reading {
    match view.peer {
        Some(peer) => {
            let count = peer.counter_delta("AddAddrTx");
            Reading::of(count > 0, format!("{count} sent there (AddAddrTx)"))
        }
        None => Reading::unknown("`towpath server` there (--peer)"),
    }
}

pub(super) fn peer_accepts(view: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    let rejected = view.peer.map_or(0, |peer| peer.counter_delta("MPJoinRejected"));
    if rejected > 0 {
        return Reading::Fails(format!("{rejected} rejected there (MPJoinRejected)"));
    }
    let was_rejected = |subflow: &&ObservedSubflow| {
        !subflow.first && subflow.opened_here && subflow.established && subflow.gone
    };
    let answered = trial.counter_delta("MPJoinSynAckRx");
    let seen =
        trial.subflows.iter().filter(|subflow| !subflow.first && subflow.established).count();
    match trial.subflows.iter().find(was_rejected) {
        Some(subflow) => Reading::Fails(format!("the subflow from {} ended", subflow.local.ip())),
        None if answered > seen as u64 => Reading::Fails("a subflow ended at once".to_owned()),
        None if every_join_holds(view, trial) => {
            Reading::Holds("no established subflow ended".to_owned())
        }
        None if view.peer.is_some() && trial.counter_delta("MPJoinSynAckRx") > 0 => {
            Reading::Holds("no MPJoinRejected there".to_owned())
        }
        None => Reading::unknown("`towpath server` there (--peer), and a further subflow"),
    }
}

pub(super) fn every_path_answers(view: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    let stuck =
        trial.subflows.iter().find(|subflow| is_working(subflow) && quality::is_stuck(subflow));
    match (stuck, every_join(view, trial)) {
        (Some(subflow), _) => Reading::Fails(format!(
            "{} received nothing for {} ms",
            subflow.local.ip(),
            subflow.tcp.silent_ms
        )),
        (None, Reading::Holds(_)) => Reading::Holds("every subflow is acknowledged".to_owned()),
        (None, other @ (Reading::Fails(_) | Reading::Unknown(_))) => other,
    }
}

/// Returns true if no path of this host lacks its subflow, so that none is untested.
fn has_every_path(view: &ObservationView<'_>, trial: &TestConnection) -> bool {
    expected_endpoints(view, trial).next().is_none() || every_join_holds(view, trial)
}

/// Working subflows with the plain TCP check of their path.
fn checked_subflows<'a>(
    view: &ObservationView<'a>,
    trial: &'a TestConnection,
) -> Vec<(&'a ObservedSubflow, Option<&'a PlainTcpCheck>)> {
    let working = trial.subflows.iter().filter(|subflow| is_working(subflow));
    working
        .map(|subflow| {
            (subflow, view.plain_tcp_check(Some(subflow.local.ip()), subflow.remote.ip()))
        })
        .collect()
}

pub(super) fn large_packets(view: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    let passes = |subflow: &ObservedSubflow, check: Option<&PlainTcpCheck>| {
        let echoed =
            check.is_some_and(|check| check.large == Some(true) || check.large_retry == Some(true));
        echoed || quality::large_passed(subflow)
    };
    let failed =
        |check: Option<&PlainTcpCheck>| check.is_some_and(|check| check.large == Some(false));
    let subflows = checked_subflows(view, trial);
    let not_passed: Vec<_> =
        subflows.iter().filter(|(subflow, check)| !passes(subflow, *check)).collect();
    match not_passed.first() {
        None if !has_every_path(view, trial) => Reading::unknown("a subflow on every path"),
        None => Reading::Holds("packets of full size passed on each path".to_owned()),
        Some((subflow, check)) if failed(*check) => {
            Reading::Fails(format!("no large packets over {}", subflow.local.ip()))
        }
        Some(_) => Reading::unknown("a server that echoes data (`towpath server`)"),
    }
}

pub(super) fn small_packets(view: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    let lost = |check: &PlainTcpCheck| check.resent.max(quality::lost_replies(check));
    let subflows = checked_subflows(view, trial);
    let checks: Vec<_> =
        subflows.iter().filter_map(|(_, check)| check.filter(|check| check.packets > 0)).collect();
    match checks.iter().find(|check| lost(check) > 0) {
        Some(check) => Reading::Fails(format!("{} lost over {}", lost(check), check.local)),
        None if !has_every_path(view, trial) => Reading::unknown("a subflow on every path"),
        None if checks.len() == subflows.len() && !checks.is_empty() => {
            Reading::Holds("no small packet was lost on any path".to_owned())
        }
        None => Reading::unknown("a server that echoes data (`towpath server`)"),
    }
}

pub(super) fn similar_delays(view: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    match quality::find_slow_path(view, trial) {
        Some(finding) => Reading::Fails(finding.sentence),
        None => match some_join(view, trial) {
            Reading::Holds(_) => Reading::Holds("round-trip times of the paths".to_owned()),
            other @ (Reading::Fails(_) | Reading::Unknown(_)) => other,
        },
    }
}

pub(super) fn backup_flags_agree(_: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    backup_reading(trial, Cause::BackupFlagAsymmetric)
}

pub(super) fn backups_idle(_: &ObservationView<'_>, trial: &TestConnection) -> Reading {
    backup_reading(trial, Cause::BackupUsed)
}

fn backup_reading(trial: &TestConnection, cause: Cause) -> Reading {
    let problem = quality::find_backup_problem(trial);
    match problem.filter(|finding| finding.cause == cause) {
        Some(finding) => Reading::Fails(finding.sentence),
        None => Reading::Holds("flags and bytes of each subflow".to_owned()),
    }
}
