//! Readings of facts about this host: kernel, configuration and routes.

use towpath_host::snapshot::{EndpointSnapshot, HostSnapshot, LinkSnapshot};

use super::paths::every_join_holds;
use super::reading::{Reading, needs_connection};
use crate::observation::PeerSnapshots;
use crate::rules::view::ObservationView;
use crate::rules::{addresses, configuration, path, quality, routes};
use crate::text;

pub(super) fn socket_opens(view: &ObservationView<'_>) -> Reading {
    match view.here.socket_errno {
        0 => Reading::Holds("socket(IPPROTO_MPTCP) succeeds".to_owned()),
        errno => Reading::Fails(format!("socket(IPPROTO_MPTCP): {}", text::error(errno))),
    }
}

pub(super) fn old_fork_setting(view: &ObservationView<'_>) -> Reading {
    let exists = view.here.settings.contains_key("mptcp.mptcp_enabled");
    Reading::of(exists, "the setting net.mptcp.mptcp_enabled")
}

pub(super) fn disabled(view: &ObservationView<'_>) -> Reading {
    match view.here.number("mptcp.enabled") {
        Some(value) => Reading::of(value == 0, format!("net.mptcp.enabled = {value}")),
        None => Reading::of(view.here.socket_errno == libc::ENOPROTOOPT, "socket(IPPROTO_MPTCP)"),
    }
}

pub(super) fn kernel_opens_subflows(view: &ObservationView<'_>) -> Reading {
    match path::find_userspace_manager(view) {
        Some(finding) => Reading::Fails(finding.sentence),
        None => Reading::Holds("the kernel or a daemon opens subflows".to_owned()),
    }
}

pub(super) fn one_manager(view: &ObservationView<'_>) -> Reading {
    match configuration::find_duplicate_managers(view) {
        Some(finding) => Reading::Fails(finding.sentence),
        None => Reading::Holds("the endpoints did not change during the test".to_owned()),
    }
}

pub(super) fn endpoint_devices(view: &ObservationView<'_>) -> Reading {
    let mut endpoints = view.here.endpoints.iter().filter(|endpoint| !endpoint.is_implicit());
    match endpoints.find(|endpoint| configuration::foreign_device(view, endpoint).is_some()) {
        Some(endpoint) => Reading::Fails(format!("{} is bound elsewhere", endpoint.address)),
        None => Reading::Holds("the interface of each endpoint has its address".to_owned()),
    }
}

pub(super) fn unique_addresses(view: &ObservationView<'_>) -> Reading {
    let findings = addresses::find_duplicate_addresses(view);
    Reading::of(findings.is_empty(), "addresses of all interfaces")
}

pub(super) fn endpoint_addresses(view: &ObservationView<'_>) -> Reading {
    let mut endpoints = view.here.endpoints.iter().filter(|endpoint| !endpoint.is_implicit());
    let after = view.observation.after.as_ref();
    let is_assigned = |address| {
        let is_lost = after.is_some_and(|after| after.link_of(address).is_none());
        view.here.link_of(address).is_some() && !is_lost
    };
    let missing = endpoints.find(|endpoint| !is_assigned(endpoint.address));
    let programs = view.observation.programs.as_deref().unwrap_or_default();
    let mut locals =
        programs.iter().flat_map(|program| &program.subflows).map(|subflow| subflow.local.ip());
    let lost = locals.find(|local| view.here.link_of(local.to_canonical()).is_none());
    let bind_errors = view.trial.map_or(0, |trial| trial.counter_delta("MPJoinSynTxBindErr"));
    match (missing, lost) {
        (Some(endpoint), _) => Reading::Fails(format!("no interface has {}", endpoint.address)),
        (None, Some(local)) => Reading::Fails(format!("no interface has {local}")),
        (None, None) => {
            Reading::of(bind_errors == 0, "an interface has the address of each endpoint")
        }
    }
}

pub(super) fn links_up(view: &ObservationView<'_>) -> Reading {
    let after = view.observation.after.as_ref();
    let is_broken = |index: u32| {
        let later = after.map(|after| after.link(index));
        later.is_some_and(|link| link.is_none_or(|link| !link.up || !link.running))
    };
    let mut links = view.here.links.iter().filter(|link| link.up && !link.loopback);
    match links.find(|link| !link.running || is_broken(link.index)) {
        Some(link) => Reading::Fails(format!("{} has no carrier, or went down", link.name)),
        None => Reading::Holds("all interfaces that are up have a carrier".to_owned()),
    }
}

pub(super) fn endpoint_interfaces_up(view: &ObservationView<'_>) -> Reading {
    let endpoints = view.here.endpoints.iter().filter(|endpoint| !endpoint.is_implicit());
    let mut links = endpoints.filter_map(|endpoint| view.here.link_of(endpoint.address));
    match links.find(|link| !link.up) {
        Some(link) => Reading::Fails(format!("{} is down", link.name)),
        None => Reading::Holds("the interface of each endpoint is up".to_owned()),
    }
}

pub(super) fn separate_networks(view: &ObservationView<'_>) -> Reading {
    let snapshots = [Some(view.here), view.peer.map(PeerSnapshots::latest)];
    let is_usable = |link: &&LinkSnapshot| link.up && !link.loopback && link.arp_ignore == 0;
    for snapshot in snapshots.into_iter().flatten() {
        let mut links = snapshot.links.iter().filter(is_usable);
        while let Some(first) = links.next() {
            let mut others = links.clone();
            if let Some(second) =
                others.find(|second| quality::share_network(snapshot, first, second))
            {
                let (first, second) = (&first.name, &second.name);
                return Reading::Fails(format!("{first} and {second} are in the same network"));
            }
        }
    }
    Reading::Holds("each interface has a network of its own".to_owned())
}

pub(super) fn further_endpoint(view: &ObservationView<'_>) -> Reading {
    let first_local = view.trial.and_then(|trial| trial.first()).map(|first| first.local.ip());
    let mut endpoints = view.here.endpoints.iter();
    let further =
        endpoints.find(|endpoint| !endpoint.is_implicit() && Some(endpoint.address) != first_local);
    match further {
        Some(endpoint) => {
            Reading::Holds(format!("endpoint {} ({})", endpoint.id, endpoint.address))
        }
        None => Reading::Fails("no endpoint for another address".to_owned()),
    }
}

pub(super) fn regular_endpoint(view: &ObservationView<'_>) -> Reading {
    let opening = |endpoint: &&EndpointSnapshot| {
        (endpoint.opens_subflows() || endpoint.is_laminar()) && !endpoint.is_implicit()
    };
    let mut endpoints = view.here.endpoints.iter().filter(opening).peekable();
    if endpoints.peek().is_none() {
        return Reading::unknown("an endpoint that opens subflows");
    }
    let first_local = view.trial.and_then(|trial| trial.first()).map(|first| first.local.ip());
    let regular =
        endpoints.find(|endpoint| !endpoint.is_backup() && Some(endpoint.address) != first_local);
    match regular {
        Some(endpoint) => Reading::Holds(format!("endpoint {} is not a backup", endpoint.id)),
        None => Reading::Fails("every further endpoint is a backup".to_owned()),
    }
}

pub(super) fn roles_match(view: &ObservationView<'_>) -> Reading {
    let findings =
        [configuration::find_own_wrong_role(view), configuration::find_peer_wrong_role(view)];
    if let Some(finding) = findings.into_iter().flatten().next() {
        return Reading::Fails(finding.sentence);
    }
    match (view.trial, view.peer) {
        (None, _) => needs_connection(),
        (Some(_), None) => Reading::unknown("`towpath server` there (--peer)"),
        (Some(trial), Some(_)) if trial.multipath => {
            Reading::Holds("the endpoints of both hosts".to_owned())
        }
        (Some(_), Some(_)) => Reading::unknown("a connection over Multipath TCP"),
    }
}

pub(super) fn source_routes(view: &ObservationView<'_>) -> Reading {
    let Some(trial) = view.trial else { return needs_connection() };
    let remote = trial.target.ip();
    let is_relevant = |endpoint: &&EndpointSnapshot| {
        endpoint.opens_subflows()
            && !endpoint.is_implicit()
            && endpoint.address.is_ipv4() == remote.is_ipv4()
    };
    let mut endpoints = view.here.endpoints.iter().filter(is_relevant).peekable();
    if endpoints.peek().is_none() {
        return Reading::unknown("an endpoint that opens subflows");
    }
    let wrong = endpoints
        .find_map(|endpoint| routes::routing_of(view, endpoint.address, endpoint.link, remote));
    let sent_elsewhere = quality::find_own_shared_link(view, trial);
    let errors = trial.counter_delta("MPJoinSynTxConnectErr");
    match wrong.or(sent_elsewhere) {
        Some(finding) => Reading::Fails(finding.sentence),
        None => Reading::of(errors == 0, "route lookups from each endpoint"),
    }
}

pub(super) fn route_to_server(view: &ObservationView<'_>) -> Reading {
    let Some(trial) = view.trial else { return needs_connection() };
    match view.route_lookup(trial.target.ip(), None, None) {
        Some(lookup) => match lookup.errno {
            Some(errno) => Reading::Fails(format!("ip route get: {}", text::error(errno))),
            None => Reading::Holds(format!("ip route get {} succeeds", trial.target.ip())),
        },
        None => Reading::unknown("a route lookup"),
    }
}

pub(super) fn filter_passes(view: &ObservationView<'_>) -> Reading {
    let name = "TcpExt.IPReversePathFilter";
    let Some(trial) = view.trial else { return needs_connection() };
    let here = trial.counters.get(name).copied().unwrap_or(0);
    let growth = |peer: &PeerSnapshots| {
        peer.latest().counter(name).saturating_sub(peer.before.counter(name))
    };
    let there = view.peer.map_or(0, growth);
    if here > 0 || there > 0 {
        return Reading::Fails(format!(
            "{here} dropped here and {there} there (IPReversePathFilter)"
        ));
    }
    // Without packets over an interface, its filter cannot drop any.
    if every_join_holds(view, trial) {
        return Reading::Holds("IPReversePathFilter did not grow".to_owned());
    }
    let is_strict = |link: &LinkSnapshot| link.rp_filter == 1 && !link.loopback;
    let has_strict = |host: &HostSnapshot| host.links.iter().any(is_strict);
    match view.peer {
        None => Reading::unknown("`towpath server` there (--peer)"),
        Some(peer) if has_strict(view.here) || has_strict(peer.latest()) => {
            Reading::unknown("packets over every path")
        }
        Some(_) => Reading::Holds("no interface has a strict filter".to_owned()),
    }
}

pub(super) fn buffer_suffices(view: &ObservationView<'_>) -> Reading {
    match view.here.settings.get("ipv4.tcp_rmem") {
        Some(value) => Reading::of(
            quality::find_small_buffer(view).is_none(),
            format!("net.ipv4.tcp_rmem = {}", value.trim()),
        ),
        None => Reading::unknown("a readable net.ipv4.tcp_rmem"),
    }
}
