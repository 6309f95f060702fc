//! New connections that start on a path that does not work, while the server answers on another.

use std::net::IpAddr;

use towpath_host::setup::quoted;

use super::failed::no_reply::find_silent_gateway;
use super::handshake::last_hop;
use super::view::ObservationView;
use crate::finding::{Cause, Confidence, Finding};
use crate::observation::{
    ConnectAttempt, ConnectOutcome, PlainTcpCheck, RouteLookup, TestConnection,
};
use crate::text;

/// Reports a server that no new connection reaches, although plain TCP from another local address
/// does.
pub(super) fn find_unusable_first_path(
    view: &ObservationView<'_>,
    trial: &TestConnection,
) -> Option<Finding> {
    let fails = |attempt: &ConnectAttempt| attempt.outcome != ConnectOutcome::Connected;
    if trial.connected(true) || !trial.attempts(false).any(fails) {
        return None;
    }
    let target = trial.target;
    let first_lookup = view.route_lookup(target.ip(), None, None);
    let first_link = first_lookup.and_then(|lookup| lookup.link);
    let Some(check) = find_answering_check(view, trial, first_link) else {
        return find_unequal_first_paths(view, trial, first_link);
    };
    if trial.connected(false) {
        return None;
    }
    let (local, link) = (check.local, view.here.link_of(check.local)?);
    let failure_text = match trial.attempts(false).map(|attempt| attempt.outcome).next() {
        Some(ConnectOutcome::Silent | ConnectOutcome::Connected) | None => "time out".to_owned(),
        Some(ConnectOutcome::Refused) => "are refused".to_owned(),
        Some(ConnectOutcome::Failed(errno)) => format!("fail: {}", text::error(errno)),
    };
    let first_name = first_link.map(|index| view.interface_name(index));
    let start_text = first_name.as_ref().map_or_else(
        || "new connections find no route".to_owned(),
        |first_name| {
            format!("new connections start on the first route ({first_name}) and {failure_text}")
        },
    );
    let silent_gateway = first_source(view, trial, first_link)
        .and_then(|local| find_silent_gateway(view, trial, (Some(local), target.ip()), None));
    let neighbour_name = first_name.as_ref().filter(|_| is_neighbour(view, first_lookup));
    let neighbour_text = neighbour_name
        .map(|name| format!("the route treats {} as a neighbour on {name}", target.ip()));
    let reason = silent_gateway.map(|gateway| gateway.sentence());
    let sentence = format!("{target} answers from {local} on {}, but {start_text}", link.name);
    let finding = Finding::new(Cause::FirstPathUnusable, sentence)
        .at_location(target)
        .with_optional_evidence(
            first_name.as_ref().map(|name| format!("ip route get {}: dev {name}", target.ip())),
        )
        .with_optional_evidence(neighbour_text)
        .with_optional_evidence(reason)
        .with_evidence(format!("plain TCP from {local} ({}): connected", link.name))
        .with_optional_evidence(last_hop(trial, None).map(|hops| format!("hop by hop: {hops}")));
    Some(suggest_other_path(view, finding, check, first_name.as_deref()))
}

/// Returns the source address of new connections: the one on their interface whose test failed.
fn first_source(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    first_link: Option<u32>,
) -> Option<IpAddr> {
    let mut checks = trial.controls.iter().filter(|check| check.remote == trial.target);
    let fails_there = |check: &&PlainTcpCheck| {
        check.outcome != ConnectOutcome::Connected
            && first_link.is_some()
            && view.here.link_of(check.local).map(|link| link.index) == first_link
    };
    checks.find(fails_there).map(|check| check.local)
}

/// Returns true if a route has no next hop, on an interface with more than one neighbour.
fn is_neighbour(view: &ObservationView<'_>, lookup: Option<&RouteLookup>) -> bool {
    lookup.is_some_and(|lookup| {
        let link = lookup.link.and_then(|index| view.here.link(index));
        lookup.gateway.is_none() && link.is_some_and(|link| !link.is_point_to_point())
    })
}

/// Reports a server that answers over the route of the lookup, while another interface fails as the
/// new connections did. They start on both in turn, as equal-cost routes (RFC 2992) let them.
fn find_unequal_first_paths(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    first_link: Option<u32>,
) -> Option<Finding> {
    let target = trial.target;
    let link_of = |check: &PlainTcpCheck| {
        check
            .bound_to
            .and_then(|index| view.here.link(index))
            .or_else(|| view.here.link_of(check.local))
    };
    let checks = || trial.controls.iter().filter(|check| check.remote == target);
    let is_first = |check: &&PlainTcpCheck| {
        first_link.is_some() && link_of(check).map(|link| link.index) == first_link
    };
    let good =
        checks().filter(is_first).find(|check| check.outcome == ConnectOutcome::Connected)?;
    let fails_alike = |check: &&PlainTcpCheck| {
        check.outcome != ConnectOutcome::Connected
            && trial.attempts(false).any(|attempt| attempt.outcome == check.outcome)
    };
    let bad = checks().filter(|check| !is_first(check)).find(fails_alike)?;
    let (good_name, bad_name) = (&link_of(good)?.name, &link_of(bad)?.name);
    let sentence = format!(
        "{target} answers from {} on {good_name}, but not over {bad_name}: new connections that start \
         there fail",
        good.local
    );
    let outcome = text::outcome(bad.outcome);
    let finding = Finding::new(Cause::FirstPathUnusable, sentence)
        .at_location(target)
        .with_confidence(Confidence::Likely)
        .with_evidence(format!("plain TCP from {} ({good_name}): connected", good.local))
        .with_evidence(format!("plain TCP from {} ({bad_name}): {outcome}", bad.local))
        .with_evidence("several routes to the server are equal, or the server has just started");
    Some(suggest_other_path(view, finding, good, Some(bad_name)))
}

/// Returns the test of plain TCP that connects over another path than the one of new connections.
fn find_answering_check<'a>(
    view: &ObservationView<'_>,
    trial: &'a TestConnection,
    first_link: Option<u32>,
) -> Option<&'a PlainTcpCheck> {
    let checks = || trial.controls.iter().filter(|check| check.remote == trial.target);
    let connects = |check: &&PlainTcpCheck| check.outcome == ConnectOutcome::Connected;
    let first_lookup = view.route_lookup(trial.target.ip(), None, None);
    // A route for the source may have another next hop on the same interface.
    let has_other_gateway = |check: &PlainTcpCheck| {
        let lookup = |bound_to| view.route_lookup(check.remote.ip(), Some(check.local), bound_to);
        let own_lookup = lookup(check.bound_to).or_else(|| lookup(None));
        own_lookup.zip(first_lookup).is_some_and(|(own, first)| own.gateway != first.gateway)
    };
    let starts_first = |check: &&PlainTcpCheck| {
        let link = view.here.link_of(check.local).map(|link| link.index);
        first_link.is_some() && check.bound_to.or(link) == first_link && !has_other_gateway(check)
    };
    // The server has started meanwhile, or the first packets were lost by chance.
    if checks().filter(starts_first).any(|check| connects(&check)) {
        return None;
    }
    checks().filter(connects).find(|check| view.here.link_of(check.local).is_some())
}

/// Adds the commands and choices that let new connections start on the path of `check`.
fn suggest_other_path(
    view: &ObservationView<'_>,
    finding: Finding,
    check: &PlainTcpCheck,
    first_name: Option<&str>,
) -> Finding {
    let (local, to) = (check.local, check.remote.ip());
    let Some(link) = view.here.link_of(local) else { return finding };
    let own_route = |bound_to| {
        let lookup = view.route_lookup(to, Some(local), bound_to);
        lookup.filter(|lookup| lookup.link == Some(link.index) && lookup.errno.is_none())
    };
    let gateway = own_route(Some(link.index)).and_then(|lookup| lookup.gateway);
    let via = gateway.map_or_else(String::new, |gateway| format!(" via {gateway}"));
    let ip = if local.is_ipv6() { "ip -6" } else { "ip" };
    let name = &link.name;
    let finding = finding.fix(format!("{ip} route add {to}{via} dev {} src {local}", quoted(name)));
    let metric = first_name.map_or_else(
        || format!("add a default route over {name}"),
        |first_name| {
            format!("give the default route over {name} a lower metric than that of {first_name}")
        },
    );
    let binding = if own_route(None).is_some() {
        format!("bind the program to {local}")
    } else {
        format!("bind the program to the interface {name} (`SO_BINDTODEVICE`)")
    };
    finding.hint(format!(
        "the command is for this server alone. For all servers, {metric}; or {binding}, as \
         `towpath measure -B %{name}` does"
    ))
}
