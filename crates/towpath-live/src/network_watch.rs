//! Changes of this host's network during a measurement: links, addresses and default routes. They
//! invalidate a comparison, and are the subject of a mobile measurement.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use towpath_netlink::{
    InterfaceAddress, Link, LinkEvent, LinkEvents, NetlinkError, RouteEntry, RouteSocket,
};
use towpath_os::sys;

/// Interval at which the stop flag is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Main routing table, which applies to packets without a policy rule.
const MAIN_TABLE: u32 = libc::RT_TABLE_MAIN as u32;

/// Change of a link, an address or a default route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkChange {
    /// An interface is new, changed its administrative state, or changed its carrier.
    Link {
        /// Name of the interface.
        interface: String,
        /// True if the interface is up and running.
        running: bool,
    },
    /// An interface was removed.
    Removed {
        /// Name of the interface.
        interface: String,
    },
    /// An address was added to or removed from an interface.
    Address {
        /// Name of the interface.
        interface: String,
        /// Address without prefix length.
        address: IpAddr,
        /// True if added, false if removed.
        present: bool,
    },
    /// The best default route of a family changed.
    DefaultRoute {
        /// True for IPv6, false for IPv4.
        v6: bool,
        /// Interface and next hop of the new route; `None` without a default route.
        now: Option<(String, Option<IpAddr>)>,
    },
}

impl NetworkChange {
    /// Returns the affected interface; `None` if a default route disappeared.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Link { interface, .. }
            | Self::Removed { interface }
            | Self::Address { interface, .. } => Some(interface),
            Self::DefaultRoute { now, .. } => now.as_ref().map(|(interface, _)| interface.as_str()),
        }
    }
}

impl fmt::Display for NetworkChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Link { interface, running: true } => write!(f, "interface {interface} is up"),
            Self::Link { interface, running: false } => write!(f, "interface {interface} is down"),
            Self::Removed { interface } => write!(f, "interface {interface} is gone"),
            Self::Address { interface, address, present: true } => {
                write!(f, "address {address} added on {interface}")
            }
            Self::Address { interface, address, present: false } => {
                write!(f, "address {address} removed on {interface}")
            }
            Self::DefaultRoute { v6, now } => {
                let family = if *v6 { "IPv6" } else { "IPv4" };
                match now {
                    None => write!(f, "the default route of {family} is gone"),
                    Some((interface, None)) => {
                        write!(f, "the default route of {family} now uses {interface}")
                    }
                    Some((interface, Some(gateway))) => {
                        write!(f, "the default route of {family} now uses {gateway} on {interface}")
                    }
                }
            }
        }
    }
}

/// Known state of the network. Excludes the loopback interface and link-local addresses, which
/// follow their interfaces.
#[derive(Debug, Default)]
struct NetworkState {
    /// Name and running flag by interface index.
    links: BTreeMap<u32, (String, bool)>,
    addresses: BTreeSet<(u32, IpAddr)>,
    /// Interface index and next hop for IPv4 and IPv6.
    defaults: [Option<(u32, Option<IpAddr>)>; 2],
}

/// Watcher of all network changes since it was opened.
#[derive(Debug)]
pub struct NetworkWatch {
    events: LinkEvents,
    route: RouteSocket,
    state: NetworkState,
}

impl NetworkWatch {
    /// Subscribes in the calling thread's network namespace; requires no privilege.
    pub fn open() -> Result<Self, NetlinkError> {
        // Subscribe first, so that no change during the listing is missed.
        let events = LinkEvents::open_with_routes()?;
        let mut route = RouteSocket::open()?;
        let mut state = NetworkState::default();
        state.relist(&mut route)?;
        Ok(Self { events, route, state })
    }

    /// Returns the interface of a family's best default route.
    pub fn default_interface(&self, v6: bool) -> Option<String> {
        let (index, _) = (*self.state.defaults.get(usize::from(v6))?)?;
        self.state.links.get(&index).map(|(name, _)| name.clone())
    }

    /// Returns the changes since the last call; never blocks.
    pub fn changes(&mut self) -> Result<Vec<NetworkChange>, NetlinkError> {
        let received = self.events.drain()?;
        let mut changes = Vec::new();
        for event in &received.events {
            self.state.on_event(event, &mut changes);
        }
        if received.lost {
            changes.extend(self.state.relist(&mut self.route)?);
        } else if !received.events.is_empty() {
            // Not every removed route is announced: IPv4 routes disappear with their link.
            let routes = self.route.routes()?;
            self.state.update_routes(&routes, &mut changes);
        }
        Ok(changes)
    }

    /// Passes all changes to `on_change` until `done`, including those that precede it.
    pub fn run(&mut self, done: &AtomicBool, on_change: &mut dyn FnMut(NetworkChange)) {
        loop {
            // Read before the last poll, so that changes until then are included.
            let is_last = done.load(Ordering::Acquire);
            let Ok(changes) = self.changes() else { return };
            changes.into_iter().for_each(&mut *on_change);
            let mut fds = [sys::input_pollfd(&self.events.as_fd())];
            if is_last || sys::poll(&mut fds, Some(POLL_INTERVAL)).is_err() {
                return;
            }
        }
    }
}

impl AsFd for NetworkWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl NetworkState {
    /// Lists the whole network; returns the differences from the known state.
    fn relist(&mut self, route: &mut RouteSocket) -> Result<Vec<NetworkChange>, NetlinkError> {
        let mut changes = Vec::new();
        let (links, addresses) = (route.links()?, route.addresses()?);
        let routes = route.routes()?;
        let exists = |index| links.iter().any(|link| link.index == index);
        let removed: Vec<u32> =
            self.links.keys().copied().filter(|index| !exists(*index)).collect();
        for index in removed {
            self.forget_link(index, &mut changes);
        }
        for link in &links {
            self.update_link(link, &mut changes);
        }
        let present: BTreeSet<_> = addresses.iter().map(address_key).collect();
        let removed: Vec<_> = self.addresses.difference(&present).copied().collect();
        for (index, address) in removed {
            self.update_address((index, address), false, &mut changes);
        }
        for address in present {
            self.update_address(address, true, &mut changes);
        }
        self.update_routes(&routes, &mut changes);
        Ok(changes)
    }

    fn on_event(&mut self, event: &LinkEvent, changes: &mut Vec<NetworkChange>) {
        match event {
            LinkEvent::Link(link) => self.update_link(link, changes),
            LinkEvent::LinkRemoved(link) => self.forget_link(link.index, changes),
            LinkEvent::AddressAdded(address) => {
                self.update_address(address_key(address), true, changes);
            }
            LinkEvent::AddressRemoved(address) => {
                self.update_address(address_key(address), false, changes);
            }
            // Routes are listed afterwards.
            LinkEvent::RouteAdded(_) | LinkEvent::RouteRemoved(_) => {}
        }
    }

    fn update_link(&mut self, link: &Link, changes: &mut Vec<NetworkChange>) {
        if link.flags & libc::IFF_LOOPBACK as u32 != 0 {
            return;
        }
        let running = link.is_up() && link.is_running();
        let previous = self.links.insert(link.index, (link.name.clone(), running));
        if previous.is_none_or(|(_, was_running)| was_running != running) {
            changes.push(NetworkChange::Link { interface: link.name.clone(), running });
        }
    }

    fn forget_link(&mut self, index: u32, changes: &mut Vec<NetworkChange>) {
        self.addresses.retain(|(link, _)| *link != index);
        if let Some((interface, _)) = self.links.remove(&index) {
            changes.push(NetworkChange::Removed { interface });
        }
    }

    fn update_address(
        &mut self,
        (index, address): (u32, IpAddr),
        present: bool,
        changes: &mut Vec<NetworkChange>,
    ) {
        let is_link_local = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local());
        let Some((interface, _)) = self.links.get(&index).filter(|_| !is_link_local) else {
            return;
        };
        let is_change = if present {
            self.addresses.insert((index, address))
        } else {
            self.addresses.remove(&(index, address))
        };
        if is_change {
            changes.push(NetworkChange::Address { interface: interface.clone(), address, present });
        }
    }

    /// Updates the best default route of each family; the kernel prefers low metrics.
    fn update_routes(&mut self, routes: &[RouteEntry], changes: &mut Vec<NetworkChange>) {
        for (v6, current) in [false, true].into_iter().zip(&mut self.defaults) {
            let of_family = |route: &&RouteEntry| {
                route.table == MAIN_TABLE
                    && route.to.length() == 0
                    && route.to.address().is_ipv6() == v6
                    && route.link_index.is_some_and(|index| self.links.contains_key(&index))
            };
            let best = routes.iter().filter(of_family).min_by_key(|route| route.metric);
            let now = best.and_then(|route| Some((route.link_index?, route.gateway)));
            if *current == now {
                continue;
            }
            *current = now;
            let now = now.map(|(index, gateway)| {
                let name = self.links.get(&index).map(|(name, _)| name.clone());
                (name.unwrap_or_default(), gateway)
            });
            changes.push(NetworkChange::DefaultRoute { v6, now });
        }
    }
}

fn address_key(address: &InterfaceAddress) -> (u32, IpAddr) {
    (address.link_index, address.local.address())
}
