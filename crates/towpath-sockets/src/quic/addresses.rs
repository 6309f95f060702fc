//! Interfaces and addresses of the kernel, for a QUIC host.
//!
//! After each event, everything is listed again and compared with the state the QUIC host knows. A
//! lost event therefore has no effect.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use towpath_net::Instant;
use towpath_netlink::{InterfaceAddress, Link, LinkEvents, NetlinkError, RouteSocket};
use towpath_quic::{LocalAddress, QuicStack};

/// Address flags (`linux/if_addr.h`) that exclude an address: duplicate address detection is
/// pending or failed.
const UNUSABLE_FLAGS: u32 = libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED;

/// Permitted use of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InterfaceUse {
    /// True to open additional paths from it, other than a connection's first one.
    pub subflow: bool,
    /// True if its paths are backups.
    pub backup: bool,
}

/// Permitted use of a host's interfaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfacePolicy {
    /// Use of particular interfaces by name.
    pub named: BTreeMap<String, InterfaceUse>,
    /// Use of all other interfaces.
    pub others: InterfaceUse,
}

impl InterfacePolicy {
    /// Permits all interfaces to open paths, none as backup.
    pub fn all() -> Self {
        Self { named: BTreeMap::new(), others: InterfaceUse { subflow: true, backup: false } }
    }

    fn usage(&self, name: &str) -> InterfaceUse {
        self.named.get(name).copied().unwrap_or(self.others)
    }
}

/// Tracker of the addresses of one network namespace.
#[derive(Debug)]
pub(super) struct AddressTracker {
    interfaces: InterfacePolicy,
    events: LinkEvents,
    route: RouteSocket,
    /// Addresses that the QUIC host knows.
    host_addresses: BTreeMap<IpAddr, LocalAddress>,
    /// Address for new paths of each interface index and family; true for IPv4.
    chosen: BTreeMap<(u32, bool), IpAddr>,
    /// Indices of all interfaces.
    links: BTreeSet<u32>,
}

impl AsFd for AddressTracker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl AddressTracker {
    /// Subscribes in the calling thread's network namespace.
    pub(super) fn open(interfaces: InterfacePolicy) -> Result<Self, NetlinkError> {
        let (events, route) = (LinkEvents::open()?, RouteSocket::open()?);
        let (host_addresses, chosen, links) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Ok(Self { interfaces, events, route, host_addresses, chosen, links })
    }

    /// Updates the QUIC host's addresses; returns true if any changed.
    pub(super) fn update(
        &mut self,
        now: Instant,
        host: &mut QuicStack,
    ) -> Result<bool, NetlinkError> {
        // The lists contain the same information.
        let _ = self.events.drain()?;
        let (links, addresses) = (self.route.links()?, self.route.addresses()?);
        let current = self.usable_addresses(&links, &addresses);
        let changed = current != self.host_addresses;
        // New addresses first, so that a connection that loses its last path has another one.
        for new in current.values().filter(|new| self.host_addresses.get(&new.address) != Some(new))
        {
            host.set_address(now, *new);
        }
        for removed in self.host_addresses.keys().filter(|address| !current.contains_key(address)) {
            host.remove_address(now, *removed);
        }
        self.host_addresses = current;
        self.links = links.iter().map(|link| link.index).collect();
        Ok(changed)
    }

    fn usable_addresses(
        &mut self,
        links: &[Link],
        addresses: &[InterfaceAddress],
    ) -> BTreeMap<IpAddr, LocalAddress> {
        let is_usable = |address: &&InterfaceAddress| {
            address.flags & UNUSABLE_FLAGS == 0 && !needs_scope(address.local.address())
        };
        let usable: Vec<&InterfaceAddress> = addresses.iter().filter(is_usable).collect();
        self.choose(&usable);
        let mut current = BTreeMap::new();
        for link in links {
            let has_flag = |flag: libc::c_int| link.flags & flag as u32 != 0;
            let usage = self.interfaces.usage(&link.name);
            for candidate in usable.iter().filter(|candidate| candidate.link_index == link.index) {
                let address = candidate.local.address();
                let is_chosen = self.chosen.get(&(link.index, address.is_ipv4())) == Some(&address);
                let local = LocalAddress {
                    address,
                    interface: link.index,
                    up: has_flag(libc::IFF_UP) && has_flag(libc::IFF_RUNNING),
                    subflow: is_chosen && usage.subflow && !has_flag(libc::IFF_LOOPBACK),
                    backup: usage.backup,
                };
                current.insert(address, local);
            }
        }
        current
    }

    /// Chooses one address for each interface and family, as several paths over one link do not
    /// help. A valid choice stays, although temporary addresses (RFC 8981) change.
    fn choose(&mut self, usable: &[&InterfaceAddress]) {
        let is_preferred =
            |candidate: &InterfaceAddress| candidate.flags & libc::IFA_F_DEPRECATED == 0;
        let is_assigned = |interface: u32, address: IpAddr| {
            usable.iter().any(|candidate| {
                candidate.link_index == interface
                    && candidate.local.address() == address
                    && is_preferred(candidate)
            })
        };
        self.chosen.retain(|(interface, _), address| is_assigned(*interface, *address));
        for candidate in usable.iter().filter(|candidate| is_preferred(candidate)) {
            let address = candidate.local.address();
            self.chosen.entry((candidate.link_index, address.is_ipv4())).or_insert(address);
        }
    }

    /// Returns the interface index of an address of this host.
    pub(super) fn interface_of(&self, address: IpAddr) -> Option<u32> {
        self.host_addresses.get(&address).map(|a| a.interface)
    }

    /// Returns true if the interface exists.
    pub(super) fn has_interface(&self, index: u32) -> bool {
        self.links.contains(&index)
    }

    /// Returns interface indices with addresses of a family, excluding loopback.
    pub(super) fn interfaces(&self, v4: bool) -> Vec<(u32, IpAddr)> {
        let outside = self.host_addresses.values().filter(|a| !a.address.is_loopback());
        let of_family = outside.filter(|a| a.address.is_ipv4() == v4);
        let mut interfaces: Vec<(u32, IpAddr)> =
            of_family.map(|a| (a.interface, a.address)).collect();
        interfaces.sort_unstable();
        interfaces
    }
}

/// Returns true if the address is ambiguous without its interface.
fn needs_scope(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use towpath_netlink::{LinkStats, OperationalState, Prefix};

    use super::*;

    fn link(index: u32, name: &str, flags: i32) -> Link {
        Link {
            index,
            name: name.to_owned(),
            flags: flags as u32,
            state: OperationalState::Up,
            carrier: Some(true),
            mtu: 1_500,
            tx_queue_len: 1_000,
            mac: None,
            kind: None,
            master: None,
            stats: LinkStats::default(),
        }
    }

    fn address(link_index: u32, text: &str, flags: u32) -> InterfaceAddress {
        let local = Prefix::host(text.parse().unwrap());
        InterfaceAddress { link_index, local, peer: None, flags, scope: 0 }
    }

    const UP: i32 = libc::IFF_UP | libc::IFF_RUNNING;

    fn usable_states(
        tracker: &mut AddressTracker,
        links: &[Link],
        addresses: &[InterfaceAddress],
    ) -> Vec<(String, bool, bool)> {
        let current = tracker.usable_addresses(links, addresses);
        current.values().map(|a| (a.address.to_string(), a.up, a.subflow)).collect()
    }

    fn open_tracker(interfaces: InterfacePolicy) -> AddressTracker {
        AddressTracker::open(interfaces).unwrap()
    }

    #[test]
    fn an_interface_gives_one_address_of_each_family_for_paths() {
        let mut tracker = open_tracker(InterfacePolicy::all());
        let links = [link(1, "lo", UP | libc::IFF_LOOPBACK), link(2, "wifi", UP)];
        let mut addresses = vec![
            address(1, "127.0.0.1", 0),
            address(2, "192.0.2.1", 0),
            address(2, "192.0.2.2", 0),
            address(2, "2001:db8::2", libc::IFA_F_TENTATIVE),
            address(2, "2001:db8::1", 0),
            address(2, "fe80::1", 0),
        ];
        let expected = [
            ("127.0.0.1", true, false),
            ("192.0.2.1", true, true),
            ("192.0.2.2", true, false),
            ("2001:db8::1", true, true),
        ];
        let expected = expected.map(|(text, up, subflow)| (text.to_owned(), up, subflow));
        assert_eq!(usable_states(&mut tracker, &links, &addresses), expected);
        // A new temporary address comes first in the kernel's list, but changes nothing.
        addresses.insert(4, address(2, "2001:db8::3", libc::IFA_F_TEMPORARY));
        let now = usable_states(&mut tracker, &links, &addresses);
        assert!(now.contains(&("2001:db8::1".to_owned(), true, true)), "{now:?}");
        // The choice changes when its address becomes deprecated.
        addresses[5].flags = libc::IFA_F_DEPRECATED;
        let now = usable_states(&mut tracker, &links, &addresses);
        assert!(now.contains(&("2001:db8::3".to_owned(), true, true)), "{now:?}");
    }

    #[test]
    fn interfaces_without_carrier_or_not_named_start_no_paths() {
        let backup = InterfaceUse { subflow: true, backup: true };
        let named = BTreeMap::from([("cellular".to_owned(), backup)]);
        let others = InterfaceUse { subflow: false, backup: false };
        let mut tracker = open_tracker(InterfacePolicy { named, others });
        let links = [link(2, "wifi", libc::IFF_UP), link(3, "cellular", UP)];
        let addresses = [address(2, "192.0.2.1", 0), address(3, "198.51.100.1", 0)];
        let current = tracker.usable_addresses(&links, &addresses);
        let states: Vec<_> =
            current.values().map(|a| (a.interface, a.up, a.subflow, a.backup)).collect();
        assert_eq!(states, [(2, false, false, false), (3, true, true, true)]);
    }
}
