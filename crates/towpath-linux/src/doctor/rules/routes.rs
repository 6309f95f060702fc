//! Routes of a subflow's packets, and the interface at which replies arrive.

use std::net::IpAddr;

use towpath_measure::live::snapshot::LinkSnapshot;

use super::path::{MissingSubflow, path_label};
use super::view::ObservationView;
use crate::doctor::finding::{Cause, Finding};
use crate::doctor::observation::TestConnection;
use crate::doctor::text;
use crate::setup::quoted;
use crate::sysctl::Sysctl;

/// Packets from an address leave by the wrong interface, or have no gateway.
pub(super) fn routing_of(
    view: &ObservationView<'_>,
    local: IpAddr,
    bound_to: Option<u32>,
    remote: IpAddr,
) -> Option<Finding> {
    let link = view.here.link_of(local)?;
    let lookup = view.route_lookup(remote, Some(local), bound_to)?;
    let place = format!("{} ({local}) -> {remote}", link.name);
    let sourceless = |sentence: String, evidence: String| {
        let finding = Finding::new(Cause::NoSourceRoute, sentence)
            .at_location(&place)
            .with_evidence(evidence);
        table(view, finding, local, remote)
    };
    if let Some(errno) = lookup.errno {
        let why = text::error(errno);
        return Some(sourceless(
            format!("packets from {local} have no way to {remote}: {why}"),
            format!("ip route get {remote} from {local}: {why}"),
        ));
    }
    let leaves = lookup.link?;
    if leaves != link.index {
        let (leaves, name) = (view.name(leaves), &link.name);
        return Some(sourceless(
            format!(
                "packets from {local} (of {name}) leave by {leaves}: a route for that source is missing"
            ),
            format!("ip route get {remote} from {local}: dev {leaves}"),
        ));
    }
    let direct = lookup.gateway.is_none() && !view.on_link(link.index, remote);
    // A route over a point-to-point interface has no gateway either, and needs none.
    direct.then(|| {
        let finding = Finding::new(
            Cause::NoGatewayOnInterface,
            format!(
                "{} knows no gateway towards {remote}: this host looks for {remote} on the link itself",
                link.name
            ),
        )
        .at_location(&place)
        .with_evidence(format!("ip route get {remote} from {local} oif {}: no `via`", link.name));
        table(view, finding, local, remote)
    })
}

/// Adds the commands that give a source address a separate routing table.
fn table(view: &ObservationView<'_>, finding: Finding, local: IpAddr, remote: IpAddr) -> Finding {
    let Some(link) = view.here.link_of(local) else { return finding };
    let table = link.index.saturating_add(100);
    let bound = view.route_lookup(remote, Some(local), Some(link.index));
    // A rule is for IPv4 by default, and the lookup may return another interface's route.
    let ip = if local.is_ipv6() { "ip -6" } else { "ip" };
    let own = bound.filter(|lookup| lookup.link == Some(link.index));
    let Some(gateway) = own.and_then(|way| way.gateway) else {
        let name = quoted(&link.name);
        return finding.hint(format!(
            "no route names the gateway of {name}; with it: `{ip} rule add from {local} table {table}` \
             and `{ip} route add default via GATEWAY dev {name} table {table}`"
        ));
    };
    finding.fix(format!("{ip} rule add from {local} table {table}")).fix(format!(
        "{ip} route add default via {gateway} dev {} table {table}",
        quoted(&link.name)
    ))
}

/// Applies `routing_of` to the addresses of a missing subflow.
pub(super) fn routing(view: &ObservationView<'_>, one: &MissingSubflow<'_>) -> Option<Finding> {
    routing_of(view, one.local?, one.bound_to, one.remote.ip())
}

/// Returns the command that accepts replies on an interface without a route back.
fn loose_filter_command(link: &str) -> String {
    format!("sysctl -w {}", quoted(&format!("{}=2", Sysctl::ipv4(link, "rp_filter"))))
}

/// Reports replies that arrive and are dropped by the reverse-path filter.
pub(super) fn reverse_path(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    one: &MissingSubflow<'_>,
) -> Option<Finding> {
    let name = "TcpExt.IPReversePathFilter";
    let dropped = trial.counters.get(name).copied().unwrap_or(0);
    let link = one.local.and_then(|local| view.here.link_of(local));
    if let Some(link) = link.filter(|link| link.rp_filter == 1 && dropped > 0) {
        return Some(
            Finding::new(
                Cause::ReversePathFilter,
                format!(
                    "answers arrive at {} and are thrown away, since the route back leads elsewhere \
                     (rp_filter = 1)",
                    link.name
                ),
            )
            .at_location(path_label(view, one))
            .with_evidence(format!("{dropped} dropped (IPReversePathFilter)"))
            .with_evidence(format!("net.ipv4.conf.{}.rp_filter = 1 (or all)", link.name))
            .fix("sysctl -w net.ipv4.conf.all.rp_filter=2".to_owned())
            .fix(loose_filter_command(&link.name)),
        );
    }
    let peer = view.peer?;
    let there = peer.latest().counter(name).saturating_sub(peer.before.counter(name));
    let strict = |link: &&LinkSnapshot| link.rp_filter == 1 && !link.loopback;
    let arrives = peer.latest().link_of(one.remote.ip()).filter(strict);
    let strict = arrives.or_else(|| peer.latest().links.iter().find(strict))?;
    (there > 0).then(|| {
        Finding::new(
            Cause::ReversePathFilter,
            format!(
                "the other host throws packets away that arrive at {} (rp_filter = 1)",
                strict.name
            ),
        )
        .at_location(format!("other host, {}", strict.name))
        .with_evidence(format!("{there} dropped there (IPReversePathFilter)"))
        .fix(format!("{}   # on the other host", loose_filter_command(&strict.name)))
    })
}
