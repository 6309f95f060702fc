//! Subflows that were started and failed, and the element that made them fail.

pub(super) mod no_reply;

use std::net::IpAddr;

use towpath_host::snapshot::MptcpLimits;

use self::no_reply::{SilentGateway, find_late_answers, find_silent_gateway};
use super::handshake::{NO_HOP, last_hop, option_loss_hop};
use super::limits::{MAX_LIMITS, raise_limits};
use super::parallel_links::find_silent_link;
use super::path::{MissingSubflow, path_label, remote_name};
use super::routes::{find_reverse_path_filter, routing};
use super::view::{ObservationView, private_block};
use crate::finding::{Cause, Confidence, Finding};
use crate::observation::{
    ConnectOutcome, PlainTcpCheck, ProbeOption, RecordedEvent, TargetReply, TestConnection,
};
use crate::text;

/// Finds the cause of a SYN without a reply.
pub(super) fn explain_unanswered(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    missing: &MissingSubflow<'_>,
) -> Finding {
    if let Some(finding) =
        missing.local.and_then(|local| super::configuration::endpoint_trouble(view, local))
    {
        return finding;
    }
    if let Some(finding) = find_reverse_path_filter(view, trial, missing) {
        return finding;
    }
    if let Some(finding) = routing(view, missing) {
        return finding;
    }
    let remote = missing.remote.ip();
    let path = path_label(view, missing);
    let evidence = "the SYN of the subflow is retransmitted without an answer; the kernel counts it as a subflow";
    let check =
        view.plain_tcp_check(missing.local, remote).or_else(|| view.plain_tcp_check(None, remote));
    // A lossy path may have lost the few packets of this subflow.
    if let Some(finding) = check.and_then(|check| super::quality::find_loss(view, trial, check)) {
        return finding;
    }
    if let Some(finding) = find_silent_link(view, trial, (missing.local, remote)) {
        return finding;
    }
    match check {
        Some(check) if check.outcome == ConnectOutcome::Connected => {
            let finding = Finding::new(
                Cause::JoinDropped,
                format!("something on {path} drops further subflows but passes plain TCP"),
            )
            .at_location(&path)
            .with_evidence(evidence)
            .with_evidence(format!("plain TCP from {} to {}: connected", check.local, check.remote))
            .with_optional_evidence(
                option_loss_hop(trial, ProbeOption::Join, missing.local)
                    .map(|hops| format!("hop by hop: {hops}")),
            );
            finding.hint(
                "a firewall or middlebox of that path drops SYN packets with the option \
                          MP_JOIN: use that path for the first subflow, or use a tunnel",
            )
        }
        Some(check) => {
            report_dead_path(view, trial, missing, Some(check.outcome)).with_evidence(evidence)
        }
        None => report_dead_path(view, trial, missing, None).with_evidence(evidence),
    }
}

/// Reports a path over which not even plain TCP connects.
fn report_dead_path(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    missing: &MissingSubflow<'_>,
    outcome: Option<ConnectOutcome>,
) -> Finding {
    let (remote, path) = (missing.remote.ip(), path_label(view, missing));
    if let Some(finding) =
        missing.local.and_then(|local| find_late_answers(view, trial, local, remote))
    {
        return finding.at_location(&path);
    }
    if let Some(gateway) = find_silent_gateway(view, trial, (missing.local, remote), None) {
        return report_silent_gateway(view, missing, &gateway);
    }
    let announced = remote_name(view, missing.remote);
    let (cause, sentence) = if remote != trial.target.ip() && is_private(view, trial, remote) {
        (
            Cause::AnnouncedAddressPrivate,
            format!(
                "the other host announces {announced}, a private address that this host cannot reach"
            ),
        )
    } else if remote != trial.target.ip() {
        (
            Cause::AnnouncedAddressUnreachable,
            format!("the other host announces {announced}, which does not answer"),
        )
    } else {
        (Cause::PathSilent, format!("no answer over {path}"))
    };
    let finding = Finding::new(cause, sentence).at_location(&path);
    let finding = finding.with_optional_evidence(
        last_hop(trial, missing.local).map(|hops| format!("hop by hop: {hops}")),
    );
    let finding = match outcome {
        Some(outcome) => finding
            .with_evidence(format!("plain TCP over the same path: {}", text::outcome(outcome))),
        None => finding.with_confidence(Confidence::Likely),
    };
    if cause == Cause::PathSilent {
        return finding.hint(dead_path_hint(view, trial, missing));
    }
    let id = announced_id(view, trial, remote).map_or_else(|| "ID".to_owned(), |id| id.to_string());
    let finding = finding.fix(format!(
        "ip mptcp endpoint delete id {id}   # on the other host, that of {announced}"
    ));
    if cause == Cause::AnnouncedAddressPrivate {
        return finding.hint(format!(
            "the other host is probably behind a NAT. Further subflows to {} need no announcement: a \
             `subflow` endpoint of this host is enough. If the other host has a second public \
             address, announce that one, and let its NAT forward port {} there",
            trial.target.ip(),
            trial.target.port()
        ));
    }
    finding.hint(
        "if the address is right, the other host drops the packets or their replies: check its \
         firewall, its route from that address, and its reverse-path filter (rp_filter = 1). Behind a \
         NAT, announce the public address",
    )
}

/// Returns the next steps for a path without an answer. Without any hop, the gateway is suspect.
fn dead_path_hint(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    missing: &MissingSubflow<'_>,
) -> String {
    let no_hop = last_hop(trial, missing.local).is_some_and(|hops| hops == NO_HOP);
    let lookup = view
        .route_lookup(missing.remote.ip(), missing.local, missing.bound_to)
        .filter(|_| no_hop && missing.local.is_some());
    match lookup.and_then(|lookup| lookup.gateway) {
        Some(gateway) => format!(
            "check that path alone: link, gateway, firewall. `ip neigh show {gateway}` shows if the \
             gateway answers: FAILED and INCOMPLETE mean that it does not"
        ),
        None => "check that path alone: link, router, firewall".to_owned(),
    }
}

/// Reports a path whose gateway does not answer.
fn report_silent_gateway(
    view: &ObservationView<'_>,
    missing: &MissingSubflow<'_>,
    gateway: &SilentGateway,
) -> Finding {
    let path = path_label(view, missing);
    let sentence = format!("no answer over {path}: {}", gateway.sentence());
    let finding = Finding::new(Cause::PathSilent, sentence).at_location(&path);
    gateway.explain(finding).with_optional_evidence(
        view.plain_tcp_check(missing.local, missing.remote.ip())
            .map(|check| format!("plain TCP over the same path: {}", text::outcome(check.outcome))),
    )
}

/// Returns the identifier of an announced address, which Linux takes from the endpoint.
fn announced_id(view: &ObservationView<'_>, trial: &TestConnection, remote: IpAddr) -> Option<u8> {
    let mut endpoints = view.peer.iter().flat_map(|peer| &peer.latest().endpoints);
    let endpoint = endpoints.find(|endpoint| endpoint.is_signal() && endpoint.address == remote);
    let event = trial.events_of("ANNOUNCED").find(|event| event.remote == Some(remote));
    let subflow = trial.subflows.iter().find(|subflow| subflow.remote.ip() == remote);
    endpoint
        .map(|endpoint| endpoint.id)
        .or_else(|| event.and_then(|event| event.remote_id))
        .or_else(|| subflow.and_then(|subflow| subflow.remote_id))
}

/// Returns true for a private address, seen from outside of its network.
fn is_private(view: &ObservationView<'_>, trial: &TestConnection, remote: IpAddr) -> bool {
    let block = private_block(remote);
    let target_block = private_block(trial.target.ip());
    let is_neighbour = view.here.links.iter().any(|link| view.on_link(link.index, remote));
    let is_local_block =
        view.here.addresses.iter().any(|entry| private_block(entry.address) == block);
    let is_behind_nat = view.peer.is_some_and(|peer| {
        peer.address.ip() == trial.target.ip()
            && peer.latest().link_of(trial.target.ip()).is_none()
            && !peer.latest().addresses.is_empty()
    });
    // A host with a public address that announces a private one is behind a NAT, even if this
    // host's network has the same kind of address.
    let is_public_target = target_block.is_none() && !is_neighbour;
    block.is_some()
        && (is_behind_nat || is_public_target || (target_block != block && !is_local_block))
}

/// Finds the cause of a subflow that was refused before it was established.
pub(super) fn explain_closed(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    missing: &MissingSubflow<'_>,
    event: Option<&RecordedEvent>,
) -> Finding {
    let error = event.and_then(|event| event.error);
    let path = path_label(view, missing);
    let with_close_evidence = |finding: Finding| match error {
        Some(errno) => {
            finding.with_evidence(format!("the subflow was closed: {}", text::error(errno)))
        }
        None => finding.with_evidence("the subflow was closed"),
    };
    match error {
        Some(libc::ECONNREFUSED | libc::ECONNRESET) => {
            with_close_evidence(explain_reset(view, trial, missing, event))
        }
        Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EACCES | libc::EPERM) => {
            with_close_evidence(explain_unreachable(
                view,
                trial,
                missing,
                error.unwrap_or_default(),
            ))
        }
        Some(libc::ETIMEDOUT) => with_close_evidence(explain_unanswered(view, trial, missing)),
        _ if trial.counter_delta("MPJoinSynAckHMacFailure") > 0 => with_close_evidence(
            Finding::new(
                Cause::LoadBalancerOtherHost,
                format!("over {path}, a different host answers"),
            )
            .at_location(&path),
        )
        .with_evidence("its HMAC is wrong (MPJoinSynAckHMacFailure)"),
        // Without events: a path without plain TCP explains more than a limit of the peer.
        _ if missing.local.is_some()
            && view.plain_tcp_connects(missing.local, missing.remote.ip()) == Some(false) =>
        {
            with_close_evidence(cause_without_events(view, trial, missing))
        }
        // Every reply had the option; other resets of this host do not matter.
        _ if has_rejected_join(view, trial) => {
            with_close_evidence(explain_rejected(view, missing, event))
        }
        _ if trial.counter_delta("MPRstTx") > 0 => with_close_evidence(
            Finding::new(
                Cause::JoinOptionStripped,
                format!("something on {path} removes the Multipath TCP option from SYN packets"),
            )
            .at_location(&path),
        )
        .with_evidence("the SYN/ACK came without MP_JOIN, so this host reset the subflow (MPRstTx)")
        .with_optional_evidence(
            option_loss_hop(trial, ProbeOption::Join, missing.local)
                .map(|hops| format!("hop by hop: {hops}")),
        )
        .hint("plain TCP and a first subflow fall back there; use another path, or a tunnel"),
        _ => with_close_evidence(cause_without_events(view, trial, missing)),
    }
}

/// Returns true if a SYN with MP_JOIN was answered with the option and the subflow does not work.
fn has_rejected_join(view: &ObservationView<'_>, trial: &TestConnection) -> bool {
    let [sent, answered] = ["MPJoinSynTx", "MPJoinSynAckRx"].map(|name| trial.counter_delta(name));
    let working = view.joined_subflows().filter(|subflow| subflow.opened_here).count() as u64;
    answered > working && (answered >= sent || trial.counter_delta("MPRstTx") == 0)
}

/// Finds the cause without events, from the plain TCP test of the same path.
fn cause_without_events(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    missing: &MissingSubflow<'_>,
) -> Finding {
    let check = view.plain_tcp_check(missing.local, missing.remote.ip());
    match check.map(|check| check.outcome) {
        Some(ConnectOutcome::Refused) => explain_reset(view, trial, missing, None),
        Some(ConnectOutcome::Failed(errno)) => explain_unreachable(view, trial, missing, errno),
        Some(ConnectOutcome::Silent) => {
            report_dead_path(view, trial, missing, Some(ConnectOutcome::Silent))
        }
        Some(ConnectOutcome::Connected) | None => infer_cause(view, trial, missing),
    }
}

/// Infers the cause where plain TCP passes. The kernel counts ICMP errors, but not resets.
fn infer_cause(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    missing: &MissingSubflow<'_>,
) -> Finding {
    let names = ["Icmp.InDestUnreachs", "Icmp6.InDestUnreachs"];
    let icmp_counter = names.into_iter().find(|name| trial.counters.contains_key(*name));
    match icmp_counter {
        // Without events, the announced address is unknown.
        Some(name) if missing.announced && missing.remote.ip() == trial.target.ip() => {
            let sentence =
                "the other host announces an address that a router reports as unreachable";
            Finding::new(Cause::AnnouncedAddressUnreachable, sentence)
                .with_evidence(format!("a router reports an unreachable destination ({name})"))
                .hint("`ip mptcp monitor` (needs root) shows the announced address")
        }
        Some(name) => {
            let path = path_label(view, missing);
            let sentence = format!("a firewall on {path} forbids further subflows");
            Finding::new(Cause::JoinProhibited, sentence)
                .at_location(&path)
                .with_evidence(format!("a router reports an unreachable destination ({name})"))
                .with_evidence("plain TCP over the same path: connected")
                .hint("ask the operator of that path, or use another one")
        }
        None => explain_reset(view, trial, missing, None),
    }
    .with_confidence(Confidence::Likely)
}

/// Reports a reset and its sender.
fn explain_reset(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    missing: &MissingSubflow<'_>,
    event: Option<&RecordedEvent>,
) -> Finding {
    let (remote, path) = (missing.remote.ip(), path_label(view, missing));
    let mut target_checks =
        trial.controls.iter().filter(|check| check.remote == trial.target).peekable();
    if target_checks.peek().is_some()
        && target_checks.all(|check| check.outcome == ConnectOutcome::Refused)
    {
        return report_listener_closed(trial);
    }
    let reason = event.and_then(|event| event.reset_reason);
    // A host with Multipath TCP resets the probe, whose token is unknown, with a reason; a firewall
    // does not. So such a host also refused the real subflow, and it does not know the connection.
    let is_mptcp_reset = trial.probes.iter().any(|probe| {
        (Some(probe.local), probe.remote.ip()) == (missing.local, remote)
            && probe.answer == Some(TargetReply::Reset { option: true })
    });
    if is_mptcp_reset || reason.is_some() {
        return report_load_balancer(&path, is_mptcp_reset, reason);
    }
    let check =
        view.plain_tcp_check(missing.local, remote).or_else(|| view.plain_tcp_check(None, remote));
    let connects = |check: &PlainTcpCheck| {
        check.remote == trial.target && check.outcome == ConnectOutcome::Connected
    };
    match check.map(|check| check.outcome) {
        Some(ConnectOutcome::Refused) if remote != trial.target.ip() => {
            report_unused_port(view, missing)
        }
        Some(ConnectOutcome::Refused) => Finding::new(
            Cause::PathRefused,
            format!("over {path}, plain TCP to {} is refused as well", missing.remote),
        )
        .at_location(&path)
        .with_evidence("plain TCP over the same path: refused")
        .with_optional_evidence(
            trial
                .controls
                .iter()
                .find(|check| connects(check))
                .map(|check| format!("plain TCP from {}: connected", check.local)),
        )
        .hint(
            "this is not due to Multipath TCP: on that path a firewall rejects this port, or another host has the address of the server",
        ),
        outcome => {
            let sentence = format!("something on {path} resets further subflows");
            let finding = Finding::new(Cause::JoinReset, sentence).at_location(&path).hint(
                "a firewall probably rejects with a reset: allow SYN packets with MP_JOIN on that path",
            );
            match outcome {
                Some(outcome) => finding.with_evidence(format!(
                    "plain TCP over the same path: {}",
                    text::outcome(outcome)
                )),
                None => finding.with_confidence(Confidence::Likely),
            }
        }
    }
}

/// Reports an announced address with no listener at the port.
fn report_unused_port(view: &ObservationView<'_>, missing: &MissingSubflow<'_>) -> Finding {
    let announced = remote_name(view, missing.remote);
    Finding::new(
        Cause::AnnouncedAddressUnreachable,
        format!("the other host announces {announced}, but no program listens there"),
    )
    .at_location(path_label(view, missing))
    .with_evidence(format!("plain TCP to {}: refused", missing.remote))
    .hint("make the program listen on all addresses, or announce the address with a port")
}

fn report_listener_closed(trial: &TestConnection) -> Finding {
    Finding::new(
        Cause::ListenerClosedAfterAccept,
        format!("no program listens on {} any more, so further subflows are refused", trial.target),
    )
    .at_location(trial.target)
    .with_evidence("plain TCP to the same port is refused now, and was not before")
    .hint(
        "the program closes its listener after it accepts a connection: keep it open, or \
         announce an endpoint with a port of its own (`ip mptcp endpoint add … signal port N`)",
    )
}

fn report_load_balancer(path: &str, is_mptcp_reset: bool, reason: Option<u32>) -> Finding {
    Finding::new(
        Cause::LoadBalancerOtherHost,
        format!("over {path}, a different host answers that does not know the connection"),
    )
    .at_location(path)
    .with_confidence(if is_mptcp_reset { Confidence::Certain } else { Confidence::Likely })
    .with_evidence(match reason {
        Some(reason) => format!("its reset has a reason of Multipath TCP ({reason})"),
        None => "it speaks Multipath TCP: its resets have the option MP_TCPRST".to_owned(),
    })
    .hint(
        "a load balancer spreads subflows over several hosts: on each, announce an address of its own and forbid joins to the shared one (net.mptcp.allow_join_initial_addr_port = 0)",
    )
}

/// Reports an ICMP error of a router, or a missing route on this host.
fn explain_unreachable(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    missing: &MissingSubflow<'_>,
    errno: i32,
) -> Finding {
    let (remote, path) = (missing.remote.ip(), path_label(view, missing));
    let has_no_route = view
        .route_lookup(remote, missing.local, missing.bound_to)
        .is_some_and(|lookup| lookup.errno.is_some());
    if remote == trial.target.ip()
        && let Some(finding) = routing(view, missing)
    {
        return finding;
    }
    if let Some(finding) = find_too_many_hops(view, trial, missing) {
        return finding;
    }
    if let Some(gateway) = find_silent_gateway(view, trial, (missing.local, remote), Some(errno)) {
        return report_silent_gateway(view, missing, &gateway);
    }
    // A router's message about the same packet is more exact than the resulting error.
    let icmp_error = trial.probes.iter().filter(|probe| probe.remote.ip() == remote);
    let icmp_error =
        icmp_error.flat_map(|probe| &probe.hops).find_map(|hop| Some((hop.address?, hop.refused?)));
    let plain_tcp_refusal =
        view.plain_tcp_check(missing.local, remote).and_then(|check| check.refused);
    let icmp_error = icmp_error
        .or(plain_tcp_refusal.map(|refusal| (refusal.router, (refusal.kind, refusal.code))));
    let is_firewall = match icmp_error {
        Some((_, (3, code))) => matches!(code, 9 | 10 | 13),
        Some((_, (1, code))) => matches!(code, 1 | 5 | 6),
        _ => errno == libc::EHOSTUNREACH || errno == libc::EACCES || errno == libc::EPERM,
    };
    let finding = if is_firewall
        && !has_no_route
        && (icmp_error.is_some() || remote == trial.target.ip())
    {
        Finding::new(
            Cause::JoinProhibited,
            format!("a firewall on {path} forbids further subflows"),
        )
    } else if remote != trial.target.ip() {
        return report_dead_path(view, trial, missing, Some(ConnectOutcome::Failed(errno)));
    } else {
        Finding::new(Cause::JoinUnreachable, format!("a router on {path} has no route to {remote}"))
    };
    let finding =
        finding.at_location(&path).hint("ask the operator of that path, or use another one");
    let finding = match view.plain_tcp_check(missing.local, remote) {
        Some(check) => finding.with_evidence(format!(
            "plain TCP over the same path: {}",
            text::outcome(check.outcome)
        )),
        None => finding,
    };
    match icmp_error {
        Some((hop, (kind, code))) => {
            finding.with_evidence(format!("{hop} reports it (ICMP type {kind}, code {code})"))
        }
        None => finding,
    }
}

/// Reports a path with more routers than this host's time to live allows.
fn find_too_many_hops(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    missing: &MissingSubflow<'_>,
) -> Option<Finding> {
    let max_hops = view.here.number("ipv4.ip_default_ttl").filter(|_| missing.remote.is_ipv4())?;
    let ends = (missing.local, missing.remote.ip());
    let mut probes =
        trial.probes.iter().filter(|probe| (Some(probe.local), probe.remote.ip()) == ends);
    let hops = probes.find(|probe| probe.answer.is_some()).map(|probe| probe.hops.len() as u64)?;
    (hops >= max_hops).then(|| {
        let path = path_label(view, missing);
        let sentence = format!("packets of this host do not reach the other end of {path}");
        let finding = Finding::new(Cause::JoinUnreachable, sentence)
            .at_location(&path)
            .with_evidence(format!("the path has {hops} routers"))
            .with_evidence(format!("net.ipv4.ip_default_ttl = {max_hops}"));
        // The usual value, or the maximum of the field if that is not enough.
        let needed = if hops < 64 { 64 } else { 255 };
        if needed > max_hops {
            finding.fix(format!("sysctl -w net.ipv4.ip_default_ttl={needed}"))
        } else {
            finding.hint("the time to live is at its maximum: use a path with fewer routers")
        }
    })
}

/// Finds the cause of a subflow that was established and ended at once.
pub(super) fn explain_rejected(
    view: &ObservationView<'_>,
    missing: &MissingSubflow<'_>,
    event: Option<&RecordedEvent>,
) -> Finding {
    let path = path_label(view, missing);
    if event.and_then(|event| event.reset_reason) == Some(6) {
        return Finding::new(
            Cause::PayloadRewritten,
            format!("something on {path} modifies the data"),
        )
        .at_location(&path)
        .with_evidence("the subflow was reset because of middlebox interference (reason 6)");
    }
    let limits = view.peer.and_then(|peer| peer.latest().limits);
    let rejected_joins = view.peer.map_or(0, |peer| peer.counter_delta("MPJoinRejected"));
    let finding = Finding::new(
        Cause::PeerLimit,
        "the other host accepts no more subflows: its limit is reached",
    )
    .at_location("other host")
    .with_evidence("the other host reset the subflow as soon as it was established");
    let needed = MptcpLimits { add_addr_accepted: 0, ..MAX_LIMITS };
    let finding = raise_limits(finding, limits, needed, "   # on the other host");
    let finding = match limits {
        Some(limits) => {
            finding.with_evidence(format!("limits there: subflows {}", limits.subflows))
        }
        None => finding,
    };
    if rejected_joins > 0 {
        finding.with_evidence(format!("it counts MPJoinRejected {rejected_joins}"))
    } else {
        let limit_reached = limits.is_some_and(|limits| {
            u64::from(limits.subflows) <= view.joined_subflows().count() as u64
        });
        finding.with_confidence(if limit_reached {
            Confidence::Certain
        } else {
            Confidence::Likely
        })
    }
}
