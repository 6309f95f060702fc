//! Asks the kernel which way packets would go.

use std::collections::BTreeSet;
use std::net::IpAddr;

use towpath_measure::live::Look;

use super::observation::Way;
use crate::netlink::{Route, RouteQuery};

/// Questions that are asked at most.
const MOST: usize = 128;
/// Addresses that stand for everywhere else (RFC 5737, RFC 3849); nothing is sent there.
const ELSEWHERE: [&str; 2] = ["198.51.100.1", "2001:db8::1"];

/// The ways from each of this host's addresses to each of `targets`, and to somewhere else if there
/// are none; each address also bound to its own interface.
pub(super) fn ways(look: &Look, targets: &BTreeSet<IpAddr>) -> Vec<Way> {
    let Ok(mut route) = Route::open() else { return Vec::new() };
    let elsewhere: BTreeSet<IpAddr> =
        ELSEWHERE.iter().filter_map(|text| text.parse().ok()).collect();
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
    questions.truncate(MOST);
    let mut ask = |(to, from, bound_to): (IpAddr, Option<IpAddr>, Option<u32>)| {
        let link = bound_to.and_then(|index| look.link(index)).map(|link| link.name.as_str());
        let answer = route.lookup(&RouteQuery { to, from, link });
        let found = answer.as_ref().ok();
        Way {
            to,
            from,
            bound_to,
            link: found.and_then(|entry| entry.link_index),
            gateway: found.and_then(|entry| entry.gateway),
            errno: answer.as_ref().err().map(|error| error.errno().unwrap_or(-1)),
        }
    };
    questions.into_iter().map(&mut ask).collect()
}

/// Addresses from which other hosts can be reached.
pub(super) fn sources(look: &Look) -> BTreeSet<IpAddr> {
    let global = |address: &IpAddr| match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    };
    let of_links = look.addresses.iter().map(|one| one.address).filter(global);
    let of_endpoints = look.endpoints.iter().map(|one| one.address).filter(global);
    let here = |address: &IpAddr| look.link_of(*address).is_some();
    of_links.chain(of_endpoints.filter(here)).collect()
}
