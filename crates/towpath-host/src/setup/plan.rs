//! Plan of the changes that a host still needs for Multipath TCP.

mod endpoints;
mod shared;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use towpath_netlink::{EndpointFlags, InterfaceAddress, Link, Prefix, RuleAction};
use towpath_os::sysctl::Sysctl;

use super::change::{ConfigChange, NamedEndpoint, SourceRule, StoredLimits, TableRoute};
use super::host::{Gateway, HostState, KernelQueries, MptcpManager};

/// The kernel's limit on endpoints, subflows and accepted addresses.
const MAX_ENDPOINTS: usize = 8;
/// Lowest number of a routing table that a plan adds.
pub(super) const FIRST_TABLE: u32 = 1_000;
/// Highest priority number of a rule that a plan adds.
pub(super) const RULE_PRIORITY_LIMIT: u32 = 1_000;
/// Documentation addresses (RFC 5737, RFC 3849): their routes are those of the rest of the
/// internet.
const LOOKUP_TARGET_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const LOOKUP_TARGET_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1));

/// Role of the host in its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetupRole {
    /// The host opens connections.
    Client,
    /// The host accepts connections.
    Server,
    /// The host opens and accepts connections.
    Both,
}

/// Options for a plan.
#[derive(Debug, Clone)]
pub struct SetupRequest {
    /// Role of this host.
    pub role: SetupRole,
    /// Addresses of the other host; empty for any host.
    pub peers: Vec<IpAddr>,
    /// Names of the interfaces to use; empty for all usable ones.
    pub links: Vec<String>,
    /// Interface names and routers, for interfaces without a default route.
    pub routers: Vec<(String, IpAddr)>,
}

/// One change and its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanStep {
    /// Change of the configuration.
    pub change: ConfigChange,
    /// Reason for the change, in a short sentence.
    pub reason: String,
}

/// Changes to make, in order, and remarks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SetupPlan {
    /// Changes to make; empty on a correct host.
    pub steps: Vec<PlanStep>,
    /// Findings that the plan does not change.
    pub notes: Vec<String>,
    /// Interface names and addresses that become or are endpoints.
    pub uses: Vec<(String, IpAddr)>,
    /// Correct settings that last only until the next restart: endpoints and limits.
    pub kept_steps: Vec<PlanStep>,
}

/// Reason why no plan was made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The kernel has no Multipath TCP.
    #[error("this kernel does not support Multipath TCP (no net.mptcp.enabled)")]
    NoMptcp,
    /// A requested interface does not exist.
    #[error("no interface `{0}`, expected one of: {1}")]
    NoLink(String, String),
    /// A requested interface cannot be used.
    #[error("interface `{0}` {1}")]
    Unusable(String, &'static str),
    /// Several of the interfaces to use have the same address.
    #[error("{} have the same address {address}, expected one for each interface; nothing was changed", .links.join(" and "))]
    DuplicateAddress {
        /// Address of all these interfaces.
        address: IpAddr,
        /// Names of the interfaces.
        links: Vec<String>,
    },
}

/// One address that can be an endpoint.
#[derive(Debug, Clone, Copy)]
struct EndpointCandidate<'a> {
    link: &'a Link,
    address: InterfaceAddress,
}

impl EndpointCandidate<'_> {
    fn ip(&self) -> IpAddr {
        self.address.local.address()
    }
}

/// Result of a route lookup from an address to a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RouteState {
    /// The route leaves by the address's own interface.
    Right,
    /// The route leaves by another interface; a separate table would correct this.
    Wrong,
    /// No route leads from this address to the destination.
    Missing,
}

/// Makes the plan from the host's state and the kernel's replies.
pub fn plan(
    host: &HostState,
    request: &SetupRequest,
    queries: &mut dyn KernelQueries,
) -> Result<SetupPlan, PlanError> {
    let enabled = Sysctl::new("net.mptcp.enabled");
    let value = queries.setting(&enabled).ok_or(PlanError::NoMptcp)?;
    let candidates = endpoint_candidates(host, request)?;
    let mut planner =
        Planner { host, request, queries, plan: SetupPlan::default(), tables: BTreeSet::new() };
    planner.plan.uses = candidates.iter().map(|c| (c.link.name.clone(), c.ip())).collect();
    if value != "1" {
        planner.set_sysctl(enabled, value, "1", "Multipath TCP is disabled".to_owned());
    }
    planner.plan_path_manager();
    planner.fix_shared_networks(&candidates);
    let endpoints: Vec<_> =
        candidates.iter().map(|candidate| planner.plan_endpoint(candidate)).collect();
    planner.plan_limits(&candidates);
    planner.plan_endpoints(&candidates, endpoints.into_iter().flatten().collect());
    planner.add_remarks(&candidates);
    Ok(planner.plan)
}

/// Returns the addresses to use; the first ones of every interface come first.
fn endpoint_candidates<'a>(
    host: &'a HostState,
    request: &SetupRequest,
) -> Result<Vec<EndpointCandidate<'a>>, PlanError> {
    for name in request.links.iter().chain(request.routers.iter().map(|(link, _)| link)) {
        let link = host.links.iter().find(|link| link.name == *name).ok_or_else(|| {
            let names = host.links.iter().map(|link| link.name.as_str());
            PlanError::NoLink(name.clone(), names.collect::<Vec<_>>().join(", "))
        })?;
        if !link.is_up() {
            return Err(PlanError::Unusable(name.clone(), "is down: set it up first"));
        }
    }
    let is_family_requested = |ip: IpAddr| {
        request.peers.is_empty() || request.peers.iter().any(|peer| peer.is_ipv4() == ip.is_ipv4())
    };
    let mut candidates: Vec<EndpointCandidate<'_>> = Vec::new();
    for link in host.links.iter().filter(|link| is_used(host, request, link)) {
        let usable_addresses = host.addresses.iter().filter(|address| {
            // Neither secondary addresses of IPv4 nor temporary ones of IPv6 (the same flag) are a
            // further path. The latter also expire.
            address.link_index == link.index
                && address.is_global()
                && address.is_usable()
                && address.flags & libc::IFA_F_SECONDARY == 0
                && is_family_requested(address.local.address())
        });
        let link_candidates: Vec<_> =
            usable_addresses.map(|address| EndpointCandidate { link, address: *address }).collect();
        if link_candidates.is_empty() && request.links.contains(&link.name) {
            return Err(PlanError::Unusable(link.name.clone(), "has no usable address"));
        }
        candidates.extend(link_candidates);
    }
    if let Some(error) = shared::find_duplicate_address(&candidates) {
        return Err(error);
    }
    // The first addresses of every interface and family come before any second ones.
    let rank = |index: usize| {
        let same_interface = |other: &&EndpointCandidate<'_>| {
            candidates.get(index).is_some_and(|candidate| {
                other.link.index == candidate.link.index
                    && other.ip().is_ipv4() == candidate.ip().is_ipv4()
            })
        };
        candidates.iter().take(index).filter(same_interface).count()
    };
    let mut order: Vec<_> = (0..candidates.len()).map(|index| (rank(index), index)).collect();
    order.sort_unstable();
    Ok(order
        .iter()
        .filter_map(|(_, index)| candidates.get(*index).copied())
        .take(MAX_ENDPOINTS)
        .collect())
}

fn is_used(host: &HostState, request: &SetupRequest, link: &Link) -> bool {
    if !request.links.is_empty() {
        return request.links.contains(&link.name);
    }
    // A bridge without a default route is the internal network of containers or virtual machines.
    let is_internal_bridge = link.kind.as_deref() == Some("bridge")
        && host.router(link.index, true).is_none()
        && host.router(link.index, false).is_none();
    link.is_up() && link.is_running() && !link.is_loopback() && !is_internal_bridge
}

struct Planner<'a> {
    host: &'a HostState,
    request: &'a SetupRequest,
    queries: &'a mut dyn KernelQueries,
    plan: SetupPlan,
    /// Interface index and table number of each table that the plan fills.
    tables: BTreeSet<(u32, u32)>,
}

impl Planner<'_> {
    fn add_step(&mut self, change: ConfigChange, reason: String) {
        self.plan.steps.push(PlanStep { change, reason });
    }

    fn add_note(&mut self, text: String) {
        if !self.plan.notes.contains(&text) {
            self.plan.notes.push(text);
        }
    }

    fn set_sysctl(&mut self, sysctl: Sysctl, from: String, to: &str, reason: String) {
        self.add_step(ConfigChange::Sysctl { sysctl, from, to: to.to_owned() }, reason);
    }

    /// Selects the kernel's own path manager, unless mptcpd runs.
    fn plan_path_manager(&mut self) {
        let names = [("net.mptcp.path_manager", "kernel"), ("net.mptcp.pm_type", "0")];
        for (name, required) in names {
            let sysctl = Sysctl::new(name);
            let Some(value) = self.queries.setting(&sysctl) else { continue };
            if value == required {
                return;
            }
            if self.host.managers.contains(&MptcpManager::Mptcpd) {
                self.add_note(
                    "mptcpd is the path manager here (net.mptcp.path_manager), so endpoints have no effect"
                        .to_owned(),
                );
                return;
            }
            let reason = "endpoints need the kernel's path manager, and no daemon runs";
            self.set_sysctl(sysctl, value, required, reason.to_owned());
            return;
        }
    }

    /// Returns the larger of the values for all interfaces and for this one, which is effective for
    /// several IPv4 settings.
    fn effective(&mut self, link: &str, name: &str) -> i64 {
        let mut value_of = |link: &str| {
            let value = self.queries.setting(&Sysctl::ipv4(link, name));
            value.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        value_of("all").max(value_of(link))
    }

    fn raise(&mut self, link: &str, name: &str, minimum: i64, reason: String) {
        if self.effective(link, name) >= minimum {
            return;
        }
        let sysctl = Sysctl::ipv4(link, name);
        if let Some(value) = self.queries.setting(&sysctl) {
            self.set_sysctl(sysctl, value, &minimum.to_string(), reason);
        }
    }

    /// Returns destinations of packets from an address: the peers, or examples.
    fn targets(&self, candidate: &EndpointCandidate<'_>) -> Vec<IpAddr> {
        let v4 = candidate.ip().is_ipv4();
        let peers = self.request.peers.iter().filter(|peer| peer.is_ipv4() == v4);
        let mut targets: Vec<_> = peers.copied().collect();
        if targets.is_empty() {
            if self
                .host
                .routes
                .iter()
                .any(|route| route.is_default() && route.to.address().is_ipv4() == v4)
            {
                targets.push(if v4 { LOOKUP_TARGET_V4 } else { LOOKUP_TARGET_V6 });
            }
            if sharing_interface(self.host, candidate.link, v4)
                .is_some_and(|(_, network)| network.contains(candidate.ip()))
            {
                targets.extend(unused_address_in(self.host, candidate.address.local));
            }
        }
        targets
    }

    fn route_state(
        &mut self,
        candidate: &EndpointCandidate<'_>,
        destination: IpAddr,
        bound: bool,
    ) -> RouteState {
        let link = bound.then_some(candidate.link.name.as_str());
        let index = candidate.link.index;
        let on_link = self.host.is_on_link(destination, index);
        let router = self.router(candidate);
        match self.queries.route(destination, candidate.ip(), link) {
            // The route has a gateway, or needs none.
            Some(route)
                if route.link_index == Some(index) && (route.gateway.is_some() || on_link) =>
            {
                RouteState::Right
            }
            // The destination is this host, which needs no route.
            Some(route)
                if self.host.link(route.link_index.unwrap_or(0)).is_some_and(Link::is_loopback) =>
            {
                RouteState::Right
            }
            _ if on_link || router.is_some() => RouteState::Wrong,
            _ => RouteState::Missing,
        }
    }

    fn router(&self, candidate: &EndpointCandidate<'_>) -> Option<Gateway> {
        let v4 = candidate.ip().is_ipv4();
        let requested = self
            .request
            .routers
            .iter()
            .find(|(link, address)| *link == candidate.link.name && address.is_ipv4() == v4);
        let requested = requested.map(|(_, address)| Gateway::At(*address));
        requested.or_else(|| self.host.router(candidate.link.index, v4))
    }

    /// Routes packets from an address over its own interface, and returns its endpoint.
    fn plan_endpoint(&mut self, candidate: &EndpointCandidate<'_>) -> Option<NamedEndpoint> {
        let targets = self.targets(candidate);
        let is_client = self.request.role == SetupRole::Client;
        let route_states: Vec<_> =
            targets.iter().map(|to| (*to, self.route_state(candidate, *to, is_client))).collect();
        let misrouted = route_states.iter().find(|(_, state)| *state == RouteState::Wrong);
        if let Some((to, _)) = misrouted {
            self.add_own_table(candidate, *to, is_client);
        } else if is_client {
            let routed: Vec<_> =
                route_states.iter().filter(|(_, state)| *state == RouteState::Right).collect();
            self.loosen_filter(candidate, &routed.iter().map(|(to, _)| *to).collect::<Vec<_>>());
        }
        let is_unreachable = !route_states.is_empty()
            && route_states.iter().all(|(_, state)| *state == RouteState::Missing);
        let has_several_peers = targets.len() > 1 && !self.request.peers.is_empty();
        let flags = match self.request.role {
            SetupRole::Server => EndpointFlags::SIGNAL,
            SetupRole::Both => EndpointFlags::SIGNAL | EndpointFlags::SUBFLOW,
            SetupRole::Client
                if (is_unreachable || has_several_peers) && self.host.has_laminar() =>
            {
                EndpointFlags::LAMINAR
            }
            SetupRole::Client if is_unreachable => {
                let EndpointCandidate { link, .. } = candidate;
                self.add_note(format!(
                    "{} on {} has no route to the peer: this kernel (before 6.18) uses it when the peer announces an address there",
                    candidate.ip(),
                    link.name
                ));
                return None;
            }
            SetupRole::Client => EndpointFlags::SUBFLOW,
        };
        let (address, link) = (candidate.ip(), Some(candidate.link.name.clone()));
        Some(NamedEndpoint { address, id: None, port: None, flags: flags.bits(), link })
    }

    /// Adds a rule and a table for packets from an address.
    fn add_own_table(
        &mut self,
        candidate: &EndpointCandidate<'_>,
        destination: IpAddr,
        bound: bool,
    ) {
        let (ip, index, v4) = (candidate.ip(), candidate.link.index, candidate.ip().is_ipv4());
        let name = &candidate.link.name;
        let current_route = self.queries.route(destination, ip, bound.then_some(name.as_str()));
        let problem =
            current_route.and_then(|route| self.host.link(route.link_index?)).map_or_else(
                || "have no route".to_owned(),
                |link| {
                    if link.index == index {
                        format!("look for {destination} on the link of {name} itself")
                    } else {
                        format!("leave through {}", link.name)
                    }
                },
            );
        let table = self.choose_table(index);
        let own_network = candidate.address.local.network();
        let reason =
            format!("packets from {ip} {problem}: they need a routing table that uses {name}");
        let exists = |to: Prefix, host: &HostState| {
            host.routes.iter().any(|r| (r.table, r.to, r.link_index) == (table, to, Some(index)))
        };
        let mut routes = Vec::new();
        if candidate.address.peer.is_none() && own_network.length() < Prefix::host(ip).length() {
            routes.push((own_network, None));
        }
        if let Some(router) = self.router(candidate) {
            let default_route = if v4 { Prefix::ALL_V4 } else { Prefix::ALL_V6 };
            routes.push((default_route, router.address()));
        }
        for (to, gateway) in routes {
            let (link, to_text) = (name.clone(), to.to_string());
            let route = ConfigChange::AddRoute(TableRoute { to: to_text, link, gateway, table });
            let is_planned = self.plan.steps.iter().any(|step| step.change == route);
            if !exists(to, self.host) && !is_planned {
                self.add_step(route, reason.clone());
            }
        }
        let priority = self.choose_priority(ip);
        let rule = SourceRule { from: ip, table, priority };
        self.add_step(ConfigChange::AddRule(rule), format!("{ip} uses the table of {name}"));
    }

    /// Returns a free table for an interface; the same for all of its addresses.
    fn choose_table(&mut self, link: u32) -> u32 {
        if let Some((_, table)) = self.tables.iter().find(|(index, _)| *index == link) {
            return *table;
        }
        let is_taken = |table: u32| {
            self.tables.iter().any(|(_, other)| *other == table)
                || self.host.routes.iter().any(|route| route.table == table)
                || self.host.rules.iter().any(|rule| rule.action == RuleAction::Table(table))
        };
        let first = FIRST_TABLE.saturating_add(link);
        let table = (first..u32::MAX).find(|table| !is_taken(*table)).unwrap_or(first);
        self.tables.insert((link, table));
        table
    }

    /// Returns a free priority, before every rule that would match the same packets.
    fn choose_priority(&self, from: IpAddr) -> u32 {
        let same_family =
            self.host.rules.iter().filter(|rule| {
                rule.priority > 0 && rule.from.address().is_ipv4() == from.is_ipv4()
            });
        let matching = same_family.filter(|rule| rule.from.contains(from) != rule.inverted);
        let first_match = matching.map(|rule| rule.priority).min().unwrap_or(RULE_PRIORITY_LIMIT);
        let planned = self.plan.steps.iter().filter_map(|step| {
            let ConfigChange::AddRule(rule) = &step.change else { return None };
            Some(rule.priority)
        });
        let existing = self.host.rules.iter().map(|rule| rule.priority);
        let taken: BTreeSet<u32> = existing.chain(planned).collect();
        let upper_bound = first_match.min(RULE_PRIORITY_LIMIT);
        (1..upper_bound).rev().find(|priority| !taken.contains(priority)).unwrap_or(upper_bound)
    }

    /// Loosens a strict reverse-path filter, which drops replies on an interface without a route
    /// back.
    fn loosen_filter(&mut self, candidate: &EndpointCandidate<'_>, targets: &[IpAddr]) {
        let name = candidate.link.name.as_str();
        if !candidate.ip().is_ipv4() || self.effective(name, "rp_filter") != 1 {
            return;
        }
        let misrouted = targets
            .iter()
            .find(|to| self.route_state(candidate, **to, false) != RouteState::Right)
            .copied();
        if misrouted.is_none() {
            return;
        }
        let sysctl = Sysctl::ipv4(name, "rp_filter");
        let is_planned = self.plan.steps.iter().any(
            |step| matches!(&step.change, ConfigChange::Sysctl { sysctl: other, .. } if *other == sysctl),
        );
        if let Some(value) = self.queries.setting(&sysctl).filter(|_| !is_planned) {
            let reason = format!(
                "the strict filter (1) drops packets that arrive at {name}, because the route back uses another interface"
            );
            self.set_sysctl(sysctl, value, "2", reason);
        }
    }

    fn plan_limits(&mut self, candidates: &[EndpointCandidate<'_>]) {
        let current = StoredLimits::from(self.host.limits);
        let address_count = candidates.len();
        // The peer may announce more addresses than the options name.
        let peer_count = address_count.max(self.request.peers.len());
        let max = MAX_ENDPOINTS as u32;
        let clamp_limit = |count: usize| (count as u32).clamp(2, max);
        let accepted = clamp_limit(peer_count);
        let (needed, reason) = match self.request.role {
            SetupRole::Client => (
                StoredLimits {
                    subflows: clamp_limit(address_count.saturating_mul(peer_count)),
                    add_addr_accepted: accepted,
                },
                "allow a subflow from each address to each peer address, and accept announced addresses",
            ),
            // The client opens subflows, so the server has no reason to limit them further.
            SetupRole::Server => (
                StoredLimits { subflows: max, add_addr_accepted: 0 },
                "allow every subflow that a client opens",
            ),
            SetupRole::Both => (
                StoredLimits { subflows: max, add_addr_accepted: accepted },
                "allow every subflow that either host opens",
            ),
        };
        // A higher limit than needed does no harm.
        let to = StoredLimits {
            subflows: current.subflows.max(needed.subflows),
            add_addr_accepted: current.add_addr_accepted.max(needed.add_addr_accepted),
        };
        let (change, reason) = (ConfigChange::Limits { from: current, to }, reason.to_owned());
        if to == current {
            self.plan.kept_steps.push(PlanStep { change, reason });
        } else {
            self.add_step(change, reason);
        }
    }

    /// Notes the interfaces that are unusable only in their present state.
    fn list_unused_links(&mut self) {
        for link in self.host.links.iter().filter(|link| !is_used(self.host, self.request, link)) {
            let global_address =
                self.host.addresses.iter().find(|a| a.link_index == link.index && a.is_global());
            if global_address.is_none() || link.is_loopback() || !self.request.links.is_empty() {
                continue;
            }
            let state = match (link.is_up(), link.is_running()) {
                (false, _) => "is down",
                (true, false) => "has no carrier",
                (true, true) => "is a bridge without a default route",
            };
            self.add_note(format!("{} is skipped: it {state}", link.name));
        }
    }

    fn add_remarks(&mut self, candidates: &[EndpointCandidate<'_>]) {
        self.list_unused_links();
        let links: BTreeSet<_> = candidates.iter().map(|candidate| candidate.link.index).collect();
        match (links.len(), candidates.len()) {
            (0, _) => self.add_note("no interface has a usable address".to_owned()),
            (1, _) if self.request.role == SetupRole::Client => self.add_note(
                "only one interface is usable: several paths exist only if the server has several addresses"
                    .to_owned(),
            ),
            _ => {}
        }
        if links.len() > 1 && candidates.iter().all(|candidate| self.targets(candidate).is_empty())
        {
            self.add_note(
                "there is no default route, so routes were not checked: name the other host (--peer)"
                    .to_owned(),
            );
        }
        if self.host.managers.contains(&MptcpManager::NetworkManager) {
            self.add_note(
                "NetworkManager runs here and may set endpoints by itself \
                 (connection.mptcp-flags): `--persist networkmanager` writes its settings"
                    .to_owned(),
            );
        }
        if self.host.managers.contains(&MptcpManager::Mptcpd) {
            self.add_note(
                "mptcpd runs here and changes endpoints and limits by itself: stop it, or let it configure everything"
                    .to_owned(),
            );
        }
    }
}

/// Returns another interface in one of this one's networks of a family, and that network.
fn sharing_interface<'a>(host: &'a HostState, link: &Link, v4: bool) -> Option<(&'a Link, Prefix)> {
    let others = host
        .links
        .iter()
        .filter(|other| other.index != link.index && other.is_up() && !other.is_loopback());
    for other in others {
        for network in host.networks(link.index) {
            let is_host = |p: Prefix| p == Prefix::host(p.address());
            let overlaps = |p: &Prefix| {
                !is_host(*p) && (p.contains(network.address()) || network.contains(p.address()))
            };
            let other_family = network.address().is_ipv4() != v4;
            if other_family || is_link_local(network.address()) || is_host(network) {
                continue;
            }
            if host.networks(other.index).any(|p| overlaps(&p)) {
                return Some((other, network));
            }
        }
    }
    None
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Returns an address of a network that does not belong to the host.
fn unused_address_in(host: &HostState, network: Prefix) -> Option<IpAddr> {
    let successor = |address: IpAddr| match address {
        IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits().wrapping_add(1))),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits().wrapping_add(1))),
    };
    let mut address = network.network().address();
    for _ in 0..=host.addresses.len() {
        address = successor(address);
        if !network.contains(address) || !network.contains(successor(address)) {
            return None;
        }
        if host.addresses.iter().all(|assigned| assigned.local.address() != address) {
            return Some(address);
        }
    }
    None
}
