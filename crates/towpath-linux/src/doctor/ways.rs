//! Asks the kernel which way packets would go.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, SockAddr, Socket, Type};
use towpath_measure::live::HostSnapshot;
use towpath_measure::live::look::LinkSnapshot;

use super::observation::{Observation, RouteLookup};
use super::rules::on_link;
use crate::netlink::{RouteEntry, RouteQuery, RouteSocket};

/// A port to name where none is used (RFC 863).
const DISCARD_PORT: u16 = 9;
/// Questions that are asked at most.
const MAX_LOOKUPS: usize = 128;
/// Addresses that stand for everywhere else (RFC 5737, RFC 3849); nothing is sent there.
const INTERNET_ADDRESSES: [&str; 2] = ["198.51.100.1", "2001:db8::1"];

/// The ways from each of this host's addresses to each of `targets`, and to somewhere else if there
/// are none; each address also bound to its own interface.
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

/// Whether a socket that is bound to an interface finds a way by it. Over IPv6 a lookup answers with
/// the best route of all, and a socket takes only those of its interface. Nothing is sent.
fn has_bound_route(to: IpAddr, from: IpAddr, link: &str) -> bool {
    let finds = || {
        let socket = Socket::new(Domain::for_address((to, 0).into()), Type::DGRAM, None)?;
        socket.bind_device(Some(link.as_bytes()))?;
        socket.bind(&SockAddr::from(SocketAddr::new(from, 0)))?;
        socket.connect(&SockAddr::from(SocketAddr::new(to, DISCARD_PORT)))
    };
    to.is_ipv6() && finds().is_ok()
}

/// The next hop of an interface's route that covers a destination.
fn gateway_of(route: &mut RouteSocket, to: IpAddr, link: u32) -> Option<IpAddr> {
    let routes = route.routes().unwrap_or_default();
    let covers = |one: &&RouteEntry| {
        one.link_index == Some(link) && one.gateway.is_some() && one.to.contains(to)
    };
    routes.iter().filter(covers).max_by_key(|one| one.to.length()).and_then(|one| one.gateway)
}

/// A further link that both hosts seem to share: an interface of this host that the connection does
/// not use, its address, and an address of the other host in the same network. Whether it is the
/// other host that has it there, nobody knows yet: private networks look alike.
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

/// Addresses from which other hosts can be reached.
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
