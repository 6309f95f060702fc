//! Routes of a subflow's packets, and the interface at which replies arrive.

use std::net::IpAddr;

use towpath_host::setup::quoted;
use towpath_host::snapshot::LinkSnapshot;
use towpath_os::sysctl::Sysctl;

use super::path::{MissingSubflow, path_label};
use super::view::ObservationView;
use crate::finding::{Cause, Finding};
use crate::observation::TestConnection;
use crate::text;

/// Packets from an address leave by the wrong interface, or have no gateway.
pub(super) fn routing_of(
    view: &ObservationView<'_>,
    local: IpAddr,
    bound_to: Option<u32>,
    remote: IpAddr,
) -> Option<Finding> {
    let link = view.here.link_of(local)?;
    let lookup = view.route_lookup(remote, Some(local), bound_to)?;
    let location = format!("{} ({local}) -> {remote}", link.name);
    let report_missing_route = |sentence: String, evidence: String| {
        let finding = Finding::new(Cause::NoSourceRoute, sentence)
            .at_location(&location)
            .with_evidence(evidence);
        suggest_table(view, finding, local, remote)
    };
    if let Some(errno) = lookup.errno {
        let error_text = text::error(errno);
        return Some(report_missing_route(
            format!("packets from {local} have no route to {remote}: {error_text}"),
            format!("ip route get {remote} from {local}: {error_text}"),
        ));
    }
    let out_link = lookup.link?;
    if out_link != link.index {
        let (out_name, name) = (view.interface_name(out_link), &link.name);
        return Some(report_missing_route(
            format!(
                "packets from {local} ({name}) leave through {out_name}: a route for that source is missing"
            ),
            format!("ip route get {remote} from {local}: dev {out_name}"),
        ));
    }
    let lacks_gateway =
        lookup.gateway.is_none() && !view.on_link(link.index, remote) && !link.is_point_to_point();
    lacks_gateway.then(|| {
        let finding = Finding::new(
            Cause::NoGatewayOnInterface,
            format!(
                "{} has no gateway to {remote}: this host looks for {remote} on the link itself",
                link.name
            ),
        )
        .at_location(&location)
        .with_evidence(format!("ip route get {remote} from {local} oif {}: no `via`", link.name));
        suggest_table(view, finding, local, remote)
    })
}

/// Adds the commands that give a source address a separate routing table.
fn suggest_table(
    view: &ObservationView<'_>,
    finding: Finding,
    local: IpAddr,
    remote: IpAddr,
) -> Finding {
    let Some(link) = view.here.link_of(local) else { return finding };
    let table = link.index.saturating_add(100);
    let bound = view.route_lookup(remote, Some(local), Some(link.index));
    // A rule is for IPv4 by default, and the lookup may return another interface's route.
    let ip = if local.is_ipv6() { "ip -6" } else { "ip" };
    let own_route = bound.filter(|lookup| lookup.link == Some(link.index));
    let Some(gateway) = own_route.and_then(|lookup| lookup.gateway) else {
        let name = quoted(&link.name);
        return finding.hint(format!(
            "no route names the gateway of {name}; when you know it: `{ip} rule add from {local} table {table}` \
             and `{ip} route add default via GATEWAY dev {name} table {table}`. If {name} does not lead \
             to {remote}, delete the endpoint of {local}"
        ));
    };
    finding.fix(format!("{ip} rule add from {local} table {table}")).fix(format!(
        "{ip} route add default via {gateway} dev {} table {table}",
        quoted(&link.name)
    ))
}

/// Applies `routing_of` to the addresses of a missing subflow.
pub(super) fn routing(view: &ObservationView<'_>, missing: &MissingSubflow<'_>) -> Option<Finding> {
    routing_of(view, missing.local?, missing.bound_to, missing.remote.ip())
}

/// Returns the command that accepts replies on an interface without a route back.
fn loose_filter_command(link: &str) -> String {
    format!("sysctl -w {}", quoted(&format!("{}=2", Sysctl::ipv4(link, "rp_filter"))))
}

/// Reports replies that arrive and are dropped by the reverse-path filter.
pub(super) fn find_reverse_path_filter(
    view: &ObservationView<'_>,
    trial: &TestConnection,
    missing: &MissingSubflow<'_>,
) -> Option<Finding> {
    let counter_name = "TcpExt.IPReversePathFilter";
    let dropped = trial.counters.get(counter_name).copied().unwrap_or(0);
    let link = missing.local.and_then(|local| view.here.link_of(local));
    if let Some(link) = link.filter(|link| link.rp_filter == 1 && dropped > 0) {
        return Some(
            Finding::new(
                Cause::ReversePathFilter,
                format!(
                    "packets that arrive at {} are dropped, because the route back uses another interface (rp_filter = 1)",
                    link.name
                ),
            )
            .at_location(path_label(view, missing))
            .with_evidence(format!("{dropped} dropped (IPReversePathFilter)"))
            .with_evidence(format!("net.ipv4.conf.{}.rp_filter = 1 (or all)", link.name))
            .fix("sysctl -w net.ipv4.conf.all.rp_filter=2".to_owned())
            .fix(loose_filter_command(&link.name)),
        );
    }
    let peer = view.peer?;
    let dropped_there =
        peer.latest().counter(counter_name).saturating_sub(peer.before.counter(counter_name));
    let is_strict = |link: &&LinkSnapshot| link.rp_filter == 1 && !link.loopback;
    let arrives = peer.latest().link_of(missing.remote.ip()).filter(is_strict);
    let strict_link = arrives.or_else(|| peer.latest().links.iter().find(is_strict))?;
    (dropped_there > 0).then(|| {
        Finding::new(
            Cause::ReversePathFilter,
            format!(
                "the other host drops packets that arrive at {}, because its route back uses another \
                 interface (rp_filter = 1)",
                strict_link.name
            ),
        )
        .at_location(format!("other host, {}", strict_link.name))
        .with_evidence(format!("{dropped_there} dropped there (IPReversePathFilter)"))
        .fix(format!("{}   # on the other host", loose_filter_command(&strict_link.name)))
    })
}
