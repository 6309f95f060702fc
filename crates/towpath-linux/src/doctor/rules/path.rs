//! Subflows that should exist and do not, each with its cause.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use towpath_measure::live::snapshot::EndpointSnapshot;

use super::failed::{closed, rejected, unanswered};
use super::routes::routing;
use super::view::{ObservationView, works};
use crate::doctor::finding::{Cause, Confidence, Finding};
use crate::doctor::observation::{ConnectOutcome, ObservedSubflow, RecordedEvent, TestConnection};
use crate::doctor::text;

/// A subflow that should exist.
#[derive(Debug, Clone, Copy)]
pub(super) struct MissingSubflow<'a> {
    /// Local address; `None` if the kernel would choose it.
    pub(super) local: Option<IpAddr>,
    /// Interface to which its endpoint is bound.
    pub(super) bound_to: Option<u32>,
    pub(super) remote: SocketAddr,
    /// Set when the peer announced the remote address.
    announced: bool,
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
    let Some(trial) = view.trial else { return Vec::new() };
    // Without data in both directions, or with a peer that has gone, the kernel opens no subflow.
    let first = trial.first();
    let talked = first.is_some_and(|one| one.tcp.bytes_acked > 1 || one.tcp.bytes_received > 0);
    if !trial.multipath_at_end && !talked {
        return Vec::new();
    }
    let missing = missing(view, trial);
    let swallowed = announcement_lost(view, trial);
    let causes = missing.iter().filter_map(|one| match one.stage {
        FailureStage::NotStarted => {
            not_started(view, trial, one).filter(|_| talked && !trial.closed_by_peer)
        }
        FailureStage::Closed(_) | FailureStage::Rejected(_)
            if closed_with_connection(view, trial, one) =>
        {
            None
        }
        FailureStage::Unanswered => Some(unanswered(view, trial, one)),
        FailureStage::Closed(event) => Some(closed(view, trial, one, event)),
        FailureStage::Rejected(event) => Some(rejected(view, one, event)),
    });
    swallowed.into_iter().chain(causes).collect()
}

/// Returns true if the server closed the whole connection and plain TCP works on that path. Then
/// the missing subflow proves nothing about the path.
fn closed_with_connection(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    one: &MissingSubflow<'_>,
) -> bool {
    let passes = || {
        let same = view.control(one.local, one.remote.ip());
        same.is_none_or(|control| control.outcome == ConnectOutcome::Connected)
    };
    let told = match one.stage {
        FailureStage::Closed(event) | FailureStage::Rejected(event) => {
            event.and_then(|event| event.error)
        }
        FailureStage::NotStarted | FailureStage::Unanswered => None,
    };
    // A router's message has another cause.
    let by_router = [libc::EHOSTUNREACH, libc::ENETUNREACH, libc::EACCES, libc::EPERM];
    trial.closed_by_peer && passes() && !told.is_some_and(|error| by_router.contains(&error))
}

/// Reports an announcement of the other host that did not arrive.
fn announcement_lost(view: &ObservationView<'_>, trial: &TestConnection) -> Option<Finding> {
    let peer = view.peer?;
    let sent = peer.counter_delta("AddAddrTx");
    if sent == 0 || trial.counter_delta("AddAddr") > 0 || trial.counter_delta("AddAddrDrop") > 0 {
        return None;
    }
    let looks = peer.latest();
    let announced = looks.endpoints.iter().find(|one| one.is_signal())?;
    Some(
        Finding::new(
            Cause::AnnouncementStripped,
            format!(
                "the other host announces {}, and something on the way removes the announcement",
                announced.address
            ),
        )
        .at_location(trial.target.ip())
        .with_evidence(format!(
            "sent there: {sent} (AddAddrTx), answered: {} (EchoAdd)",
            peer.counter_delta("EchoAdd")
        ))
        .with_evidence("arrived here: 0 (AddAddr)")
        .hint(
            "open subflows from this host's own addresses (`subflow` endpoints): they need no \
               announcement",
        ),
    )
}

/// Returns the missing subflows: those that failed, unused endpoints, and announcements without a
/// subflow while there is only one path.
fn missing<'a>(view: &ObservationView<'a>, trial: &'a TestConnection) -> Vec<MissingSubflow<'a>> {
    let mut missing = failed(view, trial);
    for endpoint in expected_endpoints(view, trial) {
        let tried = trial.subflows.iter().any(|one| one.local.ip() == endpoint.address)
            || missing.iter().any(|one| one.local == Some(endpoint.address));
        if !tried {
            missing.push(MissingSubflow {
                local: Some(endpoint.address),
                bound_to: endpoint.link,
                remote: trial.target,
                announced: false,
                stage: stage_from_counters(trial),
            });
        }
    }
    if view.joined().next().is_none() {
        add_untried_announcements(trial, &mut missing);
    }
    missing
}

/// Classifies a subflow that appears only in the counters. Without events, one that closes at once
/// may not be seen.
fn stage_from_counters(trial: &TestConnection) -> FailureStage<'static> {
    let further = || trial.subflows.iter().filter(|one| !one.first && one.opened_here);
    let seen = further().count() as u64;
    let answered = further().filter(|one| one.established).count() as u64;
    if trial.events.is_some() || trial.counter_delta("MPJoinSynTx") <= seen {
        FailureStage::NotStarted
    } else if trial.counter_delta("MPJoinSynAckRx") > answered {
        FailureStage::Rejected(None)
    } else {
        FailureStage::Closed(None)
    }
}

/// Returns subflows that were started and do not work.
fn failed<'a>(view: &ObservationView<'a>, trial: &'a TestConnection) -> Vec<MissingSubflow<'a>> {
    let announced = |remote| trial.events_of("ANNOUNCED").any(|one| one.remote == Some(remote));
    let of = |local: IpAddr, remote: SocketAddr, how| MissingSubflow {
        local: Some(local),
        bound_to: view.binding(local),
        remote,
        announced: announced(remote.ip()),
        stage: how,
    };
    // A SYN that waits for neighbour resolution is not retransmitted, even after its timeout.
    let waited = trial.counters.contains_key("TcpExt.TCPTimeouts");
    let mut missing: Vec<MissingSubflow<'_>> = Vec::new();
    for one in trial.subflows.iter().filter(|one| !one.first && one.opened_here && !works(one)) {
        let ended = close_event(trial, one.local.ip(), one.remote.ip());
        let how = match (one.established, one.gone, ended) {
            (true, _, ended) => FailureStage::Rejected(ended),
            (false, _, Some(event)) => FailureStage::Closed(Some(event)),
            (false, true, None) => FailureStage::Closed(None),
            // On a long path, the first reply may still arrive; after a retransmission, it counts
            // as missing.
            (false, false, None) if one.tcp.retransmissions == 0 && !waited => continue,
            (false, false, None) => FailureStage::Unanswered,
        };
        missing.push(of(one.local.ip(), one.remote, how));
    }
    for event in trial.events_of("SF_CLOSED") {
        let (Some(local), Some(remote)) = (event.local, event.remote) else { continue };
        let same = |one: &ObservedSubflow| one.local.ip() == local && one.remote.ip() == remote;
        let alive = trial.subflows.iter().any(|one| same(one) && (works(one) || one.first));
        let known =
            |one: &MissingSubflow<'_>| one.local == Some(local) && one.remote.ip() == remote;
        if alive || missing.iter().any(known) {
            continue;
        }
        let ends = (event.local, event.remote);
        let was = trial.events_of("SF_ESTABLISHED").any(|one| (one.local, one.remote) == ends);
        let how = if was {
            FailureStage::Rejected(Some(event))
        } else {
            FailureStage::Closed(Some(event))
        };
        let port = event.remote_port.unwrap_or(trial.target.port());
        missing.push(of(local, SocketAddr::new(remote, port), how));
    }
    missing
}

/// Adds announced addresses without any attempt.
fn add_untried_announcements(trial: &TestConnection, missing: &mut Vec<MissingSubflow<'_>>) {
    let (local, bound_to, announced, how) = (None, None, true, FailureStage::NotStarted);
    for event in trial.events_of("ANNOUNCED") {
        let Some(remote) = event.remote else { continue };
        let reached = trial.subflows.iter().any(|one| one.remote.ip() == remote);
        if reached || missing.iter().any(|one| one.remote.ip() == remote) {
            continue;
        }
        let port = event.remote_port.filter(|port| *port != 0).unwrap_or(trial.target.port());
        let remote = SocketAddr::new(remote, port);
        missing.push(MissingSubflow { local, bound_to, remote, announced, stage: how });
    }
    // Without events, the counter shows only the number of announcements.
    let tried = missing.iter().filter(|one| one.remote.ip() != trial.target.ip()).count() as u64;
    if trial.events.is_none() && trial.counter_delta("AddAddr") > tried {
        let how = if tried == 0 { stage_from_counters(trial) } else { how };
        missing.push(MissingSubflow {
            local,
            bound_to,
            remote: trial.target,
            announced,
            stage: how,
        });
    }
}

/// Returns the endpoints that should have a subflow.
fn expected_endpoints<'a>(
    view: &ObservationView<'a>,
    trial: &TestConnection,
) -> impl Iterator<Item = &'a EndpointSnapshot> {
    let first = trial.first().map(|one| one.local.ip());
    let v4 = trial.target.is_ipv4();
    view.here.endpoints.iter().filter(move |one| {
        one.opens_subflows()
            && !one.is_implicit()
            && Some(one.address) != first
            && one.address.is_ipv4() == v4
    })
}

/// Returns the event that ended a subflow.
fn close_event(trial: &TestConnection, local: IpAddr, remote: IpAddr) -> Option<&RecordedEvent> {
    let same = |event: &&RecordedEvent| event.local == Some(local) && event.remote == Some(remote);
    trial.events_of("SF_CLOSED").find(same)
}

/// Returns the label of a path.
pub(super) fn path_label(view: &ObservationView<'_>, one: &MissingSubflow<'_>) -> String {
    let link = one.local.and_then(|local| view.here.link_of(local));
    match (one.local, link) {
        (Some(local), Some(link)) => format!("{} ({local}) -> {}", link.name, one.remote.ip()),
        (Some(local), None) => format!("{local} -> {}", one.remote.ip()),
        (None, _) => one.remote.ip().to_string(),
    }
}

/// Finds the cause of a subflow that was never started.
fn not_started(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    one: &MissingSubflow<'_>,
) -> Option<Finding> {
    if let Some(finding) = userspace(view) {
        return Some(finding);
    }
    let trouble = |local| super::configuration::endpoint_trouble(view, local);
    if let Some(finding) = one.local.and_then(trouble).or_else(|| limit(view, trial, one)) {
        return Some(finding);
    }
    if one.announced {
        return None;
    }
    join_id0_denied(view, trial, one).or_else(|| failed_to_begin(view, trial, one))
}

/// Returns remote addresses with only failed subflows.
fn failed_remotes(trial: &TestConnection) -> BTreeSet<IpAddr> {
    let alive = |remote| trial.subflows.iter().any(|one| works(one) && one.remote.ip() == remote);
    let failed = trial.subflows.iter().filter(|one| !one.first && !works(one));
    let failed = failed.map(|one| one.remote.ip());
    let closed = trial.events_of("SF_CLOSED").filter_map(|event| event.remote);
    failed.chain(closed).filter(|remote| !alive(*remote)).collect()
}

/// Reports a limit of this host that prevents the subflow.
fn limit(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    one: &MissingSubflow<'_>,
) -> Option<Finding> {
    let limits = view.here.limits?;
    let begun = trial.subflows.iter().filter(|one| !one.first && !one.gone).count() as u64;
    let dead = failed_remotes(trial);
    let said = format!(
        "limits of this host: subflows {}, add_addr_accepted {}",
        limits.subflows, limits.add_addr_accepted
    );
    let own = view.here.endpoints.iter().filter(|one| one.opens_subflows()).count() as u64;
    let announced =
        (trial.events_of("ANNOUNCED").count() as u64).max(trial.counter_delta("AddAddr")).max(2);
    // The suggestion never lowers a limit.
    let enough = format!(
        "ip mptcp limits set subflows {} add_addr_accepted {}",
        own.saturating_add(announced).min(8).max(limits.subflows.into()),
        announced.min(8).max(limits.add_addr_accepted.into())
    );
    if limits.subflows == 0 || begun >= u64::from(limits.subflows) {
        if !dead.is_empty() && begun > 0 {
            return Some(dead_remotes(&dead, said, enough));
        }
        let sentence = format!(
            "this host's limit allows {} beyond the first, and that is not enough",
            text::count(limits.subflows.into(), "subflow")
        );
        let finding =
            Finding::new(Cause::SubflowLimit, sentence).at_location(path_label(view, one));
        let begun = format!("{} begun", text::count(begun, "further subflow"));
        return Some(finding.with_evidence(said).with_evidence(begun).fix(enough));
    }
    if one.announced && limits.add_addr_accepted == 0 {
        let sentence = "the other host announces an address, and this host's limit ignores it";
        let counted = format!(
            "{} announced (AddAddr), {} joined (MPJoinSynTx)",
            trial.counter_delta("AddAddr"),
            trial.counter_delta("MPJoinSynTx")
        );
        let finding =
            Finding::new(Cause::AddAddrLimit, sentence).at_location(path_label(view, one));
        return Some(finding.with_evidence(said).with_evidence(counted).fix(enough));
    }
    // Linux does not return the quota of an accepted address after a failure. Without events, a
    // subflow that failed at once may appear only in the counters.
    let alive = view.joined().count() as u64;
    let failed = trial.counter_delta("MPJoinSynTx").saturating_sub(alive);
    let full = failed.max(dead.len() as u64) >= limits.add_addr_accepted.into();
    (one.announced && !dead.is_empty() && full).then(|| dead_remotes(&dead, said, enough))
}

/// Reports a path manager in user space without a daemon to open subflows.
pub(super) fn userspace(view: &ObservationView<'_>) -> Option<Finding> {
    let here = view.here;
    let manager = here.settings.get("mptcp.path_manager").map(String::as_str);
    let userspace = here.number("mptcp.pm_type") == Some(1) || manager == Some("userspace");
    if !userspace || view.all.managers.iter().any(|name| name == "mptcpd") {
        return None;
    }
    Some(
        Finding::new(
            Cause::UserspacePathManagerWithoutDaemon,
            "a program is to make the subflows (net.mptcp.pm_type = 1), and none runs",
        )
        .with_evidence(format!("net.mptcp.pm_type = {}", here.number("mptcp.pm_type").unwrap_or(1)))
        .with_evidence("no mptcpd runs here")
        .fix("sysctl -w net.mptcp.pm_type=0")
        .hint("or start mptcpd; connections that exist keep the path manager that they have"),
    )
}

fn dead_remotes(dead: &BTreeSet<IpAddr>, said: String, enough: String) -> Finding {
    let names: Vec<String> = dead.iter().map(ToString::to_string).collect();
    let names = names.join(", ");
    Finding::new(
        Cause::DeadAnnouncedAddressesUseLimits,
        format!(
            "addresses that nobody can reach use up the limit, and others are not tried: {names}"
        ),
    )
    .at_location(&names)
    .with_evidence(said)
    .with_evidence("an address that was announced last was not tried")
    .fix(enough)
    .hint("on the other host, delete the endpoints that nobody can reach (`ip mptcp endpoint`)")
}

/// Reports a peer that accepts no subflows to its first address.
fn join_id0_denied(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    one: &MissingSubflow<'_>,
) -> Option<Finding> {
    let event = trial.events.iter().flatten().any(|event| event.denies_first_address);
    let setting = view
        .peer
        .and_then(|peer| peer.latest().number("mptcp.allow_join_initial_addr_port"))
        .is_some_and(|value| value == 0);
    // Without events and without the peer's report, this cause remains if nothing else prevents an
    // attempt.
    let errors = ["MPJoinSynTxBindErr", "MPJoinSynTxConnectErr", "MPJoinSynTxCreatSkErr"];
    let failed = errors.into_iter().any(|name| trial.counter_delta(name) > 0);
    let left = trial.events.is_none() && view.peer.is_none() && !failed;
    if !(event || setting || left) || trial.counter_delta("MPJoinSynTx") > 0 {
        return None;
    }
    if left && routing(view, one).is_some() {
        return None;
    }
    let finding = Finding::new(
        Cause::JoinId0Denied,
        format!(
            "the other host forbids further subflows to {} and announces no other address",
            trial.target.ip()
        ),
    )
    .at_location(path_label(view, one));
    let finding = if event {
        finding.with_evidence("its first answer says so (deny_join_id0)")
    } else if !setting {
        finding.with_confidence(Confidence::Likely).with_evidence(
            "there are an endpoint and room in the limits, and no SYN was sent for it",
        )
    } else {
        finding.with_evidence("there: net.mptcp.allow_join_initial_addr_port = 0")
    };
    Some(
        finding
            .fix("sysctl -w net.mptcp.allow_join_initial_addr_port=1   # on the other host")
            .hint("behind a load balancer, let it announce an address of its own in place of that"),
    )
}

/// Reports an attempt in which the kernel could not even send a SYN.
fn failed_to_begin(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    one: &MissingSubflow<'_>,
) -> Option<Finding> {
    let local = one.local?;
    if let Some(finding) = routing(view, one) {
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
            .at_location(path_label(view, one))
            .with_confidence(Confidence::Likely)
            .with_evidence(format!("the kernel counts {name}"))
            .fix(format!(
                "ip route get {} from {local}   # shows what is missing",
                trial.target.ip()
            )),
    )
}
