//! Faults of random cases, each with its true cause.

use towpath_scenario::LinkSide;

use super::super::PORT;
use super::super::case::{
    FailureEvent, HostSide, NetworkMutation, PathQuality, Routing, ServerBehaviour,
};
use super::super::list::application::DROP_CAPABLE;
use super::super::list::connection::{DROP_TCP, REWRITE, strip};
use super::super::list::path::{DROP_ALL, all_packets};
use super::super::list::variations::join_packets;
use super::CaseRng;
use super::draft::{CaseDraft, DrawnServer, Evidence};
use crate::router::packet::MptcpOptionKind;
use crate::router::{ConnectionPhase, PacketAction, PacketMatch, RouterRule, UnreachableReason};

/// Class of a fault, by the part that it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Kernel or settings of the client.
    Kernel,
    /// MPTCP endpoints of the client.
    Endpoints,
    /// MPTCP limits of the client.
    Limits,
    /// Routing tables of the client.
    Routes,
    /// Host or program of the server.
    Server,
    /// Addresses that the server announces.
    Announced,
    /// Middlebox on the first path.
    First,
    /// Middlebox on a further path.
    Further,
    /// One of several parallel links of a further path.
    Parallel,
    /// Quality of a path: delay, loss, rate or MTU.
    Quality,
    /// Event while the connection is open.
    Meanwhile,
    /// Transparent proxy on a path.
    Proxy,
    /// Load balancer in front of two servers.
    Balancer,
}

/// Classes of faults with their weights.
pub(super) const FAULT_WEIGHTS: &[(usize, Fault)] = &[
    (7, Fault::Kernel),
    (14, Fault::Endpoints),
    (8, Fault::Limits),
    (13, Fault::Routes),
    (14, Fault::Server),
    (6, Fault::Announced),
    (13, Fault::First),
    (15, Fault::Further),
    (3, Fault::Parallel),
    (6, Fault::Quality),
    (4, Fault::Meanwhile),
    (5, Fault::Proxy),
    (5, Fault::Balancer),
];

/// Injects a fault of one class; false if it conflicts with the draft.
pub(super) fn inject(fault: Fault, rng: CaseRng, draft: &mut CaseDraft) -> bool {
    let pick_variant = |count| rng.below(&format!("which {fault:?}"), count);
    let further_path = draft.pick_further_path(rng, &format!("path {fault:?}"));
    match (fault, further_path) {
        (Fault::Kernel, _) => inject_kernel(pick_variant(4), draft),
        (Fault::Endpoints, Some(path)) => inject_endpoints(pick_variant(8), path, draft),
        (Fault::Limits, _) => inject_limits(pick_variant(3), draft),
        (Fault::Routes, Some(path)) => inject_routes(pick_variant(5), path, draft),
        (Fault::Server, _) => inject_server(pick_variant(8), draft),
        (Fault::Announced, _) => inject_announced(pick_variant(6), draft),
        (Fault::First, _) => inject_first_path_box(rng, pick_variant(10), draft),
        (Fault::Further, Some(path)) => inject_further_path_box(rng, pick_variant(11), path, draft),
        (Fault::Parallel, Some(path)) => inject_parallel_link(rng, path, draft),
        (Fault::Quality, Some(path)) => inject_quality(rng, pick_variant(5), path, draft),
        (Fault::Meanwhile, Some(path)) => inject_event(pick_variant(2), path, draft),
        (Fault::Proxy, _) => {
            let path = further_path.filter(|_| rng.chance("proxy on a further path", 40));
            inject_proxy(path.unwrap_or(1), draft)
        }
        (Fault::Balancer, Some(_)) => inject_balancer(pick_variant(2), draft),
        (
            Fault::Endpoints
            | Fault::Routes
            | Fault::Further
            | Fault::Parallel
            | Fault::Quality
            | Fault::Meanwhile
            | Fault::Balancer,
            None,
        ) => false,
    }
}

pub(super) fn add_sysctl(
    draft: &mut CaseDraft,
    host: HostSide,
    name: &'static str,
    value: &'static str,
) {
    draft.extra_changes.push(NetworkMutation::Sysctl(host, name, value));
}

fn inject_kernel(variant: usize, draft: &mut CaseDraft) -> bool {
    if !draft.claim(&["kernel"]) {
        return false;
    }
    let (cause, description) = match variant {
        0 => {
            add_sysctl(draft, HostSide::Client, "net.mptcp.enabled", "0");
            ("mptcp-disabled", "switched off here")
        }
        1 => {
            draft.extra_changes.push(NetworkMutation::OldKernel);
            ("kernel-without-mptcp", "no Multipath TCP in this kernel")
        }
        2 if draft.further_paths().is_empty() => return false,
        2 => {
            add_sysctl(draft, HostSide::Client, "net.mptcp.pm_type", "1");
            draft.claimed_parts.extend(["endpoints", "limits"]);
            ("userspace-path-manager-without-daemon", "a path manager that is missing")
        }
        _ => {
            if !draft.claim(&["box 1", "listener"]) {
                return false;
            }
            draft.extra_changes.push(NetworkMutation::FormerBox(1, &[DROP_CAPABLE]));
            ("blackhole-fallback-active", "the hour after a swallowed SYN")
        }
    };
    draft.add_fault(cause, Evidence::Handshake, description.to_owned())
}

fn inject_endpoints(variant: usize, path: usize, draft: &mut CaseDraft) -> bool {
    // A server that announces an address gives the client a second path without any endpoint.
    let keeps_second_path =
        matches!(variant, 0 | 5 | 7) && (draft.announces || draft.further_paths().len() > 1);
    if keeps_second_path || !draft.claim(&["endpoints"]) {
        return false;
    }
    let index = path - 2;
    let mut replace = |text: String| {
        if let Some(endpoint) = draft.endpoints.get_mut(index) {
            *endpoint = text;
        }
    };
    let (cause, evidence) = match variant {
        0 => {
            draft.endpoints.clear();
            ("no-endpoints", Evidence::Handshake)
        }
        1 => {
            let text = if draft.v4 { "10.1.9.2 subflow" } else { "2001:db8:1:9::2 subflow" };
            replace(text.to_owned());
            ("endpoint-address-missing", Evidence::Handshake)
        }
        2 => {
            let old_prefix: &'static str = draft.prefix(path).leak();
            let new_prefix = old_prefix.replacen("2/", "77/", 1);
            let removal = NetworkMutation::NoAddress(HostSide::Client, path, old_prefix);
            let addition = NetworkMutation::Address(HostSide::Client, path, new_prefix.leak());
            draft.extra_changes.extend([removal, addition]);
            ("endpoint-address-missing", Evidence::Handshake)
        }
        3 => {
            if !draft.claim(&["link"]) {
                return false;
            }
            draft.extra_changes.push(NetworkMutation::Down(HostSide::Client, path));
            ("endpoint-interface-down", Evidence::Handshake)
        }
        4 => {
            let text = draft.endpoint(path, "signal");
            if let Some(endpoint) = draft.endpoints.get_mut(index) {
                *endpoint = text;
            }
            ("endpoint-wrong-role", Evidence::Handshake)
        }
        5 => {
            let text = draft.endpoint(path, "subflow backup");
            draft.endpoints = vec![text];
            ("endpoint-backup-only", Evidence::Handshake)
        }
        6 if draft.nat.first().is_some_and(|nat| *nat) => return false,
        6 => bind_to_first_interface(path, draft),
        _ => use_one_interface(draft),
    };
    draft.add_fault(cause, evidence, format!("{cause} at {path}"))
}

/// Binds the endpoint of a further path to the first interface. A translation on the first path
/// would make that work.
fn bind_to_first_interface(path: usize, draft: &mut CaseDraft) -> (&'static str, Evidence) {
    let text = format!("{} dev {} subflow", draft.address(path), draft.interface(1));
    if let Some(endpoint) = draft.endpoints.get_mut(path - 2) {
        *endpoint = text;
    }
    ("endpoint-wrong-interface", Evidence::Handshake)
}

/// Replaces all endpoints by a second address of the first interface.
fn use_one_interface(draft: &mut CaseDraft) -> (&'static str, Evidence) {
    let (address, length) = if draft.v4 { ("10.1.1.3", 24) } else { ("2001:db8:1:1::3", 64) };
    let second_prefix = format!("{address}/{length}").leak();
    draft.extra_changes.push(NetworkMutation::Address(HostSide::Client, 1, second_prefix));
    draft.endpoints = vec![format!("{address} dev {} subflow", draft.interface(1))];
    ("all-endpoints-one-interface", Evidence::Handshake)
}

fn inject_limits(variant: usize, draft: &mut CaseDraft) -> bool {
    if !draft.claim(&["limits"]) {
        return false;
    }
    let endpoint_count = draft.further_paths().len() as u32;
    match variant {
        0 if endpoint_count > 0 => {
            draft.limits[0] = (0, 8);
            draft.add_fault("subflow-limit", Evidence::Handshake, "no subflow allowed".to_owned())
        }
        1 if endpoint_count > 1 => {
            draft.limits[0] = (endpoint_count - 1, 0);
            draft.announces = false;
            draft.server_endpoints.clear();
            draft.add_fault(
                "subflow-limit",
                Evidence::Join,
                format!("{} subflows allowed", endpoint_count - 1),
            )
        }
        _ => {
            if draft.private_server || !draft.claim(&["endpoints", "server's endpoints"]) {
                return false;
            }
            draft.endpoints.clear();
            draft.announces = true;
            draft.server_endpoints = vec![format!("{} signal", draft.second_address())];
            draft.limits[0] = (8, 0);
            let description = "no announced address accepted".to_owned();
            draft.add_fault("add-addr-limit", Evidence::Join, description)
        }
    }
}

fn inject_routes(variant: usize, path: usize, draft: &mut CaseDraft) -> bool {
    if !draft.claim(&["routing", "endpoints"]) {
        return false;
    }
    match variant {
        0 => {
            draft.routing = Routing::FirstOnly;
            draft.endpoints = (2..=draft.path_count())
                .map(|path| format!("{} subflow", draft.address(path)))
                .collect();
            draft.add_fault("no-source-route", Evidence::Join, "one default route".to_owned())
        }
        // Over IPv4, a point-to-point interface needs neither a route nor a gateway.
        1 if draft.v4 && draft.tunnel.is_some() => false,
        1 => {
            draft.routing = Routing::FirstOnly;
            let description = "one default route, endpoints bound to interfaces".to_owned();
            draft.add_fault("no-gateway-on-interface", Evidence::Join, description)
        }
        2 | 3 if draft.v4 => {
            draft.routing = Routing::ByMetric;
            let link = if variant == 2 { "all" } else { draft.interface(path) };
            // With slashes, as the name may contain dots.
            let setting = format!("net/ipv4/conf/{link}/rp_filter");
            add_sysctl(draft, HostSide::Client, setting.clone().leak(), "1");
            draft.add_fault("reverse-path-filter", Evidence::Join, setting)
        }
        _ => {
            if !draft.claim(&["box 1", "listener"]) {
                return false;
            }
            draft.routing = Routing::LinkLocalOnly;
            draft.add_fault("no-route", Evidence::Handshake, "no route".to_owned())
        }
    }
}

fn inject_server(variant: usize, draft: &mut CaseDraft) -> bool {
    let is_echo = matches!(draft.server, DrawnServer::Echo);
    let further_count = draft.further_paths().len() as u32;
    match variant {
        0 if is_echo && draft.claim(&["listener"]) => {
            draft.extra_changes.push(NetworkMutation::Listener(ServerBehaviour::Plain));
            let description = "a listener of plain TCP".to_owned();
            draft.add_fault("listener-plain-tcp", Evidence::Handshake, description)
        }
        1 | 2 if draft.claim(&["listener", "server's kernel"]) => {
            add_sysctl(draft, HostSide::Server, "net.mptcp.enabled", "0");
            let description = "Multipath TCP switched off at the server".to_owned();
            draft.add_fault("listener-plain-tcp", Evidence::Handshake, description)
        }
        3 | 4 if further_count > 0 && draft.claim(&["server's limits"]) => {
            let allowed = if variant == 3 { 0 } else { further_count - 1 };
            draft.limits[1] = (allowed, 8);
            draft.add_fault("peer-limit", Evidence::Join, format!("the server allows {allowed}"))
        }
        5 if further_count > 0 && !draft.announces && draft.claim(&["server's kernel"]) => {
            add_sysctl(draft, HostSide::Server, "net.mptcp.allow_join_initial_addr_port", "0");
            let description = "no subflow to the server's first address".to_owned();
            draft.add_fault("join-id0-denied", Evidence::Join, description)
        }
        6 if is_echo && draft.claim(&["listener"]) => {
            draft.extra_changes.push(NetworkMutation::Listener(ServerBehaviour::Nothing));
            let description = "no program listens".to_owned();
            draft.add_fault("remote-refused", Evidence::Handshake, description)
        }
        7 if !draft.announces && draft.claim(&["server's endpoints"]) => {
            draft.server_endpoints = vec![format!("{} dev s2 subflow", draft.second_address())];
            let description = "the server's endpoint is `subflow`".to_owned();
            draft.add_fault("endpoint-wrong-role", Evidence::Peer, description)
        }
        _ => false,
    }
}

fn inject_announced(variant: usize, draft: &mut CaseDraft) -> bool {
    if !draft.claim(&["endpoints", "server's endpoints", "limits"]) {
        return false;
    }
    draft.endpoints.clear();
    draft.announces = true;
    if draft.private_server || variant > 3 {
        return announce_second_address(variant, draft);
    }
    let (address, cause) = match (variant, draft.v4) {
        (0, true) => ("192.0.2.99", "announced-address-unreachable"),
        (0, false) => ("2001:db8:7::99", "announced-address-unreachable"),
        (1, true) => ("203.0.113.99", "announced-address-unreachable"),
        (1, false) => ("2001:db8:2:2::99", "announced-address-unreachable"),
        (_, true) => {
            draft.extra_changes.push(NetworkMutation::Address(
                HostSide::Server,
                2,
                "192.168.7.2/24",
            ));
            ("192.168.7.2", "announced-address-private")
        }
        (_, false) => {
            draft.extra_changes.push(NetworkMutation::Address(HostSide::Server, 2, "fd00:7::2/64"));
            ("fd00:7::2", "announced-address-private")
        }
    };
    draft.server_endpoints = vec![format!("{address} signal")];
    draft.add_fault(cause, Evidence::Join, format!("{address} is announced"))
}

/// Announces the server's second address, which cannot be reached.
fn announce_second_address(variant: usize, draft: &mut CaseDraft) -> bool {
    let address = draft.second_address();
    draft.server_endpoints = vec![format!("{address} signal")];
    if draft.private_server {
        let description = format!("{address} is announced through a NAT");
        return draft.add_fault("announced-address-private", Evidence::Join, description);
    }
    let description = if variant == 4 || !draft.v4 {
        draft.extra_changes.push(NetworkMutation::Down(HostSide::Server, 2));
        "the link of the announced address is down"
    } else {
        add_sysctl(draft, HostSide::Server, "net.ipv4.conf.all.rp_filter", "1");
        draft.extra_changes.push(NetworkMutation::ServerRouting(Routing::FirstOnly));
        draft.also_accepted.push("reverse-path-filter");
        "the server's filter drops packets to the announced address"
    };
    draft.add_fault("announced-address-unreachable", Evidence::Join, description.to_owned())
}

/// Makes a path end at a proxy that accepts TCP connections in the server's name.
fn inject_proxy(path: usize, draft: &mut CaseDraft) -> bool {
    let is_simple = !draft.has_provider(path) && !draft.is_tunnel(path);
    if !is_simple || !draft.claim(&["box 1", "box", "listener"]) {
        return false;
    }
    draft.extra_changes.push(NetworkMutation::Proxy(path));
    if path > 1 {
        draft.claimed_parts.extend(["endpoints", "limits"]);
        let description = format!("a proxy on path {path}");
        return draft.add_fault("join-option-stripped", Evidence::Join, description);
    }
    draft.also_accepted.push("synack-option-stripped");
    if draft.further_paths().is_empty() {
        // The program that answers does use plain TCP, and nothing shows that it is not the server.
        draft.also_accepted.push("listener-plain-tcp");
    }
    draft.add_fault("syn-option-stripped", Evidence::Handshake, "a proxy on path 1".to_owned())
}

/// Puts two servers behind the server's address.
fn inject_balancer(variant: usize, draft: &mut CaseDraft) -> bool {
    let by_source = variant == 0;
    let can_balance = if by_source {
        draft.further_paths().contains(&2)
    } else {
        // A `towpath server` would give the report of another host than that of the connection.
        draft.v4 && draft.server != DrawnServer::Towpath
    };
    if !can_balance || !draft.claim(&["box", "endpoints", "limits", "listener"]) {
        return false;
    }
    let (change, evidence, description) = if by_source {
        (NetworkMutation::OtherServer, Evidence::Join, "path 2 leads to another server")
    } else {
        // All flows of a connection may reach the same server.
        draft.also_accepted.push("healthy");
        (NetworkMutation::BalancedServers, Evidence::Chance, "flows are balanced over two servers")
    };
    draft.extra_changes.push(change);
    draft.add_fault("load-balancer-other-host", evidence, description.to_owned())
}

/// Makes a rule apply to the server's port only, as a firewall does that knows the service.
fn limit_to_port(rng: CaseRng, rule: RouterRule) -> RouterRule {
    let is_tcp_only = rule.packets.phase != ConnectionPhase::Any;
    if is_tcp_only && rng.chance("one port", 25) {
        return RouterRule { packets: rule.packets.on_port(PORT), ..rule };
    }
    rule
}

fn inject_first_path_box(rng: CaseRng, variant: usize, draft: &mut CaseDraft) -> bool {
    const UP: LinkSide = LinkSide::Up;
    let capable_packets = |treatment| RouterRule {
        side: UP,
        packets: PacketMatch::of(ConnectionPhase::Syn).with(MptcpOptionKind::Capable),
        treatment,
    };
    if !draft.claim(&["box 1", "listener"]) {
        return false;
    }
    let strip_after_handshake =
        strip(LinkSide::Both, ConnectionPhase::Later, MptcpOptionKind::Every);
    if variant == 7 && draft.further_paths().is_empty() {
        // A `towpath server` may close the connection because of the changed bytes.
        draft.also_accepted.push("undetermined");
    }
    let (rule, cause, evidence) = match variant {
        0 => (DROP_CAPABLE, "syn-option-dropped", Evidence::Handshake),
        1 => (
            capable_packets(PacketAction::Unreachable(UnreachableReason::Prohibited)),
            "syn-option-dropped",
            Evidence::Handshake,
        ),
        2 => (capable_packets(PacketAction::Reset), "syn-option-dropped", Evidence::Handshake),
        3 | 4 => {
            let kind = if variant == 3 { MptcpOptionKind::Every } else { MptcpOptionKind::Capable };
            (strip(UP, ConnectionPhase::Syn, kind), "syn-option-stripped", Evidence::Handshake)
        }
        5 => {
            let rule = strip(LinkSide::Down, ConnectionPhase::SynAck, MptcpOptionKind::Every);
            (rule, "synack-option-stripped", Evidence::Peer)
        }
        6 => (strip_after_handshake, "option-stripped-after-handshake", Evidence::Join),
        7 => (REWRITE, "payload-rewritten", Evidence::Data),
        8 | 9 => {
            let side = if variant == 8 { DROP_TCP.side } else { LinkSide::Down };
            let cause = if draft.further_paths().is_empty() {
                "remote-silent"
            } else {
                "first-path-unusable"
            };
            (RouterRule { side, ..DROP_TCP }, cause, Evidence::Handshake)
        }
        _ => return false,
    };
    if let Some(path_rules) = draft.rules.first_mut() {
        path_rules.push(limit_to_port(rng, rule));
    }
    draft.add_fault(cause, evidence, format!("{cause} on the first path"))
}

fn inject_further_path_box(
    rng: CaseRng,
    variant: usize,
    path: usize,
    draft: &mut CaseDraft,
) -> bool {
    let rule_and_cause = match variant {
        0 => (join_packets(PacketAction::Drop), "join-dropped"),
        1 => (
            RouterRule {
                side: LinkSide::Down,
                packets: PacketMatch::of(ConnectionPhase::SynAck).with(MptcpOptionKind::Join),
                treatment: PacketAction::Drop,
            },
            "join-dropped",
        ),
        2 => (
            strip(LinkSide::Up, ConnectionPhase::Syn, MptcpOptionKind::Every),
            "join-option-stripped",
        ),
        3 => (
            strip(LinkSide::Down, ConnectionPhase::SynAck, MptcpOptionKind::Every),
            "join-option-stripped",
        ),
        4 => (
            strip(LinkSide::Both, ConnectionPhase::Tcp, MptcpOptionKind::Join),
            "join-option-stripped",
        ),
        5 => (join_packets(PacketAction::Reset), "join-reset"),
        6 => (
            join_packets(PacketAction::Unreachable(UnreachableReason::Prohibited)),
            "join-prohibited",
        ),
        7 => {
            (all_packets(PacketAction::Unreachable(UnreachableReason::Network)), "join-unreachable")
        }
        8 => (all_packets(PacketAction::Unreachable(UnreachableReason::Host)), "join-unreachable"),
        9 => (RouterRule { side: LinkSide::Down, ..DROP_ALL }, "path-silent"),
        _ => (all_packets(PacketAction::Drop), "path-silent"),
    };
    if !draft.claim(&["box", "endpoints", "limits"]) {
        return false;
    }
    let (rule, cause) = rule_and_cause;
    if let Some(path_rules) = draft.rules.get_mut(path - 1) {
        path_rules.push(limit_to_port(rng, rule));
    }
    draft.add_fault(cause, Evidence::Join, format!("{cause} on path {path} ({variant})"))
}

/// Makes one of two parallel links silent. By chance, all connections of a test may use the other.
fn inject_parallel_link(rng: CaseRng, path: usize, draft: &mut CaseDraft) -> bool {
    let is_free = !draft.is_tunnel(path) && !draft.providers.contains(&path);
    if !is_free || !draft.claim(&["box", "endpoints", "limits"]) {
        return false;
    }
    let delay_ms = rng.uniform("silent parallel delay", [1, 25]);
    draft.set_provider(path);
    draft.extra_changes.push(NetworkMutation::ParallelLinks(path, delay_ms));
    draft.extra_changes.push(NetworkMutation::SilentParallelLink(path));
    let description = format!("one of two parallel links on path {path} is silent");
    draft.add_fault("parallel-link-silent", Evidence::Join, description)
}

fn inject_quality(rng: CaseRng, variant: usize, path: usize, draft: &mut CaseDraft) -> bool {
    if !draft.claim(&["quality", "endpoints", "limits"]) {
        return false;
    }
    let Some(path_quality) = draft.qualities.get_mut(path - 1) else { return false };
    let side = match variant % 3 {
        0 => LinkSide::Both,
        1 => LinkSide::Up,
        _ => LinkSide::Down,
    };
    let cause = match variant {
        0 | 1 => {
            let loss_percent = rng.uniform("loss", [14, 25]) as u32;
            *path_quality = PathQuality { loss_percent, side, ..*path_quality };
            "path-lossy"
        }
        2 | 3 => {
            let mtu_bytes = rng.uniform("MTU", [1_290, 1_380]) as u32;
            *path_quality = PathQuality { mtu_bytes, side, ..*path_quality };
            "path-mtu-hole"
        }
        _ => {
            *path_quality = PathQuality { delay_ms: 450, rate_kbps: 20_000, ..*path_quality };
            "path-much-slower"
        }
    };
    draft.add_fault(cause, Evidence::Data, format!("{cause} on path {path}, {side:?}"))
}

fn inject_event(variant: usize, path: usize, draft: &mut CaseDraft) -> bool {
    let parts = ["box", "link", "quality", "endpoints", "limits"];
    if !matches!(draft.server, DrawnServer::Echo | DrawnServer::Towpath) || !draft.claim(&parts) {
        return false;
    }
    // The event needs data to have arrived; a slow path would not carry them in time.
    for quality in &mut draft.qualities {
        quality.rate_kbps = quality.rate_kbps.max(10_000);
    }
    let (event, cause) = match variant {
        0 => (FailureEvent::Box(path, &[DROP_ALL]), "path-silent"),
        _ => (FailureEvent::Down(path), "link-down"),
    };
    draft.extra_changes.push(NetworkMutation::Event(event));
    draft.add_fault(cause, Evidence::Data, format!("{cause} on path {path}, meanwhile"))
}
