//! Subflows that should exist and do not, each with its cause.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use towpath_host::snapshot::{EndpointSnapshot, MptcpLimits};

use super::announcements::{announces_own_address, find_lost_announcement, report_own_address};
use super::failed::{explain_closed, explain_rejected, explain_unanswered};
use super::limits::{above_exhausted, raise_limits};
use super::parallel_links;
use super::routes::routing;
use super::view::{ObservationView, is_working};
use crate::finding::{Cause, Confidence, Finding};
use crate::observation::{
    ConnectOutcome, ObservedSubflow, RecordedEvent, ServerKind, TestConnection,
};
use crate::text;

/// A subflow that should exist.
#[derive(Debug, Clone, Copy)]
pub(super) struct MissingSubflow<'a> {
    /// Local address; `None` if the kernel would choose it.
    pub(super) local: Option<IpAddr>,
    /// Interface to which its endpoint is bound.
    pub(super) bound_to: Option<u32>,
    pub(super) remote: SocketAddr,
    /// Set when the peer announced the remote address.
    pub(super) announced: bool,
    stage: FailureStage<'a>,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum FailureStage<'a> {
    /// The kernel never started the subflow.
    NotStarted,
    /// The SYN got no reply.
    Unanswered,
    /// The subflow was closed before it was established.
    Closed(Option<&'a RecordedEvent>),
    /// The subflow was established, and closed at once.
    Rejected(Option<&'a RecordedEvent>),
}

pub(super) fn findings(view: &ObservationView<'_>) -> Vec<Finding> {
    // A connection to this host itself uses no path.
    let Some(trial) = view.trial.filter(|trial| view.here.link_of(trial.target.ip()).is_none())
    else {
        return Vec::new();
    };
    // The kernel opens no subflow before data are acknowledged or received (a SYN counts as one
    // acknowledged byte), or after the peer has closed the connection.
    let first_subflow = trial.first();
    let exchanged_data = first_subflow
        .is_some_and(|subflow| subflow.tcp.bytes_acked > 1 || subflow.tcp.bytes_received > 0);
    if !trial.multipath_at_end && !exchanged_data {
        return Vec::new();
    }
    let missing = missing_subflows(view, trial);
    let lost_announcement = find_lost_announcement(view, trial);
    let causes = missing.iter().filter_map(|subflow| match subflow.stage {
        FailureStage::NotStarted => explain_not_started(view, trial, subflow)
            .filter(|_| exchanged_data && !trial.closed_by_peer),
        FailureStage::Closed(_) | FailureStage::Rejected(_)
            if closed_with_connection(view, trial, subflow) =>
        {
            None
        }
        // Such a server leaves time for one SYN, which may be lost by chance.
        FailureStage::Unanswered
            if trial.server == ServerKind::ClosesOnData
                && closed_with_connection(view, trial, subflow) =>
        {
            None
        }
        _ if announces_own_address(view, trial, subflow) => Some(report_own_address(view, subflow)),
        FailureStage::Unanswered => Some(explain_unanswered(view, trial, subflow)),
        FailureStage::Closed(event) => Some(explain_closed(view, trial, subflow, event)),
        FailureStage::Rejected(event) => Some(explain_rejected(view, subflow, event)),
    });
    let silent_links = parallel_links::findings(view, trial);
    lost_announcement.into_iter().chain(causes).chain(silent_links).collect()
}

/// Returns true if the server closed the whole connection and plain TCP works on that path. Then
/// the missing subflow proves nothing about the path.
fn closed_with_connection(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    subflow: &MissingSubflow<'_>,
) -> bool {
    let plain_tcp_passes = || {
        let check = view.plain_tcp_check(subflow.local, subflow.remote.ip());
        // A port that an endpoint opens accepts further subflows only.
        let has_own_port = subflow.remote.port() != trial.target.port();
        check.is_none_or(|check| match check.outcome {
            ConnectOutcome::Connected => true,
            ConnectOutcome::Refused => has_own_port,
            ConnectOutcome::Silent | ConnectOutcome::Failed(_) => false,
        })
    };
    let errno = match subflow.stage {
        FailureStage::Closed(event) | FailureStage::Rejected(event) => {
            event.and_then(|event| event.error)
        }
        FailureStage::NotStarted | FailureStage::Unanswered => None,
    };
    // An ICMP error does not come from the server that closed the connection.
    let router_errors = [libc::EHOSTUNREACH, libc::ENETUNREACH, libc::EACCES, libc::EPERM];
    trial.closed_by_peer
        && plain_tcp_passes()
        && !errno.is_some_and(|error| router_errors.contains(&error))
}

/// Returns the missing subflows: those that failed, unused endpoints, and announcements without a
/// subflow while there is only one path.
fn missing_subflows<'a>(
    view: &ObservationView<'a>,
    trial: &'a TestConnection,
) -> Vec<MissingSubflow<'a>> {
    let mut missing = failed_subflows(view, trial);
    for endpoint in expected_endpoints(view, trial) {
        let is_tried = trial.subflows.iter().any(|subflow| subflow.local.ip() == endpoint.address)
            || missing.iter().any(|subflow| subflow.local == Some(endpoint.address));
        if !is_tried {
            missing.push(MissingSubflow {
                local: Some(endpoint.address),
                bound_to: endpoint.link,
                remote: trial.target,
                announced: false,
                stage: stage_from_counters(trial),
            });
        }
    }
    if view.joined_subflows().next().is_none() {
        add_untried_announcements(trial, &mut missing);
    }
    missing
}

/// Classifies a subflow that appears only in the counters. Without events, one that closes at once
/// may not be seen.
fn stage_from_counters(trial: &TestConnection) -> FailureStage<'static> {
    let further_subflows =
        || trial.subflows.iter().filter(|subflow| !subflow.first && subflow.opened_here);
    let observed_count = further_subflows().count() as u64;
    let answered_count = further_subflows().filter(|subflow| subflow.established).count() as u64;
    if trial.events.is_some() || trial.counter_delta("MPJoinSynTx") <= observed_count {
        FailureStage::NotStarted
    } else if trial.counter_delta("MPJoinSynAckRx") > answered_count {
        FailureStage::Rejected(None)
    } else {
        FailureStage::Closed(None)
    }
}

/// Returns subflows that were started and do not work.
fn failed_subflows<'a>(
    view: &ObservationView<'a>,
    trial: &'a TestConnection,
) -> Vec<MissingSubflow<'a>> {
    let is_announced =
        |remote| trial.events_of("ANNOUNCED").any(|event| event.remote == Some(remote));
    let missing_subflow = |local: IpAddr, remote: SocketAddr, stage| MissingSubflow {
        local: Some(local),
        bound_to: view.bound_interface(local),
        remote,
        announced: is_announced(remote.ip()),
        stage,
    };
    // A SYN that waits for neighbour resolution is not retransmitted, even after its timeout.
    let had_timeout = trial.counters.contains_key("TcpExt.TCPTimeouts");
    let mut missing: Vec<MissingSubflow<'_>> = Vec::new();
    for subflow in trial
        .subflows
        .iter()
        .filter(|subflow| !subflow.first && subflow.opened_here && !is_working(subflow))
    {
        let end_event = close_event(trial, subflow.local.ip(), subflow.remote.ip());
        let stage = match (subflow.established, subflow.gone, end_event) {
            (true, _, end_event) => FailureStage::Rejected(end_event),
            (false, _, Some(event)) => FailureStage::Closed(Some(event)),
            (false, true, None) => FailureStage::Closed(None),
            // On a long path, the first reply may still arrive; after a retransmission, it counts
            // as missing.
            (false, false, None) if subflow.tcp.retransmissions == 0 && !had_timeout => continue,
            (false, false, None) => FailureStage::Unanswered,
        };
        missing.push(missing_subflow(subflow.local.ip(), subflow.remote, stage));
    }
    for event in trial.events_of("SF_CLOSED") {
        let (Some(local), Some(remote)) = (event.local, event.remote) else { continue };
        let is_same_path = |subflow: &ObservedSubflow| {
            subflow.local.ip() == local && subflow.remote.ip() == remote
        };
        let is_alive = trial
            .subflows
            .iter()
            .any(|subflow| is_same_path(subflow) && (is_working(subflow) || subflow.first));
        let is_listed = |subflow: &MissingSubflow<'_>| {
            subflow.local == Some(local) && subflow.remote.ip() == remote
        };
        if is_alive || missing.iter().any(is_listed) {
            continue;
        }
        let addresses = (event.local, event.remote);
        let was_established =
            trial.events_of("SF_ESTABLISHED").any(|event| (event.local, event.remote) == addresses);
        let stage = if was_established {
            FailureStage::Rejected(Some(event))
        } else {
            FailureStage::Closed(Some(event))
        };
        let port = event.remote_port.unwrap_or(trial.target.port());
        missing.push(missing_subflow(local, SocketAddr::new(remote, port), stage));
    }
    missing
}

/// Adds announced addresses without any attempt.
fn add_untried_announcements(trial: &TestConnection, missing: &mut Vec<MissingSubflow<'_>>) {
    let (local, bound_to, announced, stage) = (None, None, true, FailureStage::NotStarted);
    for event in trial.events_of("ANNOUNCED") {
        let Some(remote) = event.remote else { continue };
        let is_reached = trial.subflows.iter().any(|subflow| subflow.remote.ip() == remote);
        if is_reached || missing.iter().any(|subflow| subflow.remote.ip() == remote) {
            continue;
        }
        let port = event.remote_port.filter(|port| *port != 0).unwrap_or(trial.target.port());
        let remote = SocketAddr::new(remote, port);
        missing.push(MissingSubflow { local, bound_to, remote, announced, stage });
    }
    // Without events, the counter shows only the number of announcements.
    let tried_count =
        missing.iter().filter(|subflow| subflow.remote.ip() != trial.target.ip()).count() as u64;
    if trial.events.is_none() && trial.counter_delta("AddAddr") > tried_count {
        let stage = if tried_count == 0 { stage_from_counters(trial) } else { stage };
        missing.push(MissingSubflow { local, bound_to, remote: trial.target, announced, stage });
    }
}

/// Returns the endpoints that should have a subflow.
pub(super) fn expected_endpoints<'a>(
    view: &ObservationView<'a>,
    trial: &TestConnection,
) -> impl Iterator<Item = &'a EndpointSnapshot> {
    let first_local = trial.first().map(|subflow| subflow.local.ip());
    let v4 = trial.target.is_ipv4();
    view.here.endpoints.iter().filter(move |endpoint| {
        endpoint.opens_subflows()
            && !endpoint.is_implicit()
            && Some(endpoint.address) != first_local
            && endpoint.address.is_ipv4() == v4
    })
}

/// Returns the event that ended a subflow.
fn close_event(trial: &TestConnection, local: IpAddr, remote: IpAddr) -> Option<&RecordedEvent> {
    let is_same_path =
        |event: &&RecordedEvent| event.local == Some(local) && event.remote == Some(remote);
    trial.events_of("SF_CLOSED").find(is_same_path)
}

/// Returns the label of a path.
pub(super) fn path_label(view: &ObservationView<'_>, missing: &MissingSubflow<'_>) -> String {
    let link = missing.local.and_then(|local| view.here.link_of(local));
    let remote = remote_name(view, missing.remote);
    match (missing.local, link) {
        (Some(local), Some(link)) => format!("{} ({local}) -> {remote}", link.name),
        (Some(local), None) => format!("{local} -> {remote}"),
        (None, _) => remote,
    }
}

/// Returns a remote address, with its port if that is not the one of the connection.
pub(super) fn remote_name(view: &ObservationView<'_>, remote: SocketAddr) -> String {
    match view.trial {
        Some(trial) if trial.target.port() != remote.port() => remote.to_string(),
        Some(_) | None => remote.ip().to_string(),
    }
}

/// Finds the cause of a subflow that was never started.
fn explain_not_started(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    missing: &MissingSubflow<'_>,
) -> Option<Finding> {
    if let Some(finding) = find_userspace_manager(view) {
        return Some(finding);
    }
    let endpoint_trouble = |local| super::configuration::endpoint_trouble(view, local);
    if let Some(finding) = missing
        .local
        .and_then(endpoint_trouble)
        .or_else(|| find_exhausted_limit(view, trial, missing))
    {
        return Some(finding).filter(|finding| {
            finding.cause != Cause::SubflowLimit || !is_interface_used(view, trial, missing)
        });
    }
    if missing.announced {
        return None;
    }
    find_join_id0_denied(view, trial, missing).or_else(|| explain_unsent_syn(view, trial, missing))
}

/// Returns true if another subflow uses the interface of a missing one, which then adds no path.
fn is_interface_used(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    missing: &MissingSubflow<'_>,
) -> bool {
    let link_of = |local| view.path_link(local, trial.target.ip()).map(|link| link.index);
    let link = missing.local.and_then(link_of);
    let mut working = trial.subflows.iter().filter(|subflow| is_working(subflow));
    link.is_some() && working.any(|subflow| link_of(subflow.local.ip()) == link)
}

/// Returns remote addresses with only failed subflows.
fn failed_remotes(trial: &TestConnection) -> BTreeSet<IpAddr> {
    let is_alive = |remote| {
        trial.subflows.iter().any(|subflow| is_working(subflow) && subflow.remote.ip() == remote)
    };
    let failed = trial.subflows.iter().filter(|subflow| !subflow.first && !is_working(subflow));
    let failed = failed.map(|subflow| subflow.remote.ip());
    let closed = trial.events_of("SF_CLOSED").filter_map(|event| event.remote);
    failed.chain(closed).filter(|remote| !is_alive(*remote)).collect()
}

/// Reports a limit of this host that prevents the subflow.
fn find_exhausted_limit(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    missing: &MissingSubflow<'_>,
) -> Option<Finding> {
    let limits = view.here.limits?;
    let started_count =
        trial.subflows.iter().filter(|subflow| !subflow.first && !subflow.gone).count() as u64;
    let unreachable_remotes = failed_remotes(trial);
    let limits_text = format!(
        "limits of this host: subflows {}, add_addr_accepted {}",
        limits.subflows, limits.add_addr_accepted
    );
    let needed = needed_limits(view, trial);
    let raise = |finding, needed| Some(raise_limits(finding, Some(limits), needed, ""));
    if limits.subflows == 0 || started_count >= u64::from(limits.subflows) {
        let subflows = above_exhausted(limits.subflows, needed.subflows);
        let needed = MptcpLimits { subflows, ..needed };
        if !unreachable_remotes.is_empty() && started_count > 0 {
            return raise(report_dead_remotes(&unreachable_remotes, limits_text), needed);
        }
        let allowed = match limits.subflows {
            0 => "no subflow".to_owned(),
            count => text::count(count.into(), "subflow"),
        };
        let path = path_label(view, missing);
        let sentence = format!(
            "this host's limit allows {allowed} beyond the first (`ip mptcp limits`), so {path} is not used"
        );
        let finding = Finding::new(Cause::SubflowLimit, sentence).at_location("this host");
        let started_text = format!("{} begun", text::count(started_count, "further subflow"));
        return raise(finding.with_evidence(limits_text).with_evidence(started_text), needed);
    }
    if missing.announced && limits.add_addr_accepted == 0 {
        let is_known = missing.remote.ip() != trial.target.ip();
        let announced = is_known.then(|| remote_name(view, missing.remote));
        let announced = announced.unwrap_or_else(|| "an address".to_owned());
        let sentence = format!(
            "the other host announces {announced}, but this host's limit ignores it \
             (`ip mptcp limits`: add_addr_accepted 0)"
        );
        let counter_text = format!(
            "{} announced (AddAddr), {} joined (MPJoinSynTx)",
            trial.counter_delta("AddAddr"),
            trial.counter_delta("MPJoinSynTx")
        );
        let finding =
            Finding::new(Cause::AddAddrLimit, sentence).at_location(path_label(view, missing));
        return raise(finding.with_evidence(limits_text).with_evidence(counter_text), needed);
    }
    // Linux does not return the quota of an accepted address after a failure. Without events, a
    // subflow that failed at once may appear only in the counters.
    let working_count = view.joined_subflows().count() as u64;
    let failed_count = trial.counter_delta("MPJoinSynTx").saturating_sub(working_count);
    let is_exhausted =
        failed_count.max(unreachable_remotes.len() as u64) >= limits.add_addr_accepted.into();
    if !missing.announced || unreachable_remotes.is_empty() || !is_exhausted {
        return None;
    }
    let add_addr_accepted = above_exhausted(limits.add_addr_accepted, needed.add_addr_accepted);
    let needed = MptcpLimits { add_addr_accepted, ..needed };
    raise(report_dead_remotes(&unreachable_remotes, limits_text), needed)
}

/// Returns limits that permit a subflow from each endpoint, and one to each announced address.
fn needed_limits(view: &ObservationView<'_>, trial: &TestConnection) -> MptcpLimits {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let endpoints = view.here.endpoints.iter().filter(|endpoint| endpoint.opens_subflows());
    let counted = u32::try_from(trial.counter_delta("AddAddr")).unwrap_or(u32::MAX);
    let announced = count(trial.events_of("ANNOUNCED").count()).max(counted).max(2);
    let subflows = count(endpoints.count()).saturating_add(announced);
    MptcpLimits { subflows, add_addr_accepted: announced }
}

/// Reports a path manager in user space without a daemon to open subflows.
pub(super) fn find_userspace_manager(view: &ObservationView<'_>) -> Option<Finding> {
    let here = view.here;
    let manager = here.settings.get("mptcp.path_manager").map(String::as_str);
    let is_userspace = here.number("mptcp.pm_type") == Some(1) || manager == Some("userspace");
    if !is_userspace || view.observation.managers.iter().any(|name| name == "mptcpd") {
        return None;
    }
    Some(
        Finding::new(
            Cause::UserspacePathManagerWithoutDaemon,
            "a daemon should create the subflows (net.mptcp.pm_type = 1), but none runs",
        )
        .with_evidence(format!("net.mptcp.pm_type = {}", here.number("mptcp.pm_type").unwrap_or(1)))
        .with_evidence("no mptcpd runs here")
        .fix("sysctl -w net.mptcp.pm_type=0")
        .hint("or start mptcpd; existing connections keep their path manager"),
    )
}

fn report_dead_remotes(remotes: &BTreeSet<IpAddr>, limits_text: String) -> Finding {
    let names: Vec<String> = remotes.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    Finding::new(
        Cause::DeadAnnouncedAddressesUseLimits,
        format!("unreachable addresses use up the limit, so others are not tried: {names}"),
    )
    .at_location(&names)
    .with_evidence(limits_text)
    .with_evidence("an address that was announced last was not tried")
    .hint("on the other host, delete the unreachable endpoints (`ip mptcp endpoint`)")
}

/// Reports a peer that accepts no subflows to its first address.
fn find_join_id0_denied(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    missing: &MissingSubflow<'_>,
) -> Option<Finding> {
    let denied_by_event = trial.events.iter().flatten().any(|event| event.denies_first_address);
    let denied_by_setting = view
        .peer
        .and_then(|peer| peer.latest().number("mptcp.allow_join_initial_addr_port"))
        .is_some_and(|value| value == 0);
    // Without events and without the peer's report, this cause remains if nothing else prevents an
    // attempt.
    let errors = ["MPJoinSynTxBindErr", "MPJoinSynTxConnectErr", "MPJoinSynTxCreatSkErr"];
    let has_local_error = errors.into_iter().any(|name| trial.counter_delta(name) > 0);
    let is_only_explanation = trial.events.is_none() && view.peer.is_none() && !has_local_error;
    if !(denied_by_event || denied_by_setting || is_only_explanation)
        || trial.counter_delta("MPJoinSynTx") > 0
    {
        return None;
    }
    if is_only_explanation && routing(view, missing).is_some() {
        return None;
    }
    let finding = Finding::new(
        Cause::JoinId0Denied,
        format!(
            "the other host forbids further subflows to {} and announces no other address",
            trial.target.ip()
        ),
    )
    .at_location(path_label(view, missing));
    let finding = if denied_by_event {
        finding.with_evidence("its SYN/ACK has the flag (deny_join_id0)")
    } else if !denied_by_setting {
        finding
            .with_confidence(Confidence::Likely)
            .with_evidence("an endpoint exists and the limits allow it, but no SYN was sent for it")
    } else {
        finding.with_evidence("there: net.mptcp.allow_join_initial_addr_port = 0")
    };
    Some(
        finding
            .fix("sysctl -w net.mptcp.allow_join_initial_addr_port=1   # on the other host")
            .hint("behind a load balancer, announce an address of its own instead"),
    )
}

/// Reports an attempt in which the kernel could not even send a SYN.
fn explain_unsent_syn(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    missing: &MissingSubflow<'_>,
) -> Option<Finding> {
    let local = missing.local?;
    if let Some(finding) = routing(view, missing) {
        return Some(finding);
    }
    let names = ["MPJoinSynTxBindErr", "MPJoinSynTxConnectErr", "MPJoinSynTxCreatSkErr"];
    let name = names.into_iter().find(|name| trial.counter_delta(name) > 0)?;
    let cause = if name == "MPJoinSynTxBindErr" {
        Cause::EndpointAddressMissing
    } else {
        Cause::NoSourceRoute
    };
    Some(
        Finding::new(cause, format!("the kernel cannot open a subflow from {local}"))
            .at_location(path_label(view, missing))
            .with_confidence(Confidence::Likely)
            .with_evidence(format!("the kernel counts {name}"))
            .hint(format!(
                "`ip route get {} from {local}` and `ip address` show the reason, such as a missing \
                 route or an address in conflict (dadfailed)",
                trial.target.ip()
            )),
    )
}
