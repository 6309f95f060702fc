//! Interfaces of a network namespace by address. Follows the kernel's events, so that an address
//! that moves is found on its new interface.

use std::collections::BTreeMap;
use std::net::IpAddr;

use towpath_netlink::{InterfaceAddress, Link, LinkEvent, LinkEvents, NetlinkError, RouteSocket};

/// Interfaces and their addresses.
#[derive(Debug, Default)]
pub(crate) struct InterfaceMap {
    /// Name of each interface, and true if it is running.
    links: BTreeMap<u32, (String, bool)>,
    /// Interfaces that have an address; the last one got it last.
    addresses: BTreeMap<IpAddr, Vec<u32>>,
}

impl InterfaceMap {
    /// Lists the interfaces and addresses of the calling thread's network namespace.
    pub(crate) fn read(route: &mut RouteSocket) -> Result<Self, NetlinkError> {
        let mut map = Self::default();
        for link in route.links()? {
            map.add_link(&link);
        }
        for address in route.addresses()? {
            map.add_address(&address);
        }
        Ok(map)
    }

    /// Returns the name of the interface that has an address, and true if it can carry packets.
    pub(crate) fn lookup(&self, address: IpAddr) -> Option<(String, bool)> {
        self.links.get(self.addresses.get(&address)?.last()?).cloned()
    }

    /// Returns the name of an interface; `None` if it is gone.
    pub(crate) fn name(&self, index: u32) -> Option<&str> {
        self.links.get(&index).map(|(name, _)| name.as_str())
    }

    /// Applies an event; returns true if it changed anything.
    pub(crate) fn apply(&mut self, event: &LinkEvent) -> bool {
        match event {
            LinkEvent::Link(link) => self.add_link(link),
            LinkEvent::LinkRemoved(link) => {
                self.remove_index(link.index);
                self.links.remove(&link.index).is_some()
            }
            LinkEvent::AddressAdded(address) => self.add_address(address),
            LinkEvent::AddressRemoved(address) => self.remove_address(address),
            LinkEvent::RouteAdded(_) | LinkEvent::RouteRemoved(_) => false,
        }
    }

    fn add_link(&mut self, link: &Link) -> bool {
        let state = (link.name.clone(), is_running(link));
        self.links.insert(link.index, state.clone()) != Some(state)
    }

    fn add_address(&mut self, address: &InterfaceAddress) -> bool {
        let owners = self.addresses.entry(address.local.address()).or_default();
        // An event may also report changed flags of an address.
        let is_new = !owners.contains(&address.link_index);
        if is_new {
            owners.push(address.link_index);
        }
        is_new
    }

    fn remove_address(&mut self, address: &InterfaceAddress) -> bool {
        let Some(owners) = self.addresses.get_mut(&address.local.address()) else { return false };
        let count = owners.len();
        owners.retain(|index| *index != address.link_index);
        owners.len() < count
    }

    fn remove_index(&mut self, index: u32) {
        for owners in self.addresses.values_mut() {
            owners.retain(|owner| *owner != index);
        }
    }
}

/// Interfaces of a network namespace, as of the last update.
#[derive(Debug)]
pub(crate) struct InterfaceFollower {
    /// Source of changes; `None` where the kernel gives none, so that each update lists everything.
    events: Option<LinkEvents>,
    map: InterfaceMap,
}

impl InterfaceFollower {
    /// Follows the calling thread's network namespace; needs no privilege.
    pub(crate) fn open() -> Self {
        // Subscribed first, so that no change is missed between listing and events.
        let events = LinkEvents::open().ok();
        let mut follower = Self { events, map: InterfaceMap::default() };
        follower.reload();
        follower
    }

    /// Applies the changes since the last call.
    pub(crate) fn update(&mut self) {
        match self.events.as_mut().map(LinkEvents::drain) {
            Some(Ok(received)) => {
                for event in &received.events {
                    self.map.apply(event);
                }
                if received.lost {
                    self.reload();
                }
            }
            Some(Err(_)) | None => self.reload(),
        }
    }

    /// Returns the name of the interface that has an address.
    pub(crate) fn lookup(&self, address: IpAddr) -> Option<String> {
        self.map.lookup(address).map(|(name, _)| name)
    }

    fn reload(&mut self) {
        // Without a listing, the last known state stays.
        if let Ok(map) = RouteSocket::open().and_then(|mut route| InterfaceMap::read(&mut route)) {
            self.map = map;
        }
    }
}

/// Returns true if a link can carry packets.
///
/// The loopback interface has no operational state but is usable when it is up.
pub(crate) fn is_running(link: &Link) -> bool {
    link.is_up() && (link.is_running() || link.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(link_index: u32, text: &str) -> InterfaceAddress {
        let length = if text.contains(':') { 64 } else { 24 };
        let local = format!("{text}/{length}").parse().unwrap();
        InterfaceAddress { link_index, local, peer: None, flags: 0, scope: 0 }
    }

    fn two_links() -> InterfaceMap {
        let links = [(2, ("eth0".to_owned(), true)), (3, ("eth1".to_owned(), true))];
        InterfaceMap { links: links.into(), addresses: BTreeMap::new() }
    }

    #[test]
    fn an_address_is_found_on_the_interface_to_which_it_has_moved() {
        for text in ["10.0.0.1", "2001:db8::1"] {
            let ip = text.parse().unwrap();
            let [old, new] = [2, 3].map(|index| address(index, text));
            let mut map = two_links();
            let name = |map: &InterfaceMap| map.lookup(ip).map(|(name, _)| name);
            assert!(map.apply(&LinkEvent::AddressAdded(old)));
            assert!(!map.apply(&LinkEvent::AddressAdded(old)), "only its flags changed");
            assert_eq!(name(&map).as_deref(), Some("eth0"));
            assert!(map.apply(&LinkEvent::AddressRemoved(old)));
            assert_eq!(name(&map), None);
            map.apply(&LinkEvent::AddressAdded(new));
            assert_eq!(name(&map).as_deref(), Some("eth1"));
            // Added to the other interface before it is removed from this one.
            map.apply(&LinkEvent::AddressAdded(old));
            map.apply(&LinkEvent::AddressRemoved(new));
            assert_eq!(name(&map).as_deref(), Some("eth0"), "{text}");
        }
    }
}
