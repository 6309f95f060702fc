//! Paths without a reply in time: a gateway that does not answer, or replies that arrive late.

use std::net::IpAddr;

use super::super::view::ObservationView;
use crate::finding::{Cause, Confidence, Finding};
use crate::observation::{ConnectOutcome, IcmpRefusal, PlainTcpCheck, RouteLookup, TestConnection};
use crate::text;

/// Minimum of resets of this host that show late replies. A few follow from connections that end
/// with unread data.
const MIN_LATE_RESETS: u64 = 6;
/// Minimum of ICMP errors that show a failed neighbour resolution: one for each waiting packet.
const MIN_ICMP_ERRORS: u64 = 8;

/// A next hop that does not answer ARP or neighbour discovery.
#[derive(Debug, Clone)]
pub(in crate::rules) struct SilentGateway {
    address: IpAddr,
    /// Clear if the server itself is the next hop.
    is_gateway: bool,
    interface: String,
    evidence: String,
    confidence: Confidence,
}

impl SilentGateway {
    /// Returns the statement that the next hop does not answer.
    pub(in crate::rules) fn sentence(&self) -> String {
        let Self { address, interface, .. } = self;
        let protocol = if address.is_ipv4() { "ARP" } else { "neighbour discovery" };
        if self.is_gateway {
            format!("the gateway {address} of {interface} does not answer ({protocol})")
        } else {
            format!("{address} does not answer on the link of {interface} ({protocol})")
        }
    }

    /// Adds the evidence and the next steps.
    pub(in crate::rules) fn explain(&self, finding: Finding) -> Finding {
        let Self { address, interface, .. } = self;
        let subject = if self.is_gateway {
            format!("the address of the gateway ({address})")
        } else {
            format!("the prefix of {interface}, which includes {address}")
        };
        finding
            .with_confidence(self.confidence)
            .with_evidence(&self.evidence)
            .hint(format!("check {subject}, and the cable, the VLAN or the radio of {interface}"))
    }
}

/// Finds a next hop that does not answer on a path. `errno` is the error of a failed subflow.
pub(in crate::rules) fn find_silent_gateway(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    (local, remote): (Option<IpAddr>, IpAddr),
    errno: Option<i32>,
) -> Option<SilentGateway> {
    let check = view.plain_tcp_check(local, remote);
    if check.is_some_and(|check| check.outcome == ConnectOutcome::Connected) {
        return None;
    }
    let local = local.or(check.map(|check| check.local))?;
    let lookup = used_route(view, (local, remote), check.and_then(|check| check.bound_to))?;
    let link = lookup.link.and_then(|index| view.here.link(index))?;
    if lookup.errno.is_some() || link.loopback || link.is_point_to_point() {
        return None;
    }
    let (evidence, confidence) = unresolved_evidence(view, trial, (local, remote), errno)?;
    Some(SilentGateway {
        address: lookup.gateway.unwrap_or(remote),
        is_gateway: lookup.gateway.is_some(),
        interface: link.name.clone(),
        evidence,
        confidence,
    })
}

/// Returns the route of a path: that of a socket bound to the interface, if it was looked up.
fn used_route<'a>(
    view: &ObservationView<'a>,
    (local, remote): (IpAddr, IpAddr),
    bound_to: Option<u32>,
) -> Option<&'a RouteLookup> {
    let bound_to = bound_to.or_else(|| view.bound_interface(local));
    view.route_lookup(remote, Some(local), bound_to)
        .or_else(|| view.route_lookup(remote, Some(local), None))
}

/// Returns the evidence that this host could not resolve the next hop of a path.
fn unresolved_evidence(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    (local, remote): (IpAddr, IpAddr),
    errno: Option<i32>,
) -> Option<(String, Confidence)> {
    let check = view.plain_tcp_check(Some(local), remote);
    let own_refusal = check
        .and_then(|check| check.refused)
        .filter(|refusal| is_own_unreachable(view, refusal))
        .filter(|_| check.is_some_and(|check| is_unreachable(check.outcome)));
    if let Some(refusal) = own_refusal {
        let evidence = format!(
            "this host ({}) reports it (ICMP type {}, code {})",
            refusal.router, refusal.kind, refusal.code
        );
        return Some((evidence, Confidence::Certain));
    }
    let is_on_path = |of: (IpAddr, IpAddr)| of == (local, remote);
    let probes =
        || trial.probes.iter().filter(|probe| is_on_path((probe.local, probe.remote.ip())));
    let is_router = |address: IpAddr| address != local;
    let is_answered = probes().any(|probe| {
        probe.answer.is_some() || probe.hops.iter().filter_map(|hop| hop.address).any(is_router)
    });
    // A router that reports an error is a gateway that works, or is behind one.
    if is_answered || check.is_some_and(|check| check.refused.is_some()) {
        return None;
    }
    let is_probed = probes().next().is_some();
    let outcome_fails = check.is_some_and(|check| is_unreachable(check.outcome));
    if outcome_fails || errno == Some(libc::EHOSTUNREACH) {
        let evidence = format!("{}, and no router reports it", text::error(libc::EHOSTUNREACH));
        let confidence = if is_probed { Confidence::Certain } else { Confidence::Likely };
        return Some((evidence, confidence));
    }
    let name = if local.is_ipv4() { "Icmp.InDestUnreachs" } else { "Icmp6.InDestUnreachs" };
    let count = trial.counters.get(name).copied().unwrap_or(0);
    let minimum = MIN_ICMP_ERRORS.max(check.map_or(0, |check| check.port_attempts).into());
    let is_silent = check.is_some_and(|check| check.outcome == ConnectOutcome::Silent);
    (is_silent && is_probed && count >= minimum).then(|| {
        let evidence =
            format!("{count} ICMP errors ({name}) that no router sent, and no hop answers");
        (evidence, Confidence::Likely)
    })
}

/// Returns true for an error that the kernel reports after a failed neighbour resolution.
fn is_unreachable(outcome: ConnectOutcome) -> bool {
    outcome == ConnectOutcome::Failed(libc::EHOSTUNREACH)
}

/// Returns true if this host itself reports an unreachable host: code 1 of type 3 for IPv4, or code
/// 3 of type 1 for IPv6.
fn is_own_unreachable(view: &ObservationView<'_>, refusal: &IcmpRefusal) -> bool {
    matches!((refusal.kind, refusal.code), (3, 1) | (1, 3))
        && view.here.addresses.iter().any(|entry| entry.address == refusal.router)
}

/// Reports a path over which replies arrive after the time limit: this host resets them, as their
/// connections are closed by then.
pub(in crate::rules) fn find_late_answers(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    local: IpAddr,
    remote: IpAddr,
) -> Option<Finding> {
    let is_silent = |check: &PlainTcpCheck| check.outcome == ConnectOutcome::Silent;
    let check = view.plain_tcp_check(Some(local), remote).filter(|check| is_silent(check))?;
    let resets = trial.counters.get("Tcp.OutRsts").copied().unwrap_or(0);
    // Connections that worked may end with a reset of unread data.
    let connected = trial.controls.iter().filter(|check| !is_silent(check)).count() as u64;
    if check.ports_answered > 0 || resets < MIN_LATE_RESETS.saturating_add(connected) {
        return None;
    }
    let link = view.here.link_of(local);
    let name = link.map_or_else(|| local.to_string(), |link| link.name.clone());
    let path = format!("{name} ({local}) -> {remote}");
    let sentence = format!("answers over {path} arrive later than 1.4 s");
    Some(
        Finding::new(Cause::PathMuchSlower, sentence)
            .at_location(&path)
            .with_confidence(Confidence::Likely)
            .with_evidence("plain TCP over the same path: no answer within 1.25 s")
            .with_evidence(format!("this host reset {resets} packets that arrived late (OutRsts)"))
            .hint(
                "a full queue or a very long path: measure its round-trip time with `ping`. \
                 Applications that wait longer can use it, but data sent there arrive late",
            ),
    )
}
