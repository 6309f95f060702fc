//! Plan of the changes that a host still needs for Multipath TCP.

mod endpoints;
mod shared;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::netlink::{EndpointFlags, InterfaceAddress, Link, Prefix, RuleAction};
use crate::sysctl::Sysctl;

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
    #[error("this kernel has no Multipath TCP (no net.mptcp.enabled)")]
    NoMptcp,
    /// A requested interface does not exist.
    #[error("no interface `{0}`, expected one of: {1}")]
    NoLink(String, String),
    /// A requested interface cannot be used.
    #[error("interface `{0}` {1}")]
    Unusable(String, &'static str),
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
    directions: &mut dyn KernelQueries,
) -> Result<SetupPlan, PlanError> {
    let enabled = Sysctl::new("net.mptcp.enabled");
    let value = directions.setting(&enabled).ok_or(PlanError::NoMptcp)?;
    let places = places(host, request)?;
    let mut planner = Planner {
        host,
        request,
        queries: directions,
        plan: SetupPlan::default(),
        tables: BTreeSet::new(),
    };
    planner.plan.uses = places.iter().map(|it| (it.link.name.clone(), it.ip())).collect();
    if value != "1" {
        planner.set(enabled, value, "1", "Multipath TCP is switched off".to_owned());
    }
    planner.path_manager();
    planner.shared_networks(&places);
    let wanted: Vec<_> = places.iter().map(|place| planner.endpoint(place)).collect();
    planner.limits(&places);
    planner.endpoints(&places, wanted.into_iter().flatten().collect());
    planner.remarks(&places);
    Ok(planner.plan)
}

/// Returns the addresses to use; the first ones of every interface come first.
fn places<'a>(
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
    let family_is_asked = |ip: IpAddr| {
        request.peers.is_empty() || request.peers.iter().any(|peer| peer.is_ipv4() == ip.is_ipv4())
    };
    let mut found: Vec<EndpointCandidate<'_>> = Vec::new();
    for link in host.links.iter().filter(|link| is_used(host, request, link)) {
        let own = host.addresses.iter().filter(|address| {
            // Neither secondary addresses of IPv4 nor temporary ones of IPv6 (the same flag) are a
            // further path. The latter also expire.
            address.link_index == link.index
                && address.is_global()
                && address.is_usable()
                && address.flags & libc::IFA_F_SECONDARY == 0
                && family_is_asked(address.local.address())
        });
        let places: Vec<_> =
            own.map(|address| EndpointCandidate { link, address: *address }).collect();
        if places.is_empty() && request.links.contains(&link.name) {
            return Err(PlanError::Unusable(link.name.clone(), "has no address that can be used"));
        }
        found.extend(places);
    }
    // The first addresses of every interface and family come before any second ones.
    let rank = |at: usize| {
        let same = |other: &&EndpointCandidate<'_>| {
            found.get(at).is_some_and(|place| {
                other.link.index == place.link.index && other.ip().is_ipv4() == place.ip().is_ipv4()
            })
        };
        found.iter().take(at).filter(same).count()
    };
    let mut order: Vec<_> = (0..found.len()).map(|at| (rank(at), at)).collect();
    order.sort_unstable();
    Ok(order.iter().filter_map(|(_, at)| found.get(*at).copied()).take(MAX_ENDPOINTS).collect())
}

fn is_used(host: &HostState, request: &SetupRequest, link: &Link) -> bool {
    if !request.links.is_empty() {
        return request.links.contains(&link.name);
    }
    // A bridge without a default route is the internal network of containers or virtual machines.
    let inside = link.kind.as_deref() == Some("bridge")
        && host.router(link.index, true).is_none()
        && host.router(link.index, false).is_none();
    link.is_up() && link.is_running() && !link.is_loopback() && !inside
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
    fn step(&mut self, change: ConfigChange, reason: String) {
        self.plan.steps.push(PlanStep { change, reason });
    }

    fn note(&mut self, text: String) {
        if !self.plan.notes.contains(&text) {
            self.plan.notes.push(text);
        }
    }

    fn set(&mut self, sysctl: Sysctl, from: String, to: &str, reason: String) {
        self.step(ConfigChange::Sysctl { sysctl, from, to: to.to_owned() }, reason);
    }

    /// Selects the kernel's own path manager, unless mptcpd runs.
    fn path_manager(&mut self) {
        let names = [("net.mptcp.path_manager", "kernel"), ("net.mptcp.pm_type", "0")];
        for (name, wanted) in names {
            let sysctl = Sysctl::new(name);
            let Some(value) = self.queries.setting(&sysctl) else { continue };
            if value == wanted {
                return;
            }
            if self.host.managers.contains(&MptcpManager::Mptcpd) {
                self.note(
                    "mptcpd is the path manager here (net.mptcp.path_manager): endpoints have no \
                     effect while it is"
                        .to_owned(),
                );
                return;
            }
            let reason =
                "endpoints work with the kernel's own path manager only, and no daemon runs";
            self.set(sysctl, value, wanted, reason.to_owned());
            return;
        }
    }

    /// Returns the larger of the values for all interfaces and for this one, which is effective for
    /// several IPv4 settings.
    fn effective(&mut self, link: &str, name: &str) -> i64 {
        let mut number = |link: &str| {
            let value = self.queries.setting(&Sysctl::ipv4(link, name));
            value.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        number("all").max(number(link))
    }

    fn raise(&mut self, link: &str, name: &str, least: i64, reason: String) {
        if self.effective(link, name) >= least {
            return;
        }
        let sysctl = Sysctl::ipv4(link, name);
        if let Some(value) = self.queries.setting(&sysctl) {
            self.set(sysctl, value, &least.to_string(), reason);
        }
    }

    /// Returns destinations of packets from an address: the peers, or examples.
    fn targets(&self, place: &EndpointCandidate<'_>) -> Vec<IpAddr> {
        let v4 = place.ip().is_ipv4();
        let peers = self.request.peers.iter().filter(|peer| peer.is_ipv4() == v4);
        let mut targets: Vec<_> = peers.copied().collect();
        if targets.is_empty() {
            if self.host.routes.iter().any(|it| it.is_default() && it.to.address().is_ipv4() == v4)
            {
                targets.push(if v4 { LOOKUP_TARGET_V4 } else { LOOKUP_TARGET_V6 });
            }
            if sharing_interface(self.host, place.link, v4)
                .is_some_and(|(_, it)| it.contains(place.ip()))
            {
                targets.extend(unused_address_in(self.host, place.address.local));
            }
        }
        targets
    }

    fn route_state(
        &mut self,
        place: &EndpointCandidate<'_>,
        to: IpAddr,
        bound: bool,
    ) -> RouteState {
        let link = bound.then_some(place.link.name.as_str());
        let index = place.link.index;
        let on_link = self.host.is_on_link(to, index);
        let router = self.router(place);
        match self.queries.route(to, place.ip(), link) {
            // The route has a gateway, or needs none.
            Some(way) if way.link_index == Some(index) && (way.gateway.is_some() || on_link) => {
                RouteState::Right
            }
            // The destination is this host, which needs no route.
            Some(way)
                if self.host.link(way.link_index.unwrap_or(0)).is_some_and(Link::is_loopback) =>
            {
                RouteState::Right
            }
            _ if on_link || router.is_some() => RouteState::Wrong,
            _ => RouteState::Missing,
        }
    }

    fn router(&self, place: &EndpointCandidate<'_>) -> Option<Gateway> {
        let v4 = place.ip().is_ipv4();
        let named = self
            .request
            .routers
            .iter()
            .find(|(link, address)| *link == place.link.name && address.is_ipv4() == v4);
        let named = named.map(|(_, address)| Gateway::At(*address));
        named.or_else(|| self.host.router(place.link.index, v4))
    }

    /// Routes packets from an address over its own interface, and returns its endpoint.
    fn endpoint(&mut self, place: &EndpointCandidate<'_>) -> Option<NamedEndpoint> {
        let targets = self.targets(place);
        let opens = self.request.role == SetupRole::Client;
        let reaches: Vec<_> =
            targets.iter().map(|to| (*to, self.route_state(place, *to, opens))).collect();
        let wrong = reaches.iter().find(|(_, reach)| *reach == RouteState::Wrong);
        if let Some((to, _)) = wrong {
            self.own_table(place, *to, opens);
        } else if opens {
            let right: Vec<_> =
                reaches.iter().filter(|(_, reach)| *reach == RouteState::Right).collect();
            self.loose_filter(place, &right.iter().map(|(to, _)| *to).collect::<Vec<_>>());
        }
        let never =
            !reaches.is_empty() && reaches.iter().all(|(_, reach)| *reach == RouteState::Missing);
        let several = targets.len() > 1 && !self.request.peers.is_empty();
        let flags = match self.request.role {
            SetupRole::Server => EndpointFlags::SIGNAL,
            SetupRole::Both => EndpointFlags::SIGNAL | EndpointFlags::SUBFLOW,
            SetupRole::Client if (never || several) && self.host.has_laminar() => {
                EndpointFlags::LAMINAR
            }
            SetupRole::Client if never => {
                let EndpointCandidate { link, .. } = place;
                self.note(format!(
                    "{} on {} has no way to the peer: this kernel (< 6.18) uses it by itself when \
                     the peer announces an address there",
                    place.ip(),
                    link.name
                ));
                return None;
            }
            SetupRole::Client => EndpointFlags::SUBFLOW,
        };
        let (address, link) = (place.ip(), Some(place.link.name.clone()));
        Some(NamedEndpoint { address, id: None, port: None, flags: flags.bits(), link })
    }

    /// Adds a rule and a table for packets from an address.
    fn own_table(&mut self, place: &EndpointCandidate<'_>, to: IpAddr, bound: bool) {
        let (ip, index, v4) = (place.ip(), place.link.index, place.ip().is_ipv4());
        let name = &place.link.name;
        let taken = self.queries.route(to, ip, bound.then_some(name.as_str()));
        let leaves = taken.and_then(|way| self.host.link(way.link_index?)).map_or_else(
            || "has no route".to_owned(),
            |link| {
                if link.index == index {
                    format!("asks for {to} on {name} itself, where it is not")
                } else {
                    format!("leaves by {}", link.name)
                }
            },
        );
        let table = self.table(index);
        let own = place.address.local.network();
        let reason = format!("what comes from {ip} {leaves}, not by {name}: a table of its own");
        let exists = |to: Prefix, host: &HostState| {
            host.routes
                .iter()
                .any(|it| (it.table, it.to, it.link_index) == (table, to, Some(index)))
        };
        let mut routes = Vec::new();
        if place.address.peer.is_none() && own.length() < Prefix::host(ip).length() {
            routes.push((own, None));
        }
        if let Some(router) = self.router(place) {
            let everything = if v4 { Prefix::ALL_V4 } else { Prefix::ALL_V6 };
            routes.push((everything, router.address()));
        }
        for (to, gateway) in routes {
            let (link, to_text) = (name.clone(), to.to_string());
            let route = ConfigChange::AddRoute(TableRoute { to: to_text, link, gateway, table });
            let planned = self.plan.steps.iter().any(|step| step.change == route);
            if !exists(to, self.host) && !planned {
                self.step(route, reason.clone());
            }
        }
        let priority = self.priority(ip);
        let rule = SourceRule { from: ip, table, priority };
        self.step(ConfigChange::AddRule(rule), format!("{ip} uses the table of {name}"));
    }

    /// Returns a free table for an interface; the same for all of its addresses.
    fn table(&mut self, link: u32) -> u32 {
        if let Some((_, table)) = self.tables.iter().find(|(index, _)| *index == link) {
            return *table;
        }
        let used = |table: u32| {
            self.tables.iter().any(|(_, other)| *other == table)
                || self.host.routes.iter().any(|route| route.table == table)
                || self.host.rules.iter().any(|rule| rule.action == RuleAction::Table(table))
        };
        let first = FIRST_TABLE.saturating_add(link);
        let table = (first..u32::MAX).find(|table| !used(*table)).unwrap_or(first);
        self.tables.insert((link, table));
        table
    }

    /// Returns a free priority, before every rule that would match the same packets.
    fn priority(&self, from: IpAddr) -> u32 {
        let catches =
            self.host.rules.iter().filter(|rule| {
                rule.priority > 0 && rule.from.address().is_ipv4() == from.is_ipv4()
            });
        let before = catches.filter(|rule| rule.from.contains(from) != rule.inverted);
        let before = before.map(|rule| rule.priority).min().unwrap_or(RULE_PRIORITY_LIMIT);
        let ours = self.plan.steps.iter().filter_map(|step| {
            let ConfigChange::AddRule(rule) = &step.change else { return None };
            Some(rule.priority)
        });
        let theirs = self.host.rules.iter().map(|rule| rule.priority);
        let taken: BTreeSet<u32> = theirs.chain(ours).collect();
        let last = before.min(RULE_PRIORITY_LIMIT);
        (1..last).rev().find(|priority| !taken.contains(priority)).unwrap_or(last)
    }

    /// Loosens a strict reverse-path filter, which drops replies on an interface without a route
    /// back.
    fn loose_filter(&mut self, place: &EndpointCandidate<'_>, targets: &[IpAddr]) {
        let name = place.link.name.as_str();
        if !place.ip().is_ipv4() || self.effective(name, "rp_filter") != 1 {
            return;
        }
        let elsewhere = targets
            .iter()
            .find(|to| self.route_state(place, **to, false) != RouteState::Right)
            .copied();
        if elsewhere.is_none() {
            return;
        }
        let sysctl = Sysctl::ipv4(name, "rp_filter");
        let planned = self.plan.steps.iter().any(
            |step| matches!(&step.change, ConfigChange::Sysctl { sysctl: other, .. } if *other == sysctl),
        );
        if let Some(value) = self.queries.setting(&sysctl).filter(|_| !planned) {
            let reason = format!(
                "the strict filter (1) drops what arrives at {name}, because routes lead elsewhere"
            );
            self.set(sysctl, value, "2", reason);
        }
    }

    fn limits(&mut self, places: &[EndpointCandidate<'_>]) {
        let now = StoredLimits::from(self.host.limits);
        let own = places.len();
        // The peer may announce more addresses than the options name.
        let theirs = own.max(self.request.peers.len());
        let most = MAX_ENDPOINTS as u32;
        let few = |count: usize| (count as u32).clamp(2, most);
        let accepted = few(theirs);
        let (wanted, reason) = match self.request.role {
            SetupRole::Client => (
                StoredLimits {
                    subflows: few(own.saturating_mul(theirs)),
                    add_addr_accepted: accepted,
                },
                "room for a subflow from each address to each of the peer's, and for what it \
                 announces",
            ),
            // The client opens subflows, so the server has no reason to limit them further.
            SetupRole::Server => (
                StoredLimits { subflows: most, add_addr_accepted: 0 },
                "room for every subflow that a client opens",
            ),
            SetupRole::Both => (
                StoredLimits { subflows: most, add_addr_accepted: accepted },
                "room for every subflow that either side opens",
            ),
        };
        // A higher limit than needed does no harm.
        let to = StoredLimits {
            subflows: now.subflows.max(wanted.subflows),
            add_addr_accepted: now.add_addr_accepted.max(wanted.add_addr_accepted),
        };
        let (change, reason) = (ConfigChange::Limits { from: now, to }, reason.to_owned());
        if to == now {
            self.plan.kept_steps.push(PlanStep { change, reason });
        } else {
            self.step(change, reason);
        }
    }

    /// Notes the interfaces that are unusable only in their present state.
    fn list_unused_links(&mut self) {
        for link in self.host.links.iter().filter(|link| !is_used(self.host, self.request, link)) {
            let own =
                self.host.addresses.iter().find(|it| it.link_index == link.index && it.is_global());
            if own.is_none() || link.is_loopback() || !self.request.links.is_empty() {
                continue;
            }
            let why = match (link.is_up(), link.is_running()) {
                (false, _) => "is down",
                (true, false) => "has no carrier",
                (true, true) => "is a bridge without a default route",
            };
            self.note(format!("{} is left out: it {why}", link.name));
        }
    }

    fn remarks(&mut self, places: &[EndpointCandidate<'_>]) {
        self.list_unused_links();
        let links: BTreeSet<_> = places.iter().map(|place| place.link.index).collect();
        match (links.len(), places.len()) {
            (0, _) => self.note("no interface has an address that can be used".to_owned()),
            (1, _) if self.request.role == SetupRole::Client => self.note(
                "only one interface can be used: there are several paths only if the server has \
                 several"
                    .to_owned(),
            ),
            _ => {}
        }
        if links.len() > 1 && places.iter().all(|place| self.targets(place).is_empty()) {
            self.note(
                "there is no default route, so that routes could not be checked: name the other \
                 host (--peer)"
                    .to_owned(),
            );
        }
        if self.host.managers.contains(&MptcpManager::NetworkManager) {
            self.note(
                "NetworkManager runs here and may set endpoints by itself \
                 (connection.mptcp-flags): `--persist networkmanager` says it in its words"
                    .to_owned(),
            );
        }
        if self.host.managers.contains(&MptcpManager::Mptcpd) {
            self.note(
                "mptcpd runs here and changes endpoints and limits by itself: stop it, or leave \
                 all to it"
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
            let is_host = |it: Prefix| it == Prefix::host(it.address());
            let overlaps = |it: &Prefix| {
                !is_host(*it) && (it.contains(network.address()) || network.contains(it.address()))
            };
            let other_family = network.address().is_ipv4() != v4;
            if other_family || is_link_local(network.address()) || is_host(network) {
                continue;
            }
            if host.networks(other.index).any(|it| overlaps(&it)) {
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
    let next = |address: IpAddr| match address {
        IpAddr::V4(v4) => IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits().wrapping_add(1))),
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits().wrapping_add(1))),
    };
    let mut address = network.network().address();
    for _ in 0..=host.addresses.len() {
        address = next(address);
        if !network.contains(address) || !network.contains(next(address)) {
            return None;
        }
        if host.addresses.iter().all(|own| own.local.address() != address) {
            return Some(address);
        }
    }
    None
}
