//! Addresses of this host that several interfaces have, and interfaces of the other family.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use towpath_host::setup::quoted;
use towpath_host::snapshot::{AddressSnapshot, HostSnapshot, LinkSnapshot};

use super::view::ObservationView;
use crate::finding::{Cause, Finding, UnusedInterface};
use crate::observation::RouteLookup;

/// Reports interfaces with the same address, as several identical modems give them.
pub(super) fn find_duplicate_addresses(view: &ObservationView<'_>) -> Vec<Finding> {
    let mut owners: BTreeMap<IpAddr, Vec<(&LinkSnapshot, &AddressSnapshot)>> = BTreeMap::new();
    for entry in &view.here.addresses {
        let Some(link) = view.here.link(entry.link) else { continue };
        let is_usable = link.up && link.running && !link.loopback;
        let links = owners.entry(entry.address).or_default();
        if is_usable
            && is_global(entry.address)
            && !links.iter().any(|(other, _)| other.index == link.index)
        {
            links.push((link, entry));
        }
    }
    let is_duplicate = |links: &Vec<(&LinkSnapshot, &AddressSnapshot)>| {
        // Unnumbered point-to-point links borrow the address of another interface.
        links.iter().filter(|(_, entry)| !is_host_prefix(entry)).count() > 1
    };
    owners
        .into_iter()
        .filter(|(_, links)| is_duplicate(links))
        .map(|(address, links)| report_duplicate(view, address, &links))
        .collect()
}

fn report_duplicate(
    view: &ObservationView<'_>,
    address: IpAddr,
    links: &[(&LinkSnapshot, &AddressSnapshot)],
) -> Finding {
    let names: Vec<_> = links.iter().map(|(link, _)| link.name.as_str()).collect();
    let names = names.join(" and ");
    let mut finding = Finding::new(
        Cause::DuplicateAddress,
        format!("{names} have the same address {address}, so only one of them can be a path"),
    )
    .at_location(format!("this host, {names}"));
    for (link, entry) in links {
        let length = entry.prefix_length;
        finding = finding.with_evidence(format!("ip address: {address}/{length} on {}", link.name));
    }
    suggest_addresses(view, finding, links)
}

/// Adds commands that give all interfaces but the first another address of their network, if their
/// gateways are known, and the other ways out.
fn suggest_addresses(
    view: &ObservationView<'_>,
    mut finding: Finding,
    links: &[(&LinkSnapshot, &AddressSnapshot)],
) -> Finding {
    let lookups = &view.observation.route_lookups;
    let mut assigned = Vec::new();
    for (link, entry) in links.iter().skip(1) {
        let is_own = |lookup: &&RouteLookup| {
            let ends = (lookup.from, lookup.bound_to, lookup.link);
            ends == (Some(entry.address), Some(link.index), Some(link.index))
        };
        let gateway = lookups.iter().filter(is_own).find_map(|lookup| lookup.gateway);
        let is_free = |address: &IpAddr| {
            Some(*address) != gateway
                && !assigned.contains(address)
                && !view.here.addresses.iter().any(|other| other.address == *address)
        };
        let (Some(gateway), Some(new)) = (gateway, next_addresses(entry).find(is_free)) else {
            continue;
        };
        let (name, table) = (quoted(&link.name), link.index.saturating_add(100));
        let (old, length) = (entry.address, entry.prefix_length);
        finding = finding
            .fix(format!("ip address delete {old}/{length} dev {name}"))
            .fix(format!("ip address add {new}/{length} dev {name}"))
            .fix(format!("ip rule add from {new} table {table}"))
            .fix(format!("ip route add default via {gateway} dev {name} table {table}"));
        assigned.push(new);
    }
    let other_ways = "change the network of one modem or router, or move its interface into a \
                      network namespace that translates the address (NAT)";
    if assigned.is_empty() {
        return finding.hint(format!("give each interface another address: {other_ways}"));
    }
    finding.hint(format!(
        "the commands assume that the new address is free in that modem's network. The DHCP client \
         of the interface must be off. Then `towpath setup` adds the endpoint. Otherwise, {other_ways}"
    ))
}

/// Returns the IPv4 addresses behind one in its network, up to the last before the broadcast
/// address; none for IPv6, where routers do not give equal addresses.
fn next_addresses(entry: &AddressSnapshot) -> impl Iterator<Item = IpAddr> {
    let range = match entry.address {
        IpAddr::V4(v4) => {
            let host_mask = u32::MAX.checked_shr(entry.prefix_length.into()).unwrap_or(0);
            let own = v4.to_bits();
            own.saturating_add(1)..(own | host_mask)
        }
        IpAddr::V6(_) => 0..0,
    };
    range.map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)))
}

/// Returns true if two interfaces of a host have an address in common.
pub(super) fn share_address(host: &HostSnapshot, first: u32, second: u32) -> bool {
    let addresses_of = |link: u32| host.addresses.iter().filter(move |entry| entry.link == link);
    addresses_of(first)
        .any(|entry| addresses_of(second).any(|other| other.address == entry.address))
}

/// Returns the interfaces that the test connection could not use, as all their addresses belong to
/// the other address family.
pub(super) fn unused_interfaces(view: &ObservationView<'_>) -> Vec<UnusedInterface> {
    let Some(trial) =
        view.trial.filter(|trial| trial.multipath && !is_local(view, trial.target.ip()))
    else {
        return Vec::new();
    };
    let target = trial.target.ip().to_canonical();
    let is_used = |link: &LinkSnapshot| {
        let mut locals = trial.subflows.iter().map(|subflow| subflow.local.ip());
        locals.any(|local| view.here.link_of(local).is_some_and(|used| used.index == link.index))
    };
    let is_usable = |link: &&LinkSnapshot| link.up && link.running && !link.loopback;
    let mut unused = Vec::new();
    for link in view.here.links.iter().filter(is_usable).filter(|link| !is_used(link)) {
        let entries = view.here.addresses.iter().filter(|entry| entry.link == link.index);
        let addresses: Vec<_> =
            entries.map(|entry| entry.address).filter(|address| is_global(*address)).collect();
        let has_own_family = addresses.iter().any(|address| address.is_ipv4() == target.is_ipv4());
        let Some(address) = addresses.first().filter(|_| !has_own_family) else { continue };
        let sentence = other_family_sentence(view, target, trial.target.is_ipv6());
        let (interface, address) = (link.name.clone(), *address);
        unused.push(UnusedInterface { interface, address, sentence });
    }
    unused
}

/// Explains why no subflow uses an address of the other family. Linux opens subflows of the other
/// family to announced addresses only, and never for an `AF_INET` socket.
fn other_family_sentence(
    view: &ObservationView<'_>,
    target: IpAddr,
    is_inet6_socket: bool,
) -> String {
    let (own, other) = if target.is_ipv4() { ("IPv4", "IPv6") } else { ("IPv6", "IPv4") };
    let reason = format!("it has only {other} addresses, and the connection is {own}");
    let has_other_family =
        |address: &IpAddr| is_global(*address) && address.is_ipv4() != target.is_ipv4();
    let announced = view.trial.into_iter().flat_map(|trial| trial.events_of("ANNOUNCED"));
    let peer_endpoints = view.peer.iter().flat_map(|peer| &peer.latest().endpoints);
    let announced = announced
        .filter_map(|event| event.remote)
        .chain(peer_endpoints.filter(|entry| entry.is_signal()).map(|entry| entry.address))
        .find(has_other_family);
    let condition = if let Some(address) = announced {
        format!("as the server announces {address}")
    } else if let Some(peer) = view.peer {
        let mut addresses = peer.latest().addresses.iter().map(|entry| entry.address);
        match addresses.find(has_other_family) {
            Some(address) => format!(
                "if the server announces its {other} address (`ip mptcp endpoint add {address} \
                 signal` there)"
            ),
            None => return format!("{reason}. The server has no {other} address"),
        }
    } else {
        format!("if the server announces an {other} address")
    };
    if is_inet6_socket {
        return format!("{reason}: it is used {condition}");
    }
    format!(
        "{reason}: an AF_INET socket cannot use it. A client with an AF_INET6 socket to \
         ::ffff:{target} uses it, {condition}"
    )
}

/// Returns true if the target is this host itself.
fn is_local(view: &ObservationView<'_>, target: IpAddr) -> bool {
    target.is_loopback() || view.here.link_of(target).is_some()
}

/// Returns true for an address that is unique beyond its link.
fn is_global(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}

fn is_host_prefix(entry: &AddressSnapshot) -> bool {
    entry.prefix_length == if entry.address.is_ipv4() { 32 } else { 128 }
}
