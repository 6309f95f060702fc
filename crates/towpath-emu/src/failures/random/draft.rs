//! Draft of a random failure case.

use super::super::case::{HostSide, NetworkMutation, PathQuality, Routing, ServerBehaviour};
use super::super::list::connection::SERVER_V6;
use super::super::list::variations::NAT;
use super::CaseRng;
use crate::router::RouterRule;

/// Names of the client's interfaces; a case uses the first ones.
const INTERFACE_NAMES: [&[&str]; 3] = [
    &["c1", "c2", "c3", "c4"],
    &["eth0", "wlan0", "wwan0", "wwan1"],
    &["enp3s0", "wlp2s0", "wwp0s20u4", "usb0"],
];

/// Causes that a client may confuse, as (true cause, accepted cause, always accepted).
///
/// IPv6 never treats the destination as a neighbour, so a missing gateway looks like a missing
/// source route. A host that accepts no announced address has no endpoint either. The reverse path
/// cannot be distinguished from the forward path. The doctor lists modified data among the items
/// that it did not check.
///
/// The last column is true if the pair is always accepted. Otherwise, the pair is accepted only if
/// the server's kind hides the difference.
const EQUIVALENT_CAUSES: &[(&str, &str, bool)] = &[
    ("no-gateway-on-interface", "no-source-route", true),
    ("all-endpoints-one-interface", "no-endpoints", true),
    // Another fault may make the further paths unusable as well.
    ("first-path-unusable", "remote-silent", true),
    ("add-addr-limit", "no-endpoints", false),
    ("announced-address-unreachable", "no-endpoints", false),
    ("announced-address-private", "no-endpoints", false),
    ("synack-option-stripped", "syn-option-stripped", false),
    ("payload-rewritten", "healthy", false),
];

/// Kind of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DrawnServer {
    /// Echo server: returns the data that it receives.
    Echo,
    /// Server of towpath itself (`towpath server`).
    Towpath,
    /// Web server that replies to requests over HTTP/1.1.
    Web,
    /// TLS server that replies to a `ClientHello`.
    Tls,
    /// SSH server that sends its banner and waits for the client's.
    Ssh,
    /// Server that closes the connection at the first bytes.
    ClosesOnData,
}

/// Evidence that a diagnosis needs to find a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Evidence {
    /// Configuration, or the handshake of the first subflow.
    Handshake,
    /// Further subflows, so the connection must stay open.
    Join,
    /// Data in both directions over each path.
    Data,
    /// Report of the other host.
    Peer,
}

/// Ground truth of a random failure case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroundTruth {
    /// Injected causes; empty for a healthy network.
    pub causes: Vec<&'static str>,
    /// Acceptable first findings: injected causes or verdicts.
    pub accepted: Vec<&'static str>,
    /// True if a client with this kind of server can find at least one cause.
    pub decidable: bool,
    /// True if a client with this kind of server can find all causes.
    pub all_decidable: bool,
    /// Number of subflows that can carry data in the absence of faults.
    pub paths: u32,
    /// One-line summary of the draft.
    pub summary: String,
}

#[derive(Debug, Clone)]
pub(super) struct CaseDraft {
    pub(super) interfaces: &'static [&'static str],
    /// True for IPv4, false for IPv6.
    pub(super) v4: bool,
    pub(super) server: DrawnServer,
    /// True if the server announces its second address.
    pub(super) announces: bool,
    /// Endpoints of the client, one for each further interface, until a fault changes them.
    pub(super) endpoints: Vec<String>,
    pub(super) server_endpoints: Vec<String>,
    pub(super) limits: [(u32, u32); 2],
    pub(super) routing: Routing,
    pub(super) qualities: Vec<PathQuality>,
    /// Rules of the middleboxes apart from NAT, by path.
    pub(super) rules: Vec<Vec<RouterRule>>,
    /// Paths whose middlebox also translates addresses.
    pub(super) nat: Vec<bool>,
    /// Paths with one more router in front of their middlebox.
    pub(super) far_boxes: Vec<bool>,
    pub(super) extra_changes: Vec<NetworkMutation>,
    /// Parts of the network that a fault has already changed.
    pub(super) claimed_parts: Vec<&'static str>,
    pub(super) faults: Vec<(&'static str, Evidence)>,
    pub(super) descriptions: Vec<String>,
}

impl CaseDraft {
    pub(super) fn new(rng: CaseRng) -> Self {
        let interface_count = rng.weighted("interfaces", &[(60, 2), (25, 3), (15, 4)]).unwrap_or(2);
        let interfaces = INTERFACE_NAMES
            .get(rng.below("names", INTERFACE_NAMES.len()))
            .copied()
            .unwrap_or_default();
        let interfaces = interfaces.get(..interface_count).unwrap_or_default();
        let v4 = rng.chance("IPv4", 65);
        let server = rng.weighted(
            "server",
            &[
                (25, DrawnServer::Echo),
                (25, DrawnServer::Towpath),
                (20, DrawnServer::Web),
                (10, DrawnServer::Tls),
                (10, DrawnServer::Ssh),
                (10, DrawnServer::ClosesOnData),
            ],
        );
        let server = server.unwrap_or(DrawnServer::Echo);
        let mut draft = Self {
            interfaces,
            v4,
            server,
            announces: rng.chance("announces", 25),
            endpoints: Vec::new(),
            server_endpoints: Vec::new(),
            limits: [(8, 8); 2],
            routing: Routing::BySource,
            qualities: Vec::new(),
            rules: vec![Vec::new(); interface_count],
            nat: (1..=interface_count)
                .map(|path| v4 && rng.chance(&format!("NAT {path}"), 25))
                .collect(),
            far_boxes: (1..=interface_count)
                .map(|path| rng.chance(&format!("far {path}"), 20))
                .collect(),
            extra_changes: Vec::new(),
            claimed_parts: Vec::new(),
            faults: Vec::new(),
            descriptions: Vec::new(),
        };
        for path in 1..=interface_count {
            let delay_ms = rng.uniform(&format!("delay {path}"), [2, 40]);
            let rate_kbps = rng.uniform(&format!("rate {path}"), [5, 60]) * 1_000;
            draft.qualities.push(PathQuality { delay_ms, rate_kbps, ..PathQuality::DEFAULT });
        }
        draft.endpoints =
            (2..=interface_count).map(|path| draft.endpoint(path, "subflow")).collect();
        if draft.announces {
            draft.server_endpoints = vec![format!("{} signal", draft.second_address())];
        }
        draft
    }

    /// Returns the client's address on a path; paths count from 1.
    pub(super) fn address(&self, path: usize) -> String {
        if self.v4 { format!("10.1.{path}.2") } else { format!("2001:db8:1:{path}::2") }
    }

    pub(super) fn prefix(&self, path: usize) -> String {
        format!("{}/{}", self.address(path), if self.v4 { 24 } else { 64 })
    }

    pub(super) fn interface(&self, path: usize) -> &'static str {
        path.checked_sub(1)
            .and_then(|index| self.interfaces.get(index))
            .copied()
            .unwrap_or_default()
    }

    pub(super) fn endpoint(&self, path: usize, flags: &str) -> String {
        format!("{} dev {} {flags}", self.address(path), self.interface(path))
    }

    /// Returns the server's second address.
    pub(super) fn second_address(&self) -> &'static str {
        if self.v4 { "203.0.113.2" } else { "2001:db8:2:2::2" }
    }

    pub(super) fn path_count(&self) -> usize {
        self.interfaces.len()
    }

    /// Claims parts of the network for a fault; false if another fault has one of them.
    pub(super) fn claim(&mut self, parts: &[&'static str]) -> bool {
        let free = !parts.iter().any(|part| self.claimed_parts.contains(part));
        if free {
            self.claimed_parts.extend(parts);
        }
        free
    }

    pub(super) fn add_fault(
        &mut self,
        cause: &'static str,
        evidence: Evidence,
        description: String,
    ) -> bool {
        self.faults.push((cause, evidence));
        self.descriptions.push(description);
        true
    }

    /// Returns true if a client with this server can obtain the evidence.
    fn can_show(&self, evidence: Evidence) -> bool {
        match evidence {
            Evidence::Handshake => true,
            Evidence::Join => self.server != DrawnServer::ClosesOnData,
            Evidence::Data => matches!(self.server, DrawnServer::Echo | DrawnServer::Towpath),
            Evidence::Peer => self.server == DrawnServer::Towpath,
        }
    }

    pub(super) fn truth(&self) -> GroundTruth {
        let causes: Vec<_> = self.faults.iter().map(|(cause, _)| *cause).collect();
        let decidable = if causes.is_empty() {
            self.can_show(Evidence::Data)
        } else {
            self.faults.iter().any(|(_, evidence)| self.can_show(*evidence))
        };
        let mut accepted = causes.clone();
        if causes.is_empty() {
            accepted.push("healthy");
        }
        if !decidable {
            accepted.push("undetermined");
        }
        if causes == ["endpoint-wrong-role"] && !decidable {
            // The client's own paths work, and it cannot know about a further one.
            accepted.extend(["healthy", "one-path"]);
        }
        for (cause, evidence) in &self.faults {
            let equivalents =
                EQUIVALENT_CAUSES.iter().filter(|(true_cause, _, always_accepted)| {
                    true_cause == cause && (*always_accepted || !self.can_show(*evidence))
                });
            accepted.extend(equivalents.map(|(_, accepted_cause, _)| *accepted_cause));
        }
        let all_decidable = self.faults.iter().all(|(_, evidence)| self.can_show(*evidence));
        let announced_paths = u32::from(self.announces);
        let paths = self.path_count() as u32 + announced_paths;
        if causes.is_empty() && paths < 2 {
            accepted.push("one-path");
        }
        GroundTruth { causes, accepted, decidable, all_decidable, paths, summary: self.summary() }
    }

    fn summary(&self) -> String {
        let family = if self.v4 { "IPv4" } else { "IPv6" };
        let server = match self.server {
            DrawnServer::Echo => "echo",
            DrawnServer::Towpath => "towpath",
            DrawnServer::Web => "web",
            DrawnServer::Tls => "TLS",
            DrawnServer::Ssh => "SSH",
            DrawnServer::ClosesOnData => "a server that closes the connection",
        };
        let nats = self.nat.iter().enumerate().filter(|(_, nat)| **nat);
        let nats: Vec<_> = nats.map(|(index, _)| format!(", NAT {}", index + 1)).collect();
        let nats = nats.concat();
        let announces = if self.announces { ", announces" } else { "" };
        let line = format!("{family}, {} interfaces, {server}{announces}{nats}", self.path_count());
        let faults = if self.descriptions.is_empty() {
            "healthy".to_owned()
        } else {
            self.descriptions.join("; ")
        };
        format!("{line}: {faults}")
    }

    /// Returns the differences from the default network.
    pub(super) fn changes(&self) -> Vec<NetworkMutation> {
        let leak = |texts: &[String]| -> &'static [&'static str] {
            texts.iter().map(|text| &*text.clone().leak()).collect::<Vec<&str>>().leak()
        };
        let [client_limits, server_limits] = self.limits;
        let listener = match self.server {
            DrawnServer::Echo | DrawnServer::Towpath => ServerBehaviour::Multipath,
            DrawnServer::Web => ServerBehaviour::Web,
            DrawnServer::Tls => ServerBehaviour::Tls,
            DrawnServer::Ssh => ServerBehaviour::Ssh,
            DrawnServer::ClosesOnData => ServerBehaviour::ClosesOnData,
        };
        let mut changes = vec![
            NetworkMutation::Clients(self.interfaces),
            NetworkMutation::Endpoints(HostSide::Client, leak(&self.endpoints)),
            NetworkMutation::Endpoints(HostSide::Server, leak(&self.server_endpoints)),
            NetworkMutation::Limits(HostSide::Client, client_limits.0, client_limits.1),
            NetworkMutation::Limits(HostSide::Server, server_limits.0, server_limits.1),
            NetworkMutation::Routing(self.routing),
            NetworkMutation::Listener(listener),
        ];
        if !self.v4 {
            changes.push(NetworkMutation::Connect(SERVER_V6));
        }
        for (index, quality) in self.qualities.iter().enumerate() {
            changes.push(NetworkMutation::Quality(index + 1, *quality));
        }
        for (index, far) in self.far_boxes.iter().enumerate() {
            changes.extend(far.then_some(NetworkMutation::FarBox(index + 1)));
        }
        for (index, rules) in self.rules.iter().enumerate() {
            let nat = self.nat.get(index).copied().unwrap_or_default();
            let rules = [rules.clone(), nat.then_some(NAT).into_iter().collect()].concat();
            if !rules.is_empty() {
                changes.push(NetworkMutation::Box(index + 1, rules.leak()));
            }
        }
        changes.extend(&self.extra_changes);
        changes
    }
}
