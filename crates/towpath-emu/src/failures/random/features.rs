//! Unusual but correct networks of random cases: tunnels, bridges, parallel links, translations.
//!
//! They are independent of the faults, so that faults also occur in such networks.

use super::super::case::{AccessKind, AppSocket, HostSide, NetworkMutation, PathQuality, Routing};
use super::super::list::variations::NAT;
use super::CaseRng;
use super::draft::{CaseDraft, DrawnServer};
use super::faults::add_sysctl;

/// Probability of each property, in percent.
const FEATURE_PERCENT: usize = 12;

/// Adds unusual properties to a network; none of them changes the truth.
pub(super) fn add_features(rng: CaseRng, draft: &mut CaseDraft) {
    add_tunnel(rng, draft);
    add_families(rng, draft);
    add_bridge(rng, draft);
    add_parallel_links(rng, draft);
    add_double_nat(rng, draft);
    add_private_server(rng, draft);
    add_idle_interfaces(rng, draft);
}

/// Adds unusual but sufficient settings of Multipath TCP and TCP; needs the endpoints.
pub(super) fn add_settings(rng: CaseRng, draft: &mut CaseDraft) {
    if rng.chance("exact limits", 2 * FEATURE_PERCENT) {
        // The limits do not depend on the address family.
        let announced = draft.server_endpoints.len() as u32;
        let subflows = draft.path_count() as u32 - 1 + announced;
        draft.limits = [(subflows, announced), (subflows, 0)];
        draft.claimed_parts.extend(["limits", "server's limits"]);
        draft.features.push("exact limits".to_owned());
    }
    if draft.v4 && rng.chance("strict filter", FEATURE_PERCENT) {
        draft.claimed_parts.push("routing");
        add_sysctl(draft, HostSide::Client, "net.ipv4.conf.all.rp_filter", "1");
        draft.features.push("strict filter".to_owned());
    }
    if rng.chance("no timestamps", FEATURE_PERCENT) {
        add_sysctl(draft, HostSide::Client, "net.ipv4.tcp_timestamps", "0");
        draft.features.push("no TCP timestamps".to_owned());
    }
    if rng.chance("all endpoints", 2 * FEATURE_PERCENT) {
        // The endpoints of the further paths keep their places.
        let first = draft.endpoint(1, "subflow");
        draft.endpoints.push(first);
        draft.features.push("an endpoint for the first path".to_owned());
    }
}

/// Makes the last interface a tunnel over the first one.
fn add_tunnel(rng: CaseRng, draft: &mut CaseDraft) {
    let path = draft.path_count();
    if path < 2 || !rng.chance("tunnel", FEATURE_PERCENT) {
        return;
    }
    let gateway = rng.chance("tunnel with a gateway", 50);
    let kind = AccessKind::Tunnel { over: 1, gateway };
    draft.extra_changes.push(NetworkMutation::Access(path, kind));
    draft.tunnel = Some((path, gateway));
    let kind = if gateway { "with a gateway" } else { "point-to-point" };
    draft.features.push(format!("tunnel on path {path}, {kind}"));
}

/// Gives one further interface addresses of one family only.
fn add_families(rng: CaseRng, draft: &mut CaseDraft) {
    let Some(path) = draft.pick_further_path(rng, "path of one family") else { return };
    if !rng.chance("one family", FEATURE_PERCENT) {
        return;
    }
    let has_family = rng.chance("the connection's family", 40);
    let v4 = draft.v4 == has_family;
    draft.extra_changes.push(NetworkMutation::OneFamily(path, v4));
    if !has_family {
        draft.other_family_path = Some(path);
        if let Some(nat) = draft.nat.get_mut(path - 1) {
            *nat = false;
        }
        if !draft.announces && rng.chance("announces the other family", 50) {
            let address = if v4 { "203.0.113.2" } else { "2001:db8:2:2::2" };
            draft.claimed_parts.push("server's endpoints");
            draft.server_endpoints = vec![format!("{address} signal")];
            draft.features.push(format!("{address} announced"));
        }
    }
    let family = if v4 { "IPv4" } else { "IPv6" };
    draft.features.push(format!("only {family} on path {path}"));
}

fn add_bridge(rng: CaseRng, draft: &mut CaseDraft) {
    let path = 1 + rng.below("bridge path", draft.path_count());
    if draft.is_tunnel(path) || !rng.chance("bridge", FEATURE_PERCENT) {
        return;
    }
    draft.extra_changes.push(NetworkMutation::Access(path, AccessKind::Bridge));
    draft.features.push(format!("bridge on path {path}"));
}

fn add_parallel_links(rng: CaseRng, draft: &mut CaseDraft) {
    let path = 1 + rng.below("parallel path", draft.path_count());
    if draft.is_tunnel(path) || !rng.chance("parallel", FEATURE_PERCENT) {
        return;
    }
    let delay_ms = rng.uniform("parallel delay", [1, 25]);
    draft.set_provider(path);
    draft.extra_changes.push(NetworkMutation::ParallelLinks(path, delay_ms));
    draft.features.push(format!("parallel links on path {path}, {delay_ms} ms apart"));
}

/// Adds a second translation to a path. With one interface, the host is like a container.
fn add_double_nat(rng: CaseRng, draft: &mut CaseDraft) {
    let path = 1 + rng.below("double NAT path", draft.path_count());
    let percent = if draft.path_count() == 1 { 50 } else { FEATURE_PERCENT };
    let can_translate = draft.v4 && !draft.is_tunnel(path) && draft.has_family(path);
    if !can_translate || draft.has_provider(path) || !rng.chance("double NAT", percent) {
        return;
    }
    draft.set_provider(path);
    draft.extra_changes.push(NetworkMutation::NearBox(path, &[NAT]));
    if let Some(nat) = draft.nat.get_mut(path - 1) {
        *nat = true;
    }
    draft.features.push(format!("double NAT on path {path}"));
}

/// Puts the server behind a translation, so that it cannot announce its second address.
fn add_private_server(rng: CaseRng, draft: &mut CaseDraft) {
    let announces_family = draft.claimed_parts.contains(&"server's endpoints");
    if !draft.v4 || announces_family || !rng.chance("private server", FEATURE_PERCENT) {
        return;
    }
    draft.private_server = true;
    draft.announces = false;
    draft.server_endpoints.clear();
    draft.extra_changes.push(NetworkMutation::PrivateServer);
    draft.features.push("server behind NAT".to_owned());
}

/// Adds interfaces and addresses that no connection uses.
fn add_idle_interfaces(rng: CaseRng, draft: &mut CaseDraft) {
    if rng.chance("idle interface", 2 * FEATURE_PERCENT) {
        let address = match rng.below("idle address", 3) {
            0 => None,
            1 => Some("192.168.100.5/24"),
            _ => Some("fd00:100::5/64"),
        };
        draft.extra_changes.push(NetworkMutation::IdleInterface("spare0", address));
        draft.features.push(format!("idle interface with {}", address.unwrap_or("no address")));
    }
    let path = 1 + rng.below("second address", draft.path_count());
    let is_usable = !draft.is_tunnel(path) && draft.has_family(path);
    if is_usable && rng.chance("two addresses", FEATURE_PERCENT) {
        let prefix =
            if draft.v4 { format!("10.1.{path}.9/24") } else { format!("2001:db8:1:{path}::9/64") };
        let address = NetworkMutation::Address(HostSide::Client, path, prefix.leak());
        draft.extra_changes.push(address);
        draft.features.push(format!("two addresses on path {path}"));
    }
    let is_second_link_idle = draft.server_endpoints.is_empty();
    if is_second_link_idle && rng.chance("server's link", FEATURE_PERCENT / 2) {
        draft.claimed_parts.push("server's endpoints");
        draft.extra_changes.push(NetworkMutation::Down(HostSide::Server, 2));
        draft.features.push("the server's second link is down".to_owned());
    }
}

/// Adds something unusual to a healthy network.
pub(super) fn add_harmless_oddity(rng: CaseRng, draft: &mut CaseDraft) {
    let variant = rng.below("odd", 9);
    let description = match variant {
        0 => {
            let is_third = draft.further_paths().len() > 1 && draft.has_family(draft.path_count());
            let index = draft.path_count().saturating_sub(2);
            if let Some(last) = draft.endpoints.get_mut(index).filter(|_| is_third) {
                *last += " backup";
                draft.backups = 1;
            }
            "the last of several is a backup"
        }
        1 if draft.claim(&["limits"]) => {
            let mut paths = vec![1];
            paths.extend(draft.further_paths());
            draft.endpoints =
                paths.into_iter().map(|path| draft.endpoint(path, "subflow fullmesh")).collect();
            "every address paired with every other"
        }
        2 => {
            for quality in &mut draft.qualities {
                quality.delay_ms = quality.delay_ms / 4 + 260;
            }
            "satellites"
        }
        3 => {
            for host in [HostSide::Client, HostSide::Server] {
                add_sysctl(draft, host, "net.mptcp.checksum_enabled", "1");
            }
            "checksums"
        }
        // Other servers close the connection when they receive the application's data.
        4 if draft.server == DrawnServer::Echo => {
            draft.extra_changes.push(NetworkMutation::Application(AppSocket::Multipath));
            "a program that has a connection"
        }
        5 if draft.claim(&["routing"]) => {
            draft.routing = Routing::ByMetric;
            "a default route for each interface"
        }
        6 => {
            if let Some(quality) = draft.qualities.last_mut() {
                *quality = PathQuality { loss_percent: 1, ..*quality };
            }
            "one packet in a hundred is lost"
        }
        // An IPv6 address with a port does not fit into a packet with TCP timestamps.
        7 if draft.v4
            && draft.claim(&["server's endpoints", "limits"])
            && !draft.private_server =>
        {
            draft.announces = true;
            draft.server_endpoints = vec![format!("{} port 4001 signal", draft.second_address())];
            "an announced address with a port"
        }
        _ => "nothing odd",
    };
    draft.descriptions.push(format!("healthy, {description}"));
}
