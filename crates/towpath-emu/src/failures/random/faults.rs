//! Faults of random cases, each with its true cause.

use towpath_scenario::LinkSide;

use super::super::case::{
    AppSocket, FailureEvent, HostSide, NetworkMutation, PathQuality, Routing, ServerBehaviour,
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
    /// Quality of a path: delay, loss, rate or MTU.
    Quality,
    /// Event while the connection is open.
    Meanwhile,
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
    (6, Fault::Quality),
    (4, Fault::Meanwhile),
];

/// Injects a fault of one class; false if it conflicts with the draft.
pub(super) fn inject(fault: Fault, rng: CaseRng, draft: &mut CaseDraft) -> bool {
    let pick_variant = |count| rng.below(&format!("which {fault:?}"), count);
    // Number of a further path; the first path is 1.
    let path = 2 + rng.below(&format!("path {fault:?}"), draft.path_count() - 1);
    match fault {
        Fault::Kernel => inject_kernel(pick_variant(4), draft),
        Fault::Endpoints => inject_endpoints(pick_variant(7), path, draft),
        Fault::Limits => inject_limits(pick_variant(3), draft),
        Fault::Routes => inject_routes(pick_variant(5), path, draft),
        Fault::Server => inject_server(pick_variant(8), draft),
        Fault::Announced => inject_announced(pick_variant(4), draft),
        Fault::First => inject_first_path_box(pick_variant(9), draft),
        Fault::Further => inject_further_path_box(pick_variant(10), path, draft),
        Fault::Quality => inject_quality(pick_variant(5), path, draft),
        Fault::Meanwhile => inject_event(pick_variant(2), path, draft),
    }
}

fn add_sysctl(draft: &mut CaseDraft, host: HostSide, name: &'static str, value: &'static str) {
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
        matches!(variant, 0 | 5 | 6) && (draft.announces || draft.path_count() > 2);
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
            let text = draft.endpoint(2, "subflow backup");
            draft.endpoints = vec![text];
            ("endpoint-backup-only", Evidence::Handshake)
        }
        _ => {
            let (address, length) =
                if draft.v4 { ("10.1.1.3", 24) } else { ("2001:db8:1:1::3", 64) };
            let second_prefix = format!("{address}/{length}").leak();
            draft.extra_changes.push(NetworkMutation::Address(HostSide::Client, 1, second_prefix));
            draft.endpoints = vec![format!("{address} dev {} subflow", draft.interface(1))];
            ("all-endpoints-one-interface", Evidence::Handshake)
        }
    };
    draft.add_fault(cause, evidence, format!("{cause} at {path}"))
}

fn inject_limits(variant: usize, draft: &mut CaseDraft) -> bool {
    if !draft.claim(&["limits"]) {
        return false;
    }
    let endpoint_count = draft.endpoints.len() as u32;
    match variant {
        0 => {
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
            if !draft.claim(&["endpoints"]) {
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
        1 => {
            draft.routing = Routing::FirstOnly;
            let description = "one default route, endpoints bound to interfaces".to_owned();
            draft.add_fault("no-gateway-on-interface", Evidence::Join, description)
        }
        2 | 3 if draft.v4 => {
            draft.routing = Routing::ByMetric;
            let setting = if variant == 2 {
                "net.ipv4.conf.all.rp_filter".to_owned()
            } else {
                format!("net.ipv4.conf.{}.rp_filter", draft.interface(path))
            };
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
        3 | 4 if !draft.endpoints.is_empty() && draft.claim(&["server's limits"]) => {
            let allowed = if variant == 3 { 0 } else { draft.endpoints.len() as u32 - 1 };
            draft.limits[1] = (allowed, 8);
            draft.add_fault("peer-limit", Evidence::Join, format!("the server allows {allowed}"))
        }
        5 if !draft.announces && draft.claim(&["server's kernel"]) => {
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

fn inject_first_path_box(variant: usize, draft: &mut CaseDraft) -> bool {
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
        _ => (DROP_TCP, "first-path-unusable", Evidence::Handshake),
    };
    if let Some(path_rules) = draft.rules.first_mut() {
        path_rules.push(rule);
    }
    draft.add_fault(cause, evidence, format!("{cause} on the first path"))
}

fn inject_further_path_box(variant: usize, path: usize, draft: &mut CaseDraft) -> bool {
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
        _ => (all_packets(PacketAction::Drop), "path-silent"),
    };
    if !draft.claim(&["box", "endpoints", "limits"]) {
        return false;
    }
    let (rule, cause) = rule_and_cause;
    if let Some(path_rules) = draft.rules.get_mut(path - 1) {
        path_rules.push(rule);
    }
    draft.add_fault(cause, Evidence::Join, format!("{cause} on path {path} ({variant})"))
}

fn inject_quality(variant: usize, path: usize, draft: &mut CaseDraft) -> bool {
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
            *path_quality = PathQuality { loss_percent: 18, side, ..*path_quality };
            "path-lossy"
        }
        2 | 3 => {
            *path_quality = PathQuality { mtu_bytes: 1_300, side, ..*path_quality };
            "path-mtu-hole"
        }
        _ => {
            *path_quality = PathQuality { delay_ms: 450, ..*path_quality };
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
    let (event, cause) = match variant {
        0 => (FailureEvent::Box(path, &[DROP_ALL]), "path-silent"),
        _ => (FailureEvent::Down(path), "link-down"),
    };
    draft.extra_changes.push(NetworkMutation::Event(event));
    draft.add_fault(cause, Evidence::Data, format!("{cause} on path {path}, meanwhile"))
}

/// Adds something unusual to a healthy network.
pub(super) fn add_harmless_oddity(rng: CaseRng, draft: &mut CaseDraft) {
    let variant = rng.below("odd", 9);
    let description = match variant {
        0 => {
            if let Some(last) = draft.endpoints.last_mut().filter(|_| draft.interfaces.len() > 2) {
                *last += " backup";
            }
            "the last of several is a backup"
        }
        1 => {
            draft.endpoints = (1..=draft.path_count())
                .map(|path| draft.endpoint(path, "subflow fullmesh"))
                .collect();
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
        5 => {
            draft.routing = Routing::ByMetric;
            "a default route for each interface"
        }
        6 => {
            if let Some(quality) = draft.qualities.last_mut() {
                *quality = PathQuality { loss_percent: 1, ..*quality };
            }
            "one packet in a hundred is lost"
        }
        7 => {
            draft.announces = true;
            draft.server_endpoints = vec![format!("{} port 4001 signal", draft.second_address())];
            "an announced address with a port"
        }
        _ => "nothing odd",
    };
    draft.descriptions.push(format!("healthy, {description}"));
}
