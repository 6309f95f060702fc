//! Links between both hosts without a route to the target. Subflows use them only if the other host
//! announces its address there.

use std::net::IpAddr;

use towpath_host::setup::quoted;
use towpath_host::snapshot::{EndpointSnapshot, LinkSnapshot, MptcpLimits};

use super::addresses::share_address;
use super::limits::{MAX_LIMITS, raise_limits};
use super::view::ObservationView;
use crate::finding::{Cause, Finding};
use crate::route_lookups;

/// Reports a link that both hosts share and over which plain TCP connects, although no endpoint of
/// the other host announces its address there.
pub(super) fn find_unannounced_link(view: &ObservationView<'_>) -> Option<Finding> {
    let peer = view.peer.filter(|_| has_one_path(view))?;
    let is_announced = |address: IpAddr| {
        let endpoints = &peer.latest().endpoints;
        endpoints.iter().any(|endpoint| endpoint.is_signal() && endpoint.address == address)
    };
    let links: Vec<_> = route_lookups::shared_links(view.observation)
        .into_iter()
        .filter(|(_, local, remote)| view.plain_tcp_connects(Some(*local), *remote) == Some(true))
        .filter(|(_, _, remote)| !is_announced(*remote))
        .collect();
    let (link, _, remote) = links.first()?;
    let mut finding = Finding::new(
        Cause::NoEndpoints,
        format!(
            "{} also reaches the other host, as {remote}; but no endpoint there announces that address, and {} has no route to {}",
            link.name,
            link.name,
            view.trial?.target.ip()
        ),
    )
    .at_location("other host");
    let comment = "   # on the other host";
    let needed = MptcpLimits { add_addr_accepted: 0, ..MAX_LIMITS };
    finding = raise_limits(finding, peer.latest().limits, needed, comment);
    for (link, local, remote) in &links {
        let device = peer.latest().link_of(*remote);
        let device = device.map_or_else(|| "DEVICE".to_owned(), |link| quoted(&link.name));
        finding = finding
            .with_evidence(format!("plain TCP from {local} ({}) to {remote}: connected", link.name))
            .fix(format!("ip mptcp endpoint add {remote} dev {device} signal{comment}"));
    }
    let limits = view.here.limits;
    if limits.is_none_or(|limits| limits.subflows == 0 || limits.add_addr_accepted == 0) {
        finding = raise_limits(finding, limits, MAX_LIMITS, "");
    }
    Some(finding.hint("`towpath setup --role server` there and `towpath setup` here do this"))
}

/// Returns a hint for an interface without a route to the target. It may lead to the other host
/// under another address, which this host alone cannot test.
pub(super) fn untested_interface(view: &ObservationView<'_>) -> Option<String> {
    if view.peer.is_some() || !has_one_path(view) {
        return None;
    }
    let target = view.trial?.target.ip();
    let (interfaces, first_local) = (view.usable_interfaces(), view.trial?.first()?.local.ip());
    let has_route =
        |link: &LinkSnapshot| interfaces.iter().any(|(other, _)| other.index == link.index);
    let used_link = view.here.link_of(first_local)?;
    let mut names = Vec::new();
    for address in route_lookups::sources(view.here) {
        let link = view.here.link_of(address).filter(|link| link.up && link.running);
        let Some(link) = link.filter(|link| !link.loopback && link.index != used_link.index) else {
            continue;
        };
        let is_duplicate = share_address(view.here, link.index, used_link.index);
        if !has_route(link) && !is_duplicate && !names.contains(&link.name.as_str()) {
            names.push(link.name.as_str());
        }
    }
    let is_local_target = target.is_loopback() || view.here.link_of(target).is_some();
    (!names.is_empty() && !is_local_target).then(|| {
        format!(
            "other addresses of the host through {}: there is no route to {target}",
            names.join(" or ")
        )
    })
}

/// Returns true for a connection with one path and no endpoint of ours for another one.
fn has_one_path(view: &ObservationView<'_>) -> bool {
    let first_local = view.trial.and_then(|trial| trial.first()).map(|subflow| subflow.local.ip());
    let is_further = |endpoint: &EndpointSnapshot| {
        !endpoint.is_implicit() && Some(endpoint.address) != first_local
    };
    view.trial.is_some_and(|trial| trial.multipath)
        && view.joined_subflows().next().is_none()
        && !view.here.endpoints.iter().any(is_further)
}
