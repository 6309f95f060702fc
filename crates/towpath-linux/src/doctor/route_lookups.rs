//! Route lookups in the kernel.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, SockAddr, Socket, Type};
use towpath_measure::live::HostSnapshot;
use towpath_measure::live::snapshot::LinkSnapshot;

use super::observation::{Observation, RouteLookup};
use super::rules::on_link;
use crate::netlink::{RouteEntry, RouteQuery, RouteSocket};

/// Port for a `connect` that sends nothing (RFC 863).
const DISCARD_PORT: u16 = 9;
/// Limit on route lookups.
const MAX_LOOKUPS: usize = 128;
/// Documentation addresses that represent the internet (RFC 5737, RFC 3849); nothing is sent there.
const INTERNET_ADDRESSES: [&str; 2] = ["198.51.100.1", "2001:db8::1"];

/// Returns the routes from each of this host's addresses to each of `targets`; without targets, to
/// the internet. Each address is also tried bound to its own interface.
pub(super) fn route_lookups(look: &HostSnapshot, targets: &BTreeSet<IpAddr>) -> Vec<RouteLookup> {
    let Ok(mut route) = RouteSocket::open() else { return Vec::new() };
    let elsewhere: BTreeSet<IpAddr> =
        INTERNET_ADDRESSES.iter().filter_map(|text| text.parse().ok()).collect();
    let targets = if targets.is_empty() { &elsewhere } else { targets };
    let mut questions: Vec<(IpAddr, Option<IpAddr>, Option<u32>)> = Vec::new();
    for to in targets {
        questions.push((*to, None, None));
        let of_family = |from: &&IpAddr| from.is_ipv4() == to.is_ipv4();
        for from in sources(look).iter().filter(of_family) {
            questions.push((*to, Some(*from), None));
            let link = look.link_of(*from).map(|link| link.index);
            questions.extend(link.map(|link| (*to, Some(*from), Some(link))));
        }
    }
    questions.truncate(MAX_LOOKUPS);
    let mut ask = |(to, from, bound_to): (IpAddr, Option<IpAddr>, Option<u32>)| {
        let link = bound_to.and_then(|index| look.link(index)).map(|link| link.name.as_str());
        let answer = route.lookup(&RouteQuery { to, from, link });
        let found = answer.as_ref().ok();
        let way = RouteLookup {
            to,
            from,
            bound_to,
            link: found.and_then(|entry| entry.link_index),
            gateway: found.and_then(|entry| entry.gateway),
            errno: answer.as_ref().err().map(|error| error.errno().unwrap_or(-1)),
        };
        match (link, from) {
            (Some(name), Some(from)) if way.link != bound_to && has_bound_route(to, from, name) => {
                let gateway = bound_to.and_then(|index| gateway_of(&mut route, to, index));
                RouteLookup { link: bound_to, gateway, errno: None, ..way }
            }
            _ => way,
        }
    };
    questions.into_iter().map(&mut ask).collect()
}

/// Returns true if a socket that is bound to an interface finds a route over it. Over IPv6 a lookup
/// returns the best route of all, while a socket uses only those of its interface. Sends nothing.
fn has_bound_route(to: IpAddr, from: IpAddr, link: &str) -> bool {
    let finds = || {
        let socket = Socket::new(Domain::for_address((to, 0).into()), Type::DGRAM, None)?;
        socket.bind_device(Some(link.as_bytes()))?;
        socket.bind(&SockAddr::from(SocketAddr::new(from, 0)))?;
        socket.connect(&SockAddr::from(SocketAddr::new(to, DISCARD_PORT)))
    };
    to.is_ipv6() && finds().is_ok()
}

/// Returns the next hop of an interface's most specific route to a destination.
fn gateway_of(route: &mut RouteSocket, to: IpAddr, link: u32) -> Option<IpAddr> {
    let routes = route.routes().unwrap_or_default();
    let covers = |one: &&RouteEntry| {
        one.link_index == Some(link) && one.gateway.is_some() && one.to.contains(to)
    };
    routes.iter().filter(covers).max_by_key(|one| one.to.length()).and_then(|one| one.gateway)
}

/// Returns links that both hosts seem to share. Each entry has an unused interface of this host,
/// its address, and an address of the other host in the same network. The network may still be a
/// different one, as private networks have the same addresses.
pub(super) fn shared_links(observation: &Observation) -> Vec<(&LinkSnapshot, IpAddr, IpAddr)> {
    let here = &observation.here;
    let trial = observation.trial.as_ref().filter(|trial| trial.multipath);
    let (Some(trial), Some(peer)) = (trial, &observation.peer) else { return Vec::new() };
    let (there, target) = (peer.latest(), trial.target.ip());
    let ours = |address: IpAddr| here.addresses.iter().any(|one| one.address == address);
    if target.is_loopback() || ours(target) {
        return Vec::new();
    }
    let carries = |link: &&LinkSnapshot| link.up && link.running && !link.loopback;
    let used = |link: &LinkSnapshot| {
        let mut locals = trial.subflows.iter().map(|one| one.local.ip());
        locals.any(|local| here.link_of(local).is_some_and(|one| one.index == link.index))
    };
    let theirs: Vec<_> = sources(there)
        .into_iter()
        .filter(|remote| *remote != target && !ours(*remote))
        .filter(|remote| there.link_of(*remote).is_some_and(|link| carries(&link)))
        .collect();
    let mut found: Vec<(&LinkSnapshot, IpAddr, IpAddr)> = Vec::new();
    for local in sources(here) {
        let link = here.link_of(local).filter(carries).filter(|link| !used(link));
        let Some(link) = link.filter(|link| found.iter().all(|(other, ..)| other != link)) else {
            continue;
        };
        let remote = theirs.iter().find(|remote| on_link(here, link.index, **remote));
        found.extend(remote.map(|remote| (link, local, *remote)));
    }
    found
}

/// Returns the addresses from which other hosts can be reached.
pub(super) fn sources(look: &HostSnapshot) -> BTreeSet<IpAddr> {
    let global = |address: &IpAddr| match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    };
    let of_links = look.addresses.iter().map(|one| one.address).filter(global);
    let of_endpoints = look.endpoints.iter().map(|one| one.address).filter(global);
    let here = |address: &IpAddr| look.link_of(*address).is_some();
    of_links.chain(of_endpoints.filter(here)).collect()
}
