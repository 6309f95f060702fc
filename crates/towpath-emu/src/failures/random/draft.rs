//! Draft of a random failure case.

use super::super::case::{HostSide, NetworkMutation, PathQuality, Routing, ServerBehaviour};
use super::super::list::connection::SERVER_V6;
use super::super::list::variations::NAT;
use super::{CaseRng, features};
use crate::router::RouterRule;

/// Names of the client's interfaces; a case uses the first ones.
const INTERFACE_NAMES: [&[&str]; 5] = [
    &["c1", "c2", "c3", "c4"],
    &["eth0", "wlan0", "wwan0", "wwan1"],
    &["enp3s0", "wlp2s0", "wwp0s20u4", "usb0"],
    &["eth0.100", "eth0.200", "eth1.100", "eth1.200"],
    &["enx0050b6123456", "wlx00c0caabcdef", "wwp0s20f0u4i12", "bond0.4000"],
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
    /// Server that reads everything and never replies.
    Idle,
}

/// Ranges of delays in one direction and of rates, with their weights.
const DELAY_RANGES_MS: &[(usize, [u64; 2])] = &[(85, [2, 40]), (15, [40, 70])];
const RATE_RANGES_KBPS: &[(usize, [u64; 2])] =
    &[(10, [500, 2_000]), (75, [5_000, 60_000]), (15, [60_000, 300_000])];
/// Kinds of servers with their weights.
const SERVER_WEIGHTS: &[(usize, DrawnServer)] = &[
    (25, DrawnServer::Echo),
    (25, DrawnServer::Towpath),
    (20, DrawnServer::Web),
    (10, DrawnServer::Tls),
    (10, DrawnServer::Ssh),
    (8, DrawnServer::ClosesOnData),
    (6, DrawnServer::Idle),
];

/// Evidence that a diagnosis needs to find a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Evidence {
    /// Configuration, or the handshake of the first subflow.
    Handshake,
    /// None: chance decides in each run if the fault has an effect.
    Chance,
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
    /// Injected causes, those that the client can find first; empty for a healthy network.
    pub causes: Vec<&'static str>,
    /// Acceptable first findings: injected causes or verdicts.
    pub accepted: Vec<&'static str>,
    /// True if a client with this kind of server can find at least one cause.
    pub decidable: bool,
    /// True if a client with this kind of server can find all causes.
    pub all_decidable: bool,
    /// Number of the client's addresses that carry data in the absence of faults, without backups.
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
    /// Paths with a provider that is not a plain router.
    pub(super) providers: Vec<usize>,
    /// Path whose interface is a tunnel, and true if the tunnel has a gateway.
    pub(super) tunnel: Option<(usize, bool)>,
    /// Path whose interface has only addresses of the other family.
    pub(super) other_family_path: Option<usize>,
    /// True if the server is behind an address translation.
    pub(super) private_server: bool,
    /// Number of endpoints that are backups although nothing is wrong.
    pub(super) backups: u32,
    pub(super) extra_changes: Vec<NetworkMutation>,
    /// Parts of the network that a fault has already changed.
    pub(super) claimed_parts: Vec<&'static str>,
    pub(super) faults: Vec<(&'static str, Evidence)>,
    /// Further acceptable findings.
    pub(super) also_accepted: Vec<&'static str>,
    /// Unusual but correct properties.
    pub(super) features: Vec<String>,
    pub(super) descriptions: Vec<String>,
}

impl CaseDraft {
    pub(super) fn new(rng: CaseRng) -> Self {
        let interface_count =
            rng.weighted("interfaces", &[(10, 1), (52, 2), (23, 3), (15, 4)]).unwrap_or(2);
        let interfaces = INTERFACE_NAMES
            .get(rng.below("names", INTERFACE_NAMES.len()))
            .copied()
            .unwrap_or_default();
        let interfaces = interfaces.get(..interface_count).unwrap_or_default();
        let v4 = rng.chance("IPv4", 65);
        let server = rng.weighted("server", SERVER_WEIGHTS).unwrap_or(DrawnServer::Echo);
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
            providers: Vec::new(),
            tunnel: None,
            other_family_path: None,
            private_server: false,
            backups: 0,
            extra_changes: Vec::new(),
            claimed_parts: Vec::new(),
            faults: Vec::new(),
            also_accepted: Vec::new(),
            features: Vec::new(),
            descriptions: Vec::new(),
        };
        for path in 1..=interface_count {
            let delay_range = rng.weighted(&format!("delays {path}"), DELAY_RANGES_MS);
            let rate_range = rng.weighted(&format!("rates {path}"), RATE_RANGES_KBPS);
            let delay_ms = rng.uniform(&format!("delay {path}"), delay_range.unwrap_or([2, 40]));
            let rate_kbps = rng.uniform(&format!("rate {path}"), rate_range.unwrap_or([5_000; 2]));
            draft.qualities.push(PathQuality { delay_ms, rate_kbps, ..PathQuality::DEFAULT });
        }
        if draft.announces {
            draft.server_endpoints = vec![format!("{} signal", draft.second_address())];
        }
        features::add_features(rng, &mut draft);
        draft.endpoints =
            (2..=interface_count).map(|path| draft.endpoint(path, "subflow")).collect();
        features::add_settings(rng, &mut draft);
        draft
    }

    /// Returns the client's address on a path; paths count from 1.
    pub(super) fn address(&self, path: usize) -> String {
        if self.v4 == self.has_family(path) {
            format!("10.1.{path}.2")
        } else {
            format!("2001:db8:1:{path}::2")
        }
    }

    pub(super) fn prefix(&self, path: usize) -> String {
        let length = match (self.tunnel == Some((path, false)), self.v4) {
            (true, true) => 32,
            (true, false) => 128,
            (false, true) => 24,
            (false, false) => 64,
        };
        format!("{}/{length}", self.address(path))
    }

    /// Returns true if a path's interface has addresses of the connection's family.
    pub(super) fn has_family(&self, path: usize) -> bool {
        self.other_family_path != Some(path)
    }

    pub(super) fn is_tunnel(&self, path: usize) -> bool {
        self.tunnel.is_some_and(|(tunnel_path, _)| tunnel_path == path)
    }

    /// Returns true if a router is between a path's gateway and its middlebox.
    pub(super) fn has_provider(&self, path: usize) -> bool {
        let is_far = path.checked_sub(1).and_then(|index| self.far_boxes.get(index));
        self.providers.contains(&path) || is_far.copied().unwrap_or_default()
    }

    /// Marks a path as one with a special provider instead of a plain router.
    pub(super) fn set_provider(&mut self, path: usize) {
        self.providers.push(path);
        if let Some(far) = path.checked_sub(1).and_then(|index| self.far_boxes.get_mut(index)) {
            *far = false;
        }
    }

    /// Returns the paths after the first one that this connection can use.
    pub(super) fn further_paths(&self) -> Vec<usize> {
        (2..=self.path_count()).filter(|path| self.has_family(*path)).collect()
    }

    /// Draws a further path; `None` if the connection can use one path only.
    pub(super) fn pick_further_path(&self, rng: CaseRng, choice: &str) -> Option<usize> {
        let paths = self.further_paths();
        paths.get(rng.below(choice, paths.len())).copied()
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
        match (self.v4, self.private_server) {
            (true, false) => "203.0.113.2",
            (true, true) => "172.20.2.2",
            (false, _) => "2001:db8:2:2::2",
        }
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
            Evidence::Chance => false,
            Evidence::Join => self.server != DrawnServer::ClosesOnData,
            Evidence::Data => matches!(self.server, DrawnServer::Echo | DrawnServer::Towpath),
            Evidence::Peer => self.server == DrawnServer::Towpath,
        }
    }

    pub(super) fn truth(&self) -> GroundTruth {
        let mut faults = self.faults.clone();
        // Causes that the client can find come first.
        faults.sort_by_key(|(_, evidence)| !self.can_show(*evidence));
        let causes: Vec<_> = faults.iter().map(|(cause, _)| *cause).collect();
        let decidable = if causes.is_empty() {
            self.can_show(Evidence::Data)
        } else {
            self.faults.iter().any(|(_, evidence)| self.can_show(*evidence))
        };
        let mut accepted = [causes.as_slice(), self.also_accepted.as_slice()].concat();
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
        let paths = (1 + self.further_paths().len() as u32).saturating_sub(self.backups);
        if accepted.contains(&"healthy") && paths < 2 {
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
            DrawnServer::Idle => "a server that never replies",
        };
        let nats = self.nat.iter().enumerate().filter(|(_, nat)| **nat);
        let nats: Vec<_> = nats.map(|(index, _)| format!(", NAT {}", index + 1)).collect();
        let nats = nats.concat();
        let announces = if self.announces { ", announces" } else { "" };
        let count = self.path_count();
        let mut line = format!("{family}, {count} interfaces, {server}{announces}{nats}");
        for feature in &self.features {
            line = format!("{line}, {feature}");
        }
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
            DrawnServer::Idle => ServerBehaviour::Idle,
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
