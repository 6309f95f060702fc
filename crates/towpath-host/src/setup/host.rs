//! Configuration of a host: all inputs of a plan, read once.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;

use towpath_netlink::{
    Endpoint, InterfaceAddress, Link, MptcpLimits, NetlinkError, Prefix, RouteEntry, RouteKind,
    RouteQuery, RuleEntry,
};
use towpath_os::sysctl::Sysctl;

use super::change::ConfigHandles;

/// The configuration of a host, in the calling thread's network namespace.
#[derive(Debug, Clone)]
pub struct HostState {
    /// Interfaces, up or down.
    pub links: Vec<Link>,
    /// Addresses of all interfaces.
    pub addresses: Vec<InterfaceAddress>,
    /// Routes of all tables, IPv4 and IPv6.
    pub routes: Vec<RouteEntry>,
    /// Policy rules, IPv4 and IPv6.
    pub rules: Vec<RuleEntry>,
    /// Multipath TCP endpoints of the path manager.
    pub endpoints: Vec<Endpoint>,
    /// Limits of the path manager.
    pub limits: MptcpLimits,
    /// Version of the kernel, such as (6, 18).
    pub kernel: (u32, u32),
    /// Running programs that configure Multipath TCP by themselves.
    pub managers: BTreeSet<MptcpManager>,
}

/// A program that configures Multipath TCP without towpath.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MptcpManager {
    /// `NetworkManager`, which sets endpoints for connections with `connection.mptcp-flags`.
    NetworkManager,
    /// mptcpd, which sets limits and an endpoint for each default route, or is the path manager
    /// itself.
    Mptcpd,
}

/// Queries to the kernel about routes and settings.
pub trait KernelQueries {
    /// Returns the route that a packet would take; `None` without one.
    fn route(&mut self, to: IpAddr, from: IpAddr, link: Option<&str>) -> Option<RouteEntry>;
    /// Reads a setting under `/proc/sys`; `None` if it does not exist.
    fn setting(&mut self, sysctl: &Sysctl) -> Option<String>;
}

impl KernelQueries for ConfigHandles {
    fn route(&mut self, to: IpAddr, from: IpAddr, link: Option<&str>) -> Option<RouteEntry> {
        self.route.lookup(&RouteQuery { to, from: Some(from), link }).ok()
    }

    fn setting(&mut self, sysctl: &Sysctl) -> Option<String> {
        sysctl.read().ok()
    }
}

impl HostState {
    /// Reads the configuration in the calling thread's network namespace.
    pub fn read(handles: &mut ConfigHandles) -> Result<Self, NetlinkError> {
        Ok(Self {
            links: handles.route.links()?,
            addresses: handles.route.addresses()?,
            routes: handles.route.routes()?,
            rules: handles.route.rules()?,
            endpoints: handles.manager.endpoints()?,
            limits: handles.manager.limits()?,
            kernel: kernel_version(),
            managers: running_managers(),
        })
    }

    /// Returns the interface with an index.
    pub fn link(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// Returns true if the kernel connects to announced addresses from separate endpoints
    /// (`laminar`).
    pub fn has_laminar(&self) -> bool {
        self.kernel >= (6, 18)
    }

    /// Returns the networks that are reached on the link itself.
    pub fn networks(&self, link: u32) -> impl Iterator<Item = Prefix> + '_ {
        let link_addresses =
            self.addresses.iter().filter(move |address| address.link_index == link);
        link_addresses.map(|address| address.peer.map_or(address.local, Prefix::host).network())
    }

    /// Returns true if `to` is reached on the link itself, without a router. For a socket bound to
    /// the link, the kernel claims so for any address, and its ARP requests then get no reply.
    pub fn is_on_link(&self, to: IpAddr, link: u32) -> bool {
        let is_direct = |route: &&RouteEntry| {
            route.kind == RouteKind::Unicast
                && route.link_index == Some(link)
                && route.gateway.is_none()
                && route.to.contains(to)
        };
        self.networks(link).any(|network| network.contains(to))
            || self.routes.iter().any(|r| is_direct(&r))
    }

    /// Returns the router of an interface from the default routes over it, by the lowest metric.
    pub fn router(&self, link: u32, v4: bool) -> Option<Gateway> {
        let is_default_route = |route: &&RouteEntry| {
            route.is_default()
                && route.to.address().is_ipv4() == v4
                && route.kind == RouteKind::Unicast
        };
        let mut gateways: Vec<(u32, Gateway)> = Vec::new();
        for route in self.routes.iter().filter(is_default_route) {
            let metric = route.metric.unwrap_or(0);
            if route.link_index == Some(link) {
                gateways.push((metric, route.gateway.map_or(Gateway::Link, Gateway::At)));
            }
            let hops = route.next_hops.iter().filter(|hop| hop.link_index == link);
            gateways
                .extend(hops.map(|hop| (metric, hop.gateway.map_or(Gateway::Link, Gateway::At))));
        }
        let best = gateways.into_iter().min_by_key(|(metric, _)| *metric).map(|(_, router)| router);
        // Another interface's router also works, if it is in this one's network.
        let is_on_link =
            |gateway: &IpAddr| self.networks(link).any(|network| network.contains(*gateway));
        let other_gateways =
            self.routes.iter().filter(is_default_route).filter_map(|route| route.gateway);
        best.or_else(|| other_gateways.into_iter().find(is_on_link).map(Gateway::At))
    }
}

/// Next hop from an interface to every destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gateway {
    /// A router at this address.
    At(IpAddr),
    /// The link itself, as in a tunnel.
    Link,
}

impl Gateway {
    /// Returns the address; `None` for the link itself.
    pub fn address(self) -> Option<IpAddr> {
        match self {
            Self::At(address) => Some(address),
            Self::Link => None,
        }
    }
}

/// Returns the version of the running kernel.
fn kernel_version() -> (u32, u32) {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    parse_release(&text)
}

fn parse_release(text: &str) -> (u32, u32) {
    let mut numbers =
        text.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Finds programs in this network namespace that would undo or duplicate this configuration.
fn running_managers() -> BTreeSet<MptcpManager> {
    let own_namespace = fs::read_link("/proc/thread-self/ns/net").ok();
    let mut managers = BTreeSet::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        let manager = match name.trim_end() {
            "NetworkManager" => MptcpManager::NetworkManager,
            "mptcpd" => MptcpManager::Mptcpd,
            _ => continue,
        };
        // A process without readable namespace could be in this one.
        let process_namespace = fs::read_link(entry.path().join("ns/net")).ok();
        if process_namespace.is_none() || process_namespace == own_namespace {
            managers.insert(manager);
        }
    }
    managers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_kernel_is_read() {
        assert_eq!(parse_release("6.18.44-fc-v657\n"), (6, 18));
        assert_eq!(parse_release("5.6.0-rc1"), (5, 6));
        assert_eq!(parse_release(""), (0, 0));
    }
}
