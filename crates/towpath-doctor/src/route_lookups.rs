//! Route lookups in the kernel.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, SockAddr, Socket, Type};
use towpath_host::snapshot::HostSnapshot;
use towpath_host::snapshot::LinkSnapshot;
use towpath_netlink::{RouteEntry, RouteQuery, RouteSocket};

use super::observation::{Observation, RouteLookup};
use super::rules::on_link;

/// Port for a `connect` that sends nothing (RFC 863).
const DISCARD_PORT: u16 = 9;
/// Limit on route lookups.
const MAX_LOOKUPS: usize = 128;
/// Documentation addresses that represent the internet (RFC 5737, RFC 3849); nothing is sent there.
const INTERNET_ADDRESSES: [&str; 2] = ["198.51.100.1", "2001:db8::1"];

/// Returns the routes from each of this host's addresses to each of `targets`; without targets, to
/// the internet. Each address is also tried bound to its own interface.
pub(super) fn route_lookups(
    snapshot: &HostSnapshot,
    targets: &BTreeSet<IpAddr>,
) -> Vec<RouteLookup> {
    let Ok(mut route) = RouteSocket::open() else { return Vec::new() };
    let internet: BTreeSet<IpAddr> =
        INTERNET_ADDRESSES.iter().filter_map(|text| text.parse().ok()).collect();
    let targets = if targets.is_empty() { &internet } else { targets };
    let mut queries: Vec<(IpAddr, Option<IpAddr>, Option<u32>)> = Vec::new();
    for to in targets {
        queries.push((*to, None, None));
        let has_same_family = |from: &&IpAddr| from.is_ipv4() == to.is_ipv4();
        for from in sources(snapshot).iter().filter(has_same_family) {
            queries.push((*to, Some(*from), None));
            // Several interfaces may have the same address.
            let owners = snapshot.addresses.iter().filter(|entry| entry.address == *from);
            let mut links: Vec<_> = owners.map(|entry| entry.link).collect();
            links.dedup();
            queries.extend(links.into_iter().map(|link| (*to, Some(*from), Some(link))));
        }
    }
    queries.truncate(MAX_LOOKUPS);
    let mut run_query = |(to, from, bound_to): (IpAddr, Option<IpAddr>, Option<u32>)| {
        let link = bound_to.and_then(|index| snapshot.link(index)).map(|link| link.name.as_str());
        let result = route.lookup(&RouteQuery { to, from, link });
        let entry = result.as_ref().ok();
        let lookup = RouteLookup {
            to,
            from,
            bound_to,
            link: entry.and_then(|entry| entry.link_index),
            gateway: entry.and_then(|entry| entry.gateway),
            errno: result.as_ref().err().map(|error| error.errno().unwrap_or(-1)),
        };
        // The lookup returned another interface's route, but a bound socket has one of its own.
        match (link, from) {
            (Some(name), Some(from))
                if lookup.link != bound_to && has_bound_route(to, from, name) =>
            {
                let gateway = bound_to.and_then(|index| gateway_of(&mut route, to, index));
                RouteLookup { link: bound_to, gateway, errno: None, ..lookup }
            }
            _ => lookup,
        }
    };
    queries.into_iter().map(&mut run_query).collect()
}

/// Returns true if a socket that is bound to an interface finds a route over it. Over IPv6 a lookup
/// returns the best route of all, while a socket uses only those of its interface. Sends nothing.
fn has_bound_route(to: IpAddr, from: IpAddr, link: &str) -> bool {
    let connects = || {
        let socket = Socket::new(Domain::for_address((to, 0).into()), Type::DGRAM, None)?;
        socket.bind_device(Some(link.as_bytes()))?;
        socket.bind(&SockAddr::from(SocketAddr::new(from, 0)))?;
        socket.connect(&SockAddr::from(SocketAddr::new(to, DISCARD_PORT)))
    };
    to.is_ipv6() && connects().is_ok()
}

/// Returns the next hop of an interface's most specific route to a destination.
fn gateway_of(route_socket: &mut RouteSocket, to: IpAddr, link: u32) -> Option<IpAddr> {
    let routes = route_socket.routes().unwrap_or_default();
    let covers = |route: &&RouteEntry| {
        route.link_index == Some(link) && route.gateway.is_some() && route.to.contains(to)
    };
    routes
        .iter()
        .filter(covers)
        .max_by_key(|route| route.to.length())
        .and_then(|route| route.gateway)
}

/// Returns links that both hosts seem to share. Each entry has an unused interface of this host,
/// its address, and an address of the other host in the same network. The network may still be a
/// different one, as private networks have the same addresses.
pub(super) fn shared_links(observation: &Observation) -> Vec<(&LinkSnapshot, IpAddr, IpAddr)> {
    let snapshot = &observation.here;
    let trial = observation.trial.as_ref().filter(|trial| trial.multipath);
    let (Some(trial), Some(peer)) = (trial, &observation.peer) else { return Vec::new() };
    let (peer_snapshot, target) = (peer.latest(), trial.target.ip());
    let is_local =
        |address: IpAddr| snapshot.addresses.iter().any(|entry| entry.address == address);
    if target.is_loopback() || is_local(target) {
        return Vec::new();
    }
    let is_usable = |link: &&LinkSnapshot| link.up && link.running && !link.loopback;
    let is_used = |link: &LinkSnapshot| {
        let mut locals = trial.subflows.iter().map(|subflow| subflow.local.ip());
        locals.any(|local| {
            snapshot.link_of(local).is_some_and(|used_link| used_link.index == link.index)
        })
    };
    let peer_addresses: Vec<_> = sources(peer_snapshot)
        .into_iter()
        .filter(|remote| *remote != target && !is_local(*remote))
        .filter(|remote| peer_snapshot.link_of(*remote).is_some_and(|link| is_usable(&link)))
        .collect();
    let mut links: Vec<(&LinkSnapshot, IpAddr, IpAddr)> = Vec::new();
    for local in sources(snapshot) {
        let link = snapshot.link_of(local).filter(is_usable).filter(|link| !is_used(link));
        let Some(link) = link.filter(|link| links.iter().all(|(other, ..)| other != link)) else {
            continue;
        };
        let remote = peer_addresses.iter().find(|remote| on_link(snapshot, link.index, **remote));
        links.extend(remote.map(|remote| (link, local, *remote)));
    }
    links
}

/// Returns the addresses from which other hosts can be reached.
pub(super) fn sources(snapshot: &HostSnapshot) -> BTreeSet<IpAddr> {
    let is_global = |address: &IpAddr| match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    };
    let link_addresses = snapshot.addresses.iter().map(|entry| entry.address).filter(is_global);
    let endpoint_addresses = snapshot.endpoints.iter().map(|entry| entry.address).filter(is_global);
    let is_assigned = |address: &IpAddr| snapshot.link_of(*address).is_some();
    link_addresses.chain(endpoint_addresses.filter(is_assigned)).collect()
}
